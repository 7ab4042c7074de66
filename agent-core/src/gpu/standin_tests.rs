//! All of it against the real stand-in library, loaded as the driver's own would be.
//!
//! Each test has its own copy of the library with its own script beside it, and real processes
//! that hold stand-in memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpunion_protocol::gpu::{GpuSample, GpuSource, GpuState, GpuView};
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::receipt::How;
use gpunion_protocol::time::Millis;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::watch::boot_now;
use super::*;

const GIB: u64 = 1 << 30;
const LIMIT: Millis = Millis(20_000);

/// Builds the library and its holder into this build's own target folder.
fn built() -> (PathBuf, PathBuf) {
    let exe = std::env::current_exe().unwrap();
    let deps = exe.ancestors().find(|folder| folder.ends_with("deps")).unwrap();
    let target = deps.parent().unwrap().parent().unwrap();
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "nvml-standin", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .unwrap();
    assert!(status.success(), "the stand-in could not be built");
    let debug = target.join("debug");
    (debug.join("libnvml_standin.so"), debug.join("nvml-standin-hold"))
}

struct Lab {
    folder: TempDir,
    hold: PathBuf,
    script: Value,
}

/// Ended with the test, so that a failing one leaves nobody behind.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process that is no child of ours and is ended by its pid.
struct Leaked(u32);

impl Leaked {
    fn kill(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.0).unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

impl Drop for Leaked {
    fn drop(&mut self) {
        self.kill();
    }
}

fn uuid(n: usize) -> GpuUuid {
    GpuUuid(format!("GPU-{n}"))
}

impl Lab {
    /// A copy of the library with `gpus` GPUs of 8 GiB, each in the best of health.
    fn new(gpus: usize) -> Self {
        let (library, hold) = built();
        let folder = tempfile::tempdir().unwrap();
        fs::copy(library, folder.path().join("lib.so")).unwrap();
        let mut lab = Self { folder, hold, script: json!({}) };
        let gpus: Vec<Value> = (0..gpus).map(|n| lab.gpu(n)).collect();
        lab.script = json!({ "gpus": gpus });
        lab.write();
        lab
    }

    fn gpu(&self, n: usize) -> Value {
        let device = self.device(n);
        fs::create_dir_all(&device).unwrap();
        json!({
            "uuid": uuid(n).0, "name": format!("Card {n}"), "folder": device,
            "memory_total": 8 * GIB, "memory_baseline": 1000,
            "utilisation": { "idle": 0, "busy": 97 },
            "temperature": 40, "power": 25_000, "power_limit": 250_000,
        })
    }

    fn device(&self, n: usize) -> PathBuf {
        self.folder.path().join(format!("device-{n}"))
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("lib.so")
    }

    fn write(&self) {
        fs::write(self.folder.path().join("standin.json"), self.script.to_string()).unwrap();
    }

    /// Edits one GPU in the script while it runs.
    fn set(&mut self, n: usize, field: &str, value: Value) {
        self.script["gpus"][n][field] = value;
        self.write();
    }

    fn open(&self) -> Gpus {
        Gpus::open(Some(&self.library()))
    }

