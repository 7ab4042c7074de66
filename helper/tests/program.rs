//! The program as the agent uses it: a child process, frames over its stdin and stdout.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::BufReader;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use gpunion_snapshot::helper_wire::{Answer, Done, Failure, FailureKind, Frame, Order, Part, Pieces, pieces};
use gpunion_snapshot::{
    ChunkKey, JobKey, Manifest, PackId, PackRecord, Randomness, Report, SeededRandomness, SnapshotId, Usage,
};

const LIMIT_KIB: u64 = 64 * 1024;
const NOBODY: u32 = 65534;

struct Program {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    packs: BTreeMap<PackId, Vec<u8>>,
    records: Vec<PackRecord>,
    parts: Vec<(Part, Vec<u8>)>,
    /// Largest resident memory ever seen, in KiB.
    peak: u64,
}

impl Program {
    fn start(root: &Path) -> Self {
        Self::start_as(root, None)
    }

    fn start_as(root: &Path, uid: Option<u32>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpunion-helper"));
        command.arg("--root").arg(root).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid);
        }
        let mut child = command.spawn().unwrap();
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().unwrap());
        let (packs, records, parts) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { child, to, from, packs, records, parts, peak: 0 }
    }

    fn say(&mut self, frame: Frame) {
        frame.write(self.to.as_mut().unwrap()).unwrap();
    }

    fn order(&mut self, order: Order) {
        self.say(Frame::Order(order));
    }

    fn hear(&mut self) -> Frame {
        let frame = Frame::read(&mut self.from).unwrap().unwrap();
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = line.map(|line| line.trim_end_matches(" kB").trim().parse().unwrap());
        self.peak = self.peak.max(peak.unwrap_or(0));
        frame
    }

    fn begin_snapshot(&mut self, base: &[(Part, Vec<u8>)]) {
        self.order(Order::Snapshot { leave_out: vec![], sync: true });
        self.say(Frame::Keys { job: job_key(), chunk: Some(chunk_key()) });
        for (of, bytes) in base {
            for piece in pieces(*of, bytes) {
                self.say(piece);
            }
        }
    }

    fn begin_restore(&mut self, manifest: &[u8], update: bool) {
        let me = fs::metadata("/proc/self").unwrap();
        self.order(Order::Restore { uid: me.uid(), gid: me.gid(), max_bytes: None, update });
        self.say(Frame::Keys { job: job_key(), chunk: None });
        for piece in pieces(Part::Manifest, manifest) {
            self.say(piece);
        }
        self.order(Order::Go);
    }

    /// Takes and hands out packs until something is told.
    fn answer(&mut self, mut packs: impl FnMut(&PackId) -> Vec<u8>) -> Answer {
        let mut open = Pieces::default();
        loop {
            match self.hear() {
                Frame::Answer(Answer::Progress(_)) => {}
                Frame::Answer(Answer::Need { pack }) => {
                    let bytes = packs(&pack);
                    let frame = Frame::Pack { id: pack, record: None, bytes };
                    // It asks ahead, and may have failed since: then the reason is still to come.
                    let _ = frame.write(self.to.as_mut().unwrap());
                }
                Frame::Answer(answer) => return answer,
                Frame::Pack { id, record, bytes } => {
                    assert_eq!(gpunion_snapshot::pack_id(&bytes), id);
                    self.records.push(record.unwrap());
                    assert!(self.packs.insert(id, bytes).is_none(), "a pack came twice");
                    self.order(Order::PackTaken);
                }
                Frame::Piece { of, last, bytes } => {
                    let whole = open.add(of, last, &bytes).unwrap();
                    self.parts.extend(whole.map(|whole| (of, whole)));
                }
                Frame::Order(_) | Frame::Keys { .. } => unreachable!("these go the other way"),
            }
        }
    }

    fn told(&mut self) -> Answer {
        self.answer(|_| unreachable!("it needs no packs"))
    }

    fn done(&mut self) -> Done {
        match self.told() {
            Answer::Done(done) => done,
            other => unreachable!("{other:?}"),
        }
    }

    fn exit_code(mut self) -> i32 {
        self.to = None;
        self.child.wait().unwrap().code().unwrap()
    }
}

fn job_key() -> JobKey {
    JobKey::from_bytes([9; 32])
}

fn chunk_key() -> ChunkKey {
    ChunkKey::from_bytes([7; 32])
}

fn noise(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    SeededRandomness::new(&[seed]).fill(&mut bytes).unwrap();
    bytes
}

struct Shot {
    id: SnapshotId,
    report: Report,
    packs: BTreeMap<PackId, Vec<u8>>,
    parts: Vec<(Part, Vec<u8>)>,
    peak: u64,
}

impl Shot {
    fn manifest(&self) -> &[u8] {
        &self.parts[0].1
    }
}

