//! The second way: ends guests whose init does not answer, through their cgroups, while agent and
//! engine may be away.
//!
//! It runs for as long as the machine lends, in a container that holds the cgroup subtree of this
//! device's guests and a folder for its socket, and nothing else. It must touch no cgroup but
//! those of guests, wait for nobody for long, and keep nothing: whoever asks says again. On cgroup
//! v2 it has no capability at all; on v1, where only signals end a process, it has CAP_KILL over
//! the host's processes and signals none that is not in a guest's cgroup.

mod group;
mod listen;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use gpunion_protocol::second_way::{FromSecondWay, GuestEnd, ToSecondWay};

use group::Group;

/// A guest stands still within a millisecond; one of whose processes waits for a disk never does,
/// and is killed all the same.
const FREEZE: Duration = Duration::from_millis(50);
/// How long the end of all processes is waited for, and how often v1 is tried again meanwhile.
const END: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_micros(300);

/// Where things are in its container, and whom it listens to.
#[derive(Debug)]
pub(crate) struct Places {
    /// The folder of the guests' cgroups, where freezing and killing is done.
    guests: PathBuf,
    /// On v1 the same folder where the weight of their CPU time is.
    cpu: PathBuf,
    socket: PathBuf,
    /// The user whose agent and command line may ask.
    owner: u32,
}

/// `gpunion-helper second-way GUESTS CPU SOCKET OWNER`. Runs until it is killed.
pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let mut path = || args.next().map(PathBuf::from);
    let (Some(guests), Some(cpu), Some(socket), Some(owner)) = (path(), path(), path(), path()) else {
        return ExitCode::from(2);
    };
    let Some(owner) = owner.to_str().and_then(|text| text.parse().ok()) else {
        return ExitCode::from(2);
    };
    match listen::serve(&Places { guests, cpu, socket, owner }) {
        Ok(never) => match never {},
        Err(_) => ExitCode::FAILURE,
    }
}

fn answer(places: &Places, asked: ToSecondWay) -> FromSecondWay {
    group::weigh_least(&places.guests, &places.cpu);
    let found = match asked {
        ToSecondWay::End { containers } if containers.is_empty() => return FromSecondWay::default(),
        ToSecondWay::End { containers } => {
            containers.into_iter().map(|id| Group::find(&places.guests, id)).collect()
        }
        ToSecondWay::EndAll => match Group::all(&places.guests) {
            Ok(found) => found,
            Err(error) => {
                let trouble = Some(format!("the guests' cgroups can't be listed: {error}"));
                return FromSecondWay { trouble, ..FromSecondWay::default() };
            }
        },
    };
    FromSecondWay { guests: end(found), trouble: None }
}

/// All of them at once, step by step: no guest runs on while another one is ended.
fn end(mut groups: Vec<Group>) -> Vec<GuestEnd> {
    let began = listen::now();
    let since = || listen::now().saturating_sub(began);
    groups.iter_mut().for_each(Group::freeze);
    loop {
        let still = groups.iter_mut().map(|group| group.see_frozen(since())).filter(|frozen| !frozen).count();
        if still == 0 || since() > FREEZE {
            break;
        }
        std::thread::sleep(LOOK);
    }
    groups.iter_mut().for_each(Group::kill);
    let mut again = since() + AGAIN;
    loop {
        let living = groups.iter_mut().map(|group| group.see_ended(since())).filter(|ended| !ended).count();
        if living == 0 || since() > END {
            break;
        }
        if since() > again {
            groups.iter_mut().for_each(Group::kill_again);
            again = since() + AGAIN;
        }
        std::thread::sleep(LOOK);
    }
    groups.into_iter().map(Group::into_end).collect()
}
