//! Reclaim while the engine is anything but well, from before the click until after the receipt:
//! with an init that answers, and with one that does not.

use gpunion_protocol::receipt::{How, Receipt, Way};
use system_tests::campus::{Caught, Solo, processes_of};
use system_tests::lab::Mood;

/// The owner has it all back, and the receipt says by which way.
fn holds(solo: &Solo, caught: &Caught, what: &str, ways: &[Way]) {
    let (receipt, code) = solo.owner.reclaim().unwrap();
    let left = processes_of(&caught.container);
    let guest = &receipt.guests[0];
    println!(
        "{what}: stopped {:?} ms, ended {:?} ms, verified {:?} ms, by {:?}",
        receipt.stopped_ms, receipt.ended_ms, receipt.verified_ms, guest.way
    );
    assert!(left.is_empty(), "{what}: {left:?} outlived {receipt:#?}");
    assert_eq!((receipt.verified, code), (true, Some(0)), "{what}: {receipt:#?}\n{}", solo.logs());
    assert!(receipt.how == How::ProcessList && ways.contains(&guest.way), "{what}: {receipt:#?}");
    in_order(&receipt);
    assert!(receipt.ended_ms.unwrap() < 5_000, "{what}: {receipt:#?}");
}

fn in_order(receipt: &Receipt) {
    let (stopped, ended) = (receipt.stopped_ms.unwrap(), receipt.ended_ms.unwrap());
    assert!(stopped <= ended && ended <= receipt.verified_ms.unwrap(), "{receipt:#?}");
}

/// Twice: the init answers; it does not.
fn twice(solo: &mut Solo, what: &str, break_it: impl Fn(&mut Solo), mend: impl Fn(&mut Solo)) {
    // An init that answers may be late on a busy machine.
    for (deaf, ways) in [(false, &[Way::Init, Way::EndFile, Way::SecondWay][..]), (true, &[Way::SecondWay])] {
        let caught = solo.catch(&format!("{what}-{deaf}")).unwrap();
        if deaf {
            caught.silence_init().unwrap();
        }
        break_it(solo);
        holds(solo, &caught, &format!("engine {what}, init {}", if deaf { "silent" } else { "well" }), ways);
        mend(solo);
        solo.put_away(&caught).unwrap();
        solo.lend().unwrap();
    }
}

#[test]
fn an_engine_that_fails_hangs_cuts_stops_or_dies_delays_no_reclaim() {
    let mut solo = Solo::lending(|_, _, _| Ok(None)).unwrap();
    for (what, mood) in [("broken", Mood::Broken), ("silent", Mood::Silent), ("cuts", Mood::Cuts)] {
        twice(&mut solo, what, |solo| solo.proxy.set(mood), |solo| solo.proxy.set(Mood::Well));
    }
    twice(&mut solo, "stopped", |solo| solo.engine.freeze().unwrap(), |solo| solo.engine.thaw().unwrap());
    twice(&mut solo, "dead", |solo| solo.engine.kill_both().unwrap(), |solo| solo.engine.start().unwrap());
}
