//! What members are told of a move, and what it cost.

use gpunion_protocol::http::Role;
use gpunion_protocol::job::{AttemptState, EndCause, Quality};
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::Millis;

use super::{World, checkpoint};

fn moves(w: &World) -> Vec<&String> {
    w.notes.iter().filter(|text| text.contains("without computing")).collect()
}

#[test]
fn a_move_is_told_once_with_what_it_cost_at_most() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (one, two) = (w.provider("lab-7", &[8]), w.provider("lab-3", &[8]));
    let job = w.submit(&ada, |_| {});
    let (first, attempt) = w.run(&job);
    w.wait(Millis::from_secs(5));
    // Its content was complete 2 s before it was told.
    let publish = ToRelay::Publish {
        attempt: attempt.clone(),
        checkpoint: checkpoint(&attempt, 1),
        age: Millis(2_000),
    };
    w.say(&first, publish);
    w.wait(Millis::from_secs(4));
    let saving = ToRelay::State { attempt: attempt.clone(), state: AttemptState::Saving, note: None };
    w.say(&first, saving);
    w.wait(Millis::from_secs(3));
    w.end(&first, &attempt, EndCause::Left, None);
    w.wait(Millis::from_secs(1));
    let (second, _) = w.run(&job);
    assert_ne!(first, second);
    let names = if first == one { ("lab-7", "lab-3") } else { ("lab-3", "lab-7") };
    let view = w.broker.job_view(&job, &ada).unwrap();
    let moved = view.attempts[1].moved.clone().expect("what it cost");
    assert_eq!((moved.from, moved.idle, moved.lost), (first, Millis(4_000), Millis(6_000)));
    assert!(view.attempts[0].moved.is_none());
    let text =
        format!("Moved from {} to {}, 4 s without computing, at most 6 s of work lost", names.0, names.1);
    assert_eq!(moves(&w), [&text], "one event a move: {two}");
    assert_eq!(w.broker.moves(), 1);
    w.wait(Millis::from_secs(6));
    let (_, attempt) = w.newest(&job);
    w.end(&second, &attempt, EndCause::Reclaimed, None);
    w.run(&job);
    assert_eq!(w.broker.moves(), 2);
    w.restart();
    assert_eq!(w.broker.moves(), 0, "since this relay started");
    let again = w.broker.job_view(&job, &ada).unwrap();
    assert_eq!(again.attempts[1].moved, view.attempts[1].moved, "it is kept");
}

#[test]
fn work_is_counted_from_the_last_quiet_checkpoint() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-7", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    w.wait(Millis::from_secs(10));
    let mut running = checkpoint(&attempt, 2);
    running.quality = Quality::Running;
    w.say(&lab, ToRelay::Publish { attempt: attempt.clone(), checkpoint: running, age: Millis(0) });
    w.wait(Millis::from_secs(5));
    w.end(&lab, &attempt, EndCause::Reclaimed, None);
    w.run(&job);
    let view = w.broker.job_view(&job, &ada).unwrap();
    assert_eq!(view.attempts[1].moved.as_ref().unwrap().lost, Millis(15_000));
    assert!(moves(&w)[0].starts_with("Started again on lab-7, "), "{:?}", w.notes);
}

#[test]
fn without_a_checkpoint_all_that_was_computed_is_lost() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-7", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.wait(Millis::from_secs(7));
    w.end(&lab, &attempt, EndCause::Broken { reason: "the engine went".to_owned() }, None);
    w.wait(Millis::from_secs(11));
    w.run(&job);
    let view = w.broker.job_view(&job, &ada).unwrap();
    assert_eq!(view.attempts[1].moved.as_ref().unwrap().lost, Millis(7_000));
}

#[test]
fn one_that_vanished_computed_until_its_last_word_as_far_as_it_counts() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-7", &[8]);
    w.provider("lab-3", &[8]);
    let job = w.submit(&ada, |_| {});
    let (first, attempt) = w.run(&job);
    w.wait(Millis::from_secs(9));
    w.renew(&first, &[attempt]);
    w.disconnect(&first);
    w.wait(Millis::from_secs(60));
    let (second, _) = w.run(&job);
    assert_ne!(first, second);
    let view = w.broker.job_view(&job, &ada).unwrap();
    let moved = view.attempts[1].moved.clone().unwrap();
    assert_eq!((moved.idle, moved.lost), (Millis(60_000), Millis(9_000)));
}

#[test]
fn a_clock_that_was_set_back_between_two_attempts_hides_no_loss() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab-7", &[8]);
    let job = w.submit(&ada, |_| {});
    let (lab, attempt) = w.run(&job);
    w.publish(&lab, &attempt, 1);
    w.end(&lab, &attempt, EndCause::Reclaimed, None);
    w.now.wall.0 -= 3_600_000;
    let (lab, attempt) = w.run(&job);
    w.wait(Millis::from_secs(7));
    w.end(&lab, &attempt, EndCause::Reclaimed, None);
    w.run(&job);
    let view = w.broker.job_view(&job, &ada).unwrap();
    assert_eq!(view.attempts[2].moved.as_ref().unwrap().lost, Millis(7_000));
}
