//! The channel against an init that speaks the protocol in a thread or process of the test's.

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpunion_protocol::guest::{Begin, CONTROL_SOCKET, Decoder, END_FILE, Exit, FromInit, ToInit, encode};
use gpunion_protocol::ids::{AttemptNo, AttemptRef, Epoch, JobId, Token};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use tokio::sync::mpsc;

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

fn attempt() -> AttemptRef {
    AttemptRef { job: JobId::new(1, [3; 10]), token: Token { epoch: Epoch(1), attempt: AttemptNo(1) } }
}

struct Bench {
    _base: tempfile::TempDir,
    channel: Channel,
    heard: mpsc::Receiver<Heard>,
    socket: std::path::PathBuf,
}

fn bench(peer: Peer) -> Bench {
    let base = tempfile::tempdir().unwrap();
    let folder = ControlDir::create(base.path(), &attempt()).unwrap();
    let ring = Ring::create(&base.path().join("ring")).unwrap();
    let socket = folder.path().join(CONTROL_SOCKET);
    let (channel, heard) = Channel::listen(&folder, peer, ring).unwrap();
    Bench { _base: base, channel, heard, socket }
}

impl Bench {
    async fn next(&mut self) -> What {
        tokio::time::timeout(LIMIT, self.heard.recv()).await.unwrap().unwrap().what
    }
}

/// The other end, with what came over it.
struct Init {
    stream: UnixStream,
    decoder: Decoder,
    ring: Option<OwnedFd>,
}

