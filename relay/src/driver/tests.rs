//! The driver on a real store and a real clock.

use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::{AttemptRef, InviteId, JobId, MemberId};
use gpunion_protocol::job::{AttemptState, Blob, Image, WrappedKey};
use gpunion_protocol::offer::{Offer, OfferedGpu};
use gpunion_protocol::session::{Terms, ToRelay};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::{Millis, WallMs};
use gpunion_protocol::units::Bytes;

use super::*;
use crate::broker::{By, Digest, SessionId};
use crate::store::{FILE_NAME, Store};

/// A driver that runs, and what tests say to it.
struct World {
    handle: Handle,
    sessions: BTreeMap<DeviceId, (SessionId, mpsc::Receiver<Outgoing>)>,
    _dir: tempfile::TempDir,
}

impl World {
    async fn start(terms: Terms) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (writer, _) = Writer::start(Store::open(&dir.path().join(FILE_NAME)).unwrap()).unwrap();
        let outside = Outside {
            writer,
            feed: Feed::new(Epoch(1), 100),
            logs: Logs::open(dir.path(), 1 << 20, 0).unwrap(),
            counts: Arc::default(),
        };
        let (handle, inbox) = Handle::new();
        let config = Config { terms, ..Config::default() };
        let driver = Driver::start(config, Epoch(1), outside, inbox).await.unwrap();
        tokio::spawn(driver.run(CancellationToken::new()));
        Self { handle, sessions: BTreeMap::new(), _dir: dir }
    }

    /// A member with one device that lends one GPU.
    async fn provider(&mut self, n: u8) -> (MemberId, DeviceId) {
        let (code, expires) = (Digest([n; 32]), WallMs(i64::MAX));
        let (invite, role) = (InviteId::new(1, [n; 10]), Role::Operator);
        let by = By::Relay;
        let invited = |request| Event::NewInvite { request, by, invite, code, role, member: None, expires };
        self.handle.call(invited).await.unwrap();
        let (member, device) = (MemberId::new(1, [n; 10]), DeviceId::new(1, [n; 10]));
        let joins = Event::Redeem {
            request: RequestId(0),
            code,
            member_name: format!("member {n}"),
            device_name: format!("lab-{n}"),
            public_key: Blob(vec![n; 32]),
            member: member.clone(),
            device: device.clone(),
            token: Digest([100 + n; 32]),
        };
        let with = |request| match joins {
            Event::Redeem { code, member_name, device_name, public_key, member, device, token, .. } => {
                Event::Redeem { request, code, member_name, device_name, public_key, member, device, token }
            }
            other => other,
        };
        self.handle.call(with).await.unwrap();
        let session = self.handle.new_session();
        let (queue, inbox) = mpsc::channel(64);
        let mailbox = Mailbox { session, queue, over: CancellationToken::new() };
        self.handle.send(Input::Opened { device: device.clone(), mailbox }).await.unwrap();
        self.sessions.insert(device.clone(), (session, inbox));
        self.say(&device, ToRelay::Hello { wire: WIRE_VERSION, agent: "test".to_owned() }).await;
        self.say(&device, ToRelay::Offer { offer: offer(n, 16) }).await;
        (member, device)
    }

    async fn say(&self, device: &DeviceId, message: ToRelay) {
        let session = self.sessions[device].0;
        let heard = Input::Heard { device: device.clone(), session, message: Box::new(message) };
        self.handle.send(heard).await.unwrap();
    }

    async fn newest(&self, job: &JobId) -> (DeviceId, AttemptRef) {
        let job = job.clone();
        let member = MemberId::new(1, [1; 10]);
        let view = self.handle.ask(move |broker| broker.job_view(&job, &member)).await.unwrap().unwrap();
        let last = view.attempts.last().expect("it was placed").clone();
        let token = gpunion_protocol::ids::Token { epoch: Epoch(1), attempt: last.number };
        (last.device, AttemptRef { job: view.id, token })
    }
}

fn offer(n: u8, cpus: u32) -> Offer {
    Offer {
        open: true,
        gpus: vec![OfferedGpu {
            uuid: gpunion_protocol::ids::GpuUuid(format!("GPU-{n}")),
            name: "stand-in".to_owned(),
            memory: Bytes(8 << 30),
            free_for_guests: true,
            standin: true,
        }],
        cpus,
        memory: Bytes(64 << 30),
        disk: Bytes(500 << 30),
        architecture: "amd64".to_owned(),
        ..Offer::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn f81_renewals_that_waited_for_a_driver_that_stood_still_count() {
    let ms = Millis;
    let terms = Terms { lease: ms(900), renew: ms(300), margin: ms(100), heartbeat: ms(300) };
    let mut w = World::start(terms).await;
    let (ada, first) = w.provider(1).await;
    let (_, second) = w.provider(2).await;
    let reference = "digits:1".to_owned();
    let key = |device: &DeviceId| WrappedKey { device: device.clone(), wrapped: Blob(vec![1; 80]) };
    let submit = Submit {
        job: JobId::new(1, [9; 10]),
        spec: JobSpec::of_image(&reference),
        image: Image::Registry { reference, digest: None },
        input: None,
        data: Vec::new(),
        keys: vec![key(&first), key(&second)],
        sealed: Blob(vec![1]),
    };
    let job = submit.job.clone();
    let (body, key, submit) = (Digest([1; 32]), "k".to_owned(), Box::new(submit));
    w.handle.call(|request| Event::Submit { request, member: ada, key, body, submit }).await.unwrap();
    let (at, attempt) = w.newest(&job).await;
    let other = if at == first { &second } else { &first };
    w.say(&at, ToRelay::State { attempt: attempt.clone(), state: AttemptState::Running, note: None }).await;
    w.say(&at, ToRelay::Renew { seq: 1, attempts: vec![attempt.clone()] }).await;

    // A disk that takes no write for two leases; all that is said meanwhile waits.
    let still = w.handle.ask(|_| std::thread::sleep(Duration::from_millis(2_000)));
    let said = async {
        // First something else: with its step the leases are looked at.
        w.say(other, ToRelay::Offer { offer: offer(7, 15) }).await;
        w.say(&at, ToRelay::Renew { seq: 2, attempts: vec![attempt.clone()] }).await;
    };
    let (still, ()) = tokio::join!(still, said);
    still.unwrap();
    assert_eq!(w.newest(&job).await, (at, attempt), "it renewed in time and lost its lease all the same");
}
