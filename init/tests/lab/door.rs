//! `/run/gpunion`: the guest's own door to init.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::time::Millis;

use crate::guest::{Guest, boot_now, shell};

fn saved(word: &FromInit) -> Option<i64> {
    match word {
        FromInit::Saved { at_ns } => Some(*at_ns),
        _ => None,
    }
}

fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn saved_is_told_each_time_with_a_time_that_the_program_can_not_set() {
    let guest = Guest::start();
    let script = r#"
        echo 1 > model; touch -d @1000 /run/gpunion/saved
        while [ -e /run/gpunion/saved ]; do sleep 0.01; done
        touch /run/gpunion/saved
        while [ -e /run/gpunion/saved ]; do sleep 0.01; done
        echo 1 > ready; sleep 1000"#;
    let (mut agent, _ring) = guest.begin(shell(script));
    let first = agent.expect("Saved", saved);
    let second = agent.expect("Saved", saved);
    guest.wait_for_file("ready");
    assert!(second > first);
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    assert!(first > now - 60_000_000_000 && second <= now);
}

#[test]
fn leave_writes_the_deadline_and_signals_every_process() {
    let guest = Guest::start();
    let script = r#"
        trap 'cat /run/gpunion/leaving > left; echo 1 > done' TERM
        echo 1 > ready; while [ ! -e done ]; do sleep 0.02; done; touch /run/gpunion/saved; sleep 1000"#;
    let (mut agent, _ring) = guest.begin(shell(script));
    guest.wait_for_file("ready");
    agent.say(&ToInit::Leave { seq: 8, signal: 15, deadline: boot_now() + Millis::from_secs(60) });
    agent.expect("Signalled", |word| matches!(word, FromInit::Signalled { seq: 8, .. }).then_some(()));
    guest.wait_for_file("done");
    let deadline: u64 = guest.wait_for_file("left").trim().parse().unwrap();
    let left = deadline.abs_diff(wall_seconds());
    assert!((40..=61).contains(&left), "{left} s left");
    agent.expect("Saved", saved);
}

#[test]
fn nothing_that_the_guest_puts_there_holds_up_init() {
    let guest = Guest::start();
    let script = r#"
        cd /run/gpunion
        mkfifo saved; ln -s /proc/1/mem leaving; mkdir .leaving.new
        (while :; do : > flood; rm flood; done) &
        (while :; do ln -s /dev/zero saved; mkfifo saved; done) 2>/dev/null &
        head -c 2000000 /dev/zero > full
        echo 1 > /workspace/ready; wait"#;
    let (mut agent, _ring) = guest.begin(shell(script));
    guest.wait_for_file("ready");
    agent.expect("Saved", saved);
    agent.say(&ToInit::Leave { seq: 1, signal: 28, deadline: boot_now() });
    agent.expect("Signalled", |word| matches!(word, FromInit::Signalled { seq: 1, .. }).then_some(()));
    let (processes, took_us, running) = agent.stop(2);
    assert!(processes >= 3 && running == 0, "{processes} processes, {running} running, {took_us} us");
    assert!(took_us < 2_000_000 + Duration::from_secs(1).as_micros() as u64);
}

#[test]
fn saved_in_a_loop_does_not_flood_the_agent_and_the_last_is_told() {
    let guest = Guest::start();
    let script = r#"
        i=0; while [ $i -lt 3000 ]; do : > /run/gpunion/saved; i=$((i+1)); done
        while [ -e /run/gpunion/saved ]; do sleep 0.01; done
        echo 1 > ready; sleep 1000"#;
    let before = boot_now();
    let (mut agent, _ring) = guest.begin(shell(script));
    guest.wait_for_file("ready");
    // The answer to Stop comes after all that was saved before.
    agent.stop(1);
    let took = (boot_now() - before).0;
    let told = agent.skipped().iter().filter(|word| saved(word).is_some()).count() as u64;
    assert!((1..=3 + took / 250).contains(&told), "{told} words in {took} ms");
    assert!(agent.silent_for(Duration::from_millis(400)), "and nothing comes after");
}
