//! The scenario itself. Each step is a command that a person would type.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gpunion_protocol::job::{JobState, JobView};
use gpunion_protocol::receipt::Receipt;
use system_tests::campus::{Campus, Device, Files, Pace, Relay};
use system_tests::interrupt::{go_on, interrupted};
use system_tests::lab::{Engine, wait_for};

use crate::report::Report;

const GPU_MEMORY: u64 = 8 << 30;
/// So much the main program of the example and its child hold, in MiB.
const HOLD: (u64, u64) = (256, 64);
const PATIENCE: Duration = Duration::from_secs(180);
/// An interrupt is seen within this.
const GLANCE: Duration = Duration::from_millis(200);

struct World {
    // Devices and relay end before the engines, those before the lab.
    ada: Device,
    providers: [Device; 2],
    relay: Relay,
    engines: [Engine; 2],
    campus: Campus,
}

pub(crate) fn play(report: &mut Report, keep: bool) -> Result<()> {
    report.heading("A relay, and two machines with a container engine and a stand-in GPU each");
    let world = found(report)?;
    report.step("set_up");

    report.heading("Ada runs examples/digits: training on 1,797 real handwritten digits");
    let first = world.ada.digits_folder("digits", Pace { epochs: 12, epoch_seconds: 0.2 })?;
    let (job, undisturbed) = run_to_the_end(report, &world.ada, &first)?;
    show_accuracy(report, &undisturbed)?;
    report.check(job.attempts.len() == 1, "the first run was not disturbed");
    report.step("first_run");

    report.heading("Again, slower; and its owner takes the GPU back while it computes");
    let second = world.ada.digits_folder("digits-again", Pace { epochs: 12, epoch_seconds: 1.0 })?;
    let (id, away) = reclaim_in_the_middle(report, &world, &second)?;

    report.heading("The job goes on, on the other provider");
    finish_elsewhere(report, &world, &id, &away, &undisturbed)?;
    report.step("finished_elsewhere");
    if keep {
        leave_running(report, world);
    } else {
        report.heading("Cleaning up");
        drop(world);
        report.step("clean_up");
    }
    Ok(())
}

fn found(report: &mut Report) -> Result<World> {
    let campus = Campus::new()?;
    let engines = campus.lab.engines(["a", "b"])?;
    report.say("   two container engines answer");
    let relay = campus.relay(campus.lab.user("op")?)?;
    report.say(format_args!("   $ gpunion relay serve --group campus      (at {})", relay.address()));
    // The member's own engine has the image; nobody else's does.
    campus.digits_image(&engines[0])?;
    let provider = |name: &str, user: &str, engine: &Engine, gpu: &str| -> Result<Device> {
        let gpus = campus.stand_in(name, &[(&campus.gpu(gpu), GPU_MEMORY)])?;
        let device = campus.device(name, campus.lab.user(user)?, &engine.socket(), Some(gpus))?;
        device.join(&relay.invite("member")?, user)?;
        device.share()?;
        Ok(device)
    };
    let lab7 = provider("lab-7", "grace", &engines[0], "7")?;
    let lab3 = provider("lab-3", "linus", &engines[1], "3")?;
    report.say("   $ gpunion join …; gpunion share on         (lab-7 by grace, lab-3 by linus)");
    let ada = campus.device("laptop", campus.lab.user("ada")?, &engines[0].socket(), None)?;
    ada.join(&relay.invite("member")?, "ada")?;
    report.say("   $ gpunion join …                           (laptop by ada)");
    go_on()?;
    Ok(World { ada, providers: [lab7, lab3], relay, engines, campus })
}

/// `gpunion run`, with its log shown as it comes; then `gpunion fetch`.
fn run_to_the_end(report: &mut Report, ada: &Device, folder: &Path) -> Result<(JobView, Files)> {
    report.say("   $ gpunion run digits");
    let mut child = ada
        .command([std::ffi::OsStr::new("run"), folder.as_os_str(), std::ffi::OsStr::new("--yes")])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()?;
    let name = folder.file_name().and_then(|n| n.to_str()).context("the folder has a name")?;
    let lines = lines_of(child.stdout.take().context("its output")?);
    let mut live = false;
    loop {
        let line = match lines.recv_timeout(GLANCE) {
            Ok(line) => line?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if interrupted() => {
                child.kill()?;
                child.wait()?;
                bail!("interrupted");
            }
            Err(RecvTimeoutError::Timeout) => continue,
        };
        // A progress bar draws over itself: its last state is what stays on a terminal.
        let last = line.rsplit('\r').find(|part| !part.trim().is_empty()).unwrap_or("").to_owned();
        report.say(format_args!("   | {last}"));
        // Live: it is seen while the job is not over.
        live = live || last.contains("epoch") && !ada.job(name)?.state.is_final();
    }
    let status = child.wait()?;
    go_on()?;
    ensure!(status.success(), "gpunion run ended with {status}; the agents said:\n{}", ada.log());
    report.check(live, "its log was followed live");
    let job = ada.job(name)?;
    let result = ada.fetch(name, &format!("{name}-results"))?;
    report.say(format_args!("   $ gpunion fetch {name}      ({} files)", result.len()));
    Ok((job, result))
}

