//! The limits of a guest, read back from its cgroup: an engine drops what it can't do with no
//! more than a warning, and a limit that is not there is refused here (invariant 9).

use std::fs;
use std::io;

use super::cgroup::{Cgroup, Controller};
use super::error::EngineError;
use super::plan::GuestPlan;

/// What the kernel holds a guest to. `None`: no limit at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Found {
    /// Bytes.
    pub memory: Option<u64>,
    /// Thousandths of a CPU.
    pub milli_cpus: Option<u64>,
    pub pids: Option<u64>,
    /// Bytes on top of `memory`. Where the kernel does not count swap and there is some, `None`.
    pub swap: Option<u64>,
    /// Thousandths of the weight that a group has by default.
    pub cpu_weight: Option<u64>,
    /// The same for disks; most kernels have none, and nothing is refused for it.
    pub io_weight: Option<u64>,
}

/// A guest's weights in thousandths of the default: the lowest that either version can say.
const LOWEST_CPU: u64 = 10;
const LOWEST_IO: u64 = 100;

impl Cgroup {
    pub fn limits(&self) -> io::Result<Found> {
        let memory = memory(&self.memory)?;
        Ok(Found {
            memory,
            milli_cpus: cpus(&self.cpu)?,
            pids: pids(&self.pids)?,
            swap: swap(&self.memory, memory)?,
            cpu_weight: cpu_weight(&self.cpu)?,
            io_weight: self.io.as_ref().map(io_weight).transpose()?.flatten(),
        })
    }
}

/// Refuses a guest that runs under less than its plan says, and names the fix.
pub fn check(plan: &GuestPlan, found: &Found) -> Result<(), EngineError> {
    let wanted = [
        (
            "memory",
            found.memory,
            plan.memory,
            "enable the memory cgroup on the kernel's command line: cgroup_enable=memory",
        ),
        (
            "CPU time",
            found.milli_cpus,
            u64::from(plan.cpus) * 1000,
            "use a kernel with CONFIG_CFS_BANDWIDTH and the cpu cgroup mounted",
        ),
        (
            "the number of processes",
            found.pids,
            u64::from(plan.pids),
            "use a kernel with CONFIG_CGROUP_PIDS and the pids cgroup mounted",
        ),
        (
            "swap",
            found.swap,
            0,
            "count swap by the kernel's command line: swapaccount=1, or turn swap off: sudo swapoff -a",
        ),
        (
            "the weight of its CPU time",
            found.cpu_weight,
            LOWEST_CPU,
            "use a kernel with CONFIG_FAIR_GROUP_SCHED and the cpu cgroup mounted",
        ),
    ];
    for (what, real, most, fix) in wanted {
        if real.is_none_or(|real| real > most) {
            let real = real.map_or_else(|| "none".to_owned(), |real| real.to_string());
            return Err(EngineError::refused(
                "reading back the guest's limits",
                format!("the limit on {what} should be {most} and is {real}: the engine dropped it; {fix}"),
            ));
        }
    }
    if found.io_weight.is_some_and(|weight| weight > LOWEST_IO) {
        tracing::warn!("the container engine did not lower the weight of the guest's disk I/O");
    }
    Ok(())
}

fn memory(controller: &Controller) -> io::Result<Option<u64>> {
    let file = if controller.v2 { "memory.max" } else { "memory.limit_in_bytes" };
    optional(controller, file).map(|text| text.as_deref().and_then(number))
}

fn pids(controller: &Controller) -> io::Result<Option<u64>> {
    optional(controller, "pids.max").map(|text| text.as_deref().and_then(number))
}

fn cpus(controller: &Controller) -> io::Result<Option<u64>> {
    if controller.v2 {
        return Ok(optional(controller, "cpu.max")?.as_deref().and_then(cpu_max));
    }
    let quota = optional(controller, "cpu.cfs_quota_us")?;
    let period = optional(controller, "cpu.cfs_period_us")?;
    Ok(quota.zip(period).and_then(|(quota, period)| milli(&quota, &period)))
}

/// v1 limits memory and swap together.
fn swap(controller: &Controller, memory: Option<u64>) -> io::Result<Option<u64>> {
    let file = if controller.v2 { "memory.swap.max" } else { "memory.memsw.limit_in_bytes" };
    let Some(text) = optional(controller, file)? else {
        // A machine without swap needs no limit on it.
        return Ok((!machine_has_swap()).then_some(0));
    };
    let limit = number(&text);
    if controller.v2 {
        return Ok(limit);
    }
    Ok(limit.zip(memory).map(|(both, memory)| both.saturating_sub(memory)))
}

/// What can't be read is as bad as some.
pub(super) fn machine_has_swap() -> bool {
    has_swap(&fs::read_to_string("/proc/swaps").unwrap_or_default())
}

/// `swaps` is /proc/swaps: a line of titles, then one for each place.
fn has_swap(swaps: &str) -> bool {
    swaps.lines().count() != 1
}

fn cpu_weight(controller: &Controller) -> io::Result<Option<u64>> {
    let (file, default) = if controller.v2 { ("cpu.weight", 100) } else { ("cpu.shares", 1024) };
    Ok(optional(controller, file)?.as_deref().and_then(number).map(|weight| weight * 1000 / default))
}

