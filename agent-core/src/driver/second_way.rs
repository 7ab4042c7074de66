//! Telling a guest to end past its init's channel: by the file `end` and by the second way. Each on
//! a thread of its own, since a disk that hangs must not hold up the driver.

use std::time::Duration;

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::receipt::Way;
use gpunion_protocol::second_way::ToSecondWay;

use super::operations::Operations;
use crate::provider::event::Event;
use crate::second_way::{Kept, ask, keep};

/// Longer than the second way itself goes on trying.
const ANSWER: Duration = Duration::from_secs(4);

impl Operations {
    pub(super) fn keep_second_way(&self) {
        let kept = Kept {
            engine: self.fixed.engine.clone(),
            program: self.fixed.helper.clone(),
            folder: self.fixed.second_way.clone(),
            allowed: self.fixed.second_way_allowed,
        };
        tokio::spawn(keep(kept, self.lends.subscribe(), self.facts()));
    }

    /// While something is lent the second way stands ready.
    pub fn lends(&self, lends: bool) {
        self.lends.send_if_modified(|old| std::mem::replace(old, lends) != lends);
    }

    /// `container`: nothing has been started that could be ended when it is not known.
    pub fn second_way(&self, attempt: AttemptRef, container: Option<String>) {
        let Some(container) = container.filter(|_| self.fixed.second_way_allowed) else { return };
        let (folder, events) = (self.fixed.second_way.clone(), self.events.clone());
        self.tell(attempt, Way::SecondWay, move |attempt| {
            let question = ToSecondWay::End { containers: vec![container] };
            let told = match ask(&folder, &question, ANSWER) {
                Ok(told) => told,
                Err(error) => return tracing::warn!(%attempt, "the second way does not answer: {error}"),
            };
            for trouble in told.answer.guests.iter().filter_map(|guest| guest.trouble.as_ref()) {
                tracing::warn!(%attempt, "the second way: {trouble}");
            }
            let Some(guest) = told.answer.guests.first().filter(|guest| guest.found) else { return };
            let event = Event::SecondWay {
                attempt: attempt.clone(),
                killed: guest.killed,
                stopped: told.stopped(guest),
                gone: guest.ended_us.is_some(),
            };
            let _ = events.blocking_send(event);
        });
    }

    /// One at a time of each guest and way: what hangs is not asked again.
    pub(super) fn tell(
        &self,
        attempt: AttemptRef,
        way: Way,
        tell: impl FnOnce(&AttemptRef) + Send + 'static,
    ) {
        let name = (attempt, way);
        if !self.state().telling.insert(name.clone()) {
            return;
        }
        let this = self.clone();
        let thread = std::thread::Builder::new().name("end a guest".to_owned());
        let started = thread.spawn(move || {
            tell(&name.0);
            this.state().telling.remove(&name);
        });
        if let Err(error) = started {
            tracing::error!("no thread can be started to end a guest: {error}");
        }
    }
}
