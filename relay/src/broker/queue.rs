//! The queue: who is tried first, and the placing itself. Fairness among members by recent use,
//! then age of the job. Each waiting job is tried once in a pass, since room only shrinks in it.

use std::collections::{BTreeMap, BTreeSet};

use gpunion_protocol::ids::{AttemptNo, DeviceId, GpuUuid, JobId, MemberId, Token};
use gpunion_protocol::job::{AttemptState, EndCause};
use gpunion_protocol::time::{Millis, Now};

use super::Broker;
use super::aside::Late;
use super::lease::Live;
use super::placement::{Cap, Choice, Need, Room, RoomGpu, Standing, choices};
use super::record::Attempt;
use super::usage::weigh_held;
use super::why::{Hint, why};

/// So many providers are given a key ahead of need.
const KEYS_ASKED: usize = 3;

/// In a crowd all are looked at so often, while nothing but newcomers changes.
const LOOK_EACH: Millis = Millis::from_secs(1);

/// Each member's waiting jobs, the oldest last.
type Lines = BTreeMap<MemberId, Vec<(u64, JobId)>>;

/// A job that no provider took in this pass.
struct Unplaced {
    job: JobId,
    need: Need,
    hint: Hint,
}

/// Jobs that wait, by the set of providers that could hold them.
pub(super) type Line = BTreeMap<Vec<bool>, usize>;

impl Broker {
    /// Looks at all that wait, when anything changed for them. In a crowd a newcomer changes nothing
    /// for those who could not be placed before it: it is let in alone, as if it came last.
    pub(super) fn look_at_queue(&mut self, now: Now) {
        let newcomers = std::mem::take(&mut self.newcomers);
        let is_crowd = self.open.len() > self.config.crowd;
        let due = self.look_at.is_some_and(|at| at <= now.boot);
        if std::mem::take(&mut self.queue_changed) || due || (!newcomers.is_empty() && !is_crowd) {
            self.look_at = None;
            self.line.clear();
            self.place_waiting(self.lines(self.open.iter()), now);
        } else if !newcomers.is_empty() {
            self.look_at.get_or_insert(now.boot + LOOK_EACH);
            self.place_waiting(self.lines(newcomers.iter()), now);
        }
    }

    /// Places what can be placed, asks for keys that are wanting, and says why the rest waits.
    fn place_waiting(&mut self, mut waiting: Lines, now: Now) {
        self.retries.retain(|_, at| *at > now.boot);
        let mut rooms = self.rooms(now);
        let mut shares = self.shares(now);
        let settling = self.settling_until.is_some() && self.somebody_is_missing();
        let mut unplaced = Vec::new();
        let mut asked = BTreeSet::new();
        self.place_ahead(&mut rooms, &mut asked, now);
        let mut late = Late::default();
        while let Some(job) = take_next(&mut waiting, &shares).or_else(|| late.next()) {
            let Some(row) = self.jobs.get(&job) else { continue };
            let (need, member) = (Need::of(&row.spec), row.member.clone());
            if !row.keys.iter().any(|k| self.is_usable(&k.device)) {
                self.hold(
                    &job,
                    "No device that is left has its key: cancel it and submit it again".to_owned(),
                );
                continue;
            }
            if let Some(waits) = self.waits_for_return(&job) {
                unplaced.push(Unplaced { job, need, hint: Hint { waits: Some(waits), ..Hint::default() } });
                continue;
            }
            // A backup may not know who reaches outside for this job: whoever does has a lease that an
            // earlier run of the relay gave.
            if !need.egress.is_empty() && self.settling_until.is_some() {
                unplaced.push(Unplaced { job, need, hint: Hint { leases_run: true, ..Hint::default() } });
                continue;
            }
            if self.ahead_of(&job).is_some() && (self.gives_up(&job, now) || self.go_ahead(&job, now)) {
                continue;
            }
            if let Some(waits) = self.waits_to_see(&job) {
                unplaced.push(Unplaced { job, need, hint: Hint { waits: Some(waits), ..Hint::default() } });
                continue;
            }
            let options = choices(&need, &rooms, |device| self.standing(&job, device));
            let (keyless, mut ready): (Vec<Choice>, Vec<Choice>) =
                options.into_iter().partition(|c| c.standing.keyless);
            if late.put_off(&job, ready.first().map(|c| &c.standing)) {
                continue;
            }
            let better_without_key = ready.first().is_none_or(|c| c.standing.failures > 0);
            if better_without_key {
                let wanted = keyless.iter().take(KEYS_ASKED).map(|c| rooms[c.room].device.clone());
                asked.extend(wanted.map(|device| (job.clone(), device)));
            }
            if ready.is_empty() {
                let hint = self.hint(&job, &need, &keyless, &rooms, settling);
                unplaced.push(Unplaced { job, need, hint });
                continue;
            }
            if self.gives_up(&job, now) {
                continue;
            }
            let choice = ready.swap_remove(0);
            let gpus: Vec<GpuUuid> = choice.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            rooms[choice.room].occupy(&gpus, &need);
            let device = rooms[choice.room].device.clone();
            self.place(&job, device, choice.gpus, false, now);
            let share = shares.entry(member).or_default();
            *share = share.saturating_add(weigh_held(gpus.len()));
        }
        self.ask_for_keys(asked, now);
        self.explain(unplaced, &rooms);
    }

