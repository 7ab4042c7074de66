//! Whose process is it: pid to start time and container, out of /proc.
//!
//! The parsers are pure; the readers are thin and never follow a path that a guest chose. They
//! need no right: `/proc/PID/stat` and `/proc/PID/cgroup` are readable by every user, on
//! cgroup v1 and v2.

use std::fs;

/// The container id (64 hex digits) of a process, when it runs in one.
pub fn container_of(pid: u32) -> Option<String> {
    container_in_cgroup(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// When a process started, in clock ticks since boot. With the pid it names a process for ever.
pub fn start_time(pid: u32) -> Option<u64> {
    start_time_in_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Start time and container of one and the same process: a pid that was taken over between the
/// two readings is told as nobody's.
pub fn process_identity(pid: u32) -> (Option<u64>, Option<String>) {
    let before = start_time(pid);
    let container = container_of(pid);
    if before.is_some() && start_time(pid) == before { (before, container) } else { (None, None) }
}

/// The innermost container named in `/proc/PID/cgroup`: engines with the cgroupfs driver
/// (`/docker/ID`), with systemd (`docker-ID.scope`), Podman (`libpod-ID.scope`), containerd.
fn container_in_cgroup(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        path.rsplit('/').find_map(container_in_part).map(str::to_owned)
    })
}

fn container_in_part(part: &str) -> Option<&str> {
    // Podman's monitor has the container's id in its name and is no part of the container.
    if part.starts_with("libpod-conmon-") {
        return None;
    }
    // What the kernel adds while a process outlives its removed cgroup.
    let part = part.strip_suffix(" (deleted)").unwrap_or(part);
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let id = part.rsplit(['-', ':']).next()?;
    (id.len() == 64 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))).then_some(id)
}

/// Field 22 of `/proc/PID/stat`. The name in field 2 may hold spaces and brackets.
fn start_time_in_stat(text: &str) -> Option<u64> {
    let after_name = text.get(text.rfind(')')? + 1..)?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const OUTER: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    #[test]
    fn finds_the_container_in_every_form() {
        let forms = [
            format!("0::/system.slice/docker-{ID}.scope\n"),
            format!("0::/docker/{ID}\n"),
            format!("0::/system.slice/docker-{ID}.scope (deleted)\n"),
            format!("0::/docker/{OUTER}/docker/{ID}\n"),
            format!("13:misc:/\n12:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n"),
            format!("5:cpu,cpuacct:/system.slice/docker-{ID}.scope\n"),
            format!("0::/machine.slice/libpod-{ID}.scope/container\n"),
            format!("0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope\n"),
            format!("0::/libpod_parent/libpod-{ID}\n"),
            format!("0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope\n"),
            format!("1:cpu:/kubepods/pod1:cri-containerd:{ID}\n"),
            format!("0::/docker/{ID}/made-by-the-guest\n"),
        ];
        for form in forms {
            assert_eq!(container_in_cgroup(&form).as_deref(), Some(ID), "{form}");
        }
    }

    #[test]
    fn finds_none_where_there_is_none() {
        let forms = [
            "0::/user.slice/user-1000.slice/session-2.scope\n".to_owned(),
            "0::/\n".to_owned(),
            String::new(),
            format!("0::/machine.slice/libpod-conmon-{ID}.scope\n"),
            format!("0::/docker/{}\n", &ID[..63]),
            format!("0::/docker/{}\n", ID.to_uppercase()),
        ];
        for form in forms {
            assert_eq!(container_in_cgroup(&form), None, "{form}");
        }
    }

    #[test]
    fn start_time_is_read_behind_a_hostile_name() {
        let rest: Vec<String> = (4..=52).map(|n| n.to_string()).collect();
        let text = format!("77 (a) R 1 (b c) S {}\n", rest.join(" "));
        assert_eq!(start_time_in_stat(&text), Some(22));
        assert_eq!(start_time_in_stat("77 (a"), None);
        assert_eq!(start_time_in_stat("77 (a) S 1 2"), None);
    }

    #[test]
    fn knows_this_very_process() {
        let (start, _) = process_identity(std::process::id());
        assert!(start.is_some());
        assert_eq!(process_identity(u32::MAX), (None, None));
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_parsers(text in "\\PC{0,300}") {
            let _ = start_time_in_stat(&text);
            if let Some(id) = container_in_cgroup(&text) {
                prop_assert_eq!(id.len(), 64);
            }
        }
    }
}
