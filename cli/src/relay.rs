//! Hosts the relay, and asks the one that runs on this machine.

use std::path::Path;
use std::process::ExitCode;

use gpunion_agent_core::config::files;
use gpunion_relay::admin::{Backup, client};
use gpunion_relay::{Config, Started, launch};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::agent::{stop_on_signal, trace};
use crate::args::{Relay, RelayMembers, RelayServe};
use crate::failure::Failure;
use crate::group;
use crate::install;
use crate::out::Out;
use crate::show;

pub(crate) async fn relay(command: Relay, out: &Out) -> Result<ExitCode, Failure> {
    match command {
        Relay::Serve(serve) => self::serve(serve, out).await,
        Relay::Invite(asked) => {
            if asked.invite.mine {
                return Err(Failure::usage("--mine is for `gpunion invite`, on a device of the group"));
            }
            let made = client::invite(&asked.state.state, &group::wanted(&asked.invite, None)).await?;
            group::tell(&made, out)
        }
        Relay::Members(asked) => members(asked, out).await,
        Relay::Install(asked) => install::relay(&asked, out),
        Relay::Backup(asked) => {
            let path = std::path::absolute(&asked.to).map_err(|error| Failure::usage(error.to_string()))?;
            let done = client::backup(&asked.state.state, &Backup { path }).await?;
            out.answer(&done, |done| {
                let mut text =
                    format!("the database is in {}\ncopy these beside it, after it:\n", done.path.display());
                for path in &done.copy_too {
                    text.push_str(&format!("  {}\n", path.display()));
                }
                text
            })?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Lists who is there, after what was asked for is done.
async fn members(asked: RelayMembers, out: &Out) -> Result<ExitCode, Failure> {
    let state = &asked.state.state;
    let there = client::members(state).await?;
    if let Some(word) = &asked.remove {
        let all = there.iter().map(|member| (member.id.to_string(), member.name.as_str()));
        client::remove_member(state, &one("member", word, all)?).await?;
        out.say(&format!("{} is no member any more", show::clean(word)));
    }
    if let Some(word) = &asked.revoke {
        let devices = there.iter().flat_map(|member| &member.devices).filter(|device| !device.revoked);
        let all = devices.map(|device| (device.id.to_string(), device.name.as_str()));
        client::revoke_device(state, &one("device", word, all)?).await?;
        out.say(&format!("the token of {} is refused from now on", show::clean(word)));
    }
    group::list(&client::members(state).await?, out)
}

/// The id of the only one of this id or name.
fn one<'a>(what: &str, word: &str, all: impl Iterator<Item = (String, &'a str)>) -> Result<String, Failure> {
    let mut found: Vec<String> =
        all.filter(|(id, name)| *id == word || *name == word).map(|(id, _)| id).collect();
    match (found.pop(), found.is_empty()) {
        (Some(id), true) => Ok(id),
        (Some(id), false) => {
            found.push(id);
            Err(Failure::usage(format!("more than one {what} is called {word}"))
                .fix(format!("name the id of one: {}", found.join(", "))))
        }
        (None, _) => Err(Failure::usage(format!("there is no {what} {word}"))
            .fix("`gpunion relay members` lists who is there; add --json for the ids")),
    }
}

/// The first line of `relay serve --json`.
#[derive(Serialize)]
struct Serving<'a> {
    address: String,
    /// Only while nobody has joined.
    operator_invite: Option<&'a str>,
}

async fn serve(asked: RelayServe, out: &Out) -> Result<ExitCode, Failure> {
    trace();
    let mut config = load(&asked.state.state)?;
    if !asked.addresses.is_empty() {
        config.addresses.clone_from(&asked.addresses);
    }
    if let Some(group) = &asked.group {
        config.group.clone_from(group);
    }
    // The file was good when it was read: what is wrong now came with the command.
    config.check().map_err(Failure::usage)?;
    let stop = stop_on_signal()?;
    let started = start(config, &asked.listen, stop).await?;
    let link = started.operator_invite.as_ref().map(|invite| invite.link());
    if let (Some(link), Some(file)) = (link, &asked.invite_file) {
        files::write_whole(file, format!("{link}\n").as_bytes())
            .map_err(|error| Failure::failed(format!("{} can't be written ({error})", file.display())))?;
    }
    let serving = Serving { address: started.address.to_string(), operator_invite: link };
    out.answer(&serving, |serving| match serving.operator_invite {
        Some(link) => format!(
            "the relay answers at {}\njoin as its operator, within a day, with:\n  gpunion join '{link}'",
            serving.address
        ),
        None => format!("the relay answers at {}", serving.address),
    })?;
    started.stopped().await.map_err(|error| Failure::failed(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn load(state: &Path) -> Result<Config, Failure> {
    let state = std::path::absolute(state).map_err(|error| Failure::usage(error.to_string()))?;
    Config::load(state).map_err(|error| Failure::usage(error.to_string()))
}

pub(crate) async fn start(config: Config, listen: &str, stop: CancellationToken) -> Result<Started, Failure> {
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure::failed(format!("nothing can listen at {listen} ({error})"))
            .fix("another relay may run there; choose another place with --listen")
    })?;
    launch(config, listener, stop.cancelled_owned()).await.map_err(|error| Failure::failed(error.to_string()))
}
