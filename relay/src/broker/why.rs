//! Why a job waits, in one sentence that a person understands. It names what is missing. No time
//! is promised: none is known.

use gpunion_protocol::egress::EgressRule;
use gpunion_protocol::units::{Bytes, Span};

use super::placement::{Need, Room};

/// What only the queue knows about the job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Hint {
    /// Jobs before it that want the same providers.
    pub(super) ahead: usize,
    /// Providers that would fit now, but have no key of the job.
    pub(super) keyless: Vec<String>,
    /// No device that is left may hand the key on.
    pub(super) key_lost: bool,
    /// Nothing is placed where it would fit, in a sentence.
    pub(super) aside: Option<String>,
    /// Where it just failed to start, and is tried again soon.
    pub(super) resting: Option<String>,
    /// The relay has just started, and providers are still coming back.
    pub(super) settling: bool,
    /// It reaches outside, and an earlier run of the relay may have let it.
    pub(super) leases_run: bool,
    /// It is not placed for now whatever is free, in a sentence.
    pub(super) waits: Option<String>,
    /// The provider that went silent with it.
    pub(super) silent: Option<String>,
}

pub(super) fn why(need: &Need, rooms: &[Room], hint: &Hint) -> String {
    if let Some(sentence) = &hint.waits {
        return sentence.clone();
    }
    let reason = reason(need, rooms, hint);
    match &hint.silent {
        Some(name) => format!("{name} went silent and may return; until then: {}", lower_first(&reason)),
        None => reason,
    }
}

fn reason(need: &Need, rooms: &[Room], hint: &Hint) -> String {
    if hint.leases_run {
        return "The relay has just started; a job with egress waits until no earlier attempt can still be running"
            .to_owned();
    }
    if let Some(name) = hint.keyless.first().filter(|_| hint.key_lost) {
        return format!(
            "{name} is free, but no device that is left can give it this job's key; cancel the job and submit it again"
        );
    }
    if let Some(name) = hint.keyless.first() {
        return format!(
            "{name} is free, but has no key of this job yet; it gets one when a device of the member is online"
        );
    }
    if let Some(sentence) = &hint.aside {
        return sentence.clone();
    }
    if let Some(name) = &hint.resting {
        return format!("It could not start on {name}; it is tried there again in a moment");
    }
    let fit: Vec<&Room> = rooms.iter().filter(|r| r.is_lending() && r.could_hold(need)).collect();
    if !fit.is_empty() {
        return all_lent(need, &fit, hint.ahead);
    }
    if let Some(sentence) = not_here(need, rooms) {
        return sentence;
    }
    let lending: Vec<&Room> = rooms.iter().filter(|r| r.is_lending()).collect();
    match lending.as_slice() {
        [] if hint.settling => "The relay has just started; it waits for providers to come back".to_owned(),
        [] => "Nobody lends anything now".to_owned(),
        some => missing(need, some),
    }
}

/// Everything that fits is in use.
fn all_lent(need: &Need, fit: &[&Room], ahead: usize) -> String {
    let place = match ahead {
        0 => "you are next".to_owned(),
        1 => "1 job is before yours".to_owned(),
        n => format!("{n} jobs are before yours"),
    };
    if let Some(room) = fit.iter().find(|r| r.blocked) {
        return format!("{} still has to end guests that nobody knows; {place}", room.name);
    }
    let gpus = fit.iter().flat_map(|r| r.fitting(need));
    let (all, free) = gpus.fold((0, 0), |(all, free), gpu| (all + 1, free + usize::from(gpu.free)));
    let with = with_memory(need);
    let tight = fit.iter().find(|r| r.fitting(need).filter(|gpu| gpu.free).count() >= need.gpus as usize);
    match tight {
        Some(room) => {
            let what = if room.cpus.left < need.cpus {
                "CPUs"
            } else if room.memory.left < need.memory.0 {
                "memory"
            } else {
                "disk"
            };
            let has = if need.gpus == 0 { "has" } else { "has a free GPU, but" };
            format!("{} {has} not enough {what} left beside other jobs; {place}", room.name)
        }
        None if free > 0 => {
            format!("Only {free} of the {all} GPUs{with} are free, not {} in one machine; {place}", need.gpus)
        }
        None if all == 1 => format!("The only GPU{with} is lent; {place}"),
        None => format!("All {all} GPUs{with} are lent; {place}"),
    }
}

