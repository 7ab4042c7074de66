//! `gpunion`: a thin client of the agent's local API; hosts the agent and the relay too.
//!
//! No rule lives here. It asks, shows and exits with a code that scripts can act on: 0 done,
//! 1 failed, 2 usage, 3 not reachable, 4 refused, 5 not verified.

mod agent;
mod api;
mod args;
mod contacts;
mod failure;
mod fetch;
mod group;
mod install;
mod jobs;
mod logs;
mod machine;
mod out;
mod preview;
mod prompt;
mod reclaim;
mod relay;
mod rules;
mod run;
mod send;
mod show;
mod up;

use std::process::ExitCode;

use args::{AgentRun, AgentWhat, Args, Command};
use clap::Parser as _;
use failure::Failure;
use out::Out;

/// Threads that do what waits, at most. On a machine with a hundred cores one for each would only be
/// a hundred stacks and heaps of an owner's memory; what computes runs on threads of its own.
const WORKERS: usize = 4;

fn main() -> ExitCode {
    if let Some(code) = reclaim::hand::was_wanted() {
        return code;
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return misused(&error),
    };
    let out = Out::new(args.json);
    let workers = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(WORKERS));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return out.fail(&Failure::failed(format!("no threads can be started ({error})"))),
    };
    let done = runtime.block_on(perform(args, &out));
    // A thread that still waits for a keyring must not hold up the end.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(failure) => out.fail(&failure),
    }
}

/// `--help` and `--version` come this way too, and are no failure.
fn misused(error: &clap::Error) -> ExitCode {
    let json = std::env::args_os().take_while(|word| word != "--").any(|word| word == "--json");
    if json && error.use_stderr() {
        return Out::new(true).fail(&Failure::misused(error));
    }
    let _ = error.print();
    ExitCode::from(if error.use_stderr() { failure::USAGE } else { 0 })
}

async fn perform(args: Args, out: &Out) -> Result<ExitCode, Failure> {
    let place = args.place.clone();
    match args.command {
        Command::Up(up) => up::up(&place, up, out).await,
        Command::Relay(command) => relay::relay(command, out).await,
        Command::Agent(AgentRun { what: None, agent }) => agent::agent(&place, agent).await,
        Command::Agent(AgentRun { what: Some(AgentWhat::Install(asked)), .. }) => {
            install::agent(&place, asked, out).await
        }
        Command::Join(join) => group::join(&place, join, out).await,
        Command::LeaveGroup => group::leave(&place, out).await,
        Command::Invite(invite) => group::invite(&place, invite, out).await,
        Command::Members => group::members(&place, out).await,
        Command::Share(share) => machine::share(&place, share, out).await,
        Command::Pause(pause) => machine::pause(&place, pause, out).await,
        Command::Rules(rules) => rules::rules(&place, rules, out).await,
        Command::Wipe => machine::wipe(&place, out).await,
        Command::Reclaim(reclaim) => reclaim::reclaim(&place, reclaim, out).await,
        Command::Run(thing) => run::run(&place, thing, out).await,
        Command::Submit(thing) => run::submit(&place, thing, out).await,
        Command::Jobs(list) => jobs::list(&place, list, out).await,
        Command::Show(job) => jobs::show(&place, job, out).await,
        Command::Why(job) => jobs::why(&place, job, out).await,
        Command::Logs(logs) => logs::logs(&place, logs, out).await,
        Command::Fetch(fetch) => fetch::fetch(&place, fetch, out).await,
        Command::Cancel(job) => jobs::cancel(&place, job, out).await,
        Command::Gpus(gpus) => machine::gpus(&place, gpus, out).await,
        Command::History => machine::history(&place, out).await,
        Command::Doctor(doctor) => machine::doctor(&place, doctor, out).await,
    }
}
