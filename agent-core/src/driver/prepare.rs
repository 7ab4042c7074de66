//! From an assignment to a started guest: image, workspace, container, init.

use std::time::Duration;

use futures_util::TryStreamExt as _;
use gpunion_protocol::guest::Begin;
use gpunion_protocol::job::Image;
use gpunion_protocol::problem::Problem;
use gpunion_snapshot::{JobKey, Progress, unwrap_job_key};

use super::guest::Guest;
use super::operations::Operations;
use super::trouble::{of_engine, of_problem};
use super::workspace::{Parent, Place, fill, folder};
use super::{guest, layers, wipe};
use crate::config::Membership;
use crate::consumer::keys::JobSecrets;
use crate::container::cgroup::Cgroup;
use crate::container::{
    DataMount, GpuWay, GuestPlan, LocalImage, PIDS, PullProgress, command, guest_uid, labels, limits,
};
use crate::gpu::verify::ProcessId;
use crate::provider::event::{Outcome, Trouble};
use crate::provider::record::AttemptRecord;
use crate::second_way::cgroups_with;

/// Init connects within milliseconds; a machine under load gets more.
const HELLO: Duration = Duration::from_secs(20);

fn refused(reason: impl std::fmt::Display) -> Trouble {
    Trouble::Refused { reason: reason.to_string() }
}

fn away(why: impl std::fmt::Display) -> Trouble {
    Trouble::Away { why: why.to_string() }
}

pub(super) fn member(ops: &Operations) -> Result<std::sync::Arc<Membership>, Trouble> {
    ops.membership.borrow().clone().ok_or_else(|| away("this device belongs to no group"))
}

pub(super) fn job_key(member: &Membership, record: &AttemptRecord) -> Result<JobKey, Trouble> {
    let (job, device) = (&record.assignment.attempt.job, &member.group.device);
    unwrap_job_key(&record.assignment.key.0, &member.identity.secret, job.as_str(), device.as_str())
        .map_err(|e| refused(format!("the job's key does not open on this device: {e}")))
}

pub(super) fn secrets(key: &JobKey, record: &AttemptRecord) -> Result<JobSecrets, Trouble> {
    JobSecrets::open(key, &record.assignment.sealed).map_err(|problem: Problem| refused(problem))
}

pub(super) async fn image(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    let engine = &ops.fixed.engine;
    let mut teller = ops.teller(&record.assignment.attempt);
    let name = wipe::name_of(&record.assignment.image);
    let is_here = engine.image(&name).await.map_err(of_engine)?.is_some();
    wipe::mark_image(ops, &name, is_here);
    match &record.assignment.image {
        Image::Registry { reference, digest } => {
            let mut tell =
                |p: PullProgress| teller.tell("pulling the image", p.done, Some(p.total).filter(|t| *t > 0));
            let pulled = engine.pull(reference, digest.as_deref(), &mut tell).await.map_err(of_engine)?;
            Ok(Outcome::Image { digest: Some(pulled.digest) })
        }
        Image::Layers { image_id, snapshot, .. } => {
            if !is_here {
                let member = member(ops)?;
                let key = job_key(&member, record)?;
                let sealed = member.client.snapshot(snapshot).await.map_err(of_problem)?;
                let archive = layers::archive(&sealed, &key, member.client.clone()).map_err(refused)?;
                let mut came = 0;
                let archive = archive.inspect_ok(move |piece| {
                    came += piece.len() as u64;
                    teller.tell("fetching the image's layers", came, None);
                });
                engine.import(archive, image_id).await.map_err(of_engine)?;
            }
            Ok(Outcome::Image { digest: None })
        }
    }
}

/// The image by what never moves: its id, or the digest that was fixed.
async fn image_here(ops: &Operations, record: &AttemptRecord) -> Result<LocalImage, Trouble> {
    let engine = &ops.fixed.engine;
    if let Some(known) = ops.known_image(&record.assignment.attempt) {
        return Ok(known);
    }
    let found = match &record.assignment.image {
        Image::Layers { image_id, .. } => engine.image(image_id).await.map_err(of_engine)?,
        Image::Registry { reference, digest } => {
            let mut silent = |_| {};
            Some(engine.pull(reference, digest.as_deref(), &mut silent).await.map_err(of_engine)?.image)
        }
    };
    found.ok_or_else(|| away("the image was removed from the engine while the job was prepared"))
}