    /// Those of these jobs that wait.
    fn lines<'a>(&self, jobs: impl Iterator<Item = &'a JobId>) -> Lines {
        let mut lines = Lines::new();
        for id in jobs.filter(|job| self.is_waiting(job)) {
            if let Some(job) = self.jobs.get(id) {
                lines.entry(job.member.clone()).or_default().push((job.number, id.clone()));
            }
        }
        for line in lines.values_mut() {
            line.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        }
        lines
    }

    /// `ahead`: while the attempt before it still runs.
    pub(super) fn place(&mut self, job: &JobId, device: DeviceId, gpus: Vec<RoomGpu>, ahead: bool, now: Now) {
        // The one whose lease ran out ends in the same step in which a newer one exists.
        let before = self.newest(job).filter(|attempt| !ahead && !attempt.state.is_ended());
        if let Some(lapsed) = before.map(Attempt::named) {
            self.lost(&lapsed, now);
        }
        let last = self.attempts.get(job).and_then(|all| all.keys().next_back()).map_or(0, |last| last.0);
        let number = AttemptNo(last.saturating_add(1));
        let attempt = Attempt {
            job: job.clone(),
            token: Token { epoch: self.epoch, attempt: number },
            device: device.clone(),
            standin: gpus.iter().any(|gpu| gpu.standin),
            gpus: gpus.into_iter().map(|gpu| gpu.uuid).collect(),
            from: self.courses.get(job).and_then(|course| course.next_from()),
            state: AttemptState::Reserved,
            ran: false,
            published: Vec::new(),
            released: false,
            placed: now.wall,
            started: None,
            ended: None,
            quit: None,
            moved: None,
            ahead,
            prepared: ahead,
        };
        let named = attempt.named();
        let how = match (number.0, attempt.from) {
            (1, _) => "",
            (_, Some(_)) => ", going on from its checkpoint",
            (_, None) => ", starting from its input",
        };
        let name = self.device_name(&device).unwrap_or("a provider");
        let text = if ahead {
            format!("Attempt {number} is prepared at {name} while the job still runs")
        } else {
            format!("Attempt {number} goes to {name}{how}")
        };
        self.note(job, text, now);
        self.live.insert(named.clone(), Live::new(self.lease_end(now), now));
        self.attempts.entry(job.clone()).or_default().insert(number, attempt);
        self.touch(&named);
        self.is_tried(&device, &named);
        self.whys.remove(job);
        self.retries.remove(job);
        self.stirred.insert(job.clone());
        self.group_changed = true;
    }

    /// Every device that ever told an offer in this run of the relay, as it stands now.
    pub(super) fn rooms(&self, now: Now) -> Vec<Room> {
        let mut rooms: Vec<Room> =
            self.presence.keys().filter_map(|device| self.empty_room(device, now)).collect();
        for named in self.live.keys() {
            let (Some(attempt), Some(job)) =
                (self.attempt(&named.job, named.token.attempt), self.jobs.get(&named.job))
            else {
                continue;
            };
            if let Some(room) = rooms.iter_mut().find(|room| room.device == attempt.device) {
                room.occupy(&attempt.gpus, &Need::of(&job.spec));
            }
        }
        rooms
    }

    fn empty_room(&self, id: &DeviceId, now: Now) -> Option<Room> {
        let presence = self.presence.get(id)?;
        let offer = presence.offer.as_ref()?;
        let device = self.devices.get(id).filter(|d| !d.revoked)?;
        let gpus = offer.gpus.iter().filter(|gpu| gpu.free_for_guests);
        Some(Room {
            device: id.clone(),
            name: device.name.clone(),
            here: presence.session.is_some() && presence.greeted && presence.fresh,
            open: offer.open,
            closed_because: offer.why.clone(),
            gpus: gpus
                .map(|gpu| RoomGpu {
                    uuid: gpu.uuid.clone(),
                    memory: gpu.memory,
                    free: true,
                    standin: gpu.standin,
                })
                .collect(),
            cpus: Cap::of(offer.cpus),
            memory: Cap::of(offer.memory.0),
            disk: Cap::of(offer.disk.0),
            time_left: presence.time_left(now),
            grace: offer.grace,
            egress: offer.egress.clone(),
            blocked: presence.holds_unknown,
        })
    }

    /// `None`: the job just failed to start there, and rests before it is tried there again; or
    /// others did, and nothing is placed there.
    pub(super) fn standing(&self, job: &JobId, device: &DeviceId) -> Option<Standing> {
        let failures = self.failures(job, device);
        if (failures > 0 && self.retries.contains_key(job)) || self.is_barred(device) {
            return None;
        }
        let keyless = self.jobs.get(job).is_none_or(|row| row.keys.iter().all(|k| k.device != *device));
        let just_left =
            self.newest(job).is_some_and(|attempt| attempt.device == *device) || self.may_go_too(device);
        Some(Standing { keyless, failures, on_trial: self.is_on_trial(device), just_left })
    }

    /// Starts that failed there since the job's last checkpoint.
    pub(super) fn failures(&self, job: &JobId, device: &DeviceId) -> u32 {
        let progress = self.courses.get(job).and_then(|c| c.chain.last()).map(|c| c.token);
        let count = self
            .attempts
            .get(job)
            .into_iter()
            .flat_map(|all| all.values().rev())
            .take_while(|attempt| progress.is_none_or(|token| attempt.token > token))
            .filter(|attempt| attempt.device == *device && failed_to_start(&attempt.state))
            .count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn hint(&self, job: &JobId, need: &Need, keyless: &[Choice], rooms: &[Room], settling: bool) -> Hint {
        let newest = self.newest(job);
        let on = newest.and_then(|a| self.device_name(&a.device)).map(str::to_owned);
        let unended = newest.is_some_and(|a| !a.state.is_ended());
        Hint {
            ahead: 0,
            keyless: keyless.iter().map(|c| rooms[c.room].name.clone()).collect(),
            key_lost: !self.has_a_holder(job),
            aside: self.waits_for_aside(need, rooms),
            resting: on.clone().filter(|_| !unended && self.retries.contains_key(job)),
            settling,
            silent: on.filter(|_| unended),
            leases_run: false,
            waits: None,
        }
    }

    /// A device of the group has no session now.
    fn somebody_is_missing(&self) -> bool {
        let here = |id| self.presence.get(id).is_some_and(|presence| presence.session.is_some());
        self.devices.iter().any(|(id, device)| !device.revoked && !here(id))
    }

    fn explain(&mut self, unplaced: Vec<Unplaced>, rooms: &[Room]) {
        for Unplaced { job, need, mut hint } in unplaced {
            let could: Vec<bool> = rooms.iter().map(|r| r.is_lending() && r.could_hold(&need)).collect();
            hint.ahead = self
                .line
                .iter()
                .filter(|(other, _)| other.iter().zip(&could).any(|(a, b)| *a && *b))
                .map(|(_, count)| count)
                .sum();
            let sentence = why(&need, rooms, &hint);
            *self.line.entry(could).or_default() += 1;
            if self.whys.get(&job) != Some(&sentence) {
                self.whys.insert(job.clone(), sentence);
                self.stirred.insert(job);
            }
        }
    }
}

/// The oldest job of the member with the least share.
fn take_next(lines: &mut Lines, shares: &BTreeMap<MemberId, u64>) -> Option<JobId> {
    let first = lines.iter_mut().filter(|(_, line)| !line.is_empty()).min_by_key(|(member, line)| {
        (shares.get(*member).copied().unwrap_or(0), line.last().map(|(number, _)| *number))
    });
    first.and_then(|(_, line)| line.pop()).map(|(_, job)| job)
}

fn failed_to_start(state: &AttemptState) -> bool {
    match state {
        AttemptState::Ended { cause: EndCause::CouldNotStart { .. } | EndCause::Broken { .. } } => true,
        AttemptState::Ended { .. }
        | AttemptState::Reserved
        | AttemptState::Preparing { .. }
        | AttemptState::Ready
        | AttemptState::Running
        | AttemptState::Stopped { .. }
        | AttemptState::Saving => false,
    }
}
