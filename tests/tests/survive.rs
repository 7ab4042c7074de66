//! kill -9 of agent, relay and engine while a job computes: it ends once, and with the bytes that
//! it has when nobody disturbs it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;

use gpunion_protocol::job::{AttemptState, EndCause, JobState, JobView};
use gpunion_protocol::local::EngineStatus;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use system_tests::campus::{Files, PATIENCE, Pace, Pair, processes_of};
use system_tests::lab::{Engine, wait_for};

const EPOCHS: u32 = 8;
const QUICK: Pace = Pace { epochs: EPOCHS, epoch_seconds: 0.0 };
/// Slow enough to be caught in the middle.
const SLOW: Pace = Pace { epochs: EPOCHS, epoch_seconds: 0.8 };
/// Slow enough to be computing still when the agent has noticed that its engine is gone: it asks an
/// engine that was well each 10 s.
const SLOWEST: Pace = Pace { epochs: EPOCHS, epoch_seconds: 4.0 };

fn undisturbed(pair: &Pair) -> Files {
    let folder = pair.ada.digits_folder("undisturbed", QUICK).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let job = pair.succeeds(&job).unwrap();
    assert_eq!(job.attempts.len(), 1, "{job:#?}");
    pair.ada.fetch("undisturbed", "undisturbed-results").unwrap()
}

/// A job that computes and has a checkpoint, and who runs it.
fn catch(pair: &Pair, name: &str, pace: Pace) -> (String, usize) {
    let folder = pair.ada.digits_folder(name, pace).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let at = pair.in_the_middle(&job).unwrap();
    (job, at)
}

fn guest(engine: &Engine) -> String {
    let guests = engine.guests().unwrap();
    guests.into_iter().find(|one| processes_of(one).len() >= 3).unwrap()
}

/// It ended once: one final state, that lasts; one attempt that exited with 0; every other ended
/// by a fault of ours; nothing left of any of them; and the bytes of an undisturbed run.
fn ended_once(pair: &Pair, id: &str, attempts: usize, undisturbed: &Files) -> JobView {
    let job = pair.succeeds(id).unwrap();
    assert_eq!(job.attempts.len(), attempts, "{job:#?}\n{}", pair.logs());
    let good = job.attempts.iter().filter(|attempt| {
        matches!(attempt.state, AttemptState::Ended { cause: EndCause::Exited { code: 0 } })
    });
    assert_eq!(good.count(), 1, "{job:#?}");
    assert!(job.attempts.iter().all(|attempt| attempt.state.is_ended()), "{job:#?}");
    let result = pair.ada.fetch(id, &format!("{id}-results")).unwrap();
    assert!(result == *undisturbed, "the result differs from an undisturbed run's");
    pair.is_clean().unwrap();
    let later = pair.ada.job(id).unwrap();
    assert_eq!((later.state, later.attempts), (JobState::Succeeded, job.attempts.clone()));
    job
}

#[test]
fn kill_9_of_agent_and_relay_costs_a_job_nothing() {
    let mut pair = Pair::lending().unwrap();
    let undisturbed = undisturbed(&pair);

    // The agent: its guest lives on, and is adopted.
    let (job, at) = catch(&pair, "agent-killed", SLOW);
    let container = guest(&pair.engines[at]);
    let before = processes_of(&container);
    pair.providers[at].kill_agent().unwrap();
    assert_eq!(processes_of(&container), before, "the guest lives on");
    pair.providers[at].start_agent().unwrap();
    wait_for("the guest's adoption", PATIENCE, || {
        Ok((pair.providers[at].snapshot()?.guests.len() == 1).then_some(()))
    })
    .unwrap();
    assert_eq!(processes_of(&container), before, "it is the same guest");
    ended_once(&pair, &job, 1, &undisturbed);
    let log = pair.ada.run(["logs", &job]).unwrap().ok().unwrap();
    let ends = log.out.matches(&format!("epoch {EPOCHS}/{EPOCHS} loss")).count();
    assert_eq!(ends, 1, "its output is whole, and nothing of it is there twice: {}", log.out);

    // The relay: nobody stops for it.
    let (job, at) = catch(&pair, "relay-killed", SLOW);
    let container = guest(&pair.engines[at]);
    let before = processes_of(&container);
    pair.relay.kill().unwrap();
    wait_for("the agent to notice", PATIENCE, || {
        Ok(pair.providers[at].snapshot()?.group.is_some_and(|group| !group.connected).then_some(()))
    })
    .unwrap();
    assert_eq!(processes_of(&container), before, "the guest lives on");
    pair.relay.start_again().unwrap();
    ended_once(&pair, &job, 1, &undisturbed);

    // The member's own agent, which nothing depends on.
    let (job, _) = catch(&pair, "laptop-gone", SLOW);
    pair.ada.kill_agent().unwrap();
    pair.ada.start_agent().unwrap();
    ended_once(&pair, &job, 1, &undisturbed);
}

