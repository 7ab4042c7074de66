//! Memory and CPU time of a process, from /proc; and the clock of this program.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use system_tests::interrupt;

/// Resident memory of a process, in KiB.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Resident {
    pub(crate) all: u64,
    /// Not backed by a file: heap and stacks, without the program's own text.
    pub(crate) anonymous: u64,
}

pub(crate) fn resident(pid: i32) -> Result<Resident> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = |name: &str| -> Result<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let text = line.and_then(|line| line.split_whitespace().next());
        text.and_then(|text| text.parse().ok()).with_context(|| format!("{name} of process {pid}"))
    };
    Ok(Resident { all: field("VmRSS:")?, anonymous: field("RssAnon:")? })
}

/// CPU time that a process has used so far, of all its threads, in seconds.
pub(crate) fn cpu_seconds(pid: i32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let (_, after_name) = stat.rsplit_once(')').context("no stat of a process")?;
    // Fields 14 and 15, counted from the name, which is field 2.
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    let per_second = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK)?.context("ticks a second")?;
    Ok(ticks as f64 / per_second as f64)
}

/// Share of one core that a process uses while `wait` goes by, and how long that was.
pub(crate) fn share_of_a_core(pid: i32, wait: Duration) -> Result<f64> {
    let (began, before) = (now(), cpu_seconds(pid)?);
    interrupt::wait(wait)?;
    Ok((cpu_seconds(pid)? - before) / began.elapsed().as_secs_f64())
}

#[expect(clippy::disallowed_methods, reason = "measures a real machine")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

pub(crate) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
