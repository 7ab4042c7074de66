//! Progress to the agent, a few times a second and not once a chunk.

use rustix::time::{ClockId, clock_gettime};

const EVERY_MS: i64 = 250;

#[derive(Default)]
pub(crate) struct Throttle {
    /// Milliseconds of the monotonic clock at the last word.
    last: Option<i64>,
}

impl Throttle {
    pub(crate) fn lets(&mut self) -> bool {
        let now = clock_gettime(ClockId::Monotonic);
        let now = now.tv_sec * 1000 + now.tv_nsec / 1_000_000;
        if self.last.is_some_and(|last| now - last < EVERY_MS) {
            return false;
        }
        self.last = Some(now);
        true
    }
}
