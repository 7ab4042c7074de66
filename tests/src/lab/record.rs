//! What a lab has made, in a file in its folder, and how it is all undone.
//!
//! The same code cleans up at the normal end and after a lab that was killed; so that it is
//! tested each time. It must never end or remove what the record doesn't name.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::mount::{MntFlags, umount2};

use super::engine::end_containers;
use super::processes::Identity;
use super::user;

const RECORD: &str = "record";
const CLEANING: &str = ".cleaning";

/// One line of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Made {
    /// The process that has the lab: while it lives, nobody else cleans here.
    Owner(Identity),
    /// dockerd or containerd.
    Daemon(Identity),
    User {
        name: String,
        uid: u32,
    },
}

impl Made {
    fn to_line(&self) -> String {
        match self {
            Made::Owner(p) => format!("owner {} {}\n", p.pid, p.start),
            Made::Daemon(p) => format!("daemon {} {}\n", p.pid, p.start),
            Made::User { name, uid } => format!("user {name} {uid}\n"),
        }
    }

    /// A torn last line, of a lab killed while it wrote, is no line.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let (kind, first, second) = (words.next()?, words.next()?, words.next()?);
        let identity = || Some(Identity { pid: first.parse().ok()?, start: second.parse().ok()? });
        match kind {
            "owner" => identity().map(Made::Owner),
            "daemon" => identity().map(Made::Daemon),
            "user" => Some(Made::User { name: first.to_owned(), uid: second.parse().ok()? }),
            _ => None,
        }
    }
}

pub(super) fn own(dir: &Path) -> Result<()> {
    let me = Identity::of(std::process::id() as i32).context("this process is not in /proc")?;
    add(dir, &Made::Owner(me))
}

pub(super) fn add(dir: &Path, made: &Made) -> Result<()> {
    let path = dir.join(RECORD);
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    file.write_all(made.to_line().as_bytes())?;
    Ok(())
}

fn read(dir: &Path) -> Vec<Made> {
    let text = fs::read_to_string(dir.join(RECORD)).unwrap_or_default();
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .filter_map(|line| Made::parse(line.trim_end()))
        .collect()
}

/// Removes what labs below `base` left whose owner lives no more. Returns how many there were.
pub fn clean_leftovers(base: &Path) -> Result<usize> {
    let Ok(entries) = fs::read_dir(base) else { return Ok(0) };
    // Labs that begin side by side meet the same leftovers.
    let lock = File::create(base.join(CLEANING)).context("the lock of who cleans up")?;
    let _alone = Flock::lock(lock, FlockArg::LockExclusive).map_err(|(_, error)| error)?;
    let mut cleaned = 0;
    for dir in entries.flatten().map(|entry| entry.path()) {
        let mut owner = read(&dir).into_iter().filter_map(|made| match made {
            Made::Owner(owner) => Some(owner),
            Made::Daemon(_) | Made::User { .. } => None,
        });
        if owner.next().is_some_and(|owner| !owner.is_alive()) {
            remove(&dir)?;
            cleaned += 1;
        }
    }
    Ok(cleaned)
}

/// Ends what runs for this lab, unmounts what is mounted in it, removes it.
pub(super) fn remove(dir: &Path) -> Result<()> {
    let made = read(dir);
    for made in &made {
        if let Made::User { name, uid } = made {
            user::remove(name, *uid)?;
        }
    }
    for made in &made {
        if let Made::Daemon(daemon) = made {
            daemon.end()?;
        }
    }
    end_containers(dir)?;
    remove_cgroups(dir);
    unmount_below(dir)?;
    fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))
}

/// Engines leave the parents of our guests' cgroups behind. Their devices are named in the homes of
/// the lab's users, or in the file `devices`.
fn remove_cgroups(dir: &Path) {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let homes = entries(&dir.join("home")).map(|home| home.join("gpunion/lender.json"));
    let named = homes.chain([dir.join("devices")]).filter_map(|path| fs::read_to_string(path).ok());
    let named: Vec<String> = named.collect();
    let devices = named.iter().flat_map(|text| text.split(['"', '\n'])).filter(|id| id.starts_with("dev_"));
    let root = Path::new("/sys/fs/cgroup");
    for device in devices {
        for hierarchy in entries(root).chain([root.to_owned()]) {
            let parent = hierarchy.join(format!("gpunion-{device}"));
            for group in [parent.join("guests"), parent] {
                // One that is not there, or not empty, stays.
                let _ = fs::remove_dir(group);
            }
        }
    }
}

/// The innermost first; lazily, since a dead engine's mounts may have dead users.
pub(super) fn unmount_below(dir: &Path) -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4)).map(unescape);
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(dir)).collect();
    points.sort();
    for point in points.iter().rev() {
        // A lab that was killed may have left a disk of its own hanging (`disk.rs`).
        let _ = dir.join(super::disk::FILE).exists().then(|| {
            std::process::Command::new("fsfreeze").arg("--unfreeze").arg(point).stderr(Stdio::null()).status()
        });
        umount2(point, MntFlags::MNT_DETACH).with_context(|| format!("unmounting {}", point.display()))?;
    }
    Ok(())
}

/// mountinfo writes a space as \040.
fn unescape(field: &str) -> PathBuf {
    PathBuf::from(field.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\"))
}

/// Cleaning up at the end has nobody to return an error to.
pub(super) fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "lab: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_and_a_torn_line_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let process = Identity { pid: 12, start: 34 };
        let user = Made::User { name: "gpl-1-ann".to_owned(), uid: 997 };
        let all = [Made::Owner(process), Made::Daemon(process), user];
        for made in &all {
            add(folder.path(), made).unwrap();
        }
        let path = folder.path().join(RECORD);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{text}daemon 56 7")).unwrap();
        assert_eq!(read(folder.path()), all);
    }

    #[test]
    fn a_lab_whose_owner_lives_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let (mine, foreign) = (base.path().join("mine"), base.path().join("no-record"));
        for dir in [&mine, &foreign] {
            fs::create_dir(dir).unwrap();
        }
        own(&mine).unwrap();
        assert_eq!(clean_leftovers(base.path()).unwrap(), 0);
        assert!(mine.exists() && foreign.exists());
        // The same pid with another start time is another process.
        let other = Identity { pid: std::process::id() as i32, start: 1 };
        fs::remove_file(mine.join(RECORD)).unwrap();
        add(&mine, &Made::Owner(other)).unwrap();
        assert_eq!(clean_leftovers(base.path()).unwrap(), 1);
        assert!(!mine.exists() && foreign.exists());
    }
}
