//! The next provider of a job that leaves is made ready while the job still runs.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{AttemptRef, DeviceId, JobId, MemberId};
use gpunion_protocol::job::{AttemptState, EndCause, JobState};
use gpunion_protocol::session::{Assignment, ToAgent, ToRelay};
use gpunion_protocol::time::Millis;

use super::{Effect, World, assigned, ends, offer, sent, snapshot};

struct Leaving {
    w: World,
    ada: MemberId,
    job: JobId,
    from: DeviceId,
    attempt: AttemptRef,
    to: DeviceId,
    third: DeviceId,
    ahead: Assignment,
}

/// A job that has saved once leaves lab-7; of three others lab-3 is asked to prepare it.
fn leaving() -> Leaving {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let from = w.provider("lab-7", &[8]);
    let to = w.provider("lab-3", &[16]);
    let third = w.provider("lab-9", &[32]);
    w.provider("lab-1", &[64]);
    let job = w.submit(&ada, |_| {});
    let (at, attempt) = w.run(&job);
    assert_eq!(at, from, "the smallest that suffices");
    w.publish(&from, &attempt, 1);
    let told = w.say(&from, ToRelay::Leaving { attempt: attempt.clone() });
    let ahead = assigned(&told, &to)[0].clone();
    Leaving { w, ada, job, from, attempt, to, third, ahead }
}

impl Leaving {
    fn ready(&mut self) {
        let (attempt, state) = (self.ahead.attempt.clone(), AttemptState::Ready);
        self.w.say(&self.to, ToRelay::State { attempt, state, note: None });
    }

    fn ends(&mut self, cause: EndCause) -> Vec<Effect> {
        self.w.end(&self.from.clone(), &self.attempt.clone(), cause, None)
    }
}

fn goes<'a>(effects: &'a [Effect], to: &DeviceId) -> Vec<&'a ToAgent> {
    sent(effects, to).into_iter().filter(|message| matches!(message, ToAgent::Go { .. })).collect()
}

#[test]
fn it_waits_from_the_newest_checkpoint_and_counts_for_nothing() {
    let mut l = leaving();
    assert!(l.ahead.wait && l.ahead.from == Some(snapshot(1)));
    assert_eq!(l.w.state(&l.job), JobState::Running);
    l.ready();
    assert_eq!(l.w.state(&l.job), JobState::Running);
    l.w.publish(&l.from, &l.attempt, 2);
    let refused = l.w.publish(&l.to, &l.ahead.attempt, 3);
    assert!(sent(&refused, &l.to).is_empty());
    assert_eq!(l.w.broker.courses[&l.job].next_from(), Some(snapshot(2)));
    let renewed = l.w.renew(&l.to, std::slice::from_ref(&l.ahead.attempt));
    assert!(
        sent(&renewed, &l.to)
            .iter()
            .any(|m| matches!(m, ToAgent::Renewed { counting, .. } if counting.len() == 1))
    );
    let again = l.w.say(&l.from, ToRelay::Leaving { attempt: l.attempt.clone() });
    assert!(assigned(&again, &l.to).is_empty(), "one at a time");
}

#[test]
fn it_goes_on_from_what_was_saved_last_as_soon_as_the_job_has_left() {
    let mut l = leaving();
    l.ready();
    l.w.publish(&l.from, &l.attempt, 2);
    let told = l.ends(EndCause::Left);
    let word = ToAgent::Go { attempt: l.ahead.attempt.clone(), from: Some(snapshot(2)) };
    assert_eq!(goes(&told, &l.to), [&word]);
    assert_eq!(l.w.newest(&l.job), (l.to.clone(), l.ahead.attempt.clone()));
    assert_eq!(l.w.state(&l.job), JobState::Moving);
    let again = l.w.wait(Millis::from_secs(10));
    assert_eq!(goes(&again, &l.to), [&word], "said until it runs");
    l.w.run(&l.job);
    assert!(goes(&l.w.wait(Millis::from_secs(10)), &l.to).is_empty());
    assert_eq!(l.w.state(&l.job), JobState::Running);
    assert!(l.w.notes.iter().any(|n| n.starts_with("Moved from lab-7 to lab-3")), "{:?}", l.w.notes);
}

#[test]
fn one_that_has_not_answered_yet_is_assigned_without_waiting() {
    let mut l = leaving();
    let told = l.ends(EndCause::Left);
    let now = assigned(&told, &l.to)[0];
    assert_eq!((&now.attempt, now.wait), (&l.ahead.attempt, false));
}

#[test]
fn one_that_says_it_waits_is_let_go_whatever_was_heard_before() {
    let mut l = leaving();
    l.ready();
    l.ends(EndCause::Left);
    l.w.run(&l.job);
    let (attempt, state) = (l.ahead.attempt.clone(), AttemptState::Ready);
    let told = l.w.say(&l.to, ToRelay::State { attempt, state, note: None });
    assert_eq!(goes(&told, &l.to).len(), 1);
}

#[test]
fn an_agent_of_the_version_before_is_not_asked_to_wait() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let from = w.provider("lab-7", &[8]);
    let (_, old) = w.join(Role::Member, "lab-3");
    w.connect_as(&old, 1);
    w.say(&old, ToRelay::Offer { offer: offer("lab-3", &[16]) });
    let job = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&job);
    let told = w.say(&from, ToRelay::Leaving { attempt: attempt.clone() });
    assert!(assigned(&told, &old).is_empty());
    let told = w.end(&from, &attempt, EndCause::Left, None);
    assert!(!assigned(&told, &old)[0].wait);
}

