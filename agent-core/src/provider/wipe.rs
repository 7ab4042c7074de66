//! Wipe: at the owner's word nothing stays here of guests that are gone.
//!
//! Guests that run, and results and last checkpoints that their jobs still wait for, are no leftovers. A
//! salvage is: it is there only because the owner allowed it, and ends now.

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::time::Now;

use super::Provider;
use super::effect::Effect;
use super::event::CallId;

impl Provider {
    pub(super) fn wipe(&mut self, call: CallId, now: Now, out: &mut Vec<Effect>) {
        let salvaged = self.attempts.values().filter(|attempt| attempt.is_salvaged());
        let salvaged: Vec<AttemptRef> = salvaged.map(|attempt| attempt.name().clone()).collect();
        for name in &salvaged {
            if let Some(attempt) = self.attempts.get_mut(name) {
                attempt.leave.give_up_now(now.boot);
            }
            self.last_on_time(name, now, out);
        }
        let salvages = u32::try_from(salvaged.len()).unwrap_or(u32::MAX);
        // Workspaces and folders of nobody on the books go with the list.
        if self.engine_known() {
            out.push(Effect::ListOurs);
        }
        out.push(Effect::Wipe { call, salvages });
    }
}
