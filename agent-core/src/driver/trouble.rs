//! Which failures wait and which are final: the one place where errors of the engine and the
//! relay become the machine's troubles.

use gpunion_protocol::problem::{Code, Problem};

use crate::container::EngineError;
use crate::provider::event::Trouble;

pub(super) fn of_engine(error: EngineError) -> Trouble {
    if error.is_away() {
        Trouble::Away { why: error.to_string() }
    } else {
        Trouble::Refused { reason: error.to_string() }
    }
}

/// What the relay says no to stays no; what it could not do now may work later.
pub(super) fn of_problem(problem: Problem) -> Trouble {
    match problem.code {
        Code::RelayAway
        | Code::Busy
        | Code::DiskFull
        | Code::Internal
        | Code::NoGroup
        | Code::EngineAway
        | Code::AgentAway
        | Code::Unauthorized
        | Code::Unknown => Trouble::Away { why: problem.to_string() },
        Code::BadRequest
        | Code::BadSpec
        | Code::NotFound
        | Code::Forbidden
        | Code::InviteGone
        | Code::Stale
        | Code::KeyReused
        | Code::Conflict
        | Code::TooLarge
        | Code::Corrupt
        | Code::Missing
        | Code::Version
        | Code::Unsupported => Trouble::Refused { reason: problem.to_string() },
    }
}
