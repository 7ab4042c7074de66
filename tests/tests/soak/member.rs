//! The member: submits one job after the other, looks at them, fetches what has ended. One command
//! at a time, and none holds up the test: the relay may be killed while one waits for it.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gpunion_protocol::job::{AttemptState, EndCause, JobState, JobView};
use system_tests::campus::{Device, Luck, Ran};

use crate::kinds::{KINDS, Tree, fetch_command, read, submit_command, submitted};
use crate::now;

/// Jobs on their way at a time: enough that both machines always have one that waits.
const AHEAD: usize = 8;
/// Between two looks at the list.
const LOOK: Duration = Duration::from_millis(700);

#[derive(Debug)]
struct Order {
    name: String,
    kind: usize,
    /// Once it was taken in.
    job: Option<String>,
    /// It was submitted, and the answer was no id: whether it was taken in is seen in the list.
    unsure: bool,
    /// Final, as it was seen first.
    end: Option<JobView>,
    fetched: bool,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    List,
    Submit(usize),
    Fetch(usize),
}

pub(crate) struct Member {
    orders: Vec<Order>,
    undisturbed: Vec<Tree>,
    jobs: Vec<JobView>,
    looked: Instant,
    works: Option<(Work, Child)>,
}

impl Member {
    /// Kinds by turns, in a shuffled order.
    pub(crate) fn who_wants(jobs: usize, undisturbed: Vec<Tree>, luck: &mut Luck) -> Self {
        let order = |number: usize| Order {
            name: format!("{}-{number}", KINDS[number % KINDS.len()]),
            kind: number % KINDS.len(),
            job: None,
            unsure: false,
            end: None,
            fetched: false,
        };
        let mut orders: Vec<Order> = (0..jobs).map(order).collect();
        luck.shuffle(&mut orders);
        Self { orders, undisturbed, jobs: Vec::new(), looked: now(), works: None }
    }

    pub(crate) fn has_all(&self) -> bool {
        self.orders.iter().all(|order| order.fetched)
    }

    /// The newest list.
    pub(crate) fn jobs(&self) -> &[JobView] {
        &self.jobs
    }

    /// One that came to an end that it must not have, or waits for its member.
    pub(crate) fn lost(&self) -> Option<&JobView> {
        self.jobs.iter().find(|job| match job.state {
            JobState::Failed { .. } | JobState::Cancelled | JobState::Held { .. } => true,
            JobState::Queued { .. }
            | JobState::Placed
            | JobState::Running
            | JobState::Moving
            | JobState::Succeeded => false,
        })
    }

    pub(crate) fn wants_still(&self) -> Vec<(&str, Option<&JobView>)> {
        let left = self.orders.iter().filter(|order| !order.fetched);
        let job = |order: &Order| self.jobs.iter().find(|job| job.spec.name == order.name);
        left.map(|order| (order.name.as_str(), job(order))).collect()
    }

    pub(crate) fn tick(&mut self, ada: &Device) {
        let Some((work, mut child)) = self.works.take() else {
            self.begin(ada);
            return;
        };
        if child.try_wait().unwrap().is_none() {
            self.works = Some((work, child));
            return;
        }
        let ran = said(ada, child.wait().unwrap());
        match work {
            Work::List => self.listed(&ran),
            Work::Submit(at) if ran.code == Some(0) => self.orders[at].job = Some(submitted(&ran)),
            Work::Submit(at) => self.orders[at].unsure = true,
            Work::Fetch(at) if ran.code == Some(0) => self.fetched(ada, at),
            // Its relay was killed; again.
            Work::Fetch(_) => {}
        }
    }

    fn begin(&mut self, ada: &Device) {
        let Some(work) = self.next() else { return };
        let mut command = match work {
            Work::List => ada.command(["--json", "jobs"]),
            Work::Submit(at) => submit_command(ada, KINDS[self.orders[at].kind], &self.orders[at].name),
            Work::Fetch(at) => {
                let order = &self.orders[at];
                fetch_command(ada, order.job.as_ref().unwrap(), &format!("{}-results", order.name))
            }
        };
        self.works = Some((work, spawn(ada, &mut command)));
    }

