//! What an owner lends and what a member may ask for: from a fresh install on, through restarts,
//! refusals, and every way in which a job ends.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::path::Path;

use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::job::{AttemptState, EndCause, JobState, JobView};
use gpunion_protocol::local::Wish;
use system_tests::campus::{Device, PATIENCE, Pace, Pair, processes_of};
use system_tests::lab::wait_for;

const ONE: &str = "GPU-stand-in-7a";
const TWO: &str = "GPU-stand-in-7b";
const SLOW: Pace = Pace { epochs: 8, epoch_seconds: 0.8 };

fn digits(pair: &Pair, name: &str, pace: Pace) -> String {
    let folder = pair.ada.digits_folder(name, pace).unwrap();
    pair.ada.submit(&folder).unwrap().0
}

/// A CPU job of a shell; `more` goes behind `[resources]`.
fn shell(pair: &Pair, name: &str, script: &str, more: &str) -> String {
    let folder = shell_folder(pair, name, script, more);
    pair.ada.submit(&folder).unwrap().0
}

fn shell_folder(pair: &Pair, name: &str, script: &str, more: &str) -> std::path::PathBuf {
    let spec = format!(
        "name = \"{name}\"\nimage = \"busybox:latest\"\ncommand = [\"/busybox\", \"sh\", \"script.sh\"]\n\
         [resources]\ngpus = 0\nmemory = \"128 MiB\"\ndisk = \"1 GiB\"\n{more}"
    );
    let folder = pair.ada.job_folder(name, &spec).unwrap();
    pair.ada.write_in(&folder, "script.sh", script).unwrap();
    folder
}

fn runs(pair: &Pair, id: &str) -> JobView {
    let good = |job: &JobView| job.state == JobState::Running || job.state.is_final();
    let job = pair.ada.wait_job(id, "the start", PATIENCE, good).unwrap();
    assert_eq!(job.state, JobState::Running, "{job:#?}\n{}", pair.logs());
    job
}

fn ends(pair: &Pair, id: &str) -> JobView {
    pair.ada.wait_job(id, "the end", PATIENCE, |job| job.state.is_final()).unwrap()
}

/// Waits until it is queued for a reason that names all of these; answers the sentence.
fn queued_because(pair: &Pair, id: &str, words: &[&str]) -> String {
    let because = |job: &JobView| match &job.state {
        JobState::Queued { why } => words.iter().all(|word| why.contains(word)),
        _ => false,
    };
    pair.ada.wait_job(id, "the reason", PATIENCE, because).unwrap();
    let why = pair.ada.run(["why", id]).unwrap().ok().unwrap().out;
    assert!(words.iter().all(|word| why.contains(word)), "{why}");
    why
}

/// The GPUs that attempts hold now, by the provider's own word.
fn lent(owner: &Device) -> Vec<GpuUuid> {
    let gpus = owner.snapshot().unwrap().gpus;
    gpus.into_iter().filter(|gpu| gpu.lent_to.is_some()).map(|gpu| gpu.sample.uuid).collect()
}

fn share(owner: &Device, words: &[&str]) {
    let words: Vec<&str> = ["share"].iter().chain(words).copied().collect();
    owner.run(words).unwrap().ok().unwrap();
}

