//! The agent ends just before it passes a boundary of its own.

use system_tests::campus::{Luck, crash};

use crate::course::Course;
use crate::points::{Points, of_a_job};
use crate::traced::Traced;

/// So many are tried also on a machine that has no time.
const LEAST: usize = 6;

#[test]
fn kill_9_of_the_agent_at_any_boundary_leaves_one_end_with_the_same_bytes() {
    let mut luck = Luck::of("kill -9 of the agent at its boundaries").unwrap();
    let mut campus = Traced::found();
    let points = Points::of(&of_a_job(&campus.agent), &mut luck);
    let mut course = Course::through("kill -9 of the agent", points, LEAST, &mut luck);
    for round in 0.. {
        // A job and a boundary for each provider.
        let armed = course.next(campus.pair.providers.len());
        if armed.is_empty() {
            break;
        }
        let names: Vec<String> = campus.pair.providers.iter().map(|provider| provider.name.clone()).collect();
        let at = armed.iter().zip(&names).map(|(point, name)| format!("{name} at {point}"));
        let at = at.collect::<Vec<_>>().join(", ");
        campus.forget();
        for (provider, point) in campus.pair.providers.iter().zip(&armed) {
            crash::arm(&provider.user, &point.name, point.nth).unwrap();
        }
        let jobs: Vec<String> = (0..armed.len()).map(|lane| format!("agent-{round}-{lane}")).collect();
        for id in campus.submit(&jobs) {
            campus.ended_once(&id, &at);
        }
        campus.settle();
        for (point, name) in armed.iter().zip(&names) {
            let ended = campus.ended(name);
            course.came(point, ended);
        }
    }
    campus.settle();
    course.finish();
}