fn snapshot(root: &Path, base: &[(Part, Vec<u8>)]) -> Shot {
    let mut program = Program::start(root);
    program.begin_snapshot(base);
    program.order(Order::PassOne);
    assert!(matches!(program.told(), Answer::PassOneDone { .. }));
    program.order(Order::PassTwo);
    let Done::Snapshot { id, report } = program.done() else { unreachable!() };
    let (packs, parts, peak) =
        (std::mem::take(&mut program.packs), std::mem::take(&mut program.parts), program.peak);
    assert_eq!(program.exit_code(), 0);
    assert_eq!(parts.iter().map(|(of, _)| *of).collect::<Vec<_>>(), [Part::Manifest, Part::Cache]);
    Shot { id, report, packs, parts, peak }
}

fn restore(root: &Path, manifest: &[u8], packs: &BTreeMap<PackId, Vec<u8>>) -> (Answer, u64) {
    let mut program = Program::start(root);
    program.begin_restore(manifest, false);
    let answer = program.answer(|id| packs[id].clone());
    let peak = program.peak;
    assert_eq!(program.exit_code(), i32::from(!matches!(answer, Answer::Done(_))));
    (answer, peak)
}

#[test]
fn a_workspace_travels_and_the_next_time_only_its_change() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/big"), noise(1, 30 << 20)).unwrap();
    fs::write(from.path().join("small"), b"one").unwrap();
    symlink("d/big", from.path().join("link")).unwrap();
    let first = snapshot(from.path(), &[]);
    assert_eq!(first.id, gpunion_snapshot::snapshot_id(first.manifest()));
    assert!(first.packs.len() > 3);

    fs::write(from.path().join("small"), b"two").unwrap();
    let second = snapshot(from.path(), &first.parts);
    assert_eq!(second.report.written.bytes_new, 3);
    let mut packs = first.packs;
    packs.extend(second.packs.clone());
    let (answer, _) = restore(to.path(), second.manifest(), &packs);
    let Answer::Done(Done::Restored(progress)) = answer else { unreachable!("{answer:?}") };
    assert_eq!((progress.files, progress.bytes), (2, (30 << 20) + 3));
    assert_eq!(fs::read(to.path().join("small")).unwrap(), b"two");
    assert_eq!(fs::read(to.path().join("link")).unwrap(), noise(1, 30 << 20));
}

#[test]
fn a_workspace_is_brought_up_to_a_later_snapshot_by_its_change_alone() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("big"), noise(1, 30 << 20)).unwrap();
    fs::write(from.path().join("small"), b"one").unwrap();
    fs::write(from.path().join("gone"), b"gone").unwrap();
    let first = snapshot(from.path(), &[]);
    restore(to.path(), first.manifest(), &first.packs);
    fs::write(from.path().join("small"), b"two").unwrap();
    fs::remove_file(from.path().join("gone")).unwrap();
    let second = snapshot(from.path(), &first.parts);

    let mut program = Program::start(to.path());
    program.begin_restore(second.manifest(), true);
    // It asks for no other packs than those of the change.
    let answer = program.answer(|id| second.packs[id].clone());
    assert!(matches!(answer, Answer::Done(Done::Restored(_))), "{answer:?}");
    assert_eq!(program.exit_code(), 0);
    assert_eq!(fs::read(to.path().join("small")).unwrap(), b"two");
    assert_eq!(fs::read(to.path().join("big")).unwrap(), noise(1, 30 << 20));
    assert!(!to.path().join("gone").exists());
}

#[test]
fn memory_stays_under_64_mib_both_ways() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("noise"), noise(2, 160 << 20)).unwrap();
    fs::write(from.path().join("text"), "compressible ".repeat(4 << 20)).unwrap();
    for number in 0..2000 {
        fs::write(from.path().join(format!("small{number}")), format!("{number}")).unwrap();
    }
    let shot = snapshot(from.path(), &[]);
    assert!(shot.report.bytes > 200 << 20);
    assert!(shot.peak > 1024 && shot.peak < LIMIT_KIB, "snapshot: {} KiB", shot.peak);
    let (answer, peak) = restore(to.path(), shot.manifest(), &shot.packs);
    assert!(matches!(answer, Answer::Done(Done::Restored(_))), "{answer:?}");
    assert!(peak > 1024 && peak < LIMIT_KIB, "restore: {peak} KiB");
    println!("peaks: snapshot {} KiB, restore {peak} KiB", shot.peak);
}

#[test]
fn an_unreadable_file_fails_by_name() {
    let from = tempfile::tempdir().unwrap();
    fs::set_permissions(from.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(from.path().join("d")).unwrap();
    fs::write(from.path().join("d/secret"), b"s").unwrap();
    fs::set_permissions(from.path().join("d/secret"), fs::Permissions::from_mode(0o000)).unwrap();
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut program = Program::start_as(from.path(), root.then_some(NOBODY));
    program.begin_snapshot(&[]);
    program.order(Order::PassTwo);
    let Answer::Failed(Failure { kind, path, reason }) = program.told() else { unreachable!() };
    assert_eq!((kind, path.as_deref()), (FailureKind::File, Some("d/secret")));
    assert!(reason.contains("d/secret: can't be read"), "{reason}");
    assert_eq!(program.exit_code(), 1);
}

#[test]
fn a_damaged_pack_leaves_an_empty_workspace_and_a_name() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("a"), noise(3, 20 << 20)).unwrap();
    let shot = snapshot(from.path(), &[]);
    let mut packs = shot.packs.clone();
    let (id, bytes) = packs.iter_mut().next_back().unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let name = id.to_string();
    let (answer, _) = restore(to.path(), shot.manifest(), &packs);
    let Answer::Failed(Failure { kind, reason, .. }) = answer else { unreachable!("{answer:?}") };
    assert_eq!(kind, FailureKind::Damaged);
    assert!(reason.contains(&name), "{reason}");
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn the_end_of_stdin_stops_a_restore_and_cleans_up() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("a"), noise(4, 30 << 20)).unwrap();
    let shot = snapshot(from.path(), &[]);
    let mut program = Program::start(to.path());
    program.begin_restore(shot.manifest(), false);
    let need = loop {
        if let Frame::Answer(Answer::Need { pack }) = program.hear() {
            break pack;
        }
    };
    program.say(Frame::Pack { id: need, record: None, bytes: shot.packs[&need].clone() });
    assert_eq!(program.exit_code(), 1);
    assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0);
}