pub(super) async fn stage(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    let engine = &ops.fixed.engine;
    let assignment = &record.assignment;
    let member = member(ops)?;
    let key = job_key(&member, record)?;
    let uid = guest_uid(engine.device()).map_err(of_engine)?;
    let helper = engine.helper_image(&ops.fixed.helper).await.map_err(of_engine)?;
    let mut teller = ops.teller(&assignment.attempt);
    for data in &assignment.data {
        super::data::provide(ops, &helper, data, (&key, uid), &mut teller).await?;
    }
    let volume = engine.create_workspace(&assignment.attempt).await.map_err(of_engine)?;
    let place = Place { engine: engine.clone(), helper, volume };
    let from = assignment.from.or(assignment.input);
    let sealed = match from {
        Some(snapshot) => Some(member.client.snapshot(&snapshot).await.map_err(of_problem)?),
        None => None,
    };
    let max = Some(assignment.spec.resources.disk.0);
    // Prepared ahead, and the job has saved since.
    let update = ops.parent(&assignment.attempt).is_some();
    let sealed_by = sealed.as_ref().map(|sealed| (&sealed[..], &key));
    let mut tell = |p: Progress| teller.tell("fetching the job's files", p.bytes, p.total_bytes);
    // Starting a container is what takes longest, here and for the guest: both at a time.
    let filling = fill(&place, sealed_by, uid, (max, update), &member.client, &mut tell);
    let (helper, ()) = tokio::join!(filling, begin_early(ops, record));
    ops.put_aside(&assignment.attempt, helper?);
    ops.keep_parent(&assignment.attempt, Parent { manifest: sealed.map(|s| s.to_vec()), cache: None });
    Ok(Outcome::Staged)
}

fn plan(ops: &Operations, record: &AttemptRecord, image: &LocalImage) -> Result<GuestPlan, Trouble> {
    let assignment = &record.assignment;
    let device = ops.fixed.engine.device();
    let (gpu_way, cgroups) = match ops.facts.borrow().as_ref() {
        Some(facts) => (facts.gpu_way.clone(), cgroups_with(device, facts)),
        None => return Err(away("the container engine has not said yet how guests get GPUs")),
    };
    if let (GpuWay::None { why }, false) = (&gpu_way, assignment.gpus.is_empty()) {
        return Err(refused(format!("guests can't get GPUs here: {why}")));
    }
    Ok(GuestPlan {
        attempt: assignment.attempt.clone(),
        image_id: image.id.clone(),
        uid: guest_uid(ops.fixed.engine.device()).map_err(of_engine)?,
        memory: assignment.spec.resources.memory.0,
        cpus: assignment.spec.resources.cpus,
        pids: PIDS,
        writable_root: assignment.spec.writable_root,
        gpus: assignment.gpus.clone(),
        gpu_way,
        init: ops.fixed.init.clone(),
        control: folder(&ops.fixed.guests, &assignment.attempt).join(guest::CONTROL),
        egress: ops.egress_folder(record),
        cgroup_parent: cgroups.parent_of_guests(),
        data: assignment
            .data
            .iter()
            .map(|data| DataMount { snapshot: data.snapshot, at: data.at.clone() })
            .collect(),
    })
}

/// The guest's init, before there is anything for it to do: it says itself that it is there. What
/// does not work here is tried again when its turn has come, and told then.
async fn begin_early(ops: &Operations, record: &AttemptRecord) {
    let early = async {
        let container = make(ops, record).await?;
        let guest = ops.open_guest(record, &container).map_err(away)?;
        ops.fixed.engine.start_guest(&container).await.map_err(of_engine)?;
        let process = greeted(&guest).await?;
        watch(ops, record, &guest, &container, process);
        Ok::<(), Trouble>(())
    };
    if let Err(trouble) = early.await {
        tracing::debug!(attempt = %record.assignment.attempt, ?trouble, "its guest does not start early");
    }
}

