//! A campus whose agents and relay have crash points, and the traces of a job that nobody
//! disturbed.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use gpunion_protocol::job::{AttemptState, EndCause, JobState, JobView};
use system_tests::campus::{Device, Files, PATIENCE, Pace, Pair, Relay, crash};
use system_tests::lab::{Engine, wait_for};

use crate::course::now;

/// It saves after each epoch, and takes longer than a first checkpoint does on a busy machine.
const PACE: Pace = Pace { epochs: 4, epoch_seconds: 0.75 };

/// What ended is looked for so often.
const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct Traced {
    pub(crate) pair: Pair,
    undisturbed: Files,
    /// Boundaries that the agent passed which ran the job, and the relay, in their order.
    pub(crate) agent: Vec<String>,
    pub(crate) relay: Vec<String>,
    /// Who had ended and was started again, by name.
    raised: BTreeSet<String>,
}

/// How the relay is called among those who end.
pub(crate) const RELAY: &str = "relay";

impl Traced {
    pub(crate) fn found() -> Self {
        let mut pair = Pair::lending().unwrap();
        watch(&mut pair);
        // Once, so that the image is there, which no later job has to wait for.
        let undisturbed = run(&pair, "first");
        let (agent, relay, raised) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut traced = Self { pair, undisturbed, agent, relay, raised };
        traced.forget();
        crash::forget(&traced.pair.relay.user).unwrap();
        assert!(run(&traced.pair, "traced") == traced.undisturbed, "two undisturbed runs differ");
        traced.settle();
        let (one, other) = (traced.passed(0), traced.passed(1));
        // The one that ran it passed more.
        traced.agent = if one.len() > other.len() { one } else { other };
        traced.relay = crash::passed(&traced.pair.relay.user).unwrap();
        traced
    }

    /// What this provider's agent passed since the last `forget`.
    pub(crate) fn passed(&self, provider: usize) -> Vec<String> {
        crash::passed(&self.pair.providers[provider].user).unwrap()
    }

    pub(crate) fn forget(&mut self) {
        self.pair.providers.iter().for_each(|provider| crash::forget(&provider.user).unwrap());
        self.raised.clear();
    }

    /// Submits, until the relay that may end in the middle of it has taken all in; the jobs of those
    /// names, which are two of one when it took in the first and could not say so.
    pub(crate) fn submit(&mut self, names: &[String]) -> Vec<String> {
        let mut left: Vec<PathBuf> = names.iter().map(|name| folder(&self.pair, name)).collect();
        for _ in 0..3 {
            let submitted = self.meanwhile(|ada| submit_at_once(ada, &left));
            left =
                left.into_iter().zip(submitted).filter(|(_, done)| done.is_err()).map(|(f, _)| f).collect();
            if left.is_empty() {
                break;
            }
        }
        let listed: Vec<JobView> = self.until("the list of jobs", |ada| ada.json(&["jobs"]).ok());
        let lost = names.iter().find(|name| listed.iter().all(|job| job.spec.name != **name));
        assert!(lost.is_none(), "{lost:?} was not taken in\n{}", self.pair.logs());
        let ours = listed.iter().filter(|job| names.contains(&job.spec.name));
        ours.map(|job| job.id.to_string()).collect()
    }

    fn raise(&mut self) {
        let Pair { providers, relay, engines, .. } = &mut self.pair;
        raise(providers, relay, engines, &mut self.raised);
    }

    /// What the member does; who ends meanwhile is raised.
    fn meanwhile<T: Send>(&mut self, work: impl FnOnce(&Device) -> T + Send) -> T {
        let Self { pair, raised, .. } = self;
        let Pair { ada, providers, relay, engines, .. } = pair;
        std::thread::scope(|scope| {
            let work = scope.spawn(|| work(ada));
            while !work.is_finished() {
                raise(providers, relay, engines, raised);
                std::thread::sleep(LOOK);
            }
            work.join().unwrap()
        })
    }

    /// Asks until there is an answer.
    fn until<T: Send>(&mut self, what: &str, ask: impl Fn(&Device) -> Option<T> + Sync) -> T {
        let give_up = now() + PATIENCE;
        loop {
            if let Some(answer) = self.meanwhile(&ask) {
                return answer;
            }
            assert!(now() < give_up, "waited {PATIENCE:?} for {what}\n{}", self.pair.logs());
        }
    }

