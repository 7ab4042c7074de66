//! Its socket: one question a connection, from the owner alone, and nobody holds it up.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use gpunion_protocol::guest::{Decoder, encode};
use gpunion_protocol::second_way::ToSecondWay;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::time::{ClockId, clock_gettime};

use super::{Places, answer};

/// A question is a few hundred bytes that its asker has ready.
const PATIENCE: Duration = Duration::from_millis(200);

pub(super) enum Never {}

pub(super) fn now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

pub(super) fn serve(places: &Places) -> io::Result<Never> {
    match fs::remove_file(&places.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&places.socket)?;
    // Its folder is the owner's and closed to others; the owner is not this user.
    fs::set_permissions(&places.socket, fs::Permissions::from_mode(0o666))?;
    loop {
        match listener.accept() {
            // What one asker does wrong is no reason not to listen to the next.
            Ok((stream, _)) => drop(converse(places, stream)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Out of descriptors or memory for a moment.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn converse(places: &Places, mut stream: UnixStream) -> io::Result<()> {
    // Not by rustix: its process ids are never 0, and out of this PID namespace that is what they are.
    let asker = getsockopt(&stream, PeerCredentials)?.uid();
    if asker != places.owner && asker != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let until = now() + PATIENCE;
    let mut decoder = Decoder::default();
    let mut bytes = [0; 4096];
    let asked: ToSecondWay = loop {
        if let Some(asked) = decoder.next().map_err(io::Error::other)? {
            break asked;
        }
        let read = stream.read(&mut bytes)?;
        if read == 0 || now() > until {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decoder.feed(bytes.get(..read).unwrap_or_default());
    };
    let answer = encode(&answer(places, asked)).map_err(io::Error::other)?;
    stream.write_all(&answer)
}