/// Providers that would fit, but are away or closed (F82: the machine is named).
fn not_here(need: &Need, rooms: &[Room]) -> Option<String> {
    let fit: Vec<&Room> = rooms.iter().filter(|r| !r.is_lending() && r.could_hold(need)).collect();
    let away = fit.iter().filter(|r| !r.here).count();
    match fit.as_slice() {
        [] => None,
        [only] if !only.here => Some(format!("{}, the only provider that fits, is offline", only.name)),
        [only] => {
            let because = only.closed_because.as_deref().map(|w| format!(" ({w})")).unwrap_or_default();
            Some(format!("{}, the only provider that fits, does not lend now{because}", only.name))
        }
        _ if away == fit.len() => Some(format!("All {away} providers that fit are offline: {}", names(&fit))),
        _ => Some(format!("None of the {} providers that fit lends now: {}", fit.len(), names(&fit))),
    }
}

/// Somebody's offer is large enough, but no owner of those allows what the job wants to reach.
fn not_allowed(need: &Need, lending: &[&Room]) -> Option<String> {
    let roomy: Vec<&&Room> = lending.iter().filter(|r| r.has_room(need)).collect();
    let missing = roomy.iter().find_map(|r| r.egress.missing(&need.egress))?;
    Some(if roomy.iter().all(|r| r.egress == EgressRule::Off) {
        format!("No provider that fits lets jobs reach the network; this job asks for {missing}")
    } else {
        format!("No provider that fits lets jobs reach {missing}")
    })
}

/// Nobody's offer is large enough: names the first thing that is too small everywhere.
fn missing(need: &Need, lending: &[&Room]) -> String {
    if let Some(sentence) = not_allowed(need, lending) {
        return sentence;
    }
    let with = with_memory(need);
    let most_gpus = lending.iter().map(|r| r.fitting(need).count()).max().unwrap_or(0);
    if most_gpus < need.gpus as usize {
        return match (need.gpus, most_gpus) {
            (1, _) | (_, 0) if need.gpu_memory > Bytes(0) => format!("No provider has a GPU{with}"),
            (1, _) | (_, 0) => "No provider lends a GPU now".to_owned(),
            (n, most) => format!("No provider has {n} GPUs{with} in one machine; the most is {most}"),
        };
    }
    let roomy = || lending.iter().filter(|r| r.fitting(need).count() >= need.gpus as usize);
    let gpu = if need.gpus == 0 { String::new() } else { format!(" and such a GPU{with}") };
    let most_cpus = roomy().map(|r| r.cpus.all).max().unwrap_or(0);
    if most_cpus < need.cpus {
        return format!("No provider lends {} CPUs{gpu}; the most is {most_cpus}", need.cpus);
    }
    for (what, wanted, most) in [
        ("memory", need.memory, roomy().map(|r| r.memory.all).max()),
        ("disk", need.disk, roomy().map(|r| r.disk.all).max()),
    ] {
        let most = Bytes(most.unwrap_or(0));
        if most < wanted {
            return format!("No provider lends {wanted} of {what}{gpu}; the most is {most}");
        }
    }
    let longest = roomy().filter_map(|r| r.time_left.map(|left| (left, r))).max_by_key(|(left, _)| *left);
    match longest {
        Some((left, room)) if left < room.least_time(need) => {
            let minutes = Span(gpunion_protocol::time::Millis(left.0.div_ceil(60_000) * 60_000));
            format!("{} lends for only {minutes} more, too short for this job to save anything", room.name)
        }
        Some(_) | None => {
            format!(
                "No single provider has all of {} CPUs, {} of memory and {} of disk{gpu}",
                need.cpus, need.memory, need.disk
            )
        }
    }
}

fn with_memory(need: &Need) -> String {
    if need.gpu_memory > Bytes(0) { format!(" with {}", need.gpu_memory) } else { String::new() }
}

fn names(rooms: &[&Room]) -> String {
    const SHOWN: usize = 3;
    let mut names: Vec<&str> = rooms.iter().take(SHOWN).map(|r| r.name.as_str()).collect();
    if rooms.len() > SHOWN {
        names.push("…");
    }
    names.join(", ")
}

fn lower_first(text: &str) -> String {
    // Names of machines start some sentences and keep their letters.
    let common = ["All ", "The ", "No ", "Nobody ", "Only ", "It ", "None "];
    if common.iter().any(|word| text.starts_with(word)) {
        text[..1].to_ascii_lowercase() + &text[1..]
    } else {
        text.to_owned()
    }
}
