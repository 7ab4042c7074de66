//! A provider that starts nothing is put aside, and the jobs are not to blame.

use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, JobId, MemberId};
use gpunion_protocol::job::{EndCause, JobState};
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::Millis;

use super::{Effect, World, sent};

const MINUTE: Millis = Millis::from_secs(60);

struct Lab {
    w: World,
    members: Vec<MemberId>,
    lab: DeviceId,
}

impl Lab {
    fn new(members: usize) -> Self {
        let mut w = World::new();
        let roles = std::iter::once(Role::Operator).chain(std::iter::repeat(Role::Member));
        let members =
            roles.take(members).enumerate().map(|(n, role)| w.join(role, &format!("member-{n}")).0).collect();
        let lab = w.provider("lab-1", &[8, 8, 8, 8, 8, 8, 8, 8]);
        Self { w, members, lab }
    }

    fn submit(&mut self, member: usize) -> JobId {
        let member = self.members[member].clone();
        self.w.submit(&member, |_| {})
    }

    /// Its newest attempt can't start.
    fn fail(&mut self, job: &JobId) {
        let (device, attempt) = self.w.newest(job);
        self.w.end(
            &device,
            &attempt,
            EndCause::CouldNotStart { reason: "the driver hangs".to_owned() },
            None,
        );
    }

    /// One job of each of these members fails there once.
    fn fail_each(&mut self, members: &[usize]) -> Vec<JobId> {
        let jobs: Vec<JobId> = members.iter().map(|member| self.submit(*member)).collect();
        jobs.iter().for_each(|job| self.fail(job));
        jobs
    }

    fn strikes(&self, job: &JobId) -> u32 {
        self.w.broker.courses[job].strikes
    }

    /// What its owner is told with the next renewal.
    fn told(&mut self) -> Option<String> {
        let lab = self.lab.clone();
        let effects = self.w.renew(&lab, &[]);
        put_aside(&effects, &lab)
    }

    fn first_placed<'a>(&self, mut jobs: impl Iterator<Item = &'a JobId>) -> Option<JobId> {
        jobs.find(|job| self.w.state(job) == JobState::Placed).cloned()
    }

    fn is_placed(&self, job: &JobId) -> bool {
        !self.w.broker.is_waiting(job)
    }
}

fn put_aside(effects: &[Effect], lab: &DeviceId) -> Option<String> {
    let told = |message: &&ToAgent| match message {
        ToAgent::Renewed { put_aside, .. } => put_aside.clone(),
        ToAgent::Welcome { .. }
        | ToAgent::Assign(_)
        | ToAgent::End { .. }
        | ToAgent::Published { .. }
        | ToAgent::PublishRefused { .. }
        | ToAgent::EndSeen { .. }
        | ToAgent::Go { .. }
        | ToAgent::LogKept { .. }
        | ToAgent::WrapFor { .. }
        | ToAgent::Beat => None,
    };
    sent(effects, lab).iter().find_map(told)
}

#[test]
fn f16_a_provider_where_three_jobs_of_different_members_could_not_start_is_put_aside() {
    let mut lab = Lab::new(3);
    let other = lab.w.provider("lab-2", &[80, 80, 80, 80]);
    let (ada, bob) = (lab.submit(0), lab.submit(1));
    let third = lab.submit(2);
    lab.fail(&ada);
    lab.fail(&bob);
    assert_eq!((lab.strikes(&ada), lab.strikes(&bob), lab.told()), (1, 1, None), "two may be chance");
    lab.fail(&third);
    for job in [&ada, &bob, &third] {
        assert_eq!((lab.strikes(job), lab.w.state(job)), (0, JobState::Placed), "no charge");
        assert_eq!(lab.w.newest(job).0, other, "it goes elsewhere at once");
    }
    let next = lab.submit(0);
    assert_eq!(lab.w.newest(&next).0, other, "though its GPUs are larger than the job needs");
    assert_eq!(
        lab.told().as_deref(),
        Some(
            "3 jobs in a row could not start here, the last because: the driver hangs. It gets none for 5 \
             min; then one may try again"
        )
    );
    let waiting = lab.submit(1);
    assert_eq!(
        lab.w.why(&waiting),
        "lab-1 is put aside, since 3 jobs in a row could not start there; it is tried again after 5 min at \
         most"
    );
}

#[test]
fn f16_the_jobs_of_one_member_and_starts_in_between_put_nobody_aside() {
    let mut lab = Lab::new(3);
    lab.fail_each(&[0, 0, 0, 0]);
    assert_eq!(lab.told(), None, "it may be that member's jobs");
    let good = lab.submit(1);
    lab.w.run(&good);
    lab.fail_each(&[1, 2]);
    assert_eq!(lab.told(), None, "somebody started since");
    lab.fail_each(&[0]);
    assert!(lab.told().is_some());
}

