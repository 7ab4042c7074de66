//! What an agent costs that has nothing to do: 8 stand-in GPUs read once a second, a session with
//! the relay, an open offer.

use std::time::Duration;

use anyhow::{Context as _, Result};
use system_tests::campus::{Campus, GPU_MEMORY};

use crate::cpu::{resident, share_of_a_core};
use crate::table::Table;

const MEMORY_ALLOWED: f64 = 30.0;
const CPU_ALLOWED: f64 = 0.005;
const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn measure(table: &mut Table) -> Result<()> {
    let campus = Campus::new()?;
    let engine = campus.lab.engine("a")?;
    let relay = campus.relay(campus.lab.user("op")?)?;
    let names: Vec<String> = (0..8).map(|n| campus.gpu(&n.to_string())).collect();
    let gpus: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), GPU_MEMORY)).collect();
    let gpus = campus.stand_in("lab-8", &gpus)?;
    let agent = campus.device("lab-8", campus.lab.user("grace")?, &engine.socket(), Some(gpus))?;
    agent.join(&relay.invite("member")?, "grace")?;
    agent.share()?;
    let pid = agent.agent_pid().context("the agent runs")?;
    let cpu = share_of_a_core(pid, MINUTE)?;
    let memory = resident(pid)?;
    let mib = |kib: u64| kib as f64 / 1024.0;
    // One aim for both rows: all of the allowance, and no more.
    table.aimed("agent_rest_memory", mib(memory.all) / MEMORY_ALLOWED, "of 30 MiB", "resident, whole", 1.0);
    table.aimed("agent_rest_cpu", cpu / CPU_ALLOWED, "of 0.5 %", "of a core, over a minute", 1.0);
    table.told("agent_resident", mib(memory.all), "MiB", "program text counted");
    table.told("agent_resident_anonymous", mib(memory.anonymous), "MiB", "heap and stacks");
    table.told("agent_cpu", cpu * 100.0, "% of a core", "8 stand-in GPUs at 1 Hz");
    Ok(())
}
