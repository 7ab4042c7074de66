//! The engine needs root, the agent must not have it. So each test runs twice: once as root,
//! which makes the lab and then starts this very program again as an ordinary user of the
//! engine's group; and as that user, where everything is tried. What only root can do (stopping
//! the engine where it stands) the inner run asks of the outer by a line on its output.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use gpunion_agent_core::channel::{Channel, ControlDir, Heard, Peer, Ring, RingReader, What, identify};
use gpunion_agent_core::container::{
    DataMount, Engine, GpuWay, GuestPlan, ImageConfig, command, guest_uid, labels,
};
use gpunion_agent_core::second_way::cgroups_with;
use gpunion_protocol::guest::{CONTROL_DIR, FromInit, INIT_PATH, RUN_DIR, ToInit, WORKSPACE};
use gpunion_protocol::ids::{AttemptNo, AttemptRef, DeviceId, Epoch, GpuUuid, JobId, Token};
use gpunion_protocol::spec::JobSpec;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use system_tests::lab::{self, DEFAULT_BASE, EngineOptions, Lab, scratch_rootfs, wait_for};
use tokio::sync::mpsc;

const INNER: &str = "GPUNION_ENGINE_TEST";
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const IMAGE: &str = "busybox-test:latest";

pub(crate) fn attempt(number: u32) -> AttemptRef {
    let token = Token { epoch: Epoch(1), attempt: AttemptNo(number) };
    AttemptRef { job: JobId::new(1, [7; 10]), token }
}

/// A guest that has begun, with all that the agent holds of it.
pub(crate) struct Guest {
    pub(crate) engine: Engine,
    pub(crate) id: String,
    pub(crate) plan: GuestPlan,
    pub(crate) channel: Channel,
    pub(crate) heard: mpsc::Receiver<Heard>,
    pub(crate) ring: RingReader,
    pub(crate) folder: ControlDir,
}

impl Guest {
    pub(crate) fn init_pid(&self) -> u32 {
        self.channel.init().unwrap().pid
    }

    pub(crate) fn output_until(&self, word: &str) -> String {
        wait_for(&format!("{word} in the guest's output"), LIMIT, || {
            let read = self.ring.read(0, 1 << 20)?;
            let text = String::from_utf8_lossy(&read.bytes).into_owned();
            Ok(text.contains(word).then_some(text))
        })
        .unwrap()
    }

    pub(crate) async fn wait_for<T>(&mut self, mut pick: impl FnMut(&FromInit) -> Option<T>) -> T {
        loop {
            let heard = tokio::time::timeout(LIMIT, self.heard.recv()).await.unwrap().unwrap();
            if let What::Said(said) = heard.what
                && let Some(found) = pick(&said)
            {
                return found;
            }
        }
    }

    /// Says a word and waits for what init answers to it.
    pub(crate) async fn ask<T>(&mut self, word: ToInit, pick: impl FnMut(&FromInit) -> Option<T>) -> T {
        self.channel.send(&word).unwrap();
        self.wait_for(pick).await
    }

    /// Every process of it stands still. Answers how many did.
    pub(crate) async fn stop(&mut self, number: u64) -> u32 {
        self.ask(ToInit::Stop { seq: number }, |said| match said {
            FromInit::Stopped { seq, processes, running: 0, .. } if *seq == number => Some(*processes),
            _ => None,
        })
        .await
    }

    pub(crate) async fn go_on(&mut self, number: u64) {
        self.ask(ToInit::GoOn { seq: number }, |said| match said {
            FromInit::GoingOn { seq } if *seq == number => Some(()),
            _ => None,
        })
        .await;
    }

    pub(crate) async fn remove(self) {
        self.engine.remove_guest(&self.id).await.unwrap();
        assert_eq!(self.engine.inspect_guest(&self.id).await.unwrap(), None);
        self.engine.remove_workspace(&self.plan.attempt).await.unwrap();
        self.folder.remove().unwrap();
    }
}

/// The run as an ordinary user.
pub(crate) struct Inner {
    pub(crate) sockets: BTreeMap<String, PathBuf>,
    pub(crate) programs: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) standin: PathBuf,
    pub(crate) device: DeviceId,
}

