//! A guest made of namespaces, and the agent's end of its channel.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gpunion_protocol::guest::{Begin, Decoder, FromInit, ToInit, encode, ring};
use gpunion_protocol::time::BootMs;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

/// Far more than anything here takes on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const SCRIPT: &str = r#"
set -e
mount -t tmpfs -o mode=755 none "$1"
cd "$1"
mkdir -p proc dev tmp run/gpunion run/gpunion-ctl run/gpunion-egress workspace
ip link set lo up
chmod 1777 tmp
for d in usr bin lib lib64; do [ -e /$d ] || continue; mkdir $d; mount --bind /$d $d; done
mount --rbind /dev dev
mount -t proc proc proc
mount --bind "$2/workspace" workspace
mount --bind "$2/ctl" run/gpunion-ctl
mount -o remount,bind,ro run/gpunion-ctl
mount --bind "$2/egress" run/gpunion-egress
mount -o remount,bind,ro run/gpunion-egress
mount -t tmpfs -o mode=1777,size=1m none run/gpunion
touch run/gpunion-init
mount --bind "$3" run/gpunion-init
mount -o remount,ro "$1"
cd /
exec chroot "$1" setpriv --reuid 231072 --regid 231072 --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all /run/gpunion-init
"#;

pub(crate) struct Guest {
    folder: tempfile::TempDir,
    unshare: Child,
    listener: Option<UnixListener>,
}

pub(crate) struct Agent {
    stream: UnixStream,
    decoder: Decoder,
    /// Words that were passed over while another was looked for.
    skipped: Vec<FromInit>,
}

pub(crate) struct RingFile {
    pub(crate) file: File,
}

/// Waits for the condition to hold.
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) fn boot_now() -> BootMs {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    BootMs(time.tv_sec as u64 * 1_000 + time.tv_nsec as u64 / 1_000_000)
}

pub(crate) fn shell(script: &str) -> Begin {
    Begin {
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
        directory: "/workspace".to_owned(),
        egress_deadline: None,
        disk_limit: 0,
    }
}

impl Guest {
    /// Starts init; the agent listens already.
    pub(crate) fn start() -> Self {
        let mut guest = Self::start_alone();
        guest.listen();
        guest
    }

    /// Starts init; no agent listens.
    pub(crate) fn start_alone() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (name, mode) in [("root", 0o755), ("workspace", 0o777), ("ctl", 0o755), ("egress", 0o755)] {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::set_permissions(folder.path().join(name), Permissions::from_mode(mode)).unwrap();
        }
        let unshare = Command::new("unshare")
            .args([
                "--pid",
                "--fork",
                "--net",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                SCRIPT,
                "sh",
            ])
            .arg(folder.path().join("root"))
            .arg(folder.path())
            .arg(env!("CARGO_BIN_EXE_gpunion-init"))
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { folder, unshare, listener: None }
    }

    pub(crate) fn listen(&mut self) {
        let path = self.control("init.sock");
        let _old = fs::remove_file(&path);
        self.listener = Some(UnixListener::bind(&path).unwrap());
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    }

    /// The agent's proxy, which is somebody else's part: here it sends back what it gets.
    pub(crate) fn echo(&self) {
        let path = self.folder.path().join("egress/proxy.sock");
        let listener = UnixListener::bind(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut back = stream.try_clone().unwrap();
                    let _copied = std::io::copy(&mut &stream, &mut back);
                    let _told = stream.shutdown(std::net::Shutdown::Write);
                });
            }
        });
    }

    /// As when the agent is killed: the socket's file stays, nobody listens.
    pub(crate) fn deafen(&mut self) {
        self.listener = None;
    }

    /// The next connection, after its Hello.
    pub(crate) fn accept(&self, begun: bool) -> Agent {
        let listener = self.listener.as_ref().unwrap();
        assert!(readable(listener, LIMIT), "init did not connect");
        let mut agent =
            Agent { stream: listener.accept().unwrap().0, decoder: Decoder::default(), skipped: Vec::new() };
        let hello = agent.next().expect("a first word");
        assert_eq!(hello, FromInit::Hello { version: gpunion_protocol::WIRE_VERSION, begun });
        agent
    }

    /// Accepts, begins, and waits until the program runs.
    pub(crate) fn begin(&self, begin: Begin) -> (Agent, RingFile) {
        let mut agent = self.accept(false);
        let ring = self.ring();
        agent.say_with(&ToInit::Begin(begin), &ring.file);
        agent.expect("Started", |word| matches!(word, FromInit::Started { .. }).then_some(()));
        (agent, ring)
    }

    pub(crate) fn ring(&self) -> RingFile {
        let path = self.folder.path().join("ring");
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
        if file.metadata().unwrap().len() == 0 {
            file.write_all_at(&ring::header(ring::CAPACITY, 0), 0).unwrap();
        }
        RingFile { file }
    }

    pub(crate) fn workspace(&self, name: &str) -> PathBuf {
        self.folder.path().join("workspace").join(name)
    }

    pub(crate) fn control(&self, name: &str) -> PathBuf {
        self.folder.path().join("ctl").join(name)
    }

    /// Waits until the program wrote this file, and returns its text.
    pub(crate) fn wait_for_file(&self, name: &str) -> String {
        until(name, || fs::read_to_string(self.workspace(name)).ok().filter(|text| !text.is_empty()))
    }

    /// Init's pid on the host.
    pub(crate) fn init(&self) -> i32 {
        let id = self.unshare.id();
        until("unshare's child", || {
            fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?.trim().parse().ok()
        })
    }

    /// (pid on the host, state, parent) of every process of the guest but init.
    pub(crate) fn processes(&self) -> Vec<(i32, char, i32)> {
        let init = self.init();
        let Ok(namespace) = fs::read_link(format!("/proc/{init}/ns/pid")) else { return Vec::new() };
        let pids =
            fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid: &i32| *pid != init)
            .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|found| found == namespace))
            .filter_map(|pid| stat(pid).map(|(state, parent)| (pid, state, parent)))
            .collect()
    }

    pub(crate) fn states(&self) -> String {
        self.processes().into_iter().map(|(_, state, _)| state).collect()
    }

    /// Waits for init's end, and returns what the engine would see.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        until("init's end", || self.unshare.try_wait().unwrap()).code()
    }
}

