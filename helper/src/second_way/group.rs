//! The cgroup of one guest, on v1 and v2: frozen, killed, seen empty.
//!
//! Which version it is, its own files say. On v1 a signal waits for as long as a cgroup is frozen,
//! so it is thawed as soon as all are signalled; the parent is never frozen, as that would stop
//! the engine too.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gpunion_protocol::second_way::GuestEnd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Guests can't make cgroups of their own; a few levels are more than enough.
const DEEPEST: usize = 4;

#[derive(Debug)]
pub(super) struct Group {
    folder: Option<PathBuf>,
    end: GuestEnd,
}

/// The lowest weights there are, for all guests together: the owner's programs go first. What this
/// machine's kernel does not have stays as it is.
pub(super) fn weigh_least(guests: &Path, cpu: &Path) {
    for (folder, file, least) in
        [(guests, "cpu.weight", "1"), (guests, "io.weight", "default 1"), (cpu, "cpu.shares", "2")]
    {
        let _ = fs::write(folder.join(file), least);
    }
}

/// The id in the name of a container's cgroup: `ID`, or `docker-ID.scope` with systemd.
fn container_in(name: &str) -> Option<&str> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let id = name.rsplit('-').next()?;
    (id.len() == 64 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))).then_some(id)
}

impl Group {
    /// Only what lies directly in `guests` is a guest's, so no name leads anywhere else.
    pub(super) fn find(guests: &Path, id: String) -> Self {
        let listed = Self::all(guests).unwrap_or_default();
        let found = listed.into_iter().find(|group| group.end.container == id);
        found.unwrap_or_else(|| Self { folder: None, end: GuestEnd { container: id, ..GuestEnd::default() } })
    }

    pub(super) fn all(guests: &Path) -> io::Result<Vec<Self>> {
        let entries = match fs::read_dir(guests) {
            Ok(entries) => entries,
            // No guest has been here since the machine started.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let groups = entries.flatten().filter_map(|entry| {
            let container = container_in(entry.file_name().to_str()?)?.to_owned();
            let end = GuestEnd { container, found: true, ..GuestEnd::default() };
            Some(Self { folder: Some(entry.path()), end })
        });
        Ok(groups.collect())
    }

    fn write(&mut self, file: &str, text: &str) {
        let Some(folder) = &self.folder else { return };
        match fs::write(folder.join(file), text) {
            Err(error) if !gone(&error) => self.end.trouble = Some(format!("{file}: {error}")),
            Ok(()) | Err(_) => {}
        }
    }

    fn has(&self, file: &str) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.join(file).exists())
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.folder.as_ref()?.join(file)).ok()
    }

    pub(super) fn freeze(&mut self) {
        match self.has("freezer.state") {
            true => self.write("freezer.state", "FROZEN"),
            false => self.write("cgroup.freeze", "1"),
        }
    }

    /// Also true for one that is not there.
    pub(super) fn see_frozen(&mut self, at: Duration) -> bool {
        let v1 = self.read("freezer.state").is_some_and(|state| state.trim() == "FROZEN");
        let v2 = self.read("cgroup.events").is_some_and(|events| events.lines().any(|l| l == "frozen 1"));
        if v1 || v2 {
            self.end.stopped_us.get_or_insert(micros(at));
        }
        v1 || v2 || self.folder.is_none()
    }

    pub(super) fn kill(&mut self) {
        let Some(folder) = self.folder.clone() else { return };
        let living = processes(&folder, 0);
        self.end.killed = self.end.killed.max(u32::try_from(living.len()).unwrap_or(u32::MAX));
        if self.has("cgroup.kill") {
            return self.write("cgroup.kill", "1");
        }
        let id = self.end.container.clone();
        let mut refused = None;
        for pid in living {
            refused = signal(pid, &id).err().or(refused);
        }
        if let Some(error) = refused {
            self.end.trouble = Some(format!("its processes can't be signalled: {error}"));
        }
        match self.has("freezer.state") {
            true => self.write("freezer.state", "THAWED"),
            false => self.write("cgroup.freeze", "0"),
        }
    }

    /// What was just being forked, or could not be frozen, is met by another round.
    pub(super) fn kill_again(&mut self) {
        if self.end.ended_us.is_none() {
            self.freeze();
            self.kill();
        }
    }

    /// Also true for one that is not there.
    pub(super) fn see_ended(&mut self, at: Duration) -> bool {
        let Some(folder) = &self.folder else { return true };
        if self.end.ended_us.is_none() && is_empty(folder) {
            self.end.ended_us = Some(micros(at));
            self.end.trouble = None;
        }
        self.end.ended_us.is_some()
    }

    pub(super) fn into_end(mut self) -> GuestEnd {
        if self.folder.is_some() && self.end.ended_us.is_none() && self.end.trouble.is_none() {
            self.end.trouble = Some(
                "some of its processes are killed and not gone yet, as if they waited for a disk".to_owned(),
            );
        }
        self.end
    }
}

fn micros(at: Duration) -> u64 {
    u64::try_from(at.as_micros()).unwrap_or(u64::MAX)
}

/// ENODEV is what a cgroup file says whose group was removed while it was open.
fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(19)
}

/// On v2 the kernel says so for the whole subtree; there the pids of others are no help, as none
/// is visible from here.
fn is_empty(folder: &Path) -> bool {
    match fs::read_to_string(folder.join("cgroup.events")) {
        Ok(events) => events.lines().any(|line| line == "populated 0"),
        Err(_) => processes(folder, 0).is_empty(),
    }
}

/// Pids as this process sees them: 0 for one outside of its PID namespace.
fn processes(folder: &Path, depth: usize) -> Vec<i32> {
    let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<i32> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
    if depth < DEEPEST {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                found.extend(processes(&entry.path(), depth + 1));
            }
        }
    }
    found
}

/// Of no other process: held by a descriptor the pid can't change hands any more, and only then
/// its cgroup is asked.
fn signal(pid: i32, container: &str) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(pid) else {
        return Err(io::Error::other("they are in another PID namespace"));
    };
    let held = match pidfd_open(pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => return Ok(()),
        held => held?,
    };
    let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
    let cgroups = match cgroups {
        Err(error) if gone(&error) || error.raw_os_error() == Some(3) => return Ok(()),
        cgroups => cgroups?,
    };
    if !cgroups.split(['/', '\n']).any(|part| container_in(part) == Some(container)) {
        return Ok(());
    }
    match pidfd_send_signal(&held, Signal::KILL) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_containers_directly_below_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = ("1".repeat(64), "2".repeat(64));
        for name in
            [&one, &format!("docker-{two}.scope"), "user.slice", &format!("deeper/{}", "3".repeat(64))]
        {
            fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let mut found: Vec<String> =
            Group::all(folder.path()).unwrap().into_iter().map(|group| group.end.container).collect();
        found.sort();
        assert_eq!(found, [one, two.clone()]);
        assert!(Group::find(folder.path(), two).end.found);
        for odd in ["3".repeat(64), "..".to_owned(), "user.slice".to_owned(), String::new()] {
            assert!(!Group::find(folder.path(), odd).end.found);
        }
        assert!(Group::all(&folder.path().join("nowhere")).unwrap().is_empty());
    }

    #[test]
    fn a_process_of_another_cgroup_is_never_signalled() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        signal(child.id() as i32, &"a".repeat(64)).unwrap();
        assert!(child.try_wait().unwrap().is_none(), "it is in no guest's cgroup");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