impl Inner {
    pub(crate) fn engine(&self, name: &str) -> Engine {
        Engine::connect(&self.sockets[name], &self.device)
    }

    /// Has root do something, and waits for its answer.
    pub(crate) fn ask(&self, what: &str) -> String {
        let mut out = std::io::stdout();
        writeln!(out, "\nlab: {what}").unwrap();
        out.flush().unwrap();
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub(crate) async fn guest(&self, engine: &str, number: u32, script: &str) -> Guest {
        let image = self.engine(engine).image(IMAGE).await.unwrap().unwrap();
        self.guest_of(engine, &image.id, number, script).await
    }

    pub(crate) async fn guest_of(&self, engine: &str, image_id: &str, number: u32, script: &str) -> Guest {
        self.guest_with(engine, image_id, number, script, Vec::new()).await
    }

    pub(crate) async fn guest_with(
        &self,
        engine: &str,
        image_id: &str,
        number: u32,
        script: &str,
        data: Vec<DataMount>,
    ) -> Guest {
        let (engine_name, engine) = (engine, self.engine(engine));
        let facts = engine.probe(&[], Some(&self.standin)).await.unwrap();
        assert_eq!(facts.architecture, if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" });
        assert!(matches!(facts.gpu_way, GpuWay::StandIn { .. }));
        let attempt = attempt(number);
        engine.create_workspace(&attempt).await.unwrap();
        let folder = ControlDir::create(
            &self.home.join("a-folder-with-a-name-that-is-too-long-for-any-socket/c/c/c/c/c/c/c"),
            &attempt,
        )
        .unwrap();
        let ring_path = self.home.join(format!("ring-{number}"));
        let ring = Ring::create(&ring_path).unwrap();
        let gpus = vec![GpuUuid("GPU-standin-1".to_owned())];
        // That of the poor engine is made poor by who started this program.
        let cgroup_parent = match engine_name {
            "poor" => format!("/gpunion-lab-poor-{}", std::os::unix::process::parent_id()),
            _ => cgroups_with(&self.device, &facts).parent_of_guests(),
        };
        let plan = GuestPlan {
            attempt: attempt.clone(),
            image_id: image_id.to_owned(),
            uid: guest_uid(&self.device).unwrap(),
            memory: 128 << 20,
            cpus: 1,
            pids: 64,
            writable_root: false,
            gpus: gpus.clone(),
            gpu_way: facts.gpu_way,
            init: self.programs.join("gpunion-init"),
            control: folder.path().to_owned(),
            egress: None,
            cgroup_parent,
            data,
        };
        let id = match engine.create_guest(&plan).await {
            Ok(id) => id,
            // Where a controller is missing the engine itself refuses some limits, and drops others.
            Err(error) if engine_name == "v2" => {
                assert!(error.to_string().contains("CPU CFS scheduler"), "{error}");
                self.ask(&format!("make-guest v2 {}", without_cpu(&plan, &self.device)))
            }
            Err(error) => panic!("{error}"),
        };
        let (channel, mut heard) = Channel::listen(&folder, Peer::Container(id.clone()), ring).unwrap();
        engine.start_guest(&id).await.unwrap();
        let mut spec = JobSpec::of_image(IMAGE);
        spec.command = ["/busybox", "sh", "-c", script].map(str::to_owned).to_vec();
        spec.env.insert("PATH".to_owned(), "/".to_owned());
        let begin = command::begin(&spec, &ImageConfig::default(), &attempt, false, &[], &gpus).unwrap();
        loop {
            let next = tokio::time::timeout(LIMIT, heard.recv()).await.unwrap().unwrap();
            match next.what {
                What::Said(FromInit::Hello { begun: false, .. }) => {
                    channel.send(&ToInit::Begin(begin.clone())).unwrap();
                }
                What::Said(FromInit::Started { .. }) => break,
                What::Connected { init } => assert_eq!(identify(init.pid), Some(init)),
                other => panic!("{other:?}"),
            }
        }
        let state = engine.inspect_guest(&id).await.unwrap().unwrap();
        assert_eq!(state.pid, channel.init().map(|init| init.pid));
        let ring = RingReader::open(&ring_path).unwrap();
        Guest { engine, id, plan, channel, heard, ring, folder }
    }
}

/// What an engine without the cpu controller makes of such a plan: a guest with the other limits.
fn without_cpu(plan: &GuestPlan, device: &DeviceId) -> serde_json::Value {
    let bind =
        |from: &Path, to: &str| json!({"Type": "bind", "Source": from, "Target": to, "ReadOnly": true});
    json!({
        "Image": plan.image_id, "Entrypoint": [INIT_PATH], "User": format!("{0}:{0}", plan.uid),
        "Labels": labels::of_attempt(device, "guest", &plan.attempt),
        "HostConfig": {
            "NetworkMode": "none", "ReadonlyRootfs": true, "CapDrop": ["ALL"],
            "Memory": plan.memory, "PidsLimit": plan.pids,
            "Tmpfs": { RUN_DIR: "rw,mode=1777", WORKSPACE: "rw,mode=1777" },
            "Mounts": [bind(&plan.init, INIT_PATH), bind(&plan.control, CONTROL_DIR)],
        },
    })
}

/// The name decides what kind of machine an engine is: `v2` has cgroup v2 alone, `poor` has guests
/// in a cgroup that root can make smaller than they may be.
fn options(name: &str) -> EngineOptions {
    let mut options = EngineOptions { cgroup2: name == "v2", ..EngineOptions::default() };
    if name == "poor" {
        options.arguments.push(format!("--cgroup-parent=/{}", poor_parent()));
    }
    options
}

fn poor_parent() -> String {
    format!("gpunion-lab-poor-{}", std::process::id())
}

/// The folders of that cgroup, in each hierarchy.
fn poor_folders() -> Vec<PathBuf> {
    let hierarchies = std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten().map(|entry| entry.path());
    let all = hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]);
    all.map(|folder| folder.join(poor_parent())).filter(|folder| folder.is_dir()).collect()
}

