//! Looking for what is not the guest's: addresses, sockets, files, processes, devices.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::Duration;

use crate::{Outcome, words};

const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn tcp(address: &str) -> Outcome {
    let to = address.parse().map_err(words)?;
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).map_err(words)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(words)?;
    let mut greeting = [0; 64];
    let read = stream.read(&mut greeting).unwrap_or(0);
    Ok(format!("{address}, which says {:?}", String::from_utf8_lossy(&greeting[..read])))
}

/// Something must come back: a datagram that nobody takes is sent without an error.
pub(crate) fn udp(address: &str) -> Outcome {
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let socket = UdpSocket::bind(any).map_err(words)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(words)?;
    socket.send_to(b"anybody there", address).map_err(words)?;
    let mut answer = [0; 64];
    let read = socket.recv(&mut answer).map_err(words)?;
    Ok(format!("{address}, which answers {:?}", String::from_utf8_lossy(&answer[..read])))
}

pub(crate) fn unix(path: &str) -> Outcome {
    UnixStream::connect(path).map_err(words)?;
    Ok(path.to_owned())
}

pub(crate) fn abstract_socket(name: &str) -> Outcome {
    let address = SocketAddr::from_abstract_name(name).map_err(words)?;
    UnixStream::connect_addr(&address).map_err(words)?;
    Ok(format!("@{name}"))
}

/// More than a connection: its answer, as whoever may use it gets.
pub(crate) fn engine(path: &str) -> Outcome {
    let mut stream = UnixStream::connect(path).map_err(words)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(words)?;
    stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n").map_err(words)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(words)?;
    if answer.starts_with("HTTP/1.0 200") { Ok(path.to_owned()) } else { Err(answer) }
}

/// Any interface but the own loopback.
pub(crate) fn interfaces() -> Outcome {
    let list = fs::read_to_string("/proc/net/dev").map_err(words)?;
    let names = list.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim()));
    let others: Vec<&str> = names.filter(|name| *name != "lo").collect();
    if others.is_empty() { Err("there is lo alone".to_owned()) } else { Ok(others.join(" ")) }
}

pub(crate) fn routes() -> Outcome {
    let list = fs::read_to_string("/proc/net/route").map_err(words)?;
    match list.lines().nth(1) {
        Some(route) => Ok(route.to_owned()),
        None => Err("there is no route".to_owned()),
    }
}

pub(crate) fn read(path: &str) -> Outcome {
    let mut start = [0; 32];
    let read = File::open(path).and_then(|mut file| file.read(&mut start)).map_err(words)?;
    Ok(format!("{read} bytes of {path}"))
}

pub(crate) fn write(path: &str) -> Outcome {
    let mut file = File::options().create(true).append(true).open(path).map_err(words)?;
    file.write_all(b"harm\n").map_err(words)?;
    let _ = fs::remove_file(path);
    Ok(format!("wrote {path}"))
}

/// A name anywhere below a folder, and below what other processes see as their root.
pub(crate) fn find(name: &str, root: &str) -> Outcome {
    let mut found = None;
    let mut roots = vec![root.to_owned()];
    if root == "/" {
        roots.extend(processes().flat_map(|pid| [format!("/proc/{pid}/root"), format!("/proc/{pid}/cwd")]));
    }
    for root in roots {
        walk(Path::new(&root), 24, &mut |path| {
            if path.file_name().is_some_and(|file| file == name) {
                found = Some(path.display().to_string());
            }
        });
    }
    found.ok_or_else(|| format!("{name} is not below {root}"))
}

/// Any socket that takes a connection, but one.
pub(crate) fn sockets(root: &str, but: &str) -> Outcome {
    let mut open = Vec::new();
    walk(Path::new(root), 24, &mut |path| {
        let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket && path != Path::new(but) && UnixStream::connect(path).is_ok() {
            open.push(path.display().to_string());
        }
    });
    if open.is_empty() { Err(format!("no socket below {root}")) } else { Ok(open.join(" ")) }
}

/// Never through links, and not into the processes' own folders, which have no end.
fn walk(folder: &Path, depth: usize, see: &mut impl FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        see(&path);
        let is_folder = fs::symlink_metadata(&path).is_ok_and(|found| found.is_dir());
        if is_folder && depth > 0 && path != Path::new("/proc") && path != Path::new("/sys") {
            walk(&path, depth - 1, see);
        }
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// One whose command line holds this.
pub(crate) fn process(name: &str) -> Outcome {
    let own = std::process::id();
    for pid in processes().filter(|pid| *pid != own) {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        // This very attempt names it too.
        if line.contains(name) && !line.contains(" process ") {
            return Ok(format!("{pid}: {line}"));
        }
    }
    Err(format!("no process {name}"))
}

/// Any device that a container without any of the host's does not have.
pub(crate) fn devices() -> Outcome {
    const PLAIN: &[&str] = &["null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"];
    let mut found = Vec::new();
    walk(Path::new("/dev"), 8, &mut |path| {
        let Ok(kind) = fs::symlink_metadata(path).map(|found| found.file_type()) else { return };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_terminal = path.starts_with("/dev/pts");
        if (kind.is_block_device() || kind.is_char_device()) && !PLAIN.contains(&name) && !is_terminal {
            found.push(path.display().to_string());
        }
    });
    if found.is_empty() { Err("only the plain ones".to_owned()) } else { Ok(found.join(" ")) }
}