pub(super) async fn create(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    Ok(Outcome::Created { container: make(ops, record).await? })
}

/// The guest's container; one that has been started is taken as it is.
async fn make(ops: &Operations, record: &AttemptRecord) -> Result<String, Trouble> {
    ops.forget_image(&record.assignment.attempt);
    let image = image_here(ops, record).await?;
    let plan = plan(ops, record, &image)?;
    // What can't be begun is known before anything is made.
    first_word(ops, record, &image)?;
    // The mounts' sources must exist, and nobody's umask may close them to the guest.
    for folder in std::iter::once(plan.control.clone()).chain(plan.egress.clone()) {
        tokio::task::spawn_blocking(move || crate::channel::ControlDir::at(folder))
            .await
            .map_err(away)?
            .map_err(|e| away(format!("the guest's control folder can't be made: {e}")))?;
    }
    let container = ops.fixed.engine.create_guest(&plan).await.map_err(of_engine)?;
    // From here on a container holds on to it.
    ops.keep_image(&record.assignment.attempt, image);
    Ok(container)
}

/// Started means: init has connected, and every limit is read back from the guest's cgroup.
pub(super) async fn start(ops: &Operations, record: &AttemptRecord) -> Result<Outcome, Trouble> {
    let engine = &ops.fixed.engine;
    let attempt = &record.assignment.attempt;
    let name = labels::guest_name(engine.device(), attempt);
    let state = engine.inspect_guest(&name).await.map_err(of_engine)?;
    let state = state.ok_or_else(|| refused("the guest's container was removed before it started"))?;
    let guest = ops
        .open_guest(record, &state.id)
        .map_err(|e| away(format!("the guest's control channel can't be opened: {e}")))?;
    if !state.running {
        if state.started {
            return Err(refused(format!("the guest ended before its program began: {}", state.error)));
        }
        engine.start_guest(&state.id).await.map_err(of_engine)?;
    }
    let process = greeted(&guest).await?;
    watch(ops, record, &guest, &state.id, process);
    let image = image_here(ops, record).await?;
    let plan = plan(ops, record, &image)?;
    let found = Cgroup::of(process.pid)
        .and_then(|cgroup| cgroup.limits())
        .map_err(|e| refused(format!("the guest's limits can't be read back: {e}")))?;
    limits::check(&plan, &found).map_err(of_engine)?;
    Ok(Outcome::Started { process })
}

/// The guest's init, as soon as it has connected.
async fn greeted(guest: &Guest) -> Result<ProcessId, Trouble> {
    if !guest.is_connected() && tokio::time::timeout(HELLO, guest.hello.notified()).await.is_err() {
        return Err(refused("the guest's init did not connect to the agent"));
    }
    guest.init().ok_or_else(|| away("the guest's init is gone"))
}

/// Its end is told from here on, and a reclaim without an agent finds it.
fn watch(ops: &Operations, record: &AttemptRecord, guest: &Guest, container: &str, process: ProcessId) {
    let attempt = &record.assignment.attempt;
    if !guest.watch(attempt, process, ops.events.clone()) {
        return;
    }
    if let Err(error) = guest.write_facts(record, container, process) {
        tracing::warn!(%attempt, "what gpunion reclaim needs without an agent can't be written: {error}");
    }
}

pub(super) async fn begin(ops: &Operations, record: &AttemptRecord) -> Result<Begin, Trouble> {
    let image = image_here(ops, record).await?;
    first_word(ops, record, &image)
}

/// The first word to init: command, environment, secrets.
fn first_word(ops: &Operations, record: &AttemptRecord, image: &LocalImage) -> Result<Begin, Trouble> {
    let member = member(ops)?;
    let key = job_key(&member, record)?;
    let secrets: Vec<(String, String)> =
        secrets(&key, record)?.secrets.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let assignment = &record.assignment;
    command::begin(
        &assignment.spec,
        &image.config,
        &assignment.attempt,
        assignment.resumed,
        &secrets,
        &assignment.gpus,
    )
    .map_err(of_engine)
}
