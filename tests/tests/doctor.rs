//! `gpunion doctor` on ten set-ups that are really broken, as people's machines are: it names the
//! fault with a fix that can be typed, and blames nothing else. What it says of the same set-up
//! while it is well does not count.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use gpunion_protocol::local::{Finding, Grade};
use nix::mount::{MsFlags, mount};
use serde_json::Value;
use system_tests::campus::{Campus, Device, GPU_MEMORY, Relay, login};
use system_tests::lab::{Engine, EngineOptions, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// A device of a group, with a stand-in GPU and an engine at `engine`; the healthy state of a test
/// that breaks something else may do without an engine.
struct Bed {
    device: Device,
    relay: Relay,
    // Held until the rest has ended, and before the lab that it stands in.
    #[expect(dead_code, reason = "its end is what it is here for")]
    engine: Option<Engine>,
    campus: Campus,
}

impl Bed {
    fn without_engine() -> Result<Self> {
        let campus = Campus::new()?;
        Self::at(campus, None)
    }

    fn at(campus: Campus, engine: Option<Engine>) -> Result<Self> {
        let nowhere = PathBuf::from("/nonexistent/engine.sock");
        let socket = engine.as_ref().map_or(nowhere, Engine::socket);
        let relay = campus.relay(campus.lab.user("op")?)?;
        let gpus =
            campus.stand_in("desk", &[("GPU-stand-in-1", GPU_MEMORY), ("GPU-stand-in-2", GPU_MEMORY)])?;
        let device = campus.device("desk", campus.lab.user("ada")?, &socket, Some(gpus))?;
        device.join(&relay.invite("member")?, "ada")?;
        Ok(Self { device, relay, engine, campus })
    }

    /// Changes what the driver says while the agent runs.
    fn script(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        self.device.gpus.as_ref().context("its GPUs")?.edit(change)
    }
}

fn examine(device: &Device) -> Result<Vec<Finding>> {
    device.run(["--json", "doctor"])?.json()
}

/// What is not good, by what it is about.
fn blamed(findings: &[Finding]) -> BTreeSet<String> {
    findings
        .iter()
        .filter(|finding| finding.grade != Grade::Good)
        .map(|finding| finding.about.clone())
        .collect()
}

/// One that says what is wrong.
struct Fault {
    about: &'static str,
    what: &'static str,
    /// Part of its fix.
    fix: String,
}

/// Until the fault is named; it must have this fix, and nothing else may be blamed than before.
fn names_it(
    fault: &Fault,
    before: &BTreeSet<String>,
    examine: impl Fn() -> Result<Vec<Finding>>,
) -> Result<Finding> {
    let mut last = Vec::new();
    let found = wait_for(fault.what, LIMIT, || {
        last = examine()?;
        let named = |finding: &&Finding| finding.about == fault.about && finding.what.contains(fault.what);
        Ok(last.iter().find(named).cloned())
    })
    .with_context(|| format!("it says {last:#?}"))?;
    ensure!(found.grade != Grade::Good, "{found:?}");
    let fix = found.fix.as_deref().unwrap_or_default();
    ensure!(fix.contains(&fault.fix), "{:?} is not in the fix: {found:?}", fault.fix);
    let others: Vec<&String> = last.iter().map(|finding| &finding.about).collect();
    let blamed = blamed(&last);
    let wrong: Vec<&String> =
        blamed.iter().filter(|about| *about != fault.about && !before.contains(*about)).collect();
    ensure!(wrong.is_empty(), "{wrong:?} are blamed, too, of {others:?}: {last:#?}");
    Ok(found)
}

fn now_names(
    bed: &Bed,
    before: &BTreeSet<String>,
    about: &'static str,
    what: &'static str,
    fix: &str,
) -> Result<Finding> {
    names_it(&Fault { about, what, fix: fix.to_owned() }, before, || examine(&bed.device))
}

/// What is blamed of a set-up that is well.
fn healthy(device: &Device, but: &[&str]) -> Result<BTreeSet<String>> {
    let mut last = Vec::new();
    wait_for("a doctor who is content", LIMIT, || {
        last = examine(device)?;
        Ok(blamed(&last).iter().all(|about| but.contains(&about.as_str())).then(|| blamed(&last)))
    })
    .with_context(|| format!("it says {last:#?}"))
}

/// A machine of the test's own may be short of disk; that is no part of these set-ups.
const DISK: &str = "disk of the container engine";
const AGENTS_DISK: &str = "disk of the agent";
/// With the cgroups of a machine of version 1 it has a right to be warned of.
const SECOND_WAY: &str = "second way";

#[test]
fn no_engine() -> Result<()> {
    let bed = Bed::without_engine()?;
    let before = BTreeSet::from([AGENTS_DISK.to_owned()]);
    let fault = now_names(
        &bed,
        &before,
        "rights",
        "there is no container engine at /nonexistent/engine.sock",
        "install Docker Engine",
    )?;
    ensure!(fault.grade == Grade::Bad, "{fault:?}");
    // As people read it; and a script sees that something is bad.
    let text = bed.device.run(["doctor"])?;
    ensure!(text.code == Some(1) && text.out.contains("      fix: install Docker Engine"), "{text:?}");
    Ok(())
}

#[test]
fn an_engine_without_rights() -> Result<()> {
    let campus = Campus::new()?;
    let engine = campus.lab.engine("a")?;
    let socket = engine.socket();
    let bed = Bed::at(campus, Some(engine))?;
    let before = healthy(&bed.device, &[DISK, AGENTS_DISK, SECOND_WAY])?;
    // Another group than the one that its user is in.
    chown(socket, None, Some(bed.relay.user.gid()))?;
    let fix = format!("sudo usermod -aG {} $USER", bed.relay.user.name());
    now_names(&bed, &before, "rights", "this user may not use the container engine", &fix)?;
    Ok(())
}

#[test]
fn a_driver_of_another_version_than_its_library() -> Result<()> {
    let bed = Bed::without_engine()?;
    let before = healthy(&bed.device, &["rights", AGENTS_DISK])?;
    bed.script(|script| script["driver"] = "version_mismatch".into())?;
    now_names(&bed, &before, "GPU", "driver was updated and the old one still runs", "sudo reboot")?;
    Ok(())
}

#[test]
fn f12_a_gpu_that_has_fallen_off_the_bus() -> Result<()> {
    let bed = Bed::without_engine()?;
    let before = healthy(&bed.device, &["rights", AGENTS_DISK])?;
    bed.script(|script| script["gpus"][1]["fallen_off"] = true.into())?;
    let found = now_names(&bed, &before, "GPU", "has fallen off the bus", "sudo reboot")?;
    let good = examine(&bed.device)?.iter().filter(|f| f.about == "GPU" && f.grade == Grade::Good).count();
    ensure!(good == 1, "the other GPU is well: {found:?}");
    Ok(())
}

#[test]
fn a_full_disk() -> Result<()> {
    let campus = Campus::new()?;
    let user = campus.lab.user("ada")?;
    let data = user.home().join("gpunion");
    fs::create_dir(&data)?;
    // As large as a good disk; nothing of it is taken up.
    mount(Some("tmpfs"), &data, Some("tmpfs"), MsFlags::empty(), Some("size=64g"))?;
    chown(&data, Some(user.uid()), Some(user.gid()))?;
    fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
    let relay = campus.relay(campus.lab.user("op")?)?;
    let gpus = campus.stand_in("desk", &[("GPU-stand-in-1", GPU_MEMORY)])?;
    let device = campus.device("desk", user, Path::new("/nonexistent/engine.sock"), Some(gpus))?;
    device.join(&relay.invite("member")?, "ada")?;
    let bed = Bed { device, relay, engine: None, campus };
    let before = healthy(&bed.device, &["rights"])?;
    let room = nix::sys::statvfs::statvfs(&data)?;
    let used = (room.blocks() - room.blocks_free()) * room.fragment_size();
    let shrunk = format!("size={}", used.max(4096));
    mount(None::<&str>, &data, None::<&str>, MsFlags::MS_REMOUNT, Some(shrunk.as_str()))?;
    let fix = format!("du -xh --max-depth=1 {}", data.display());
    let found = now_names(&bed, &before, AGENTS_DISK, "only ", &fix)?;
    ensure!(found.grade == Grade::Bad, "{found:?}");
    Ok(())
}

/// Where Debian and others put it.
fn faketime() -> Result<PathBuf> {
    let found =
        fs::read_dir("/usr/lib")?.flatten().map(|entry| entry.path().join("faketime/libfaketime.so.1"));
    let mut found =
        found.chain([PathBuf::from("/usr/lib64/faketime/libfaketime.so.1")]).filter(|path| path.is_file());
    found.next().context("libfaketime is missing (apt-get install libfaketime)")
}

/// Ends it with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn f41_a_clock_that_is_off() -> Result<()> {
    let mut bed = Bed::without_engine()?;
    let before = healthy(&bed.device, &["rights", AGENTS_DISK])?;
    // The same relay on a machine whose clock is a quarter of an hour ahead.
    bed.relay.kill()?;
    // Set for the relay alone: the library keeps something of whoever loads it first, here root.
    let library = format!("LD_PRELOAD={}", faketime()?.display());
    let mut command = bed.relay.user.command("env");
    command
        .args([library.as_str(), "FAKETIME=+15m", "FAKETIME_DONT_FAKE_MONOTONIC=1"])
        .arg(bed.campus.program());
    command.args(["relay", "serve", "--group", "campus", "--state"]).arg(bed.relay.user.home().join("relay"));
    command.args(["--listen", bed.relay.address(), "--address", bed.relay.address()]);
    let _ahead = Ends(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
    // It comes back first: the session too, whose agents never compare clocks.
    wait_for("the session with it", LIMIT, || {
        Ok(bed.device.snapshot()?.group.is_some_and(|group| group.connected).then_some(()))
    })?;
    let found = now_names(&bed, &before, "clock", "behind the relay's", "sudo timedatectl set-ntp true")?;
    let secs: u64 = found.what.split(' ').find_map(|word| word.parse().ok()).context("it tells seconds")?;
    ensure!((880..=900).contains(&secs), "{found:?}");
    Ok(())
}

#[test]
fn a_relay_that_is_away() -> Result<()> {
    let mut bed = Bed::without_engine()?;
    let before = healthy(&bed.device, &["rights", AGENTS_DISK])?;
    bed.relay.kill()?;
    let (host, port) = bed.relay.address().rsplit_once(':').context("host:port")?;
    now_names(&bed, &before, "relay", "can't be reached", &format!("nc -vz {host} {port}"))?;
    Ok(())
}

#[test]
fn a_relay_with_another_key() -> Result<()> {
    let mut bed = Bed::without_engine()?;
    let before = healthy(&bed.device, &["rights", AGENTS_DISK])?;
    bed.relay.kill()?;
    fs::remove_file(bed.relay.user.home().join("relay/key.pem"))?;
    bed.relay.start_again()?;
    now_names(&bed, &before, "relay", "another key", "gpunion leave-group, then gpunion join")?;
    Ok(())
}

#[test]
fn limits_that_the_engine_would_drop() -> Result<()> {
    let campus = Campus::new()?;
    // Its controllers are those that this machine has not given to cgroup v1.
    let engine = campus.lab.engine_with("a", EngineOptions { cgroup2: true, ..EngineOptions::default() })?;
    let info = engine.call("GET", "/info", None)?.ok()?.json()?;
    ensure!(info["MemoryLimit"] == false, "this engine keeps its limits: {info}");
    let bed = Bed::at(campus, Some(engine))?;
    let before = BTreeSet::from([DISK.to_owned(), AGENTS_DISK.to_owned()]);
    let found = now_names(&bed, &before, "limits", "drop the limit on memory", "cgroup_enable=memory")?;
    ensure!(found.grade == Grade::Bad, "{found:?}");
    Ok(())
}

/// A session of its own: a bus, a keyring that was unlocked as a login does, then locked.
const SESSION: &str = r#"
keyring=/org/freedesktop/secrets/collection/login
lock() {
  dbus-send --session --print-reply --dest=org.freedesktop.secrets /org/freedesktop/secrets org.freedesktop.Secret.Service.Lock array:objpath:$keyring >/dev/null
}
agent
gp join "$LINK" --name ada >/dev/null
connected
gp --json doctor >"$HOME/healthy.json" || true
kill $pid; wait $pid || true
lock
agent
echo "starts"
gp members >/dev/null 2>"$HOME/members.err" && exit 7 || echo "members: $?"
gp --json doctor >"$HOME/locked.json" || true
kill $pid; wait $pid || true
gp --json doctor >"$HOME/alone.json" || true
agent
unlock
connected
echo "came back by itself"
kill $pid; wait $pid || true
lock
agent
gp leave-group
gp members >/dev/null 2>&1 && exit 6 || echo "left: $?"
kill $pid; wait $pid || true
"#;

#[test]
fn f105_a_locked_keyring() -> Result<()> {
    let campus = Campus::new()?;
    let relay = campus.relay(campus.lab.user("op")?)?;
    let ada = campus.lab.user("ada")?;
    let wanted = ["starts", "members: 4", "came back by itself", "left the group, but", "left: 4"];
    login::session(&campus, &relay, &ada, SESSION, &wanted)?;
    let read = |name: &str| -> Result<Vec<Finding>> {
        let text = fs::read_to_string(ada.home().join(name))?;
        serde_json::from_str(&text).with_context(|| format!("{name}: {text}"))
    };
    let mut before = blamed(&read("healthy.json")?);
    ensure!(!before.contains("keyring") && !before.contains("relay"), "{before:?}");
    let fault = || Fault {
        about: "keyring",
        what: "does not open",
        fix: "gnome-keyring-daemon --replace --unlock".to_owned(),
    };
    names_it(&fault(), &before, || read("locked.json"))?;
    before.insert("agent".to_owned());
    names_it(&fault(), &before, || read("alone.json"))?;
    let refused = fs::read_to_string(ada.home().join("members.err"))?;
    if !refused.contains("unlock the keyring") {
        bail!("{refused}");
    }
    Ok(())
}
