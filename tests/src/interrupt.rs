//! Ctrl-C and SIGTERM, for programs that end engines, users and folders behind themselves: what
//! they do ends at its next step, and everything is dropped in order.

use std::future::Future;
use std::io::Write as _;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio_util::sync::CancellationToken;

static INTERRUPTED: LazyLock<CancellationToken> = LazyLock::new(CancellationToken::new);

/// A thread of its own waits for the signals, so that locks and files end in order. They are
/// caught, not blocked: what is started here would inherit a block, and what is left running on
/// purpose would never hear a SIGTERM. `program` is who says that it cleans up.
pub fn listen(program: &'static str) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let entered = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    drop(entered);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
        INTERRUPTED.cancel();
        let _ = writeln!(std::io::stderr(), "{program}: interrupted; cleaning up");
    });
    Ok(())
}

pub fn interrupted() -> bool {
    INTERRUPTED.is_cancelled()
}

/// Between two steps.
pub fn go_on() -> Result<()> {
    ensure!(!interrupted(), "interrupted");
    Ok(())
}

/// Lets time go by.
pub fn wait(time: Duration) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let interrupted = runtime.block_on(async { tokio::time::timeout(time, INTERRUPTED.cancelled()).await });
    ensure!(interrupted.is_err(), "interrupted");
    Ok(())
}

/// Drops what is under way.
pub async fn or_interrupted<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    INTERRUPTED.run_until_cancelled(work).await.context("interrupted")?
}
