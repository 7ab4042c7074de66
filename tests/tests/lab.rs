//! The lab itself, on real engines: what it starts answers, what it stops stops, and nothing of
//! it is left.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use system_tests::lab::{DEFAULT_BASE, Engine, EngineOptions, Lab, clean_leftovers, wait_for};
use system_tests::lab::{User, scratch_rootfs};

const LIMIT: Duration = Duration::from_secs(30);

/// The only static program that this crate can be sure of: busybox-static, which `xtask` installs.
fn busybox_image(lab: &Lab, engine: &Engine) -> String {
    let rootfs = scratch_rootfs(&PathBuf::from("/bin/busybox"), &lab.dir().join("busybox.tar"));
    engine.import(&rootfs.unwrap(), "busybox:test").unwrap()
}

fn start_sleeper(engine: &Engine) -> String {
    let spec = json!({
        "Image": "busybox:test",
        "Cmd": ["/busybox", "sleep", "600"],
        "HostConfig": { "NetworkMode": "none" },
    });
    let made = engine.call("POST", "/containers/create", Some(&spec)).unwrap().ok().unwrap();
    let id = made.json().unwrap()["Id"].as_str().unwrap().to_owned();
    engine.call("POST", &format!("/containers/{id}/start"), None).unwrap().ok().unwrap();
    id
}

fn host_pid(engine: &Engine, container: &str) -> u32 {
    let shown = engine.call("GET", &format!("/containers/{container}/json"), None).unwrap();
    shown.json().unwrap()["State"]["Pid"].as_u64().unwrap() as u32
}

/// A zombie of init's counts as gone.
fn is_alive(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn mounts_below(path: &str) -> usize {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains(path)).count()
}

/// What the socket says to one who asks as this user.
fn asks(user: &User, engine: &Engine) -> bool {
    let script = format!("test -r {0} && test -w {0}", engine.socket().display());
    user.command("sh").args(["-c", &script]).status().unwrap().success()
}

#[test]
fn two_engines_are_two_machines_and_leave_nothing() {
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let dir = lab.dir().to_owned();
    let [mut one, two] = lab.engines(["one", "two"]).unwrap();
    let id = busybox_image(&lab, &one);
    assert!(id.starts_with("sha256:"), "{id}");
    let missing = two.call("GET", "/images/busybox:test/json", None).unwrap();
    assert_eq!(missing.status, 404, "the other machine has not got the image");

    // Frozen: guests run on, the engine says nothing.
    let guest = start_sleeper(&one);
    let pid = host_pid(&one, &guest);
    one.freeze().unwrap();
    assert!(!one.is_ready() && two.is_ready() && is_alive(pid));
    one.thaw().unwrap();
    wait_for("the thawed engine", LIMIT, || Ok(one.is_ready().then_some(()))).unwrap();

    // Killed: guests run on; the next start ends them, since live restore is off.
    one.kill_both().unwrap();
    assert!(is_alive(pid) && !one.is_ready());
    one.start().unwrap();
    wait_for("the guest's end", LIMIT, || Ok((!is_alive(pid)).then_some(()))).unwrap();

    // Dropped with a guest running.
    let guest = start_sleeper(&one);
    let pid = host_pid(&one, &guest);
    drop((one, two));
    assert!(!is_alive(pid));
    drop(lab);
    assert!(!dir.exists());
    assert_eq!(mounts_below(dir.to_str().unwrap()), 0);
}

#[test]
fn with_live_restore_a_guest_outlives_the_engine() {
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let options = EngineOptions { live_restore: true, ..EngineOptions::default() };
    let mut engine = lab.engine_with("live", options).unwrap();
    busybox_image(&lab, &engine);
    let guest = start_sleeper(&engine);
    let pid = host_pid(&engine, &guest);
    engine.kill().unwrap();
    engine.start().unwrap();
    assert!(is_alive(pid));
    assert_eq!(host_pid(&engine, &guest), pid, "the new dockerd knows the old guest");

    // On cgroup v1 a frozen guest obeys SIGKILL only once it is thawed.
    let paused = engine.call("POST", &format!("/containers/{guest}/pause"), None).unwrap();
    paused.ok().unwrap();
    engine.kill_both().unwrap();
    drop(engine);
    assert!(!is_alive(pid), "a frozen guest without an engine is ended, too");
}

