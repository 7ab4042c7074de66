//! What a member sends and gets back, through a real relay.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use crate::support::{Half, LIMIT, Relay, listing, noise};
use gpunion_agent_core::consumer::keys::JobSecrets;
use gpunion_agent_core::relay_link::{SessionEvent, SessionHandle};
use gpunion_protocol::ids::JobId;
use gpunion_protocol::job::{AttemptState, EndCause, JobState};
use gpunion_protocol::local::{
    FetchProgress, FetchRequest, PreviewRequest, SubmitProgress, SubmitRequest, Thing,
};
use gpunion_protocol::offer::Offer;
use gpunion_protocol::problem::Code;
use gpunion_protocol::session::{Assignment, ToAgent, ToRelay};
use gpunion_protocol::units::Bytes;
use gpunion_snapshot::{EntryKind, Manifest};

const SPEC: &str = "name = \"job\"\nimage = \"python:3.12\"\ncommand = [\"python\", \"a.py\"]\n[resources]\ngpus = 0\n\
                    [secrets]\nTOKEN = {}\n";

fn folder(at: &Path) {
    fs::create_dir_all(at.join("src/empty")).unwrap();
    fs::create_dir_all(at.join(".git")).unwrap();
    fs::write(at.join(".git/HEAD"), "secret history").unwrap();
    fs::write(at.join("gpunion.toml"), SPEC).unwrap();
    fs::write(at.join("src/a.py"), "print(1)").unwrap();
    fs::write(at.join("model.bin"), noise(1, 6 << 20)).unwrap();
    fs::set_permissions(at.join("src/a.py"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("src/a.py", at.join("run")).unwrap();
    fs::hard_link(at.join("model.bin"), at.join("src/same.bin")).unwrap();
}

fn request(at: &Path) -> SubmitRequest {
    let what = PreviewRequest {
        thing: Thing::Folder(at.to_owned()),
        image: None,
        name: None,
        args: Vec::new(),
        secrets: BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]),
    };
    SubmitRequest { what, accepted: true, seen: None }
}

async fn submit(half: &Half, at: &Path) -> (JobId, u64, u64) {
    let mut progress = half.consumer.submit(request(at));
    loop {
        match tokio::time::timeout(LIMIT, progress.recv()).await.unwrap().unwrap() {
            SubmitProgress::Submitted { job, sent, reused } => return (job, sent, reused),
            SubmitProgress::Failed { problem } => panic!("{problem}"),
            SubmitProgress::Reading { .. }
            | SubmitProgress::Begun { .. }
            | SubmitProgress::Image { .. }
            | SubmitProgress::Sending { .. } => {}
        }
    }
}

async fn fetch(half: &Half, job: &JobId, into: &Path, overwrite: bool) -> FetchProgress {
    let request = FetchRequest { into: into.to_owned(), checkpoint: false, overwrite };
    let mut progress = half.consumer.fetch(job.clone(), request);
    loop {
        let step = tokio::time::timeout(LIMIT, progress.recv()).await.unwrap().unwrap();
        if !matches!(step, FetchProgress::Fetching { .. }) {
            return step;
        }
    }
}

