//! How an attempt stands at the relay, and kinds of events that come to it. An event of a device
//! comes to all attempts that it may still have something of; one of a job to its newest attempt.

use gpunion_protocol::ids::{AttemptRef, DeviceId};
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::session::ToRelay;
use gpunion_relay::broker::record::Attempt;
use gpunion_relay::broker::{Broker, Event};

/// Nobody placed it, or a backup does not know of it.
pub(in crate::sim) const UNKNOWN: &str = "unknown";

pub(in crate::sim) const STATES: [&str; 15] = [
    UNKNOWN,
    "ahead",
    "reserved",
    "preparing",
    "ready",
    "running",
    "stopped",
    "saving",
    "lapsed",
    "ended, job waits",
    "ended, job held",
    "older, device has it",
    "older",
    "job final, device has it",
    "job final",
];

pub(in crate::sim) const EVENTS: [&str; 32] = [
    "hello",
    "offer, open",
    "offer, closed",
    "renew with it",
    "renew without it",
    "state: preparing",
    "state: ready",
    "state: running",
    "state: stopped",
    "state: saving",
    "state: ended",
    "leaving",
    "digest",
    "publish",
    "ended: finished",
    "ended: program failed",
    "ended: limit",
    "ended: cancelled",
    "ended: reclaimed",
    "ended: left",
    "ended: stale",
    "ended: could not start",
    "ended: broken",
    "wrapped",
    "connected",
    "disconnected",
    "device revoked",
    "submit again",
    "cancel",
    "timeout",
    "relay starts",
    "stood still",
];

pub(super) fn started(broker: &Broker, mut count: impl FnMut(&'static str, &'static str)) {
    broker.all_attempts().for_each(|attempt| count(state(broker, attempt), "relay starts"));
}

pub(super) fn pairs(broker: &Broker, event: &Event, mut count: impl FnMut(&'static str, &'static str)) {
    match event {
        Event::From { device, message, .. } => from(broker, device, message, &mut count),
        Event::Connected { device, .. } => of_device(broker, device, |state| count(state, "connected")),
        Event::Disconnected { device, .. } => of_device(broker, device, |state| count(state, "disconnected")),
        Event::RevokeDevice { device, .. } => {
            of_device(broker, device, |state| count(state, "device revoked"))
        }
        Event::Submit { submit, .. } => {
            if let Some(attempt) = broker.newest(&submit.job) {
                count(state(broker, attempt), "submit again");
            }
        }
        Event::Cancel { job, .. } => {
            if let Some(attempt) = broker.newest(job) {
                count(state(broker, attempt), "cancel");
            }
        }
        Event::Timeout => broker.all_attempts().for_each(|attempt| count(state(broker, attempt), "timeout")),
        Event::StoodStill => broker.all_attempts().for_each(|a| count(state(broker, a), "stood still")),
        // Of the group, not of a job; their order is drawn in the broker's own random tests.
        Event::NewInvite { .. } | Event::Redeem { .. } | Event::RemoveMember { .. } => {}
    }
}

fn from(
    broker: &Broker,
    device: &DeviceId,
    message: &ToRelay,
    count: &mut impl FnMut(&'static str, &'static str),
) {
    let named = |attempt: &AttemptRef| {
        let known = broker.attempt(&attempt.job, attempt.token.attempt);
        known.filter(|known| known.named() == *attempt).map_or(UNKNOWN, |known| state(broker, known))
    };
    match message {
        ToRelay::Hello { .. } => of_device(broker, device, |state| count(state, "hello")),
        ToRelay::Offer { offer } => {
            let word = if offer.open { "offer, open" } else { "offer, closed" };
            of_device(broker, device, |state| count(state, word));
        }
        ToRelay::Renew { attempts, .. } => {
            attempts.iter().for_each(|attempt| count(named(attempt), "renew with it"));
            let others = broker.all_attempts().filter(|a| a.device == *device);
            let others = others.filter(|a| !attempts.contains(&a.named()));
            others.for_each(|attempt| count(state(broker, attempt), "renew without it"));
        }
        ToRelay::State { attempt, state, .. } => count(named(attempt), told(state)),
        ToRelay::Leaving { attempt } => count(named(attempt), "leaving"),
        ToRelay::ImageDigest { attempt, .. } => count(named(attempt), "digest"),
        ToRelay::Publish { attempt, .. } => count(named(attempt), "publish"),
        ToRelay::Ended { attempt, cause, .. } => count(named(attempt), ended(cause)),
        ToRelay::Wrapped { job, .. } => {
            if let Some(attempt) = broker.newest(job) {
                count(state(broker, attempt), "wrapped");
            }
        }
        // Neither decides anything.
        ToRelay::Log { .. } | ToRelay::Beat => {}
    }
}

fn of_device(broker: &Broker, device: &DeviceId, count: impl FnMut(&'static str)) {
    let there = broker.all_attempts().filter(|attempt| attempt.device == *device);
    there.map(|attempt| state(broker, attempt)).for_each(count);
}

pub(in crate::sim) fn state(broker: &Broker, attempt: &Attempt) -> &'static str {
    let newest = broker.newest(&attempt.job).is_some_and(|newest| newest.token == attempt.token);
    let job = broker.job_state(&attempt.job);
    let (is_final, waits) = (job.as_ref().is_some_and(|job| job.is_final()), broker.is_waiting(&attempt.job));
    match (&attempt.state, attempt.released) {
        (_, released) if is_final => {
            if released {
                "job final"
            } else {
                "job final, device has it"
            }
        }
        (AttemptState::Ended { .. }, released) if attempt.ahead => {
            if released {
                "older"
            } else {
                "older, device has it"
            }
        }
        _ if attempt.ahead => "ahead",
        (_, released) if !newest => {
            if released {
                "older"
            } else {
                "older, device has it"
            }
        }
        (AttemptState::Ended { .. }, _) => {
            if waits {
                "ended, job waits"
            } else {
                "ended, job held"
            }
        }
        _ if waits => "lapsed",
        (AttemptState::Reserved, _) => "reserved",
        (AttemptState::Preparing { .. }, _) => "preparing",
        (AttemptState::Ready, _) => "ready",
        (AttemptState::Running, _) => "running",
        (AttemptState::Stopped { .. }, _) => "stopped",
        (AttemptState::Saving, _) => "saving",
    }
}

fn told(state: &AttemptState) -> &'static str {
    match state {
        AttemptState::Reserved | AttemptState::Preparing { .. } => "state: preparing",
        AttemptState::Ready => "state: ready",
        AttemptState::Running => "state: running",
        AttemptState::Stopped { .. } => "state: stopped",
        AttemptState::Saving => "state: saving",
        AttemptState::Ended { .. } => "state: ended",
    }
}

fn ended(cause: &EndCause) -> &'static str {
    match cause {
        EndCause::Exited { code: 0 } => "ended: finished",
        EndCause::Exited { .. } | EndCause::Signalled { .. } => "ended: program failed",
        EndCause::MemoryLimit | EndCause::DiskLimit => "ended: limit",
        EndCause::Cancelled => "ended: cancelled",
        EndCause::Reclaimed => "ended: reclaimed",
        EndCause::Left => "ended: left",
        // Only the relay itself calls an attempt lost.
        EndCause::Lost | EndCause::Stale => "ended: stale",
        EndCause::CouldNotStart { .. } => "ended: could not start",
        EndCause::Broken { .. } => "ended: broken",
    }
}
