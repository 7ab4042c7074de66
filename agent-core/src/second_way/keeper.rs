//! Keeps the second way there while the machine lends, and takes it away when it lends no more.
//!
//! It is started beforehand, since the day it is needed the engine may not answer. One that runs
//! and listens is never touched; one that an earlier run of the agent started is taken over.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::second_way::ToSecondWay;
use tokio::sync::watch;

use super::cgroups::Cgroups;
use super::talk::ask;
use crate::container::{Engine, EngineError, EngineFacts, SecondWayPlan};

/// How often it is asked for a sign of life, and how soon after one that failed.
const WELL: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(3);
/// A sign of life takes less than a millisecond; on a busy machine more.
const SIGN: Duration = Duration::from_millis(500);
/// From its start to its first sign of life.
const START: Duration = Duration::from_secs(10);

/// What is kept, and where.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub engine: Engine,
    pub program: PathBuf,
    pub folder: PathBuf,
    /// False: the owner has turned it off.
    pub allowed: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Stand {
    Unknown,
    Runs,
    Gone,
}

pub(crate) async fn keep(
    kept: Kept,
    mut lends: watch::Receiver<bool>,
    mut facts: watch::Receiver<Option<EngineFacts>>,
) {
    let mut stand = Stand::Unknown;
    let mut told = None;
    loop {
        let wanted = *lends.borrow_and_update() && kept.allowed;
        let known = facts.borrow_and_update().clone();
        let wait = match tend(&kept, wanted, known.as_ref(), &mut stand).await {
            Ok(()) => {
                told = None;
                WELL
            }
            Err(error) => {
                let why = error.to_string();
                if told.as_ref() != Some(&why) {
                    tracing::warn!("the second way to end guests is not there: {why}");
                    told = Some(why);
                }
                AGAIN
            }
        };
        let changed = tokio::select! {
            changed = lends.changed() => changed,
            changed = facts.changed(), if known.is_none() => changed,
            () = tokio::time::sleep(wait) => Ok(()),
        };
        if changed.is_err() {
            return;
        }
    }
}

async fn tend(
    kept: &Kept,
    wanted: bool,
    facts: Option<&EngineFacts>,
    stand: &mut Stand,
) -> Result<(), EngineError> {
    if !wanted {
        if *stand != Stand::Gone && facts.is_some() {
            kept.engine.remove_second_way().await?;
            *stand = Stand::Gone;
        }
        return Ok(());
    }
    // What listens is well, whatever the engine does.
    if *stand == Stand::Runs && listens(&kept.folder).await {
        return Ok(());
    }
    *stand = Stand::Unknown;
    let Some(facts) = facts else { return Ok(()) };
    let cgroups = cgroups_with(kept.engine.device(), facts);
    const DOING: &str = "starting the second way";
    open_folder(&kept.folder)
        .map_err(|e| EngineError::refused(DOING, format!("{}: {e}", kept.folder.display())))?;
    let image = kept.engine.helper_image(&kept.program).await?;
    let owner = rustix::process::geteuid().as_raw();
    let plan = SecondWayPlan { cgroups, talk: kept.folder.clone(), owner };
    let ours = kept.engine.has_second_way(&image, &plan).await?;
    if !ours || !listens(&kept.folder).await {
        kept.engine.start_second_way(&image, &plan).await?;
        let ready = async {
            while !listens(&kept.folder).await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(START, ready).await.is_err() {
            return Err(EngineError::away(DOING, "it runs and does not listen"));
        }
        tracing::info!(rights = ?plan.cgroups.rights(), "the second way to end guests is ready");
    }
    *stand = Stand::Runs;
    Ok(())
}

async fn listens(folder: &Path) -> bool {
    let folder = folder.to_owned();
    let sign = move || ask(&folder, &ToSecondWay::End { containers: Vec::new() }, SIGN).is_ok();
    tokio::task::spawn_blocking(sign).await.unwrap_or(false)
}

/// It has no capability, so it writes there as anybody may; the folder above is the owner's alone.
fn open_folder(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777))
}

/// Where guests are with this engine, on the kernel that runs.
pub fn cgroups_with(device: &DeviceId, facts: &EngineFacts) -> Cgroups {
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    Cgroups::of(device, facts.cgroup_driver, facts.cgroup_version, &kernel)
}
