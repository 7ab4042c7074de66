//! What has no boundaries of its own is ended the moment that the agent has passed one of its.

use std::path::PathBuf;
use std::time::Duration;

use system_tests::campus::{Device, PATIENCE, Pair, crash};
use system_tests::lab::Engine;

use crate::course::{Course, now};
use crate::points::{Point, of_a_guest};
use crate::traced::{Traced, folder, submit_at_once};

/// Often enough that init is met where the agent has just been.
const LOOK: Duration = Duration::from_millis(3);
/// Asking takes a program's start.
const ASK: Duration = Duration::from_millis(500);

/// Ends what shall end on a machine; whether it was there.
type End = fn(&mut Engine) -> bool;

/// With so many jobs at a time, at most one for each provider.
pub(crate) fn go_through(course: &mut Course, campus: &mut Traced, what: &str, lanes: usize, end: End) {
    for round in 0.. {
        let points = course.next(lanes);
        if points.is_empty() {
            break;
        }
        let at = points.iter().map(|point| format!("{what} at {point}")).collect::<Vec<_>>().join(", ");
        let names: Vec<String> = (0..points.len()).map(|lane| format!("{what}-{round}-{lane}")).collect();
        campus.forget();
        let folders = names.iter().map(|name| folder(&campus.pair, name)).collect();
        let (jobs, ended) = meet(&mut campus.pair, &points, folders, end);
        for id in jobs {
            campus.ended_once(&id, &at);
        }
        campus.settle();
        points.iter().zip(ended).for_each(|(point, ended)| course.came(point, ended));
    }
}

/// Submits a job for each point and looks at both machines meanwhile: a job may be where it is to
/// be met before the next one is submitted. The jobs; and whether each point was passed, and what
/// had to end there did. A provider that does not pass where it did in the traced run is waited
/// for until its job is over.
fn meet(pair: &mut Pair, points: &[Point], folders: Vec<PathBuf>, end: End) -> (Vec<String>, Vec<bool>) {
    let Pair { ada, providers, engines, .. } = pair;
    let mut met: Vec<Option<bool>> = vec![None; points.len()];
    let give_up = now() + PATIENCE;
    let mut ask = now() + ASK;
    let jobs = std::thread::scope(|scope| {
        let ada = &*ada;
        let submits = scope.spawn(move || submit_at_once(ada, &folders));
        let mut jobs: Option<Vec<String>> = None;
        let mut submits = Some(submits);
        while met.contains(&None) || submits.is_some() {
            look(points, &mut met, providers, engines, end);
            if let Some(done) = submits.take_if(|submits| submits.is_finished()) {
                jobs = Some(done.join().unwrap().into_iter().map(Result::unwrap).collect());
            }
            if let Some(jobs) = &jobs
                && now() > ask
            {
                if is_over(ada, jobs, &met) {
                    break;
                }
                ask = now() + ASK;
            }
            assert!(now() < give_up, "nobody passes {points:?}");
            std::thread::sleep(LOOK);
        }
        jobs.unwrap_or_default()
    });
    (jobs, met.into_iter().map(|met| met == Some(true)).collect())
}

/// One point is met wherever the job is; of several, each provider has its own.
fn look(points: &[Point], met: &mut [Option<bool>], providers: &[Device], engines: &mut [Engine], end: End) {
    for (at, (provider, engine)) in providers.iter().zip(engines).enumerate() {
        let lane = if points.len() == 1 { 0 } else { at };
        if met[lane].is_none() && has_passed(&crash::passed(&provider.user).unwrap(), &points[lane]) {
            met[lane] = Some(end(engine));
        }
    }
}

fn has_passed(passed: &[String], point: &Point) -> bool {
    let times = of_a_guest(passed).iter().filter(|name| **name == point.name).count();
    times >= point.nth as usize
}

/// The job of one that was met goes on; the others' are over.
fn is_over(ada: &Device, jobs: &[String], met: &[Option<bool>]) -> bool {
    let over = |id: &&String| ada.job(id).is_ok_and(|job| job.state.is_final());
    jobs.len() - jobs.iter().filter(over).count() <= met.iter().flatten().count()
}
