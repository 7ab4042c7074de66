//! How far a transfer is, told to whoever watches; never waits for a slow reader.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gpunion_protocol::local::SubmitProgress;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A face can't show more.
const EVERY: Duration = Duration::from_millis(100);

/// Bytes per second since the beginning, and what is left at that pace.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    began: Instant,
    told: Option<Instant>,
}

impl Pace {
    pub(super) fn start() -> Self {
        Self { began: Instant::now(), told: None }
    }

    /// True at most once in `EVERY`.
    pub(super) fn due(&mut self) -> bool {
        let due = self.told.is_none_or(|told| told.elapsed() >= EVERY);
        if due {
            self.told = Some(Instant::now());
        }
        due
    }

    pub(super) fn of(&self, done: u64, total: u64) -> (u64, Option<u64>) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = done.saturating_mul(1_000) / millis;
        let left = total.saturating_sub(done).saturating_mul(1_000).checked_div(rate);
        (rate, left)
    }
}

/// The progress of one submit.
#[derive(Clone)]
pub(super) struct Meter {
    tell: mpsc::Sender<SubmitProgress>,
    state: Arc<Mutex<State>>,
}

struct State {
    total: u64,
    read: u64,
    files: u64,
    sent: u64,
    pace: Pace,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meter")
    }
}

impl Meter {
    /// `total`: bytes of all that will be read, before what is known is left out.
    pub(super) fn new(tell: mpsc::Sender<SubmitProgress>, total: u64) -> Self {
        let state = State { total, read: 0, files: 0, sent: 0, pace: Pace::start() };
        Self { tell, state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn read(&self, bytes: u64, files: u64) {
        let mut state = self.state();
        state.read += bytes;
        state.files += files;
        self.tell(&mut state);
    }

    pub(super) fn sent(&self, bytes: u64) {
        let mut state = self.state();
        state.sent += bytes;
        self.tell(&mut state);
    }

    pub(super) fn image(&self, bytes: u64, total: Option<u64>) {
        let mut state = self.state();
        if state.pace.due() {
            let _ = self.tell.try_send(SubmitProgress::Image { bytes, total });
        }
    }

    pub(super) fn sent_so_far(&self) -> u64 {
        self.state().sent
    }

    /// Until the first byte leaves it reads; then what is still to be read may all have to travel.
    fn tell(&self, state: &mut State) {
        if !state.pace.due() {
            return;
        }
        let State { total, read, files, sent, pace } = *state;
        let progress = if sent == 0 {
            SubmitProgress::Reading { files, bytes: read, total: total.max(read) }
        } else {
            let total = sent + total.saturating_sub(read);
            let (rate, left_ms) = pace.of(sent, total);
            SubmitProgress::Sending { sent, total, files, rate, left_ms }
        };
        let _ = self.tell.try_send(progress);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
