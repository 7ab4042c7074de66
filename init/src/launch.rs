//! Starts the member's program, and says in words why it could not be started.
//!
//! The program gets no descriptor of init's, the environment it was given and nothing else, and
//! is what the kernel ends first when the machine's memory runs out.

use std::collections::BTreeMap;
use std::env;
use std::ffi::{CString, OsStr};
use std::fs::{self, File};
use std::io::{PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use gpunion_protocol::guest::Begin;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::signal::SigSet;
use nix::sys::stat::Mode;
use nix::unistd::Pid;

/// Where programs are looked for when the environment has no PATH; what engines use.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Starts the program; returns its pid. Blocks until the kernel has accepted or refused it.
/// Nobody may reap children meanwhile: the refusal arrives as one.
///
/// `posix_spawn` and not fork and exec: the signals that init blocks must be open in the program
/// and in no thread of init, not even for a moment. A signal from the guest that one thread lets
/// in ends all of PID 1, although the kernel keeps from PID 1 what none lets in.
pub(crate) fn start(begin: &Begin, output: &PipeWriter) -> Result<i32, String> {
    let Some(name) = begin.command.first() else {
        return Err("the command is empty; give the program and its arguments".to_owned());
    };
    let directory = Path::new(&begin.directory);
    // The working directory is inherited; init itself uses no relative path.
    env::set_current_dir(directory)
        .map_err(|error| format!("the directory {} can't be entered: {error}", begin.directory))?;
    let program = find(name, directory, &begin.env)?;
    let arguments = begin.command.iter().map(|word| c_string(word)).collect::<Result<Vec<_>, _>>()?;
    let environment = environment(&begin.env)?;
    let prepared = descriptors(output).and_then(|files| Ok((files, attributes()?)));
    let (files, attributes) = prepared.map_err(|errno| format!("init can't prepare the start: {errno}"))?;
    let pid = posix_spawn(&program, &files, &attributes, &arguments, &environment)
        .map_err(|errno| refusal(name, &program, directory, errno))?;
    end_first(pid.as_raw());
    Ok(pid.as_raw())
}

/// Nothing to read, and one pipe for all that is written; every other descriptor closes itself.
fn descriptors(output: &PipeWriter) -> nix::Result<PosixSpawnFileActions> {
    let mut files = PosixSpawnFileActions::init()?;
    files.add_open(0, c"/dev/null", OFlag::O_RDONLY, Mode::empty())?;
    files.add_dup2(output.as_raw_fd(), 1)?;
    files.add_dup2(output.as_raw_fd(), 2)?;
    Ok(files)
}

/// A process group of its own, and signals as a program expects them: none blocked, none ignored.
fn attributes() -> nix::Result<PosixSpawnAttr> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_pgroup(Pid::from_raw(0))?;
    attributes.set_sigmask(&SigSet::empty())?;
    attributes.set_sigdefault(&SigSet::all())?;
    let signals = PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF;
    attributes.set_flags(signals | PosixSpawnFlags::POSIX_SPAWN_SETPGROUP)?;
    Ok(attributes)
}

/// Of a name that is given twice the later value counts. Errors never quote a value.
fn environment(env: &[(String, String)]) -> Result<Vec<CString>, String> {
    let latest: BTreeMap<&str, &str> =
        env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let line = |(name, value): (&str, &str)| {
        if name.is_empty() || name.contains('=') {
            return Err(format!("{name:?} can't be the name of an environment variable"));
        }
        CString::new(format!("{name}={value}")).map_err(|_| format!("the variable {name} holds a zero byte"))
    };
    latest.into_iter().map(line).collect()
}

fn c_string(word: &str) -> Result<CString, String> {
    CString::new(word).map_err(|_| "an argument holds a zero byte".to_owned())
}

/// Makes the program and all that it starts the first that the kernel ends when memory runs out:
/// before the owner's programs, and before init. A program whose file it may not read can't be
/// told so; that is no reason not to run it.
fn end_first(pid: i32) {
    // The new process is init's secret (not dumpable) for a moment after it has been started.
    for _ in 0..50 {
        if fs::write(format!("/proc/{pid}/oom_score_adj"), "1000").is_ok() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// As a shell would: a name with a slash is a path below the directory, any other is looked for
/// in the job's own PATH.
fn find(name: &str, directory: &Path, env: &[(String, String)]) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(PathBuf::from(name));
    }
    let path = env.iter().rev().find(|(key, _)| key == "PATH").map_or(PATH, |(_, value)| value.as_str());
    let mut refused = None;
    for folder in path.split(':') {
        let candidate = directory.join(folder).join(name);
        match fs::metadata(&candidate) {
            Ok(found) if found.is_file() && found.permissions().mode() & 0o111 != 0 => return Ok(candidate),
            Ok(found) if found.is_file() => refused = Some(candidate),
            Ok(_) | Err(_) => {}
        }
    }
    Err(match refused {
        Some(file) => {
            format!("{} is not executable; chmod +x it, or name its interpreter first", file.display())
        }
        None => format!("{name}: command not found (looked in {path}); is it in the image?"),
    })
}

