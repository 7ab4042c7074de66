//! The boundaries of the agent's driver by name, for the crash points of tests.

pub(super) use crash_points::before;
use crash_points::variant;

use crate::provider::effect::{Effect, Word};
use crate::provider::event::Event;

/// An effect by its kind, and the kind of what it carries where it carries different things.
pub(super) fn effect(effect: &Effect) -> String {
    if let Effect::ToRelay(message) = effect {
        return format!("ToRelay {}", variant(message));
    }
    if let Effect::Do { what, .. } = effect {
        return format!("Do {}", variant(what));
    }
    if let Effect::Say { word: Word::Plain(word), .. } = effect {
        return format!("Say {}", variant(word));
    }
    if let Effect::Say { word, .. } = effect {
        return format!("Say {}", variant(word));
    }
    variant(effect)
}

/// What an operation did or init said is done; nothing of it is on the books yet.
pub(super) fn event(event: &Event) -> String {
    if let Event::Done { outcome: Ok(outcome), .. } = event {
        return format!("Done {}", variant(outcome));
    }
    if let Event::Init { word, .. } = event {
        return format!("Init {}", variant(word));
    }
    if let Event::Relay(message) = event {
        return format!("Relay {}", variant(message));
    }
    variant(event)
}
