//! When shelves and logs are swept: at the start, now and then, and at once when somebody was refused
//! for want of room. What goes is `packs::sweep`'s to decide, by what the broker's records name.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gpunion_protocol::units::Bytes;
use tokio_util::sync::CancellationToken;

use crate::driver::Handle;
use crate::logs::Logs;
use crate::packs::{Graces, Packs, Sweeper, Swept};

/// Between two sweeps at least, however many uploads are refused.
const REST: Duration = Duration::from_secs(10);

pub(crate) struct Sweeping {
    handle: Handle,
    logs: Logs,
    packs: Arc<Packs>,
    sweeper: Arc<Mutex<Sweeper>>,
    every: Duration,
}

impl Sweeping {
    pub(crate) fn new(
        handle: Handle,
        logs: Logs,
        packs: Arc<Packs>,
        graces: Graces,
        every: Duration,
    ) -> Self {
        let sweeper = Arc::new(Mutex::new(Sweeper::new(Arc::clone(&packs), graces)));
        Self { handle, logs, packs, sweeper, every }
    }

    /// Runs until `stop`. A sweep that fails is tried again when the next one is due.
    pub(crate) async fn run(self, stop: CancellationToken) {
        loop {
            match self.sweep(&stop).await {
                Ok(swept) => self.tell(&swept),
                Err(_) if stop.is_cancelled() => return,
                Err(error) => tracing::warn!(error, "a sweep was given up; nothing that is needed went"),
            }
            let wanted = async { tokio::join!(self.packs.full.notified(), tokio::time::sleep(REST)) };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(self.every) => {}
                _ = wanted => {}
            }
        }
    }

    async fn sweep(&self, stop: &CancellationToken) -> Result<Swept, String> {
        // In this order: whoever counts on a file after `begun`, and is not among the roots, keeps it.
        let begun = self.packs.begins_to_sweep();
        let logs = self.logs.clone();
        let logged = tokio::task::spawn_blocking(move || logs.jobs()).await;
        let logged = logged.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
        let look = move |broker: &crate::broker::Broker| {
            let unknown: Vec<_> = logged.into_iter().filter(|job| !broker.knows(job)).collect();
            (broker.roots(), unknown)
        };
        let (roots, unknown) = self.handle.ask(look).await.map_err(|problem| problem.to_string())?;
        // A log that came into being after its job was forgotten.
        unknown.into_iter().for_each(|job| self.logs.forget(job));
        let (sweeper, stop) = (Arc::clone(&self.sweeper), stop.clone());
        let sweep = move || {
            let mut sweeper = sweeper.lock().unwrap_or_else(PoisonError::into_inner);
            sweeper.sweep(begun, roots, &stop)
        };
        let swept = tokio::task::spawn_blocking(sweep).await.map_err(|e| e.to_string())?;
        swept.map_err(|e| e.to_string())
    }

    fn tell(&self, swept: &Swept) {
        let Swept { snapshots, packs, bytes, parts, missing } = *swept;
        let totals = &self.packs.totals;
        totals.files.fetch_add(snapshots + packs, Ordering::Relaxed);
        totals.bytes.fetch_add(bytes, Ordering::Relaxed);
        if totals.missing.swap(missing, Ordering::Relaxed) != missing && missing > 0 {
            tracing::warn!(missing, "jobs name snapshots that are not here; was an older backup restored?");
        }
        if snapshots + packs + parts > 0 {
            let bytes = Bytes(bytes);
            tracing::info!(snapshots, packs, parts, %bytes, "swept what nothing needs any more");
        }
    }
}
