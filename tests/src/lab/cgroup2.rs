//! A machine with cgroup v2 alone, on one that mounts v1: a mount namespace with cgroup2 on
//! `/sys/fs/cgroup`.
//!
//! An engine and an agent in it find what they find on such a machine: freezing, killing and
//! telling processes apart work. Controllers that the real machine gave to v1 (mostly all of
//! them) are missing there, so it is also a machine that can't hold a limit.

use std::process::Command;

/// `command` in a new one. Its process id stays that of the program: nobody forks.
pub(super) fn found(command: &Command) -> Command {
    // All of v1 goes first: whoever looks at the mounts must not find it below.
    let mount = "umount -R /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$0\" \"$@\"";
    let arguments = ["--mount", "--propagation", "private", "sh", "-c", mount];
    wrapped("unshare", arguments.map(str::to_owned).to_vec(), command)
}

/// `command` in the one that this process is in. Its process id stays that of the program.
pub(super) fn enter(pid: i32, command: &Command) -> Command {
    let mut arguments = vec![format!("--mount=/proc/{pid}/ns/mnt")];
    // Entering forgets the working directory.
    if let Some(folder) = command.get_current_dir() {
        arguments.push(format!("--wd={}", folder.display()));
    }
    arguments.push("--".to_owned());
    wrapped("nsenter", arguments, command)
}

fn wrapped(outer: &str, arguments: Vec<String>, command: &Command) -> Command {
    let mut whole = Command::new(outer);
    whole.args(arguments).arg(command.get_program()).args(command.get_args());
    // A command can't be asked whether it starts from an empty environment; this one always does.
    whole.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            whole.env(name, value);
        }
    }
    if let Some(folder) = command.get_current_dir() {
        whole.current_dir(folder);
    }
    whole
}
