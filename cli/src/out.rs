//! What is printed, and where: answers to stdout, words about them to stderr. With `--json` stdout
//! carries one object a line and nothing else, and a failure is one object on stderr.

use std::io::{self, IsTerminal as _, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::failure::Failure;

#[derive(Debug)]
pub(crate) struct Out {
    json: bool,
    /// Whoever read our stdout has gone.
    unread: AtomicBool,
}

impl Out {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, unread: AtomicBool::new(false) }
    }

    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// The answer, in the form that was asked for.
    pub(crate) fn answer<T: Serialize>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let line = if self.json {
            serde_json::to_string(value).map_err(|error| Failure::failed(error.to_string()))?
        } else {
            text(value)
        };
        self.line(&line)
    }

    /// A line of the answer itself.
    pub(crate) fn line(&self, text: &str) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        self.written(writeln!(stdout, "{}", text.trim_end_matches('\n')).and_then(|()| stdout.flush()))
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut stdout = io::stdout().lock();
        self.written(stdout.write_all(bytes).and_then(|()| stdout.flush()))
    }

    /// Nobody reads any more (`| head`): whatever follows something ends.
    pub(crate) fn unread(&self) -> bool {
        self.unread.load(Ordering::Relaxed)
    }

    /// A reader that has gone is no failure: a command's exit code is about what it did.
    fn written(&self, result: io::Result<()>) -> Result<(), Failure> {
        match result {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.unread.store(true, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => Err(Failure::failed(format!("the answer can't be printed ({error})"))),
        }
    }

    /// Words for whoever watches; never part of the answer.
    pub(crate) fn say(&self, text: &str) {
        if !self.json {
            let _ = writeln!(io::stderr().lock(), "{text}");
        }
    }

    /// Progress may be drawn: somebody sees it.
    pub(crate) fn watched(&self) -> bool {
        !self.json && io::stderr().is_terminal()
    }

    /// Somebody can be asked.
    pub(crate) fn can_ask(&self) -> bool {
        !self.json && io::stdin().is_terminal() && io::stderr().is_terminal()
    }

    pub(crate) fn fail(&self, failure: &Failure) -> ExitCode {
        let text = if self.json {
            serde_json::to_string(&failure.problem).unwrap_or_else(|_| failure.to_string())
        } else {
            format!("gpunion: {failure}")
        };
        let _ = writeln!(io::stderr().lock(), "{text}");
        ExitCode::from(failure.exit)
    }
}
