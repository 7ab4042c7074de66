//! Following a job's output, and finding a job, when something is in the way.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use gpunion_agent_core::consumer::keys::wrap_for;
use gpunion_agent_core::relay_link::{SessionEvent, SessionHandle};
use gpunion_protocol::http::Submit;
use gpunion_protocol::ids::{AttemptRef, JobId};
use gpunion_protocol::job::{AttemptState, Blob, Image, JobView};
use gpunion_protocol::local::Finding;
use gpunion_protocol::offer::Offer;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::units::Bytes;
use gpunion_snapshot::JobKey;

use crate::support::{Half, LIMIT, Relay, gpunion};

async fn submitted(half: &Half, number: u64, name: &str) -> Submit {
    let mut spec = JobSpec::of_image("a:1");
    name.clone_into(&mut spec.name);
    spec.resources.gpus = 0;
    let job = JobId::new(1_000 + number, [u8::try_from(number % 256).unwrap(); 10]);
    let devices = half.pairing.current().unwrap().client.devices().await.unwrap();
    Submit {
        keys: wrap_for(&JobKey::from_bytes([1; 32]), &job, &devices).unwrap(),
        job,
        spec,
        image: Image::Registry { reference: "a:1".to_owned(), digest: None },
        input: None,
        data: Vec::new(),
        sealed: Blob(Vec::new()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_behind_a_hundred_others_is_listed_and_found() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let client = half.pairing.current().unwrap().client.clone();
    let first = client.submit(&submitted(&half, 0, "the first & only").await).await.unwrap().job;
    for number in 1..=105 {
        let job = client.submit(&submitted(&half, number, "later").await).await.unwrap().job;
        client.cancel(&job).await.unwrap();
    }
    let json = |ran: crate::support::Ran| -> Vec<JobView> {
        assert_eq!(ran.code, 0, "{ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    };
    let open = json(half.gpunion(&["jobs", "--active", "--json"]).await);
    assert_eq!(open.iter().map(|job| &job.id).collect::<Vec<_>>(), [&first]);
    assert_eq!(json(half.gpunion(&["jobs", "--json"]).await).len(), 106);
    let shown = half.gpunion(&["show", "the first & only", "--json"]).await;
    assert_eq!(serde_json::from_str::<JobView>(&shown.stdout).unwrap().id, first, "{shown:?}");
    let end = &first.as_str()[first.as_str().len() - 20..];
    assert_eq!(half.gpunion(&["why", end]).await.code, 0);
    relay.stop().await;
}

/// Takes the job up and says so; it goes on computing.
async fn taken_up(session: &mut SessionHandle) -> AttemptRef {
    let offer = Offer {
        open: true,
        cpus: 4,
        memory: Bytes(64 << 30),
        disk: Bytes(640 << 30),
        architecture: "amd64".to_owned(),
        ..Offer::default()
    };
    session.outgoing.send(ToRelay::Offer { offer: offer.clone() }).await.unwrap();
    loop {
        match tokio::time::timeout(LIMIT, session.incoming.recv()).await.unwrap().unwrap() {
            SessionEvent::Up { .. } => {
                session.outgoing.send(ToRelay::Offer { offer: offer.clone() }).await.unwrap();
            }
            SessionEvent::Message(ToAgent::Assign(assignment)) => {
                let attempt = assignment.attempt.clone();
                let state =
                    ToRelay::State { attempt: attempt.clone(), state: AttemptState::Running, note: None };
                session.outgoing.send(state).await.unwrap();
                return attempt;
            }
            SessionEvent::Message(_) | SessionEvent::Down { .. } => {}
        }
    }
}

/// A job of this member that its own device runs.
async fn running(half: &mut Half, home: &std::path::Path) -> AttemptRef {
    let at = home.join("job");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("gpunion.toml"), "name = \"job\"\nimage = \"a:1\"\n[resources]\ngpus = 0\n").unwrap();
    let ran = half.gpunion(&["submit", at.to_str().unwrap(), "--yes"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    taken_up(&mut half.session).await
}

/// `gpunion logs -f job`, and what it prints.
fn follow(half: &Half) -> (Child, Option<BufReader<ChildStdout>>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gpunion"))
        .args(["logs", "-f", "job"])
        .env_clear()
        .env("GPUNION_DATA", &half.dirs.data)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let reader = BufReader::new(child.stdout.take().unwrap());
    (child, Some(reader))
}

/// Waits where waiting is fine; `reader` is there again afterwards.
async fn first_line(reader: &mut Option<BufReader<ChildStdout>>) -> String {
    let mut from = reader.take().unwrap();
    let read = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        (line, from)
    });
    let (line, from) = tokio::time::timeout(LIMIT, read).await.unwrap().unwrap();
    *reader = Some(from);
    line
}

#[tokio::test(flavor = "multi_thread")]
async fn following_ends_when_nobody_reads_any_more() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let mut half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let attempt = running(&mut half, home.path()).await;
    let (mut child, mut reader) = follow(&half);
    let mut offset = 0;
    let mut line = |number: u64| {
        let bytes = format!("line {number}\n").into_bytes();
        let log = ToRelay::Log { attempt: attempt.clone(), offset, bytes: Blob(bytes.clone()) };
        offset += bytes.len() as u64;
        log
    };
    half.session.outgoing.send(line(0)).await.unwrap();
    assert_eq!(first_line(&mut reader).await, "line 0\n");
    drop(reader);
    // `| head -1` has gone. The job goes on, and so does its output.
    let mut number = 1;
    let status = tokio::time::timeout(LIMIT, async {
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            half.session.outgoing.send(line(number)).await.unwrap();
            number += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(status.await.unwrap().code(), Some(0));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_cut_off_is_told_that_the_job_goes_on() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("relay");
    let relay = Relay::start(&state).await;
    let mut half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let attempt = running(&mut half, home.path()).await;
    let (mut child, mut reader) = follow(&half);
    let line = ToRelay::Log { attempt, offset: 0, bytes: Blob(b"line 0\n".to_vec()) };
    half.session.outgoing.send(line).await.unwrap();
    assert_eq!(first_line(&mut reader).await, "line 0\n");
    // The operator revokes the device under it.
    let revoke = ["relay", "members", "--state", state.to_str().unwrap(), "--revoke", "laptop"];
    let revoked = gpunion(home.path(), &revoke, &[]).await;
    assert_eq!(revoked.code, 0, "{revoked:?}");
    let ended = tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (child.wait().unwrap().code(), said)
    });
    let (code, said) = tokio::time::timeout(LIMIT, ended).await.unwrap().unwrap();
    assert!(code == Some(4) && said.contains("the job goes on: gpunion logs -f job_"), "{code:?} {said}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_stopped_is_told_as_such() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir_all(data.join("run")).unwrap();
    fs::write(data.join("agent.lock"), "\"desk\" with pid 4242\n").unwrap();
    // Connections are taken by the kernel; nobody reads them.
    let _deaf = std::os::unix::net::UnixListener::bind(data.join("run/agent.sock")).unwrap();
    let jobs = gpunion(&data, &["jobs", "--json"], &[]);
    let doctor = gpunion(&data, &["doctor", "--json"], &[]);
    let (jobs, doctor) = tokio::time::timeout(LIMIT, async { tokio::join!(jobs, doctor) }).await.unwrap();
    let problem: Problem = serde_json::from_str(jobs.stderr.trim()).unwrap();
    assert_eq!((jobs.code, problem.code), (3, Code::AgentAway));
    assert!(problem.to_string().contains("kill -CONT 4242"), "{problem}");
    let findings: Vec<Finding> = serde_json::from_str(&doctor.stdout).unwrap();
    let agent = findings.iter().find(|finding| finding.about == "agent").unwrap();
    assert!(agent.what.contains("does not answer"), "{agent:?}");
    assert!(agent.fix.as_ref().unwrap().contains("kill -CONT 4242"), "{agent:?}");
    assert_eq!(doctor.code, 1);
}
