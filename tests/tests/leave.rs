//! An owner goes with notice: whoever computes there is told, saves, and goes on elsewhere without
//! computing anything twice; and whatever it does with the notice, it is gone in time.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use std::fs;

use gpunion_protocol::job::{AttemptState, EndCause, JobState, JobView, Quality};
use system_tests::campus::{Files, PATIENCE, Pace, Pair, processes_of};
use system_tests::lab::wait_for;

const EPOCHS: u32 = 8;
const SLOW: Pace = Pace { epochs: EPOCHS, epoch_seconds: 1.5 };
/// Steps of the script, a third of a second each: its owner goes in the tenth or a little later.
const STEPS: u32 = 40;

/// Says nothing when it is told, and ends as if all were done.
const POLITE: &str = "n=$(cat n 2>/dev/null || echo 0)
trap 'exit 0' TERM
while [ \"$n\" -lt 40 ]; do
  /busybox usleep 300000
  n=$((n + 1))
  echo $n > n.tmp
  /busybox mv n.tmp n
  echo \"step $n\"
done
echo \"all of $n\" > result.txt
";
/// Hears nothing.
const DEAF: &str = "trap '' TERM
n=$(cat n 2>/dev/null || echo 0)
while [ \"$n\" -lt 40 ]; do
  /busybox usleep 300000
  n=$((n + 1))
  echo $n > n.tmp
  /busybox mv n.tmp n
  echo \"step $n\"
done
cat /run/gpunion/leaving >> told.txt 2>/dev/null
echo \"all of $n\" > result.txt
";

/// Goes on for long after it was told, and says when it has saved.
const LINGERS: &str = "n=$(cat n 2>/dev/null || echo 0)
trap 'told=60' TERM
while [ \"$n\" -lt 100 ]; do
  /busybox usleep 300000
  n=$((n + 1))
  echo $n > n.tmp
  /busybox mv n.tmp n
  echo \"step $n\"
  [ -n \"$told\" ] && told=$((told - 1))
  [ \"$told\" = 0 ] && : > /run/gpunion/saved
done
echo \"all of $n\" > result.txt
";

fn undisturbed(pair: &Pair) -> Files {
    let folder = pair.ada.digits_folder("undisturbed", Pace { epochs: EPOCHS, epoch_seconds: 0.0 }).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    pair.succeeds(&job).unwrap();
    pair.ada.fetch("undisturbed", "undisturbed-results").unwrap()
}

fn share(pair: &Pair, owner: usize, words: &[&str]) -> String {
    let words: Vec<&str> = ["share"].iter().chain(words).copied().collect();
    pair.providers[owner].run(words).unwrap().ok().unwrap().out
}

/// Two attempts, the first ended because its owner left, the second elsewhere and to the end.
fn moved(pair: &Pair, job: &str, from: usize) -> JobView {
    moved_because(pair, job, from, EndCause::Left)
}

/// And its member is told what that cost, by all ways in the same words.
fn moved_because(pair: &Pair, job: &str, from: usize, cause: EndCause) -> JobView {
    let job = pair.succeeds(job).unwrap();
    assert_eq!(job.attempts.len(), 2, "{job:#?}\n{}", pair.logs());
    assert_eq!(job.attempts[0].state, AttemptState::Ended { cause }, "{job:#?}");
    assert_ne!(pair.at(&job).unwrap(), from);
    let moved = job.attempts[1].moved.as_ref().unwrap();
    assert_eq!(moved.from, job.attempts[0].device);
    let shown = pair.ada.run(["show", job.id.as_str()]).unwrap().ok().unwrap().out;
    assert!(shown.contains("without computing") && shown.contains("of work were lost"), "{shown}");
    job
}

fn log(pair: &Pair, job: &str) -> String {
    pair.ada.run(["logs", job]).unwrap().ok().unwrap().out
}

/// The script as a job of the CPU, caught after some of its steps; and who runs it.
fn caught_script(pair: &Pair, name: &str, script: &str) -> (String, usize) {
    let spec = format!(
        "name = \"{name}\"\nimage = \"busybox:latest\"\ncommand = [\"/busybox\", \"sh\", \"script.sh\"]\n\
         [resources]\ngpus = 0\nmemory = \"128 MiB\"\ndisk = \"1 GiB\"\n[checkpoint]\ngrace = \"60 s\"\n"
    );
    let folder = pair.ada.job_folder(name, &spec).unwrap();
    pair.ada.write_in(&folder, "script.sh", script).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    wait_for("some steps of the script", PATIENCE, || Ok(log(pair, &job).contains("step 10").then_some(())))
        .unwrap();
    let at = pair.at(&pair.ada.job(&job).unwrap()).unwrap();
    (job, at)
}

fn steps_taken(log: &str) -> Vec<u32> {
    log.lines().filter_map(|line| line.strip_prefix("step ")?.trim().parse().ok()).collect()
}

/// So many steps at most are in the one log stream twice; the one in which it was ended may have been
/// saved and not printed.
fn taken_again(steps: &[u32], at_most: usize) {
    let all: BTreeSet<u32> = steps.iter().copied().collect();
    assert!(steps.len() - all.len() <= at_most, "{steps:?}");
    let unsaid = (1..=STEPS).filter(|step| !all.contains(step)).count();
    assert!(unsaid <= 1, "{steps:?}");
}

fn result_of(pair: &Pair, job: &str, file: &str) -> String {
    pair.ada.run(["fetch", job, job]).unwrap().ok().unwrap();
    fs::read_to_string(pair.ada.user.home().join(job).join(file)).unwrap()
}

#[test]
fn a_job_that_is_told_saves_moves_and_computes_nothing_twice() {
    let mut pair = Pair::lending().unwrap();
    let undisturbed = undisturbed(&pair);

    let folder = pair.ada.digits_folder("moves", SLOW).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let at = pair.in_the_middle(&job).unwrap();
    let guests = pair.engines[at].guests().unwrap();
    let container = guests.into_iter().find(|one| processes_of(one).len() >= 3).unwrap();
    let said = share(&pair, at, &["off"]);
    assert!(said.contains("1 guest is leaving"), "{said}");
    wait_for("the guest to be gone", PATIENCE, || Ok(processes_of(&container).is_empty().then_some(())))
        .unwrap();
    let view = moved(&pair, &job, at);
    let last = view.checkpoints.iter().rfind(|c| c.token.attempt.0 == 1);
    assert!(last.is_none_or(|last| last.quality == Quality::Quiet), "{view:#?}");
    let log = log(&pair, &job);
    let printed = |epoch: u32| log.matches(&format!("epoch {epoch}/{EPOCHS} loss")).count();
    assert!((1..=EPOCHS).all(|epoch| printed(epoch) <= 1), "an epoch was computed twice: {log}");
    // One that was saved in the moment of the end may not have been printed any more.
    assert!((1..=EPOCHS).filter(|epoch| printed(*epoch) == 0).count() <= 1, "{log}");
    assert!(log.contains("SIGTERM: saved") && log.contains("resuming"), "{log}");
    let result = pair.ada.fetch(&job, "moved-results").unwrap();
    assert!(result == undisturbed, "the result differs from an undisturbed run's");
    pair.is_clean().unwrap();
    assert!(!pair.providers[at].snapshot().unwrap().share.open);

    // The agent is killed while its guest is on its way out.
    pair.providers[at].share().unwrap();
    let folder = pair.ada.digits_folder("agent-killed", SLOW).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let at = pair.in_the_middle(&job).unwrap();
    share(&pair, at, &["off"]);
    pair.providers[at].kill_agent().unwrap();
    pair.providers[at].start_agent().unwrap();
    moved(&pair, &job, at);
    let result = pair.ada.fetch(&job, "killed-results").unwrap();
    assert!(result == undisturbed, "the result differs from an undisturbed run's");
    pair.is_clean().unwrap();
}

#[test]
fn the_next_provider_is_ready_before_the_job_has_left() {
    let pair = Pair::lending().unwrap();
    pair.campus.busybox_image(&pair.engines[0]).unwrap();
    let (job, at) = caught_script(&pair, "lingers", LINGERS);
    share(&pair, at, &["off"]);
    let view = pair.ada.wait_job(&job, "the next provider to be ready while it runs", PATIENCE, |job| {
        matches!(job.attempts.as_slice(), [runs, next]
            if runs.state == AttemptState::Running && next.state == AttemptState::Ready)
    });
    let view = view.unwrap_or_else(|error| panic!("{error:#}\n{}", pair.logs()));
    assert_eq!(view.state, JobState::Running);
    let next = usize::from(at == 0);
    let prepared = pair.engines[next].guests().unwrap();
    assert!(prepared.iter().any(|guest| !processes_of(guest).is_empty()), "its init waits");
    moved(&pair, &job, at);
    // It went on from what it saved last, which was not there when its place was prepared.
    let steps = steps_taken(&log(&pair, &job));
    let all: BTreeSet<u32> = steps.iter().copied().collect();
    assert!(steps.len() - all.len() <= 1 && all.contains(&100), "{steps:?}");
    assert_eq!(result_of(&pair, &job, "result.txt"), "all of 100\n");
    pair.is_clean().unwrap();
}

#[test]
fn an_agent_that_is_told_to_stop_ends_when_its_guests_have_left() {
    let mut pair = Pair::lending().unwrap();
    let undisturbed = undisturbed(&pair);
    let folder = pair.ada.digits_folder("agent-stops", SLOW).unwrap();
    let (job, ..) = pair.ada.submit(&folder).unwrap();
    let at = pair.in_the_middle(&job).unwrap();
    let status = pair.providers[at].stop_agent().unwrap();
    assert!(status.success(), "{status}\n{}", pair.logs());
    assert_eq!(pair.engines[at].left_of_guests().unwrap(), Vec::<String>::new(), "nothing is left behind");
    moved(&pair, &job, at);
    let result = pair.ada.fetch(&job, "stopped-results").unwrap();
    assert!(result == undisturbed, "the result differs from an undisturbed run's");
    // Its owner's wish has not changed.
    pair.providers[at].start_agent().unwrap();
    wait_for("the offer of the next agent", PATIENCE, || {
        Ok(pair.providers[at].snapshot()?.share.open.then_some(()))
    })
    .unwrap();
}

#[test]
fn whoever_exits_when_it_is_told_goes_on_and_whoever_is_deaf_is_gone_in_time() {
    let pair = Pair::lending().unwrap();
    pair.campus.busybox_image(&pair.engines[0]).unwrap();

    let (job, at) = caught_script(&pair, "polite", POLITE);
    share(&pair, at, &["off"]);
    moved(&pair, &job, at);
    let steps = steps_taken(&log(&pair, &job));
    taken_again(&steps, 0);
    assert_eq!(result_of(&pair, &job, "result.txt"), format!("all of {STEPS}\n"));
    share(&pair, at, &["on"]);

    // The owner gives less grace than the spec asks for, and that is what counts.
    let (job, at) = caught_script(&pair, "deaf", DEAF);
    let said = share(&pair, at, &["off", "--grace", "1 s"]);
    assert!(said.contains("1 s to save at most"), "{said}");
    moved(&pair, &job, at);
    let steps = steps_taken(&log(&pair, &job));
    taken_again(&steps, 1);
    assert_eq!(result_of(&pair, &job, "result.txt"), format!("all of {STEPS}\n"));
    pair.is_clean().unwrap();
}

#[test]
fn what_a_reclaimed_job_left_is_salvaged_if_its_owner_allows() {
    let pair = Pair::lending().unwrap();
    pair.campus.busybox_image(&pair.engines[0]).unwrap();

    // It has no checkpoint, and says to nobody that it saves.
    let (job, at) = caught_script(&pair, "reclaimed", DEAF);
    assert!(pair.ada.job(&job).unwrap().checkpoints.is_empty());
    pair.providers[at].run(["reclaim"]).unwrap().ok().unwrap();
    moved_because(&pair, &job, at, EndCause::Reclaimed);
    let steps = steps_taken(&log(&pair, &job));
    taken_again(&steps, 1);
    assert_eq!(result_of(&pair, &job, "result.txt"), format!("all of {STEPS}\n"));

    for owner in 0..2 {
        share(&pair, owner, &["on", "--salvage", "off"]);
    }
    let (job, at) = caught_script(&pair, "not-salvaged", DEAF);
    pair.providers[at].run(["reclaim"]).unwrap().ok().unwrap();
    let view = moved_because(&pair, &job, at, EndCause::Reclaimed);
    let steps = steps_taken(&log(&pair, &job));
    assert_eq!(steps.iter().filter(|step| **step == 1).count(), 2, "it began anew: {steps:?}");
    let lost = view.attempts[1].moved.as_ref().unwrap().lost;
    assert!(lost.0 >= 1_000, "and its member is told what that cost: {view:#?}");
    pair.is_clean().unwrap();
}
