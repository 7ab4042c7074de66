//! Who connected, as the kernel tells it.

use std::fs;
use std::os::fd::AsFd;

use crate::gpu::{ProcessId, container_of, start_time};

/// Who is believed to be the guest's init.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// The first process of this container (its whole id). Known before the guest starts.
    Container(String),
    /// One process, by its pid on this host: tests have no container.
    #[cfg(test)]
    Process(u32),
}

impl Peer {
    /// The process behind a connection when it is the expected one. The pid is the one at the
    /// time of `connect`; its start time is read before and after, so that a pid that was given
    /// to somebody else in between is not believed.
    pub(crate) fn recognise(&self, socket: impl AsFd) -> Option<ProcessId> {
        let pid = rustix::net::sockopt::socket_peercred(socket).ok()?.pid.as_raw_pid();
        let pid = u32::try_from(pid).ok()?;
        let before = start_time(pid)?;
        let expected = match self {
            #[cfg(test)]
            Self::Process(expected) => *expected == pid,
            Self::Container(id) => container_of(pid).as_deref() == Some(id) && is_first_of_its_namespace(pid),
        };
        (expected && start_time(pid) == Some(before)).then_some(ProcessId { pid, start_time: before })
    }
}

fn is_first_of_its_namespace(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| is_inner_pid_one(&status))
}

/// One namespace below ours and number 1 in it. A guest that could make namespaces of its own
/// would be two below.
fn is_inner_pid_one(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let Some(numbers) = numbers else { return false };
    let numbers: Vec<&str> = numbers.split_ascii_whitespace().collect();
    matches!(numbers[..], [_, "1"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_process_one_namespace_down_is_init() {
        assert!(is_inner_pid_one("Name:\tgpunion-init\nNSpid:\t4711\t1\n"));
        assert!(!is_inner_pid_one("NSpid:\t4711\t2\n"), "another process of the guest");
        assert!(!is_inner_pid_one("NSpid:\t1\n"), "the host's own init");
        assert!(!is_inner_pid_one("NSpid:\t4711\t9\t1\n"), "a namespace that the guest made");
        assert!(!is_inner_pid_one(""));
    }
}
