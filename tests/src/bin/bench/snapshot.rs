//! CPU seconds of a snapshot of 2 GiB that compresses in no way and was never seen, against
//! restic on the same files. Caches are dropped before each; both write what they make to disk.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use gpunion_agent_core::config::past_cache;
use gpunion_snapshot::{
    ChunkIndex, ChunkKey, FolderSnapshot, JobKey, SealedPack, SystemRandomness, WalkOptions, Watch, Writer,
    open_root,
};
use nix::sys::resource::{UsageWho, getrusage};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use system_tests::interrupt::go_on;

use crate::on_disk;
use crate::table::{Table, median};

const FILES: u64 = 16;
const FILE: usize = 128 << 20;
const ROUNDS: u64 = 3;

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let disk = on_disk()?;
    let dir = disk.dir();
    let folder = dir.join("data");
    write_random(&folder)?;
    let (mut ours, mut restics) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        go_on()?;
        let to = dir.join(format!("packs-{round}"));
        fs::create_dir(&to)?;
        drop_caches()?;
        let me = std::env::current_exe()?;
        ours.push(cpu_of(Command::new(me).arg("snapshot-process").arg(&folder).arg(&to))?);
        fs::remove_dir_all(&to)?;

        let repository = dir.join(format!("restic-{round}"));
        cpu_of(restic(dir, &repository).arg("init"))?;
        drop_caches()?;
        restics.push(cpu_of(restic(dir, &repository).args(["backup", "--quiet"]).arg(&folder))?);
        fs::remove_dir_all(&repository)?;
    }
    let against = format!("restic, {:.2} CPU seconds (p50)", median(&restics));
    table.aimed("snapshot_cpu", median(&ours) / median(&restics), "x", &against, 0.5);
    table.told("snapshot_of_2GiB", median(&ours), "CPU seconds", "random, cold");
    Ok(())
}

fn write_random(folder: &Path) -> Result<()> {
    fs::create_dir(folder)?;
    let mut bytes = vec![0; FILE];
    for n in 0..FILES {
        go_on()?;
        ChaCha20Rng::seed_from_u64(n).fill_bytes(&mut bytes);
        let mut file = File::create(folder.join(format!("{n}.bin")))?;
        file.write_all(&bytes)?;
        file.sync_all()?;
    }
    Ok(())
}

fn restic(dir: &Path, repository: &Path) -> Command {
    let mut command = Command::new("restic");
    command.env("RESTIC_PASSWORD", "bench").env("HOME", dir).arg("--repo").arg(repository);
    command.arg("--no-cache");
    command
}

fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the page cache takes root")
}

/// User and system seconds of a command and all that it started.
fn cpu_of(command: &mut Command) -> Result<f64> {
    let used = || -> Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
        Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
    };
    let before = used()?;
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("starting {}", command.get_program().display()))?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(used()? - before)
}

/// The process that is measured: what the agent's workspace program does, packs kept as files.
pub(crate) fn take(folder: &Path, packs: &Path) -> Result<()> {
    let packs: PathBuf = packs.to_owned();
    let keep = |pack: SealedPack| past_cache::write(&packs.join(pack.id.to_string()), &pack.bytes);
    let index = ChunkIndex::new(ChunkKey::generate(&mut SystemRandomness)?);
    let writer = Writer::new(index, keep, SystemRandomness, Watch::default())?;
    let walk = FolderSnapshot::new(open_root(folder)?, writer, None, WalkOptions::default());
    let taken = walk.pass_two(&JobKey::generate(&mut SystemRandomness)?)?;
    fs::write(packs.join("manifest"), taken.finished.sealed.bytes)?;
    Ok(())
}
