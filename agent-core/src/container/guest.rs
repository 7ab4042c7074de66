//! The containers of this device: made, started, looked at, ended, removed.
//!
//! Whatever ends or removes first makes sure of the label: an id that is somebody else's is
//! refused, whoever handed it in (F02).

use std::collections::HashMap;

use bollard::models::ContainerInspectResponse;
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, KillContainerOptions, ListContainersOptions,
    RemoveContainerOptions, StartContainerOptions,
};
use gpunion_protocol::ids::AttemptRef;

use super::calls::{Engine, LONG, SHORT, within, within_optional};
use super::error::EngineError;
use super::image::LocalImage;
use super::labels::{self, Kind};
use super::plan::GuestPlan;

/// A container as the engine sees it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestState {
    pub id: String,
    pub running: bool,
    /// False: made and never started.
    pub started: bool,
    /// The host's pid of its first process, while it runs.
    pub pid: Option<u32>,
    /// What the engine saw; only init's report is the program's own end.
    pub exit_code: Option<i64>,
    /// The engine's own words when it could not start it.
    pub error: String,
}

/// One container that carries this device's label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ours {
    pub id: String,
    pub kind: Kind,
    pub attempt: Option<AttemptRef>,
    pub running: bool,
    /// A helper that nobody here talks to: its agent has died, or it could not be removed while
    /// the engine was away.
    pub orphan: bool,
}

impl Engine {
    /// Makes the guest and answers its id. A guest of the same attempt that does not run is made
    /// anew; one that did start is answered as it is.
    pub async fn create_guest(&self, plan: &GuestPlan) -> Result<String, EngineError> {
        const DOING: &str = "making the guest";
        plan.check()?;
        let name = labels::guest_name(self.device(), &plan.attempt);
        if let Some(found) = self.inspect(DOING, &name).await? {
            self.must_be_ours(DOING, &found)?;
            let state = state_of(&found);
            // One that has ended before its turn came has never begun its program.
            if state.running {
                return Ok(state.id);
            }
            self.remove_guest(&state.id).await?;
        }
        let image = self.image(&plan.image_id).await?.ok_or_else(|| {
            EngineError::refused(
                DOING,
                format!("the engine does not have the image {} any more", plan.image_id),
            )
        })?;
        runs_here(&image)?;
        let body = plan.body(self.device(), &image.volumes);
        let options = CreateContainerOptions { name: Some(name), ..CreateContainerOptions::default() };
        let made =
            within(DOING, LONG, self.client(DOING).await?.create_container(Some(options), body)).await?;
        for warning in &made.warnings {
            tracing::warn!(container = %made.id, "the container engine warns: {warning}");
        }
        Ok(made.id)
    }

    /// Starting what runs is no error.
    pub async fn start_guest(&self, id: &str) -> Result<(), EngineError> {
        const DOING: &str = "starting the guest";
        let call = self.client(DOING).await?.start_container(id, None::<StartContainerOptions>);
        within(DOING, LONG, call).await
    }

    /// `None`: the engine has no such container.
    pub async fn inspect_guest(&self, id: &str) -> Result<Option<GuestState>, EngineError> {
        Ok(self.inspect("looking at the guest", id).await?.map(|found| state_of(&found)))
    }

    /// Ends it by the engine's own kill. Nothing to kill is no error.
    pub async fn kill_guest(&self, id: &str) -> Result<(), EngineError> {
        const DOING: &str = "ending the guest";
        let Some(found) = self.inspect(DOING, id).await? else { return Ok(()) };
        self.must_be_ours(DOING, &found)?;
        if !state_of(&found).running {
            return Ok(());
        }
        let options = KillContainerOptions { signal: "SIGKILL".to_owned() };
        match within_optional(DOING, LONG, self.client(DOING).await?.kill_container(id, Some(options))).await
        {
            Ok(_) => Ok(()),
            // It may have ended between the two calls; the engine calls that a conflict.
            Err(EngineError::Refused { reason, .. }) if reason.contains("is not running") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Removes it, running or not. Nothing to remove is no error. Its workspace and inputs stay;
    /// nameless volumes that its image asked for go with it.
    pub async fn remove_guest(&self, id: &str) -> Result<(), EngineError> {
        const DOING: &str = "removing the container";
        let Some(found) = self.inspect(DOING, id).await? else { return Ok(()) };
        self.must_be_ours(DOING, &found)?;
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        match within_optional(DOING, LONG, self.client(DOING).await?.remove_container(id, Some(options)))
            .await
        {
            Ok(_) => Ok(()),
            Err(EngineError::Refused { reason, .. }) if reason.contains("already in progress") => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// All containers that carry this device's label, running or not.
    pub async fn list_ours(&self) -> Result<Vec<Ours>, EngineError> {
        const DOING: &str = "listing our containers";
        let options = ListContainersOptions {
            all: true,
            filters: Some(self.our_label()),
            ..ListContainersOptions::default()
        };
        let listed = within(DOING, SHORT, self.client(DOING).await?.list_containers(Some(options))).await?;
        Ok(listed
            .into_iter()
            .filter_map(|container| {
                let labels = container.labels.unwrap_or_default();
                // The filter is the engine's; whose it is, is our own business.
                if !labels::are_ours(self.device(), &labels) {
                    return None;
                }
                let running = container
                    .state
                    .map(|state| state.to_string())
                    .is_some_and(|state| matches!(state.as_str(), "running" | "paused" | "restarting"));
                let kind = labels::kind(&labels)?;
                let talked_to = || labels.get(labels::TALK).is_some_and(|t| self.helpers().contains(t));
                Some(Ours {
                    id: container.id?,
                    kind,
                    orphan: kind == Kind::Helper && !talked_to(),
                    attempt: labels::attempt(&labels),
                    running,
                })
            })
            .collect())
    }

    pub(super) fn our_label(&self) -> HashMap<String, Vec<String>> {
        [("label".to_owned(), vec![format!("{}={}", labels::DEVICE, self.device())])].into()
    }

    async fn inspect(
        &self,
        doing: &'static str,
        id: &str,
    ) -> Result<Option<ContainerInspectResponse>, EngineError> {
        let call = self.client(doing).await?.inspect_container(id, None::<InspectContainerOptions>);
        within_optional(doing, SHORT, call).await
    }

    fn must_be_ours(&self, doing: &'static str, found: &ContainerInspectResponse) -> Result<(), EngineError> {
        let labels = found.config.as_ref().and_then(|config| config.labels.clone()).unwrap_or_default();
        if labels::are_ours(self.device(), &labels) {
            return Ok(());
        }
        let name = found.name.as_deref().unwrap_or("?");
        Err(EngineError::refused(
            doing,
            format!("the container {name} is not this device's; it stays as it is"),
        ))
    }
}

fn runs_here(image: &LocalImage) -> Result<(), EngineError> {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    if image.architecture.is_empty() || image.architecture == here {
        return Ok(());
    }
    let reason = format!("the image is for {} and this machine is {here}", image.architecture);
    Err(EngineError::refused("making the guest", reason))
}

fn state_of(found: &ContainerInspectResponse) -> GuestState {
    let state = found.state.clone().unwrap_or_default();
    let running = state.running.unwrap_or(false);
    // The engine's word for "never" is the year 1.
    let started =
        running || state.started_at.as_deref().is_some_and(|at| !at.is_empty() && !at.starts_with("0001-"));
    GuestState {
        id: found.id.clone().unwrap_or_default(),
        running,
        started,
        pid: state.pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0 && running),
        exit_code: if running || !started { None } else { state.exit_code },
        error: state.error.unwrap_or_default(),
    }
}
