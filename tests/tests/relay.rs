//! What an operator lives through: a disk that is full, a backup that is put back, a relay that moves
//! to another address. Members and providers lose nothing by it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpunion_protocol::job::{JobState, JobView};
use system_tests::campus::{Campus, Device, GPU_MEMORY, PATIENCE, Relay, Setup, free_address};
use system_tests::lab::{Engine, User, wait_for};

struct Small {
    ada: Device,
    lab: Device,
    relay: Relay,
    engine: Engine,
    _campus: Campus,
}

/// One provider that lends, one member, a relay set up like this; `first` sees its operator before
/// it starts.
fn small(setup: Setup, first: impl FnOnce(&User)) -> Small {
    let campus = Campus::new().unwrap();
    let engine = campus.lab.engine("a").unwrap();
    campus.busybox_image(&engine).unwrap();
    let operator = campus.lab.user("op").unwrap();
    first(&operator);
    let relay = campus.relay_with(operator, setup).unwrap();
    let gpus = campus.stand_in("lab-7", &[(&campus.gpu("7"), GPU_MEMORY)]).unwrap();
    let lab =
        campus.device("lab-7", campus.lab.user("grace").unwrap(), &engine.socket(), Some(gpus)).unwrap();
    lab.join(&relay.invite("member").unwrap(), "grace").unwrap();
    let ada = campus.device("laptop", campus.lab.user("ada").unwrap(), &engine.socket(), None).unwrap();
    ada.join(&relay.invite("operator").unwrap(), "ada").unwrap();
    lab.share().unwrap();
    Small { ada, lab, relay, engine, _campus: campus }
}

fn folder(ada: &Device, name: &str, script: &str) -> PathBuf {
    let spec = format!(
        "name = \"{name}\"\nimage = \"busybox:latest\"\ncommand = [\"/busybox\", \"sh\", \"script.sh\"]\n\
         [resources]\ngpus = 0\nmemory = \"128 MiB\"\ndisk = \"1 GiB\"\n"
    );
    let folder = ada.job_folder(name, &spec).unwrap();
    ada.write_in(&folder, "script.sh", script).unwrap();
    folder
}

/// A job that ticks so many seconds and leaves a file.
fn ticking(ada: &Device, name: &str, seconds: u32) -> String {
    let script = format!(
        "i=0\nwhile [ $i -lt {seconds} ]; do echo tick $i; /busybox sleep 1; i=$((i+1)); done\necho {name} > done\n"
    );
    ada.submit(&folder(ada, name, &script)).unwrap().0
}

fn runs(s: &Small, id: &str) -> JobView {
    let job = s
        .ada
        .wait_job(id, "the start", PATIENCE, |job| job.state == JobState::Running || job.state.is_final());
    let job = job.unwrap();
    assert_eq!(job.state, JobState::Running, "{}", s.lab.log());
    job
}

fn succeeds(s: &Small, id: &str) -> JobView {
    let job = s.ada.wait_job(id, "the end", PATIENCE, |job| job.state.is_final()).unwrap();
    assert_eq!(job.state, JobState::Succeeded, "{job:#?}\n{}\n{}", s.lab.log(), s.relay.log());
    job
}

fn connected(device: &Device, what: &str) {
    wait_for(what, PATIENCE, || {
        Ok(device.snapshot()?.group.is_some_and(|group| group.connected).then_some(()))
    })
    .unwrap();
}

/// A file system of its own for the state, so small that it can be filled.
fn small_disk(operator: &User) {
    let state = operator.home().join("relay");
    fs::create_dir(&state).unwrap();
    let size = format!("size=48m,mode=700,uid={},gid={}", operator.uid(), operator.gid());
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "relay-disk"]).arg(&state).status();
    assert!(mounted.unwrap().success());
}