#[test]
fn f49_an_owner_lends_by_the_gpu_and_the_wish_outlives_the_agent() {
    let mut pair = Pair::found([&[ONE, TWO], &["GPU-stand-in-3"]]).unwrap();
    pair.campus.digits_image(&pair.engines[0]).unwrap();

    // After the first install nothing is lent.
    for provider in &pair.providers {
        let share = provider.snapshot().unwrap().share;
        assert_eq!((share.wish, share.open), (Wish::NotSharing, false), "{share:?}");
    }
    let first = digits(&pair, "first", SLOW);
    queued_because(&pair, &first, &["lend"]);

    // One GPU of two: it is taken, and the other is not.
    share(&pair.providers[0], &["on", "--gpu", ONE, "--cpus", "4"]);
    runs(&pair, &first);
    let second = digits(&pair, "second", SLOW);
    let why = queued_because(&pair, &second, &["GPU"]);
    assert!(why.contains("next") || why.contains("before"), "a place in the queue: {why}");
    assert_eq!(lent(&pair.providers[0]), [GpuUuid(ONE.to_owned())]);

    // The wish outlives a crash, GPU by GPU.
    pair.providers[0].kill_agent().unwrap();
    pair.providers[0].start_agent().unwrap();
    let after = pair.providers[0].snapshot().unwrap().share;
    assert_eq!(after.wish, Wish::NotSharing);
    assert_eq!(after.gpus.get(ONE), Some(&Wish::Sharing { until: None }), "{after:?}");
    assert_eq!(after.gpus.len(), 1, "{after:?}");

    // The other one too: the second job starts beside the first, which may have ended by now.
    share(&pair.providers[0], &["on", "--gpu", TWO]);
    runs(&pair, &second);

    // Off: what runs saves, leaves and waits, as nobody else lends; what comes waits too.
    share(&pair.providers[0], &["off"]);
    let third = digits(&pair, "third", SLOW);
    for id in [&first, &second] {
        let done = |job: &JobView| job.state.is_final() || matches!(job.state, JobState::Queued { .. });
        let job = pair.ada.wait_job(id, "its leaving", PATIENCE, done).unwrap();
        let finished = EndCause::Exited { code: 0 };
        let ended = |cause: &EndCause| *cause == EndCause::Left || *cause == finished;
        assert!(matches!(&job.attempts[0].state, AttemptState::Ended { cause } if ended(cause)), "{job:#?}");
    }
    let used: BTreeSet<GpuUuid> = [ONE, TWO].map(|uuid| GpuUuid(uuid.to_owned())).into();
    assert!(lent(&pair.providers[0]).is_empty(), "of {used:?} none is held any more");
    queued_because(&pair, &third, &["lend"]);
    pair.providers[0].kill_agent().unwrap();
    pair.providers[0].start_agent().unwrap();
    let share = pair.providers[0].snapshot().unwrap().share;
    assert!(share.wish == Wish::NotSharing && share.gpus.is_empty() && !share.open, "{share:?}");
    let second = pair.ada.job(&second).unwrap();
    if !second.state.is_final() {
        pair.ada.run(["cancel", second.id.as_str()]).unwrap().ok().unwrap();
    }
    let first = pair.ada.job(&first).unwrap();
    if !first.state.is_final() {
        pair.ada.run(["cancel", first.id.as_str()]).unwrap().ok().unwrap();
    }

    // Cancelled while it waits, it never starts.
    pair.ada.run(["cancel", &third]).unwrap().ok().unwrap();
    let job = ends(&pair, &third);
    assert_eq!((job.state, job.attempts.len()), (JobState::Cancelled, 0));
    pair.is_clean().unwrap();
}

#[test]
fn each_end_is_named_and_each_refusal_has_its_sentence() {
    let pair = Pair::lending().unwrap();
    pair.campus.busybox_image(&pair.engines[0]).unwrap();
    refusals(&pair);
    a_running_job_is_cancelled(&pair);
    own_ends(&pair);
    output(&pair);
    second_run(&pair);
    pair.is_clean().unwrap();
    for engine in &pair.engines {
        // F11: whatever ran, nobody is left who was not reaped.
        assert!(engine.guests().unwrap().is_empty());
    }
}

fn refusals(pair: &Pair) {
    let egress = shell_folder(pair, "egress", "true", "[network]\negress = [\"10.0.0.1\"]\n");
    let ran = pair.ada.run(["submit", egress.to_str().unwrap(), "--yes"]).unwrap();
    assert!(matches!(ran.code, Some(2 | 4)), "{ran:?}");
    assert!(ran.err.contains("network.egress") && ran.err.contains("only names are allowed"), "{}", ran.err);
    let typing = shell_folder(pair, "typing", "true", "[checkpoint]\nevry = \"5 s\"\n");
    let ran = pair.ada.run(["submit", typing.to_str().unwrap(), "--yes"]).unwrap();
    assert!(ran.code == Some(2) || ran.code == Some(4), "{ran:?}");
    assert!(ran.err.contains("checkpoint.evry") && ran.err.contains("checkpoint.every"), "{}", ran.err);

    // No GPU of the group is so large: it waits, and says for what.
    let spec = "name = \"large\"\nimage = \"digits:latest\"\ncommand = [\"/digits\"]\n\
                [resources]\ngpus = 1\ngpu_memory = \"40 GiB\"\nmemory = \"512 MiB\"\ndisk = \"1 GiB\"\n";
    let folder = pair.ada.job_folder("large", spec).unwrap();
    let (large, ..) = pair.ada.submit(&folder).unwrap();
    queued_because(pair, &large, &["40 GiB"]);
    pair.ada.run(["cancel", &large]).unwrap().ok().unwrap();
    assert_eq!(ends(pair, &large).state, JobState::Cancelled);
}