#[test]
fn a_job_that_ends_after_all_needs_it_no_more() {
    let mut l = leaving();
    l.ready();
    let told = l.w.end(&l.from, &l.attempt, EndCause::Exited { code: 0 }, Some(9));
    assert_eq!(ends(&told, &l.to), [(&l.ahead.attempt, &EndCause::Stale)]);
    assert_eq!(l.w.state(&l.job), JobState::Succeeded);
    let mut l = leaving();
    l.w.cancel(&l.ada.clone(), &l.job.clone()).unwrap();
    let told = l.w.wait(Millis::from_secs(10));
    assert_eq!(ends(&told, &l.to), [(&l.ahead.attempt, &EndCause::Cancelled)]);
}

#[test]
fn one_that_fails_ahead_costs_the_job_nothing_and_another_is_tried_once() {
    let mut l = leaving();
    let third = l.third.clone();
    let reason = || EndCause::CouldNotStart { reason: "no image".to_owned() };
    let told = l.w.end(&l.to.clone(), &l.ahead.attempt.clone(), reason(), None);
    assert_eq!(l.w.state(&l.job), JobState::Running);
    assert_eq!(l.w.broker.courses[&l.job].strikes, 0);
    let second = assigned(&told, &third)[0].clone();
    assert!(second.wait);
    let told = l.w.end(&third, &second.attempt, reason(), None);
    assert!(told.iter().all(|e| !matches!(e, Effect::Send { message: ToAgent::Assign(_), .. })));
    let told = l.ends(EndCause::Left);
    let next = told.iter().find_map(|e| match e {
        Effect::Send { message: ToAgent::Assign(a), .. } => Some(a.clone()),
        _ => None,
    });
    assert!(!next.unwrap().wait, "then it is placed as any other");
}

#[test]
fn a_result_of_one_that_a_backup_takes_for_prepared_is_not_dropped() {
    let mut l = leaving();
    l.ready();
    let early = l.w.end(&l.to.clone(), &l.ahead.attempt.clone(), EndCause::Exited { code: 0 }, Some(9));
    assert!(sent(&early, &l.to).is_empty(), "it is said again");
    l.ends(EndCause::Left);
    l.w.end(&l.to.clone(), &l.ahead.attempt.clone(), EndCause::Exited { code: 0 }, Some(9));
    assert_eq!(l.w.state(&l.job), JobState::Succeeded);
}

#[test]
fn one_that_went_silent_is_passed_over() {
    let mut l = leaving();
    l.ready();
    l.w.disconnect(&l.to);
    let told = l.ends(EndCause::Left);
    assert!(!assigned(&told, &l.third)[0].wait);
    l.w.connect(&l.to);
    let told = l.w.say(&l.to, ToRelay::Renew { seq: 1, attempts: vec![l.ahead.attempt.clone()] });
    let stale = |m: &&ToAgent| matches!(m, ToAgent::Renewed { stale, .. } if stale.len() == 1);
    assert!(sent(&told, &l.to).iter().any(stale));
}

#[test]
fn a_provider_that_vanishes_while_its_job_leaves_is_waited_for_as_any_other() {
    let mut l = leaving();
    l.ready();
    l.w.disconnect(&l.from);
    for _ in 0..4 {
        l.w.wait(Millis::from_secs(10));
        l.w.renew(&l.to, std::slice::from_ref(&l.ahead.attempt));
        assert_eq!(l.w.newest(&l.job).1, l.attempt, "its lease runs");
    }
    let told = l.w.wait(Millis::from_secs(10));
    assert_eq!(goes(&told, &l.to).len(), 1);
    let lost = l.w.broker.attempt(&l.job, l.attempt.token.attempt).unwrap();
    assert_eq!(lost.state, AttemptState::Ended { cause: EndCause::Lost });
}

#[test]
fn a_relay_that_starts_again_keeps_what_is_prepared() {
    let mut l = leaving();
    l.ready();
    l.w.restart();
    for (name, device, attempt) in [("lab-7", &l.from, &l.attempt), ("lab-3", &l.to, &l.ahead.attempt)] {
        l.w.connect(device);
        l.w.say(device, ToRelay::Offer { offer: offer(name, &[8]) });
        l.w.renew(device, std::slice::from_ref(attempt));
    }
    let told = l.ends(EndCause::Left);
    assert_eq!(goes(&told, &l.to).len(), 1);
    // And one that starts again after the word says it again.
    l.w.restart();
    let told = l.w.connect(&l.to);
    assert_eq!(goes(&told, &l.to).len(), 1);
}

#[test]
fn of_several_jobs_the_one_with_most_to_lose_comes_first() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let from = w.provider("lab-7", &[8, 8]);
    let jobs = [w.submit(&ada, |_| {}), w.submit(&ada, |_| {})];
    let attempts = jobs.each_ref().map(|job| w.run(job).1);
    w.wait(Millis::from_secs(30));
    w.publish(&from, &attempts[0], 1);
    w.wait(Millis::from_secs(1));
    for attempt in &attempts {
        w.say(&from, ToRelay::Leaving { attempt: attempt.clone() });
    }
    let (_, to) = w.join(Role::Member, "lab-3");
    w.connect(&to);
    // Room for one, and the key of both.
    for job in &jobs {
        let key = gpunion_protocol::job::WrappedKey {
            device: to.clone(),
            wrapped: gpunion_protocol::job::Blob(vec![1; 80]),
        };
        w.say(&from, ToRelay::Wrapped { job: job.clone(), key });
    }
    let told = w.say(&to, ToRelay::Offer { offer: offer("lab-3", &[8]) });
    assert_eq!(assigned(&told, &to)[0].attempt.job, jobs[1], "it has saved nothing");
}