/// Plays a provider that runs one job whose result is its input, untouched.
async fn run_one(session: &mut SessionHandle) -> Box<Assignment> {
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
                session.outgoing.send(ToRelay::Offer { offer: offer.clone() }).await.unwrap()
            }
            SessionEvent::Message(ToAgent::Assign(assignment)) => {
                let attempt = assignment.attempt.clone();
                let state = AttemptState::Running;
                session
                    .outgoing
                    .send(ToRelay::State { attempt: attempt.clone(), state, note: None })
                    .await
                    .unwrap();
                let (cause, result) = (EndCause::Exited { code: 0 }, assignment.input);
                session.outgoing.send(ToRelay::Ended { attempt, cause, result }).await.unwrap();
                return assignment;
            }
            SessionEvent::Message(_) | SessionEvent::Down { .. } => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_goes_there_and_comes_back_the_same() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let mut half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = home.path().join("job");
    folder(&at);
    let (job, _, _) = submit(&half, &at).await;
    let early = fetch(&half, &job, &home.path().join("early"), false).await;
    assert!(
        matches!(&early, FetchProgress::Failed { problem } if problem.code == Code::NotFound),
        "{early:?}"
    );

    let assignment = run_one(&mut half.session).await;
    let member = half.pairing.current().unwrap();
    let device = member.group.device.as_str();
    let key =
        gpunion_snapshot::unwrap_job_key(&assignment.key.0, &member.identity.secret, job.as_str(), device)
            .unwrap();
    let secrets = JobSecrets::open(&key, &assignment.sealed).unwrap();
    assert_eq!(secrets.secrets["TOKEN"], "hunter2");
    assert!(secrets.chunk_key == member.identity.chunk_key);

    succeeded(&half, &job).await;
    let into = home.path().join("out");
    let fetched = fetch(&half, &job, &into, false).await;
    assert!(matches!(fetched, FetchProgress::Done { files: 3, .. }), "{fetched:?}");
    let mut expected = listing(&at);
    expected.retain(|path, _| !path.starts_with(".git"));
    assert_eq!(listing(&into), expected);

    let empty = home.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(matches!(fetch(&half, &job, &empty, false).await, FetchProgress::Done { .. }));
    assert_eq!(listing(&empty), expected);
    fs::remove_dir_all(&empty).unwrap();

    fs::write(into.join("src/a.py"), "mine").unwrap();
    fs::write(into.join("kept"), "mine").unwrap();
    let refused = fetch(&half, &job, &into, false).await;
    assert!(
        matches!(&refused, FetchProgress::Failed { problem } if problem.code == Code::Conflict),
        "{refused:?}"
    );
    assert_eq!(fs::read(into.join("src/a.py")).unwrap(), b"mine");
    assert!(matches!(fetch(&half, &job, &into, true).await, FetchProgress::Done { .. }));
    assert_eq!(fs::read(into.join("src/a.py")).unwrap(), b"print(1)");
    assert_eq!(fs::read(into.join("kept")).unwrap(), b"mine");
    assert_eq!(
        fs::read_dir(home.path()).unwrap().count(),
        4,
        "nothing is left beside: relay, agent, job, out"
    );
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f98_the_second_submit_sends_only_what_changed() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = home.path().join("job");
    folder(&at);
    let (_, first, reused) = submit(&half, &at).await;
    assert!(first > 6 << 20 && reused < 1 << 20, "{first} {reused}");
    let (_, second, reused) = submit(&half, &at).await;
    assert!(second < 1 << 10 && reused >= 6 << 20, "{second} {reused}");
    fs::write(at.join("src/a.py"), noise(2, 100_000)).unwrap();
    let (_, third, _) = submit(&half, &at).await;
    assert!((100_000..400_000).contains(&third), "{third}");
    // Another relay has none of it, whatever is remembered here.
    relay.stop().await;
    half.pairing.leave().await.unwrap();
    let relay = Relay::start(&home.path().join("other")).await;
    half.join(relay.link.as_ref().unwrap()).await;
    let (_, fourth, _) = submit(&half, &at).await;
    assert!(fourth > 6 << 20, "{fourth}");
    relay.stop().await;
}