/// Fills the disk until so many bytes are free; what it is filled with.
fn fill(state: &Path, leave: u64) -> PathBuf {
    use std::io::Write as _;
    let ballast = state.join("ballast");
    let mut file = fs::File::options().create(true).append(true).open(&ballast).unwrap();
    let free = || {
        let disk = nix::sys::statvfs::statvfs(state).unwrap();
        disk.blocks_available() as u64 * disk.fragment_size() as u64
    };
    while free() > leave {
        let step = (free() - leave).min(1 << 20);
        if file.write_all(&vec![0; step as usize]).is_err() {
            break;
        }
    }
    ballast
}

#[test]
fn f101_a_relay_whose_disk_is_full_loses_nothing_and_recovers() {
    let s = small(Setup { settings: "keep_free = \"12 MiB\"\n".to_owned(), ..Setup::default() }, small_disk);
    let state = s.relay.state();
    let running = ticking(&s.ada, "before", 6);
    runs(&s, &running);

    // Nearly full: what is large is refused in words, what the group lives by goes on.
    let ballast = fill(&state, 6 << 20);
    let late = folder(&s.ada, "late", "echo late > done");
    fs::write(late.join("more.bin"), vec![7; 1_000_000]).unwrap();
    let words = ["--json".as_ref(), "submit".as_ref(), late.as_os_str(), "--yes".as_ref()];
    let refused = s.ada.run(words).unwrap();
    assert_ne!(refused.code, Some(0));
    assert!(refused.err.contains("disk_full") && refused.err.contains("operator"), "{refused:?}");
    s.relay.invite("member").unwrap();
    assert!(s.ada.snapshot().unwrap().group.unwrap().connected);
    // Its program ends meanwhile; the result can't be taken, and waits.
    wait_for("the trouble with saving", PATIENCE, || {
        let job = s.ada.job(&running)?;
        assert!(!job.state.is_final(), "without its result it is not over: {job:#?}");
        Ok(s.lab.log().contains("disk").then_some(()))
    })
    .unwrap();

    // Full to the last byte: not even the database grows. Callers are told.
    fill(&state, 0);
    wait_for("an invite that is refused", PATIENCE, || {
        let asked = s.relay.command(&["invite", "--role", "member", "--json"]).output()?;
        let said = String::from_utf8_lossy(&asked.stderr).into_owned();
        Ok((!asked.status.success() && said.contains("disk_full")).then_some(()))
    })
    .unwrap();

    fs::remove_file(&ballast).unwrap();
    wait_for("an invite again", PATIENCE, || {
        let asked = s.relay.command(&["invite", "--role", "member", "--json"]).output()?;
        Ok(asked.status.success().then_some(()))
    })
    .unwrap();
    connected(&s.ada, "the member's session");
    let job = succeeds(&s, &running);
    assert!(job.attempts.iter().all(|attempt| attempt.device_name == "lab-7"));
    s.ada.run(["fetch", &running, "result"]).unwrap().ok().unwrap();
    assert_eq!(fs::read_to_string(s.ada.user.home().join("result/done")).unwrap(), "before\n");
    let id = s.ada.submit(&late).unwrap().0;
    succeeds(&s, &id);
}

/// The epoch in the token of the job's attempt, as its guest's name tells it.
fn epoch(s: &Small, job: &str) -> u64 {
    wait_for("a guest of the job", PATIENCE, || {
        let names = s.engine.left_of_guests()?;
        let token = names.iter().find_map(|name| Some(name.split_once(job)?.1.to_owned()));
        Ok(token.and_then(|token| token.split('-').nth(1)?.parse().ok()))
    })
    .unwrap()
}