/// Runs `test` as an ordinary user on engines of these names.
pub(crate) fn both<F>(name: &str, engines: &[&str], test: impl FnOnce(Inner) -> F)
where
    F: Future<Output = ()>,
{
    if let Ok(told) = std::env::var(INNER) {
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        let path = |key: &str| PathBuf::from(told[key].as_str().unwrap());
        let sockets = engines.iter().map(|name| ((*name).to_owned(), path(name))).collect();
        let inner = Inner {
            sockets,
            programs: path("programs"),
            home: path("home"),
            standin: path("standin"),
            device: told["device"].as_str().unwrap().parse().unwrap(),
        };
        assert!(!nix::unistd::geteuid().is_root());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(test(inner));
    }
    outer(name, engines);
}

fn outer(name: &str, names: &[&str]) {
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let user = lab.user("owner").unwrap();
    let built = Path::new(env!("CARGO_BIN_EXE_lab")).parent().unwrap().to_owned();
    let init = lab.install(&built.join("gpunion-init")).unwrap();
    lab.install(&built.join("gpunion-helper")).unwrap();
    let me = lab.install(&std::env::current_exe().unwrap()).unwrap();
    let standin = lab.shared_folder("standin").unwrap();
    for gpu in ["GPU-standin-1", "GPU-standin-2"] {
        lab.shared_folder(&format!("standin/{gpu}")).unwrap();
    }
    // Another one for each run: guests of several tests run side by side.
    let mut random = [1; 10];
    let name_of_lab = lab.dir().file_name().unwrap().as_bytes();
    for (byte, of_name) in random.iter_mut().zip(name_of_lab.iter().rev()) {
        *byte = *of_name;
    }
    let device = DeviceId::new(1, random);
    std::fs::write(lab.dir().join("devices"), format!("{device}\n")).unwrap();
    let mut told = json!({
        "device": device, "programs": init.parent().unwrap(), "home": user.home(), "standin": standin,
    });
    let rootfs = scratch_rootfs(Path::new("/bin/busybox"), &lab.dir().join("busybox.tar")).unwrap();
    let mut engines = BTreeMap::new();
    for name in names {
        let engine = lab.engine_with(name, options(name)).unwrap();
        engine.import(&rootfs, IMAGE).unwrap();
        told[*name] = json!(engine.socket());
        engines.insert((*name).to_owned(), engine);
    }
    let mut inner = user.command(&me);
    inner.args(["--exact", name, "--nocapture"]).env(INNER, told.to_string()).env("RUST_BACKTRACE", "1");
    // The agent is where its engine is.
    let mut child = engines[names[0]]
        .inside(inner)
        .unwrap()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let from = BufReader::new(child.stdout.take().unwrap());
    let mut shown = std::io::stdout();
    for line in from.lines() {
        let line = line.unwrap();
        match line.strip_prefix("lab: ") {
            Some(wish) => writeln!(to, "{}", grant(&engines, wish)).unwrap(),
            // Set in, so that a runner does not count its closing line as one more test.
            None => shown.write_all(format!("   | {line}\n").as_bytes()).unwrap(),
        }
    }
    assert!(child.wait().unwrap().success(), "the run as {} failed", user.name());
    drop(engines);
    for folder in poor_folders() {
        wait_for("the lab's cgroup to be empty", LIMIT, || Ok(std::fs::remove_dir(&folder).ok())).unwrap();
    }
}

