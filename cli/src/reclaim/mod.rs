//! `gpunion reclaim`: asks the agent, and does it without one when none answers at once.
//!
//! Without an agent it needs nothing but this machine: a file in each guest's control mount makes
//! its init end it, the second way ends those whose init does not answer, and the GPU's own answer
//! says whether it is free. It must wait for no disk, engine or relay.

mod gpus;
mod guests;
pub(crate) mod hand;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::StreamExt as _;
use gpunion_agent_core::config::{Dirs, Settings, clock};
use gpunion_agent_core::provider::word::Wanted;
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::local::ReclaimRequest;
use gpunion_protocol::problem::Code;
use gpunion_protocol::receipt::{How, Receipt};
use gpunion_protocol::time::{BootMs, WallMs};
use reqwest::Method;

use crate::api::{Api, PROMPT};
use crate::args::{Place, Reclaim};
use crate::failure::{Failure, NOT_VERIFIED, UNREACHABLE};
use crate::out::Out;
use crate::show;
use guests::{Facts, Guests};
use hand::{Hand, Write};

/// An agent that took the call has so long for its receipt, and says until then that it is there.
const RECEIPT: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(1);
/// What the owner wants lasts only once it is on a disk; one that hangs is not waited for.
const WORD: Duration = Duration::from_secs(1);

pub(crate) async fn reclaim(place: &Place, asked: Reclaim, out: &Out) -> Result<ExitCode, Failure> {
    let clicked = Click { boot: clock::boot(), wall: clock::wall() };
    let api = Api::new(place)?;
    let gpu = asked.gpu.clone().map(GpuUuid);
    let receipt = match ask(&api, &ReclaimRequest { gpu: gpu.clone() }).await {
        Ok(receipt) => receipt,
        Err(Asked::Refused(failure)) => return Err(failure),
        Err(Asked::Silent) => {
            let dirs = api.dirs().clone();
            if !dirs.data.is_dir() {
                return Err(Failure::usage(format!(
                    "there is no data folder of an agent at {}",
                    dirs.data.display()
                ))
                .fix("name the agent's data folder with --data"));
            }
            let library =
                asked.nvml_library.or_else(|| Settings::load(&dirs).ok().and_then(|s| s.nvml_library));
            alone(&dirs, gpu, library, clicked).await?
        }
    };
    out.answer(&receipt, show::receipt)?;
    Ok(if receipt.verified { ExitCode::SUCCESS } else { ExitCode::from(NOT_VERIFIED) })
}

enum Asked {
    /// Nobody acts on it.
    Silent,
    Refused(Failure),
}

/// The agent's answer begins as soon as it acts; the receipt ends it.
async fn ask(api: &Api, request: &ReclaimRequest) -> Result<Receipt, Asked> {
    let sent = tokio::time::timeout(PROMPT, api.send(Method::POST, "/v1/reclaim", Some(request))).await;
    let response = match sent {
        Ok(Ok(response)) => response,
        // Its answer is about the request: acting alone would not find that GPU either.
        Ok(Err(failure)) if failure.problem.code == Code::NotFound => return Err(Asked::Refused(failure)),
        Ok(Err(failure)) if failure.exit == UNREACHABLE || failure.exit == 1 => return Err(Asked::Silent),
        Ok(Err(failure)) => return Err(Asked::Refused(failure)),
        Err(_) => return Err(Asked::Silent),
    };
    let mut pieces = response.bytes_stream();
    let whole = async {
        let mut bytes = Vec::new();
        while let Some(piece) =
            tokio::time::timeout(SILENCE, pieces.next()).await.map_err(|_| Asked::Silent)?
        {
            bytes.extend_from_slice(&piece.map_err(|_| Asked::Silent)?);
        }
        Ok(bytes)
    };
    let bytes = tokio::time::timeout(RECEIPT, whole).await.map_err(|_| Asked::Silent)??;
    serde_json::from_slice(&bytes).map_err(|_| Asked::Silent)
}

