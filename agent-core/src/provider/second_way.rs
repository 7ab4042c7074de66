//! The second way's word on a guest whose init did not answer.

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::time::{BootMs, Now};

use super::Provider;
use super::effect::Effect;

impl Provider {
    pub(super) fn second_way_says(
        &mut self,
        name: &AttemptRef,
        killed: u32,
        stopped: Option<BootMs>,
        gone: bool,
        now: Now,
        out: &mut Vec<Effect>,
    ) {
        // One that had ended before it came was ended by somebody else.
        if killed > 0 {
            if let Some(attempt) = self.attempts.get_mut(name) {
                attempt.second_way = true;
            }
            self.reclaim_killed(name, killed, stopped);
        }
        if gone {
            self.guest_gone(name, false, now, out);
        }
    }
}
