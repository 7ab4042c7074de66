//! When the broker asks to be woken: each reason alone, to the millisecond, and no reason at all.

use gpunion_protocol::http::Role;
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::Millis;

use super::{World, assigned, offer};
use crate::broker::{Broker, Config};

const HOUR: Millis = Millis::from_secs(3_600);

fn wakes_in(w: &World) -> Option<u64> {
    w.broker.poll_timeout().map(|at| (at - w.now.boot).0)
}

/// A world in which nothing is said again, so that it wakes for nothing else first.
fn patient(change: impl FnOnce(&mut Config)) -> World {
    let mut config = Config { repeat: HOUR, ..Config::default() };
    change(&mut config);
    World { broker: Broker::new(config), ..World::new() }
}

#[test]
fn who_has_nothing_to_wait_for_sleeps() {
    let mut w = World::new();
    assert_eq!(wakes_in(&w), None);
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    assert_eq!(wakes_in(&w), None);
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    w.submit(&ada, |_| {});
    assert_eq!(wakes_in(&w), Some(50_000), "who waits for room waits for no clock");
    w.disconnect(&lab);
    w.wait(Millis(50_000));
    assert_eq!(wakes_in(&w), None, "the lease is over, and is over once");
    w.connect(&lab);
    w.end(&lab, &attempt, EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(wakes_in(&w), None);
}

#[test]
fn a_lease_an_answer_and_a_word_each_have_their_time() {
    let reserved = |mut w: World| {
        let (ada, _) = w.join(Role::Operator, "ada");
        w.provider("lab-1", &[8]);
        let job = w.submit(&ada, |_| {});
        (w, ada, job)
    };
    assert_eq!(wakes_in(&reserved(World::new()).0), Some(10_000), "the assignment is said again");
    assert_eq!(wakes_in(&reserved(patient(|_| {})).0), Some(30_000), "it may be left unanswered for so long");
    let (mut w, ada, job) = reserved(patient(|config| config.answer_within = HOUR));
    assert_eq!(wakes_in(&w), Some(50_000), "its lease");
    w.wait(Millis(20_000));
    let (lab, attempt) = w.run(&job);
    assert_eq!(wakes_in(&w), Some(30_000), "a state renews nothing");
    w.renew(&lab, std::slice::from_ref(&attempt));
    assert_eq!(wakes_in(&w), Some(50_000));
    w.cancel(&ada, &job).unwrap();
    assert_eq!(wakes_in(&w), Some(50_000), "it still has it");
    w.end(&lab, &attempt, EndCause::Cancelled, None);
    assert_eq!(wakes_in(&w), None);

    let (mut w, ada, job) = reserved(World::new());
    let (lab, _) = w.run(&job);
    w.cancel(&ada, &job).unwrap();
    assert_eq!(wakes_in(&w), Some(10_000), "that it must end is said again");
    w.disconnect(&lab);
    assert_eq!(wakes_in(&w), Some(50_000), "but not to who is away");
}

#[test]
fn an_answer_is_waited_for_from_when_the_device_was_there_to_give_it() {
    let mut w = patient(|_| {});
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    w.provider("lab-2", &[80]);
    let job = w.submit(&ada, |_| {});
    let (at, first) = w.newest(&job);
    assert_eq!(at, lab);
    w.disconnect(&lab);
    w.wait(Millis(15_000));
    w.connect(&lab);
    assert_eq!(wakes_in(&w), Some(30_000));
    w.wait(Millis(29_999));
    assert_eq!(w.newest(&job).1, first);
    w.wait(Millis(1));
    assert_ne!(w.newest(&job).1, first);
    let state = &w.broker.attempt(&job, first.token.attempt).unwrap().state;
    let reason = "the provider did not answer for 30 s".to_owned();
    assert_eq!(*state, AttemptState::Ended { cause: EndCause::CouldNotStart { reason } });
}

#[test]
fn a_retry_a_key_and_a_start_of_the_relay_each_have_their_time() {
    let mut w = patient(|_| {});
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-1", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.newest(&job);
    w.end(&lab, &attempt, EndCause::CouldNotStart { reason: "no space".to_owned() }, None);
    assert_eq!(wakes_in(&w), Some(10_000), "it is tried there again");
    w.cancel(&ada, &job).unwrap();
    assert_eq!(wakes_in(&w), None);

    let mut w = World::new();
    let (ada, laptop) = w.join(Role::Operator, "ada");
    w.connect(&laptop);
    w.submit(&ada, |_| {});
    w.provider("lab-1", &[8]);
    assert_eq!(wakes_in(&w), Some(10_000), "a key is asked for again");
    w.disconnect(&laptop);
    assert_eq!(wakes_in(&w), None, "there is nobody to ask");

    let mut w = World::new();
    w.restart();
    assert_eq!(wakes_in(&w), Some(50_000));
    w.wait(Millis(50_000));
    assert_eq!(wakes_in(&w), None);
}

#[test]
fn who_comes_back_hears_at_once_what_it_has_not_answered() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (lab, other) = (w.provider("lab-1", &[8]), w.provider("lab-2", &[80]));
    w.submit(&ada, |_| {});
    w.submit(&ada, |_| {});
    w.wait(Millis(1));
    w.disconnect(&lab);
    let told = w.connect(&lab);
    assert_eq!(assigned(&told, &lab).len(), 1);
    assert_eq!(assigned(&told, &other).len(), 0, "its time has not come");
}

#[test]
fn a_device_that_did_not_say_hello_is_told_nothing_and_gets_nothing() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let session = crate::broker::SessionId(w.fresh());
    w.step(crate::broker::Event::Connected { device: lab.clone(), session });
    let offered = ToRelay::Offer { offer: offer("lab-1", &[8]) };
    w.step(crate::broker::Event::From { device: lab.clone(), session, message: offered });
    let job = w.submit(&ada, |_| {});
    assert_eq!(w.why(&job), "lab-1, the only provider that fits, is offline");
    let hello = ToRelay::Hello { wire: 1, agent: "test".to_owned() };
    w.step(crate::broker::Event::From { device: lab.clone(), session, message: hello });
    assert_eq!(w.newest(&job).0, lab);
}
