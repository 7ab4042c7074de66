//! Where a job fits, and which of the fitting providers is taken. Pure: the same question always
//! has the same answer.

use gpunion_protocol::egress::{EgressName, EgressRule};
use gpunion_protocol::ids::{DeviceId, GpuUuid};
use gpunion_protocol::spec::JobSpec;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;

/// Longest `checkpoint.every` that an offer's end is measured by: a job that saves once a day
/// would else never be placed under an owner's hours.
const EVERY_MAX: Millis = Millis::from_secs(600);
/// What is taken for it where the spec leaves it to the provider.
const EVERY_USUAL: Millis = Millis::from_secs(300);

/// Of an owner whose agent does not tell it.
const GRACE_MAX: Millis = Millis::from_secs(600);

/// A job that goes to a provider with less time left would soon move again.
const SOON: Millis = Millis::from_secs(3600);

/// What a job asks of a provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Need {
    pub(super) gpus: u32,
    /// Least memory of each GPU.
    pub(super) gpu_memory: Bytes,
    pub(super) cpus: u32,
    pub(super) memory: Bytes,
    pub(super) disk: Bytes,
    /// How long it computes until it saves; and to leave it takes at most the grace.
    pub(super) every: Millis,
    pub(super) grace: Millis,
    /// Names that it wants to reach.
    pub(super) egress: Vec<EgressName>,
}

impl Need {
    pub(super) fn of(spec: &JobSpec) -> Self {
        let r = &spec.resources;
        Self {
            gpus: r.gpus,
            gpu_memory: r.gpu_memory,
            cpus: r.cpus,
            memory: r.memory,
            disk: r.disk,
            // Specs are checked when they are submitted; the provider checks them once more.
            egress: spec.network.names().unwrap_or_default(),
            every: spec.checkpoint.every.map_or(EVERY_USUAL, |every| every.0.min(EVERY_MAX)),
            grace: spec.checkpoint.grace.0,
        }
    }
}

/// One provider as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) device: DeviceId,
    pub(super) name: String,
    /// Connected, and its offer is of this session.
    pub(super) here: bool,
    pub(super) open: bool,
    /// In its own words, why it is not open.
    pub(super) closed_because: Option<String>,
    /// Lent GPUs, free ones and used ones.
    pub(super) gpus: Vec<RoomGpu>,
    pub(super) cpus: Cap<u32>,
    pub(super) memory: Cap<u64>,
    pub(super) disk: Cap<u64>,
    pub(super) time_left: Option<Millis>,
    /// The longest that its owner lets a job save when it must leave; absent: not told.
    pub(super) grace: Option<Millis>,
    pub(super) egress: EgressRule,
    /// Nothing can be placed now, whatever looks free.
    pub(super) blocked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoomGpu {
    pub(super) uuid: GpuUuid,
    pub(super) memory: Bytes,
    pub(super) free: bool,
    pub(super) standin: bool,
}

/// What is lent over all guests, and what of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cap<T> {
    pub(super) all: T,
    pub(super) left: T,
}

impl<T: Copy> Cap<T> {
    pub(super) fn of(all: T) -> Self {
        Self { all, left: all }
    }
}

/// What speaks for and against a provider, for one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Standing {
    /// It has no key of the job. (Fields are compared in this order; less is better.)
    pub(super) keyless: bool,
    /// Starts of this job that failed there since its last checkpoint.
    pub(super) failures: u32,
    /// It started nothing of late, and this job would try whether it does now.
    pub(super) on_trial: bool,
    /// The job's last attempt was ended there by the provider: reclaimed, left, lost. Or another
    /// machine of its owner's has just gone.
    pub(super) just_left: bool,
}

impl Room {
    pub(super) fn is_lending(&self) -> bool {
        self.here && self.open
    }

    /// One class for all that end later: small differences decide nothing.
    fn ends_soon(&self) -> bool {
        self.time_left.is_some_and(|left| left < SOON)
    }

    /// It would fit if nobody else were there.
    pub(super) fn could_hold(&self, need: &Need) -> bool {
        self.has_room(need) && self.egress.missing(&need.egress).is_none()
    }

    /// It would fit if its owner also allowed the names that the job asks for.
    pub(super) fn has_room(&self, need: &Need) -> bool {
        self.fitting(need).count() >= need.gpus as usize
            && self.cpus.all >= need.cpus
            && self.memory.all >= need.memory.0
            && self.disk.all >= need.disk.0
            && self.time_left.is_none_or(|left| left >= self.least_time(need))
    }

    /// Less would not bring it to its next checkpoint and out again: it is told to leave a grace
    /// before the end, and the owner's is the limit.
    pub(super) fn least_time(&self, need: &Need) -> Millis {
        need.every + need.grace.min(self.grace.unwrap_or(GRACE_MAX))
    }

    /// Lent GPUs with enough memory.
    pub(super) fn fitting<'a>(&'a self, need: &'a Need) -> impl Iterator<Item = &'a RoomGpu> {
        self.gpus.iter().filter(|gpu| gpu.memory >= need.gpu_memory)
    }

    /// GPUs for it now: the smallest that suffice, so that large ones stay for those who need them.
    pub(super) fn take_now(&self, need: &Need) -> Option<Vec<RoomGpu>> {
        let enough = self.is_lending()
            && !self.blocked
            && self.could_hold(need)
            && self.cpus.left >= need.cpus
            && self.memory.left >= need.memory.0
            && self.disk.left >= need.disk.0;
        if !enough {
            return None;
        }
        let mut free: Vec<&RoomGpu> = self.fitting(need).filter(|gpu| gpu.free).collect();
        free.sort_by(|a, b| (a.memory, &a.uuid).cmp(&(b.memory, &b.uuid)));
        let taken: Vec<RoomGpu> = free.into_iter().take(need.gpus as usize).cloned().collect();
        (taken.len() == need.gpus as usize).then_some(taken)
    }

    /// Takes off what a guest uses there.
    pub(super) fn occupy(&mut self, gpus: &[GpuUuid], need: &Need) {
        for gpu in &mut self.gpus {
            if gpus.contains(&gpu.uuid) {
                gpu.free = false;
            }
        }
        self.cpus.left = self.cpus.left.saturating_sub(need.cpus);
        self.memory.left = self.memory.left.saturating_sub(need.memory.0);
        self.disk.left = self.disk.left.saturating_sub(need.disk.0);
    }
}

/// A provider that was taken: its place in the list of rooms, and the GPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) room: usize,
    pub(super) gpus: Vec<RoomGpu>,
    pub(super) standing: Standing,
}

/// All rooms that could take it now, best first: by standing, then those that don't end soon, then
/// the smallest GPUs, then the fewest that stay free, then the device's id. `None` from `standing` bars a room.
pub(super) fn choices(
    need: &Need,
    rooms: &[Room],
    standing: impl Fn(&DeviceId) -> Option<Standing>,
) -> Vec<Choice> {
    let mut all: Vec<Choice> = rooms
        .iter()
        .enumerate()
        .filter_map(|(room, r)| {
            let standing = standing(&r.device)?;
            Some(Choice { room, gpus: r.take_now(need)?, standing })
        })
        .collect();
    all.sort_by_cached_key(|choice| {
        let room = &rooms[choice.room];
        let largest = choice.gpus.iter().map(|gpu| gpu.memory).max();
        let stay_free = room.gpus.iter().filter(|gpu| gpu.free).count() - choice.gpus.len();
        (choice.standing, room.ends_soon(), largest, stay_free, room.device.clone())
    });
    all
}