    fn next(&self) -> Option<Work> {
        if now().duration_since(self.looked) > LOOK {
            return Some(Work::List);
        }
        let on_their_way = self.orders.iter().filter(|order| order.job.is_some() && order.end.is_none());
        let waits = |order: &Order| order.job.is_none() && !order.unsure;
        if on_their_way.count() < AHEAD
            && let Some(at) = self.orders.iter().position(waits)
        {
            return Some(Work::Submit(at));
        }
        let ended = |order: &Order| order.end.is_some() && !order.fetched;
        self.orders.iter().position(ended).map(Work::Fetch)
    }

    fn listed(&mut self, ran: &Ran) {
        self.looked = now();
        // None while the relay is away.
        let Ok(jobs) = ran.json() else { return };
        self.jobs = jobs;
        for order in &mut self.orders {
            let found = self.jobs.iter().find(|job| job.spec.name == order.name);
            if order.unsure {
                order.job = found.map(|job| job.id.to_string());
                order.unsure = false;
            }
            if order.end.is_none() && order.job.is_some() {
                order.end = found.filter(|job| job.state.is_final()).cloned();
            }
        }
    }

    fn fetched(&mut self, ada: &Device, at: usize) {
        let order = &mut self.orders[at];
        order.fetched = true;
        let tree = read(&ada.user.home().join(format!("{}-results", order.name)));
        let undisturbed = &self.undisturbed[order.kind];
        let same_names = tree.keys().eq(undisturbed.keys());
        assert!(same_names, "{}: {:?} and not {:?}", order.name, tree.keys(), undisturbed.keys());
        let differs = tree.iter().find(|(name, bytes)| undisturbed[*name] != **bytes);
        assert!(differs.is_none(), "{}: {:?} differs: {:#?}", order.name, differs.map(|d| d.0), order.end);
    }

    /// Of all jobs that were asked for.
    pub(crate) fn attempts(&self) -> usize {
        self.orders.iter().filter_map(|order| order.end.as_ref()).map(|job| job.attempts.len()).sum()
    }

    /// In the end: a job for each order, that ended well once, and still is as it was when it had
    /// just ended.
    pub(crate) fn sees_each_once(&self, ada: &Device) {
        let jobs: Vec<JobView> = ada.json(&["jobs"]).unwrap();
        assert_eq!(jobs.len(), self.orders.len() + KINDS.len(), "as many jobs as were asked for");
        for order in &self.orders {
            let end = order.end.as_ref().unwrap();
            let job = jobs.iter().find(|job| Some(job.id.as_str()) == order.job.as_deref()).unwrap();
            assert_eq!(job.state, JobState::Succeeded, "{job:#?}");
            assert_eq!((&job.state, &job.attempts, job.result), (&end.state, &end.attempts, end.result));
            let good =
                |cause: &AttemptState| *cause == AttemptState::Ended { cause: EndCause::Exited { code: 0 } };
            assert_eq!(job.attempts.iter().filter(|one| good(&one.state)).count(), 1, "{job:#?}");
            let checkpoints: BTreeSet<_> =
                job.checkpoints.iter().map(|checkpoint| checkpoint.snapshot).collect();
            assert_eq!(checkpoints.len(), job.checkpoints.len(), "one was published twice: {job:#?}");
        }
    }
}

/// What it says goes into files: nobody reads it before it has ended.
fn spawn(ada: &Device, command: &mut Command) -> Child {
    let file = |name: &str| File::create(ada.user.home().join(name)).unwrap();
    command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).spawn().unwrap()
}

fn said(ada: &Device, status: ExitStatus) -> Ran {
    let read = |name: &str| std::fs::read_to_string(ada.user.home().join(name)).unwrap();
    Ran { code: status.code(), out: read("out"), err: read("err") }
}
