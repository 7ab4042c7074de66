//! Taking all there is: processes, log, memory, disk. The guest meets its limit; the machine does
//! not notice.

use std::fs;
use std::process::Command;

use gpunion_protocol::job::{EndCause, JobState};

use crate::shared::world;
use crate::world::{Attempts, Who, World};

pub(crate) fn attempts(all: &mut Attempts) {
    // Half of the attacker's memory is the most of each; the workspace takes as much.
    all.differ("fill-tmp", Who::Root, "folder /tmp 96", "folder /tmp 1");
    all.differ("fill-shm", Who::Root, "folder /dev/shm 96", "folder /dev/shm 1");
    all.differ("fill-run", Who::Root, "folder /run/gpunion 8", "folder /tmp 8");
    all.differ("files-run", Who::Victim, "files /run/gpunion", "");
}

/// The most that the kernel ever held for this process, in MiB.
fn most_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() >> 10
}

fn agent(world: &World) -> i32 {
    world.pair.providers[0].agent_pid().unwrap()
}

#[test]
fn what_is_in_memory_is_bounded_by_the_guest_s_memory() {
    world().refuses(&["fill-tmp", "fill-shm", "fill-run", "files-run"]);
}

#[test]
fn a_guest_that_forks_meets_its_limit_and_the_host_forks_on() {
    let world = world();
    let job = world.submit("forks", &["fork"], "memory = \"3 GiB\"");
    let job = world.ends(&job);
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}\n{}", world.pair.logs());
    let log = world.log(job.id.as_str());
    let made =
        log.lines().find_map(|line| line.strip_suffix(" processes made")).unwrap_or_else(|| panic!("{log}"));
    let made: u32 = made.parse().unwrap();
    // 4096 with init; a refusal long before that would be another limit.
    assert!((1_000..4096).contains(&made), "{made} processes: {log}");
    assert!(log.contains(&format!("refused {made} processes, then ")), "{log}");
    assert!(Command::new("true").status().unwrap().success());
    world.still_serves("after-forks");
}

#[test]
fn f99_f100_a_guest_that_floods_its_log_fills_neither_agent_nor_relay() {
    const MEBIBYTES: u64 = 192;
    let world = world();
    let before = most_memory(agent(&world));
    let job = world.submit("floods", &["log", &MEBIBYTES.to_string()], "memory = \"128 MiB\"");
    let job = world.ends(&job);
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}\n{}", world.pair.logs());
    // It said all of that, it was not held up for ever, and its last word came through.
    let log = world.log(job.id.as_str());
    assert!(
        log.contains(&format!("reached wrote {MEBIBYTES} MiB")),
        "{}",
        &log[log.len().saturating_sub(300)..]
    );
    // What is kept is bounded, at the relay and on the way.
    assert!(log.len() < 40 << 20, "{} bytes of log are kept", log.len());
    let kept = size(&world.pair.relay.user.home().join("relay/logs"));
    assert!(kept < 64 << 20, "{kept} bytes of logs at the relay");
    for (who, pid) in [("agent", agent(&world)), ("relay", world.pair.relay.pid())] {
        let most = most_memory(pid);
        assert!(most < before.max(100) + 100, "the {who} held {most} MiB (the agent before: {before} MiB)");
    }
}

fn size(folder: &std::path::Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

#[test]
fn a_guest_that_takes_memory_without_end_ends_alone() {
    let world = world();
    let pid = agent(&world);
    let job = world.submit("hungry", &["memory"], "memory = \"160 MiB\"");
    let job = world.ends(&job);
    assert_eq!(
        job.state,
        JobState::Failed { cause: EndCause::MemoryLimit },
        "{job:#?}\n{}",
        world.pair.logs()
    );
    let log = world.log(job.id.as_str());
    let held = log.lines().filter_map(|line| line.strip_suffix(" MiB held")?.parse::<u64>().ok()).max();
    assert!(held.is_some_and(|held| (64..=160).contains(&held)), "it held {held:?} MiB");
    assert_eq!(agent(&world), pid);
    world.still_serves("after-hungry");
}

/// Counted, so softly, but at once when the disk fills: it is gone before it has written all that it
/// wants, removed that again and ended well. Where the volume is hard the program is told instead.
#[test]
fn a_guest_that_fills_its_disk_is_ended_or_told() {
    let world = world();
    let job =
        world.submit("fills", &["folder", "/workspace", "6000"], "memory = \"128 MiB\"\ndisk = \"48 MiB\"");
    let job = world.ends(&job);
    let log = world.log(job.id.as_str());
    let told = job.state == JobState::Succeeded && log.contains("refused") && log.contains("No space");
    let ended = job.state == JobState::Failed { cause: EndCause::DiskLimit };
    assert!(told || ended, "{:#?}: {log}\n{}", job.state, world.pair.logs());
    assert!(!log.contains("reached"), "it wrote all that it wanted: {log}");
    world.still_serves("after-fills");
}