#[derive(Clone, Copy)]
struct Click {
    boot: BootMs,
    wall: WallMs,
}

impl Click {
    fn ms(self) -> u64 {
        (clock::boot() - self.boot).0
    }

    fn since(self) -> Duration {
        Duration::from_millis(self.ms())
    }

    fn after(self, wait: Duration) -> tokio::time::Instant {
        tokio::time::Instant::now() + wait.saturating_sub(self.since())
    }
}

async fn alone(
    dirs: &Dirs,
    gpu: Option<GpuUuid>,
    library: Option<PathBuf>,
    click: Click,
) -> Result<Receipt, Failure> {
    let (folder, only) = (dirs.guests(), gpu.clone());
    // What the driver needs for a glance is time enough to count.
    let find = tokio::task::spawn_blocking(move || Guests::find(&folder, only.as_ref()));
    let (at_click, found) = tokio::join!(gpus::glance(library.clone()), find);
    let mut guests = found.map_err(|error| Failure::failed(error.to_string()))?;
    let controls = guests.controls();
    let mut writes: Vec<Write> = controls.iter().cloned().map(Write::End).collect();
    // A slip of the pen is nobody's wish; where the driver tells nothing it may be none.
    let is_here = |gpu: &GpuUuid| {
        at_click.is_empty()
            || at_click.iter().any(|sample| sample.uuid == *gpu)
            || guests.known.iter().any(|guest| guest.facts.gpus.contains(gpu))
    };
    let wish = gpu.as_ref().is_none_or(is_here);
    if wish {
        // Written after the guests were told: the stop waits for no disk.
        let wanted = Wanted::of(gpu.as_ref());
        writes.push(Write::Word { path: dirs.reclaimed(), wanted, at: click.wall });
    }
    let mut hand = Hand::begin(&writes);
    guests.end(&dirs.second_way(), gpu.is_none(), click).await;
    let (ended, receipts) = (guests.all_ended(), guests.receipts());
    let last = |at: Vec<Option<u64>>| at.into_iter().try_fold(0, |last, at| at.map(|at| last.max(at)));
    let (stopped_ms, ended_ms) = match (ended, receipts.is_empty()) {
        (true, true) => (Some(click.ms()), Some(click.ms())),
        (true, false) => (
            last(receipts.iter().map(|guest| guest.stopped_ms).collect()),
            last(receipts.iter().map(|guest| guest.ended_ms).collect()),
        ),
        (false, _) => (None, None),
    };
    let facts: Vec<Facts> = guests.known.iter().map(|guest| guest.facts.clone()).collect();
    let checked = tokio::task::spawn_blocking(move || {
        gpus::check(&facts, gpu.as_ref(), library.as_deref(), ended, &at_click)
    });
    let checked = checked.await.map_err(|error| Failure::failed(error.to_string()))?;
    let verified_ms = checked.how.map(|_| click.ms());
    // The disk had all that time; the owner waits for no more of it.
    let written = hand.answers(controls.len(), click.after(WORD)).await;
    guests.complain_of_files(&written);
    let word = hand.answers(usize::from(wish), click.after(WORD)).await;
    let wish_saved = word.first().is_some_and(|word| matches!(word, Some(Ok(()))));

    let mut troubles = vec!["no agent answered, so this command acted by itself".to_owned()];
    troubles.append(&mut guests.troubles);
    if wish && !wish_saved {
        troubles.push(
            "the wish not to share could not be written to disk; an agent that starts may lend again"
                .to_owned(),
        );
    }
    troubles.extend(checked.troubles);
    Ok(Receipt {
        at: click.wall,
        gpus: checked.gpus,
        guests: receipts,
        stopped_ms,
        ended_ms,
        verified_ms,
        verified: checked.how.is_some(),
        how: checked.how.unwrap_or(How::NotVerified),
        troubles,
        wish_saved,
    })
}
