//! Which snapshots the records still name, and so which files of the relay's must stay. Pure; what
//! is removed, and when, is `packs::sweep`.
//!
//! A job that is not final needs all that an attempt may begin with. Of a final one stays what its
//! member may fetch: the result, or of a failed job without one the newest checkpoint.

use std::collections::BTreeSet;

use gpunion_protocol::ids::SnapshotId;
use gpunion_protocol::job::Image;

use super::Broker;
use super::record::{Attempt, Course, Job, JobEnd};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roots {
    /// Each of them stays, with its packs.
    pub needed: BTreeSet<SnapshotId>,
    /// Checkpoints that a later one, or the result, has replaced: nobody comes for them any more.
    pub passed: BTreeSet<SnapshotId>,
}

impl Broker {
    pub fn roots(&self) -> Roots {
        let mut roots = Roots::default();
        for (id, job) in &self.jobs {
            let Some(course) = self.courses.get(id) else {
                // A job without a course has not begun.
                roots.needed.extend(inputs(job));
                continue;
            };
            let attempts = || self.attempts.get(id).into_iter().flat_map(|all| all.values());
            let published = attempts().flat_map(|attempt| attempt.published.iter().copied());
            roots.passed.extend(published.chain(course.chain.iter().map(|c| c.snapshot)));
            match &course.end {
                None => {
                    roots.needed.extend(inputs(job));
                    roots.needed.extend(course.chain.iter().map(|c| c.snapshot).chain(course.doubted));
                    roots.needed.extend(attempts().flat_map(at_work));
                }
                Some(end) => {
                    roots.needed.extend(kept(course, end));
                    // Whoever cancelled it may still want what it had; that goes by the long grace.
                    if let (JobEnd::Cancelled, Some(last)) = (end, course.chain.last()) {
                        roots.passed.remove(&last.snapshot);
                    }
                }
            }
        }
        roots.passed.retain(|snapshot| !roots.needed.contains(snapshot));
        roots
    }
}

/// What every attempt of a job may need.
fn inputs(job: &Job) -> impl Iterator<Item = SnapshotId> {
    let layers = match &job.image {
        Image::Layers { snapshot, .. } => Some(*snapshot),
        Image::Registry { .. } => None,
    };
    job.input.into_iter().chain(layers).chain(job.data.iter().map(|data| data.snapshot))
}

/// It may still fetch what it goes on from, and builds its next checkpoint on its last one.
fn at_work(attempt: &Attempt) -> impl Iterator<Item = SnapshotId> {
    let at_work = !attempt.state.is_ended();
    attempt.from.into_iter().chain(attempt.published.last().copied()).filter(move |_| at_work)
}

fn kept(course: &Course, end: &JobEnd) -> Option<SnapshotId> {
    match end {
        JobEnd::Failed { .. } => course.result.or(course.chain.last().map(|c| c.snapshot)),
        JobEnd::Succeeded | JobEnd::Cancelled => course.result,
    }
}