/// Lines as they come; nobody who reads them waits for longer than they wish.
fn lines_of(out: ChildStdout) -> Receiver<std::io::Result<String>> {
    let (tell, lines) = std::sync::mpsc::sync_channel(64);
    std::thread::spawn(move || {
        for line in BufReader::new(out).split(b'\n') {
            let line = line.map(|line| String::from_utf8_lossy(&line).into_owned());
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn show_accuracy(report: &mut Report, result: &[(String, Vec<u8>)]) -> Result<()> {
    let (_, text) = result.iter().find(|(name, _)| name == "result.json").context("result.json")?;
    let value: serde_json::Value = serde_json::from_slice(text)?;
    let accuracy = value["accuracy"].as_f64().context("result.json tells no accuracy")?;
    report.accuracy = Some(accuracy);
    report
        .check(accuracy > 0.95, &format!("{:.1} % of the held-out digits are read right", accuracy * 100.0));
    Ok(())
}

/// Which provider runs the job now.
fn runs_on<'a>(world: &'a World, job: &JobView) -> Result<(&'a Device, &'a Device)> {
    let name = &job.attempts.last().context("it has an attempt")?.device_name;
    let [a, b] = &world.providers;
    match (a.name == *name, b.name == *name) {
        (true, _) => Ok((a, b)),
        (_, true) => Ok((b, a)),
        _ => bail!("it runs on {name}, which nobody knows"),
    }
}

fn reclaim_in_the_middle(report: &mut Report, world: &World, folder: &Path) -> Result<(String, String)> {
    let ada = &world.ada;
    let name = folder.file_name().and_then(|n| n.to_str()).context("the folder has a name")?.to_owned();
    ada.run([std::ffi::OsStr::new("submit"), folder.as_os_str(), std::ffi::OsStr::new("--yes")])?.ok()?;
    report.say(format_args!("   $ gpunion submit {name}"));
    let job =
        ada.wait_job(&name, "a checkpoint", PATIENCE, |job| !job.checkpoints.is_empty() || interrupted())?;
    go_on()?;
    let id = job.id.to_string();
    report.check(!job.state.is_final(), "it still computes");
    let (owner, _) = runs_on(world, &job)?;
    let held = (HOLD.0 + HOLD.1) << 20;
    let before = wait_for("the GPU memory of the job", PATIENCE, || {
        go_on()?;
        let gpus = owner.snapshot()?.gpus;
        let gpu = gpus.into_iter().next().context("the provider has a GPU")?;
        let processes = gpu.sample.processes.as_ref().map_or(0, Vec::len);
        Ok((processes == 2 && gpu.sample.memory_used >= Some(held)).then_some(gpu))
    })?;
    report.say(format_args!(
        "   {} runs it; two of its processes hold {} MiB of {}",
        owner.name,
        before.sample.memory_used.unwrap_or(0) >> 20,
        before.sample.label(),
    ));
    report.step("second_run_to_checkpoint");
    go_on()?;
    report
        .say(format_args!("   $ gpunion reclaim                          (by the owner of {})", owner.name));
    let ran = owner.run(["--json", "reclaim"])?;
    let receipt: Receipt = ran.json()?;
    report.step("reclaim");
    show_receipt(report, &receipt, ran.code);
    report.receipt = Some(receipt);
    Ok((id, owner.name.clone()))
}

fn show_receipt(report: &mut Report, receipt: &Receipt, code: Option<i32>) {
    let ms = |value: Option<u64>| value.map_or("-".to_owned(), |ms| format!("{ms} ms"));
    report.say(format_args!(
        "   receipt: stopped {}, ended {}, verified {} ({})",
        ms(receipt.stopped_ms),
        ms(receipt.ended_ms),
        ms(receipt.verified_ms),
        receipt.how.words()
    ));
    for gpu in &receipt.gpus {
        let mib = |bytes: Option<u64>| bytes.map_or("n/a".to_owned(), |b| format!("{} MiB", b >> 20));
        let (before, after) = (mib(gpu.memory_before), mib(gpu.memory_after));
        report.say(format_args!("   {} ({}): {before} before, {after} after", gpu.uuid, gpu.name));
    }
    report.check(receipt.verified && code == Some(0), "the reclaim is verified, and the command says so");
    let free = receipt.gpus.iter().all(|gpu| {
        gpu.memory_after.is_some() && gpu.memory_after <= gpu.memory_baseline.or(gpu.memory_before)
    });
    report.check(free, "the memory of the GPU is free again");
}

fn finish_elsewhere(
    report: &mut Report,
    world: &World,
    id: &str,
    away: &str,
    undisturbed: &[(String, Vec<u8>)],
) -> Result<()> {
    let job = world.ada.wait_job(id, "the end", PATIENCE, |job| job.state.is_final() || interrupted())?;
    go_on()?;
    report.check(job.state == JobState::Succeeded, "the job succeeded");
    let places: Vec<&str> = job.attempts.iter().map(|attempt| attempt.device_name.as_str()).collect();
    report.say(format_args!("   attempts: {}", places.join(", then ")));
    let last = places.last().copied().unwrap_or("");
    report.finished_elsewhere = places.len() > 1 && last != away;
    report.check(report.finished_elsewhere, "it finished on the other provider");
    let log = world.ada.run(["logs", id])?.ok()?;
    report.check(log.out.contains("resum"), "it went on from its newest checkpoint");
    let result = world.ada.fetch(id, "again-results")?;
    report.check(result == undisturbed, "its result has the bytes of the undisturbed one");
    Ok(())
}

fn leave_running(report: &Report, world: World) {
    let World { ada, providers, relay, engines, campus } = world;
    report.heading("Left running, until the next demo or `cargo xtask demo` without --keep");
    for device in std::iter::once(&ada).chain(&providers) {
        report.say(format_args!(
            "   {}: sudo -u {} {} --data {} --socket {} …",
            device.name,
            device.user.name(),
            campus.program().display(),
            device.data().display(),
            device.user.runtime().join("agent.sock").display()
        ));
    }
    report.say(format_args!("   relay: {}", relay.address()));
    ada.keep();
    providers.into_iter().for_each(Device::keep);
    relay.keep();
    engines.into_iter().for_each(Engine::keep);
    campus.lab.keep();
}
