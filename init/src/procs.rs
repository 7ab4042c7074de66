//! The processes of the guest, as /proc shows them, and the signals that go to all of them.
//!
//! Parsing is pure and apart from reading. Nothing here waits. `kill(-1)` reaches every process
//! of the PID namespace but PID 1, and nobody outside: so only PID 1 may call it, and main
//! refuses to run as anything else.

use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::events::{Census, ToAll};

/// What one line of /proc/PID/stat says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    state: u8,
    threads: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Dead,
    Still,
    Waiting,
    Running,
}

/// When /proc can't be read (a guest may take init's right to open files), the worst is assumed.
pub(crate) const UNSEEN: Census = Census { alive: 1, running: 1, waiting: 0 };

/// Counts the processes of this namespace but init. A process that ends meanwhile is left out.
pub(crate) fn census() -> io::Result<Census> {
    let mut census = Census::default();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        if pid == 1 {
            continue;
        }
        match process(pid) {
            Standing::Dead => {}
            Standing::Still => census.alive += 1,
            Standing::Waiting => {
                census.alive += 1;
                census.waiting += 1;
            }
            Standing::Running => {
                census.alive += 1;
                census.running += 1;
            }
        }
    }
    Ok(census)
}

/// Tells all processes of the namespace; none being there is no failure.
pub(crate) fn signal_all(what: ToAll) -> Result<(), Errno> {
    send_to_all(match what {
        ToAll::Stop => Signal::SIGSTOP,
        ToAll::GoOn => Signal::SIGCONT,
        ToAll::Kill => Signal::SIGKILL,
    })
}

/// Passes on a signal that a member named by number.
pub(crate) fn signal_job(number: i32) -> Result<(), Errno> {
    send_to_all(Signal::try_from(number)?)
}

fn send_to_all(signal: Signal) -> Result<(), Errno> {
    match kill(Pid::from_raw(-1), signal) {
        Ok(()) | Err(Errno::ESRCH) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn process(pid: u32) -> Standing {
    let Some(stat) = read_stat(&format!("/proc/{pid}/stat")) else { return Standing::Dead };
    if stat.threads <= 1 {
        return standing(stat.state);
    }
    // The state of a process is that of its first thread only; a leader that ended is a zombie
    // while its other threads compute.
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Standing::Dead };
    tasks
        .filter_map(Result::ok)
        .filter_map(|task| task.file_name().to_str().map(|tid| format!("/proc/{pid}/task/{tid}/stat")))
        .filter_map(|path| read_stat(&path))
        .map(|stat| standing(stat.state))
        .max()
        .unwrap_or(Standing::Dead)
}

fn read_stat(path: &str) -> Option<Stat> {
    parse_stat(&fs::read(path).ok()?)
}

/// The name of a process stands in parentheses and may hold any byte, so the last `)` counts.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let mut fields = line.get(end + 1..)?.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let state = *fields.next()?.first()?;
    // State is field 3 of the line, the number of threads field 20.
    let threads = std::str::from_utf8(fields.nth(16)?).ok()?.parse().ok()?;
    Some(Stat { state, threads })
}

fn standing(state: u8) -> Standing {
    match state {
        b'T' | b't' => Standing::Still,
        b'Z' | b'X' | b'x' => Standing::Dead,
        b'D' => Standing::Waiting,
        _ => Standing::Running,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TAIL: &str = " 1 7 7 0 -1 4194560 9 0 0 0 0 0 0 0 20 0 5 0 100 1 1";

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let line = format!("7 (a) R 1) T{TAIL}");
        assert_eq!(parse_stat(line.as_bytes()), Some(Stat { state: b'T', threads: 5 }));
    }

    #[test]
    fn the_real_line_of_this_process_is_understood() {
        let stat = read_stat("/proc/self/stat").unwrap();
        assert!(stat.threads >= 1 && stat.state == b'R' || stat.state == b'S');
    }

    #[test]
    fn only_stopped_and_dead_count_as_still() {
        for state in *b"RSIPW" {
            assert_eq!(standing(state), Standing::Running);
        }
        assert_eq!(standing(b'D'), Standing::Waiting);
        assert_eq!(standing(b't'), Standing::Still);
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_refused(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            parse_stat(&line);
        }

        #[test]
        fn any_name_is_skipped(name in proptest::collection::vec(any::<u8>(), 0..16)) {
            let mut line = b"12 (".to_vec();
            line.extend(name);
            line.extend(format!(") S{TAIL}").bytes());
            prop_assert_eq!(parse_stat(&line), Some(Stat { state: b'S', threads: 5 }));
        }
    }
}
