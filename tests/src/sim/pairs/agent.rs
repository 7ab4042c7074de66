//! States of an attempt on a provider's books, and kinds of events that come to it. An event that
//! names no attempt comes to all of them.

use gpunion_agent_core::provider::event::{Engine, Event, Found, Outcome, Trouble};
use gpunion_agent_core::provider::record::Phase;
use gpunion_agent_core::provider::{Attempt, Provider};
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::session::ToAgent;

/// It is not on the books.
pub(in crate::sim) const NONE: &str = "none";

pub(in crate::sim) const STATES: [&str; 19] = [
    NONE,
    "pull",
    "stage",
    "create",
    "start",
    "started, not told",
    "running",
    "pass one",
    "stopping",
    "pass two",
    "uploading",
    "publishing",
    "finishing, init lives",
    "finishing",
    "leaving, init lives",
    "leaving",
    "ending",
    "over, not told",
    "over, told",
];

pub(in crate::sim) const EVENTS: [&str; 45] = [
    "share on",
    "share off",
    "pause",
    "resume",
    "rules",
    "battery",
    "wipe",
    "reclaim",
    "reclaim by hand",
    "stopping",
    "link up",
    "link down",
    "group left",
    "assign",
    "go",
    "renewed, counts",
    "renewed, stale",
    "end",
    "published",
    "publish refused",
    "end seen",
    "engine known",
    "engine unknown",
    "found, runs",
    "found, does not run",
    "not found",
    "gpus",
    "done",
    "done: away",
    "done: refused",
    "done, given up before",
    "init: hello, begun",
    "init: hello, not begun",
    "init: started",
    "init: not started",
    "init: exited",
    "init: stopped",
    "init: some not stopped",
    "init: going on",
    "init: saved",
    "init: too much disk",
    "guest gone",
    "cannot begin",
    "timeout",
    "agent starts",
];

pub(super) fn pairs(agent: &Provider, event: &Event, mut count: impl FnMut(&'static str, &'static str)) {
    let mut at = |name: &AttemptRef, event| count(state(agent.attempt(name)), event);
    match event {
        Event::Done { attempt, op, outcome } => {
            let awaited = agent.attempt(attempt).is_some_and(|a| a.awaits(*op));
            at(attempt, done(awaited, outcome));
        }
        Event::Init { attempt, word, .. } => {
            if let Some(word) = init(word) {
                at(attempt, word);
            }
        }
        // The second way says of a guest what the kernel says, and whose doing it was.
        Event::GuestGone { attempt, .. } | Event::SecondWay { attempt, .. } => at(attempt, "guest gone"),
        Event::CannotBegin { attempt, .. } => at(attempt, "cannot begin"),
        // For people; it decides nothing.
        Event::Contacts { .. } | Event::Progress { .. } => {}
        Event::Relay(message) => relay(message, &mut at),
        Event::Found(inventory) => {
            let found = &inventory.containers;
            for attempt in agent.attempts() {
                count(state(Some(attempt)), found_as(attempt.name(), found));
            }
            for one in found.iter().filter(|one| agent.attempt(&one.attempt).is_none()) {
                count("none", found_as(&one.attempt, found));
            }
        }
        Event::Share { .. }
        | Event::Pause { .. }
        | Event::Rules { .. }
        | Event::Battery { .. }
        | Event::Wipe { .. }
        | Event::Reclaim { .. }
        | Event::ReclaimedByHand { .. }
        | Event::Stopping
        | Event::LinkUp { .. }
        | Event::LinkDown { .. }
        | Event::GroupLeft
        | Event::Engine(_)
        | Event::Gpus(_)
        | Event::Timeout => {
            let word = to_all(event);
            let mut none = true;
            for attempt in agent.attempts() {
                none = false;
                count(state(Some(attempt)), word);
            }
            if none {
                count("none", word);
            }
        }
    }
}

pub(super) fn started(agent: &Provider, mut count: impl FnMut(&'static str, &'static str)) {
    agent.attempts().for_each(|attempt| count(state(Some(attempt)), "agent starts"));
}

