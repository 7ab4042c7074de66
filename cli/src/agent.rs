//! Hosts the agent, in the foreground.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use gpunion_agent_core::agent::{Options, run};
use gpunion_agent_core::driver::Stop;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::args::{Agent, Place};
use crate::failure::Failure;

pub(crate) async fn agent(place: &Place, asked: Agent) -> Result<ExitCode, Failure> {
    let dirs = place.dirs()?;
    let settings = asked.settings(&dirs)?;
    trace();
    run(Options { dirs, settings }, leave_on_signal()?).await?;
    Ok(ExitCode::SUCCESS)
}

/// Ends on Ctrl-C, and on what a service manager sends.
pub(crate) fn stop_on_signal() -> Result<CancellationToken, Failure> {
    let mut signals = Signals::catch()?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        stopping.cancel();
    });
    Ok(stop)
}

/// The first gives guests time to leave, the second ends at once.
fn leave_on_signal() -> Result<Stop, Failure> {
    let mut signals = Signals::catch()?;
    let stop = Stop::default();
    let stopping = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        stopping.with_notice.cancel();
        signals.next().await;
        stopping.now.cancel();
    });
    Ok(stop)
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn catch() -> Result<Self, Failure> {
        let caught = |error: std::io::Error| Failure::failed(format!("signals can't be caught ({error})"));
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).map_err(caught)?,
            terminate: signal(SignalKind::terminate()).map_err(caught)?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// The log of agent and relay goes to stderr; `RUST_LOG` says how much.
pub(crate) fn trace() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .try_init();
    if let Err(error) = started {
        tracing::debug!(%error, "a log is being written already");
    }
}