    /// It ended once and well, and with the bytes of an undisturbed run.
    pub(crate) fn ended_once(&mut self, id: &str, at: &str) {
        let ended = |ada: &Device| ada.job(id).ok().filter(|job| job.state.is_final());
        let job = self.until(&format!("the end of {id}, {at}"), ended);
        assert_eq!(job.state, JobState::Succeeded, "{at}: {job:#?}\n{}", self.pair.logs());
        let good = |one: &&gpunion_protocol::job::AttemptView| {
            matches!(one.state, AttemptState::Ended { cause: EndCause::Exited { code: 0 } })
        };
        assert_eq!(job.attempts.iter().filter(good).count(), 1, "{at}: {job:#?}\n{}", self.pair.logs());
        assert!(job.attempts.len() <= 3, "{at}: {job:#?}\n{}", self.pair.logs());
        let fetch = |ada: &Device| ada.fetch(id, &format!("{id}-results")).ok();
        let result = self.until(&format!("the result of {id}, {at}"), fetch);
        assert!(result == self.undisturbed, "{at}: the result differs from an undisturbed run's");
        let later = self.until("the job again", |ada| ada.job(id).ok());
        assert_eq!((later.state, later.attempts), (job.state, job.attempts), "{at}: it did not last");
    }

    /// Until nothing of any job is left on either machine.
    pub(crate) fn settle(&mut self) {
        let give_up = now() + PATIENCE;
        loop {
            self.raise();
            let left = self.pair.engines.each_ref().map(|engine| engine.left_of_guests());
            if left.iter().all(|left| left.as_ref().is_ok_and(Vec::is_empty)) {
                return;
            }
            assert!(now() < give_up, "guests leave behind {left:?}\n{}", self.pair.logs());
            std::thread::sleep(LOOK);
        }
    }

    /// Whether who was armed passed there, which ended it: it was seen as ended, and raised.
    pub(crate) fn ended(&mut self, who: &str) -> bool {
        let user = match self.pair.providers.iter().find(|provider| provider.name == who) {
            Some(provider) => &provider.user,
            None => &self.pair.relay.user,
        };
        if crash::disarm(user) {
            assert!(!self.raised.contains(who), "{who} ended elsewhere\n{}", self.pair.logs());
            return false;
        }
        let give_up = now() + PATIENCE;
        while !self.raised.contains(who) {
            assert!(now() < give_up, "{who} passed where it had to end\n{}", self.pair.logs());
            self.raise();
        }
        true
    }
}

/// At once, so that each finds a provider of its own: on a busy machine one job may be over by the
/// time that the next command has started.
pub(crate) fn submit_at_once(ada: &Device, folders: &[PathBuf]) -> Vec<Result<String>> {
    std::thread::scope(|scope| {
        let submits: Vec<_> = folders.iter().map(|folder| scope.spawn(|| ada.submit(folder))).collect();
        submits.into_iter().map(|submit| Ok(submit.join().unwrap()?.0)).collect()
    })
}

/// Whatever has ended is started again, as a system's service manager would.
fn raise(
    providers: &mut [Device; 2],
    relay: &mut Relay,
    engines: &mut [Engine; 2],
    raised: &mut BTreeSet<String>,
) {
    for provider in providers {
        if provider.agent_pid().is_none_or(has_ended) {
            provider.kill_agent().unwrap();
            provider.start_agent().unwrap();
            raised.insert(provider.name.clone());
        }
    }
    if has_ended(relay.pid()) {
        relay.kill().unwrap();
        relay.start_again().unwrap();
        raised.insert(RELAY.to_owned());
    }
    for engine in engines {
        if engine.dockerd_pid().is_none() {
            engine.start().unwrap();
        }
    }
}

/// Agents and relay begin anew, with crash points.
fn watch(pair: &mut Pair) {
    crash::watch(&pair.relay.user).unwrap();
    pair.relay.kill().unwrap();
    pair.relay.start_again().unwrap();
    for provider in &mut pair.providers {
        crash::watch(&provider.user).unwrap();
        provider.kill_agent().unwrap();
        provider.start_agent().unwrap();
    }
    for device in pair.providers.iter().chain([&pair.ada]) {
        wait_for("its session with the relay, and its offer", PATIENCE, || {
            let snapshot = device.snapshot()?;
            let connected = snapshot.group.is_some_and(|group| group.connected);
            Ok((connected && (snapshot.share.open || device.gpus.is_none())).then_some(()))
        })
        .unwrap();
    }
}

/// A job's.
pub(crate) fn folder(pair: &Pair, name: &str) -> PathBuf {
    let folder = pair.ada.digits_folder(name, PACE).unwrap();
    let spec = std::fs::read_to_string(folder.join("gpunion.toml")).unwrap();
    let mut spec: toml::Table = spec.parse().unwrap();
    spec["checkpoint"].as_table_mut().unwrap().insert("every".to_owned(), "1 s".into());
    pair.ada.write_in(&folder, "gpunion.toml", &toml::to_string(&spec).unwrap()).unwrap();
    folder
}

fn run(pair: &Pair, name: &str) -> Files {
    let (job, ..) = pair.ada.submit(&folder(pair, name)).unwrap();
    let job = pair.succeeds(&job).unwrap();
    assert_eq!(job.attempts.len(), 1, "{job:#?}");
    pair.ada.fetch(name, &format!("{name}-results")).unwrap()
}

/// Gone, or a zombie that waits for this test.
fn has_ended(pid: i32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    !status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}
