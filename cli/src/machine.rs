//! This machine: what it lends, its GPUs, its history, its health.

use std::process::ExitCode;
use std::sync::Arc;

use futures_util::StreamExt as _;
use gpunion_agent_core::config::{Found, Membership, Settings};
use gpunion_agent_core::gpu::Reader;
use gpunion_agent_core::local_api::doctor::{Agent, Patient, examine};
use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::gpu::GpuState;
use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::local::{
    Finding, GpuStatus, Grade, PauseRequest, ShareRequest, ShareStatus, Snapshot, Wiped, Wish,
};
use gpunion_protocol::receipt::HistoryEntry;
use gpunion_protocol::time::WallMs;
use gpunion_protocol::units::Bytes;
use jiff::civil::Time;
use jiff::{Timestamp, ZonedDateTime};
use reqwest::Method;

use crate::api::Api;
use crate::args::{Doctor, Gpus, OnOff, Pause, Place, Share, Switch};
use crate::contacts;
use crate::failure::{FAILED, Failure, UNREACHABLE};
use crate::out::Out;
use crate::rules;
use crate::show;

pub(crate) async fn share(place: &Place, asked: Share, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let changes = asked.cpus.is_some()
        || asked.memory.is_some()
        || asked.disk.is_some()
        || asked.grace.is_some()
        || asked.salvage.is_some();
    let on = match asked.switch {
        Switch::On => Some(true),
        Switch::Off => Some(false),
        Switch::Status => None,
    };
    if asked.until.is_some() && on != Some(true) {
        return Err(Failure::usage("--until says when lending ends: use it with `share on`"));
    }
    let status = if on.is_none() && !changes {
        api.get::<Snapshot>("/v1/snapshot").await?.share
    } else {
        let request = ShareRequest {
            on,
            gpu: asked.gpu.map(GpuUuid),
            until: asked.until.as_deref().map(|text| until(text, &ZonedDateTime::now())).transpose()?,
            cpus: asked.cpus,
            memory: asked.memory,
            disk: asked.disk,
            grace: asked.grace,
            salvage: asked.salvage.map(|switch| switch == OnOff::On),
        };
        api.post("/v1/share", &request).await?
    };
    out.answer(&status, describe_share)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn pause(place: &Place, asked: Pause, out: &Out) -> Result<ExitCode, Failure> {
    let until = asked.until.as_deref().map(|text| until(text, &ZonedDateTime::now())).transpose()?;
    let request = PauseRequest { length: asked.length, until, resume: asked.resume };
    let status: ShareStatus = Api::new(place)?.post("/v1/pause", &request).await?;
    out.answer(&status, describe_share)?;
    Ok(ExitCode::SUCCESS)
}

/// Exits with 1 when something that should go could not be removed.
pub(crate) async fn wipe(place: &Place, out: &Out) -> Result<ExitCode, Failure> {
    let wiped: Wiped = Api::new(place)?.post("/v1/wipe", &()).await?;
    out.answer(&wiped, |wiped| {
        let mut text = format!(
            "removed {} inputs, {} images, {} workspaces of reclaimed jobs\n",
            wiped.inputs, wiped.images, wiped.salvages
        );
        text.extend(wiped.troubles.iter().map(|why| format!("! {}\n", show::clean(why))));
        text
    })?;
    Ok(if wiped.troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The next time that a clock on the wall shows this.
fn until(text: &str, now: &ZonedDateTime) -> Result<WallMs, Failure> {
    let bad = || Failure::usage(format!("{text:?} is no time of day")).fix("write it as 18:00");
    let time = Time::strptime("%H:%M", text).map_err(|_| bad())?;
    let today = now.datetime().with().time(time).build().map_err(|_| bad())?;
    let mut at = today.to_zoned_datetime(now.time_zone().clone()).map_err(|_| bad())?;
    if at <= *now {
        at = at.tomorrow().map_err(|_| bad())?;
    }
    Ok(WallMs(at.timestamp().as_millisecond()))
}

fn describe_share(share: &ShareStatus) -> String {
    let mut text = format!(
        "{}: {}\nmost for all guests together: {} CPU, {} memory, {} disk\nwhen sharing ends, a job gets \
         {} to save at most, and moves\nafter a \
         reclaim what a job left is {}\njobs may reach: {}\n",
        wish(&share.wish),
        show::clean(&share.why),
        share.caps.cpus,
        share.caps.memory,
        share.caps.disk,
        share.grace,
        if share.salvage { "saved for it, when that takes less time than it saves" } else { "removed" },
        reach(&share.egress)
    );
    for (gpu, own) in &share.gpus {
        text.push_str(&format!("{}: {}\n", show::clean(gpu), wish(own)));
    }
    text.push_str(&rules::verdicts(&share.rules));
    text
}

fn reach(rule: &EgressRule) -> String {
    match rule {
        EgressRule::Off => "nothing outside".to_owned(),
        EgressRule::Asked => "the public names that they ask for".to_owned(),
        EgressRule::Names(_) => rule.to_string(),
    }
}

fn wish(wish: &Wish) -> String {
    match wish {
        Wish::Sharing { until: None } => "sharing".to_owned(),
        Wish::Sharing { until: Some(at) } => format!("sharing until {}", show::time(*at)),
        Wish::NotSharing => "not sharing".to_owned(),
        Wish::PausedUntil { until: None } => "paused until resumed".to_owned(),
        Wish::PausedUntil { until: Some(at) } => {
            let left = at.0.saturating_sub(Timestamp::now().as_millisecond()).max(0);
            format!("paused until {} ({} left)", show::time(*at), show::lasted(left.unsigned_abs()))
        }
    }
}

pub(crate) async fn gpus(place: &Place, asked: Gpus, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    if !asked.watch {
        show_gpus(&api.get("/v1/snapshot").await?, out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut pictures = api.events::<(), Snapshot>(Method::GET, "/v1/events", None).await?;
    while !out.unread() {
        let picture = tokio::select! {
            picture = pictures.next() => picture,
            _ = tokio::signal::ctrl_c() => return Ok(ExitCode::SUCCESS),
        };
        match picture {
            Some(picture) => show_gpus(&picture?, out)?,
            None => {
                return Err(
                    Failure::unreachable("the agent has stopped").fix("start it with `gpunion agent`")
                );
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn show_gpus(snapshot: &Snapshot, out: &Out) -> Result<(), Failure> {
    let contacts = snapshot
        .guests
        .iter()
        .filter_map(|guest| Some(contacts::describe(&guest.name, &guest.member, guest.contacts.as_ref()?)));
    out.answer(&snapshot.gpus, |gpus| {
        let mut text = match &snapshot.gpus_absent {
            Some(sentence) => format!("{}\n", show::clean(sentence)),
            None => {
                let rows: Vec<Vec<String>> = gpus.iter().map(|gpu| row(gpu, snapshot)).collect();
                show::table(&["UUID", "NAME", "MEMORY", "BUSY", "POWER", "TEMP", "WISH", "USED BY"], &rows)
            }
        };
        text.extend(contacts);
        text
    })
}

fn row(gpu: &GpuStatus, snapshot: &Snapshot) -> Vec<String> {
    let sample = &gpu.sample;
    let memory = format!(
        "{} / {}",
        show::figure(sample.memory_used.map(Bytes), ""),
        show::figure(sample.memory_total.map(Bytes), "")
    );
    vec![
        sample.uuid.to_string(),
        sample.label(),
        memory,
        show::figure(sample.utilisation, " %"),
        show::figure(sample.power_mw.map(|mw| mw / 1_000), " W"),
        show::figure(sample.temperature_c, " °C"),
        match &gpu.kept {
            Some(reason) => format!("{}, not now: {reason}", wish(&gpu.wish)),
            None => wish(&gpu.wish),
        },
        used_by(gpu, snapshot),
    ]
}

fn used_by(gpu: &GpuStatus, snapshot: &Snapshot) -> String {
    match &gpu.sample.state {
        GpuState::Ok => {}
        GpuState::Lost { .. } => return "fallen off the bus".to_owned(),
        GpuState::Unknown { why, .. } => return format!("unknown: {why}"),
        GpuState::Suspended => return "asleep".to_owned(),
    }
    if let Some(attempt) = &gpu.lent_to {
        let guest = snapshot.guests.iter().find(|guest| guest.attempt == *attempt);
        return guest.map_or_else(
            || attempt.to_string(),
            |guest| {
                let note = guest.note.as_ref().map_or_else(String::new, |note| format!(" ({note})"));
                format!("{} of {}{note}", guest.name, guest.member)
            },
        );
    }
    match &gpu.sample.processes {
        None => "n/a".to_owned(),
        Some(list) if list.is_empty() => "nobody".to_owned(),
        Some(list) => {
            let pids: Vec<String> = list.iter().map(|process| process.pid.to_string()).collect();
            format!("processes {}", pids.join(", "))
        }
    }
}

pub(crate) async fn history(place: &Place, out: &Out) -> Result<ExitCode, Failure> {
    let history: Vec<HistoryEntry> = Api::new(place)?.get("/v1/history").await?;
    out.answer(&history, |history| {
        if history.is_empty() {
            return "nobody has used this machine yet".to_owned();
        }
        let rows: Vec<Vec<String>> = history
            .iter()
            .map(|entry| {
                let receipt = entry
                    .receipt
                    .as_ref()
                    .map_or("-", |r| if r.verified { "verified" } else { "NOT verified" });
                vec![
                    show::time(entry.from),
                    show::lasted(entry.lasted.0),
                    entry.name.clone(),
                    entry.member.clone(),
                    entry.gpus.len().to_string(),
                    entry.ended.clone(),
                    receipt.to_owned(),
                ]
            })
            .collect();
        let mut text = show::table(&["FROM", "LASTED", "JOB", "MEMBER", "GPUS", "ENDED", "RECEIPT"], &rows);
        text.extend(history.iter().filter_map(|entry| {
            let (name, member) = (show::clean(&entry.name), show::clean(&entry.member));
            Some(format!("\n{name} of {member}, reclaimed\n{}", show::receipt(entry.receipt.as_ref()?)))
        }));
        text.extend(history.iter().filter_map(|entry| {
            Some(contacts::describe(&entry.name, &entry.member, entry.contacts.as_ref()?))
        }));
        text
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the agent; where none answers, looks by itself. Exits with 1 when something is bad.
pub(crate) async fn doctor(place: &Place, asked: Doctor, out: &Out) -> Result<ExitCode, Failure> {
    let api = Api::new(place)?;
    let findings: Vec<Finding> = match api.get("/v1/doctor").await {
        Ok(findings) => findings,
        Err(failure) if failure.exit == UNREACHABLE => {
            let agent = if api.listens() { Agent::Silent } else { Agent::Absent };
            alone(&api, asked, agent).await?
        }
        Err(failure) => return Err(failure),
    };
    out.answer(&findings, |findings| {
        let mut text = String::new();
        for finding in findings {
            let mark = match finding.grade {
                Grade::Good => "ok  ",
                Grade::Warning => "warn",
                Grade::Bad => "BAD ",
            };
            text.push_str(&format!(
                "{mark}  {}: {}\n",
                show::clean(&finding.about),
                show::clean(&finding.what)
            ));
            if let Some(fix) = &finding.fix {
                text.push_str(&format!("      fix: {}\n", show::clean(fix)));
            }
        }
        text
    })?;
    let bad = findings.iter().any(|finding| finding.grade == Grade::Bad);
    Ok(if bad { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

async fn alone(api: &Api, asked: Doctor, agent: Agent) -> Result<Vec<Finding>, Failure> {
    let dirs = api.dirs().clone();
    let settings: Settings = asked.agent.settings(&dirs)?;
    let library = settings.nvml_library.clone();
    let known = dirs.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let gpus =
            Reader::open(library.as_deref()).map(|reader| reader.read()).map_err(|error| error.to_string());
        (gpus, Membership::find(&known))
    });
    let (gpus, found) = looked.await.map_err(|error| Failure::failed(error.to_string()))?;
    let (membership, locked) = match found? {
        Found::Nothing => (None, None),
        Found::Locked(locked) => (None, Some(Arc::from(locked))),
        Found::Member(member) => (Some(Arc::from(member)), None),
    };
    let patient = Patient { dirs, settings, membership, locked, agent, gpus };
    Ok(examine(&patient).await)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_is_the_next_such_time() {
        let now: ZonedDateTime = "2026-03-01T17:30[Europe/Berlin]".parse().unwrap();
        let at = |text| until(text, &now).unwrap().0;
        assert_eq!(at("18:00") - now.timestamp().as_millisecond(), 30 * 60_000);
        assert_eq!(at("17:00") - now.timestamp().as_millisecond(), (23 * 60 + 30) * 60_000);
        assert!(until("later", &now).is_err() && until("25:00", &now).is_err());
    }
}
