//! A group of one machine: relay and agent together, in the foreground.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use gpunion_agent_core::agent::{Options, run};
use gpunion_agent_core::config::{GroupFile, Settings};
use gpunion_agent_core::driver::Stop;
use gpunion_protocol::http::{NewInvite, Role};
use gpunion_protocol::local::{JoinRequest, Snapshot};
use gpunion_relay::admin::client;

use crate::agent::{stop_on_signal, trace};
use crate::api::Api;
use crate::args::{Place, Up};
use crate::failure::Failure;
use crate::out::Out;
use crate::relay;

/// An agent that starts answers sooner.
const PATIENCE: Duration = Duration::from_secs(30);

/// What `--json` tells once both run.
#[derive(Debug, serde::Serialize)]
struct Running {
    /// `host:port`
    relay: String,
    /// The agent's socket.
    agent: std::path::PathBuf,
}

pub(crate) async fn up(place: &Place, asked: Up, out: &Out) -> Result<ExitCode, Failure> {
    trace();
    let dirs = place.dirs()?;
    dirs.make_data()?;
    let settings: Settings = asked.agent.settings(&dirs)?;
    let state = dirs.data.join("relay");
    let stop = stop_on_signal()?;
    let mut config = relay::load(&state)?;
    config.group.clone_from(&asked.group);
    let relay = relay::start(config, &asked.listen, stop.clone()).await?;
    let first = relay.operator_invite.as_ref().map(|invite| invite.link().to_owned());
    let address = relay.address;
    let agent = tokio::spawn(run(
        Options { dirs: dirs.clone(), settings },
        // The relay ends with it: its guests could go nowhere.
        Stop { now: stop.clone(), ..Stop::default() },
    ));
    let api = Api::of(dirs.clone())?;
    let joined = async {
        wait_for_agent(&api).await?;
        join(&api, &dirs, &state, first).await
    };
    let mut agent = std::pin::pin!(agent);
    let told = tokio::select! {
        joined = joined => joined.and_then(|()| {
            let running = Running { relay: address.to_string(), agent: dirs.socket.clone() };
            out.answer(&running, |running| format!(
                "a group of this machine runs: relay at {}, agent at {}\nlend its GPUs with `gpunion share on`; {}; Ctrl-C stops \
                 it",
                running.relay,
                running.agent.display(),
                others(address)
            ))
        }),
        ended = &mut agent => {
            stop.cancel();
            relay.stopped().await.map_err(|error| Failure::failed(error.to_string()))?;
            ended.map_err(|error| Failure::failed(error.to_string()))??;
            return Ok(ExitCode::SUCCESS);
        }
    };
    if told.is_err() {
        stop.cancel();
    }
    let ended = agent.await;
    stop.cancel();
    relay.stopped().await.map_err(|error| Failure::failed(error.to_string()))?;
    told?;
    ended.map_err(|error| Failure::failed(error.to_string()))??;
    Ok(ExitCode::SUCCESS)
}

/// Nobody else reaches a relay that listens on this machine's own address.
fn others(relay: SocketAddr) -> String {
    if relay.ip().is_loopback() {
        format!(
            "to let others in, stop it and start it with --listen 0.0.0.0:{}, then `gpunion invite`",
            relay.port()
        )
    } else {
        "invite others with `gpunion invite`".to_owned()
    }
}

async fn wait_for_agent(api: &Api) -> Result<(), Failure> {
    let answers = async {
        while api.get::<Snapshot>("/v1/snapshot").await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, answers)
        .await
        .map_err(|_| Failure::failed("the agent did not start").fix("its log above says why"))
}

/// Joins the machine's own relay, once.
async fn join(
    api: &Api,
    dirs: &gpunion_agent_core::config::Dirs,
    state: &std::path::Path,
    first: Option<String>,
) -> Result<(), Failure> {
    if GroupFile::load(dirs)?.is_some() {
        return Ok(());
    }
    let link = match first {
        Some(link) => link,
        None => {
            let invite = NewInvite { role: Role::Operator, member: None, valid_s: 600 };
            client::invite(state, &invite).await?.link
        }
    };
    let request = JoinRequest { link, member_name: None, device_name: None };
    api.post::<GroupFile>("/v1/join", &request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_invited_only_to_a_relay_that_they_reach() {
        let here = others("127.0.0.1:7443".parse().unwrap());
        assert!(here.contains("--listen 0.0.0.0:7443") && here.contains("gpunion invite"), "{here}");
        assert!(!others("10.0.0.1:7443".parse().unwrap()).contains("--listen"));
    }
}