fn a_running_job_is_cancelled(pair: &Pair) {
    let id = digits(pair, "cancelled", Pace { epochs: 50, epoch_seconds: 1.0 });
    let at = pair.in_the_middle(&id).unwrap();
    let guest = pair.engines[at].guests().unwrap();
    pair.ada.run(["cancel", &id]).unwrap().ok().unwrap();
    let job = ends(pair, &id);
    assert_eq!(job.state, JobState::Cancelled);
    let owner = &pair.providers[at];
    wait_for("the GPU to be free", PATIENCE, || {
        let free = owner.gpus.as_ref().unwrap().read()?[0].processes.as_ref().is_some_and(Vec::is_empty);
        Ok((free && lent(owner).is_empty()).then_some(()))
    })
    .unwrap();
    assert!(guest.iter().all(|container| processes_of(container).is_empty()), "its processes are gone");
    pair.is_clean().unwrap();
    let later = pair.ada.job(&id).unwrap();
    assert_eq!(later.state, JobState::Cancelled, "final states are final");
    assert!(matches!(later.attempts[0].state, AttemptState::Ended { cause: EndCause::Cancelled }));
}

fn own_ends(pair: &Pair) {
    let failed = |job: &JobView| match &job.state {
        JobState::Failed { cause } => cause.clone(),
        other => panic!("{other:?}: {job:#?}"),
    };
    let seven = shell(pair, "seven", "echo going; exit 7", "");
    // dd reads its block into memory at one go.
    let script = "/busybox dd if=/dev/zero of=/dev/null bs=512M count=1\nexit $?";
    let greedy = shell(pair, "greedy", script, "");
    let signalled = shell(pair, "signalled", "kill -9 $$", "");
    let job = ends(pair, &seven);
    assert_eq!(failed(&job), EndCause::Exited { code: 7 });
    assert_eq!(job.attempts.len(), 1, "the program's own end is no reason to try again: {job:#?}");
    let why = pair.ada.run(["why", &seven]).unwrap().ok().unwrap().out;
    assert!(why.contains("exit code 7"), "{why}");
    let job = ends(pair, &greedy);
    assert_eq!(failed(&job), EndCause::MemoryLimit, "{job:#?}\n{}", pair.logs());
    assert_eq!(job.attempts.len(), 1, "the limit is the member's own: {job:#?}");
    let why = pair.ada.run(["why", &greedy]).unwrap().ok().unwrap().out;
    assert!(why.contains("needed more memory than its spec allows"), "{why}");
    assert_eq!(failed(&ends(pair, &signalled)), EndCause::Signalled { signal: 9 });
    let missing = "name = \"missing\"\nimage = \"busybox:latest\"\ncommand = [\"/no-such-program\"]\n\
                   [resources]\ngpus = 0\nmemory = \"64 MiB\"\ndisk = \"1 GiB\"\n";
    let (missing, ..) = pair.ada.submit(&pair.ada.job_folder("missing", missing).unwrap()).unwrap();
    assert_eq!(failed(&ends(pair, &missing)), EndCause::Exited { code: 127 });
}

/// F99, F100: output without an end of line, bars that draw over themselves, and a flood that
/// nobody reads.
fn output(pair: &Pair) {
    let bars = "printf 'a bar:'; for i in 1 2 3; do printf '\\r%s of 3' $i; done; printf '\\nno end of line'";
    let bars = shell(pair, "bars", bars, "");
    let flood = "/busybox yes 0123456789abcdef | /busybox head -c 100000000\necho; echo the end of it\n\
                 echo done > done";
    let flood = shell(pair, "flood", flood, "");
    pair.succeeds(&bars).unwrap();
    let log = pair.ada.run(["logs", &bars]).unwrap().ok().unwrap().out;
    assert_eq!(log, "a bar:\r1 of 3\r2 of 3\r3 of 3\nno end of line");
    pair.succeeds(&flood).unwrap();
    let log = pair.ada.run(["logs", &flood]).unwrap().ok().unwrap();
    assert!(log.out.ends_with("the end of it\n"), "{:?}", &log.out[log.out.len().saturating_sub(200)..]);
    assert!(log.out.len() < 100_000_000 && log.err.contains("were dropped"), "{}", log.err);
    pair.ada.run(["fetch", &flood, "flood-results"]).unwrap().ok().unwrap();
    let done = std::fs::read(pair.ada.user.home().join("flood-results/done")).unwrap();
    assert_eq!(done, b"done\n", "what it wrote beside its output is there");
}

fn second_run(pair: &Pair) {
    let folder = shell_folder(pair, "again", "cat big.bin > copy.bin", "");
    let big: String = (0..400_000).map(|n: u32| format!("{:08x}", n.wrapping_mul(2_654_435_761))).collect();
    pair.ada.write_in(&folder, "big.bin", &big).unwrap();
    let (first, sent, _) = pair.ada.submit(&folder).unwrap();
    assert!(sent > 500_000, "{sent} bytes were sent");
    pair.succeeds(&first).unwrap();
    let (same, sent, reused) = pair.ada.submit(&folder).unwrap();
    assert!(sent < 20_000 && reused > 500_000, "the same again: {sent} sent, {reused} reused");
    pair.ada.write_in(&folder, "small.txt", "changed").unwrap();
    let (changed, sent, reused) = pair.ada.submit(&folder).unwrap();
    assert!(sent < 20_000 && reused > 500_000, "one small file: {sent} sent, {reused} reused");
    for id in [&same, &changed] {
        pair.succeeds(id).unwrap();
    }
    // What was reused is whole.
    pair.ada.run(["fetch", &changed, "again-results"]).unwrap().ok().unwrap();
    let results = pair.ada.user.home().join("again-results");
    assert!(std::fs::read(results.join("copy.bin")).unwrap() == big.as_bytes());
    assert_eq!(std::fs::read(results.join("small.txt")).unwrap(), b"changed");
}

