//! Where a guest's cgroups are on this host, on v1, v2 and both at once, and who is in them.
//!
//! Only reads, below /proc and the mounted cgroup trees, which no guest can shape. The parsers
//! are pure.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::gpu::{ProcessId, start_time};

/// The folders that limit one guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    pub(super) memory: Controller,
    pub(super) cpu: Controller,
    pub(super) pids: Controller,
    /// Many kernels have none.
    pub(super) io: Option<Controller>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Controller {
    pub(super) folder: PathBuf,
    pub(super) v2: bool,
}

impl Cgroup {
    /// Of the process with this host pid. An error of kind `NotFound`: it has ended.
    pub fn of(pid: u32) -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let own = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let find = |controller: &str| {
            locate(&mounts, &own, controller).ok_or_else(|| {
                io::Error::other(format!("it has no cgroup of its own for {controller} on this machine"))
            })
        };
        let io = locate(&mounts, &own, "blkio");
        Ok(Self { memory: find("memory")?, cpu: find("cpu")?, pids: find("pids")?, io })
    }

    /// Everybody in it, for ever named; whoever ended in between is left out.
    pub fn processes(&self) -> io::Result<Vec<ProcessId>> {
        let mut found = Vec::new();
        collect(&self.pids.folder, &mut found, 0)?;
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// The kernel ended a process here because this group's own limit was reached.
    ///
    /// `oom_kill` alone counts kills by any hand: a machine whose memory the owner has filled ends
    /// guests first, and that is no member's failure. v1 only tells that the limit was once met, and
    /// not that it was the end; its counter of failures stands still on newer kernels.
    pub fn killed_at_its_limit(&self) -> io::Result<bool> {
        let read = |file: &str| fs::read_to_string(self.memory.folder.join(file));
        if self.memory.v2 {
            let events = read("memory.events")?;
            let count = |key| keyed(&events, key).unwrap_or(0);
            return Ok(count("oom_kill") > 0 && count("oom") > 0);
        }
        let killed = keyed(&read("memory.oom_control")?, "oom_kill").unwrap_or(0) > 0;
        let number = |file: &str| -> io::Result<u64> {
            read(file)?.trim().parse().map_err(|_| io::Error::other(format!("{file} holds no number")))
        };
        // Where memory and swap are limited to the same, one of them is met first.
        let met = |what: &str| -> io::Result<bool> {
            let most = number(&format!("memory.{what}max_usage_in_bytes"))?;
            Ok(most.saturating_add(CHARGE) >= number(&format!("memory.{what}limit_in_bytes"))?)
        };
        Ok(killed && (met("")? || met("memsw.").unwrap_or(false)))
    }
}

/// Bytes that the kernel may miss the limit by: it charges so many at once.
const CHARGE: u64 = 256 << 10;
/// Guests can't make cgroups of their own; a few levels are more than enough.
const DEEPEST: usize = 8;

fn collect(folder: &Path, found: &mut Vec<ProcessId>, depth: usize) -> io::Result<()> {
    let text = match fs::read_to_string(folder.join("cgroup.procs")) {
        Ok(text) => text,
        // The last process has gone, and the folder with it.
        Err(e) if gone(&e) => return Ok(()),
        Err(e) => return Err(e),
    };
    for pid in text.lines().filter_map(|line| line.trim().parse().ok()) {
        if let Some(start_time) = start_time(pid) {
            found.push(ProcessId { pid, start_time });
        }
    }
    if depth < DEEPEST {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                collect(&entry.path(), found, depth + 1)?;
            }
        }
    }
    Ok(())
}

fn gone(error: &io::Error) -> bool {
    // ENODEV is what a cgroup file says whose group was removed while it was open.
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(19)
}

/// The folder of one controller. `mounts` is /proc/self/mountinfo, `own` is /proc/PID/cgroup.
/// Where v1 has the controller, v1 it is: on a machine that mounts both, v2 is then only a name.
/// The top of a hierarchy is everybody's and holds nobody to anything: it is never answered.
fn locate(mounts: &str, own: &str, controller: &str) -> Option<Controller> {
    v1(mounts, own, controller).or_else(|| v2(mounts, own))
}

fn v1(mounts: &str, own: &str, controller: &str) -> Option<Controller> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        controllers.split(',').any(|name| name == controller).then(|| fields.next()).flatten()
    })?;
    if path == "/" {
        return None;
    }
    let folder = mounts.lines().filter_map(mount).find_map(|mount| {
        let has = mount.kind == "cgroup" && mount.options.split(',').any(|option| option == controller);
        has.then(|| below(&mount, path)).flatten()
    })?;
    Some(Controller { folder, v2: false })
}

fn v2(mounts: &str, own: &str) -> Option<Controller> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::")).filter(|path| *path != "/")?;
    let folder = mounts
        .lines()
        .filter_map(mount)
        .filter(|mount| mount.kind == "cgroup2")
        .find_map(|mount| below(&mount, path))?;
    Some(Controller { folder, v2: true })
}

struct MountLine<'a> {
    root: &'a str,
    point: &'a str,
    kind: &'a str,
    options: &'a str,
}

