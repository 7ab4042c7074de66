//! The campus under attack: one machine that lends CPUs to two guests at once, an attacker and a
//! victim, beside services of the host's own; and a second machine with a GPU.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::thread;

use gpunion_protocol::job::{JobState, JobView};
use system_tests::campus::{PATIENCE, Pair};
use system_tests::lab::wait_for;

pub(crate) struct World {
    pub(crate) pair: Pair,
    /// Part of every name that attempts look for; nothing else on this machine has it.
    pub(crate) token: String,
    /// The program, where everybody of the lab may run it.
    program: PathBuf,
    attempts: BTreeMap<&'static str, Attempt>,
    /// What each attempt came to inside of the guest.
    inside: BTreeMap<String, String>,
    /// The guest that made them, after its end.
    pub(crate) attacker: JobView,
    /// The guest beside it, as it was before and after.
    pub(crate) victim: [JobView; 2],
}

/// Who makes an attempt outside, where it succeeds.
#[derive(Clone, Copy)]
pub(crate) enum Who {
    /// Who lends the machine, an ordinary user.
    Owner,
    Root,
    /// The victim tried it on itself; it is ready only when that went well.
    Victim,
}

struct Attempt {
    inside: String,
    outside: String,
    who: Who,
}

impl World {
    pub(crate) fn make() -> Self {
        let pair = Pair::found([&[], &["GPU-stand-in-3"]]).unwrap();
        pair.campus.hostile_image(&pair.engines[0]).unwrap();
        let built = system_tests::campus::built().unwrap();
        let program = pair.campus.lab.install(&built.join("hostile-guest")).unwrap();
        let token = format!("treasure-{}", std::process::id());
        pair.providers[0].share().unwrap();
        let attempts = crate::reach::attempts(&Services::open(&pair, &token), &token).0;

        let victim = submit(&pair, "victim", &["victim", &token], "memory = \"64 MiB\"", &[]);
        let ready = wait_for("the victim", PATIENCE, || {
            let log = pair.ada.run(["logs", &victim])?.ok()?.out;
            anyhow::ensure!(!log.contains("victim failed"), "{log}");
            Ok(log.contains("victim ready").then_some(()))
        });
        ready.unwrap_or_else(|error| panic!("{error:#}: {:#?}\n{}", pair.ada.job(&victim), pair.logs()));
        let before = pair.ada.job(&victim).unwrap();

        let list: String = attempts.iter().map(|(name, one)| format!("{name} {}\n", one.inside)).collect();
        let words = ["each", "/workspace/attempts", "exit", "7"];
        let attacker = submit(&pair, "attacker", &words, "memory = \"128 MiB\"", &[("attempts", &list)]);
        let ended = pair.ada.wait_job(&attacker, "the end", PATIENCE, |job| job.state.is_final());
        let ended = ended.unwrap_or_else(|error| panic!("{error:#}\n{}", pair.logs()));
        let log = pair.ada.run(["logs", &attacker]).unwrap().ok().unwrap().out;
        let inside = log.lines().filter_map(|line| line.split_once(' '));
        let inside = inside.map(|(name, said)| (name.to_owned(), said.to_owned())).collect();

        let after = pair.ada.job(&victim).unwrap();
        pair.ada.run(["cancel", &victim]).unwrap().ok().unwrap();
        Self { pair, token, program, attempts, inside, attacker: ended, victim: [before, after] }
    }

    /// None of these was of use inside, and each is outside.
    pub(crate) fn refuses(&self, names: &[&str]) {
        for name in names {
            let attempt = &self.attempts[name];
            let said = self.inside.get(*name).unwrap_or_else(|| panic!("{name} was not tried"));
            assert!(said.starts_with("refused "), "{name} ({}): {said}", attempt.inside);
            if let Some(mut command) = self.outside(attempt) {
                let output = command.output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(
                    said.starts_with("reached "),
                    "a poor attempt: {name} ({}) outside: {said}",
                    attempt.outside
                );
            }
        }
    }

    pub(crate) fn was_tried(&self, name: &str) -> bool {
        self.attempts.contains_key(name)
    }

    /// What was said inside of one that has no outside.
    pub(crate) fn said(&self, name: &str) -> &str {
        &self.inside[name]
    }

    fn outside(&self, attempt: &Attempt) -> Option<Command> {
        let mut command = match attempt.who {
            Who::Owner => self.pair.providers[0].user.command(&self.program),
            Who::Root => Command::new(&self.program),
            Who::Victim => return None,
        };
        command.args(attempt.outside.split(' '));
        Some(command)
    }

