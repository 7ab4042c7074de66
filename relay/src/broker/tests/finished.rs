//! Of finished jobs the latest are kept; what is asked of the list of jobs.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{JobId, MemberId};
use gpunion_protocol::job::{EndCause, JobState};
use gpunion_protocol::problem::Code;

use super::World;
use crate::broker::{Broker, Config, Effect, Jobs};

/// A world that keeps three finished jobs of each member.
fn small() -> World {
    World { broker: Broker::new(Config { finished_max: 3, ..Config::default() }), ..World::new() }
}

fn cancelled(w: &mut World, member: &MemberId) -> JobId {
    let job = w.submit(member, |_| {});
    w.cancel(member, &job).unwrap();
    job
}

fn all(member: &MemberId) -> Jobs {
    Jobs { member: Some(member.clone()), open: None, name: None, before: None, limit: 100 }
}

fn ids(w: &World, wanted: &Jobs, member: &MemberId) -> Vec<JobId> {
    w.broker.jobs_where(wanted, member).unwrap().into_iter().map(|view| view.id).collect()
}

#[test]
fn submitting_and_cancelling_without_end_grows_nothing() {
    let mut w = small();
    let (ada, _) = w.join(Role::Operator, "ada");
    let (bob, _) = w.join(Role::Member, "bob");
    let bobs = cancelled(&mut w, &bob);
    let mut jobs = Vec::new();
    let mut rows = 0;
    for n in 0..50 {
        jobs.push(cancelled(&mut w, &ada));
        if n == 10 {
            rows = w.disk.len();
        }
    }
    assert_eq!(w.disk.len(), rows, "as many rows after 50 jobs as after 11");
    jobs.reverse();
    assert_eq!(ids(&w, &all(&ada), &ada), jobs[..3], "the latest are kept");
    assert_eq!(ids(&w, &all(&bob), &bob), [bobs], "each member's own");
    w.check_disk();
}

#[test]
fn a_job_that_took_long_is_not_old_when_it_finishes() {
    let mut w = small();
    let (ada, _) = w.join(Role::Operator, "ada");
    let long = w.submit(&ada, |_| {});
    for _ in 0..5 {
        cancelled(&mut w, &ada);
    }
    assert!(!w.state(&long).is_final(), "what is not final is never forgotten");
    w.cancel(&ada, &long).unwrap();
    assert!(ids(&w, &all(&ada), &ada).contains(&long));
    w.restart();
    assert!(ids(&w, &all(&ada), &ada).contains(&long), "the order is on the disk");
}

#[test]
fn what_a_device_still_has_is_not_forgotten_before_it_has_let_go() {
    let mut w = small();
    let (ada, _) = w.join(Role::Operator, "ada");
    let lab = w.provider("lab-1", &[8]);
    let running = w.submit(&ada, |_| {});
    let (_, attempt) = w.run(&running);
    w.cancel(&ada, &running).unwrap();
    let others: Vec<JobId> = (0..5).map(|_| cancelled(&mut w, &ada)).collect();
    assert!(ids(&w, &all(&ada), &ada).contains(&running), "lab-1 must still be told to end it");
    assert_eq!(ids(&w, &all(&ada), &ada).len(), 3);
    let effects = w.end(&lab, &attempt, EndCause::Cancelled, None);
    assert_eq!(w.state(&running), JobState::Cancelled);
    assert!(!effects.iter().any(|e| matches!(e, Effect::Forget { .. })), "there are three");
    let job = w.submit(&ada, |_| {});
    let effects = w.step(crate::broker::Event::Cancel {
        request: crate::broker::RequestId(9_999),
        by: ada.clone(),
        job,
    });
    assert!(effects.contains(&Effect::Forget { job: running }), "it finished first");
    assert!(!ids(&w, &all(&ada), &ada).contains(&others[0]));
}

#[test]
fn large_jobs_count_by_their_bytes() {
    let config = Config { finished_bytes: 1 << 20, ..Config::default() };
    let mut w = World { broker: Broker::new(config), ..World::new() };
    let (ada, _) = w.join(Role::Operator, "ada");
    for _ in 0..20 {
        let job = w.submit(&ada, |submit| submit.sealed.0 = vec![0; 190 << 10]);
        w.cancel(&ada, &job).unwrap();
    }
    assert_eq!(ids(&w, &all(&ada), &ada).len(), 5);
}

#[test]
fn a_spec_that_would_not_fit_into_an_assignment_is_refused() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let submit = w.draft(|submit| {
        submit.spec.env.insert("LONG".to_owned(), "x".repeat(300 << 10));
    });
    assert_eq!(w.hand_in(&ada, submit).unwrap_err().code, Code::BadSpec);
}

#[test]
fn jobs_are_found_by_state_and_name_and_page_by_page() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    let named = |name: &str| {
        let name = name.to_owned();
        move |submit: &mut gpunion_protocol::http::Submit| submit.spec.name = name
    };
    let first = w.submit(&ada, named("digits"));
    let jobs: Vec<JobId> = (0..10).map(|_| w.submit(&ada, named("sweep"))).collect();
    for job in &jobs[..6] {
        w.cancel(&ada, job).unwrap();
    }
    assert_eq!(
        ids(&w, &Jobs { name: Some("digits".to_owned()), ..all(&ada) }, &ada),
        std::slice::from_ref(&first)
    );
    assert_eq!(ids(&w, &Jobs { open: Some(true), ..all(&ada) }, &ada).len(), 5);
    assert_eq!(ids(&w, &Jobs { open: Some(false), ..all(&ada) }, &ada).len(), 6);
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = ids(&w, &Jobs { before, limit: 4, ..all(&ada) }, &ada);
        seen.extend(page.clone());
        before = page.last().cloned();
        if page.len() < 4 {
            break;
        }
    }
    assert_eq!(seen, ids(&w, &all(&ada), &ada));
    assert_eq!((seen.len(), seen.last()), (11, Some(&first)));
    let unknown = Jobs { before: Some(JobId::new(1, [99; 10])), ..all(&ada) };
    assert_eq!(w.broker.jobs_where(&unknown, &ada), None);
}