/// The files of a relay's packs.
fn packs(relay: &Path) -> Vec<PathBuf> {
    let subs = fs::read_dir(relay.join("packs")).unwrap();
    subs.flat_map(|sub| fs::read_dir(sub.unwrap().path()).unwrap()).map(|pack| pack.unwrap().path()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_relay_swept_in_the_midst_of_a_submit_is_sent_again() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("relay");
    let relay = Relay::start(&state).await;
    let mut half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = home.path().join("job");
    folder(&at);
    let (first, _, _) = submit(&half, &at).await;
    half.pairing.current().unwrap().client.cancel(&first).await.unwrap();
    let before = packs(&state);
    fs::write(at.join("big"), noise(4, 48 << 20)).unwrap();
    let mut progress = half.consumer.submit(request(&at));
    let (mut begun, mut swept) = (0, false);
    let job = loop {
        match tokio::time::timeout(LIMIT, progress.recv()).await.unwrap().unwrap() {
            SubmitProgress::Begun { .. } => begun += 1,
            // It has asked what is there, and builds on it.
            SubmitProgress::Sending { sent, .. } if sent > 0 && !swept => {
                swept = true;
                before.iter().for_each(|pack| fs::remove_file(pack).unwrap());
            }
            SubmitProgress::Submitted { job, reused, .. } => {
                assert!(reused >= 48 << 20, "what arrived does not travel again: {reused}");
                break job;
            }
            SubmitProgress::Failed { problem } => panic!("{problem}"),
            SubmitProgress::Reading { .. }
            | SubmitProgress::Image { .. }
            | SubmitProgress::Sending { .. } => {}
        }
    };
    assert_eq!((begun, swept), (2, true));
    assert_eq!(run_one(&mut half.session).await.attempt.job, job);
    succeeded(&half, &job).await;
    let into = home.path().join("out");
    assert!(matches!(fetch(&half, &job, &into, false).await, FetchProgress::Done { .. }));
    assert_eq!(fs::read(into.join("model.bin")).unwrap(), fs::read(at.join("model.bin")).unwrap());
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f96_a_cut_upload_goes_on_where_it_stopped() {
    const SIZE: usize = 64 << 20;
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = home.path().join("job");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("gpunion.toml"), SPEC).unwrap();
    fs::write(at.join("big"), noise(3, SIZE)).unwrap();
    let mut progress = half.consumer.submit(request(&at));
    loop {
        match tokio::time::timeout(LIMIT, progress.recv()).await.unwrap().unwrap() {
            SubmitProgress::Sending { sent, .. } if sent > 8 << 20 => break,
            SubmitProgress::Submitted { .. } => panic!("too fast to be cut"),
            SubmitProgress::Failed { problem } => panic!("{problem}"),
            SubmitProgress::Reading { .. }
            | SubmitProgress::Begun { .. }
            | SubmitProgress::Image { .. }
            | SubmitProgress::Sending { .. } => {}
        }
    }
    drop(progress);
    let (_, sent, reused) = submit(&half, &at).await;
    assert!(sent < (SIZE - (8 << 20)) as u64 && reused > 8 << 20, "{sent} {reused}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_sent_is_refused_by_name() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    let at = home.path().join("job");
    folder(&at);
    let failed = |request: SubmitRequest| {
        let mut progress = half.consumer.submit(request);
        async move {
            loop {
                match progress.recv().await.unwrap() {
                    SubmitProgress::Failed { problem } => return problem,
                    SubmitProgress::Submitted { .. } => panic!("it was submitted"),
                    SubmitProgress::Reading { .. }
                    | SubmitProgress::Begun { .. }
                    | SubmitProgress::Image { .. }
                    | SubmitProgress::Sending { .. } => {}
                }
            }
        }
    };
    assert_eq!(failed(request(&at)).await.code, Code::NoGroup);
    half.join(relay.link.as_ref().unwrap()).await;
    let mut without = request(&at);
    without.what.secrets.clear();
    assert!(failed(without).await.to_string().contains("TOKEN"));
    let mut unseen = request(&at);
    unseen.accepted = false;
    assert_eq!(failed(unseen).await.code, Code::BadRequest);
    fs::write(at.join("gpunion.toml"), "image = \"x\"\n[network]\negress = [\"10.0.0.1\"]\n").unwrap();
    assert_eq!(failed(request(&at)).await.code, Code::BadSpec);
    fs::remove_file(at.join("gpunion.toml")).unwrap();
    assert!(failed(request(&at)).await.to_string().contains("--image"));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f96_a_cut_fetch_goes_on_where_it_stopped() {
    const SIZE: usize = 64 << 20;
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("relay");
    let relay = Relay::start(&state).await;
    let mut half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = home.path().join("job");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("gpunion.toml"), SPEC).unwrap();
    fs::write(at.join("big"), noise(4, SIZE)).unwrap();
    let (job, _, _) = submit(&half, &at).await;
    run_one(&mut half.session).await;
    succeeded(&half, &job).await;

    let into = home.path().join("out");
    let request = FetchRequest { into: into.clone(), checkpoint: false, overwrite: false };
    let mut progress = half.consumer.fetch(job.clone(), request);
    let came = loop {
        match tokio::time::timeout(LIMIT, progress.recv()).await.unwrap().unwrap() {
            FetchProgress::Fetching { bytes, .. } if bytes > 16 << 20 => break bytes,
            FetchProgress::Fetching { .. } => {}
            FetchProgress::Done { .. } => panic!("too fast to be cut"),
            FetchProgress::Failed { problem } => panic!("{problem}"),
        }
    };
    drop(progress);

    // The first pack had come whole: the relay is not asked for it again, and need not have it.
    let member = half.pairing.current().unwrap();
    let view = member.client.job(&job).await.unwrap();
    let key = gpunion_agent_core::consumer::keys::key_of(&member, &view).unwrap();
    let sealed = member.client.snapshot(&view.result.unwrap()).await.unwrap();
    let manifest = Manifest::open(&key, &sealed).unwrap();
    let EntryKind::File(big) = &manifest.entries[0].kind else { panic!("big is the first") };
    let first = &manifest.packs[manifest.chunks[big.chunks[0] as usize].pack as usize];
    let name = first.id.to_string();
    let pack = state.join("packs").join(&name[..2]).join(&name);
    assert!(came > fs::metadata(&pack).unwrap().len(), "{came}");
    fs::remove_file(pack).unwrap();
    assert!(matches!(fetch(&half, &job, &into, false).await, FetchProgress::Done { files: 2, .. }));
    assert_eq!(listing(&into), listing(&at));
    assert_eq!(
        fs::read_dir(home.path()).unwrap().count(),
        4,
        "nothing is left beside: relay, agent, job, out"
    );
    relay.stop().await;
}

async fn succeeded(half: &Half, job: &JobId) {
    let member = half.pairing.current().unwrap();
    let done = async {
        while member.client.job(job).await.unwrap().state != JobState::Succeeded {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, done).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_shown_is_what_is_sent() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = home.path().join("job");
    folder(&at);
    let mut asked = request(&at);
    asked.seen = Some(half.consumer.preview(&asked.what).await.unwrap().digest);
    fs::write(at.join("src/added.py"), "secrets").unwrap();
    let mut progress = half.consumer.submit(asked.clone());
    let first = tokio::time::timeout(LIMIT, progress.recv()).await.unwrap().unwrap();
    assert!(
        matches!(&first, SubmitProgress::Failed { problem } if problem.code == Code::Conflict),
        "{first:?}"
    );
    let packs = listing(&home.path().join("relay/packs"));
    assert!(!packs.values().any(|what| what.starts_with("file")), "nothing was sent: {packs:?}");
    fs::remove_file(at.join("src/added.py")).unwrap();
    let mut progress = half.consumer.submit(asked);
    let mut steps = Vec::new();
    while let Some(step) = tokio::time::timeout(LIMIT, progress.recv()).await.unwrap() {
        steps.push(step);
    }
    let (Some(SubmitProgress::Begun { job: begun }), Some(SubmitProgress::Submitted { job, .. })) =
        (steps.first(), steps.last())
    else {
        panic!("{steps:?}")
    };
    assert_eq!(begun, job);
    relay.stop().await;
}
