//! `agent install` and `relay install`: what starts them at boot, with nobody logged in.
//!
//! With systemd it writes the unit, enables and starts it, and says what it did; without, or
//! without the rights, it prints the unit and says what is left to do. Doing it again does no harm.

mod token;
mod unit;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use gpunion_agent_core::config::Dirs;
use nix::unistd::{Uid, User, geteuid};
use serde::Serialize;

use crate::args::{AgentInstall, Place, RelayInstall, UnitChoice};
use crate::failure::Failure;
use crate::out::Out;
use unit::{Scope, What};

/// Where it stands is where a systemd runs this machine.
const SYSTEMD: &str = "/run/systemd/system";
const SYSTEM_UNITS: &str = "/etc/systemd/system";

/// The answer: what was done, and what is left.
#[derive(Debug, Serialize)]
struct Report {
    unit: &'static str,
    path: PathBuf,
    /// Absent after `--uninstall`.
    text: Option<String>,
    /// It starts with the machine now.
    installed: bool,
    done: Vec<String>,
    to_do: Vec<String>,
}

pub(crate) async fn agent(place: &Place, asked: AgentInstall, out: &Out) -> Result<ExitCode, Failure> {
    let choice = asked.unit.clone();
    let scope = scope(&choice)?;
    let dirs = dirs_of(place, &scope)?;
    let mut report = Report::new(What::Agent, &scope)?;
    if !choice.uninstall {
        let service = main_pid(&scope, What::Agent);
        if geteuid().is_root() && scope != Scope::Mine && !asked.prepare {
            token::prepare_as(&scope, &dirs, &asked.agent, &mut report.done)?;
        } else {
            let (agent, known) = (asked.agent, dirs.clone());
            let prepared = tokio::task::spawn_blocking(move || token::prepare(&known, agent, service));
            report.done.extend(prepared.await.map_err(|error| Failure::failed(error.to_string()))??);
        }
        if asked.prepare {
            out.answer(&report.done, |done| done.join("\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
    }
    let mut command = vec![own_path()?];
    // Where it would be found without being said, nothing is said: the session's socket is found too.
    let said = scope != Scope::Mine || place.is_said();
    if said {
        command.extend(["--data".to_owned(), path_text(&dirs.data)?]);
    }
    if let Some(socket) = &place.socket {
        command.extend(["--socket".to_owned(), path_text(&absolute(socket)?)?]);
    }
    command.extend(["agent".to_owned(), "--token-file".to_owned()]);
    carry_out(What::Agent, &scope, &choice, &command, &dirs.data.join("agent.log"), report, out)
}

pub(crate) fn relay(asked: &RelayInstall, out: &Out) -> Result<ExitCode, Failure> {
    let scope = scope(&asked.unit)?;
    let state = absolute(&asked.serve.state.state)?;
    let mut command =
        vec![own_path()?, "relay".to_owned(), "serve".to_owned(), "--state".to_owned(), path_text(&state)?];
    command.extend(["--listen".to_owned(), asked.serve.listen.clone()]);
    for address in &asked.serve.addresses {
        command.extend(["--address".to_owned(), address.clone()]);
    }
    if let Some(group) = &asked.serve.group {
        command.extend(["--group".to_owned(), group.clone()]);
    }
    let mut report = Report::new(What::Relay, &scope)?;
    if !asked.unit.uninstall {
        let invite = format!("gpunion relay invite --role operator --state {}", state.display());
        report.to_do.push(format!("become its first operator: {invite}, then gpunion join LINK"));
    }
    let log = state.with_extension("log");
    carry_out(What::Relay, &scope, &asked.unit, &command, &log, report, out)
}

impl Report {
    fn new(what: What, scope: &Scope) -> Result<Self, Failure> {
        let folder = match scope {
            Scope::Mine => user_units()?,
            Scope::System { .. } => PathBuf::from(SYSTEM_UNITS),
        };
        let path = folder.join(what.unit());
        Ok(Self {
            unit: what.unit(),
            path,
            text: None,
            installed: false,
            done: Vec::new(),
            to_do: Vec::new(),
        })
    }

    /// stdout is the unit where somebody must put it in its place, else what was done.
    fn tell(self, out: &Out) -> Result<ExitCode, Failure> {
        let waits = !self.installed && self.text.is_some();
        out.answer(&self, |report| match &report.text {
            Some(text) if waits => text.clone(),
            Some(_) | None => report.done.join("\n"),
        })?;
        if waits {
            self.done.iter().for_each(|line| out.say(line));
        }
        self.to_do.iter().for_each(|line| out.say(&format!("to do: {line}")));
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes or removes the unit, or says how.
fn carry_out(
    what: What,
    scope: &Scope,
    choice: &UnitChoice,
    command: &[String],
    log: &Path,
    mut report: Report,
    out: &Out,
) -> Result<ExitCode, Failure> {
    let systemd = Path::new(SYSTEMD).is_dir();
    if choice.uninstall {
        uninstall(what, scope, systemd, &mut report)?;
        return report.tell(out);
    }
    let text = unit::text(what, scope, command);
    report.text = Some(text.clone());
    if !systemd {
        report.to_do.insert(0, format!(
            "there is no systemd here: let what starts programs at boot run it as its user, for instance by crontab -e:\n  {}",
            unit::at_reboot(command, log)
        ));
        return report.tell(out);
    }
    if *scope != Scope::Mine && !geteuid().is_root() {
        report.to_do.insert(
            0,
            format!(
                "as root: write the above to {}, then systemctl daemon-reload && systemctl enable --now {}",
                report.path.display(),
                what.unit()
            ),
        );
        return report.tell(out);
    }
    install(what, scope, &text, &mut report)?;
    report.tell(out)
}

fn install(what: What, scope: &Scope, text: &str, report: &mut Report) -> Result<(), Failure> {
    let there = std::fs::read_to_string(&report.path).ok();
    let changed = there.as_deref() != Some(text);
    if changed {
        let folder = report.path.parent().unwrap_or(Path::new("/"));
        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&report.path, text));
        written.map_err(|error| {
            Failure::failed(format!("{} can't be written ({error})", report.path.display()))
        })?;
        report.done.push(format!("wrote {}", report.path.display()));
    }
    run(&systemctl(scope, &["daemon-reload"]), report)?;
    run(&systemctl(scope, &["enable", "--now", what.unit()]), report)?;
    // One that ran already runs the unit of before.
    if changed && there.is_some() {
        run(&systemctl(scope, &["restart", what.unit()]), report)?;
    }
    if *scope == Scope::Mine {
        // Without it the user's services end with the last login, and do not start at boot.
        run(&["loginctl".to_owned(), "enable-linger".to_owned()], report).map_err(|failure| {
            failure.fix("it runs while you are logged in; for the boot: sudo loginctl enable-linger $USER")
        })?;
    }
    report.installed = true;
    Ok(())
}

fn uninstall(what: What, scope: &Scope, systemd: bool, report: &mut Report) -> Result<(), Failure> {
    let there = report.path.exists();
    if systemd && there {
        run(&systemctl(scope, &["disable", "--now", what.unit()]), report)?;
    }
    match std::fs::remove_file(&report.path) {
        Ok(()) => report.done.push(format!("removed {}", report.path.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            report.done.push(format!("{} is not there", report.path.display()));
        }
        Err(error) => {
            let failure = Failure::failed(format!("{} can't be removed ({error})", report.path.display()));
            return Err(if geteuid().is_root() {
                failure
            } else {
                failure.fix("do it as root: sudo, with the same words")
            });
        }
    }
    if systemd && there {
        run(&systemctl(scope, &["daemon-reload"]), report)?;
    }
    Ok(())
}

fn systemctl(scope: &Scope, words: &[&str]) -> Vec<String> {
    let mut command = vec!["systemctl".to_owned()];
    if *scope == Scope::Mine {
        command.push("--user".to_owned());
    }
    command.extend(words.iter().map(|word| (*word).to_owned()));
    command
}

fn run(words: &[String], report: &mut Report) -> Result<(), Failure> {
    let shown = words.join(" ");
    let Some((program, arguments)) = words.split_first() else { return Ok(()) };
    let output = Command::new(program).args(arguments).stdin(std::process::Stdio::null()).output();
    let output = output.map_err(|error| Failure::failed(format!("{shown} can't be run ({error})")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::failed(format!("{shown} ended with {}: {}", output.status, said.trim())));
    }
    report.done.push(format!("ran {shown}"));
    Ok(())
}

/// The process of the unit that runs now, if any.
fn main_pid(scope: &Scope, what: What) -> Option<u32> {
    if !Path::new(SYSTEMD).is_dir() {
        return None;
    }
    let words = systemctl(scope, &["show", "--property=MainPID", "--value", what.unit()]);
    let output = Command::new(&words[0]).args(&words[1..]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok().filter(|pid| *pid > 0)
}

fn scope(choice: &UnitChoice) -> Result<Scope, Failure> {
    if !choice.system {
        if geteuid().is_root() {
            return Err(Failure::usage(
                "root needs no service of its own: everything of ours runs as an ordinary user",
            )
            .fix("say --system --user NAME"));
        }
        return Ok(Scope::Mine);
    }
    let known = choice.user.clone().or_else(|| std::env::var("SUDO_USER").ok());
    let own = || User::from_uid(geteuid()).ok().flatten().map(|user| user.name);
    let user = known.or_else(own).unwrap_or_default();
    match User::from_name(&user).ok().flatten() {
        None => Err(Failure::usage(format!("there is no user {user:?}")).fix("name one with --user")),
        Some(user) if user.uid.is_root() => {
            Err(Failure::usage("it must not run as root").fix("name an ordinary user with --user NAME"))
        }
        Some(user) if user.uid != geteuid() && !geteuid().is_root() => {
            Err(Failure::usage(format!("only root may install it for {}", user.name))
                .fix("sudo, with the same words"))
        }
        Some(user) => Ok(Scope::System { user: user.name }),
    }
}

/// The data folder of whoever it will run as.
fn dirs_of(place: &Place, scope: &Scope) -> Result<Dirs, Failure> {
    match scope {
        Scope::System { user } if geteuid().is_root() && !place.is_said() => {
            let home = User::from_name(user).ok().flatten().map(|user| user.dir);
            let home =
                home.ok_or_else(|| Failure::usage(format!("{user} has no home; name a folder with --data")))?;
            let data = home.join(".local/share/gpunion");
            Ok(Dirs { socket: data.join("run/agent.sock"), data })
        }
        Scope::Mine | Scope::System { .. } => place.dirs(),
    }
}

fn user_units() -> Result<PathBuf, Failure> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| Failure::usage("there is no HOME to keep a unit in"))?;
    Ok(config.join("systemd/user"))
}

fn own_path() -> Result<String, Failure> {
    let own = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("where this program lies is not known ({error})")))?;
    path_text(&own)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// A unit is text of lines.
fn path_text(path: &Path) -> Result<String, Failure> {
    let text = path.to_str().filter(|text| !text.contains('\n'));
    text.map(str::to_owned).ok_or_else(|| {
        Failure::usage(format!("{} can't be written into a unit; name another place", path.display()))
    })
}

/// For `token`: whose files are written.
fn ids(user: &str) -> Result<(Uid, nix::unistd::Gid, PathBuf), Failure> {
    let found = User::from_name(user).ok().flatten();
    let found = found.ok_or_else(|| Failure::usage(format!("there is no user {user:?}")))?;
    Ok((found.uid, found.gid, found.dir))
}
