//! The one picture of this machine that faces show, put together from the machine's state.

use std::path::PathBuf;

use gpunion_protocol::gpu::GpuSource;
use gpunion_protocol::local::{AgentStatus, EngineStatus, GpuStatus, GroupStatus, GuestStatus, Snapshot};
use gpunion_protocol::time::Now;
use gpunion_protocol::units::Span;

use crate::config::{GroupFile, Locked, Membership};
use crate::container::{EngineFacts, GpuWay};
use crate::provider::event::Engine;
use crate::provider::{Attempt, Provider};
use crate::relay_link::session::LinkStatus;

/// What the driver knows beside the machine.
#[derive(Debug, Clone)]
pub struct Around {
    pub device_name: String,
    pub data: PathBuf,
    pub membership: Option<std::sync::Arc<Membership>>,
    /// A membership whose token can't be had for now.
    pub locked: Option<std::sync::Arc<Locked>>,
    pub link: LinkStatus,
    pub facts: Option<EngineFacts>,
}

/// `version` is set by whoever publishes it.
pub fn snapshot(provider: &Provider, around: &Around, now: Now) -> Snapshot {
    let view = provider.gpu_view().clone().aged(now.boot);
    let gpus = view.gpus.values().map(|sample| GpuStatus {
        sample: sample.clone(),
        wish: provider.wish_of(&sample.uuid),
        kept: provider.kept_because(&sample.uuid),
        lent_to: provider
            .attempts()
            .find(|a| a.uses_gpus() && a.record.assignment.gpus.contains(&sample.uuid))
            .map(|a| a.name().clone()),
    });
    Snapshot {
        version: 0,
        agent: AgentStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            device_name: around.device_name.clone(),
            data: around.data.clone(),
            token_in: around.group().map_or("none", |group| group.token_in.word()).to_owned(),
        },
        group: group(around),
        share: provider.share_status(),
        engine: engine(provider, around.facts.as_ref()),
        gpus_absent: match &view.source {
            GpuSource::None { sentence } => Some(sentence.clone()),
            GpuSource::Ready { .. } => None,
        },
        gpus: gpus.collect(),
        guests: provider.attempts().filter(|a| !a.record.phase.is_over()).map(guest).collect(),
        last_receipt: provider.last_receipt().cloned(),
    }
}

impl Around {
    fn group(&self) -> Option<&GroupFile> {
        let member = self.membership.as_ref().map(|member| &member.group);
        member.or_else(|| self.locked.as_ref().map(|locked| &locked.group))
    }
}

fn group(around: &Around) -> Option<GroupStatus> {
    let file = around.group()?;
    let (connected, mut trouble) = match &around.link {
        LinkStatus::Up => (true, None),
        LinkStatus::NoGroup | LinkStatus::Connecting => (false, None),
        LinkStatus::Down { problem } => (false, Some(problem.to_string())),
    };
    if let Some(locked) = &around.locked {
        trouble = Some(format!("{}; {}", locked.why, locked.fix()));
    }
    let known = file.addresses.first().cloned().unwrap_or_default();
    Some(GroupStatus {
        name: file.group.clone(),
        member: file.member.clone(),
        member_name: file.member_name.clone(),
        role: file.role,
        device: file.device.clone(),
        relay: around.membership.as_ref().map_or(known, |member| member.client.address().to_owned()),
        connected,
        trouble,
    })
}

fn engine(provider: &Provider, facts: Option<&EngineFacts>) -> EngineStatus {
    match (provider.engine(), facts) {
        (Engine::Unknown { why }, _) => EngineStatus::Unknown { why: why.clone() },
        (Engine::Known { .. }, Some(facts)) => EngineStatus::Ready {
            name: facts.name.clone(),
            version: facts.version.clone(),
            gpu: match &facts.gpu_way {
                GpuWay::Cdi => "by CDI".to_owned(),
                GpuWay::DeviceRequest => "by device request".to_owned(),
                GpuWay::Runtime => "by the runtime nvidia".to_owned(),
                GpuWay::StandIn { .. } => "stand-in".to_owned(),
                GpuWay::None { why } => format!("not for guests: {why}"),
            },
        },
        (Engine::Known { .. }, None) => EngineStatus::Unknown { why: "it is being asked".to_owned() },
    }
}

fn guest(attempt: &Attempt) -> GuestStatus {
    let assignment = &attempt.record.assignment;
    let checkpoint = attempt.last_checkpoint();
    GuestStatus {
        attempt: attempt.name().clone(),
        name: assignment.spec.name.clone(),
        member: assignment.member_name.clone(),
        image: assignment.image.reference().to_owned(),
        gpus: assignment.gpus.clone(),
        state: attempt.state(),
        since: attempt.record.started.unwrap_or(attempt.record.accepted),
        note: attempt.note.clone(),
        checkpoint: checkpoint.map(|(at, _)| at),
        stopped_ms: checkpoint.map(|(_, stood)| stood.0),
        checkpoint_every: Some(Span(attempt.checkpoint_every())),
        disk_used: attempt.disk_used,
        processes: attempt.processes,
        contacts: attempt.record.contacts.clone(),
    }
}