impl Init {
    fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        Self { stream, decoder: Decoder::default(), ring: None }
    }

    fn say(&mut self, message: &FromInit) {
        self.stream.write_all(&encode(message).unwrap()).unwrap();
    }

    fn hear(&mut self) -> ToInit {
        loop {
            if let Some(word) = self.decoder.next().unwrap() {
                return word;
            }
            let mut bytes = vec![0; 4096];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let got = rustix::net::recvmsg(
                &self.stream,
                &mut [IoSliceMut::new(&mut bytes)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            )
            .unwrap();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    self.ring = descriptors.last();
                }
            }
            assert!(got.bytes > 0, "the agent closed");
            self.decoder.feed(&bytes[..got.bytes]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_answers_and_the_ring_go_over_the_channel() {
    let mut bench = bench(Peer::Process(std::process::id()));
    let socket = bench.socket.clone();
    let init = std::thread::spawn(move || {
        let mut init = Init::connect(&socket);
        init.say(&FromInit::Hello { version: 1, begun: false });
        let ToInit::Begin(begin) = init.hear() else { panic!() };
        assert_eq!(begin.env.len(), 1);
        std::fs::File::from(init.ring.take().unwrap()).write_all(b"").unwrap();
        let ToInit::Stop { seq } = init.hear() else { panic!() };
        init.say(&FromInit::Usage { bytes: 1, files: 1 });
        init.say(&FromInit::Stopped { seq, processes: 4, took_us: 90, running: 0 });
        let ToInit::GoOn { seq } = init.hear() else { panic!() };
        init.say(&FromInit::GoingOn { seq });
        init.say(&FromInit::Exited(Exit::Code { code: 3 }));
        assert_eq!(init.hear(), ToInit::ExitSeen);
    });
    assert!(matches!(bench.next().await, What::Connected { init } if init.pid == std::process::id()));
    assert_eq!(bench.next().await, What::Said(FromInit::Hello { version: 1, begun: false }));
    // Larger than the socket's buffer: the rest goes out as init reads.
    let begin = Begin {
        command: vec!["x".to_owned()],
        env: vec![("LARGE".to_owned(), "v".repeat(900 << 10))],
        directory: "/".to_owned(),
        egress_deadline: None,
        disk_limit: 0,
    };
    bench.channel.send(&ToInit::Begin(begin)).unwrap();
    bench.channel.send(&ToInit::Stop { seq: 7 }).unwrap();
    let stopped = FromInit::Stopped { seq: 7, processes: 4, took_us: 90, running: 0 };
    assert_eq!(bench.next().await, What::Said(FromInit::Usage { bytes: 1, files: 1 }));
    assert_eq!(bench.next().await, What::Said(stopped));
    bench.channel.send(&ToInit::GoOn { seq: 8 }).unwrap();
    assert_eq!(bench.next().await, What::Said(FromInit::GoingOn { seq: 8 }));
    assert_eq!(bench.next().await, What::Said(FromInit::Exited(Exit::Code { code: 3 })));
    bench.channel.send(&ToInit::ExitSeen).unwrap();
    init.join().unwrap();
    assert_eq!(bench.next().await, What::Gone);
    let word = bench.channel.send(&ToInit::Stop { seq: 9 });
    assert!(matches!(word, Err(ChannelError::NotConnected)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_shown_out_and_does_not_take_init_s_place() {
    let mut bench = bench(Peer::Process(1));
    let mut strangers: Vec<UnixStream> =
        (0..100).map(|_| UnixStream::connect(&bench.socket).unwrap()).collect();
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(stranger.read(&mut [0; 1]).unwrap_or(0), 0);
    }
    assert_eq!(bench.channel.init(), None);
    assert!(bench.heard.try_recv().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn init_may_connect_anew_and_gets_the_ring_again() {
    let mut bench = bench(Peer::Process(std::process::id()));
    let mut first = Init::connect(&bench.socket);
    assert!(matches!(bench.next().await, What::Connected { .. }));
    bench.channel.send(&ToInit::Ping { seq: 1 }).unwrap();
    assert_eq!(first.hear(), ToInit::Ping { seq: 1 });
    let mut second = Init::connect(&bench.socket);
    assert_eq!(bench.next().await, What::Gone);
    assert!(matches!(bench.next().await, What::Connected { .. }));
    bench.channel.send(&ToInit::Adopt { egress_deadline: None }).unwrap();
    assert_eq!(second.hear(), ToInit::Adopt { egress_deadline: None });
    assert!(second.ring.is_some());
}

/// Nobody takes events: figures go, and what matters is there afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f99_a_driver_that_takes_no_events_loses_figures_and_no_report() {
    let mut bench = bench(Peer::Process(std::process::id()));
    let mut init = Init::connect(&bench.socket);
    for files in 0..5_000 {
        init.say(&FromInit::Usage { bytes: 0, files });
    }
    // A word goes out all the same.
    bench.channel.send(&ToInit::End { seq: 3 }).unwrap();
    assert_eq!(init.hear(), ToInit::End { seq: 3 });
    init.say(&FromInit::Exited(Exit::Code { code: 0 }));
    let mut seen = 0;
    loop {
        seen += 1;
        if bench.next().await == What::Said(FromInit::Exited(Exit::Code { code: 0 })) {
            break;
        }
    }
    assert!(seen < 5_000, "figures are dropped, {seen} came");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_makes_no_sense_is_skipped() {
    let mut bench = bench(Peer::Process(std::process::id()));
    let mut init = Init::connect(&bench.socket);
    init.stream.write_all(&[3, 0, 0, 0]).unwrap();
    init.stream.write_all(b"{}x").unwrap();
    init.say(&FromInit::DeadlinePassed);
    assert!(matches!(bench.next().await, What::Connected { .. }));
    assert_eq!(bench.next().await, What::Said(FromInit::DeadlinePassed));
}

/// A process that stands for init: it ends when the file `end` appears.
fn process_that_ends_by_file(folder: &Path) -> Child {
    let script = format!("while [ ! -e {}/{END_FILE} ]; do sleep 0.01; done", folder.display());
    Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_process_is_told_once_it_is_gone_and_of_no_other() {
    let base = tempfile::tempdir().unwrap();
    let mut child = process_that_ends_by_file(base.path());
    let process = identify(child.id()).unwrap();
    let watched = Watched::open(process).unwrap().unwrap();
    assert!(!watched.wait(Duration::from_millis(30)).unwrap());
    write_end_file(base.path()).unwrap();
    tokio::time::timeout(LIMIT, watched.ended()).await.unwrap().unwrap();
    assert!(watched.wait(Duration::ZERO).unwrap());
    child.wait().unwrap();
    assert!(Watched::open(process).unwrap().is_none());
    // The same pid with another start time is somebody else.
    let mut other = identify(std::process::id()).unwrap();
    other.start_time += 1;
    assert!(Watched::open(other).unwrap().is_none());
}

#[test]
fn a_strict_umask_does_not_shut_the_guest_out() {
    use std::os::unix::fs::PermissionsExt;
    // The umask is the whole process's: a child of its own, which is this test again.
    const INNER: &str = "GPUNION_TEST_UMASK";
    if let Some(base) = std::env::var_os(INNER) {
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        let folder = ControlDir::create(Path::new(&base), &attempt()).unwrap();
        let listener = folder.bind().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(folder.path()), mode(&folder.path().join(CONTROL_SOCKET))), (0o755, 0o666));
        drop(listener);
        return;
    }
    let base = tempfile::tempdir().unwrap();
    let long = base.path().join("n".repeat(120));
    let inner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "channel::tests::a_strict_umask_does_not_shut_the_guest_out"])
        .env(INNER, &long)
        .output()
        .unwrap();
    assert!(inner.status.success(), "{}", String::from_utf8_lossy(&inner.stdout));
    assert!(String::from_utf8_lossy(&inner.stdout).contains("1 passed"));
}
