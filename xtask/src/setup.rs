//! Getting a fresh machine ready: what is missing, what would bring it, and doing so after asking.
//!
//! Nothing is installed in silence on somebody's own machine; where we don't know the package
//! manager we say exactly what is needed.

use std::io::{BufRead, IsTerminal, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::command::{as_root, find, run};

/// Something that a task can't do without.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    /// In words, with what it is for.
    what: &'static str,
    /// Packages of Debian and Ubuntu that bring it.
    packages: &'static [&'static str],
    is_there: fn() -> bool,
}

const COMPILER: Need = Need {
    what: "a C compiler, for SQLite and zstd",
    packages: &["build-essential", "pkg-config"],
    is_there: || find("cc").is_some() && links_statically(),
};
const ENGINE: Need = Need {
    what: "a container engine: dockerd, containerd and runc",
    packages: &["docker.io", "iptables"],
    is_there: || ["dockerd", "containerd", "runc"].iter().all(|name| find(name).is_some()),
};
const ACCOUNTS: Need = Need {
    what: "useradd, setpriv and tar, for ordinary users and images",
    packages: &["passwd", "util-linux", "tar"],
    is_there: || ["useradd", "groupadd", "setpriv", "tar"].iter().all(|name| find(name).is_some()),
};
const DEBOOTSTRAP: Need = Need {
    what: "mmdebstrap, which makes an image with Python",
    packages: &["mmdebstrap"],
    is_there: || find("mmdebstrap").is_some(),
};
const BUSYBOX: Need = Need {
    what: "a static busybox, for guests that misbehave",
    packages: &["busybox-static"],
    is_there: || is_static("/bin/busybox"),
};
const DISKS: Need = Need {
    what: "mkfs.ext4, mount and fsfreeze, for disks that fill up or hang",
    packages: &["e2fsprogs", "util-linux", "mount"],
    is_there: || ["mkfs.ext4", "mount", "fsfreeze"].iter().all(|name| find(name).is_some()),
};

const REGISTRY: Need = Need {
    what: "an image registry and the docker command, for images by digest",
    packages: &["docker-registry", "docker.io"],
    is_there: || ["docker-registry", "docker"].iter().all(|name| find(name).is_some()),
};
const KEYRING: Need = Need {
    what: "a session bus and a keyring, for the device's token",
    packages: &["dbus", "gnome-keyring", "libsecret-tools"],
    is_there: || {
        ["dbus-run-session", "gnome-keyring-daemon", "secret-tool"].iter().all(|name| find(name).is_some())
    },
};

const CLOCKS: Need = Need {
    what: "libfaketime, for a machine whose clock is off",
    packages: &["libfaketime"],
    is_there: || {
        let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
        let folders = folders.map(|entry| entry.path()).chain(["/usr/lib64".into()]);
        folders.into_iter().any(|folder| folder.join("faketime/libfaketime.so.1").is_file())
    },
};

const PROXY: Need = Need {
    what: "nginx, as the proxy before a relay",
    packages: &["nginx-light"],
    is_there: || find("nginx").is_some(),
};

const ADDRESSES: Need = Need {
    what: "ip, for networks of a guest's own",
    packages: &["iproute2"],
    is_there: || find("ip").is_some(),
};

const RIVALS: Need = Need {
    what: "restic and the docker command, to measure ours beside",
    packages: &["restic", "docker.io"],
    is_there: || ["restic", "docker"].iter().all(|name| find(name).is_some()),
};

pub(crate) const FOR_DEMO: &[Need] = &[COMPILER, ENGINE, ACCOUNTS];
pub(crate) const FOR_TEST: &[Need] =
    &[COMPILER, ENGINE, ACCOUNTS, DEBOOTSTRAP, BUSYBOX, DISKS, REGISTRY, KEYRING, CLOCKS, PROXY, ADDRESSES];
pub(crate) const FOR_BENCH: &[Need] = &[COMPILER, ENGINE, ACCOUNTS, BUSYBOX, RIVALS];
pub(crate) const FOR_SIM: &[Need] = &[COMPILER];

/// Installs what is missing. Asks first, unless `yes` or CI=true.
pub(crate) fn ready(needs: &[Need], yes: bool) -> Result<()> {
    let missing: Vec<Need> = needs.iter().copied().filter(|need| !(need.is_there)()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages: Vec<&str> = missing.iter().flat_map(|need| need.packages).copied().collect();
    eprintln!("Missing on this machine:");
    for need in &missing {
        eprintln!("  {} (Debian, Ubuntu: {})", need.what, need.packages.join(" "));
    }
    if find("apt-get").is_none() {
        bail!(
            "this machine has no apt-get: install the above with its own package manager \
             (Fedora: moby-engine containerd gcc glibc-static shadow-utils util-linux tar \
             mmdebstrap busybox docker-distribution dbus-daemon gnome-keyring libsecret libfaketime nginx iproute; \
             Arch: docker base-devel mmdebstrap busybox distribution dbus gnome-keyring libsecret libfaketime nginx iproute2), then run this again"
        );
    }
    let install = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if !may_install(yes, &install)? {
        bail!("not installed; to do it yourself, as root: {install}");
    }
    apt(&["update"])?;
    apt(&[&["install", "--yes", "--no-install-recommends"], &packages[..]].concat())?;
    match missing.iter().find(|need| !(need.is_there)()) {
        Some(need) => bail!("installed, and still missing: {}", need.what),
        None => Ok(()),
    }
}

fn may_install(yes: bool, install: &str) -> Result<bool> {
    if yes || std::env::var("CI").is_ok_and(|value| value == "true") {
        eprintln!("Installing: {install}");
        return Ok(true);
    }
    if !std::io::stdin().is_terminal() {
        eprintln!("There is no terminal to ask on; --yes installs without asking.");
        return Ok(false);
    }
    eprint!("Run, as root: {install}\nInstall now? [Y/n] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes"))
}

/// A fresh machine often updates itself just now: waits for the lock instead of failing on it.
fn apt(arguments: &[&str]) -> Result<()> {
    let mut command = as_root("env")?;
    command
        .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=600"])
        .args(arguments);
    run(&mut command).context("installing what is missing")
}

/// glibc's static archive comes apart from the compiler on some systems.
fn links_statically() -> bool {
    let asked = Command::new("cc").arg("-print-file-name=libc.a").stderr(Stdio::null()).output();
    // Where it is missing the bare name comes back.
    asked.is_ok_and(|output| output.stdout.contains(&b'/'))
}

/// A static program names no interpreter; and the image of it holds nothing else.
fn is_static(path: &str) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    let head = &bytes[..bytes.len().min(4096)];
    head.starts_with(b"\x7fELF") && !head.windows(3).any(|window| window == b"ld-")
}