#[test]
fn f63_f74_f78_kill_9_of_the_engine_costs_a_job_an_attempt_at_most() {
    let mut pair = Pair::lending().unwrap();
    let undisturbed = undisturbed(&pair);

    // F63: without the engine the guest computes on, and nothing is concluded.
    let (job, at) = catch(&pair, "engine-killed", SLOWEST);
    let container = guest(&pair.engines[at]);
    let before = processes_of(&container);
    pair.engines[at].kill_both().unwrap();
    wait_for("the agent to notice", PATIENCE, || {
        let unknown = matches!(pair.providers[at].snapshot()?.engine, EngineStatus::Unknown { .. });
        Ok(unknown.then_some(()))
    })
    .unwrap();
    let now = pair.ada.job(&job).unwrap();
    assert_eq!(now.attempts.len(), 1, "silence is not death: {now:#?}");
    let status = pair.providers[at].run(["share", "status"]).unwrap().ok().unwrap();
    assert!(status.out.contains("engine"), "a sentence about the engine: {}", status.out);
    assert!(!now.state.is_final(), "it ended before anything could be seen: {now:#?}");
    assert_eq!(processes_of(&container), before, "the guest lives on, whole");
    // The engine ends what ran before it, unless it is set to live restore.
    pair.engines[at].start().unwrap();
    let job = pair.succeeds(&job).unwrap();
    assert!(job.attempts.len() <= 2, "{job:#?}");
    ended_once(&pair, job.id.as_str(), job.attempts.len(), &undisturbed);

    // F78 and F74: engine and agent gone, a foreign container there, the agent back first.
    let foreign = foreign_container(&pair);
    let (job, at) = catch(&pair, "both-killed", SLOW);
    let container = guest(&pair.engines[at]);
    pair.providers[at].kill_agent().unwrap();
    pair.engines[at].kill_both().unwrap();
    assert!(!processes_of(&container).is_empty(), "the guest lives on");
    pair.providers[at].start_agent().unwrap();
    let snapshot = pair.providers[at].snapshot().unwrap();
    assert!(matches!(snapshot.engine, EngineStatus::Unknown { .. }), "{:?}", snapshot.engine);
    assert!(!snapshot.share.open, "{:?}", snapshot.share);
    pair.engines[at].start().unwrap();
    ended_once(&pair, &job, 2, &undisturbed);
    for (engine, id) in pair.engines.iter().zip(&foreign) {
        assert!(engine.containers().unwrap().contains(id), "what is not ours is left alone");
    }
}

/// F78: the power goes while a job computes. At the next start there is what is on the disk and
/// nothing else, the clocks of the boot begin anew, the boot has another id; agent and engine come
/// up in any order, and nobody does anything.
#[test]
fn f78_a_machine_that_is_started_anew_lends_again_by_itself() {
    let mut pair = Pair::lending().unwrap();
    let undisturbed = undisturbed(&pair);
    for (name, agent_first) in [("agent-up-first", true), ("engine-up-first", false)] {
        let (job, at) = catch(&pair, name, SLOW);
        let container = guest(&pair.engines[at]);
        pair.providers[at].kill_agent().unwrap();
        pair.engines[at].kill_both().unwrap();
        end_all(&container);
        pair.providers[at].boot_anew().unwrap();
        if agent_first {
            pair.providers[at].start_agent().unwrap();
            pair.engines[at].start().unwrap();
        } else {
            pair.engines[at].start().unwrap();
            pair.providers[at].start_agent().unwrap();
        }
        ended_once(&pair, &job, 2, &undisturbed);
        wait_for("the machine to lend again", PATIENCE, || {
            let snapshot = pair.providers[at].snapshot()?;
            let connected = snapshot.group.is_some_and(|group| group.connected);
            Ok((snapshot.share.open && connected).then_some(()))
        })
        .unwrap_or_else(|error| panic!("{error:#}\n{}", pair.logs()));
    }
}

/// Its processes, and the shim that would tell an engine of their end.
fn end_all(container: &str) {
    let processes = processes_of(container);
    let parent = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse::<u32>().ok())
    };
    let shims = processes.iter().filter_map(|pid| parent(*pid)).filter(|pid| !processes.contains(pid));
    let shims: Vec<u32> = shims.filter(|pid| *pid > 1).collect();
    assert_eq!(shims.len(), 1, "{processes:?} of {container}");
    for pid in shims.into_iter().chain(processes) {
        // Init takes the others along.
        let _ = kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL);
    }
    wait_for("the end of all of the guest", PATIENCE, || {
        Ok(processes_of(container).is_empty().then_some(()))
    })
    .unwrap();
}

/// On each engine, one that has ended, of somebody else.
fn foreign_container(pair: &Pair) -> Vec<String> {
    let make = |engine: &Engine| {
        pair.campus.busybox_image(engine).unwrap();
        let spec = json!({ "Image": "busybox:latest", "Cmd": ["/busybox", "true"],
                           "HostConfig": { "NetworkMode": "none" } });
        let made = engine.call("POST", "/containers/create", Some(&spec)).unwrap().ok().unwrap();
        let id = made.json().unwrap()["Id"].as_str().unwrap().to_owned();
        engine.call("POST", &format!("/containers/{id}/start"), None).unwrap().ok().unwrap();
        id
    };
    pair.engines.iter().map(make).collect()
}