/// One line of mountinfo: fields 4 and 5, and what stands behind the lone dash.
fn mount(line: &str) -> Option<MountLine<'_>> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, point) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let kind = back.next()?;
    Some(MountLine { root, point, kind, options: back.nth(1)? })
}

/// `path` is relative to the hierarchy's top; a mount may show only a part of that.
fn below(mount: &MountLine<'_>, path: &str) -> Option<PathBuf> {
    let rest = if mount.root == "/" { path } else { path.strip_prefix(mount.root)? };
    if rest.split('/').any(|part| part == "..") {
        return None;
    }
    Some(Path::new(mount.point).join(rest.trim_start_matches('/')))
}

/// The number behind `key` in a file of `key number` lines.
pub(super) fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HYBRID: &str = "\
30 29 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 29 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
32 29 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
33 29 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
    const PURE: &str = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn a_controller_is_found_on_v1_on_v2_and_on_both() {
        let own = "12:pids:/docker/abc\n5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n0::/docker/abc\n";
        let memory = locate(HYBRID, own, "memory").unwrap();
        assert_eq!(memory, Controller { folder: "/sys/fs/cgroup/memory/docker/abc".into(), v2: false });
        let cpu = locate(HYBRID, own, "cpu").unwrap();
        assert_eq!(cpu.folder, Path::new("/sys/fs/cgroup/cpu,cpuacct/docker/abc"));
        let v2 = locate(PURE, "0::/system.slice/docker-abc.scope\n", "pids").unwrap();
        assert_eq!(v2.folder, Path::new("/sys/fs/cgroup/system.slice/docker-abc.scope"));
        assert!(v2.v2);
        assert_eq!(locate("", own, "memory"), None);
    }

    #[test]
    fn no_path_leads_out_of_the_tree() {
        assert_eq!(locate(PURE, "0::/../../../etc\n", "pids"), None);
    }

    /// A guest of an engine on v2 on a machine whose controllers v1 has: the top of v1 is not its.
    #[test]
    fn the_top_of_a_hierarchy_is_nobody_s_own() {
        let own = "8:pids:/\n4:memory:/\n0::/docker/abc\n";
        let found = locate(HYBRID, own, "memory").unwrap();
        assert_eq!(found, Controller { folder: "/sys/fs/cgroup/unified/docker/abc".into(), v2: true });
        assert_eq!(locate(HYBRID, "8:pids:/\n0::/\n", "pids"), None);
        assert_eq!(locate(PURE, "0::/\n", "pids"), None);
    }

    fn cgroup(folder: &Path, v2: bool) -> Cgroup {
        let one = Controller { folder: folder.to_owned(), v2 };
        Cgroup { memory: one.clone(), cpu: one.clone(), pids: one, io: None }
    }

    #[test]
    fn a_kill_counts_as_the_limit_s_only_when_the_limit_was_met() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        let limit = |v2: bool| cgroup(folder.path(), v2).killed_at_its_limit().unwrap();
        for (events, expected) in [
            ("low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\n", true),
            // The owner's own hunger: the kernel looked for the whole machine.
            ("low 0\nhigh 0\nmax 0\noom 0\noom_kill 2\n", false),
            ("max 12\noom 3\noom_kill 0\n", false),
        ] {
            write("memory.events", events);
            assert_eq!(limit(true), expected, "{events}");
        }
        let usage = |what: &str, most: u64, limit: u64| {
            write(&format!("memory.{what}max_usage_in_bytes"), &format!("{most}\n"));
            write(&format!("memory.{what}limit_in_bytes"), &format!("{limit}\n"));
        };
        let killed = |times: u32| {
            write("memory.oom_control", &format!("oom_kill_disable 0\nunder_oom 0\noom_kill {times}\n"));
        };
        usage("", 64 << 20, 64 << 20);
        killed(0);
        assert!(!limit(false), "its own kill, with a full cache");
        killed(1);
        assert!(limit(false));
        usage("", 40 << 20, 64 << 20);
        assert!(!limit(false), "the machine's hunger");
        usage("memsw.", 64 << 20, 64 << 20);
        assert!(limit(false));
        fs::remove_file(folder.path().join("memory.max_usage_in_bytes")).unwrap();
        assert!(cgroup(folder.path(), false).killed_at_its_limit().is_err(), "unknown is not the limit");
    }

    #[test]
    fn this_very_process_is_among_those_of_its_cgroup() {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        // Where nothing made one for it, it is at the top of all.
        let Some(any) = ["memory", "pids", "cpu"].iter().find_map(|name| locate(&mounts, &own, name)) else {
            assert!(Cgroup::of(std::process::id()).is_err());
            return;
        };
        let cgroup = cgroup(&any.folder, any.v2);
        let pid = std::process::id();
        assert!(cgroup.processes().unwrap().iter().any(|process| process.pid == pid));
    }

    proptest! {
        #[test]
        fn no_text_panics(mounts in ".{0,200}", own in "[0-9a-z:,/.\n]{0,200}") {
            let _ = locate(&mounts, &own, "memory");
            let _ = keyed(&own, "oom_kill");
        }
    }
}
