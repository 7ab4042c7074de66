//! Attacks on init and on its channel to the agent.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::process::{Child, Command};
use std::thread;

use gpunion_protocol::guest::{Decoder, Exit, FromInit, ToInit, encode};

use crate::shared::world;
use crate::world::{Attempts, Who};

const CHANNEL: &str = "/run/gpunion-ctl/init.sock";

pub(crate) fn attempts(all: &mut Attempts, lab: &str) {
    // Outside, the tests below play the other side of these.
    all.add("trace", Who::Victim, "trace 1");
    all.add("memory-of", Who::Victim, "memory-of 1");
    all.add("signals", Who::Victim, "signals 1");
    all.add("forge", Who::Victim, format!("forge {CHANNEL} 0"));
    all.add("crowd", Who::Victim, format!("crowd {CHANNEL} 600"));
    all.add("forge-again", Who::Victim, format!("forge {CHANNEL} 0"));
    for (name, path) in [
        ("replace-socket", CHANNEL),
        ("replace-end", "/run/gpunion-ctl/end"),
        ("replace-init", "/run/gpunion-init"),
        ("replace-folder", "/run/gpunion-ctl"),
    ] {
        all.differ(name, Who::Root, format!("replace {path}"), format!("replace {lab}/own"));
    }
    all.add("spam-saved", Who::Victim, "spam-saved /run/gpunion");
}

/// A process of nobody's, reaped when it ends.
fn sleeper() -> (u32, thread::JoinHandle<()>) {
    let mut child: Child = Command::new("sleep").arg("600").spawn().unwrap();
    (child.id(), thread::spawn(move || drop(child.wait())))
}

#[test]
fn init_is_neither_traced_nor_read_nor_ended() {
    let world = world();
    world.refuses(&["trace", "memory-of", "signals"]);
    // The same words do it to a process that does not guard itself.
    let (pid, ended) = sleeper();
    for words in [["trace", &pid.to_string()], ["memory-of", &pid.to_string()], ["signals", &pid.to_string()]]
    {
        let said = world.as_root(&words);
        assert!(said.starts_with("reached "), "a poor attempt: {words:?}: {said}");
    }
    ended.join().unwrap();
}

#[test]
fn nobody_else_is_taken_for_init() {
    let world = world();
    world.refuses(&["forge", "crowd", "forge-again"]);
    // What it says is well said: an agent that did not ask the kernel would take it.
    let folder = world.pair.campus.lab.shared_folder("forged").unwrap();
    let socket = folder.join("init.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let believing = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut decoder, mut bytes) = (Decoder::default(), [0; 512]);
        loop {
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "it hung up before its report");
            decoder.feed(&bytes[..read]);
            while let Some(word) = decoder.next::<FromInit>().unwrap() {
                if word == FromInit::Exited(Exit::Code { code: 0 }) {
                    stream.write_all(&encode(&ToInit::ExitSeen).unwrap()).unwrap();
                    return;
                }
            }
        }
    });
    let said = world.as_root(&["forge", &socket.display().to_string(), "0"]);
    believing.join().unwrap();
    assert!(said.starts_with("reached "), "a poor attempt: {said}");
}

#[test]
fn the_read_only_mount_of_the_channel_stays_as_it_is() {
    world().refuses(&["replace-socket", "replace-end", "replace-init", "replace-folder"]);
}

/// Its own door may be filled with anything; it is small, and nothing in it is opened.
#[test]
fn the_guest_s_own_door_is_bounded() {
    let world = world();
    let said = world.said("spam-saved");
    assert!(said.starts_with("refused full after "), "{said}");
}
