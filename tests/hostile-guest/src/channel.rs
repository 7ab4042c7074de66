//! Attacks on PID 1 and on its channel to the agent.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Outcome, words};

fn pid(text: &str) -> Result<Pid, String> {
    text.parse().map(Pid::from_raw).map_err(words)
}

pub(crate) fn trace(of: &str) -> Outcome {
    let pid = pid(of)?;
    ptrace::seize(pid, ptrace::Options::empty()).map_err(words)?;
    let _ = ptrace::detach(pid, None);
    Ok(format!("traces {pid}"))
}

/// Its memory, its descriptors or its environment.
pub(crate) fn memory_of(pid: &str) -> Outcome {
    let mut refused = String::new();
    for what in ["mem", "environ", "maps"] {
        let opened = fs::File::open(format!("/proc/{pid}/{what}")).map_err(words);
        // The first bytes of memory are mapped nowhere: there, opening it is the right to read.
        let got = opened.and_then(|mut file| match what {
            "mem" => Ok(1),
            _ => file.read(&mut [0; 8]).map_err(words),
        });
        match got {
            Ok(0) => refused = format!("{what} is empty"),
            Ok(_) => return Ok(format!("/proc/{pid}/{what}")),
            Err(error) => refused = error,
        }
    }
    match fs::read_dir(format!("/proc/{pid}/fd")).map(|mut list| list.next().is_some()) {
        Ok(true) => Ok(format!("/proc/{pid}/fd")),
        Ok(false) | Err(_) => Err(refused),
    }
}

/// Each signal that ends or stops a process, to this one. Whether it lives is for others to see.
pub(crate) fn signals(of: &str) -> Outcome {
    let pid = pid(of)?;
    for signal in Signal::iterator() {
        let _ = kill(pid, signal);
    }
    std::thread::sleep(Duration::from_millis(300));
    match kill(pid, None) {
        Ok(()) => Err(format!("{pid} lives on")),
        Err(Errno::ESRCH) => Ok(format!("{pid} is gone")),
        Err(errno) => Err(errno.to_string()),
    }
}

fn frame(body: &str) -> Vec<u8> {
    [(body.len() as u32).to_le_bytes().as_slice(), body.as_bytes()].concat()
}

/// Says what init would say: that the program ended with this code. Any answer means that the
/// other side took it for init.
pub(crate) fn forge(socket: &str, code: &str) -> Outcome {
    let mut stream = UnixStream::connect(socket).map_err(words)?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).map_err(words)?;
    let report = [
        frame("{\"say\":\"hello\",\"version\":1,\"begun\":true}"),
        frame(&format!("{{\"say\":\"exited\",\"how\":\"code\",\"code\":{code}}}")),
    ]
    .concat();
    stream.write_all(&report).map_err(words)?;
    let mut answer = [0; 256];
    match stream.read(&mut answer) {
        Ok(0) => Err("it hung up".to_owned()),
        Ok(read) => Ok(format!("it answered {:?}", String::from_utf8_lossy(&answer[..read]))),
        Err(error) => Err(error.to_string()),
    }
}

/// Many connections at once, held, with a length in front that never comes true.
pub(crate) fn crowd(socket: &str, many: &str) -> Outcome {
    let many: usize = many.parse().map_err(words)?;
    let mut held = Vec::new();
    let mut failed = 0;
    for _ in 0..many {
        match UnixStream::connect(socket) {
            Ok(mut stream) => {
                let _ = stream.set_nonblocking(true);
                let _ = stream.write(&[0xff, 0xff, 0x0f, 0x00, b'{']);
                held.push(stream);
            }
            Err(_) => failed += 1,
        }
    }
    let mut taken = 0;
    for stream in &mut held {
        taken += usize::from(stream.read(&mut [0; 8]).is_ok_and(|read| read > 0));
    }
    match taken {
        0 => Err(format!("{} connections, {failed} not made, none answered", held.len())),
        some => Ok(format!("{some} were answered")),
    }
}

/// Puts something of its own in place of a file, by any of the ways there are.
pub(crate) fn replace(path: &str) -> Outcome {
    let own = Path::new("/tmp/own");
    let tries = [
        ("write", fs::OpenOptions::new().write(true).open(path).map(drop)),
        ("remove", fs::remove_file(path)),
        ("make", fs::write(path, "harm")),
        ("rename away", fs::rename(path, own)),
        ("link", std::os::unix::fs::symlink("/tmp/own", path)),
        ("mode", fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777))),
    ];
    let mut refused = String::new();
    for (way, tried) in tries {
        match tried {
            Ok(()) => return Ok(format!("{way} {path}")),
            Err(error) => refused = error.to_string(),
        }
    }
    Err(refused)
}

/// The guest's own door, in every form that is not meant: fifos, folders, links, and very many.
pub(crate) fn spam_saved(folder: &str) -> Outcome {
    let folder = Path::new(folder);
    let saved = folder.join("saved");
    for round in 0..400 {
        let _ = match round % 5 {
            0 => fs::write(&saved, "x"),
            1 => nix::unistd::mkfifo(&saved, nix::sys::stat::Mode::S_IRWXU).map_err(Into::into),
            2 => fs::create_dir_all(saved.join("deep/er")),
            3 => std::os::unix::fs::symlink("/proc/1/root", &saved),
            _ => std::os::unix::fs::symlink("/run/gpunion-ctl/end", folder.join("leaving")),
        };
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut made = 0;
    while made < 100_000 && fs::write(folder.join(format!("f{made}")), "x").is_ok() {
        made += 1;
    }
    (0..made).for_each(|at| drop(fs::remove_file(folder.join(format!("f{at}")))));
    if made == 100_000 {
        Ok("there is no end to it".to_owned())
    } else {
        Err(format!("full after {made} files"))
    }
}