/// (state, parent) of one process.
fn stat(pid: i32) -> Option<(char, i32)> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line[line.rfind(')')? + 1..].split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Ok(None) = self.unshare.try_wait() {
            let id = self.unshare.id();
            let child = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
            if let Some(pid) = child.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _killed = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            let _waited = self.unshare.wait();
        }
    }
}

impl Agent {
    pub(crate) fn say(&mut self, word: &ToInit) {
        self.send(&encode(word).unwrap());
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn say_with(&mut self, word: &ToInit, file: &File) {
        let frame = encode(word).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        let sent = sendmsg(&self.stream, &[IoSlice::new(&frame)], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, frame.len());
    }

    /// The next word, or none when init closed the connection.
    pub(crate) fn next(&mut self) -> Option<FromInit> {
        loop {
            if let Some(word) = self.decoder.next().unwrap() {
                return Some(word);
            }
            assert!(readable(&self.stream, LIMIT), "init says nothing");
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) | Err(_) => return None,
                Ok(length) => self.decoder.feed(&bytes[..length]),
            }
        }
    }

    /// The first word that is what is looked for; those before it may be looked for later.
    pub(crate) fn expect<T>(&mut self, what: &str, wanted: impl Fn(&FromInit) -> Option<T>) -> T {
        if let Some(at) = self.skipped.iter().position(|word| wanted(word).is_some()) {
            return wanted(&self.skipped.remove(at)).unwrap();
        }
        while let Some(word) = self.next() {
            if let Some(found) = wanted(&word) {
                return found;
            }
            self.skipped.push(word);
        }
        panic!("{what} did not come, but {:?}", self.skipped);
    }

    /// What came and was not looked for.
    pub(crate) fn skipped(&self) -> &[FromInit] {
        &self.skipped
    }

    /// Stops the guest; (processes, microseconds, still running).
    pub(crate) fn stop(&mut self, number: u64) -> (u32, u64, u32) {
        self.say(&ToInit::Stop { seq: number });
        self.expect("Stopped", |word| match word {
            FromInit::Stopped { seq, processes, took_us, running } if *seq == number => {
                Some((*processes, *took_us, *running))
            }
            _ => None,
        })
    }

    pub(crate) fn go_on(&mut self, number: u64) {
        self.say(&ToInit::GoOn { seq: number });
        self.expect("GoingOn", |word| (*word == FromInit::GoingOn { seq: number }).then_some(()));
    }

    pub(crate) fn silent_for(&self, time: Duration) -> bool {
        !readable(&self.stream, time)
    }
}

fn readable(fd: &impl AsFd, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

impl RingFile {
    /// Bytes ever written, and those that are left.
    pub(crate) fn read(&self) -> (u64, Vec<u8>) {
        let (capacity, total) = until("a whole header", || {
            let mut header = [0; 32];
            self.file.read_exact_at(&mut header, 0).unwrap();
            ring::parse(&header)
        });
        let mut out = Vec::new();
        for (offset, length) in ring::pieces(capacity, total.saturating_sub(capacity), total) {
            let mut piece = vec![0; length as usize];
            self.file.read_exact_at(&mut piece, offset).unwrap();
            out.extend(piece);
        }
        (total, out)
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.read().1).unwrap()
    }

    pub(crate) fn wait_for(&self, text: &str) {
        until(text, || self.text().contains(text).then_some(()));
    }
}

pub(crate) fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
