//! The provider half itself on a real engine: the product's driver, machine and operations, with
//! the test in place of owner and relay.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use gpunion_agent_core::channel::Watched;
use gpunion_agent_core::config::identity::{Identity, TokenStore};
use gpunion_agent_core::config::{GroupFile, Membership, clock};
use gpunion_agent_core::consumer::keys::JobSecrets;
use gpunion_agent_core::container::DataMount;
use gpunion_agent_core::container::cgroup::Cgroup;
use gpunion_agent_core::driver::operations::{Fixed, Operations};
use gpunion_agent_core::driver::store::Store;
use gpunion_agent_core::driver::view::{self, Around};
use gpunion_agent_core::driver::{self, EVENTS, Parts, Stop};
use gpunion_agent_core::egress::Places;
use gpunion_agent_core::gpu::Gpus;
use gpunion_agent_core::provider::Provider;
use gpunion_agent_core::provider::call::{OwnerCall, ReclaimAnswers};
use gpunion_agent_core::provider::effect::Operation;
use gpunion_agent_core::provider::event::{Event, OpId, Outcome, Trouble};
use gpunion_agent_core::provider::record::{AttemptRecord, Phase, attempt_key};
use gpunion_agent_core::relay_link::LinkStatus;
use gpunion_agent_core::relay_link::session::{SessionEvent, SessionHandle};
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{AttemptRef, Epoch, MemberId, SnapshotId};
use gpunion_protocol::job::{AttemptState, Blob, DataInput, EndCause, Image};
use gpunion_protocol::local::{Caps, ReclaimRequest, ShareRequest, Snapshot, Wiped};
use gpunion_protocol::receipt::{Receipt, Way};
use gpunion_protocol::session::{Assignment, Terms, ToAgent, ToRelay};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;
use gpunion_snapshot::{ChunkKey, JobKey, SystemRandomness, wrap_job_key};
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::harness::{IMAGE, Inner, LIMIT, attempt, both};