/// What only root, or only somebody else than the agent, would do.
fn grant(engines: &BTreeMap<String, lab::Engine>, wish: &str) -> String {
    let words: Vec<&str> = wish.split(' ').collect();
    let engine = &engines[words[1]];
    match (words[0], words.get(2)) {
        ("freeze", None) => engine.freeze().unwrap(),
        ("thaw", None) => engine.thaw().unwrap(),
        ("pause" | "unpause" | "kill", Some(id)) => {
            engine.call("POST", &format!("/containers/{id}/{}", words[0]), None).unwrap().ok().unwrap();
        }
        ("shrink", Some(bytes)) => {
            let set = |file: &str| {
                let file = poor_folders().into_iter().map(|folder| folder.join(file)).find(|f| f.exists());
                file.is_some_and(|file| std::fs::write(file, bytes).is_ok())
            };
            assert!(set("memory.limit_in_bytes") || set("memory.max"));
        }
        ("make-guest", Some(_)) => {
            let body = wish.splitn(3, ' ').nth(2).unwrap();
            let body = serde_json::from_str(body).unwrap();
            let made = engine.call("POST", "/containers/create", Some(&body)).unwrap().ok().unwrap();
            return made.json().unwrap()["Id"].as_str().unwrap().to_owned();
        }
        ("stop-process", Some(pid)) => {
            kill(Pid::from_raw(pid.parse().unwrap()), Signal::SIGSTOP).unwrap();
        }
        ("make-contained", Some(parent)) => {
            let script = words[3..].join(" ");
            let host = json!({"NetworkMode": "none", "CgroupParent": parent});
            let body = json!({"Image": IMAGE, "Cmd": ["/busybox", "sh", "-c", script], "HostConfig": host});
            let made = engine.call("POST", "/containers/create", Some(&body)).unwrap().ok().unwrap();
            let id = made.json().unwrap()["Id"].as_str().unwrap().to_owned();
            engine.call("POST", &format!("/containers/{id}/start"), None).unwrap().ok().unwrap();
            return id;
        }
        ("make-foreign", None) => {
            let body = json!({"Image": IMAGE, "Cmd": ["/busybox", "sleep", "1000"], "HostConfig": {"NetworkMode": "none"}});
            let made =
                engine.call("POST", "/containers/create", Some(&body)).unwrap().ok().unwrap().json().unwrap();
            let id = made["Id"].as_str().unwrap().to_owned();
            engine.call("POST", &format!("/containers/{id}/start"), None).unwrap().ok().unwrap();
            engine
                .call("POST", "/volumes/create", Some(&json!({"Name": "somebodys"})))
                .unwrap()
                .ok()
                .unwrap();
            return id;
        }
        ("volumes", None) => {
            let listed = engine.call("GET", "/volumes", None).unwrap().ok().unwrap().json().unwrap();
            return listed["Volumes"].as_array().map_or(0, Vec::len).to_string();
        }
        ("is-there", Some(id)) => {
            let shown = engine
                .call("GET", &format!("/containers/{id}/json"), None)
                .unwrap()
                .ok()
                .unwrap()
                .json()
                .unwrap();
            return if shown["State"]["Running"] == json!(true) { "yes".to_owned() } else { "no".to_owned() };
        }
        (other, _) => panic!("nobody grants {other}"),
    }
    "done".to_owned()
}
