//! Asking for rights: capabilities, users, mounts, namespaces, devices.
//!
//! What would harm the machine that allows it is asked for in a child that ends at once, or in a
//! form that changes nothing there.

use std::fs;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use nix::unistd::{Uid, chroot, gethostname, sethostname, setuid};

use crate::{Outcome, words};

fn done(what: &str, result: nix::Result<()>) -> Outcome {
    result.map(|()| what.to_owned()).map_err(words)
}

/// Any capability in any set, or the right to gain some by starting a program.
pub(crate) fn capabilities() -> Outcome {
    let status = fs::read_to_string("/proc/self/status").map_err(words)?;
    let value = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map_or("?", str::trim)
    };
    let sets = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"];
    let held: Vec<String> = sets
        .iter()
        .filter(|set| value(set).bytes().any(|digit| digit != b'0'))
        .map(|set| format!("{set} {}", value(set)))
        .collect();
    let guarded = value("NoNewPrivs") == "1" && value("Seccomp") == "2";
    if held.is_empty() && guarded {
        return Err("no capability, no new privileges, a filter of system calls".to_owned());
    }
    Ok(format!("{held:?}, NoNewPrivs {}, Seccomp {}", value("NoNewPrivs"), value("Seccomp")))
}

pub(crate) fn set_uid() -> Outcome {
    done("uid 0", setuid(Uid::from_raw(0)))
}

/// In a mount namespace of its own first, so that the host keeps its mounts.
pub(crate) fn mount_something() -> Outcome {
    let apart = unshare(CloneFlags::CLONE_NEWNS);
    let nowhere = None::<&str>;
    if apart.is_ok() {
        let _ = mount(nowhere, "/", nowhere, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nowhere);
    }
    done("mounted over /tmp", mount(Some("none"), "/tmp", Some("tmpfs"), MsFlags::empty(), nowhere))
}

pub(crate) fn namespace() -> Outcome {
    done("a user namespace", unshare(CloneFlags::CLONE_NEWUSER))
}

pub(crate) fn change_root() -> Outcome {
    done("another root", chroot("/proc"))
}

/// The machine's first disk.
pub(crate) fn make_device(path: &str) -> Outcome {
    let made = mknod(path, SFlag::S_IFBLK, Mode::S_IRUSR, makedev(8, 0));
    if made.is_ok() {
        let _ = fs::remove_file(path);
    }
    done("a disk's device", made)
}

/// The name that it has, so that a machine that allows it keeps it.
pub(crate) fn host_name() -> Outcome {
    done("set the host's name", gethostname().and_then(sethostname))
}

pub(crate) fn raw_packets() -> Outcome {
    let kinds = [
        (AddressFamily::Packet, SockType::Raw, SockProtocol::EthAll),
        (AddressFamily::Inet, SockType::Raw, SockProtocol::Icmp),
    ];
    let opened = kinds.map(|(family, kind, protocol)| socket(family, kind, SockFlag::empty(), protocol));
    match opened {
        [Err(_), Err(why)] => Err(why.to_string()),
        [_, _] => Ok("a socket below TCP".to_owned()),
    }
}
