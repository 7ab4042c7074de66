//! The second way as whoever ends a guest meets it: a socket that answers its owner.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use gpunion_protocol::guest::{Decoder, encode};
use gpunion_protocol::second_way::{FromSecondWay, SECOND_WAY_SOCKET, ToSecondWay};

/// Tells a run of this program that it is only to ask.
const ASK: &str = "GPUNION_TEST_ASK";
const NOBODY: u32 = 65534;

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path, owner: u32) -> Program {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpunion-helper"));
    command.arg("second-way").arg(folder.join("guests")).arg(folder.join("cpu"));
    command.arg(folder.join(SECOND_WAY_SOCKET)).arg(owner.to_string());
    let program = Program(command.spawn().unwrap());
    for _ in 0..2_000 {
        if UnixStream::connect(folder.join(SECOND_WAY_SOCKET)).is_ok() {
            return program;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it does not listen");
}

fn ask(folder: &Path, bytes: &[u8]) -> Option<FromSecondWay> {
    let mut stream = UnixStream::connect(folder.join(SECOND_WAY_SOCKET)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    // One that is shown out may be gone before it is read.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let mut decoder = Decoder::default();
    decoder.feed(&answer);
    decoder.next().unwrap()
}

fn me() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_stranger_is_not_answered() {
    let sign = encode(&ToSecondWay::EndAll).unwrap();
    if let Some(folder) = std::env::var_os(ASK) {
        assert_eq!(me(), NOBODY);
        assert_eq!(ask(Path::new(&folder), &sign), None);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let _program = start(folder.path(), if me() == 0 { 12_345 } else { me() + 1 });
    if me() != 0 {
        return assert_eq!(ask(folder.path(), &sign), None);
    }
    // Root is answered, so somebody else asks.
    let own = std::env::current_exe().unwrap();
    let copy = folder.path().join("ask");
    fs::copy(own, &copy).unwrap();
    let mut command = Command::new(copy);
    command.args(["--exact", "a_stranger_is_not_answered"]).env(ASK, folder.path()).uid(NOBODY);
    assert!(command.status().unwrap().success());
}

#[test]
fn its_owner_is_answered_whatever_others_said_before() {
    let folder = tempfile::tempdir().unwrap();
    let _program = start(folder.path(), me());
    for nonsense in [&b"\xff\xff\xff\xff"[..], b"\x03\0\0\0abc", b"", b"\x09\0\0\0"] {
        assert_eq!(ask(folder.path(), nonsense), None);
    }
    // One that says nothing holds nobody up for long.
    let _silent = UnixStream::connect(folder.path().join(SECOND_WAY_SOCKET)).unwrap();
    let answer = ask(folder.path(), &encode(&ToSecondWay::EndAll).unwrap()).unwrap();
    assert_eq!(answer, FromSecondWay::default(), "no guest was ever here");
    let containers = vec!["a".repeat(64), "../..".to_owned()];
    let answer = ask(folder.path(), &encode(&ToSecondWay::End { containers }).unwrap()).unwrap();
    assert!(answer.guests.iter().all(|end| !end.found && end.killed == 0) && answer.guests.len() == 2);
}