#[test]
fn a_user_is_ordinary_and_in_the_group_and_ends_with_all_its_processes() {
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let engine = lab.engine("mine").unwrap();
    let user = lab.user("ann").unwrap();
    assert!(asks(&user, &engine), "the group may speak with the engine");
    assert_eq!(std::fs::metadata(user.home()).unwrap().uid(), user.uid());
    assert_eq!(std::fs::metadata(user.home()).unwrap().permissions().mode() & 0o777, 0o700);
    let script = "id -u; grep CapEff /proc/self/status; cat /etc/shadow || echo refused";
    let output = user.command("sh").args(["-c", script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with(&format!("{}\n", user.uid())), "{text}");
    assert!(text.contains("CapEff:\t0000000000000000") && text.contains("refused"), "{text}");

    // One of its processes leaves the session and is deaf.
    let deaf = "trap '' TERM HUP; setsid sleep 600 & echo $!";
    let mut child = user.command("sh").args(["-c", deaf]).stdout(Stdio::piped()).spawn().unwrap();
    child.wait().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let pid: u32 = line.trim().parse().unwrap();
    assert!(is_alive(pid));
    let name = user.name().to_owned();
    drop(user);
    assert!(!is_alive(pid));
    assert!(!Command::new("id").arg(&name).output().unwrap().status.success(), "{name} is left");
}

/// A lab that was killed: its folder says whose it was, so the next one ends what is left.
#[test]
fn what_a_killed_lab_left_the_next_one_removes() {
    let base = PathBuf::from(format!("{DEFAULT_BASE}-{}", std::process::id()));
    let mut child = Command::new(env!("CARGO_BIN_EXE_lab"))
        .arg("up")
        .arg(&base)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    let dockerd: u32 = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
    assert!(is_alive(dockerd), "{line}");
    assert_eq!(clean_leftovers(&base).unwrap(), 0, "its owner lives");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(is_alive(dockerd), "nobody could tell it");
    assert_eq!(clean_leftovers(&base).unwrap(), 1);
    assert!(!is_alive(dockerd));
    // What is left is the lock of who cleans up, and empty.
    let left: Vec<_> = std::fs::read_dir(&base).unwrap().map(|entry| entry.unwrap()).collect();
    assert!(left.iter().all(|entry| entry.metadata().is_ok_and(|m| m.is_file() && m.len() == 0)), "{left:?}");
    assert!(left.len() <= 1, "{left:?}");
    assert_eq!(mounts_below(base.to_str().unwrap()), 0);
    std::fs::remove_dir_all(&base).unwrap();
}

#[test]
fn an_engine_on_cgroup_v2_freezes_and_kills_there_and_its_users_see_what_it_sees() {
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let options = EngineOptions { cgroup2: true, live_restore: true, ..EngineOptions::default() };
    let mut engine = lab.engine_with("two", options).unwrap();
    let info = engine.call("GET", "/info", None).unwrap().ok().unwrap().json().unwrap();
    assert_eq!(info["CgroupVersion"], json!("2"), "{info}");
    busybox_image(&lab, &engine);
    let guest = start_sleeper(&engine);
    let pid = host_pid(&engine, &guest);

    // As a user on that machine: one hierarchy, and in it the guest's group with what v2 has.
    let ann = lab.user("ann").unwrap();
    let seen = |path: &str| {
        let mut cat = ann.command("cat");
        cat.arg(path);
        let out = engine.inside(cat).unwrap().output().unwrap();
        assert!(out.status.success(), "{path}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let mounts = seen("/proc/self/mountinfo");
    let kinds: Vec<&str> = mounts.lines().filter(|line| line.contains(" - cgroup")).collect();
    assert!(kinds.len() == 1 && kinds[0].contains(" - cgroup2 "), "{kinds:?}");
    assert!(seen("/proc/self/status").contains(&format!("Uid:\t{}", ann.uid())));
    let own = seen(&format!("/proc/{pid}/cgroup"));
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap().to_owned();
    assert!(path.contains(&guest), "{own}");
    assert_eq!(seen(&format!("/sys/fs/cgroup{path}/cgroup.procs")).trim(), pid.to_string());

    engine.call("POST", &format!("/containers/{guest}/pause"), None).unwrap().ok().unwrap();
    assert!(seen(&format!("/sys/fs/cgroup{path}/cgroup.events")).contains("frozen 1"));
    // Frozen, and all the same it can be killed: v2 needs no thawing.
    engine.call("POST", &format!("/containers/{guest}/kill"), None).unwrap().ok().unwrap();
    wait_for("the guest's end", LIMIT, || Ok((!is_alive(pid)).then_some(()))).unwrap();

    // A dockerd that was killed finds its guests' mounts again.
    let guest = start_sleeper(&engine);
    let pid = host_pid(&engine, &guest);
    engine.kill().unwrap();
    engine.start().unwrap();
    assert!(is_alive(pid));
    let dir = lab.dir().to_owned();
    drop(engine);
    assert!(!is_alive(pid));
    drop((ann, lab));
    assert!(!dir.exists());
}
