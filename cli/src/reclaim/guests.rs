//! The guests of a machine whose agent does not answer: found, told to end, seen to end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::join_all;
use gpunion_agent_core::channel::Watched;
use gpunion_agent_core::config::files;
use gpunion_agent_core::driver::guest::{CONTROL, FACTS};
use gpunion_agent_core::gpu::{BeforeGuest, ProcessId, container_of};
use gpunion_agent_core::second_way::{Told, ask};
use gpunion_protocol::ids::{AttemptRef, GpuUuid};
use gpunion_protocol::receipt::{GuestReceipt, Way};
use gpunion_protocol::second_way::ToSecondWay;
use serde::Deserialize;

use super::Click;
use super::hand::Written;

/// So long its init has for the file `end`; then the second way is told.
const INIT: Duration = Duration::from_millis(150);
/// So long is waited for the ends of all, with the second way told again each second.
const ENDS: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(1);
/// Longer than the second way itself goes on trying.
const ANSWER: Duration = Duration::from_secs(4);

/// What the agent wrote down about each guest.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Facts {
    attempt: AttemptRef,
    name: String,
    member: String,
    pub(super) container: String,
    pub(super) pid: u32,
    pub(super) start_time: u64,
    pub(super) gpus: Vec<GpuUuid>,
    #[serde(default)]
    pub(super) before: Vec<BeforeGuest>,
}

pub(super) struct Guest {
    pub(super) facts: Facts,
    control: PathBuf,
    /// `None`: it had ended before.
    watched: io::Result<Option<Watched>>,
    processes: u32,
    stopped_ms: Option<u64>,
    ended_ms: Option<u64>,
    way: Way,
}

#[derive(Default)]
pub(super) struct Guests {
    pub(super) known: Vec<Guest>,
    /// Control folders of guests that were just being started: whose GPUs they have, nobody knows.
    unseen: Vec<PathBuf>,
    pub(super) troubles: Vec<String>,
    /// It is not sure that these are all.
    unsure: bool,
}

impl Guests {
    pub(super) fn find(folder: &Path, gpu: Option<&GpuUuid>) -> Self {
        let mut found = Self::default();
        let folders = match fs::read_dir(folder) {
            Ok(folders) => folders,
            // No guest was ever here.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return found,
            Err(error) => {
                found.unreadable(folder, &error);
                return found;
            }
        };
        for entry in folders {
            match entry {
                Ok(entry) => found.add(&entry.path(), gpu),
                Err(error) => found.unreadable(folder, &error),
            }
        }
        found
    }

    fn unreadable(&mut self, folder: &Path, error: &io::Error) {
        self.unsure = true;
        self.troubles.push(format!(
            "the guests in {} can't be listed ({error}), so some may live; end them with: docker ps --filter \
             label=gpunion.kind=guest, then docker kill",
            folder.display()
        ));
    }

    fn add(&mut self, folder: &Path, gpu: Option<&GpuUuid>) {
        let control = folder.join(CONTROL);
        match files::read_json::<Facts>(&folder.join(FACTS)) {
            Ok(Some(facts)) if gpu.is_some_and(|gpu| !facts.gpus.contains(gpu)) => {}
            Ok(Some(facts)) => {
                // First, and it takes microseconds: who has ended can't be opened any more.
                let watched = Watched::open(ProcessId { pid: facts.pid, start_time: facts.start_time });
                let (processes, stopped_ms, ended_ms) = (count(&facts), None, None);
                let way = Way::NotEnded;
                self.known.push(Guest { facts, control, watched, processes, stopped_ms, ended_ms, way });
            }
            // Its init has not been seen yet: told all the same.
            Ok(None) | Err(_) if control.is_dir() => self.unseen.push(control),
            Ok(None) | Err(_) => {}
        }
    }

    /// Of all that must be told, in the order in which `written` answers.
    pub(super) fn controls(&self) -> Vec<PathBuf> {
        self.known.iter().map(|guest| &guest.control).chain(&self.unseen).cloned().collect()
    }

    /// Sees them end: by their inits; those that live on by the second way, again and again.
    pub(super) async fn end(&mut self, second_way: &Path, all: bool, click: Click) {
        let until = click.after(ENDS);
        self.see(click, INIT.saturating_sub(click.since())).await;
        let mut why = None;
        let mut first = true;
        while self.known.iter().any(Guest::lives) || (first && !self.unseen.is_empty()) {
            if !first && click.since() >= ENDS {
                break;
            }
            why = self.tell_second_way(second_way, all, click).await.err();
            let wait = AGAIN.min(until.saturating_duration_since(tokio::time::Instant::now()));
            self.see(click, wait).await;
            first = false;
        }
        self.complain(why.as_deref());
    }

