//! The relay ends just before it passes a boundary of its own.

use system_tests::campus::{Luck, crash};

use crate::course::Course;
use crate::points::{Points, of_a_job};
use crate::traced::{RELAY, Traced};

/// So many are tried also on a machine that has no time.
const LEAST: usize = 4;

#[test]
fn kill_9_of_the_relay_at_any_boundary_leaves_one_end_with_the_same_bytes() {
    let mut luck = Luck::of("kill -9 of the relay at its boundaries").unwrap();
    let mut campus = Traced::found();
    let points = Points::of(&of_a_job(&campus.relay), &mut luck);
    let mut course = Course::through("kill -9 of the relay", points, LEAST, &mut luck);
    for round in 0.. {
        let Some(point) = course.next(1).pop() else { break };
        campus.forget();
        crash::arm(&campus.pair.relay.user, &point.name, point.nth).unwrap();
        for id in campus.submit(&[format!("relay-{round}")]) {
            campus.ended_once(&id, &format!("the relay at {point}"));
        }
        campus.settle();
        let ended = campus.ended(RELAY);
        course.came(&point, ended);
    }
    campus.settle();
    course.finish();
}
