//! Stop, go on, and the deadline of a guest with egress.

use std::time::Duration;

use gpunion_protocol::guest::{FromInit, ToInit};
use gpunion_protocol::time::{BootMs, Millis};

use crate::guest::{Guest, boot_now, shell, until};

/// 200 children, a third of them in sessions of their own, a third daemons that were forked
/// twice and ignore SIGTERM; each forks on and on.
const STORM: &str = r#"
busy='trap "" TERM HUP INT; while :; do sleep 0.5; done'
i=0
while [ $i -lt 66 ]; do
  sh -c "$busy" &
  setsid sh -c "$busy" &
  ( (setsid sh -c "$busy" &) & )
  i=$((i+1))
done
sh -c "$busy" &
sh -c "$busy" &
echo ready > ready
wait
"#;

/// The parent of a vfork whose child stands still waits in the kernel (D) and runs nothing.
fn all_stopped(guest: &Guest) -> bool {
    let states = guest.states();
    states.contains('T') && states.chars().all(|state| "TtZD".contains(state))
}

#[test]
fn f07_two_hundred_forking_children_stop_go_on_and_end() {
    let mut guest = Guest::start();
    let (mut agent, _ring) = guest.begin(shell(STORM));
    guest.wait_for_file("ready");
    until("all children", || (guest.processes().len() >= 200).then_some(()));
    for round in 0..3 {
        let (processes, took_us, running) = agent.stop(round);
        assert!(processes >= 200, "{processes} processes");
        assert_eq!(running, 0);
        assert!(all_stopped(&guest), "{}", guest.states());
        assert!(took_us < 5_000_000);
        println!("stopped {processes} processes in {took_us} us");
        agent.go_on(round);
        until("some process runs again", || guest.states().contains(['S', 'R']).then_some(()));
    }
    let before = std::time::Instant::now();
    agent.say(&ToInit::End { seq: 9 });
    assert_eq!(agent.next(), None, "nothing is said after End");
    assert_eq!(guest.ended(), Some(137));
    println!("ended in {:?}", before.elapsed());
}

#[test]
fn end_works_while_stopped() {
    let mut guest = Guest::start();
    let (mut agent, _ring) = guest.begin(shell("echo 1 > ready; sleep 1000"));
    guest.wait_for_file("ready");
    agent.stop(1);
    agent.say(&ToInit::End { seq: 2 });
    guest.ended();
}

#[test]
fn a_program_that_is_busy_in_the_kernel_stops() {
    let guest = Guest::start();
    let (mut agent, _ring) =
        guest.begin(shell("dd if=/dev/zero of=/dev/null bs=64M 2>/dev/null & echo 1 > ready; wait"));
    guest.wait_for_file("ready");
    let (processes, _, running) = agent.stop(1);
    assert_eq!((processes, running), (2, 0));
    assert!(all_stopped(&guest));
}

#[test]
fn a_stop_that_comes_before_begin_holds_the_program_back() {
    let guest = Guest::start();
    let mut agent = guest.accept(false);
    assert_eq!(agent.stop(1).0, 0);
    let ring = guest.ring();
    agent.say_with(&ToInit::Begin(shell("echo 1 > ready")), &ring.file);
    assert!(agent.silent_for(Duration::from_millis(300)));
    agent.go_on(2);
    guest.wait_for_file("ready");
}

#[test]
fn a_guest_with_egress_stops_by_itself_and_goes_on_after_a_renewal() {
    let guest = Guest::start();
    let mut begin = shell("while :; do echo . >> ticks; sleep 0.02; done");
    begin.egress_deadline = Some(boot_now() + Millis(700));
    let (mut agent, _ring) = guest.begin(begin);
    guest.wait_for_file("ticks");
    agent.expect("DeadlinePassed", |word| (*word == FromInit::DeadlinePassed).then_some(()));
    assert!(all_stopped(&guest));
    agent.say(&ToInit::GoOn { seq: 1 });
    agent.expect("a refusal", |word| (*word == FromInit::DeadlinePassed).then_some(()));
    assert!(all_stopped(&guest));
    let before = guest.wait_for_file("ticks").len();
    agent.say(&ToInit::Deadline { at: boot_now() + Millis::from_secs(60) });
    until("it computes again", || (guest.wait_for_file("ticks").len() > before).then_some(()));
}

#[test]
fn the_deadline_needs_no_agent_and_a_new_agent_is_told() {
    let mut guest = Guest::start();
    let mut begin = shell("while :; do echo . >> ticks; sleep 0.02; done");
    let deadline = boot_now() + Millis(800);
    begin.egress_deadline = Some(deadline);
    let (agent, _ring) = guest.begin(begin);
    guest.deafen();
    drop(agent);
    guest.wait_for_file("ticks");
    until("stopped by itself", || all_stopped(&guest).then_some(()));
    assert!(boot_now() >= deadline);
    assert!(boot_now().0 < deadline.0 + 5_000);
    guest.listen();
    let mut agent = guest.accept(true);
    agent.expect("DeadlinePassed", |word| (*word == FromInit::DeadlinePassed).then_some(()));
    let ring = guest.ring();
    agent.say_with(&ToInit::Adopt { egress_deadline: Some(BootMs(u64::MAX)) }, &ring.file);
    until("it goes on", || (!all_stopped(&guest)).then_some(()));
}
