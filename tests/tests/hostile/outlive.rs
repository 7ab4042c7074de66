//! Trying to be there after the end. Whoever finds a process of the guest by its own words, which
//! hold a name that nothing else on this machine has, has found one that outlived it.

use std::fs;

use gpunion_protocol::job::JobState;
use gpunion_protocol::receipt::{How, Receipt};
use system_tests::campus::PATIENCE;
use system_tests::lab::wait_for;

use crate::shared::world;

/// Processes of this machine, whoever they belong to, with this among their arguments.
fn with_argument(argument: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let state = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let is_dead = state.lines().any(|line| line.starts_with("State:") && line.contains('Z'));
        !is_dead && line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
    .collect()
}

fn gone(argument: &str) {
    wait_for("the end of all its processes", PATIENCE, || {
        Ok(with_argument(argument).is_empty().then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}: {:?}", with_argument(argument)));
}

#[test]
fn f01_what_a_guest_leaves_behind_ends_with_its_program() {
    let world = world();
    let file = format!("/workspace/{}-detached", world.token);
    let job = world.submit("detaches", &["detach", &file], "memory = \"128 MiB\"");
    let job = world.ends(&job);
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}\n{}", world.pair.logs());
    let log = world.log(job.id.as_str());
    assert!(log.contains("reached left "), "{log}");
    gone(&file);
    // It was there: what it wrote before the end is in the result.
    world.pair.ada.run(["fetch", job.id.as_str(), "detached"]).unwrap().ok().unwrap();
    let beat =
        fs::read_to_string(world.pair.ada.user.home().join(format!("detached/{}-detached", world.token)));
    assert!(!beat.unwrap().is_empty());
}

#[test]
fn f80_f86_a_guest_that_is_deaf_to_all_signals_is_cancelled() {
    let world = world();
    let file = format!("/workspace/{}-deaf", world.token);
    let job = world.submit("deaf", &["deaf", &file], "memory = \"128 MiB\"");
    wait_for("the guest", PATIENCE, || Ok((!with_argument(&file).is_empty()).then_some(()))).unwrap();
    world.pair.ada.run(["cancel", &job]).unwrap().ok().unwrap();
    let ended = world.ends(&job);
    assert_eq!(ended.state, JobState::Cancelled, "{ended:#?}");
    gone(&file);
}

/// By the owner, with a GPU: each process that is found has made the next by then, and none hears.
#[test]
fn f01_f07_a_guest_that_forks_without_end_is_reclaimed() {
    let world = world();
    let file = format!("/workspace/{}-bomb", world.token);
    let job = world.submit("bomb", &["bomb", &file], "gpus = 1\nmemory = \"96 MiB\"");
    // Lends so little that no other test's guest fits there.
    let owner = &world.pair.providers[1];
    owner.run(["share", "on", "--cpus", "1", "--memory", "100 MiB"]).unwrap().ok().unwrap();
    world.says(&job, "exploded");
    wait_for("the bomb", PATIENCE, || Ok((with_argument("chain-link").len() >= 8).then_some(()))).unwrap();
    let library = owner.gpus.as_ref().unwrap().library.to_str().unwrap().to_owned();
    let ran = owner.run(["--json", "reclaim", "--nvml-library", &library]).unwrap();
    let left = (with_argument(&file), with_argument("chain-link"));
    let receipt: Receipt = ran.json().unwrap_or_else(|error| panic!("{error:#}"));
    assert_eq!(left, (Vec::new(), Vec::new()), "they outlived the receipt {receipt:#?}");
    assert_eq!(
        (receipt.verified, receipt.how, ran.code),
        (true, How::ProcessList, Some(0)),
        "{receipt:#?}\n{}",
        world.pair.logs()
    );
    assert_eq!(receipt.guests.len(), 1, "{receipt:#?}");
    world.pair.ada.run(["cancel", &job]).unwrap().ok().unwrap();
    assert_eq!(world.ends(&job).state, JobState::Cancelled);
}