#[test]
fn a_backup_that_is_put_back_repeats_no_token_and_ends_what_it_does_not_know() {
    let mut s = small(Setup::default(), |_| {});
    let known = ticking(&s.ada, "known", 25);
    let attempt = runs(&s, &known).attempts[0].number;
    let backup = s.relay.user.home().join("backup");
    fs::create_dir(&backup).unwrap();
    chown(&backup, Some(s.relay.user.uid()), Some(s.relay.user.gid())).unwrap();
    let to = backup.join("relay.sqlite").to_string_lossy().into_owned();
    let asked = s.relay.command(&["backup", &to, "--json"]).output().unwrap();
    assert!(asked.status.success(), "{asked:?}");
    let done: serde_json::Value = serde_json::from_slice(&asked.stdout).unwrap();
    let beside: Vec<PathBuf> = serde_json::from_value(done["copy_too"].clone()).unwrap();
    for path in &beside {
        let copied = s.relay.user.command("cp").arg("-a").arg(path).arg(&backup).status().unwrap();
        assert!(copied.success(), "{}", path.display());
    }
    let before = epoch(&s, &known);

    // After the backup, and so unknown to it.
    let unknown = ticking(&s.ada, "unknown", 600);
    runs(&s, &unknown);
    assert_eq!(epoch(&s, &unknown), before, "of the same run of the relay");
    s.relay.kill().unwrap();
    let state = s.relay.state();
    fs::rename(&state, s.relay.user.home().join("lost")).unwrap();
    fs::rename(&backup, &state).unwrap();
    s.relay.start_again().unwrap();
    connected(&s.lab, "the provider's session");
    connected(&s.ada, "the member's session");

    // The attempt that was under way counts as ever, and ends with its result.
    let job = succeeds(&s, &known);
    assert_eq!(job.attempts.iter().map(|a| a.number).collect::<Vec<_>>(), [attempt], "{}", s.relay.log());
    // Of the other job nobody knows; its guest is ended, its place free again.
    let gone = s.ada.run(["show", &unknown]).unwrap();
    assert_ne!(gone.code, Some(0), "{gone:?}");
    wait_for("the end of the unknown guest", PATIENCE, || {
        let left = s.engine.left_of_guests()?;
        Ok((!left.iter().any(|name| name.contains(&unknown))).then_some(()))
    })
    .unwrap();
    let next = ticking(&s.ada, "next", 5);
    let after = epoch(&s, &next);
    assert!(after > before, "{after} after {before}: a token of the time before could come again");
    succeeds(&s, &next);
}

#[test]
fn a_relay_moves_to_another_address_and_certificate_and_only_another_key_loses_it() {
    let mut s = small(Setup::default(), |_| {});
    let old = s.relay.address().to_owned();
    let new = free_address().unwrap();

    // It announces both, the new one first, and is still where it was; its certificate is another.
    s.relay.setup.addresses = vec![new.clone(), old];
    s.relay.kill().unwrap();
    s.relay.start_again().unwrap();
    for device in [&s.lab, &s.ada] {
        wait_for("the new address in the device's memory", PATIENCE, || {
            let text = fs::read_to_string(device.data().join("group.json"))?;
            Ok(text.contains(&new).then_some(()))
        })
        .unwrap();
    }
    // Now it is there and nowhere else; a job that runs goes on.
    let running = ticking(&s.ada, "moving", 8);
    runs(&s, &running);
    s.relay.kill().unwrap();
    s.relay.move_to(new.clone());
    s.relay.setup.addresses = vec![new];
    s.relay.start_again().unwrap();
    let job = succeeds(&s, &running);
    assert_eq!(job.attempts.len(), 1);

    // Somebody else's key at the same address: nothing is told to it.
    let key = s.relay.state().join("key.pem");
    let aside = s.relay.user.home().join("key.pem");
    s.relay.kill().unwrap();
    fs::rename(&key, &aside).unwrap();
    s.relay.start_again().unwrap();
    let mut last = None;
    wait_for("the refusal and its fix", PATIENCE, || {
        last = s.ada.snapshot()?.group.and_then(|group| group.trouble);
        Ok(last.as_ref().is_some_and(|text| text.contains("ask the operator for a new link")).then_some(()))
    })
    .unwrap_or_else(|error| panic!("{error:#}: {last:?}"));
    let asked = s.ada.run(["jobs"]).unwrap();
    assert!(asked.code == Some(3) && asked.err.contains("another relay"), "{asked:?}");

    // The key comes back from the backup, and everybody with it.
    s.relay.kill().unwrap();
    fs::rename(&aside, &key).unwrap();
    s.relay.start_again().unwrap();
    connected(&s.lab, "the provider's session");
    connected(&s.ada, "the member's session");
    let job = ticking(&s.ada, "after", 1);
    succeeds(&s, &job);
}
