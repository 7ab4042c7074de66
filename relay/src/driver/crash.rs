//! The boundaries of the relay's driver by name, for the crash points of tests.

pub(super) use crash_points::before;
use crash_points::variant;

use crate::broker::Effect;

/// An effect by its kind, and the kind of what it carries where it carries different things.
pub(super) fn effect(effect: &Effect) -> String {
    if let Effect::Send { message, .. } = effect {
        return format!("Send {}", variant(message));
    }
    if let Effect::Reply { result: Ok(reply), .. } = effect {
        return format!("Reply {}", variant(reply));
    }
    if let Effect::Announce { event, .. } = effect {
        return format!("Announce {}", variant(event));
    }
    variant(effect)
}
