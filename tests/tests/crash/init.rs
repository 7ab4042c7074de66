//! Init, the first process of a guest.

use gpunion_protocol::guest::INIT_PATH;
use system_tests::campus::Luck;

use crate::course::Course;
use crate::points::{Points, of_a_guest, of_a_job};
use crate::reached::go_through;
use crate::traced::Traced;

#[test]
fn kill_9_of_init_at_any_boundary_leaves_one_end_with_the_same_bytes() {
    let mut luck = Luck::of("kill -9 of init").unwrap();
    let mut campus = Traced::found();
    let points = Points::of(&of_a_job(of_a_guest(&campus.agent)), &mut luck);
    // A third of them, evenly apart, however slow the machine; more as time allows.
    let least = points.kinds.len().div_ceil(3);
    let mut course = Course::through("kill -9 of init", points, least, &mut luck);
    let lanes = campus.pair.providers.len();
    go_through(&mut course, &mut campus, "init", lanes, |engine| {
        engine.kill_first_process(INIT_PATH, 0).unwrap()
    });
    course.finish();
}
