//! What a person sees: one line an epoch, and a bar that redraws itself with carriage returns.
//!
//! A reader that has gone away (a closed pipe) must not end a training, so write errors are
//! dropped here and only here.

use std::io::Write;

use crate::checkpoint::Checkpoint;

const BAR: usize = 24;

#[derive(Debug)]
pub(crate) struct Progress {
    epochs: u32,
    /// The cursor stands on a bar, which the next line must overwrite.
    on_bar: bool,
}

impl Progress {
    pub(crate) fn new(epochs: u32) -> Self {
        Progress { epochs, on_bar: false }
    }

    pub(crate) fn start(&mut self, state: &Checkpoint, digits: usize) {
        match (state.epoch, state.position) {
            (0, 0) => self.line(&format!("learning from {digits} digits")),
            (epoch, 0) => self.line(&format!("resuming after epoch {epoch}")),
            (epoch, position) => {
                self.line(&format!("resuming in epoch {}, after digit {position}", epoch + 1));
            }
        }
    }

    pub(crate) fn batch(&mut self, epoch: u32, batch: usize, batches: usize) {
        let done = batch * BAR / batches;
        if batch > 1 && done == (batch - 1) * BAR / batches {
            return;
        }
        let bar = format!("{}{}", "#".repeat(done), ".".repeat(BAR - done));
        self.put(&format!("\repoch {epoch}/{} [{bar}] {:3} %", self.epochs, batch * 100 / batches));
        self.on_bar = true;
    }

    pub(crate) fn epoch(&mut self, epoch: u32, loss: f64, held_out: f64) {
        let (epochs, percent) = (self.epochs, held_out * 100.0);
        self.line(&format!("epoch {epoch}/{epochs} loss {loss:.4} held-out {percent:.1} %"));
    }

    pub(crate) fn done(&mut self, accuracy: f64, held_out: usize) {
        let percent = accuracy * 100.0;
        self.line(&format!("done: reads {percent:.1} % of {held_out} held-out digits right"));
    }

    /// A whole line; wipes what is left of the bar.
    pub(crate) fn line(&mut self, text: &str) {
        let back = if self.on_bar { "\r" } else { "" };
        let width = if self.on_bar { BAR + 24 } else { 0 };
        self.put(&format!("{back}{text:width$}\n"));
        self.on_bar = false;
    }

    fn put(&self, text: &str) {
        let mut out = std::io::stdout();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

/// The last word of a program that failed.
pub(crate) fn complain(error: &str) {
    let _ = writeln!(std::io::stderr(), "digits: {error}");
}
