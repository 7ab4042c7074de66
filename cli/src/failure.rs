//! How a command ends that could not do what was asked: the cause, the fix, and the exit code.

use std::fmt;

use clap::error::ErrorKind;
use gpunion_protocol::problem::{Code, Problem};

#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) problem: Problem,
    pub(crate) exit: u8,
}

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const UNREACHABLE: u8 = 3;
pub(crate) const NOT_VERIFIED: u8 = 5;
/// Ctrl-C while following: the job goes on.
pub(crate) const DETACHED: u8 = 130;

impl Failure {
    pub(crate) fn failed(title: impl Into<String>) -> Self {
        Self { problem: Problem::new(Code::Internal, title), exit: FAILED }
    }

    pub(crate) fn usage(title: impl Into<String>) -> Self {
        Self { problem: Problem::new(Code::BadRequest, title), exit: USAGE }
    }

    /// The agent does not answer.
    pub(crate) fn unreachable(title: impl Into<String>) -> Self {
        Self { problem: Problem::new(Code::AgentAway, title), exit: UNREACHABLE }
    }

    /// A command line that makes no sense, as one problem.
    pub(crate) fn misused(error: &clap::Error) -> Self {
        if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            return Self::usage("no command is named").fix("gpunion --help lists them");
        }
        let text = error.to_string();
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let title = lines.next().unwrap_or("the command line makes no sense");
        let rest: Vec<&str> = lines.collect();
        Self::usage(title.trim_start_matches("error: ")).fix(rest.join("; "))
    }

    #[must_use]
    pub(crate) fn fix(mut self, fix: impl Into<String>) -> Self {
        self.problem.detail = Some(fix.into());
        self
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = problem.code.exit();
        Self { problem, exit }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::failed(format!("{error:#}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem.title)?;
        match &self.problem.detail {
            Some(detail) => write!(f, "\n  {detail}"),
            None => Ok(()),
        }
    }
}
