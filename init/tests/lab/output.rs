//! The program's output: whole, merged, and never waited for.

use std::fs;

use gpunion_protocol::guest::{Exit, FromInit, ToInit, ring};

use crate::guest::{Guest, shell};

#[test]
fn output_without_a_newline_arrives_while_the_program_runs() {
    let guest = Guest::start();
    let (_agent, ring) = guest.begin(shell("printf 'step 1/9\\r'; printf oops >&2; sleep 1000"));
    ring.wait_for("step 1/9\roops");
}

#[test]
fn a_flood_that_nobody_reads_never_holds_up_the_program() {
    let mut guest = Guest::start();
    // Three times what the ring holds.
    let flood = "echo 1 > ready; yes 0123456789abcde | head -c 25165824; printf END; echo 1 > flooded";
    let (agent, ring) = guest.begin(shell(flood));
    guest.wait_for_file("ready");
    guest.deafen();
    drop(agent);
    guest.wait_for_file("flooded");
    guest.listen();
    let mut agent = guest.accept(true);
    let exit = agent.expect("Exited", |word| match word {
        FromInit::Exited(exit) => Some(*exit),
        _ => None,
    });
    assert_eq!(exit, Exit::Code { code: 0 });
    let (total, left) = ring.read();
    assert_eq!(total, 25_165_824 + 3);
    let mut expected: Vec<u8> = b"0123456789abcde\n".repeat(25_165_824 / 16);
    expected.extend(b"END");
    assert!(left == expected[expected.len() - ring::CAPACITY as usize..]);
}

#[test]
fn a_new_agent_goes_on_with_the_same_ring() {
    let mut guest = Guest::start();
    let (agent, _ring) = guest.begin(shell("printf one; echo 1 > ready; while [ ! -e go ]; do sleep 0.02; done; printf two; echo 1 > second; sleep 1000"));
    guest.wait_for_file("ready");
    guest.deafen();
    drop(agent);
    guest.listen();
    let mut agent = guest.accept(true);
    let ring = guest.ring();
    agent.say_with(&ToInit::Adopt { egress_deadline: None }, &ring.file);
    agent.say(&ToInit::Ping { seq: 1 });
    agent.expect("Pong", |word| matches!(word, FromInit::Pong { .. }).then_some(()));
    fs::write(guest.workspace("go"), "").unwrap();
    ring.wait_for("onetwo");
}

#[test]
fn without_any_ring_the_output_is_dropped_and_the_program_goes_on() {
    let guest = Guest::start();
    let mut agent = guest.accept(false);
    agent.say(&ToInit::Begin(shell("head -c 1000000 /dev/zero; exit 3")));
    let exit = agent.expect("Exited", |word| match word {
        FromInit::Exited(exit) => Some(*exit),
        _ => None,
    });
    assert_eq!(exit, Exit::Code { code: 3 });
}

#[test]
fn a_ring_that_can_not_be_written_costs_the_output_only() {
    let guest = Guest::start();
    let mut agent = guest.accept(false);
    let full = fs::OpenOptions::new().read(true).write(true).open("/dev/full").unwrap();
    agent.say_with(&ToInit::Begin(shell("head -c 1000000 /dev/zero; exit 4")), &full);
    let exit = agent.expect("Exited", |word| match word {
        FromInit::Exited(exit) => Some(*exit),
        _ => None,
    });
    assert_eq!(exit, Exit::Code { code: 4 });
}