#[test]
fn f16_after_its_time_one_job_tries_it_and_each_new_failure_doubles_the_time_up_to_an_hour() {
    let mut lab = Lab::new(9);
    lab.fail_each(&[0, 1, 2]);
    let mut minutes = 5;
    for member in 3..9 {
        let new = lab.submit(member);
        lab.w.wait(Millis(minutes * MINUTE.0 - 1));
        assert!(!lab.is_placed(&new), "not before {minutes} min");
        lab.w.wait(Millis(1));
        assert!(lab.is_placed(&new), "who did not fail there goes before the older ones");
        let trying = lab.w.broker.open.iter().filter(|job| lab.is_placed(job)).count();
        assert_eq!(trying, 1, "one at a time");
        lab.fail(&new);
        assert_eq!(lab.strikes(&new), 0);
        minutes = (minutes * 2).min(60);
    }
    assert_eq!(minutes, 60);
}

#[test]
fn f16_a_start_ends_it_for_all_at_once() {
    let mut lab = Lab::new(4);
    let jobs = lab.fail_each(&[0, 1, 2]);
    let good = lab.submit(3);
    lab.w.wait(Millis(5 * MINUTE.0));
    assert!(lab.w.why(&jobs[0]).ends_with("another job tries it now"), "{}", lab.w.why(&jobs[0]));
    assert!(lab.told().unwrap().ends_with("The next one tries whether it works again"));
    lab.w.run(&good);
    assert_eq!(lab.told(), None);
    assert!(jobs.iter().all(|job| lab.is_placed(job)));
}

#[test]
fn f16_who_tries_it_and_goes_decides_nothing_and_lets_the_next_one_try() {
    let mut lab = Lab::new(4);
    let jobs = lab.fail_each(&[0, 1, 2]);
    let new = lab.submit(3);
    lab.w.wait(Millis(5 * MINUTE.0));
    let (device, attempt) = lab.w.newest(&new);
    let by = lab.members[3].clone();
    lab.w.cancel(&by, &new).unwrap();
    lab.w.end(&device, &attempt, EndCause::Cancelled, None);
    assert_eq!(jobs.iter().filter(|job| lab.is_placed(job)).count(), 1);
}

#[test]
fn f16_who_had_failed_there_proves_nothing_new_by_failing_again() {
    let mut lab = Lab::new(3);
    let jobs = lab.fail_each(&[0, 1, 2]);
    for strikes in 1..=4 {
        lab.w.wait(Millis(5 * MINUTE.0));
        let job = lab.first_placed(jobs.iter()).expect("one tries it");
        assert_eq!(job, jobs[0], "in the order of the queue");
        lab.fail(&job);
        assert_eq!(lab.strikes(&job), strikes, "its failure is its own now");
        assert!(lab.told().unwrap().contains("for 5 min"), "and it is no longer than before");
    }
    assert_eq!(lab.w.state(&jobs[0]).word(), "held");
}

#[test]
fn f16_a_job_that_was_held_for_its_failures_there_waits_again() {
    let mut lab = Lab::new(3);
    let first = lab.submit(0);
    for wait in [10, 20, 40, 0] {
        lab.fail(&first);
        lab.w.wait(Millis::from_secs(wait));
    }
    assert_eq!(lab.w.state(&first).word(), "held");
    lab.fail_each(&[1, 2]);
    assert_eq!((lab.w.state(&first).word(), lab.strikes(&first)), ("queued", 0));
}

#[test]
fn f16_jobs_that_can_start_nowhere_come_to_be_held_all_the_same() {
    let mut lab = Lab::new(3);
    let jobs = lab.fail_each(&[0, 1, 2]);
    let (mut good, mut started) = (Vec::new(), 0);
    for _ in 0..60 {
        lab.w.wait(MINUTE);
        good.push(lab.submit(0));
        // Others start there whenever they may, and clear it.
        while let Some(job) = lab.first_placed(good.iter().chain(&jobs)) {
            if good.contains(&job) {
                let (device, attempt) = lab.w.run(&job);
                lab.w.end(&device, &attempt, EndCause::Exited { code: 0 }, Some(1));
                started += 1;
            } else {
                lab.fail(&job);
            }
        }
    }
    assert!(started > 30, "{started}");
    for job in &jobs {
        assert_eq!(lab.w.state(job).word(), "held", "{:?}", lab.w.state(job));
    }
}

#[test]
fn f16_a_provider_that_answers_nobody_is_put_aside_too() {
    let mut lab = Lab::new(3);
    let jobs: Vec<JobId> = (0..3).map(|member| lab.submit(member)).collect();
    lab.w.wait(Millis::from_secs(30));
    assert!(lab.told().unwrap().contains("the provider did not answer for 30 s"));
    assert!(jobs.iter().all(|job| !lab.is_placed(job) && lab.strikes(job) == 0));
}
