//! Reclaim without an agent and with an init that does not answer, engine and relay away as well;
//! and with a guest that forks without end.

use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::local::Wish;
use gpunion_protocol::receipt::{How, Receipt, Way};
use system_tests::campus::{Caught, PATIENCE, Solo, processes_of};
use system_tests::lab::wait_for;

fn reclaim(solo: &Solo, caught: &Caught, what: &str, ways: &[Way]) -> Receipt {
    let (receipt, code) = solo.owner.reclaim().unwrap();
    println!(
        "{what}: stopped {:?} ms, ended {:?} ms, verified {:?} ms, by {:?}",
        receipt.stopped_ms, receipt.ended_ms, receipt.verified_ms, receipt.guests[0].way
    );
    let left = processes_of(&caught.container);
    assert!(left.is_empty(), "{what}: {left:?} outlived {receipt:#?}");
    assert_eq!((receipt.verified, code), (true, Some(0)), "{what}: {receipt:#?}\n{}", solo.logs());
    assert!(ways.contains(&receipt.guests[0].way), "{what}: {receipt:#?}");
    receipt
}

fn is_heard(solo: &Solo) {
    wait_for("the agent to know the wish", PATIENCE, || {
        let share = solo.owner.snapshot()?.share;
        Ok((share.wish == Wish::NotSharing && !share.open).then_some(()))
    })
    .unwrap();
}

#[test]
fn the_command_ends_a_guest_whose_init_agent_engine_and_relay_are_all_silent() {
    let mut solo = Solo::lending(|_, _, _| Ok(None)).unwrap();

    let caught = solo.catch("agent-killed").unwrap();
    caught.silence_init().unwrap();
    solo.owner.kill_agent().unwrap();
    solo.engine.freeze().unwrap();
    solo.relay.freeze().unwrap();
    let receipt = reclaim(&solo, &caught, "agent killed, engine and relay stopped", &[Way::SecondWay]);
    assert!(receipt.wish_saved && receipt.how == How::ProcessList, "{receipt:#?}");
    assert_eq!(receipt.guests[0].processes, 2, "{receipt:#?}");
    solo.relay.thaw().unwrap();
    solo.engine.thaw().unwrap();
    solo.owner.start_agent().unwrap();
    is_heard(&solo);
    solo.put_away(&caught).unwrap();
    solo.lend().unwrap();

    // It stands still from before the click until after the receipt.
    let caught = solo.catch("agent-stopped").unwrap();
    caught.silence_init().unwrap();
    solo.owner.freeze_agent().unwrap();
    solo.engine.freeze().unwrap();
    reclaim(&solo, &caught, "agent and engine stopped", &[Way::SecondWay]);
    solo.engine.thaw().unwrap();
    solo.owner.thaw_agent().unwrap();
    is_heard(&solo);
    solo.put_away(&caught).unwrap();

    // Two words are two wishes, and no slip of the pen is one.
    solo.owner.share().unwrap();
    solo.owner.kill_agent().unwrap();
    let library = solo.owner.gpus.as_ref().unwrap().library.to_str().unwrap().to_owned();
    let only =
        |gpu: &str| solo.owner.run(["--json", "reclaim", "--gpu", gpu, "--nvml-library", &library]).unwrap();
    let slip = only("GPU-stand-in-8");
    let receipt: Receipt = slip.json().unwrap();
    assert_eq!((slip.code, receipt.verified, receipt.wish_saved), (Some(5), false, false), "{receipt:#?}");
    assert!(receipt.troubles.iter().any(|trouble| trouble.contains(&solo.gpu)), "{receipt:#?}");
    assert_eq!(only(&solo.gpu).code, Some(0));
    solo.owner.start_agent().unwrap();
    let snapshot = solo.owner.snapshot().unwrap();
    let wish = |uuid: &str| {
        let gpu = GpuUuid(uuid.to_owned());
        snapshot.gpus.iter().find(|status| status.sample.uuid == gpu).map(|status| status.wish)
    };
    assert!(wish(&solo.gpu).is_none_or(|wish| wish == Wish::NotSharing), "{snapshot:#?}");
    assert_eq!(snapshot.share.wish, Wish::Sharing { until: None }, "all but that GPU");
}

/// As many processes as it may have, each of which forks when another one ends.
const FORKS: &str = r#"
name = "forks"
image = "busybox:latest"
command = ["/busybox", "sh", "-c", "bomb() { while :; do (bomb) & /busybox sleep 0.01; done; }; bomb"]
[resources]
gpus = 1
gpu_memory = "1 GiB"
cpus = 1
memory = "4 GiB"
disk = "1 GiB"
[env]
PATH = "/"
"#;

#[test]
fn a_guest_that_forks_without_end_is_ended_with_and_without_its_init() {
    let mut solo = Solo::lending(|_, _, _| Ok(None)).unwrap();
    for (deaf, alone) in [(false, false), (true, false), (true, true)] {
        let folder = solo.ada.job_folder(&format!("forks-{deaf}-{alone}"), FORKS).unwrap();
        let (job, ..) = solo.ada.submit(&folder).unwrap();
        let mut most = 0;
        wait_for("many processes", PATIENCE, || {
            let guests = solo.engine.guests()?;
            most = guests.iter().map(|one| processes_of(one).len()).max().unwrap_or(0);
            Ok((most >= 300).then_some(()))
        })
        .unwrap();
        let caught = solo.caught(job).unwrap();
        if deaf {
            caught.silence_init().unwrap();
        }
        if alone {
            solo.owner.kill_agent().unwrap();
            solo.engine.freeze().unwrap();
        }
        let what = format!("{most} processes that fork, init silent: {deaf}, agent and engine away: {alone}");
        // So many processes keep its init from being quick; it is helped then.
        let ways = if deaf { &[Way::SecondWay][..] } else { &[Way::Init, Way::EndFile, Way::SecondWay] };
        reclaim(&solo, &caught, &what, ways);
        if alone {
            solo.engine.thaw().unwrap();
            solo.owner.start_agent().unwrap();
        }
        solo.put_away(&caught).unwrap();
        solo.lend().unwrap();
    }
}
