//! A relay behind a reverse proxy that is set as tight as one finds it in the field: a real nginx that
//! ends TLS, cuts what is silent for 10 s, takes bodies of at most 1 MiB, gathers answers, and
//! speaks HTTP/1.1.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use gpunion_protocol::job::JobState;
use system_tests::campus::{Campus, Device, GPU_MEMORY, Nginx, PATIENCE, Relay, Setup, free_address};
use system_tests::lab::{Engine, wait_for};

/// Longer than the proxy leaves a silent connection.
const SILENCE: u32 = 13;

struct Proxied {
    ada: Device,
    lab: Device,
    nginx: Nginx,
    relay: Relay,
    _engine: Engine,
    _campus: Campus,
}

/// A provider and a member who reach the relay through nginx and in no other way.
fn proxied() -> Proxied {
    let campus = Campus::new().unwrap();
    let engine = campus.lab.engine("a").unwrap();
    campus.busybox_image(&engine).unwrap();
    let front = free_address().unwrap();
    // The certificate that devices see is the proxy's, so links must not pin the relay's key.
    let setup = Setup { settings: "pin = false\n".to_owned(), addresses: vec![front.clone()] };
    let relay = campus.relay_with(campus.lab.user("op").unwrap(), setup).unwrap();
    let mut nginx = Nginx::make(&relay.user, front, relay.address()).unwrap();
    nginx.start(&relay.user).unwrap();
    let device = |name: &str, user: &str, gpus| {
        let user = campus.lab.user(user).unwrap();
        nginx.trusted_by(&user).unwrap();
        let person = user.name().to_owned();
        let device = campus.device(name, user, &engine.socket(), gpus).unwrap();
        device.join(&relay.invite("member").unwrap(), &person).unwrap();
        device
    };
    let gpus = campus.stand_in("lab-7", &[(&campus.gpu("7"), GPU_MEMORY)]).unwrap();
    let lab = device("lab-7", "grace", Some(gpus));
    let ada = device("laptop", "ada", None);
    Proxied { ada, lab, nginx, relay, _engine: engine, _campus: campus }
}

/// A CPU job of a shell with so many MiB that nobody can pack.
fn folder(ada: &Device, name: &str, script: &str, mib: usize) -> PathBuf {
    let spec = format!(
        "name = \"{name}\"\nimage = \"busybox:latest\"\ncommand = [\"/busybox\", \"sh\", \"script.sh\"]\n\
         [resources]\ngpus = 0\nmemory = \"128 MiB\"\ndisk = \"1 GiB\"\n"
    );
    let folder = ada.job_folder(name, &spec).unwrap();
    ada.write_in(&folder, "script.sh", script).unwrap();
    fs::write(folder.join("input.bin"), noise(mib << 20)).unwrap();
    folder
}

/// Bytes without any pattern that a packer would find; the same each time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// How often its session broke off so far.
fn breaks(device: &Device) -> usize {
    device.log().matches("no session with the relay").count()
}

fn packs(relay: &Relay) -> usize {
    let folders = fs::read_dir(relay.state().join("packs")).unwrap();
    folders.map(|folder| fs::read_dir(folder.unwrap().path()).unwrap().count()).sum()
}

#[test]
fn f97_f103_a_job_runs_through_a_proxy_that_cuts_gathers_and_limits() {
    let p = proxied();
    p.lab.share().unwrap();
    let before = (breaks(&p.ada), breaks(&p.lab));
    // It is silent for longer than the proxy allows, and its result is more than the proxy takes.
    let script = format!(
        "echo first\n/busybox sleep {SILENCE}\n/busybox head -c 3000000 /dev/urandom > made.bin\necho last\n"
    );
    let folder = folder(&p.ada, "quiet", &script, 6);
    let (id, sent, _) = p.ada.submit(&folder).unwrap();
    assert!(sent > 6 << 20, "input and image travelled: {sent} B");

    let mut follow = p.ada.command(["logs", "-f", &id]);
    let mut follow = follow.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("first")), "the log ended before its first line");
    let job = p.ada.job(&id).unwrap();
    assert_eq!(job.state, JobState::Running, "the line came while it ran, not gathered at its end");
    assert!(lines.any(|line| line.contains("last")));
    for line in lines {
        drop(line);
    }
    assert!(follow.wait().unwrap().success());
    let job = p.ada.wait_job(&id, "the end", PATIENCE, |job| job.state.is_final()).unwrap();
    assert_eq!((job.state, job.attempts.len()), (JobState::Succeeded, 1), "{}", p.lab.log());

    p.ada.run(["fetch", &id, "result"]).unwrap().ok().unwrap();
    let result = p.ada.user.home().join("result");
    assert!(fs::read(result.join("input.bin")).unwrap() == noise(6 << 20));
    assert_eq!(fs::read(result.join("made.bin")).unwrap().len(), 3_000_000);

    assert_eq!((breaks(&p.ada), breaks(&p.lab)), before, "no session was cut for being silent");
    let seen = p.nginx.seen().unwrap();
    let of = |wanted: &str| seen.iter().filter(|(_, path, _, _)| path.contains(wanted)).count();
    assert_eq!(of("/log?"), 1, "the log was followed over one request: {seen:#?}");
    assert!(seen.iter().any(|(_, _, status, _)| *status == 413), "the limit was met");
    let in_parts = seen.iter().filter(|(method, _, status, _)| method == "PUT" && *status == 202).count();
    assert!(in_parts >= 6, "{in_parts} parts");
}

#[test]
fn f96_an_upload_that_the_proxy_cuts_goes_on_with_what_is_missing() {
    let mut p = proxied();
    p.lab.share().unwrap();
    let folder = folder(&p.ada, "large", "echo here", 48);
    let words = ["--json".as_ref(), "submit".as_ref(), folder.as_os_str(), "--yes".as_ref()];
    let mut submit = p.ada.command(words);
    let submit = submit.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // Some packs have arrived, others are on their way.
    wait_for("the first packs", Duration::from_secs(60), || Ok((packs(&p.relay) >= 6).then_some(())))
        .unwrap();
    p.nginx.kill().unwrap();
    let cut = submit.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&cut.stderr).into_owned();
    assert!(!cut.status.success(), "it was cut: {said}");
    assert!(said.contains("relay_away"), "and says so: {said}");

    p.nginx.start(&p.relay.user).unwrap();
    let (id, sent, reused) = p.ada.submit(&folder).unwrap();
    // What was on its way when it was cut is not known to have arrived; a pack has 4 MiB at least.
    assert!(reused >= 4 << 20, "{reused} B were there already, {sent} B were sent");
    assert!(sent < 48 << 20, "what was there was not sent again: {sent} B");
    let job = p.ada.wait_job(&id, "the end", PATIENCE, |job| job.state.is_final()).unwrap();
    assert_eq!(job.state, JobState::Succeeded, "{}", p.lab.log());
}
