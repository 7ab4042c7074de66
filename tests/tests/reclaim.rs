//! An owner has the GPU back whatever stands still: engine, relay, agent. And a receipt never says
//! more than the GPU did.
//!
//! The guest is `digits`: it holds memory of a stand-in GPU, and so does a child of it that left
//! its session and is deaf to SIGTERM, SIGHUP and SIGINT.

#![expect(clippy::unwrap_used, reason = "tests")]

use gpunion_protocol::job::{AttemptState, EndCause, JobView};
use gpunion_protocol::local::Wish;
use gpunion_protocol::receipt::{How, Receipt, Way};
use system_tests::campus::{Device, PATIENCE, Pace, Pair, processes_of};
use system_tests::lab::wait_for;

/// Slow enough to be caught in the middle, fast enough to end.
const SLOW: Pace = Pace { epochs: 8, epoch_seconds: 0.8 };
/// Slow enough to compute still when its init has told how much is in its workspace, as it does each
/// 10 s.
const SLOWER: Pace = Pace { epochs: 8, epoch_seconds: 2.5 };

/// A running guest, as an outsider knows it.
struct Caught {
    job: String,
    owner: usize,
    container: String,
}

fn catch(pair: &Pair, name: &str, pace: Pace) -> Caught {
    let folder = pair.ada.digits_folder(name, pace).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let owner = pair.in_the_middle(&job).unwrap();
    let guests = pair.engines[owner].guests().unwrap();
    let container = guests.into_iter().find(|one| processes_of(one).len() >= 3).unwrap();
    let gpus = pair.providers[owner].gpus.as_ref().unwrap().read().unwrap();
    let holders = gpus[0].processes.as_ref().unwrap();
    assert_eq!(holders.len(), 2, "the program and its child hold memory: {holders:?}");
    Caught { job, owner, container }
}

fn reclaim(owner: &Device) -> (Receipt, Option<i32>) {
    let library = owner.gpus.as_ref().unwrap().library.to_str().unwrap().to_owned();
    let ran = owner.run(["--json", "reclaim", "--nvml-library", &library]).unwrap();
    (ran.json().unwrap_or_else(|e| panic!("{e:#}")), ran.code)
}

/// F01, F07: from the moment that the owner holds the receipt, nothing of the guest is there.
fn nothing_lives(pair: &Pair, caught: &Caught, receipt: &Receipt, code: Option<i32>) {
    let left = processes_of(&caught.container);
    let gpus = pair.providers[caught.owner].gpus.as_ref().unwrap().read().unwrap();
    assert!(left.is_empty(), "processes {left:?} outlived the receipt {receipt:#?}");
    assert_eq!(gpus[0].processes.as_deref(), Some([].as_slice()), "{receipt:#?}");
    assert_eq!((receipt.verified, code), (true, Some(0)), "{receipt:#?}\n{}", pair.logs());
    assert_eq!(receipt.how, How::ProcessList);
    let gpu = &receipt.gpus[0];
    assert!(gpu.standin || !gpu.name.is_empty());
    assert_eq!(gpu.memory_after, gpu.memory_baseline, "{receipt:#?}");
    assert!(gpu.memory_before.unwrap() >= gpu.memory_after.unwrap() + (320 << 20), "{receipt:#?}");
    let (stopped, ended) = (receipt.stopped_ms.unwrap(), receipt.ended_ms.unwrap());
    assert!(stopped <= ended && ended <= receipt.verified_ms.unwrap(), "{receipt:#?}");
    assert_eq!(receipt.guests.len(), 1, "{receipt:#?}");
    assert!(receipt.guests[0].processes == 2 && receipt.wish_saved, "{receipt:#?}");
}

/// It went on where the owner is not, once, and ended well.
fn ends_elsewhere(pair: &Pair, caught: &Caught) -> JobView {
    let job = pair.succeeds(&caught.job).unwrap();
    assert_eq!(job.attempts.len(), 2, "{job:#?}");
    assert_ne!(pair.at(&job).unwrap(), caught.owner);
    pair.is_clean().unwrap();
    job
}

fn is_not_sharing(owner: &Device) -> bool {
    let snapshot = owner.snapshot().unwrap();
    snapshot.share.wish == Wish::NotSharing && !snapshot.share.open
}

fn cause(job: &JobView, attempt: usize) -> &EndCause {
    match &job.attempts[attempt].state {
        AttemptState::Ended { cause } => cause,
        other => panic!("attempt {attempt} is {other:?}"),
    }
}