#[test]
fn the_end_of_stdin_stops_a_snapshot() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a"), noise(5, 60 << 20)).unwrap();
    let mut program = Program::start(from.path());
    program.begin_snapshot(&[]);
    program.order(Order::PassTwo);
    while !matches!(program.hear(), Frame::Pack { .. }) {}
    assert_eq!(program.exit_code(), 1);
}

#[test]
fn a_cut_snapshot_is_taken_up_from_its_records() {
    let from = tempfile::tempdir().unwrap();
    fs::write(from.path().join("a"), noise(6, 50 << 20)).unwrap();
    let mut program = Program::start(from.path());
    program.begin_snapshot(&[]);
    program.order(Order::PassTwo);
    let (mut kept, mut held) = (Vec::new(), Vec::new());
    while kept.len() < 3 {
        if let Frame::Pack { id, record, .. } = program.hear() {
            kept.push((Part::Record, record.unwrap().encode()));
            held.push(id);
            program.order(Order::PackTaken);
        }
    }
    assert_eq!(program.exit_code(), 1);
    let shot = snapshot(from.path(), &kept);
    assert!(held.iter().all(|id| !shot.packs.contains_key(id)));
    assert!(shot.report.written.bytes_new < 40 << 20, "{}", shot.report.written.bytes_new);
    let needed = Manifest::open(&job_key(), shot.manifest()).unwrap().packs;
    assert!(held.iter().all(|id| needed.iter().any(|pack| pack.id == *id)));
}

#[test]
fn a_restore_wants_an_empty_workspace() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(to.path().join("mine"), b"m").unwrap();
    let shot = snapshot(from.path(), &[]);
    let (answer, _) = restore(to.path(), shot.manifest(), &shot.packs);
    let Answer::Failed(failure) = answer else { unreachable!() };
    assert_eq!(failure.kind, FailureKind::Workspace);
    assert_eq!(fs::read(to.path().join("mine")).unwrap(), b"m");
}

#[test]
fn usage_prepare_and_clear() {
    let dir = tempfile::tempdir().unwrap();
    let me = fs::metadata("/proc/self").unwrap();
    let run = |order| {
        let mut program = Program::start(dir.path());
        program.order(order);
        let done = program.done();
        assert_eq!(program.exit_code(), 0);
        done
    };
    let prepare = Order::Prepare { uid: me.uid(), gid: me.gid() };
    assert_eq!(run(prepare), Done::Prepared);
    assert!(dir.path().join(".home").is_dir());
    fs::write(dir.path().join("a"), vec![1; 5000]).unwrap();
    let Done::Usage(usage) = run(Order::Usage) else { unreachable!() };
    assert_eq!((usage.files, usage.folders, usage.bytes), (1, 1, 5000));
    assert_eq!(run(Order::Clear), Done::Cleared);
    assert_eq!(run(Order::Usage), Done::Usage(Usage::default()));
}

#[test]
fn one_program_clears_fills_and_prepares_a_workspace() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("kept"), noise(3, 100_000)).unwrap();
    let shot = snapshot(from.path(), &[]);
    fs::write(to.path().join("half of an earlier run"), b"x").unwrap();

    let me = fs::metadata("/proc/self").unwrap();
    let mut program = Program::start(to.path());
    program.order(Order::Clear);
    assert_eq!(program.done(), Done::Cleared);
    program.begin_restore(shot.manifest(), false);
    let Answer::Done(Done::Restored(_)) = program.answer(|pack| shot.packs[pack].clone()) else {
        unreachable!("it restores into what it has cleared")
    };
    program.order(Order::Prepare { uid: me.uid(), gid: me.gid() });
    assert_eq!(program.done(), Done::Prepared);
    assert_eq!(program.exit_code(), 0);
    let mut names: Vec<_> = fs::read_dir(to.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, [".home", "kept"]);
}

#[test]
fn an_order_out_of_turn_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let mut program = Program::start(dir.path());
    program.order(Order::PassTwo);
    let Answer::Failed(failure) = program.told() else { unreachable!() };
    assert_eq!(failure.kind, FailureKind::Conversation);
    assert_eq!(program.exit_code(), 1);
}