#[expect(clippy::wildcard_enum_match_arm, reason = "the system's words say the rest")]
fn refusal(name: &str, program: &Path, directory: &Path, errno: Errno) -> String {
    let file = directory.join(program);
    let found = match fs::metadata(&file) {
        Ok(found) => found,
        Err(_) => return format!("{name}: command not found; is it in the image or the folder?"),
    };
    match errno {
        Errno::ENOENT => missing_interpreter(name, &file),
        Errno::EACCES if found.is_dir() => format!("{name} is a directory, not a program"),
        Errno::EACCES => format!("{name} is not executable; chmod +x it, or name its interpreter first"),
        Errno::ENOEXEC => {
            format!(
                "{name} is no program of this machine: a script needs #! and its interpreter in the first line"
            )
        }
        _ => format!("{name} could not be started: {errno}"),
    }
}

/// The file is there and yet "not found": what it needs to run is not.
fn missing_interpreter(name: &str, file: &Path) -> String {
    let mut head = [0; 256];
    let length = File::open(file).and_then(|mut file| file.read(&mut head)).unwrap_or(0);
    let line = head[..length].split(|byte| *byte == b'\n').next().unwrap_or_default();
    match line.strip_prefix(b"#!") {
        Some(interpreter) => {
            let interpreter = Path::new(OsStr::from_bytes(interpreter.trim_ascii())).display().to_string();
            format!("{name}: its interpreter {interpreter} is not in the image")
        }
        None => format!(
            "{name}: the loader that it is linked for is not in the image (built for another system?)"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(directory: &Path, command: &[&str], env: &[(&str, &str)]) -> Begin {
        Begin {
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            directory: directory.to_str().unwrap().to_owned(),
            egress_deadline: None,
            disk_limit: 0,
        }
    }

    fn refusal_of(begin: &Begin) -> String {
        start(begin, &std::io::pipe().unwrap().1).unwrap_err()
    }

    fn put(path: &Path, text: &str, mode: u32) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn each_way_of_not_starting_is_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        put(&at.join("plain"), "#!/bin/sh\n", 0o644);
        put(&at.join("blank"), "echo hello\n", 0o755);
        put(&at.join("odd"), "#!/opt/no-such-python -u\n", 0o755);
        assert!(refusal_of(&begin(at, &[], &[])).contains("empty"));
        assert!(refusal_of(&begin(at, &["pyhton"], &[])).contains("command not found"));
        assert!(refusal_of(&begin(at, &["./pyhton"], &[])).contains("command not found"));
        assert!(refusal_of(&begin(at, &["./plain"], &[])).contains("chmod +x"));
        assert!(refusal_of(&begin(at, &["plain"], &[("PATH", at.to_str().unwrap())])).contains("chmod +x"));
        assert!(refusal_of(&begin(at, &["./odd"], &[])).contains("/opt/no-such-python"));
        assert!(refusal_of(&begin(at, &["./blank"], &[])).contains("#!"));
        assert!(refusal_of(&begin(&at.join("gone"), &["sh"], &[])).contains("can't be entered"));
        assert!(refusal_of(&begin(at, &["sh"], &[("A=B", "hunter2")])).contains("A=B"));
        let secret = refusal_of(&begin(at, &["sh"], &[("TOKEN", "hunter2\0")]));
        assert!(secret.contains("TOKEN") && !secret.contains("hunter2"));
    }

    #[test]
    fn the_path_of_the_job_counts_not_that_of_init() {
        let folder = tempfile::tempdir().unwrap();
        put(&folder.path().join("train"), "#!/bin/sh\n", 0o755);
        let env = [("PATH".to_owned(), folder.path().to_str().unwrap().to_owned())];
        assert_eq!(find("train", Path::new("/"), &env).unwrap(), folder.path().join("train"));
        find("sh", Path::new("/"), &env).unwrap_err();
    }
}
