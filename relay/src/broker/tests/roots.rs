//! Which snapshots stay: each kind of reference, as long as it is one.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{JobId, MemberId, SnapshotId};
use gpunion_protocol::job::{DataInput, EndCause, Image};

use super::{World, snapshot};
use crate::broker::{Broker, Config};

fn ids(numbers: &[u8]) -> Vec<SnapshotId> {
    numbers.iter().copied().map(snapshot).collect()
}

/// What is needed, and what has been replaced.
fn roots(w: &World) -> (Vec<SnapshotId>, Vec<SnapshotId>) {
    let roots = w.broker.roots();
    (roots.needed.into_iter().collect(), roots.passed.into_iter().collect())
}

/// A job with an input (1), an input for reading (2) and an image that no registry has (3).
fn full_job(w: &mut World, member: &MemberId) -> JobId {
    w.submit(member, |submit| {
        submit.input = Some(snapshot(1));
        submit.data = vec![DataInput { at: "/data".to_owned(), snapshot: snapshot(2), bytes: 1 }];
        let (reference, image_id) = ("own:1".to_owned(), "sha256:1".to_owned());
        submit.image = Image::Layers { reference, image_id, snapshot: snapshot(3) };
    })
}

#[test]
fn a_job_that_is_not_final_needs_all_it_can_begin_with_and_its_last_two_checkpoints() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    assert_eq!(roots(&w), (ids(&[]), ids(&[])));
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    assert_eq!(roots(&w), (ids(&[1, 2, 3]), ids(&[])));
    let (device, attempt) = w.run(&job);
    for n in 11..=15 {
        w.publish(&device, &attempt, n);
    }
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 14, 15]), ids(&[11, 12, 13])));
    w.restart();
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 14, 15]), ids(&[11, 12, 13])), "as it is on the disk");
}

#[test]
fn what_an_attempt_at_work_began_from_stays_however_far_the_chain_is() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    let (device, attempt) = w.run(&job);
    w.publish(&device, &attempt, 11);
    w.end(&device, &attempt, EndCause::Reclaimed, None);
    let (device, attempt) = w.run(&job);
    assert_eq!(w.broker.newest(&job).unwrap().from, Some(snapshot(11)));
    for n in 21..=23 {
        w.publish(&device, &attempt, n);
    }
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 11, 22, 23]), ids(&[21])));
    w.end(&device, &attempt, EndCause::Reclaimed, None);
    let next = w.broker.newest(&job).filter(|a| !a.state.is_ended()).and_then(|a| a.from);
    assert_eq!(next.unwrap_or(snapshot(23)), snapshot(23));
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 22, 23]), ids(&[11, 21])));
}

#[test]
fn a_checkpoint_that_is_doubted_stays_until_a_new_one_comes() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    let (device, attempt) = w.run(&job);
    w.publish(&device, &attempt, 11);
    w.publish(&device, &attempt, 12);
    w.end(&device, &attempt, EndCause::Reclaimed, None);
    let (device, attempt) = w.run(&job);
    w.end(&device, &attempt, EndCause::Exited { code: 1 }, None);
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 11, 12]), ids(&[])));
    let (device, attempt) = w.run(&job);
    assert_eq!(w.broker.newest(&job).unwrap().from, Some(snapshot(11)));
    w.publish(&device, &attempt, 13);
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 11, 13]), ids(&[12])));
}

#[test]
fn of_a_job_that_succeeded_only_the_result_stays() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    let (device, attempt) = w.run(&job);
    w.publish(&device, &attempt, 11);
    w.publish(&device, &attempt, 12);
    w.end(&device, &attempt, EndCause::Exited { code: 0 }, Some(20));
    assert!(w.state(&job).is_final());
    assert_eq!(roots(&w), (ids(&[20]), ids(&[11, 12])));
}

#[test]
fn of_a_failed_job_without_a_result_its_newest_checkpoint_stays() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    let (device, attempt) = w.run(&job);
    w.publish(&device, &attempt, 11);
    w.publish(&device, &attempt, 12);
    w.end(&device, &attempt, EndCause::MemoryLimit, None);
    assert!(w.state(&job).is_final());
    assert_eq!(roots(&w), (ids(&[12]), ids(&[11])));
}

#[test]
fn of_a_cancelled_job_nothing_stays_though_its_provider_is_away() {
    let mut w = World::new();
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    let (device, attempt) = w.run(&job);
    for n in 11..=13 {
        w.publish(&device, &attempt, n);
    }
    w.disconnect(&device);
    w.cancel(&ada, &job).unwrap();
    assert_eq!(roots(&w), (ids(&[]), ids(&[11, 12])), "the last one goes by the long grace");
}

#[test]
fn a_forgotten_job_needs_nothing_and_what_two_jobs_name_stays_for_the_other() {
    let config = Config { finished_max: 1, ..Config::default() };
    let mut w = World { broker: Broker::new(config), ..World::new() };
    let (ada, _) = w.join(Role::Operator, "ada");
    w.provider("lab", &[24]);
    let job = full_job(&mut w, &ada);
    let (device, attempt) = w.run(&job);
    w.end(&device, &attempt, EndCause::Exited { code: 0 }, Some(20));
    let second = full_job(&mut w, &ada);
    assert_eq!(roots(&w), (ids(&[1, 2, 3, 20]), ids(&[])));
    w.cancel(&ada, &second).unwrap();
    assert_eq!(w.broker.job_state(&job), None, "forgotten");
    assert_eq!(roots(&w), (ids(&[]), ids(&[])));
}
