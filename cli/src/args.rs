//! What can be said on the command line, with the help that teaches it.

mod install;

use std::path::PathBuf;

use clap::{ArgAction, Parser, Subcommand, ValueEnum};
use gpunion_agent_core::config::dirs::Surroundings;
use gpunion_agent_core::config::settings::TokenStoreChoice;
use gpunion_agent_core::config::{Dirs, Settings};
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::units::{Bytes, Span};

use crate::failure::Failure;
pub(crate) use install::{AgentInstall, AgentRun, AgentWhat, RelayInstall, UnitChoice};

#[derive(Debug, Parser)]
#[command(
    name = "gpunion",
    version,
    about = "Lend GPUs without losing them; run jobs on them that survive",
    arg_required_else_help = true,
    after_help = "Lend this machine's GPUs:\n  gpunion agent &\n  gpunion join 'gpunion://join/…'\n  gpunion share on\n  gpunion \
                  reclaim              have them back, now\n\nUse the group's GPUs:\n  gpunion run my-folder        show what \
                  is sent, send it, follow it\n  gpunion fetch my-folder      get the results\n\nAll on one machine, to try \
                  it:\n  gpunion up\n\nExit codes: 0 done, 1 failed, 2 usage, 3 not reachable, 4 refused, 5 not verified."
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) place: Place,
    /// Print one JSON object a line instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which agent is meant.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// The agent's data folder [env: GPUNION_DATA] [default: ~/.local/share/gpunion]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The agent's socket [env: GPUNION_SOCKET] [default: $XDG_RUNTIME_DIR/gpunion/agent.sock]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
}

impl Place {
    /// Where an agent that runs is met.
    pub(crate) fn agent(&self) -> Result<Dirs, Failure> {
        Dirs::find_agent(self.data.clone(), self.socket.clone(), &Surroundings::of_process())
            .map_err(|error| Failure::usage(format!("{error:#}")))
    }

    /// A place of one's own was named, here or in the environment.
    pub(crate) fn is_said(&self) -> bool {
        self.data.is_some() || std::env::var_os(gpunion_agent_core::config::dirs::ENV_DATA).is_some()
    }

