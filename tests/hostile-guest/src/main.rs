//! A program that means harm. As a guest it tries what a guest must not be able to do; the same
//! words outside of a guest show that the attempt is a good one, since there it succeeds.
//!
//! `hostile-guest WORD ARGUMENT…` makes one attempt and prints `reached …` or `refused …`, the
//! latter with what the system said. `hostile-guest each FILE` makes one attempt per line of a
//! file, `NAME WORD ARGUMENT…`, and prints `NAME reached …` for each.

mod channel;
mod fill;
mod outlive;
mod reach;
mod rise;
mod victim;

use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

/// What an attempt came to; an error is the system's refusal.
type Outcome = Result<String, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["each", file, ..] => each(file),
        ["victim", token] => victim::be(token),
        words => {
            let line = match attempt(words) {
                Ok(what) => format!("reached {what}"),
                Err(why) => format!("refused {why}"),
            };
            say(&line);
        }
    }
    ExitCode::from(exit(&words))
}

/// `exit N` at the end of the words is how the program ends.
fn exit(words: &[&str]) -> u8 {
    match words {
        [.., "exit", code] => code.parse().unwrap_or(0),
        _ => 0,
    }
}

fn attempt(words: &[&str]) -> Outcome {
    match *words {
        ["tcp", address] => reach::tcp(address),
        ["udp", address] => reach::udp(address),
        ["unix", path] => reach::unix(path),
        ["abstract", name] => reach::abstract_socket(name),
        ["engine", path] => reach::engine(path),
        ["interfaces"] => reach::interfaces(),
        ["routes"] => reach::routes(),
        ["read", path] => reach::read(path),
        ["write", path] => reach::write(path),
        ["find", name, root] => reach::find(name, root),
        ["sockets", root, but] => reach::sockets(root, but),
        ["process", name] => reach::process(name),
        ["devices"] => reach::devices(),
        ["capabilities"] => rise::capabilities(),
        ["setuid"] => rise::set_uid(),
        ["mount"] => rise::mount_something(),
        ["namespace"] => rise::namespace(),
        ["chroot"] => rise::change_root(),
        ["mknod", path] => rise::make_device(path),
        ["host-name"] => rise::host_name(),
        ["packets"] => rise::raw_packets(),
        ["trace", pid] => channel::trace(pid),
        ["memory-of", pid] => channel::memory_of(pid),
        ["signals", pid] => channel::signals(pid),
        ["forge", socket, code, ..] => channel::forge(socket, code),
        ["crowd", socket, many] => channel::crowd(socket, many),
        ["replace", path] => channel::replace(path),
        ["spam-saved", folder] => channel::spam_saved(folder),
        ["fork", ..] => fill::processes(),
        ["log", mebibytes, ..] => fill::log(mebibytes),
        ["memory", ..] => fill::memory(),
        ["folder", path, mebibytes] => fill::folder(path, mebibytes),
        ["files", path] => fill::files(path),
        ["detach", file] => outlive::detach(file),
        ["deaf", file] => outlive::deaf(file),
        ["bomb", file] => outlive::bomb(file),
        ["chain-link"] => outlive::link(),
        ["wait"] => outlive::wait(),
        _ => Err(format!("{words:?} is no attempt")),
    }
}

/// Each in a process of its own, so that one that ends or hangs it hides none of the others.
fn each(file: &str) {
    let list = std::fs::read_to_string(file).unwrap_or_else(|error| format!("list read {file}: {error}"));
    for line in list.lines() {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default();
        let outcome = match Command::new("/proc/self/exe").args(words).output() {
            Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            Err(error) => format!("not tried: {error}"),
        };
        let outcome = if outcome.is_empty() { "not tried: it ended without a word" } else { &outcome };
        say(&format!("{name} {outcome}"));
    }
}

/// Nobody who reads is no reason to stop.
fn say(line: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn words<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}