/// `default 10`, or the number alone. Which file there is depends on the scheduler of the disks.
fn io_weight(controller: &Controller) -> io::Result<Option<u64>> {
    let files: &[(&str, u64)] = if controller.v2 {
        &[("io.bfq.weight", 100), ("io.weight", 100)]
    } else {
        &[("blkio.bfq.weight", 100), ("blkio.weight", 500)]
    };
    for (file, default) in files {
        if let Some(text) = optional(controller, file)? {
            let first = text.lines().next().unwrap_or_default();
            return Ok(number(first.trim_start_matches("default")).map(|weight| weight * 1000 / default));
        }
    }
    Ok(None)
}

/// A file that is not there is a limit that is not there.
fn optional(controller: &Controller, file: &str) -> io::Result<Option<String>> {
    match fs::read_to_string(controller.folder.join(file)) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound && controller.folder.exists() => Ok(None),
        Err(e) => Err(e),
    }
}

/// `max`, and on v1 a number near the largest there is, mean no limit.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|limit| *limit < 1 << 62)
}

/// `quota period` or `max period`.
fn cpu_max(text: &str) -> Option<u64> {
    let (quota, period) = text.trim().split_once(' ')?;
    milli(quota, period)
}

/// A quota of -1 is no limit.
fn milli(quota: &str, period: &str) -> Option<u64> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok()?;
    quota.checked_mul(1000)?.checked_div(period)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::container::plan::tests::plan;

    #[test]
    fn a_limit_that_the_engine_dropped_refuses_the_job_and_names_the_fix() {
        let plan = plan();
        let good = Found {
            memory: Some(plan.memory),
            milli_cpus: Some(u64::from(plan.cpus) * 1000),
            pids: Some(u64::from(plan.pids)),
            swap: Some(0),
            cpu_weight: Some(10),
            io_weight: None,
        };
        check(&plan, &good).unwrap();
        for (bad, word) in [
            (Found { memory: None, ..good }, "cgroup_enable=memory"),
            (Found { memory: Some(plan.memory + 1), ..good }, "memory"),
            (Found { milli_cpus: None, ..good }, "CPU time"),
            (Found { pids: None, ..good }, "CONFIG_CGROUP_PIDS"),
            (Found { swap: None, ..good }, "swapaccount=1"),
            (Found { swap: Some(4096), ..good }, "swapoff"),
            (Found { cpu_weight: None, ..good }, "CONFIG_FAIR_GROUP_SCHED"),
            (Found { cpu_weight: Some(1000), ..good }, "weight of its CPU"),
        ] {
            let error = check(&plan, &bad).unwrap_err();
            assert!(!error.is_away() && error.to_string().contains(word), "{error}");
        }
    }

    #[test]
    fn both_forms_of_a_limit_are_read() {
        assert_eq!(number("8589934592\n"), Some(8 << 30));
        assert_eq!(number("9223372036854771712\n"), None, "v1 without a limit");
        assert_eq!(number("max\n"), None);
        assert_eq!(cpu_max("200000 100000\n"), Some(2000));
        assert_eq!(cpu_max("max 100000\n"), None);
        assert_eq!(milli("-1\n", "100000\n"), None);
        assert_eq!(milli("1", "0"), None);
    }

    /// What runc writes for the plan's weights, in each version's own scale.
    #[test]
    fn swap_and_weights_are_read_in_both_forms() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(folder.path().join(file), text).unwrap();
        let (v1, v2) = (
            Controller { folder: folder.path().to_owned(), v2: false },
            Controller { folder: folder.path().to_owned(), v2: true },
        );
        assert_eq!(swap(&v1, Some(100)).unwrap(), (!machine_has_swap()).then_some(0), "not counted");
        write("memory.memsw.limit_in_bytes", "150\n");
        write("memory.swap.max", "max\n");
        assert_eq!((swap(&v1, Some(100)).unwrap(), swap(&v1, None).unwrap()), (Some(50), None));
        assert_eq!(swap(&v2, Some(100)).unwrap(), None);
        write("memory.swap.max", "0\n");
        assert_eq!(swap(&v2, Some(100)).unwrap(), Some(0));
        assert_eq!(cpu_weight(&v1).unwrap(), None);
        write("cpu.shares", "2\n");
        write("cpu.weight", "1\n");
        assert_eq!((cpu_weight(&v1).unwrap(), cpu_weight(&v2).unwrap()), (Some(1), Some(10)));
        assert_eq!(io_weight(&v2).unwrap(), None);
        write("blkio.bfq.weight", "10\n");
        write("io.weight", "default 100\n8:0 50\n");
        assert_eq!((io_weight(&v1).unwrap(), io_weight(&v2).unwrap()), (Some(100), Some(1000)));
        assert!(
            has_swap("Filename Type\n/dev/sda2 partition\n") && has_swap("") && !has_swap("Filename Type\n")
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = (number(&text), cpu_max(&text), milli(&text, &text));
        }
    }
}