    /// The program itself, as root, for what a test must see succeed outside.
    pub(crate) fn as_root(&self, words: &[&str]) -> String {
        let output = Command::new(&self.program).args(words).output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// A job of the hostile program; its id.
    pub(crate) fn submit(&self, name: &str, words: &[&str], resources: &str) -> String {
        submit(&self.pair, name, words, resources, &[])
    }

    pub(crate) fn ends(&self, id: &str) -> JobView {
        let job = self.pair.ada.wait_job(id, "the end", PATIENCE, |job| job.state.is_final());
        job.unwrap_or_else(|error| panic!("{error:#}\n{}", self.pair.logs()))
    }

    pub(crate) fn log(&self, id: &str) -> String {
        self.pair.ada.run(["logs", id]).unwrap().ok().unwrap().out
    }

    /// Until the job's output has this.
    pub(crate) fn says(&self, id: &str, what: &str) {
        wait_for(&format!("{what:?} of {id}"), PATIENCE, || Ok(self.log(id).contains(what).then_some(())))
            .unwrap_or_else(|error| panic!("{error:#}: {}\n{}", self.log(id), self.pair.logs()));
    }

    /// The machine still serves: a guest of nobody in particular runs and ends well.
    pub(crate) fn still_serves(&self, name: &str) {
        let job = self.submit(name, &["read", "/proc/self/stat"], "memory = \"128 MiB\"");
        let job = self.ends(&job);
        assert_eq!(job.state, JobState::Succeeded, "{job:#?}\n{}", self.pair.logs());
    }
}

fn submit(pair: &Pair, name: &str, words: &[&str], resources: &str, files: &[(&str, &str)]) -> String {
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let gpus = if resources.contains("gpus") { "" } else { "gpus = 0\n" };
    let disk = if resources.contains("disk") { "" } else { "disk = \"256 MiB\"\n" };
    let spec = format!(
        "name = \"{name}\"\nimage = \"hostile:latest\"\ncommand = [\"/hostile-guest\", {}]\n\
         [resources]\n{gpus}{disk}cpus = 1\n{resources}\n",
        words.join(", ")
    );
    let folder = pair.ada.job_folder(name, &spec).unwrap();
    for (file, text) in files {
        pair.ada.write_in(&folder, file, text).unwrap();
    }
    pair.ada.submit(&folder).unwrap().0
}

/// What the host has that a guest must not reach.
pub(crate) struct Services {
    pub(crate) tcp: Vec<(&'static str, SocketAddr)>,
    pub(crate) udp: Vec<(&'static str, SocketAddr)>,
    pub(crate) relay: String,
    pub(crate) engine: PathBuf,
    pub(crate) lab: PathBuf,
    /// Files of the owner that everybody on the host may read.
    pub(crate) home: PathBuf,
    pub(crate) init: PathBuf,
}

impl Services {
    /// They live as long as this program; those that this machine can't have (IPv6) are left out.
    fn open(pair: &Pair, token: &str) -> Self {
        let lan = lan_address();
        let places =
            [("loopback", IpAddr::from([127, 0, 0, 1])), ("loopback6", "::1".parse().unwrap()), ("lan", lan)];
        let (mut tcp, mut udp) = (Vec::new(), Vec::new());
        for (name, place) in places {
            if let Ok(listener) = TcpListener::bind((place, 0)) {
                tcp.push((name, listener.local_addr().unwrap()));
                thread::spawn(move || {
                    for mut stream in listener.incoming().flatten() {
                        let _ = stream.write_all(b"host");
                    }
                });
            }
            if let Ok(socket) = UdpSocket::bind((place, 0)) {
                udp.push((name, socket.local_addr().unwrap()));
                thread::spawn(move || {
                    let mut bytes = [0; 64];
                    while let Ok((read, from)) = socket.recv_from(&mut bytes) {
                        let _ = socket.send_to(&bytes[..read], from);
                    }
                });
            }
        }
        let name = std::os::unix::net::SocketAddr::from_abstract_name(host_socket(token)).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        thread::spawn(move || for _stream in listener.incoming() {});
        let home = pair.providers[0].user.home().to_owned();
        fs::write(home.join(format!("{token}-home")), "of the owner").unwrap();
        let lab = pair.campus.lab.dir().to_owned();
        Self {
            tcp,
            udp,
            relay: pair.relay.address().to_owned(),
            engine: pair.engines[0].socket(),
            init: lab.join("bin/gpunion-init"),
            lab,
            home,
        }
    }
}

pub(crate) fn host_socket(token: &str) -> String {
    format!("{token}-host")
}

/// This machine's own address among others; nothing is sent to find it.
fn lan_address() -> IpAddr {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:9").unwrap();
    socket.local_addr().unwrap().ip()
}

/// Attempts by name, as one builds them.
#[derive(Default)]
pub(crate) struct Attempts(BTreeMap<&'static str, Attempt>);

impl Attempts {
    /// The same words inside and outside.
    pub(crate) fn add(&mut self, name: &'static str, who: Who, words: impl Into<String>) {
        let words = words.into();
        self.0.insert(name, Attempt { inside: words.clone(), outside: words, who });
    }

    pub(crate) fn differ(
        &mut self,
        name: &'static str,
        who: Who,
        inside: impl Into<String>,
        outside: impl Into<String>,
    ) {
        self.0.insert(name, Attempt { inside: inside.into(), outside: outside.into(), who });
    }
}
