//! Each sentence that tells why a job waits.

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::ids::{DeviceId, GpuUuid};
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;

use super::GIB;
use crate::broker::placement::{Cap, Need, Room, RoomGpu};
use crate::broker::why::{Hint, why};

/// Two GPUs of 8 GiB, all of it free.
fn room(name: &str) -> Room {
    let gpu = |n: u8| RoomGpu {
        uuid: GpuUuid(format!("GPU-{name}-{n}")),
        memory: Bytes(8 * GIB),
        free: true,
        standin: true,
    };
    Room {
        device: DeviceId::new(1, [1; 10]),
        name: name.to_owned(),
        here: true,
        open: true,
        closed_because: None,
        gpus: vec![gpu(0), gpu(1)],
        cpus: Cap::of(8),
        memory: Cap::of(16 * GIB),
        disk: Cap::of(100 * GIB),
        time_left: None,
        grace: None,
        egress: EgressRule::Off,
        blocked: false,
    }
}

fn with(name: &str, change: impl FnOnce(&mut Room)) -> Room {
    let mut room = room(name);
    change(&mut room);
    room
}

fn need() -> Need {
    Need {
        gpus: 1,
        gpu_memory: Bytes(4 * GIB),
        cpus: 2,
        memory: Bytes(4 * GIB),
        disk: Bytes(10 * GIB),
        every: Millis::from_secs(300),
        grace: Millis::from_secs(60),
        egress: Vec::new(),
    }
}

fn told(need: &Need, rooms: &[Room]) -> String {
    why(need, rooms, &Hint::default())
}

fn lend_all(room: &mut Room) {
    room.gpus.iter_mut().for_each(|gpu| gpu.free = false);
}

#[test]
fn what_is_lent_is_counted_and_who_is_before_is_told() {
    let lent = [with("a", lend_all), with("b", lend_all)];
    let ahead = |ahead| Hint { ahead, ..Hint::default() };
    assert_eq!(why(&need(), &lent, &ahead(0)), "All 4 GPUs with 4 GiB are lent; you are next");
    assert_eq!(why(&need(), &lent, &ahead(1)), "All 4 GPUs with 4 GiB are lent; 1 job is before yours");
    assert_eq!(why(&need(), &lent, &ahead(2)), "All 4 GPUs with 4 GiB are lent; 2 jobs are before yours");
    let one = with("a", |room| {
        room.gpus.truncate(1);
        lend_all(room);
    });
    let any = Need { gpu_memory: Bytes(0), ..need() };
    assert_eq!(told(&any, &[one]), "The only GPU is lent; you are next");
    let half = |name| with(name, |room| room.gpus[0].free = false);
    let two = Need { gpus: 2, ..need() };
    assert_eq!(
        told(&two, &[half("a"), half("b")]),
        "Only 2 of the 4 GPUs with 4 GiB are free, not 2 in one machine; you are next"
    );
}

#[test]
fn what_is_short_beside_other_jobs_is_named() {
    let cpus = with("a", |room| room.cpus.left = 1);
    assert_eq!(
        told(&need(), &[cpus]),
        "a has a free GPU, but not enough CPUs left beside other jobs; you are next"
    );
    let memory = with("a", |room| room.memory.left = GIB);
    assert_eq!(
        told(&need(), &[memory]),
        "a has a free GPU, but not enough memory left beside other jobs; you are next"
    );
    let just = Need { cpus: 8, memory: Bytes(16 * GIB), ..need() };
    let disk = with("a", |room| room.disk.left = GIB);
    assert_eq!(
        told(&just, std::slice::from_ref(&disk)),
        "a has a free GPU, but not enough disk left beside other jobs; you are next"
    );
    let none = Need { gpus: 0, gpu_memory: Bytes(0), ..need() };
    assert_eq!(told(&none, &[disk]), "a has not enough disk left beside other jobs; you are next");
    let unknown = with("a", |room| room.blocked = true);
    assert_eq!(told(&need(), &[unknown]), "a still has to end guests that nobody knows; you are next");
}

#[test]
fn who_is_away_or_closed_is_named() {
    let away = |name| with(name, |room| room.here = false);
    let closed = |name| {
        with(name, |room| {
            room.open = false;
            room.closed_because = Some("a reclaim is under way".to_owned());
        })
    };
    assert_eq!(told(&need(), &[away("a")]), "a, the only provider that fits, is offline");
    assert_eq!(
        told(&need(), &[closed("a")]),
        "a, the only provider that fits, does not lend now (a reclaim is under way)"
    );
    assert_eq!(told(&need(), &[away("a"), away("b")]), "All 2 providers that fit are offline: a, b");
    assert_eq!(told(&need(), &[away("a"), closed("b")]), "None of the 2 providers that fit lends now: a, b");
    let three = ["a", "b", "c"].map(away);
    assert_eq!(told(&need(), &three), "All 3 providers that fit are offline: a, b, c");
    let four = ["a", "b", "c", "d"].map(away);
    assert_eq!(told(&need(), &four), "All 4 providers that fit are offline: a, b, c, …");
    // Who would not fit anyway is not waited for.
    let small = with("small", |room| {
        room.here = false;
        room.gpus.clear();
    });
    assert_eq!(told(&need(), &[small]), "Nobody lends anything now");
}