pub(in crate::sim) fn state(attempt: Option<&Attempt>) -> &'static str {
    let Some(attempt) = attempt else { return NONE };
    match &attempt.record.phase {
        Phase::Pull => "pull",
        Phase::Stage => "stage",
        Phase::Create => "create",
        Phase::Start if attempt.may_live() => "started, not told",
        Phase::Start => "start",
        Phase::Running => attempt.checkpoint_step().unwrap_or("running"),
        Phase::Finishing { .. } if attempt.may_live() => "finishing, init lives",
        Phase::Finishing { .. } => "finishing",
        Phase::Leaving { .. } if attempt.may_live() => "leaving, init lives",
        Phase::Leaving { .. } => "leaving",
        Phase::Ending { .. } => "ending",
        Phase::Over { told: false, .. } => "over, not told",
        Phase::Over { told: true, .. } => "over, told",
    }
}

fn to_all(event: &Event) -> &'static str {
    match event {
        Event::Share { request, .. } if request.on == Some(false) => "share off",
        Event::Share { .. } => "share on",
        Event::Pause { request, .. } if request.resume => "resume",
        Event::Pause { .. } => "pause",
        Event::Rules { .. } => "rules",
        Event::Battery { .. } => "battery",
        Event::Wipe { .. } => "wipe",
        Event::Reclaim { .. } => "reclaim",
        Event::ReclaimedByHand { .. } => "reclaim by hand",
        Event::Stopping => "stopping",
        Event::LinkUp { .. } => "link up",
        Event::LinkDown { .. } => "link down",
        Event::GroupLeft => "group left",
        Event::Engine(Engine::Known { .. }) => "engine known",
        Event::Engine(Engine::Unknown { .. }) => "engine unknown",
        Event::Gpus(_) => "gpus",
        Event::Timeout
        | Event::Relay(_)
        | Event::Found(_)
        | Event::Done { .. }
        | Event::Init { .. }
        | Event::GuestGone { .. }
        | Event::SecondWay { .. }
        | Event::CannotBegin { .. }
        | Event::Contacts { .. }
        | Event::Progress { .. } => "timeout",
    }
}

fn done(awaited: bool, outcome: &Result<Outcome, Trouble>) -> &'static str {
    match outcome {
        _ if !awaited => "done, given up before",
        Ok(_) => "done",
        Err(Trouble::Away { .. }) => "done: away",
        Err(Trouble::Refused { .. }) => "done: refused",
    }
}

pub(in crate::sim) fn init(word: &FromInit) -> Option<&'static str> {
    Some(match word {
        FromInit::Hello { begun: true, .. } => "init: hello, begun",
        FromInit::Hello { begun: false, .. } => "init: hello, not begun",
        FromInit::Started { .. } => "init: started",
        FromInit::NotStarted { .. } => "init: not started",
        FromInit::Exited(_) => "init: exited",
        FromInit::Stopped { running: 0, .. } => "init: stopped",
        FromInit::Stopped { .. } => "init: some not stopped",
        FromInit::GoingOn { .. } => "init: going on",
        FromInit::Saved { .. } => "init: saved",
        FromInit::Usage { .. } => "init: too much disk",
        // For people, or of guests with egress.
        FromInit::Pong { .. }
        | FromInit::Signalled { .. }
        | FromInit::DeadlinePassed
        | FromInit::Confused { .. } => return None,
    })
}

fn relay(message: &ToAgent, at: &mut impl FnMut(&AttemptRef, &'static str)) {
    match message {
        ToAgent::Assign(assignment) => at(&assignment.attempt, "assign"),
        ToAgent::Go { attempt, .. } => at(attempt, "go"),
        ToAgent::Renewed { counting, stale, .. } => {
            counting.iter().for_each(|attempt| at(attempt, "renewed, counts"));
            stale.iter().for_each(|attempt| at(attempt, "renewed, stale"));
        }
        ToAgent::End { attempt, .. } => at(attempt, "end"),
        ToAgent::Published { attempt, .. } => at(attempt, "published"),
        ToAgent::PublishRefused { attempt, .. } => at(attempt, "publish refused"),
        ToAgent::EndSeen { attempt } => at(attempt, "end seen"),
        // Not the machine's.
        ToAgent::Welcome { .. } | ToAgent::WrapFor { .. } | ToAgent::LogKept { .. } | ToAgent::Beat => {}
    }
}

pub(in crate::sim) fn found_as(name: &AttemptRef, found: &[Found]) -> &'static str {
    match found.iter().find(|one| one.attempt == *name).map(|one| one.process) {
        Some(Some(_)) => "found, runs",
        Some(None) => "found, does not run",
        None => "not found",
    }
}