#[test]
fn f104_a_secret_reaches_the_program_and_nothing_else() {
    let pair = Pair::lending().unwrap();
    pair.campus.busybox_image(&pair.engines[0]).unwrap();
    let value = format!("s3cret-{:016x}", std::process::id().wrapping_mul(2_654_435_761));
    let script = "printf %s \"$TOKEN\" > told; : > /run/gpunion/saved; echo told; /busybox sleep 600";
    let folder =
        shell_folder(&pair, "secret", script, "[checkpoint]\nevery = \"1 s\"\n[secrets]\nTOKEN = {}\n");

    let without = pair.ada.run(["submit", folder.to_str().unwrap(), "--yes"]).unwrap();
    assert!(without.code == Some(2) && without.err.contains("TOKEN"), "{without:?}");
    let mut submit = pair.ada.command(["--json", "submit", folder.to_str().unwrap(), "--yes"]);
    let submitted = submit.env("TOKEN", &value).output().unwrap();
    let said = String::from_utf8_lossy(&[submitted.stdout, submitted.stderr].concat()).into_owned();
    assert!(submitted.status.success(), "{said}");
    let at = pair.in_the_middle("secret").unwrap();
    pair.ada.run(["fetch", "secret", "secret-results", "--checkpoint"]).unwrap().ok().unwrap();
    let told = std::fs::read_to_string(pair.ada.user.home().join("secret-results/told")).unwrap();
    assert_eq!(told, value, "the program has it");

    let hold = |what: &str, text: &str| assert!(!text.contains(&value), "the secret is in {what}");
    hold("what submit said", &said);
    let container = pair.engines[at].guest().unwrap();
    hold("docker inspect", &pair.engines[at].inspect(&container).unwrap().to_string());
    for device in pair.providers.iter().chain([&pair.ada]) {
        hold("an agent's log", &device.log());
        hold("an agent's snapshot", &serde_json::to_string(&device.snapshot().unwrap()).unwrap());
        in_no_file(&device.data(), &value);
    }
    hold("the relay's log", &pair.relay.log());
    in_no_file(&pair.relay.user.home().join("relay"), &value);
    for words in [["show", "secret"].as_slice(), &["jobs"], &["logs", "secret"]] {
        let words: Vec<&str> = ["--json"].iter().chain(words).copied().collect();
        let ran = pair.ada.run(&words).unwrap().ok().unwrap();
        hold(&format!("{words:?}"), &format!("{}{}", ran.out, ran.err));
    }
    hold("the argv of a process", &all_arguments());
    pair.ada.run(["cancel", "secret"]).unwrap().ok().unwrap();
    assert_eq!(ends(&pair, "secret").state, JobState::Cancelled);
    pair.is_clean().unwrap();
}

/// Nobody needs to keep it: what travels is sealed.
fn in_no_file(folder: &Path, value: &str) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => in_no_file(&path, value),
            kind if kind.is_file() => {
                let bytes = std::fs::read(&path).unwrap_or_default();
                let found = bytes.windows(value.len()).any(|window| window == value.as_bytes());
                assert!(!found, "the secret is in {}", path.display());
            }
            _ => {}
        }
    }
}

fn all_arguments() -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let arguments = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        text.push_str(&String::from_utf8_lossy(&arguments));
        text.push('\n');
    }
    text
}

#[test]
fn whoever_leaves_the_group_leaves_no_guest_behind() {
    let pair = Pair::lending().unwrap();
    let id = digits(&pair, "left-behind", SLOW);
    let at = pair.in_the_middle(&id).unwrap();
    let provider = &pair.providers[at];
    provider.run(["leave-group"]).unwrap().ok().unwrap();
    wait_for("its guests to be gone", PATIENCE, || {
        let (guests, left) = (provider.snapshot()?.guests, pair.engines[at].left_of_guests()?);
        Ok((guests.is_empty() && left.is_empty()).then_some(()))
    })
    .unwrap();
    let job = pair.succeeds(&id).unwrap();
    assert_ne!(pair.at(&job).unwrap(), at, "it went on where it is wanted: {job:#?}");
    pair.is_clean().unwrap();
}
