//! From the command until the first line that the program prints: `gpunion run` of a folder of
//! 1 MB against `docker run` with the same folder and image. The image is there for both.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use system_tests::interrupt::go_on;

use crate::cpu::{ms, now};
use crate::endings::World;
use crate::table::{Table, median};

const ROUNDS: usize = 10;
const MARK: &str = "the first line";
const FOLDER: usize = 1_000_000;

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let world = World::found()?;
    world.campus.busybox_image(&world.engine)?;
    let (mut ours, mut dockers) = (Vec::new(), Vec::new());
    // The first of each is not counted: it brings what is then there.
    for round in 0..=ROUNDS {
        go_on()?;
        let folder = folder(&world, round)?;
        let mut docker = docker_run(&world, &folder)?;
        let by_docker = until_the_mark(&mut docker)?;
        let mut run = world.ada.command([std::ffi::OsStr::new("run"), folder.as_os_str(), "--yes".as_ref()]);
        let by_us = until_the_mark(&mut run)?;
        if round > 0 {
            dockers.push(by_docker);
            ours.push(by_us);
        }
    }
    let against = format!("docker run, {:.0} ms (p50)", median(&dockers));
    table.aimed("submit_to_first_log", median(&ours) / median(&dockers), "x", &against, 2.0);
    table.told("first_log_p50", median(&ours), "ms", "gpunion run, folder of 1 MB");
    Ok(())
}

/// A folder that nobody has seen before.
fn folder(world: &World, round: usize) -> Result<std::path::PathBuf> {
    let spec = format!(
        "name = \"first-{round}\"\nimage = \"busybox:latest\"\ncommand = [\"/busybox\", \"echo\", \"{MARK}\"]\n\
         [resources]\ngpus = 0\ncpus = 1\nmemory = \"64 MiB\"\ndisk = \"64 MiB\"\n"
    );
    let folder = world.ada.job_folder(&format!("first-{round}"), &spec)?;
    let mut bytes = vec![0; FOLDER];
    ChaCha20Rng::seed_from_u64(round as u64).fill_bytes(&mut bytes);
    fs::write(folder.join("data.bin"), bytes)?;
    Ok(folder)
}

fn docker_run(world: &World, folder: &Path) -> Result<Command> {
    let mut command = Command::new("docker");
    command.env("DOCKER_HOST", world.engine.host());
    command.args(["run", "--rm", "--network", "none", "-v"]);
    command.arg(format!("{}:/workspace", folder.to_str().context("a plain path")?));
    command.args(["busybox:latest", "/busybox", "echo", MARK]);
    Ok(command)
}

/// Milliseconds from the start of a command until it prints the mark; it must then end well.
fn until_the_mark(command: &mut Command) -> Result<f64> {
    let began = now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut seen = None;
    for line in BufReader::new(child.stdout.take().context("its output")?).split(b'\n') {
        if String::from_utf8_lossy(&line?).contains(MARK) {
            seen.get_or_insert_with(|| ms(began.elapsed()));
        }
    }
    let status = child.wait()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    seen.with_context(|| format!("{command:?} printed no mark"))
}
