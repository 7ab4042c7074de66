//! The pause: the owner lends nothing for a while, and then again what was lent before.
//!
//! It lies over the wishes and changes none of them, so whatever ends it gives back exactly what the
//! owner had lent; a reclaim, or `share off`, beneath it stays. It ends by itself only where the
//! owner named an end, and never because a clock was set: a length stays a length.

use gpunion_protocol::local::{PauseRequest, Wish};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::time::{Now, WallMs};

use super::Provider;
use super::effect::Effect;
use super::event::CallId;
use super::record::Pause;

/// Milliseconds that the two clocks may drift apart between two events without having been set.
const SET: i64 = 1_000;

impl Pause {
    pub(super) fn is_over(&self, now: Now) -> bool {
        self.until.is_some_and(|until| until <= now.wall)
    }
}

impl Provider {
    pub(super) fn pause(&mut self, call: CallId, request: PauseRequest, now: Now, out: &mut Vec<Effect>) {
        let answer = match self.paused_as(&request, now) {
            Err(problem) => Err(problem),
            Ok(paused) => {
                self.wish.paused = paused;
                self.save_wish();
                self.whoever_must_leaves(now, out);
                Ok(self.share_status())
            }
        };
        out.push(Effect::ShareAnswer { call, answer });
    }

    fn paused_as(&self, request: &PauseRequest, now: Now) -> Result<Option<Pause>, Problem> {
        let bad = |title: &str, fix: &str| Problem::new(Code::BadRequest, title).with_detail(fix.to_owned());
        match (request.resume, request.length, request.until) {
            (true, None, None) => return Ok(None),
            (true, ..) => {
                return Err(bad("To resume takes no time", "Resume now, or name the end of a pause"));
            }
            (false, Some(_), Some(_)) => {
                return Err(bad("A pause has one end", "Give its length or its end, not both"));
            }
            (false, ..) => {}
        }
        if !self.lends_beneath() {
            let problem = Problem::new(Code::Conflict, "Nothing is lent, so there is nothing to pause");
            return Err(problem.with_detail("`gpunion share on` lends this machine"));
        }
        let (until, measured) = match (request.length, request.until) {
            (Some(length), _) => {
                let length = i64::try_from(length.0.0).unwrap_or(i64::MAX);
                (Some(WallMs(now.wall.0.saturating_add(length))), true)
            }
            (None, until) => (until, false),
        };
        if until.is_some_and(|until| until <= now.wall) {
            return Err(bad("The end of that pause is over already", "Name a later one, such as --for 1h"));
        }
        Ok(Some(Pause { until, measured }))
    }

    /// Some wish lends, paused or not.
    fn lends_beneath(&self) -> bool {
        let mut wishes = std::iter::once(&self.wish.machine).chain(self.wish.gpus.values());
        wishes.any(|wish| matches!(wish, Wish::Sharing { .. }))
    }

    /// What is not lent any more is not paused either: what the owner lends later is lent.
    pub(super) fn forget_an_idle_pause(&mut self) {
        if !self.lends_beneath() {
            self.wish.paused = None;
        }
    }

    pub(super) fn under_pause(&self, wish: Wish) -> Wish {
        match (wish, self.wish.paused) {
            (Wish::Sharing { .. }, Some(pause)) => Wish::PausedUntil { until: pause.until },
            (Wish::Sharing { .. } | Wish::NotSharing | Wish::PausedUntil { .. }, _) => wish,
        }
    }

    /// The machine's wish and those of single GPUs, as they are now.
    pub(super) fn wishes_now(&self) -> impl Iterator<Item = Wish> {
        let wishes = std::iter::once(&self.wish.machine).chain(self.wish.gpus.values());
        wishes.map(|wish| self.under_pause(*wish))
    }

    /// Wall milliseconds.
    pub(super) fn pause_ends(&self) -> Option<i64> {
        Some(self.wish.paused?.until?.0)
    }

    /// A clock on the wall that was set moves the end of a pause that was given as a length. (While
    /// no agent runs nobody sees that it is set.)
    pub(super) fn follow_the_clock(&mut self, now: Now) {
        let seen = std::mem::replace(&mut self.seen, now);
        let passed = i64::try_from((now.boot - seen.boot).0).unwrap_or(i64::MAX);
        let set = now.wall.0.saturating_sub(seen.wall.0).saturating_sub(passed);
        let Some(Pause { until: Some(until), measured: true }) = &mut self.wish.paused else { return };
        if set.abs() >= SET {
            until.0 = until.0.saturating_add(set);
            self.save_wish();
        }
    }
}
