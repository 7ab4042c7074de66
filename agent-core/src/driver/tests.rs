//! The driver at its beginning, with an engine, GPUs and a relay that are not there.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::guest::FromInit;
use gpunion_protocol::ids::{AttemptNo, AttemptRef, DeviceId, Epoch, JobId, Token};
use gpunion_protocol::job::{AttemptState, Blob, EndCause, Image};
use gpunion_protocol::local::{Caps, ShareRequest, Snapshot, Wish};
use gpunion_protocol::session::{Assignment, ToAgent};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::Now;
use gpunion_protocol::units::Bytes;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::operations::{Fixed, Operations};
use super::store::Store;
use super::view::{self, Around};
use super::{Driver, Parts, begin, finished, run};
use crate::container::Engine;
use crate::driver::Stop;
use crate::egress::Places;
use crate::gpu::Gpus;
use crate::gpu::verify::ProcessId;
use crate::provider::Provider;
use crate::provider::effect::{Effect, Operation};
use crate::provider::event::{CallId, Event, Inventory, OpId, Outcome};
use crate::provider::record::{Change, Key, Phase, Record};
use crate::relay_link::LinkStatus;
use crate::relay_link::session::SessionHandle;

fn caps() -> Caps {
    Caps { cpus: 1, memory: Bytes(1 << 30), disk: Bytes(1 << 30) }
}

/// A driver in `folder` for this provider, and the picture that faces see of it.
fn driver(folder: &Path, provider: Provider) -> (Driver, watch::Receiver<Arc<Snapshot>>) {
    let device = DeviceId::new(1, [1; 10]);
    let nothing = folder.join("nothing");
    let fixed = Fixed {
        engine: Engine::connect(&nothing, &device),
        guests: folder.join("guests"),
        init: nothing.clone(),
        helper: nothing.clone(),
        standin: None,
        data: folder.join("inputs"),
        egress: EgressRule::Off,
        places: Places::default(),
        second_way: folder.join("second-way"),
        second_way_allowed: false,
    };
    let gpus = Arc::new(Gpus::open(Some(&nothing)));
    let (events, heard) = mpsc::channel(8);
    let (_, calls) = mpsc::channel(8);
    let (outgoing, _) = mpsc::channel(8);
    let (_, incoming) = mpsc::channel(8);
    let (_, membership) = watch::channel(None);
    let (_, status) = watch::channel(LinkStatus::NoGroup);
    let operations = Operations::new(fixed, membership, Arc::clone(&gpus), events, outgoing.clone());
    let around = Around {
        device_name: "lab".to_owned(),
        data: folder.to_owned(),
        membership: None,
        locked: None,
        link: LinkStatus::NoGroup,
        facts: None,
    };
    let first = view::snapshot(&provider, &around, Now::default());
    let (publish, snapshot) = watch::channel(Arc::new(first));
    let parts = Parts {
        provider,
        operations,
        session: SessionHandle { outgoing, logs: mpsc::channel(8).0, incoming, status },
        gpus,
        events: heard,
        calls,
        around: watch::channel(around).1,
        snapshot: publish,
        reclaimed: folder.join("reclaimed.json"),
    };
    (begin(parts, Store::open(&folder.join("agent.sqlite")).unwrap()), snapshot)
}

/// As an agent finds it after a restart: one attempt, whose guest runs in the process `process`.
fn with_a_guest(attempt: &AttemptRef, process: ProcessId) -> Provider {
    let mut provider = Provider::new(caps());
    let now = Now::default();
    let mut records: BTreeMap<Key, Record> = BTreeMap::new();
    let mut waiting = vec![
        Event::Share { call: CallId(1), request: ShareRequest { on: Some(true), ..ShareRequest::default() } },
        Event::Engine(crate::provider::event::Engine::Known {
            architecture: "amd64".to_owned(),
            cpus: 1,
            memory: Bytes(1 << 30),
            disk: Bytes(1 << 30),
            blocked: None,
        }),
        Event::Found(Inventory::default()),
        Event::Relay(Box::new(ToAgent::Assign(Box::new(assignment(attempt))))),
    ];
    while !waiting.is_empty() {
        for effect in provider.handle(waiting.remove(0), now) {
            let Effect::Do { attempt, op, what } = effect else { continue };
            let outcome = match what {
                Operation::Image => Outcome::Image { digest: None },
                Operation::Stage => Outcome::Staged,
                Operation::Create => Outcome::Created { container: "c".repeat(64) },
                Operation::Start => Outcome::Started { process },
                other => panic!("{other:?} was not due"),
            };
            waiting.push(Event::Done { attempt, op, outcome: Ok(outcome) });
        }
        for change in provider.take_changes() {
            let Change::Put(record) = change else { panic!("nothing is forgotten yet") };
            records.insert(record.key(), record);
        }
    }
    Provider::load(records.into_values().collect(), caps(), now)
}

