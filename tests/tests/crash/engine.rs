//! The engine, both of its daemons. What it ran it ends when it is back.

use system_tests::campus::Luck;

use crate::course::Course;
use crate::points::{Points, of_a_guest, of_a_job};
use crate::reached::go_through;
use crate::traced::Traced;

/// So many are tried also on a machine that has no time: each costs the start of two daemons.
const LEAST: usize = 4;

#[test]
fn kill_9_of_the_engine_at_any_boundary_leaves_one_end_with_the_same_bytes() {
    let mut luck = Luck::of("kill -9 of the engine").unwrap();
    let mut campus = Traced::found();
    let points = Points::of(&of_a_job(of_a_guest(&campus.agent)), &mut luck);
    let mut course = Course::through("kill -9 of the engine", points, LEAST, &mut luck);
    // One at a time: the member's image lies in the engine of the first provider.
    go_through(&mut course, &mut campus, "engine", 1, |engine| {
        // It is started again with whatever else has ended, a moment later.
        engine.kill_both().unwrap();
        true
    });
    course.finish();
}
