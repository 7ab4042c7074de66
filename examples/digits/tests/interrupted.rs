//! Trains the real program on the real digits, interrupts it in each way, and asks for the same
//! bits.

#![expect(clippy::unwrap_used, reason = "tests")]
#![expect(clippy::disallowed_methods, reason = "real programs are waited for in real time")]

use std::fs;
use std::io::{BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// A fresh workspace with the data set in it.
fn workspace() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("dataset")).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("dataset/digits.csv");
    fs::copy(source, folder.path().join("dataset/digits.csv")).unwrap();
    folder
}

fn digits(workspace: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_digits"));
    command
        .current_dir(workspace)
        .env_clear()
        .env("EPOCHS", "12")
        .env("GPU_STANDIN_DIR", workspace.join("no-gpu"))
        .env("GPUNION_RUN_DIR", workspace.join("no-gpunion"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A running program whose output is read up to what a test waits for.
struct Running {
    child: Child,
    seen: String,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Running { child: command.spawn().unwrap(), seen: String::new() }
    }

    /// Reads on until this text comes.
    fn wait_for(&mut self, text: &str) {
        let mut out = self.child.stdout.take().unwrap();
        let mut byte = [0];
        let started = Instant::now();
        while !self.seen.ends_with(text) {
            assert!(started.elapsed() < LIMIT, "no \"{text}\" in {}", self.seen);
            assert_eq!(out.read(&mut byte).unwrap(), 1, "ended without \"{text}\": {}", self.seen);
            self.seen.push(char::from(byte[0]));
        }
        self.child.stdout = Some(out);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn end(mut self) -> (ExitStatus, String) {
        let mut rest = Vec::new();
        BufReader::new(self.child.stdout.take().unwrap()).read_to_end(&mut rest).unwrap();
        self.seen.push_str(&String::from_utf8_lossy(&rest));
        let status = self.child.wait().unwrap();
        (status, self.seen.clone())
    }
}

/// A test that fails leaves nothing running.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn result(workspace: &Path) -> (Vec<u8>, String) {
    let weights = fs::read(workspace.join("weights.bin")).unwrap();
    (weights, fs::read_to_string(workspace.join("result.json")).unwrap())
}

/// What an undisturbed training gives; trained once for all tests.
fn undisturbed() -> &'static (Vec<u8>, String) {
    static RESULT: OnceLock<(Vec<u8>, String)> = OnceLock::new();
    RESULT.get_or_init(|| {
        let folder = workspace();
        let (status, output) = Running::start(&mut digits(folder.path())).end();
        assert!(status.success(), "{output}");
        assert!(output.contains("\repoch 12/12 ["), "a bar with carriage returns: {output}");
        assert!(output.contains("epoch 12/12 loss "), "a line an epoch: {output}");
        result(folder.path())
    })
}

/// Lets it run to its end and compares with the undisturbed one.
fn finish_and_compare(workspace: &Path) -> String {
    let (status, output) = Running::start(&mut digits(workspace)).end();
    assert!(status.success(), "{output}");
    let (weights, json) = result(workspace);
    assert_eq!(json, undisturbed().1, "the results differ");
    assert!(weights == undisturbed().0, "the weights differ in a bit at least");
    output
}

#[test]
fn it_reads_more_than_95_percent_of_digits_it_never_saw() {
    let json = &undisturbed().1;
    let accuracy = json.strip_prefix("{\"accuracy\":").and_then(|rest| rest.split(',').next());
    let accuracy: f64 = accuracy.unwrap().parse().unwrap();
    assert!(accuracy > 0.95, "{json}");
}

#[test]
fn killed_in_an_epoch_it_resumes_to_the_same_bits() {
    for epoch in [1, 4, 11] {
        let folder = workspace();
        let mut running = Running::start(digits(folder.path()).env("EPOCH_SECONDS", "0.2"));
        running.wait_for(&format!("epoch {epoch}/12 loss"));
        running.wait_for(&format!("\repoch {}/12 [###", epoch + 1));
        running.signal(Signal::SIGKILL);
        assert_eq!(running.end().0.signal(), Some(9), "it did not end by itself before");
        let output = finish_and_compare(folder.path());
        assert!(output.contains(&format!("resuming after epoch {epoch}")), "{output}");
    }
}

#[test]
fn sigterm_in_the_middle_of_an_epoch_saves_there_and_ends_as_a_shell_expects() {
    let folder = workspace();
    let mut running = Running::start(digits(folder.path()).env("EPOCH_SECONDS", "0.5"));
    running.wait_for("\repoch 3/12 [#####");
    running.signal(Signal::SIGTERM);
    let (status, output) = running.end();
    assert_eq!(status.code(), Some(143), "{output}");
    assert!(output.contains("SIGTERM: saved in epoch 3"), "{output}");
    let output = finish_and_compare(folder.path());
    assert!(output.contains("resuming in epoch 3, after digit "), "{output}");
}

/// F88: the program goes on after SIGTERM; the provider ends it once it has said "saved".
#[test]
fn f88_a_guest_says_saved_and_goes_on_until_it_is_ended() {
    let folder = workspace();
    let run = folder.path().join("run");
    fs::create_dir(&run).unwrap();
    let mut slow = digits(folder.path());
    slow.env("EPOCH_SECONDS", "0.5").env("GPUNION_RUN_DIR", &run);
    let mut running = Running::start(&mut slow);
    running.wait_for("epoch 1/12 loss");
    running.wait_for("\repoch 2/12 [##");
    assert!(run.join("saved").exists(), "said after each epoch");
    fs::remove_file(run.join("saved")).unwrap();
    running.signal(Signal::SIGTERM);
    running.wait_for("SIGTERM: saved in epoch 2");
    running.wait_for("epoch 2/12 loss");
    assert!(run.join("saved").exists(), "said after SIGTERM");
    running.signal(Signal::SIGKILL);
    running.end();
    finish_and_compare(folder.path());
}

#[test]
fn a_finished_training_says_so_again() {
    let folder = workspace();
    finish_and_compare(folder.path());
    fs::remove_file(folder.path().join("result.json")).unwrap();
    let output = finish_and_compare(folder.path());
    assert!(!output.contains("loss"), "nothing is learnt again: {output}");
}

/// Files of others in the workspace (`.home`, results of before) are no concern of it.
#[test]
fn a_damaged_checkpoint_is_told_and_never_trained_over() {
    let folder = workspace();
    fs::create_dir(folder.path().join(".home")).unwrap();
    fs::write(folder.path().join("checkpoint.bin"), b"DIGITS01 torn").unwrap();
    let output = digits(folder.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("checkpoint.bin is damaged"), "{error}");
    assert_eq!(fs::read(folder.path().join("checkpoint.bin")).unwrap(), b"DIGITS01 torn");
}

/// F01, F07: the memory of a stand-in GPU is what locks say, and a child that left its session
/// holds some after its parent was killed.
#[test]
fn f01_memory_is_held_by_locks_and_by_a_child_that_outlives_its_parent() {
    let folder = workspace();
    let device = folder.path().join("gpus/GPU-1");
    fs::create_dir_all(&device).unwrap();
    let mut slow = digits(folder.path());
    slow.env("EPOCH_SECONDS", "0.5").env("GPU_STANDIN_DIR", folder.path().join("gpus"));
    let mut running = Running::start(&mut slow);
    running.wait_for("learning from");
    let holders = locked(&device);
    let sizes: Vec<u64> = holders.iter().map(|(_, size)| size >> 20).collect();
    assert_eq!(sizes, [64, 256], "parent and child, each by its own lock");
    running.signal(Signal::SIGKILL);
    running.end();
    let left = locked(&device);
    assert_eq!(left.len(), 1, "the child holds on: {left:?}");
    let child = Pid::from_raw(left[0].0);
    assert_ne!(nix::unistd::getsid(Some(child)), nix::unistd::getsid(None), "it left the session");
    kill(child, Signal::SIGTERM).unwrap();
    kill(child, Signal::SIGHUP).unwrap();
    assert_eq!(locked(&device).len(), 1, "and asks for more than SIGTERM");
    kill(child, Signal::SIGKILL).unwrap();
    let started = Instant::now();
    while !locked(&device).is_empty() {
        assert!(started.elapsed() < LIMIT, "the lock of the dead child is still listed");
        std::thread::yield_now();
    }
    // The normal end: the parent takes its child along and removes its files.
    let mut whole = digits(folder.path());
    whole.env("GPU_STANDIN_DIR", folder.path().join("gpus")).env("HOLD_MIB", "100");
    let (status, output) = Running::start(&mut whole).end();
    assert!(status.success() && output.contains("holding 100 MiB"), "{output}");
    assert_eq!(locked(&device), []);
}

/// (pid, size in bytes) of those who hold a lock on a file in this folder, smallest first.
fn locked(device: &Path) -> Vec<(i32, u64)> {
    use std::os::unix::fs::MetadataExt;
    let locks = fs::read_to_string("/proc/locks").unwrap();
    let mut holders = Vec::new();
    for entry in fs::read_dir(device).unwrap().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        for line in locks.lines() {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let inode = fields.get(5).and_then(|f| f.rsplit(':').next());
            if fields.get(1) == Some(&"POSIX") && inode == Some(&meta.ino().to_string()) {
                holders.push((fields[4].parse().unwrap(), meta.size()));
            }
        }
    }
    holders.sort_by_key(|(_, size)| *size);
    holders
}
