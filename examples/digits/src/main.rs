//! `digits`: learns to read handwritten digits, and loses nothing when it is interrupted.
//!
//! A whole job for GPUnion in one static program: it saves after each epoch and on SIGTERM, says
//! so where somebody listens, and goes on from there with the same bits. It knows the workspace
//! (the folder it is started in) and nothing else.
//!
//! Environment: EPOCHS (20), EPOCH_SECONDS (0: as fast as it goes), HOLD_MIB (256; of a stand-in
//! GPU), GPU_STANDIN_DIR, GPUNION_RUN_DIR (where the two are looked for; for tests).

mod checkpoint;
mod data;
mod guest;
mod network;
mod progress;
mod rng;
mod standin;
mod train;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use guest::Guest;
use progress::Progress;
use train::Step;

/// What a shell reports for a program that SIGTERM ended.
const ENDED_BY_SIGTERM: u8 = 128 + 15;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        [] => run(),
        ["hold", device, mib] => hold(device, mib),
        _ => Err("usage: digits (in a folder with dataset/digits.csv)".to_owned()),
    };
    outcome.unwrap_or_else(|error| {
        progress::complain(&error);
        ExitCode::FAILURE
    })
}

fn hold(device: &str, mib: &str) -> Result<ExitCode, String> {
    let mib = mib.parse().map_err(|e| format!("\"{mib}\" is no number of MiB: {e}"))?;
    standin::be_child(Path::new(device), mib)?;
    Ok(ExitCode::SUCCESS)
}

fn run() -> Result<ExitCode, String> {
    let epochs: u32 = setting("EPOCHS", 20)?;
    let epoch_seconds: f64 = setting("EPOCH_SECONDS", 0.0)?;
    let hold_mib: u64 = setting("HOLD_MIB", standin::HOLD_MIB)?;
    let workspace = Path::new(".");
    let digits = data::Digits::read(Path::new("dataset/digits.csv"))?;
    let pause = Duration::try_from_secs_f64(epoch_seconds / train::batches(&digits) as f64)
        .map_err(|e| format!("EPOCH_SECONDS={epoch_seconds}: {e}"))?;

    let held = standin::hold_everywhere(&folder("GPU_STANDIN_DIR", "/dev/gpunion-standin"), hold_mib)?;
    let guest = Guest::listen(folder("GPUNION_RUN_DIR", "/run/gpunion"))?;
    let mut progress = Progress::new(epochs);
    if let Some(line) = held.describe(hold_mib) {
        progress.line(&line);
    }
    let mut state = train::start(workspace, &digits)?;
    progress.start(&state, digits.train.len());

    let stopped = train::train(&mut state, &digits, epochs, workspace, |state, step| match step {
        Step::Epoch { epoch, loss, held_out } => {
            progress.epoch(epoch, loss, held_out);
            tell_saved(&guest, &mut progress);
            Ok(None)
        }
        Step::Batch { epoch, batch, batches } => {
            progress.batch(epoch, batch, batches);
            if !guest.pause(pause)? {
                return Ok(None);
            }
            state.save(&workspace.join(train::CHECKPOINT))?;
            progress.line(&format!("SIGTERM: saved in epoch {epoch}, after batch {batch}"));
            tell_saved(&guest, &mut progress);
            Ok((!guest.is_hosted()).then_some(ExitCode::from(ENDED_BY_SIGTERM)))
        }
    })?;
    if let Some(code) = stopped {
        return Ok(code);
    }
    train::write_result(&state, &digits, workspace)?;
    progress.done(train::accuracy(&state, &digits), digits.held_out.len());
    Ok(ExitCode::SUCCESS)
}

/// Not being able to say "saved" costs time when the job must leave, but no work: it goes on.
fn tell_saved(guest: &Guest, progress: &mut Progress) {
    if let Err(error) = guest.say_saved() {
        progress.line(&error);
    }
}

fn folder(name: &str, otherwise: &str) -> PathBuf {
    std::env::var_os(name).map_or_else(|| PathBuf::from(otherwise), PathBuf::from)
}

fn setting<T: FromStr>(name: &str, otherwise: T) -> Result<T, String> {
    match std::env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name}=\"{text}\" is not a number it takes")),
        Err(std::env::VarError::NotPresent) => Ok(otherwise),
        Err(std::env::VarError::NotUnicode(_)) => Err(format!("{name} is not a number")),
    }
}
