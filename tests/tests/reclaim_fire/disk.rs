//! Reclaim while the disk of the agent is full or hangs, with the agent and without it.

use gpunion_protocol::receipt::{Receipt, Way};
use system_tests::campus::{Caught, Solo, processes_of};
use system_tests::lab::Disk;

/// An init that answers may be late on a busy machine.
const ANSWERS: [Way; 3] = [Way::Init, Way::EndFile, Way::SecondWay];

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
    // Nobody lends what the owner has back; and that it may be forgotten is said.
    let told = receipt.troubles.iter().any(|trouble| trouble.contains("could not be written to disk"));
    assert!(!receipt.wish_saved && told, "{what}: {receipt:#?}");
    receipt
}

#[test]
fn a_full_disk_costs_the_wish_and_not_the_reclaim() {
    let mut solo = Solo::lending(|folder, user, _| Disk::small(folder, user, 48 << 20).map(Some)).unwrap();
    for (alone, deaf, ways) in [
        (false, false, &ANSWERS[..]),
        (false, true, &[Way::SecondWay][..]),
        // The file that ends it needs no room.
        (true, false, &ANSWERS[1..]),
        (true, true, &[Way::SecondWay]),
    ] {
        let caught = solo.catch(&format!("full-{alone}-{deaf}")).unwrap();
        solo.disk.as_ref().unwrap().fill().unwrap();
        if deaf {
            caught.silence_init().unwrap();
        }
        if alone {
            solo.owner.kill_agent().unwrap();
        }
        reclaim(&solo, &caught, &format!("disk full, no agent: {alone}, init silent: {deaf}"), ways);
        solo.disk.as_ref().unwrap().make_room().unwrap();
        if alone {
            solo.owner.start_agent().unwrap();
        }
        solo.put_away(&caught).unwrap();
        solo.lend().unwrap();
    }
}

#[test]
fn a_disk_that_hangs_holds_up_neither_agent_nor_command() {
    let mut solo = Solo::lending(|folder, user, lab| Disk::in_a_file(folder, user, lab).map(Some)).unwrap();
    for (alone, deaf, ways) in [
        (false, false, &ANSWERS[..]),
        (false, true, &[Way::SecondWay][..]),
        // Nothing can be written for its init to see.
        (true, false, &[Way::SecondWay]),
    ] {
        let caught = solo.catch(&format!("hangs-{alone}-{deaf}")).unwrap();
        if deaf {
            caught.silence_init().unwrap();
        }
        if alone {
            // One that is killed while its disk hangs would stay; this one stands still.
            solo.owner.freeze_agent().unwrap();
        }
        solo.disk.as_mut().unwrap().hang().unwrap();
        reclaim(&solo, &caught, &format!("disk hangs, agent stopped: {alone}, init silent: {deaf}"), ways);
        solo.disk.as_mut().unwrap().go_on().unwrap();
        if alone {
            solo.owner.thaw_agent().unwrap();
        }
        solo.put_away(&caught).unwrap();
        solo.lend().unwrap();
    }
}