/// A member of a group whose relay nobody reaches.
fn member(inner: &Inner) -> Arc<Membership> {
    let mut identity = Identity::new().unwrap();
    identity.token = Some("none".to_owned().into());
    let group = GroupFile {
        group: "campus".to_owned(),
        member: MemberId::new(1, [1; 10]),
        member_name: "grace".to_owned(),
        role: Role::Member,
        device: inner.device.clone(),
        device_name: "lab-7".to_owned(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        pin: Some("00".repeat(32)),
        token_in: TokenStore::File,
        no_keyring: None,
    };
    Arc::new(Membership::assemble(group, identity).unwrap())
}

/// A job for no GPU whose image the engine has already.
async fn assignment(
    inner: &Inner,
    engine: &str,
    member: &Membership,
    number: u32,
    script: &str,
) -> Assignment {
    let image = inner.engine(engine).image(IMAGE).await.unwrap().unwrap();
    let attempt = attempt(number);
    let key = JobKey::generate(&mut SystemRandomness).unwrap();
    let chunk_key = ChunkKey::generate(&mut SystemRandomness).unwrap();
    let (public, job) = (member.identity.secret.public(), attempt.job.as_str().to_owned());
    let wrapped = wrap_job_key(&key, &public, &job, member.group.device.as_str(), &mut SystemRandomness);
    let mut spec = JobSpec::of_image(IMAGE);
    spec.command = ["/busybox", "sh", "-c", script].map(str::to_owned).to_vec();
    spec.env.insert("PATH".to_owned(), "/".to_owned());
    (spec.resources.gpus, spec.resources.cpus) = (0, 1);
    (spec.resources.memory, spec.resources.disk) = (Bytes(128 << 20), Bytes(1 << 30));
    spec.checkpoint.every = serde_json::from_value(json!("1 s")).unwrap();
    Assignment {
        attempt,
        member_name: "ada".to_owned(),
        spec,
        image: Image::Layers {
            reference: IMAGE.to_owned(),
            image_id: image.id,
            snapshot: SnapshotId([9; 32]),
        },
        gpus: Vec::new(),
        input: None,
        from: None,
        data: Vec::new(),
        key: Blob(wrapped.unwrap()),
        sealed: JobSecrets { chunk_key, secrets: BTreeMap::new() }.seal(&key).unwrap(),
        resumed: false,
        previous: None,
        wait: false,
    }
}

fn operations(
    inner: &Inner,
    engine: &str,
    data: &Path,
    member: Arc<Membership>,
    logs: mpsc::Sender<ToRelay>,
) -> (Operations, mpsc::Receiver<Event>, Arc<Gpus>) {
    let fixed = Fixed {
        engine: inner.engine(engine),
        guests: data.join("guests"),
        init: inner.programs.join("gpunion-init"),
        helper: inner.programs.join("gpunion-helper"),
        standin: Some(inner.standin.clone()),
        data: data.join("inputs"),
        egress: EgressRule::Off,
        places: Places::default(),
        second_way: inner.home.join("second-way"),
        second_way_allowed: false,
    };
    for folder in [&fixed.guests, &fixed.data] {
        std::fs::create_dir_all(folder).unwrap();
    }
    let gpus = Arc::new(Gpus::open(Some(Path::new("/no/such/library"))));
    let (events, heard) = mpsc::channel(EVENTS);
    let operations = Operations::new(fixed, watch::channel(Some(member)).1, Arc::clone(&gpus), events, logs);
    (operations, heard, gpus)
}

/// The provider half of an agent, between a test's owner and relay.
struct Half {
    owner: mpsc::Sender<OwnerCall>,
    relay: mpsc::Sender<SessionEvent>,
    said: mpsc::Receiver<ToRelay>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    shutdown: CancellationToken,
    driving: tokio::task::JoinHandle<()>,
    _status: watch::Sender<LinkStatus>,
}

impl Half {
    async fn start(inner: &Inner, engine: &str, data: &Path, member: &Arc<Membership>) -> Self {
        let (outgoing, said) = mpsc::channel(256);
        let (logs, mut printed) = mpsc::channel(4);
        let ends = outgoing.clone();
        tokio::spawn(async move {
            while let Some(message) = printed.recv().await {
                if !matches!(message, ToRelay::Log { .. }) {
                    let _ = ends.send(message).await;
                }
            }
        });
        let (relay, incoming) = mpsc::channel(256);
        let (operations, events, gpus) = operations(inner, engine, data, Arc::clone(member), logs.clone());
        let store = Store::open(&data.join("agent.sqlite")).unwrap();
        let caps = Caps { cpus: 2, memory: Bytes(1 << 30), disk: Bytes(4 << 30) };
        let provider = Provider::load(store.load().unwrap(), caps, clock::now());
        let around = Around {
            device_name: "lab-7".to_owned(),
            data: data.to_owned(),
            membership: Some(Arc::clone(member)),
            locked: None,
            link: LinkStatus::Up,
            facts: None,
        };
        let (publish, snapshot) = watch::channel(Arc::new(view::snapshot(&provider, &around, clock::now())));
        let (owner, calls) = mpsc::channel(8);
        let (status, seen) = watch::channel(LinkStatus::Up);
        let parts = Parts {
            provider,
            operations,
            session: SessionHandle { outgoing, logs, incoming, status: seen },
            gpus,
            events,
            calls,
            around: watch::channel(around).1,
            snapshot: publish,
            reclaimed: data.join("reclaimed.json"),
        };
        let shutdown = CancellationToken::new();
        let driving = tokio::spawn(driver::run(
            driver::begin(parts, store),
            Stop { now: shutdown.clone(), ..Stop::default() },
        ));
        let up = SessionEvent::Up { terms: Terms::default(), epoch: Epoch(1) };
        relay.send(up).await.unwrap();
        Self { owner, relay, said, snapshot, shutdown, driving, _status: status }
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.driving.await.unwrap();
    }

    async fn share(&mut self) {
        let (answer, answered) = oneshot::channel();
        let request = ShareRequest { on: Some(true), ..ShareRequest::default() };
        self.owner.send(OwnerCall::Share(request, answer)).await.unwrap();
        answered.await.unwrap().unwrap();
        let open = self.snapshot.wait_for(|snapshot| snapshot.share.open);
        tokio::time::timeout(LIMIT, open).await.unwrap().unwrap();
    }

    async fn reclaim(&self) -> Receipt {
        let ((taken, _), (receipt, answer)) = (oneshot::channel(), oneshot::channel());
        let answers = ReclaimAnswers { taken, receipt };
        self.owner.send(OwnerCall::Reclaim(ReclaimRequest::default(), answers)).await.unwrap();
        tokio::time::timeout(LIMIT, answer).await.unwrap().unwrap().unwrap()
    }

    async fn wipe(&self) -> Wiped {
        let (answer, answered) = oneshot::channel();
        self.owner.send(OwnerCall::Wipe(answer)).await.unwrap();
        tokio::time::timeout(LIMIT, answered).await.unwrap().unwrap().unwrap()
    }

    async fn assign(&self, assignment: Assignment) {
        let message = SessionEvent::Message(ToAgent::Assign(Box::new(assignment)));
        self.relay.send(message).await.unwrap();
    }

    /// Waits until something is said that fits.
    async fn said<T>(&mut self, what: &str, mut pick: impl FnMut(&ToRelay) -> Option<T>) -> T {
        let mut all = Vec::new();
        let waiting = async {
            loop {
                let message = self.said.recv().await.unwrap();
                if let Some(found) = pick(&message) {
                    return found;
                }
                all.push(message);
            }
        };
        let found = tokio::time::timeout(LIMIT, waiting).await;
        found.unwrap_or_else(|_| panic!("waited for {what}; it said {all:#?}"))
    }

    async fn runs(&mut self) {
        self.said("the start", |said| match said {
            ToRelay::State { state: AttemptState::Running, .. } => Some(()),
            ToRelay::Ended { cause, .. } => panic!("{cause:?}"),
            _ => None,
        })
        .await;
    }

    async fn ended(&mut self) -> EndCause {
        self.said("the end", |said| match said {
            ToRelay::Ended { cause, .. } => Some(cause.clone()),
            _ => None,
        })
        .await
    }
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = clock::boot() + Millis::from_secs(60);
    while !holds().await {
        assert!(clock::boot() < deadline, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn folder(data: &Path, attempt: &AttemptRef) -> PathBuf {
    data.join("guests").join(attempt_key(attempt))
}

#[test]
fn f63_a_reclaim_ends_a_guest_while_the_engine_stands_still() {
    both(
        "provider::f63_a_reclaim_ends_a_guest_while_the_engine_stands_still",
        &["one"],
        |inner| async move {
            let (member, data) = (member(&inner), inner.home.join("data"));
            let mut half = Half::start(&inner, "one", &data, &member).await;
            half.share().await;
            // One that leaves its session and is deaf, and one that never rests.
            let script = "(setsid busybox sh -c 'trap \"\" TERM HUP INT; while true; do busybox sleep 1; done' &); \
                      : > /workspace/here; while true; do :; done";
            half.assign(assignment(&inner, "one", &member, 1, script).await).await;
            half.runs().await;
            let engine = inner.engine("one");
            let ours = engine.list_ours().await.unwrap();
            let mut processes = Vec::new();
            until("the guest's processes", async || {
                let guest = engine.inspect_guest(&ours[0].id).await.unwrap().unwrap();
                processes = Cgroup::of(guest.pid.unwrap()).unwrap().processes().unwrap();
                processes.len() >= 3
            })
            .await;

            inner.ask("freeze one");
            let receipt = half.reclaim().await;
            assert_eq!(receipt.guests.len(), 1, "{receipt:#?}");
            assert_eq!((receipt.guests[0].way, receipt.troubles.len()), (Way::Init, 0), "{receipt:#?}");
            assert!(receipt.verified && receipt.wish_saved, "{receipt:#?}");
            println!("stopped {:?} ms, ended {:?} ms", receipt.stopped_ms, receipt.ended_ms);
            assert!(receipt.ended_ms.unwrap() < 1_000, "{receipt:#?}");
            for process in processes {
                let watched = Watched::open(process).unwrap();
                assert!(watched.is_none_or(|it| it.wait(Duration::ZERO).unwrap()), "{process:?}");
            }
            assert!(matches!(half.ended().await, EndCause::Reclaimed));

            inner.ask("thaw one");
            until("the guest's container and workspace to go", async || {
                engine.list_ours().await.unwrap().is_empty()
                    && engine.list_volumes().await.unwrap().is_empty()
            })
            .await;
            half.stop().await;
        },
    );
}

/// The relay is away, the agent starts anew in the midst of it: what was packed is not packed again.
#[test]
fn f101_a_restarted_agent_packs_nothing_twice() {
    both("provider::f101_a_restarted_agent_packs_nothing_twice", &["one"], |inner| async move {
        let (member, data) = (member(&inner), inner.home.join("data"));
        let mut half = Half::start(&inner, "one", &data, &member).await;
        half.share().await;
        let script = "busybox dd if=/dev/urandom of=/workspace/big bs=1M count=24 && : > /run/gpunion/saved; \
                      while true; do busybox sleep 1; done";
        half.assign(assignment(&inner, "one", &member, 1, script).await).await;
        half.runs().await;
        let place = folder(&data, &attempt(1));
        let packs = || -> BTreeMap<String, u64> {
            let entries = std::fs::read_dir(place.join("packs")).into_iter().flatten().flatten();
            entries
                .map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().ino()))
                .filter(|(name, _)| !name.contains('.'))
                .collect()
        };
        let manifest = || std::fs::metadata(place.join("manifest")).ok().map(|found| found.ino());
        until("a checkpoint with all of it", async || manifest().is_some() && packs().len() >= 3).await;
        half.stop().await;
        let (before, old) = (packs(), manifest());
        assert!(before.len() >= 3, "{before:?}");

        let mut half = Half::start(&inner, "one", &data, &member).await;
        until("the next checkpoint", async || manifest() != old).await;
        let after = packs();
        let kept = before.iter().filter(|(name, inode)| after.get(*name) == Some(inode)).count();
        // The last pack of a run may be small, and then its chunks are with others the next time.
        assert!(kept + 1 >= before.len() && after.len() <= before.len() + 1, "{before:?}\n{after:?}");

        half.reclaim().await;
        half.ended().await;
        let engine = inner.engine("one");
        until("all of it to go", async || engine.list_volumes().await.unwrap().is_empty()).await;
        until("the packs to go", async || packs().is_empty()).await;
        half.stop().await;
    });
}

fn record(assignment: &Assignment, phase: Phase) -> AttemptRecord {
    serde_json::from_value(json!({
        "assignment": assignment, "phase": phase, "accepted": clock::now().wall, "started": null,
        "container": null, "process": null, "before": [], "published": null,
        "traces": gpunion_agent_core::gpu::GuestTraces::default(),
    }))
    .unwrap()
}

async fn outcome(heard: &mut mpsc::Receiver<Event>) -> Result<Outcome, Trouble> {
    loop {
        let event = tokio::time::timeout(LIMIT, heard.recv()).await.unwrap().unwrap();
        if let Event::Done { outcome, .. } = event {
            return outcome;
        }
    }
}

#[test]
fn a_workspace_that_is_gone_never_passes_for_an_empty_result() {
    both(
        "provider::a_workspace_that_is_gone_never_passes_for_an_empty_result",
        &["one"],
        |inner| async move {
            let (member, data) = (member(&inner), inner.home.join("data"));
            let (operations, mut heard, _gpus) =
                operations(&inner, "one", &data, Arc::clone(&member), mpsc::channel(4).0);
            let assignment = assignment(&inner, "one", &member, 1, "true").await;
            for what in [Operation::Whole, Operation::PassOne] {
                operations.start(record(&assignment, Phase::Running), OpId(1), what);
                match outcome(&mut heard).await {
                    Err(Trouble::Refused { reason }) => {
                        assert!(reason.contains("workspace is not on"), "{reason}")
                    }
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(inner.engine("one").list_volumes().await.unwrap(), []);
        },
    );
}

/// An old attempt is cleaned up while others stand on the same inputs.
#[test]
fn an_input_that_is_named_or_mounted_is_neither_removed_nor_emptied() {
    both(
        "provider::an_input_that_is_named_or_mounted_is_neither_removed_nor_emptied",
        &["one"],
        |inner| async move {
            let (member, data) = (member(&inner), inner.home.join("data"));
            let (operations, mut heard, _gpus) =
                operations(&inner, "one", &data, Arc::clone(&member), mpsc::channel(4).0);
            let engine = inner.engine("one");
            let inputs: Vec<SnapshotId> = (1..=11).map(|n| SnapshotId([n; 32])).collect();
            let mark = |input: &SnapshotId| data.join("inputs").join(input.to_string());
            for (age, input) in inputs.iter().enumerate() {
                engine.create_data(input).await.unwrap();
                std::fs::write(mark(input), "").unwrap();
                let used = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000 + age as u64);
                std::fs::File::open(mark(input)).unwrap().set_modified(used).unwrap();
            }
            // The two oldest: one is on the books, one is only mounted.
            let (named, mounted) = (inputs[0], inputs[1]);
            let image = engine.image(IMAGE).await.unwrap().unwrap();
            let mount = DataMount { snapshot: mounted, at: "/data".to_owned() };
            let guest =
                inner.guest_with("one", &image.id, 2, "echo READY; busybox sleep 1000", vec![mount]).await;
            guest.output_until("READY");
            let refused = engine.fresh_data(&mounted).await.unwrap_err();
            assert!(refused.is_away(), "it is waited for: {refused}");

            operations.name_inputs([named].into());
            let mut over = assignment(&inner, "one", &member, 1, "true").await;
            over.data.push(DataInput { at: "/data".to_owned(), snapshot: inputs[10], bytes: 0 });
            let cause = EndCause::Cancelled;
            let phase = Phase::Over { cause, result: None, told: true, cleaned: false };
            operations.start(record(&over, phase), OpId(1), Operation::Clean);
            assert_eq!(outcome(&mut heard).await, Ok(Outcome::Cleaned));
            let left: Vec<_> = engine.list_volumes().await.unwrap().iter().filter_map(|v| v.data).collect();
            assert!(left.contains(&named) && mark(&named).exists(), "named by an attempt on the books");
            assert!(left.contains(&mounted) && mark(&mounted).exists(), "a guest reads it");
            // Of the ten that nobody names eight stay; of the two oldest one can't go.
            assert!(!left.contains(&inputs[2]) && !mark(&inputs[2]).exists());
            assert_eq!(left.len(), 10);
            guest.remove().await;
            engine.fresh_data(&mounted).await.unwrap();
            for input in &inputs {
                engine.remove_data(input).await.unwrap();
            }
        },
    );
}

#[test]
fn a_wipe_removes_what_nobody_needs_and_nothing_of_the_owner_s() {
    both(
        "provider::a_wipe_removes_what_nobody_needs_and_nothing_of_the_owner_s",
        &["one", "two"],
        |inner| async move {
            let (member, data) = (member(&inner), inner.home.join("data"));
            let (from, engine) = (inner.engine("one"), inner.engine("two"));
            let came = from.image(IMAGE).await.unwrap().unwrap().id;
            let archive: Vec<_> = from.export(IMAGE).await.unwrap().collect().await;
            let archive: Vec<_> =
                archive.into_iter().map(|piece| Ok::<_, std::io::Error>(piece.unwrap())).collect();
            engine.import(futures_util::stream::iter(archive), &came).await.unwrap();
            let mut half = Half::start(&inner, "two", &data, &member).await;
            half.share().await;
            let script = "while true; do busybox sleep 1; done";
            half.assign(assignment(&inner, "one", &member, 1, script).await).await;
            half.runs().await;
            // As if it had come with a job, and beside it an input that nobody needs.
            let marks = data.join("inputs/images");
            std::fs::create_dir_all(&marks).unwrap();
            std::fs::write(marks.join("came"), &came).unwrap();
            engine.create_data(&SnapshotId([3; 32])).await.unwrap();

            let wiped = half.wipe().await;
            assert_eq!((wiped.inputs, wiped.images), (1, 0), "a guest runs on that image: {wiped:?}");
            assert!(engine.image(&came).await.unwrap().is_some());

            half.reclaim().await;
            half.ended().await;
            until("the image to go", async || half.wipe().await.images == 1).await;
            assert_eq!(engine.image(&came).await.unwrap(), None);
            assert!(engine.image(IMAGE).await.unwrap().is_some(), "the owner's own stays");
            assert!(engine.list_volumes().await.unwrap().is_empty());
            half.stop().await;
        },
    );
}

/// A machine that can't hold a limit lends nothing, and says which.
#[test]
fn on_v2_without_controllers_nothing_is_lent() {
    both("provider::on_v2_without_controllers_nothing_is_lent", &["v2"], |inner| async move {
        let (member, data) = (member(&inner), inner.home.join("data"));
        let mut half = Half::start(&inner, "v2", &data, &member).await;
        let (answer, answered) = oneshot::channel();
        let request = ShareRequest { on: Some(true), ..ShareRequest::default() };
        half.owner.send(OwnerCall::Share(request, answer)).await.unwrap();
        answered.await.unwrap().unwrap();
        let told = half.snapshot.wait_for(|snapshot| snapshot.share.why.contains("drop the limit on memory"));
        let told = tokio::time::timeout(LIMIT, told).await.unwrap().unwrap().share.clone();
        assert!(!told.open && told.why.contains("cgroup_enable=memory"), "{told:?}");
        half.assign(assignment(&inner, "v2", &member, 1, "true").await).await;
        assert_eq!(half.ended().await, EndCause::Left, "it costs the job nothing");
        half.stop().await;
    });
}