    /// A process that holds memory on a GPU, once it holds it; with a child's pid if it has one.
    fn holder(&self, n: usize, bytes: u64, child: Option<u64>) -> (Process, Option<Leaked>) {
        let mut command = Command::new(&self.hold);
        command.arg(self.device(n)).arg(bytes.to_string()).args(child.map(|c| c.to_string()));
        let mut process = Process(command.stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let mut pid = || {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix("held ").unwrap().parse().unwrap()
        };
        let child = child.map(|_| Leaked(pid()));
        assert_eq!(pid(), process.0.id());
        (process, child)
    }
}

/// Waits for a view of which something holds.
fn wait_for(gpus: &Gpus, what: &str, holds: impl Fn(&GpuView) -> bool) -> GpuView {
    let until = boot_now() + LIMIT;
    loop {
        let view = gpus.view();
        if holds(&view) {
            return view;
        }
        assert!(boot_now() < until, "waited in vain for: {what}; last: {view:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_sample(gpus: &Gpus, n: usize, what: &str, holds: impl Fn(&GpuSample) -> bool) -> GpuSample {
    let view = wait_for(gpus, what, |view| view.gpus.get(&uuid(n)).is_some_and(&holds));
    view.gpus[&uuid(n)].clone()
}

/// A sample that was taken after now.
fn next_sample(gpus: &Gpus, n: usize) -> GpuSample {
    let now = boot_now();
    wait_sample(gpus, n, "a fresh sample", |sample| sample.taken_at > now)
}

fn sentence(view: &GpuView) -> Option<&str> {
    match &view.source {
        GpuSource::None { sentence } => Some(sentence),
        GpuSource::Ready { .. } => None,
    }
}

fn pids(sample: &GpuSample) -> Vec<u32> {
    sample.processes.iter().flatten().map(|p| p.pid).collect()
}

#[test]
fn several_gpus_are_told_apart_by_uuid_and_labelled() {
    let mut lab = Lab::new(3);
    lab.set(2, "temperature", json!(91));
    let gpus = lab.open();
    let view = gpus.view();
    assert_eq!(gpus.absent(), None);
    assert_eq!(view.gpus.keys().cloned().collect::<Vec<_>>(), [uuid(0), uuid(1), uuid(2)]);
    let hot = &view.gpus[&uuid(2)];
    assert!(hot.standin && hot.name.contains("stand-in"), "{hot:?}");
    assert_eq!(hot.temperature_c, Some(91));
    assert_eq!((hot.memory_total, hot.memory_used), (Some(8 * GIB), Some(1000)));
    assert_eq!((hot.power_mw, hot.power_limit_mw), (Some(25_000), Some(250_000)));
    assert_eq!(hot.utilisation, Some(0));
    assert_eq!(hot.processes, Some(vec![]));
    // Heat rises while it runs.
    lab.set(0, "temperature", json!(77));
    wait_sample(&gpus, 0, "heat", |sample| sample.temperature_c == Some(77));
    wait_for(&gpus, "history", |_| gpus.history(&uuid(0)).len() >= 2);
}

#[test]
fn f17_f18_no_power_figure_hides_no_other() {
    let mut lab = Lab::new(1);
    for field in ["power", "power_limit"] {
        lab.set(0, field, Value::Null);
    }
    let sample = lab.open().view().gpus[&uuid(0)].clone();
    assert_eq!((sample.power_mw, sample.power_limit_mw), (None, None));
    assert_eq!((sample.temperature_c, sample.memory_used), (Some(40), Some(1000)));
    assert_eq!(sample.state, GpuState::Ok);
}

#[test]
fn f12_one_bad_gpu_excludes_only_itself() {
    let mut lab = Lab::new(3);
    let gpus = lab.open();
    lab.set(1, "fallen_off", json!(true));
    let lost = |s: &GpuSample| matches!(s.state, GpuState::Lost { .. });
    wait_sample(&gpus, 1, "lost", lost);
    let other = next_sample(&gpus, 2);
    assert_eq!(other.state, GpuState::Ok);
    // F13, F15: it comes back without a restart.
    lab.set(1, "fallen_off", json!(false));
    wait_sample(&gpus, 1, "back", |sample| sample.state == GpuState::Ok);
}

#[test]
fn f12_a_gpu_that_was_bad_from_the_start_is_told_in_a_sentence() {
    let mut lab = Lab::new(2);
    lab.set(0, "fallen_off", json!(true));
    let view = lab.open().view();
    assert_eq!(view.gpus.keys().cloned().collect::<Vec<_>>(), [uuid(1)]);
    assert!(view.troubles[0].contains("One of 2 GPUs can't be used"), "{:?}", view.troubles);
}

#[test]
fn f15_a_gpu_that_is_no_longer_listed_is_lost_not_forgotten() {
    let mut lab = Lab::new(2);
    let gpus = lab.open();
    lab.script["gpus"].as_array_mut().unwrap().pop();
    lab.write();
    wait_sample(&gpus, 1, "lost", |sample| sample.state != GpuState::Ok);
    assert_eq!(next_sample(&gpus, 0).state, GpuState::Ok);
}

#[test]
fn no_driver_is_a_plain_sentence_and_it_is_found_when_it_comes() {
    let mut lab = Lab::new(1);
    lab.script["driver"] = json!("not_loaded");
    lab.write();
    let gpus = lab.open();
    assert!(gpus.absent().unwrap().contains("CPU jobs can still be lent"));
    lab.script["driver"] = json!("loaded");
    lab.write();
    wait_sample(&gpus, 0, "the driver", |sample| sample.state == GpuState::Ok);
    assert_eq!(gpus.absent(), None);
}

#[test]
fn a_driver_mismatch_names_the_fix_even_while_it_runs() {
    let mut lab = Lab::new(1);
    let gpus = lab.open();
    lab.script["driver"] = json!("version_mismatch");
    lab.write();
    let fix = |view: &GpuView| sentence(view).is_some_and(|s| s.contains("reboot, or reload"));
    let view = wait_for(&gpus, "the mismatch", fix);
    assert!(matches!(view.gpus[&uuid(0)].state, GpuState::Unknown { .. }));
    assert_eq!(Reader::open(Some(&lab.library())).unwrap_err(), NoGpus::VersionMismatch);
}

#[test]
fn a_library_that_is_none_is_named() {
    let error = Reader::open(Some(Path::new("/nonexistent/lib.so"))).unwrap_err();
    assert!(error.to_string().contains("/nonexistent/lib.so"), "{error}");
}

#[test]
fn f19_not_found_is_an_empty_list_and_not_supported_is_none() {
    let mut lab = Lab::new(1);
    lab.set(0, "process_list", json!("not_found"));
    let reader = Reader::open(Some(&lab.library())).unwrap();
    assert_eq!(reader.read()[0].processes, Some(vec![]));
    lab.set(0, "process_list", json!("not_supported"));
    assert_eq!(reader.read()[0].processes, None);
}

#[test]
fn f20_f21_a_divided_card_is_listed_and_its_utilisation_is_unknown() {
    let mut lab = Lab::new(1);
    lab.set(0, "mig", json!(true));
    let sample = lab.open().view().gpus[&uuid(0)].clone();
    assert!(sample.mig);
    assert_eq!((sample.utilisation, sample.memory_used), (None, Some(1000)));
}

#[test]
fn f20_a_card_that_does_not_tell_its_memory_is_listed() {
    let mut lab = Lab::new(1);
    lab.set(0, "memory_supported", json!(false));
    let sample = lab.open().view().gpus[&uuid(0)].clone();
    assert_eq!((sample.memory_total, sample.memory_used), (None, None));
    assert_eq!((sample.temperature_c, sample.state), (Some(40), GpuState::Ok));
}

#[test]
fn f22_f23_impossible_memory_is_absent() {
    let mut lab = Lab::new(1);
    lab.set(0, "memory_used_override", json!(u64::MAX - 7));
    lab.set(0, "foreign", json!([{ "pid": std::process::id(), "memory": GIB }]));
    lab.set(0, "process_memory", json!(false));
    let reader = Reader::open(Some(&lab.library())).unwrap();
    let sample = &reader.read()[0];
    assert_eq!((sample.memory_total, sample.memory_used), (Some(8 * GIB), None));
    let listed = &sample.processes.as_ref().unwrap()[0];
    assert_eq!((listed.pid, listed.memory), (std::process::id(), None));
    assert_eq!(listed.start_time, start_time(std::process::id()));
}

#[test]
fn only_a_holders_end_frees_memory_and_a_leaked_child_counts() {
    let lab = Lab::new(2);
    let gpus = lab.open();
    let _fast = gpus.fast_poll();
    let (mut parent, child) = lab.holder(0, 3 * GIB, Some(2 * GIB));
    let child = child.unwrap();
    let held = wait_sample(&gpus, 0, "both", |s| s.memory_used == Some(5 * GIB + 1000));
    let mut both = vec![parent.0.id(), child.0];
    both.sort_unstable();
    assert_eq!(pids(&held), both);
    assert_eq!(held.utilisation, Some(97));
    assert!(held.processes.iter().flatten().all(|p| p.start_time.is_some()));
    assert_eq!(next_sample(&gpus, 1).memory_used, Some(1000));
    // Removing its file frees nothing while it lives.
    fs::remove_file(lab.device(0).join(format!("holder-{}", parent.0.id()))).unwrap();
    assert_eq!(next_sample(&gpus, 0).memory_used, Some(5 * GIB + 1000));
    // Killed outright, without a word of its own: the kernel drops its lock, and only its own.
    parent.0.kill().unwrap();
    parent.0.wait().unwrap();
    let leaked = wait_sample(&gpus, 0, "the child alone", |s| pids(s) == [child.0]);
    assert_eq!(leaked.memory_used, Some(2 * GIB + 1000));
    child.kill();
    let free = wait_sample(&gpus, 0, "nobody", |s| s.memory_used == Some(1000));
    assert_eq!((free.processes, free.utilisation), (Some(vec![]), Some(0)));
}

#[test]
fn f01_f07_a_reclaim_is_verified_only_when_the_leaked_child_is_gone() {
    let mut lab = Lab::new(1);
    let gpus = lab.open();
    let _fast = gpus.fast_poll();
    let before = BeforeGuest::of(&next_sample(&gpus, 0)).unwrap();
    let (mut parent, child) = lab.holder(0, GIB, Some(GIB));
    let child = child.unwrap();
    let seen = wait_sample(&gpus, 0, "both", |s| pids(s).len() == 2);
    let mut guest = GuestTraces::new(None);
    guest.seen.extend(seen.processes.iter().flatten().filter_map(ProcessId::of));
    parent.0.kill().unwrap();
    parent.0.wait().unwrap();
    // The owner's own work has begun meanwhile; it hinders nothing.
    lab.set(0, "foreign", json!([{ "pid": std::process::id(), "memory": GIB }]));
    let mut question = Verification::new(before, guest, boot_now());
    let sample = next_sample(&gpus, 0);
    let verdict = question.observe(&sample);
    assert_eq!(verdict, Verdict::NotYet(NotYet::GuestListed { pids: vec![child.0] }));
    child.kill();
    let until = boot_now() + LIMIT;
    loop {
        match question.observe(&next_sample(&gpus, 0)) {
            Verdict::Free { how, .. } => {
                assert_eq!(how, How::ProcessList);
                break;
            }
            Verdict::NotYet(why) => assert!(boot_now() < until, "{why}"),
        }
    }
}

#[test]
fn f04_a_latched_counter_is_no_use() {
    let mut lab = Lab::new(1);
    lab.set(0, "utilisation", json!({ "idle": 100, "busy": 100 }));
    let sample = lab.open().view().gpus[&uuid(0)].clone();
    assert!(sample.telemetry_latch());
    let before = BeforeGuest::of(&sample).unwrap();
    let mut question = Verification::new(before, GuestTraces::default(), sample.taken_at);
    let free = Verdict::Free { how: How::ProcessList, telemetry_latch: true };
    assert_eq!(question.observe(&sample), free);
    lab.set(0, "memory_unexplained", json!(4096));
    let sample = &Reader::open(Some(&lab.library())).unwrap().read()[0];
    let held = Verdict::NotYet(NotYet::MemoryHeld { bytes: 4096 });
    assert_eq!(question.observe(sample), held);
}

#[test]
fn a_fast_poll_reads_ten_times_a_second() {
    let lab = Lab::new(1);
    let gpus = lab.open();
    let _fast = gpus.fast_poll();
    let first = next_sample(&gpus, 0).taken_at;
    // Ten more readings at the normal pace would take ten seconds.
    let mut last = first;
    for _ in 0..10 {
        let before = last;
        last = wait_sample(&gpus, 0, "the next", |s| s.taken_at > before).taken_at;
    }
    assert!((last - first).0 < 5_000, "{:?}", last - first);
}

#[test]
fn a_half_written_script_changes_nothing() {
    let lab = Lab::new(1);
    let reader = Reader::open(Some(&lab.library())).unwrap();
    assert_eq!(reader.read()[0].memory_used, Some(1000));
    fs::write(lab.folder.path().join("standin.json"), "{\"gpus\": [").unwrap();
    assert_eq!(reader.read()[0].memory_used, Some(1000));
}

#[test]
fn the_thread_ends_with_its_owner() {
    let lab = Lab::new(1);
    let gpus = lab.open();
    let mut view = gpus.subscribe();
    drop(gpus);
    let until = boot_now() + LIMIT;
    // The channel closes when the thread lets go of it.
    while view.has_changed().is_ok() {
        view.mark_unchanged();
        assert!(boot_now() < until, "the thread lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
}
