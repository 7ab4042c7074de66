//! The owner's rules on a real machine: own work sends the guest of its GPU away and the job goes on
//! elsewhere; a pause and hours close the machine, and it opens again by itself.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs::File;
use std::path::Path;

use gpunion_agent_core::config::clock;
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::local::{ShareStatus, Wish};
use gpunion_protocol::rules::RulesStatus;
use rustix::fs::FlockOperation;
use system_tests::campus::{Device, PATIENCE, Pace, Pair};
use system_tests::lab::wait_for;

const SLOW: Pace = Pace { epochs: 8, epoch_seconds: 1.5 };
const DAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

/// This very process computes on the GPU until the file is closed.
fn compute(gpu: &Path, bytes: u64) -> File {
    let file = File::create(gpu.join(format!("holder-{}", std::process::id()))).unwrap();
    file.set_len(bytes).unwrap();
    rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    file
}

fn kept(device: &Device) -> Option<String> {
    device.snapshot().unwrap().gpus[0].kept.clone()
}

#[test]
fn f55_own_work_moves_the_job_and_its_gpu_is_lent_again_when_it_is_over() {
    let pair = Pair::lending().unwrap();
    for owner in &pair.providers {
        owner.run(["rules", "own_work_after=1 s", "own_work_free=3 s"]).unwrap().ok().unwrap();
    }
    let folder = pair.ada.digits_folder("own-work", SLOW).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let at = pair.in_the_middle(&job).unwrap();
    let owner = &pair.providers[at];
    assert_eq!(kept(owner), None, "a guest's work is not its owner's");

    let gpu = owner.snapshot().unwrap().gpus[0].sample.uuid.clone();
    let own = compute(&owner.gpus.as_ref().unwrap().folders.join(&gpu.0), 2 << 30);
    wait_for("the rule to keep the GPU", PATIENCE, || Ok(kept(owner))).unwrap();
    let said = owner.run(["share", "status"]).unwrap().ok().unwrap().out;
    assert!(said.contains("does NOT lend") && said.contains("Your own work is on it"), "{said}");
    let view = pair.succeeds(&job).unwrap();
    assert_eq!(view.attempts.len(), 2, "{view:#?}\n{}", pair.logs());
    assert_eq!(view.attempts[0].state, AttemptState::Ended { cause: EndCause::Left });
    assert_ne!(pair.at(&view).unwrap(), at);

    drop(own);
    wait_for("the GPU to be lent again", PATIENCE, || Ok(kept(owner).is_none().then_some(()))).unwrap();
    assert!(matches!(owner.snapshot().unwrap().share.wish, Wish::Sharing { .. }), "the wish is untouched");
    pair.is_clean().unwrap();
}

#[test]
fn a_pause_and_hours_close_the_machine_and_outlive_the_agent() {
    let mut pair = Pair::lending().unwrap();
    let open = |device: &Device, open: bool| {
        wait_for("the machine to open or close", PATIENCE, || {
            Ok((device.snapshot()?.share.open == open).then_some(()))
        })
        .unwrap();
    };
    let owner = &mut pair.providers[0];
    let paused: ShareStatus = owner.json(&["pause", "--for", "1h"]).unwrap();
    assert!(!paused.open && matches!(paused.wish, Wish::PausedUntil { until: Some(_) }), "{paused:?}");
    owner.kill_agent().unwrap();
    owner.start_agent().unwrap();
    assert!(matches!(owner.snapshot().unwrap().share.wish, Wish::PausedUntil { until: Some(_) }));
    owner.run(["pause", "--resume"]).unwrap().ok().unwrap();
    open(owner, true);

    // In three days; the first day of all was a Thursday.
    let day = DAYS[((clock::wall().0 / 86_400_000 + 3 + 3) % 7) as usize];
    let hours = format!("hours={day} 08:00-09:00");
    let set: RulesStatus = owner.json(&["rules", &hours, "zone=UTC"]).unwrap();
    assert!(set.verdicts.iter().any(|verdict| verdict.rule == "hours" && !verdict.allows), "{set:?}");
    owner.kill_agent().unwrap();
    owner.start_agent().unwrap();
    open(owner, false);
    let said = owner.run(["share", "status"]).unwrap().ok().unwrap().out;
    assert!(said.contains("outside the hours"), "{said}");
    let wrong = owner.run(["rules", "hours=weekends"]).unwrap();
    assert!(wrong.code == Some(2) && wrong.err.contains("gpunion rules hours="), "{wrong:?}");
    owner.run(["rules", "hours=default"]).unwrap().ok().unwrap();
    open(owner, true);
}
