//! gpunion-init: PID 1 of every guest, and its owner's guarantee.
//!
//! Static, tiny, without privilege, engine or network: on one word over a socket in a read-only
//! mount it stops the whole PID namespace, lets it go on, or ends it. It must never wait for
//! anybody, never lose the report of how the program ended, and never act as anything but PID 1:
//! its signals go to every process it can see.

mod channel;
mod driver;
mod egress;
mod events;
mod guestdir;
mod lane;
mod launch;
mod machine;
mod output;
mod procs;
mod ring;
mod saved;
mod signals;
mod sources;
mod threads;
mod usage;

use std::io::{self, Write};
use std::process::ExitCode;

use driver::Driver;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        return refuse("gpunion-init runs as PID 1 of a guest only; it signals every process that it sees");
    }
    // The guest runs as the same user: without this it could trace init and read its memory.
    if let Err(errno) = nix::sys::prctl::set_dumpable(false) {
        return refuse(&format!("can't hide from the guest: {errno}"));
    }
    let ended = Driver::new().and_then(Driver::run);
    match ended {
        Ok(never) => match never {},
        Err(error) => {
            let _killed = procs::signal_all(events::ToAll::Kill);
            refuse(&format!("init can't go on: {error}"))
        }
    }
}

fn refuse(why: &str) -> ExitCode {
    let _unheard = writeln!(io::stderr(), "{why}");
    ExitCode::from(70)
}
