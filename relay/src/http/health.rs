//! Is it up, and how is it: `/healthz` for anybody, `/metrics` for operators.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use gpunion_protocol::http::Role;
use gpunion_protocol::problem::Code;

use super::{App, Refused};
use crate::broker::{Broker, Caller};

/// `GET /healthz`: up, and the broker answers. Says nothing about the group.
pub(super) async fn healthz(State(app): State<App>) -> Result<&'static str, Refused> {
    app.handle.ask(|_| ()).await?;
    Ok("ok\n")
}

/// `GET /metrics`, in Prometheus' text form.
pub(super) async fn metrics(
    State(app): State<App>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Refused> {
    if caller.role != Role::Operator {
        return Err(Refused::new(Code::Forbidden, "only an operator may read metrics"));
    }
    let group = app.handle.ask(Group::of).await?;
    let text = render(&app, &group).unwrap_or_default();
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// What the broker knows in numbers.
struct Group {
    jobs: BTreeMap<&'static str, u64>,
    attempts: u64,
    attempts_open: u64,
    devices: u64,
    connected: u64,
    gpus_free: u64,
    moves: u64,
}

impl Group {
    fn of(broker: &Broker) -> Self {
        let states = ["queued", "placed", "running", "moving", "held", "succeeded", "failed", "cancelled"];
        let mut group = Self {
            jobs: states.into_iter().map(|state| (state, 0)).collect(),
            attempts: 0,
            attempts_open: 0,
            devices: 0,
            connected: 0,
            gpus_free: 0,
            moves: broker.moves(),
        };
        let (jobs, attempts, attempts_open) = broker.tally();
        group.jobs.extend(jobs);
        (group.attempts, group.attempts_open) = (attempts, attempts_open);
        for device in broker.devices() {
            group.devices += u64::from(!device.revoked);
            group.connected += u64::from(device.connected);
            group.gpus_free += u64::from(device.gpus_free);
        }
        group
    }
}

fn render(app: &App, group: &Group) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    writeln!(out, "# HELP gpunion_jobs Jobs by state.\n# TYPE gpunion_jobs gauge")?;
    for (state, count) in &group.jobs {
        writeln!(out, "gpunion_jobs{{state=\"{state}\"}} {count}")?;
    }
    let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let (packs, counts, totals) = (&app.packs, &app.counts, &app.packs.totals);
    let gauges = [
        ("attempts_open", "Attempts that have not ended.", group.attempts_open),
        ("devices", "Devices whose token is valid.", group.devices),
        ("devices_connected", "Devices with a session.", group.connected),
        ("gpus_free", "Lent GPUs that no attempt holds.", group.gpus_free),
        ("packs", "Packs kept.", packs.packs.files()),
        ("packs_bytes", "Bytes of packs kept.", packs.packs.bytes()),
        ("snapshots", "Manifests kept.", packs.snapshots.files()),
        ("snapshots_bytes", "Bytes of manifests kept.", packs.snapshots.bytes()),
        ("snapshots_missing", "Snapshots that a job names and that are not here.", load(&totals.missing)),
        ("queue_length", "Inputs that wait for the broker.", app.handle.waiting() as u64),
        ("uploads_free", "Uploads that could start now.", app.uploads.available_permits() as u64),
    ];
    let totals = [
        ("attempts_total", "Attempts of the jobs that are kept.", group.attempts),
        ("moves_total", "Jobs that went on in a later attempt, since start.", group.moves),
        ("events_total", "Events handled since start.", load(&counts.events)),
        ("commits_total", "Transactions since start.", load(&counts.commits)),
        ("swept_files_total", "Packs and manifests removed since start.", load(&totals.files)),
        ("swept_bytes_total", "Bytes of them.", load(&totals.bytes)),
        ("commits_failed_total", "Failed transactions since start.", load(&counts.commits_failed)),
        (
            "messages_dropped_total",
            "Messages that a slow session had no room for.",
            load(&counts.messages_dropped),
        ),
    ];
    for (kind, rows) in [("gauge", &gauges[..]), ("counter", &totals[..])] {
        for (name, help, value) in rows {
            let head = format!("# HELP gpunion_{name} {help}\n# TYPE gpunion_{name} {kind}");
            writeln!(out, "{head}\ngpunion_{name} {value}")?;
        }
    }
    Ok(out)
}
