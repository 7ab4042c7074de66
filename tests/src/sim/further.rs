//! When a job may be held for getting no further, and when it must be: by the attempts since its
//! last checkpoint, as the relay's disk has them.

use std::collections::BTreeMap;

use gpunion_protocol::ids::Token;
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_relay::broker::record::Attempt;

const MOST: usize = 4;

/// Never before four attempts without a checkpoint. What else holds a job names itself.
pub(super) fn may_be_held(
    attempts: &BTreeMap<Token, Attempt>,
    tip: Option<Token>,
    why: &str,
) -> Result<(), String> {
    let finished = AttemptState::Ended { cause: EndCause::Exited { code: 0 } };
    let tried = if why.starts_with("No device that is left has its key") {
        MOST
    } else if why.ends_with("could not save the workspace") {
        attempts.values().filter(|attempt| attempt.state == finished).count()
    } else {
        since(attempts, tip).count()
    };
    if tried < MOST { Err(format!("held after {tried} attempts: {why}")) } else { Ok(()) }
}

/// Four that ran, saved nothing and lost their provider are enough: no fifth is placed.
pub(super) fn may_be_placed(attempts: &BTreeMap<Token, Attempt>, tip: Option<Token>) -> Result<(), String> {
    let fruitless =
        since(attempts, tip).filter(|a| a.ran && a.published.is_empty() && went(&a.state)).count();
    if fruitless < MOST { Ok(()) } else { Err(format!("{fruitless} before it ran and saved nothing")) }
}

fn since(attempts: &BTreeMap<Token, Attempt>, tip: Option<Token>) -> impl Iterator<Item = &Attempt> {
    attempts.iter().filter(move |(token, _)| tip.is_none_or(|tip| **token > tip)).map(|(_, attempt)| attempt)
}

fn went(state: &AttemptState) -> bool {
    match state {
        AttemptState::Ended { cause } => match cause {
            EndCause::Reclaimed | EndCause::Left | EndCause::Lost => true,
            EndCause::Exited { .. }
            | EndCause::Signalled { .. }
            | EndCause::MemoryLimit
            | EndCause::DiskLimit
            | EndCause::Cancelled
            | EndCause::Stale
            | EndCause::CouldNotStart { .. }
            | EndCause::Broken { .. } => false,
        },
        AttemptState::Reserved
        | AttemptState::Preparing { .. }
        | AttemptState::Ready
        | AttemptState::Running
        | AttemptState::Stopped { .. }
        | AttemptState::Saving => false,
    }
}
