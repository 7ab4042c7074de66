//! Work that owners' departures cost jobs, in the simulated world: ours against what the same departures
//! would have cost a queue that starts a job again, and one that checkpoints each ten minutes.
//!
//! The relay and the agents are the product's own machines; owners, programs, network and disks are made
//! up (`sim/owners.rs`, `sim/lost.rs`). It is the same on any machine.

use anyhow::{Result, anyhow};
use system_tests::interrupt::go_on;
use system_tests::sim::{LostWork, lost_work};

use crate::table::Table;

const SEEDS: u64 = 2;
/// Monday and Tuesday, by the model.
const HOURS: u64 = 48;

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let mut all = LostWork::default();
    for seed in 1..=SEEDS {
        go_on()?;
        all.add(&lost_work(seed, HOURS).map_err(|what| anyhow!(what))?);
    }
    let seconds = |ms: u64| ms as f64 / 1_000.0;
    let against = |what: &str, ms: u64| format!("{what}, {:.0} s lost", seconds(ms));
    let part = |of: u64| all.ours as f64 / of as f64;
    let scratch = against("requeue from scratch", all.scratch);
    table.aimed("lost_work_vs_scratch", part(all.scratch), "x", &scratch, 0.1);
    let fixed = against("a checkpoint each 10 min", all.fixed);
    table.aimed("lost_work_vs_fixed", part(all.fixed), "x", &fixed, 0.5);
    let ended = format!("{} attempts ended by {} departures", all.ended, all.departures);
    table.told("lost_work", seconds(all.ours), "s", &ended);
    table.told("lost_work_reclaimed", seconds(all.ours_reclaimed), "s", "of it, after a reclaim");
    table.told("lost_work_left", seconds(all.ours_left), "s", "of it, after a notice");
    table.told("lost_work_vanished", seconds(all.ours_vanished), "s", "of it, asleep, or without power");
    let share = 100.0 * all.ours as f64 / all.done as f64;
    table.told("lost_work_of_all", share, "%", "of all that was computed");
    Ok(())
}