    /// Where an agent is started.
    pub(crate) fn dirs(&self) -> Result<Dirs, Failure> {
        Dirs::find(self.data.clone(), self.socket.clone(), &Surroundings::of_process())
            .map_err(|error| Failure::usage(format!("{error:#}")))
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a relay and an agent together: a group of one machine
    #[command(
        after_help = "Example:\n  gpunion up\n  gpunion run examples/digits     (in another terminal)\n\nCtrl-C stops both."
    )]
    Up(Up),
    /// Run the group's relay, or ask it something
    #[command(subcommand)]
    Relay(Relay),
    /// Run the agent of this machine, in the foreground
    #[command(
        args_conflicts_with_subcommands = true,
        after_help = "Examples:\n  gpunion agent\n  gpunion agent install      starts it with the machine\n\nIt lends GPUs (gpunion \
                            share on), and submits and follows jobs. One agent per data folder."
    )]
    Agent(AgentRun),
    /// Join a group by its invite link
    #[command(
        after_help = "Example:\n  gpunion join 'gpunion://join/3f…?at=relay.lab:7443&pin=…&group=lab' --name Ada\n\nPut \
                            the link in quotes: it holds characters that a shell reads."
    )]
    Join(Join),
    /// Leave the group: this device's token is revoked and forgotten
    LeaveGroup,
    /// Make an invite link for a new member, or for another device of yours
    Invite(Invite),
    /// Who is in the group, with which devices
    Members,
    /// Lend this machine's GPUs, or stop lending; show what is lent
    #[command(
        after_help = "Examples:\n  gpunion share on                       all GPUs\n  gpunion share on --gpu GPU-8a… \
                            --until 18:00\n  gpunion share on --cpus 8 --memory '32 GiB'\n  gpunion share off                \
                            jobs here save, leave, and go on elsewhere\n  gpunion share status\n\nTo have a GPU back now: \
                            gpunion reclaim"
    )]
    Share(Share),
    /// Lend nothing for a while, then again what was lent before
    #[command(
        after_help = "Jobs here save, leave, and go on elsewhere.\n\nExamples:\n  gpunion pause --for 1h\n  gpunion pause \
                            --until 18:00\n  gpunion pause                until you resume\n  gpunion pause --resume\n\nTo have a \
                            GPU back now: gpunion reclaim"
    )]
    Pause(Pause),
    /// The owner's rules, shown and set: hours, own work, battery, temperature
    #[command(
        after_help = "Rules narrow what `share on` lends, and never lend anything themselves. \"default\" sets one \
                            back.\n\nExamples:\n  gpunion rules                                          all of them, and what \
                            each says now\n  gpunion rules hours='Mon-Fri 18:00-08:00; Sat-Sun' zone=Europe/Berlin\n  gpunion rules \
                            own_work=stop own_work_free='10 min'\n  gpunion rules temperature=85/75 power=default"
    )]
    Rules(Rules),
    /// Remove what jobs left on this machine
    #[command(
        after_help = "Inputs and images that came for jobs, unless a job here needs them, and what a reclaimed job left is \
                            not saved for it any more. Jobs that run go on. What nobody has used for a day goes by itself. An image \
                            that was here before is yours and stays."
    )]
    Wipe,
    /// Have the GPUs back now; ends with a receipt
    #[command(
        after_help = "Stops and ends every guest at once, whatever the network, the relay, the container engine or the \
                            agent is doing, and proves that the GPU is free. Exits with 0 only when that is verified, else \
                            with 5.\n\nExamples:\n  gpunion reclaim\n  gpunion reclaim --gpu GPU-8a…"
    )]
    Reclaim(Reclaim),
    /// Submit a job and follow it
    #[command(
        after_help = "Examples:\n  gpunion run .                                 a folder with a gpunion.toml\n  \
                            gpunion run . --image python:3.12-slim -- python train.py\n  gpunion run my/gpunion.toml\n  \
                            gpunion run ghcr.io/lab/trainer:2 -- python train.py --epochs 20\n\nShows what will be sent before anything is. \
                            Values of the spec's [secrets] come from the environment, else from a prompt. Ctrl-C detaches \
                            and does not cancel. Exits with 0 if the job succeeded, 1 if it failed, 130 if you detached."
    )]
    Run(Thing),
    /// Submit a job and return
    #[command(after_help = "Prints the job's id. Then: gpunion logs -f JOB, gpunion fetch JOB")]
    Submit(Thing),
    /// Your jobs
    Jobs(Jobs),
    /// All about one job: its attempts, checkpoints, result
    #[command(after_help = "JOB is an id, the end of one, or a job's name (then the newest of that name).")]
    Show(Job),
    /// Why a job is where it is, in one sentence
    Why(Job),
    /// A job's output
    #[command(
        after_help = "Examples:\n  gpunion logs digits\n  gpunion logs -f digits          follows until the job is over\n\nThe \
                            program's output goes to stdout; marks (a new attempt, dropped output) to stderr."
    )]
    Logs(Logs),
    /// Fetch a job's result into a folder
    #[command(
        after_help = "Examples:\n  gpunion fetch digits                 into ./digits-results\n  gpunion fetch digits out \
                            --checkpoint\n\nA folder that is not empty is left alone unless --overwrite is given."
    )]
    Fetch(Fetch),
    /// Cancel a job
    Cancel(Job),
    /// This machine's GPUs and who uses them
    #[command(after_help = "Examples:\n  gpunion gpus\n  gpunion gpus --watch      goes on until Ctrl-C")]
    Gpus(Gpus),
    /// Who used this machine, when, and the receipts
    History,
    /// What is wrong here, and the exact fix
    Doctor(Doctor),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Up {
    /// Where the relay listens
    #[arg(long, default_value = "127.0.0.1:7443", value_name = "ADDR")]
    pub(crate) listen: String,
    /// How the group is called
    #[arg(long, default_value = "home")]
    pub(crate) group: String,
    #[command(flatten)]
    pub(crate) agent: Agent,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Relay {
    /// Run the relay, in the foreground
    #[command(
        after_help = "Example:\n  gpunion relay serve --state /var/lib/gpunion --listen 0.0.0.0:7443 --address \
                            relay.lab.example:7443 --group lab\n\nPrints the operator's invite link while nobody has joined. \
                            Keep the state folder: it is the group."
    )]
    Serve(RelayServe),
    /// Make an invite link, on the relay's machine
    Invite(RelayInvite),
    /// List the members, on the relay's machine; remove one, or revoke a device
    #[command(
        after_help = "Examples:\n  gpunion relay members --revoke ada-laptop   (a lost machine: its token is refused at \
                            once)\n  gpunion relay members --remove Ada          (her jobs are cancelled, her devices revoked)"
    )]
    Members(RelayMembers),
    /// Write a copy of the relay's database while it runs
    Backup(RelayBackup),
    /// Start the relay with the machine, by a systemd unit
    #[command(
        after_help = "Example:\n  gpunion relay install --state ~/gpunion-relay --address relay.lab.example:7443 --group \
                            lab\n\nWithout a systemd the unit is printed, and what to do instead."
    )]
    Install(RelayInstall),
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct RelayState {
    /// The relay's folder of state
    #[arg(long, value_name = "DIR", default_value = "gpunion-relay")]
    pub(crate) state: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayServe {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// Where to listen
    #[arg(long, default_value = "0.0.0.0:7443", value_name = "ADDR")]
    pub(crate) listen: String,
    /// host:port under which devices reach it, for invite links; may be given more than once
    #[arg(long = "address", value_name = "HOST:PORT")]
    pub(crate) addresses: Vec<String>,
    /// How the group is called
    #[arg(long)]
    pub(crate) group: Option<String>,
    /// Write the operator's invite link to this file (0600) too
    #[arg(long, value_name = "FILE")]
    pub(crate) invite_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayMembers {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// Remove this member, by name or id: their jobs are cancelled, their devices revoked
    #[arg(long, value_name = "MEMBER", conflicts_with = "revoke")]
    pub(crate) remove: Option<String>,
    /// Revoke this device, by name or id: its token is refused from now on
    #[arg(long, value_name = "DEVICE")]
    pub(crate) revoke: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayInvite {
    #[command(flatten)]
    pub(crate) state: RelayState,
    #[command(flatten)]
    pub(crate) invite: Invite,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RelayBackup {
    #[command(flatten)]
    pub(crate) state: RelayState,
    /// The file to write; it must not exist yet
    pub(crate) to: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Member,
    Operator,
}

impl From<Role> for gpunion_protocol::http::Role {
    fn from(role: Role) -> Self {
        match role {
            Role::Member => Self::Member,
            Role::Operator => Self::Operator,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Invite {
    /// What the new member may do
    #[arg(long, value_enum, default_value_t = Role::Member)]
    pub(crate) role: Role,
    /// How long the link is valid, such as "2 h" or "7 d"
    #[arg(long, default_value = "1 d", value_name = "TIME")]
    pub(crate) valid: Span,
    /// For another device of yours instead of a new member (for `gpunion invite`)
    #[arg(long)]
    pub(crate) mine: bool,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Agent {
    /// How this machine is called in the group [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) device_name: Option<String>,
    /// The container engine's socket [default: /var/run/docker.sock]
    #[arg(long, value_name = "PATH", value_parser = engine)]
    pub(crate) engine: Option<PathBuf>,
    /// Another libnvidia-ml than the system's
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
    /// Folder with one folder per stand-in GPU, mounted into guests in place of a GPU
    #[arg(long, value_name = "DIR")]
    pub(crate) standin: Option<PathBuf>,
    /// Keep the device's token in a 0600 file, not in the keyring
    #[arg(long)]
    pub(crate) token_file: bool,
    /// Unix group whose members may look and reclaim
    #[arg(long, value_name = "GROUP")]
    pub(crate) socket_group: Option<String>,
    /// What jobs may reach: "off", "asked" (what their specs name), or names with commas
    /// between, such as "github.com,*.pypi.org" [default: off]
    #[arg(long, value_name = "RULE")]
    pub(crate) egress: Option<EgressRule>,
}

/// A path, or the same as the engine's tools write it.
fn engine(text: &str) -> Result<PathBuf, String> {
    let path = text.strip_prefix("unix://").unwrap_or(text);
    if path.contains("://") {
        return Err(
            "only an engine on this machine can run guests: give the path of its unix socket".to_owned()
        );
    }
    Ok(PathBuf::from(path))
}

impl Agent {
    /// What was said, over what the settings file says.
    pub(crate) fn settings(self, dirs: &Dirs) -> Result<Settings, Failure> {
        let saved = Settings::load(dirs).map_err(|error| Failure::usage(format!("{error:#}")))?;
        let absolute = |path: Option<PathBuf>| path.map(|path| std::path::absolute(&path).unwrap_or(path));
        Ok(saved.with(Settings {
            device_name: self.device_name,
            nvml_library: absolute(self.nvml_library),
            engine: absolute(self.engine),
            standin: absolute(self.standin),
            token_store: if self.token_file { TokenStoreChoice::File } else { TokenStoreChoice::Auto },
            socket_group: self.socket_group,
            egress: self.egress,
            ..Settings::default()
        }))
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Join {
    /// The invite link, in quotes; `-` reads it from stdin
    pub(crate) link: String,
    /// How you want to be called [default: your name on this machine]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How this machine is called in the group [default: its host name]
    #[arg(long, value_name = "NAME")]
    pub(crate) device_name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
    Status,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Share {
    #[arg(value_enum)]
    pub(crate) switch: Switch,
    /// Only this GPU (see gpunion gpus)
    #[arg(long, value_name = "UUID")]
    pub(crate) gpu: Option<String>,
    /// Stop lending at this time of day, such as 18:00
    #[arg(long, value_name = "HH:MM")]
    pub(crate) until: Option<String>,
    /// Most CPUs that all guests together may use
    #[arg(long)]
    pub(crate) cpus: Option<u32>,
    /// Most memory that all guests together may use, such as "32 GiB"
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Bytes>,
    /// Most disk that all guests together may use, such as "100 GiB"
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Bytes>,
    /// Most time that a job gets to save when sharing ends, such as "30 s"; 0 s ends it at once
    #[arg(long, value_name = "TIME")]
    pub(crate) grace: Option<Span>,
    /// After a reclaim, save what a job left in its workspace, or remove it
    #[arg(long, value_name = "on|off")]
    pub(crate) salvage: Option<OnOff>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    /// For so long, such as 1h or "90 min"
    #[arg(long = "for", value_name = "TIME", conflicts_with_all = ["until", "resume"])]
    pub(crate) length: Option<Span>,
    /// Until this time of day, such as 18:00
    #[arg(long, value_name = "HH:MM", conflicts_with = "resume")]
    pub(crate) until: Option<String>,
    /// Lend again now
    #[arg(long)]
    pub(crate) resume: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Rules {
    /// What to set; without any all are shown
    #[arg(value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Reclaim {
    /// Only this GPU (see gpunion gpus)
    #[arg(long, value_name = "UUID")]
    pub(crate) gpu: Option<String>,
    /// Another libnvidia-ml than the system's, when no agent answers
    #[arg(long, value_name = "PATH")]
    pub(crate) nvml_library: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Thing {
    /// A folder, a gpunion.toml, or a container image
    pub(crate) thing: String,
    /// The container image, for a folder without a gpunion.toml
    #[arg(long)]
    pub(crate) image: Option<String>,
    /// How the job is called
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Send without asking
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// The command to run, in place of the spec's
    #[arg(last = true)]
    pub(crate) args: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Jobs {
    /// Only jobs that are not over
    #[arg(long)]
    pub(crate) active: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Job {
    /// An id, the end of one, or a job's name
    pub(crate) job: String,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Logs {
    /// An id, the end of one, or a job's name
    pub(crate) job: String,
    /// Go on until the job is over
    #[arg(long, short, action = ArgAction::SetTrue)]
    pub(crate) follow: bool,
    /// Begin at this byte of the whole output
    #[arg(long, default_value_t = 0, value_name = "BYTE")]
    pub(crate) from: u64,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Fetch {
    /// An id, the end of one, or a job's name
    pub(crate) job: String,
    /// Where to [default: ./NAME-results]
    pub(crate) dir: Option<PathBuf>,
    /// The newest checkpoint instead of the result
    #[arg(long)]
    pub(crate) checkpoint: bool,
    /// Write over files that are there
    #[arg(long)]
    pub(crate) overwrite: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Gpus {
    /// Show every change as it comes
    #[arg(long, short)]
    pub(crate) watch: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) agent: Agent,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn arguments_of_the_job_are_its_own() {
        let args =
            Args::try_parse_from(["gpunion", "run", ".", "--yes", "--", "python", "-c", "1", "--json"])
                .unwrap();
        let Command::Run(thing) = args.command else { panic!("not run") };
        assert_eq!(thing.args, ["python", "-c", "1", "--json"]);
        assert!(!args.json && thing.yes);
    }

    #[test]
    fn an_engine_elsewhere_is_refused() {
        assert_eq!(engine("unix:///run/x.sock").unwrap(), PathBuf::from("/run/x.sock"));
        assert!(engine("tcp://other:2375").is_err());
    }
}
