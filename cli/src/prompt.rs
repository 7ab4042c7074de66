//! Questions to whoever sits at the terminal. A Ctrl-C answers them too, and leaves the terminal
//! as it was.

use std::io::{self, BufRead as _, Write as _};

use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Ctrl-C, or a word of the system that ends us, instead of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interrupted;

/// Yes by default.
pub(crate) async fn agree(question: &str) -> Result<Result<bool, Interrupted>, Failure> {
    let question = format!("{question} [Y/n] ");
    // The end of input is no consent.
    let answer = ask(question).await?;
    Ok(answer
        .map(|line| line.is_some_and(|line| matches!(line.trim().to_lowercase().as_str(), "" | "y" | "yes"))))
}

/// Reads a line that is not shown.
pub(crate) async fn secret(question: &str) -> Result<Result<String, Interrupted>, Failure> {
    let quiet = Quiet::begin().map_err(|error| unreadable(&error))?;
    let answer = ask(format!("{question}: ")).await;
    drop(quiet);
    Ok(answer?.map(|line| line.unwrap_or_default().trim_end_matches(['\n', '\r']).to_owned()))
}

/// The line that was typed; none at the end of input.
async fn ask(question: String) -> Result<Result<Option<String>, Interrupted>, Failure> {
    // Caught before anything is asked: by default they would end us with the terminal as it is.
    let caught = |error: io::Error| Failure::failed(format!("signals can't be caught ({error})"));
    let mut interrupt = signal(SignalKind::interrupt()).map_err(caught)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(caught)?;
    // A thread of its own: nobody can take a read of the terminal back, so it is left behind.
    let (tell, told) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = tell.send(line(&question));
    });
    tokio::select! {
        line = told => match line {
            Ok(line) => line.map(Ok).map_err(|error| unreadable(&error)),
            Err(_) => Err(Failure::failed("the terminal can't be read")),
        },
        _ = interrupt.recv() => Ok(Err(Interrupted)),
        _ = terminate.recv() => Ok(Err(Interrupted)),
    }
}

fn line(question: &str) -> io::Result<Option<String>> {
    write!(io::stderr().lock(), "{question}")?;
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then_some(line))
}

fn unreadable(error: &io::Error) -> Failure {
    Failure::failed(format!("the terminal can't be read ({error})"))
}

/// What is typed is not shown while this lives.
struct Quiet(Termios);

impl Quiet {
    fn begin() -> io::Result<Self> {
        let stdin = io::stdin();
        let before = termios::tcgetattr(&stdin)?;
        let mut quiet = before.clone();
        quiet.local_flags.remove(LocalFlags::ECHO);
        quiet.local_flags.insert(LocalFlags::ECHONL);
        termios::tcsetattr(&stdin, SetArg::TCSAFLUSH, &quiet)?;
        Ok(Self(before))
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &self.0);
    }
}
