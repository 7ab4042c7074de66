//! The door to the GPUs: the latest view for whoever wants it, ten minutes of history, and a
//! faster pace on request.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use gpunion_protocol::gpu::{GpuPoint, GpuSource, GpuView};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::time::BootMs;
use tokio::sync::watch;

use super::history::History;
use super::sampler::Sampler;

/// How long `open` waits for the driver's first word.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// All GPUs of this machine, watched by one thread for as long as this value lives.
#[derive(Debug)]
pub struct Gpus {
    view: watch::Receiver<GpuView>,
    history: Arc<Mutex<History>>,
    hurry: Hurry,
}

/// While one of these lives, GPUs are read ten times a second.
#[derive(Debug)]
pub struct FastPoll {
    hurry: Hurry,
}

/// How many want it fast, and a way to wake the thread.
#[derive(Debug, Clone)]
struct Hurry {
    wanted: Arc<AtomicU32>,
    wake: mpsc::SyncSender<()>,
}

impl Gpus {
    /// Starts watching. `library` takes the place of the driver's own `libnvidia-ml.so.1`.
    ///
    /// Blocks until the driver has spoken, at most five seconds. Never fails: without a driver
    /// the view says so in a sentence, and the driver is looked for again from time to time.
    pub fn open(library: Option<&Path>) -> Self {
        let starting = "The NVIDIA driver has not answered yet: CPU jobs can still be lent";
        let (publish, view) = watch::channel(GpuView::none(starting));
        let history = Arc::new(Mutex::new(History::default()));
        let wanted = Arc::new(AtomicU32::new(0));
        let (wake, woken) = mpsc::sync_channel(1);
        let (spoken, first_word) = mpsc::sync_channel(1);
        let sampler = Sampler {
            library: library.map(Path::to_owned),
            publish,
            history: Arc::clone(&history),
            wanted: Arc::clone(&wanted),
            woken,
            spoken: Some(spoken),
        };
        let thread = std::thread::Builder::new().name("gpus".to_owned());
        match thread.spawn(move || sampler.run()) {
            // A driver that hangs is told by the view; the thread goes on waiting for it.
            Ok(_) => drop(first_word.recv_timeout(FIRST_WORD)),
            Err(error) => tracing::error!(%error, "the thread that reads the GPUs can't be started"),
        }
        Self { view, history, hurry: Hurry { wanted, wake } }
    }

    /// The latest view; figures that have got too old are called unknown.
    pub fn view(&self) -> GpuView {
        self.view.borrow().clone().aged(boot_now())
    }

    /// For waiting on the next view. Pass what it holds through `GpuView::aged` before showing it.
    pub fn subscribe(&self) -> watch::Receiver<GpuView> {
        self.view.clone()
    }

    /// The sentence to show when there are no GPUs.
    pub fn absent(&self) -> Option<String> {
        match &self.view.borrow().source {
            GpuSource::None { sentence } => Some(sentence.clone()),
            GpuSource::Ready { .. } => None,
        }
    }

    /// Reads ten times a second until the value is dropped: for a reclaim under way.
    pub fn fast_poll(&self) -> FastPoll {
        self.hurry.wanted.fetch_add(1, Ordering::SeqCst);
        // A full channel means that it is being woken already.
        let _ = self.hurry.wake.try_send(());
        FastPoll { hurry: self.hurry.clone() }
    }

    /// At most ten minutes, a point a second, oldest first.
    pub fn history(&self, uuid: &GpuUuid) -> Vec<GpuPoint> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).of(uuid)
    }
}

impl Drop for FastPoll {
    fn drop(&mut self) {
        self.hurry.wanted.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Boot time now.
pub(super) fn boot_now() -> BootMs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let millis = time.tv_sec.saturating_mul(1_000).saturating_add(time.tv_nsec / 1_000_000);
    BootMs(u64::try_from(millis).unwrap_or(0))
}