    /// Waits until all have ended, or for so long.
    async fn see(&mut self, click: Click, wait: Duration) {
        let ends = self.known.iter_mut().filter(|guest| guest.lives()).map(|guest| async move {
            match &guest.watched {
                Ok(None) => guest.ended(click.ms(), Way::Already),
                Ok(Some(watched)) => {
                    if matches!(tokio::time::timeout(wait, watched.ended()).await, Ok(Ok(()))) {
                        guest.ended(click.ms(), Way::EndFile);
                    }
                }
                // Its end can't be seen; the second way may tell.
                Err(_) => {}
            }
        });
        join_all(ends).await;
    }

    async fn tell_second_way(&mut self, folder: &Path, all: bool, click: Click) -> Result<(), String> {
        // Who is just being started is known to its cgroup alone.
        let question = match all && !self.unseen.is_empty() {
            true => ToSecondWay::EndAll,
            false => {
                let living = self.known.iter().filter(|guest| guest.lives());
                ToSecondWay::End { containers: living.map(|guest| guest.facts.container.clone()).collect() }
            }
        };
        let folder = folder.to_owned();
        let asked = tokio::task::spawn_blocking(move || ask(&folder, &question, ANSWER));
        let told = asked.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        for guest in self.known.iter_mut().filter(|guest| guest.lives()) {
            guest.hear(&told, click);
        }
        told.answer.trouble.map_or(Ok(()), Err)
    }

    fn complain(&mut self, why: Option<&str>) {
        for guest in self.known.iter().filter(|guest| guest.lives()) {
            let facts = &guest.facts;
            let why =
                why.map(|why| format!(", and the second way could not help ({why})")).unwrap_or_default();
            self.troubles.push(format!(
                "{} of {} could not be ended: its init does not answer{why}; end it with: docker kill {}",
                facts.name, facts.member, facts.container
            ));
        }
        if !self.unseen.is_empty() {
            self.unsure = true;
            self.troubles.push(format!(
                "{} guests that were just being started were told to end; whether they did can't be seen from here: \
                 run it again, or start the agent",
                self.unseen.len()
            ));
        }
    }

    /// `written`: what became of the files `end`.
    pub(super) fn complain_of_files(&mut self, written: &[Written]) {
        for (guest, written) in self.known.iter().zip(written) {
            let why = match written {
                Some(Ok(())) => continue,
                Some(Err(why)) => why.as_str(),
                None => "its disk does not answer",
            };
            // By then it may have ended another way; what could not be done is told all the same.
            self.troubles.push(format!(
                "the file that ends {} of {} could not be written: {why}",
                guest.facts.name, guest.facts.member
            ));
        }
    }

    pub(super) fn all_ended(&self) -> bool {
        !self.unsure && !self.known.iter().any(Guest::lives)
    }

    pub(super) fn receipts(&self) -> Vec<GuestReceipt> {
        self.known.iter().map(Guest::receipt).collect()
    }
}

impl Guest {
    fn lives(&self) -> bool {
        self.ended_ms.is_none()
    }

    fn ended(&mut self, at: u64, way: Way) {
        self.ended_ms = Some(at);
        // That the second way killed it is known better than how its end was seen.
        if self.way == Way::NotEnded {
            self.way = way;
        }
        // Nothing but its end was seen of its stop.
        self.stopped_ms.get_or_insert(at);
    }

    fn hear(&mut self, told: &Told, click: Click) {
        let Some(end) = told.answer.guests.iter().find(|end| end.container == self.facts.container) else {
            return;
        };
        if end.killed > 0 {
            self.way = Way::SecondWay;
            self.processes = self.processes.max(end.killed.saturating_sub(1));
        }
        if let Some(stopped) = told.stopped(end) {
            self.stopped_ms.get_or_insert((stopped - click.boot).0);
        }
        // Seen by its cgroup, where its init can't be watched.
        if end.found && end.ended_us.is_some() && self.watched.is_err() {
            self.ended(click.ms(), Way::EndFile);
        }
    }

    fn receipt(&self) -> GuestReceipt {
        let facts = &self.facts;
        GuestReceipt {
            attempt: facts.attempt.clone(),
            name: facts.name.clone(),
            member: facts.member.clone(),
            processes: self.processes,
            stopped_ms: self.stopped_ms,
            ended_ms: self.ended_ms,
            way: if self.lives() { Way::NotEnded } else { self.way },
        }
    }
}

/// Processes of a guest that exist now, without its init, as init itself counts them.
fn count(guest: &Facts) -> u32 {
    let Ok(entries) = fs::read_dir("/proc") else { return 0 };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mine = pids.filter(|pid| *pid != guest.pid && container_of(*pid).as_ref() == Some(&guest.container));
    u32::try_from(mine.count()).unwrap_or(u32::MAX)
}