#[test]
fn with_engine_and_relay_dead_the_gpu_is_back_and_an_unexplained_one_is_not_called_free() {
    let mut pair = Pair::lending().unwrap();
    let caught = catch(&pair, "engine-frozen", SLOW);
    pair.engines[caught.owner].freeze().unwrap();
    pair.relay.kill().unwrap();
    let owner = &pair.providers[caught.owner];
    let (receipt, code) = reclaim(owner);
    nothing_lives(&pair, &caught, &receipt, code);
    assert_eq!(receipt.guests[0].way, Way::Init, "{receipt:#?}");
    assert!(receipt.troubles.is_empty(), "{receipt:#?}");
    assert!(is_not_sharing(owner));
    pair.engines[caught.owner].thaw().unwrap();
    pair.relay.start_again().unwrap();
    let job = ends_elsewhere(&pair, &caught);
    assert_eq!(*cause(&job, 0), EndCause::Reclaimed);
    assert!(is_not_sharing(&pair.providers[caught.owner]), "the wish lasts");

    // Memory that nobody explains, on the one GPU that is still lent.
    let caught = catch(&pair, "memory-stays", SLOW);
    let owner = &pair.providers[caught.owner];
    let leak = |bytes: u64| {
        let gpus = owner.gpus.as_ref().unwrap();
        gpus.edit(|script| script["gpus"][0]["memory_unexplained"] = bytes.into()).unwrap();
    };
    leak(1 << 30);
    let (receipt, code) = reclaim(owner);
    assert_eq!((receipt.verified, receipt.how, code), (false, How::NotVerified, Some(5)), "{receipt:#?}");
    assert!(receipt.ended_ms.is_some() && receipt.verified_ms.is_none(), "{receipt:#?}");
    assert!(processes_of(&caught.container).is_empty(), "its guest ended all the same");
    let trouble = receipt.troubles.join("\n");
    assert!(trouble.contains("GPU-stand-in") && trouble.contains("1"), "a sentence about the GPU: {trouble}");
    assert!(receipt.gpus[0].memory_after >= Some(1 << 30), "{receipt:#?}");
    let said = owner.run(["share", "status"]).unwrap();
    assert!(said.out.contains("reclaim") || said.out.contains("off"), "{}", said.out);
    // It goes on looking, and says free only when the GPU does.
    leak(0);
    wait_for("the GPU to be free", PATIENCE, || {
        let again = owner.snapshot()?.last_receipt;
        Ok(again.is_some_and(|receipt| receipt.verified).then_some(()))
    })
    .unwrap();
    let (receipt, code) = reclaim(owner);
    assert_eq!((receipt.verified, code), (true, Some(0)), "{receipt:#?}");
    pair.ada.run(["cancel", &caught.job]).unwrap().ok().unwrap();
    pair.is_clean().unwrap();
}

#[test]
fn without_an_agent_the_command_takes_the_gpu_back_by_itself() {
    let mut pair = Pair::lending().unwrap();

    // kill -9 of the agent, with the engine standing still too.
    let caught = catch(&pair, "agent-killed", SLOW);
    pair.providers[caught.owner].kill_agent().unwrap();
    pair.engines[caught.owner].freeze().unwrap();
    let (receipt, code) = reclaim(&pair.providers[caught.owner]);
    nothing_lives(&pair, &caught, &receipt, code);
    by_hand(&receipt);
    pair.engines[caught.owner].thaw().unwrap();
    pair.providers[caught.owner].start_agent().unwrap();
    assert!(is_not_sharing(&pair.providers[caught.owner]), "from its first word on");
    let job = ends_elsewhere(&pair, &caught);
    assert_eq!(*cause(&job, 0), EndCause::Reclaimed);
    assert!(is_not_sharing(&pair.providers[caught.owner]));
    pair.providers[caught.owner].share().unwrap();

    // The agent stands still and goes on afterwards.
    let caught = catch(&pair, "agent-frozen", SLOW);
    pair.providers[caught.owner].freeze_agent().unwrap();
    let (receipt, code) = reclaim(&pair.providers[caught.owner]);
    nothing_lives(&pair, &caught, &receipt, code);
    by_hand(&receipt);
    pair.providers[caught.owner].thaw_agent().unwrap();
    wait_for("the agent to hear of it", PATIENCE, || {
        Ok(is_not_sharing(&pair.providers[caught.owner]).then_some(()))
    })
    .unwrap();
    ends_elsewhere(&pair, &caught);
    assert!(is_not_sharing(&pair.providers[caught.owner]));
    pair.providers[caught.owner].share().unwrap();

    // F63, F74: the agent is back and its engine is not. What was written down is enough.
    let caught = catch(&pair, "agent-back-first", SLOWER);
    pair.engines[caught.owner].freeze().unwrap();
    pair.providers[caught.owner].kill_agent().unwrap();
    pair.providers[caught.owner].start_agent().unwrap();
    let owner = &pair.providers[caught.owner];
    wait_for("the guest's init to be heard again", PATIENCE, || {
        Ok(owner.snapshot()?.guests.iter().any(|guest| guest.disk_used.is_some()).then_some(()))
    })
    .unwrap();
    mistyped(owner);
    let (receipt, code) = reclaim(owner);
    nothing_lives(&pair, &caught, &receipt, code);
    assert_eq!((receipt.guests[0].way, receipt.troubles.len()), (Way::Init, 0), "{receipt:#?}");
    pair.engines[caught.owner].thaw().unwrap();
    ends_elsewhere(&pair, &caught);
}

/// A GPU that is not there is not told as taken back; those that are there are named.
fn mistyped(owner: &Device) {
    let before = owner.snapshot().unwrap();
    let ran = owner.run(["reclaim", "--gpu", "GPU-stand-im"]).unwrap();
    assert!(ran.code != Some(0) && ran.err.contains(&before.gpus[0].sample.uuid.0), "{ran:?}");
    let after = owner.snapshot().unwrap();
    assert_eq!((after.share.wish, after.share.gpus), (before.share.wish, before.share.gpus));
    assert_eq!(after.guests.len(), 1, "nothing ended");
}

/// The command's own receipt says that it is one.
fn by_hand(receipt: &Receipt) {
    // On a busy machine init comes too late to its file, and the second way is quicker.
    assert!(matches!(receipt.guests[0].way, Way::EndFile | Way::SecondWay), "{receipt:#?}");
    assert!(receipt.troubles.iter().any(|trouble| trouble.contains("no agent answered")), "{receipt:#?}");
}
