//! In a crowd of waiting jobs a new one is let in alone, and all are looked at soon after.

use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::{JobId, MemberId};
use gpunion_protocol::job::JobState;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;

use super::{GIB, World};
use crate::broker::{Broker, Config};

/// One GPU of 8 GiB and one of 80; two of ada's jobs want the large one, and the first has it.
fn crowd() -> (World, MemberId, MemberId, [JobId; 2]) {
    let broker = Broker::new(Config { crowd: 1, ..Config::default() });
    let mut w = World { broker, ..World::new() };
    let (ada, _) = w.join(Role::Operator, "ada");
    let (kim, _) = w.join(Role::Member, "kim");
    w.provider("lab-1", &[8, 80]);
    let jobs = [w.submit(&ada, large), w.submit(&ada, large)];
    w.run(&jobs[0]);
    (w, ada, kim, jobs)
}

fn large(submit: &mut Submit) {
    submit.spec.resources.gpu_memory = Bytes(40 * GIB);
}

#[test]
fn who_fits_is_placed_at_once_and_who_does_not_is_told_why() {
    let (mut w, ada, _, [_, second]) = crowd();
    assert_eq!(w.why(&second), "The only GPU with 40 GiB is lent; you are next");
    let third = w.submit(&ada, large);
    assert_eq!(w.why(&third), "The only GPU with 40 GiB is lent; 1 job is before yours");
    let small = w.submit(&ada, |_| {});
    assert_eq!(w.state(&small), JobState::Placed);
    let fourth = w.submit(&ada, large);
    assert_eq!(w.why(&fourth), "The only GPU with 40 GiB is lent; 2 jobs are before yours");
}

#[test]
fn whose_turn_it_is_is_told_within_a_second() {
    let (mut w, ada, kim, [_, second]) = crowd();
    w.submit(&ada, large);
    let hers = w.submit(&kim, large);
    // She has used nothing yet, and comes before all of ada's; but nobody has looked at those.
    assert_eq!(w.why(&hers), "The only GPU with 40 GiB is lent; 2 jobs are before yours");
    assert_eq!(w.broker.poll_timeout(), Some(w.now.boot + Millis(1_000)));
    w.wait(Millis(999));
    assert_eq!(w.why(&second), "The only GPU with 40 GiB is lent; you are next");
    w.wait(Millis(1));
    assert_eq!(w.why(&hers), "The only GPU with 40 GiB is lent; you are next");
    assert_eq!(w.why(&second), "The only GPU with 40 GiB is lent; 1 job is before yours");
    assert_ne!(w.broker.poll_timeout(), Some(w.now.boot + Millis(1_000)), "once");
}

#[test]
fn what_changes_for_all_is_looked_at_at_once() {
    let (mut w, ada, kim, [first, second]) = crowd();
    w.submit(&ada, large);
    let hers = w.submit(&kim, large);
    // Ada's has used the GPU for a while.
    w.wait(Millis(500));
    let (lab, attempt) = w.newest(&first);
    w.end(&lab, &attempt, gpunion_protocol::job::EndCause::Exited { code: 0 }, Some(1));
    assert_eq!(w.state(&hers), JobState::Placed, "her turn, though she was let in last");
    assert_eq!(w.why(&second), "The only GPU with 40 GiB is lent; you are next");
}