#[test]
fn what_nobody_lends_is_named_with_the_most_that_there_is() {
    let rooms = [with("a", |room| room.gpus.truncate(1)), room("b")];
    let gpus = |gpus, gib| Need { gpus, gpu_memory: Bytes(gib * GIB), ..need() };
    assert_eq!(told(&gpus(1, 9), &rooms), "No provider has a GPU with 9 GiB");
    assert_eq!(told(&gpus(2, 9), &rooms), "No provider has a GPU with 9 GiB");
    assert_eq!(told(&gpus(3, 8), &rooms), "No provider has 3 GPUs with 8 GiB in one machine; the most is 2");
    assert_eq!(told(&gpus(3, 0), &rooms), "No provider has 3 GPUs in one machine; the most is 2");
    let bare = [with("a", |room| room.gpus.clear())];
    assert_eq!(told(&gpus(1, 0), &bare), "No provider lends a GPU now");
    let cpus = Need { cpus: 9, ..need() };
    assert_eq!(told(&cpus, &rooms), "No provider lends 9 CPUs and such a GPU with 4 GiB; the most is 8");
    let memory = Need { memory: Bytes(17 * GIB), ..need() };
    assert_eq!(
        told(&memory, &rooms),
        "No provider lends 17 GiB of memory and such a GPU with 4 GiB; the most is 16 GiB"
    );
    let disk = Need { gpus: 0, gpu_memory: Bytes(0), disk: Bytes(101 * GIB), ..need() };
    assert_eq!(told(&disk, &rooms), "No provider lends 101 GiB of disk; the most is 100 GiB");
}

#[test]
fn what_no_machine_has_at_once_is_said_so() {
    let small = with("a", |room| room.memory = Cap::of(2 * GIB));
    let weak = with("b", |room| room.cpus = Cap::of(1));
    assert_eq!(
        told(&need(), &[small, weak]),
        "No single provider has all of 2 CPUs, 4 GiB of memory and 10 GiB of disk and such a GPU with 4 GiB"
    );
    let ends = |seconds| with("a", |room| room.time_left = Some(Millis::from_secs(seconds)));
    assert_eq!(
        told(&need(), &[ends(359)]),
        "a lends for only 6 min more, too short for this job to save anything"
    );
    let lent = with("a", |room| {
        room.time_left = Some(Millis::from_secs(360));
        lend_all(room);
    });
    assert_eq!(told(&need(), &[lent]), "All 2 GPUs with 4 GiB are lent; you are next");
}

#[test]
fn what_only_the_queue_knows_comes_first() {
    let hint = Hint { keyless: vec!["b".to_owned()], resting: Some("a".to_owned()), ..Hint::default() };
    assert!(why(&need(), &[], &hint).starts_with("b is free, but has no key of this job yet"));
    let lost = Hint { key_lost: true, ..hint.clone() };
    assert_eq!(
        why(&need(), &[], &lost),
        "b is free, but no device that is left can give it this job's key; cancel the job and submit it again"
    );
    let hint = Hint { keyless: Vec::new(), ..hint };
    assert_eq!(why(&need(), &[], &hint), "It could not start on a; it is tried there again in a moment");
    let settling = Hint { settling: true, ..Hint::default() };
    assert!(why(&need(), &[], &settling).starts_with("The relay has just started"));
    let other = [with("a", |room| room.gpus.clear())];
    assert_eq!(why(&need(), &other, &settling), "No provider has a GPU with 4 GiB");
    let silent = Hint { silent: Some("Nova".to_owned()), ..Hint::default() };
    assert_eq!(
        why(&need(), &[], &silent),
        "Nova went silent and may return; until then: nobody lends anything now"
    );
    let away = [with("Nova", |room| room.here = false)];
    assert_eq!(
        why(&need(), &away, &silent),
        "Nova went silent and may return; until then: Nova, the only provider that fits, is offline"
    );
}

#[test]
fn a_provider_that_lends_long_enough_is_not_called_too_short() {
    // No one machine has all of it, and time is not what is missing.
    let rooms = [
        with("a", |r| (r.cpus, r.time_left) = (Cap::of(1), Some(Millis::from_secs(7_200)))),
        with("b", |r| (r.memory, r.time_left) = (Cap::of(GIB), Some(Millis::from_secs(7_200)))),
    ];
    let sentence = why(&need(), &rooms, &Hint::default());
    assert!(sentence.starts_with("No single provider has all of"), "{sentence}");
}