/// Without a GPU, and by a name that no registry could have.
fn assignment(attempt: &AttemptRef) -> Assignment {
    let mut spec = JobSpec::of_image("Not a Name");
    spec.resources.gpus = 0;
    spec.resources.memory = Bytes(1 << 29);
    spec.resources.disk = Bytes(1 << 29);
    spec.image = "digits".to_owned();
    Assignment {
        attempt: attempt.clone(),
        member_name: "ada".to_owned(),
        spec,
        image: Image::Registry { reference: "Not a Name".to_owned(), digest: None },
        gpus: Vec::new(),
        input: None,
        from: None,
        data: Vec::new(),
        key: Blob::default(),
        sealed: Blob::default(),
        resumed: false,
        previous: None,
        wait: false,
    }
}

fn attempt() -> AttemptRef {
    let token = Token { epoch: Epoch(1), attempt: AttemptNo(1) };
    AttemptRef { job: JobId::new(1, [0; 10]), token }
}

/// A process that lives as long as the test does.
fn this_process() -> ProcessId {
    let pid = std::process::id();
    ProcessId { pid, start_time: crate::gpu::process_identity(pid).0.unwrap() }
}

#[tokio::test]
async fn a_program_that_can_never_be_begun_ends_its_guest() {
    let folder = tempfile::tempdir().unwrap();
    let (driver, mut snapshot) = driver(folder.path(), with_a_guest(&attempt(), this_process()));
    assert_eq!(snapshot.borrow_and_update().guests[0].state, AttemptState::Running);
    let events = driver.parts.operations.events.clone();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(run(driver, Stop { now: shutdown.clone(), ..Stop::default() }));
    let ends = async {
        while snapshot.borrow_and_update().guests[0].state == AttemptState::Running {
            // Its init asks to be told what to begin.
            let word = FromInit::Hello { version: 1, begun: false };
            let hello = Event::Init { attempt: attempt(), word, memory_limit: false };
            events.send(hello).await.unwrap();
            let _ = tokio::time::timeout(Duration::from_millis(100), snapshot.changed()).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), ends).await.expect("it is tried for ever");
    shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn whoever_leaves_the_group_has_its_guests_ended() {
    let folder = tempfile::tempdir().unwrap();
    let (mut driver, _snapshot) = driver(folder.path(), with_a_guest(&attempt(), this_process()));
    let cause = |driver: &Driver| driver.parts.provider.attempt(&attempt()).unwrap().record.phase.clone();
    driver.around_changed();
    assert_eq!(cause(&driver), Phase::Running, "a membership that is not there yet is no farewell");
    driver.device = Some(DeviceId::new(2, [2; 10]));
    driver.around_changed();
    assert_eq!(cause(&driver), Phase::Ending { cause: EndCause::Left });
}

#[tokio::test]
async fn the_word_of_a_reclaim_is_heard_before_anybody_can_see_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let mut provider = Provider::new(caps());
    let request = ShareRequest { on: Some(true), ..ShareRequest::default() };
    provider.handle(Event::Share { call: CallId(1), request }, Now::default());
    assert_eq!(provider.wishes().machine, Wish::Sharing { until: None });
    std::fs::write(folder.path().join("reclaimed.json"), r#"{"gpu":null,"at":1}"#).unwrap();
    let (_driver, snapshot) = driver(folder.path(), provider);
    let seen = snapshot.borrow().share.clone();
    assert!(seen.wish == Wish::NotSharing && !seen.open, "{seen:?}");
}

#[tokio::test]
async fn what_waited_for_an_agent_that_stood_still_comes_after_the_word_of_a_reclaim() {
    let folder = tempfile::tempdir().unwrap();
    let word = folder.path().join("reclaimed.json");
    let share = || {
        let request = ShareRequest { on: Some(true), ..ShareRequest::default() };
        Event::Share { call: CallId(1), request }
    };
    let (mut driver, snapshot) = driver(folder.path(), Provider::new(caps()));
    driver.on(share());
    assert_eq!(snapshot.borrow().share.wish, Wish::Sharing { until: None });
    std::fs::write(&word, r#"{"gpu":null,"at":1}"#).unwrap();
    let done = finished(&mut driver.committing).await;
    driver.committed(done);
    assert_eq!(snapshot.borrow().share.wish, Wish::NotSharing, "the end of a commit");
    driver.on(share());
    std::fs::write(&word, r#"{"gpu":null,"at":2}"#).unwrap();
    driver.on(Event::Found(Inventory::default()));
    assert_eq!(snapshot.borrow().share.wish, Wish::NotSharing, "a list of containers");
}

#[tokio::test]
async fn one_list_is_taken_at_a_time_and_the_newest_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (driver, _snapshot) = driver(folder.path(), Provider::new(caps()));
    let operations = &driver.parts.operations;
    let listing = || operations.state().listing.clone().unwrap();
    operations.list_ours();
    let first = listing();
    operations.list_ours();
    assert!(first.is_cancelled() && !listing().is_cancelled());
}

#[tokio::test]
async fn nothing_is_swept_away_from_under_an_attempt_at_work() {
    let folder = tempfile::tempdir().unwrap();
    let (driver, _snapshot) = driver(folder.path(), Provider::new(caps()));
    let operations = &driver.parts.operations;
    let removing = || operations.state().removing.contains(&attempt());
    operations.state().running.insert(attempt(), (OpId(1), CancellationToken::new()));
    operations.remove_left(attempt());
    assert!(!removing());
    operations.give_up(&attempt());
    operations.remove_left(attempt());
    assert!(removing(), "and nothing is staged there until it is done");
}
