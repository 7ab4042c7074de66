//! How guests end: by word, by file, by the engine; and never by their own program's wish.

use std::fs;
use std::time::Duration;

use gpunion_protocol::guest::{Exit, FromInit, ToInit};

use crate::guest::{Guest, exists, shell, until};

fn exited(word: &FromInit) -> Option<Exit> {
    match word {
        FromInit::Exited(exit) => Some(*exit),
        _ => None,
    }
}

#[test]
fn the_exit_is_held_until_an_agent_has_seen_it() {
    let mut guest = Guest::start();
    let (agent, _ring) = guest.begin(shell("echo 1 > ready; while [ ! -e go ]; do sleep 0.02; done; exit 7"));
    guest.wait_for_file("ready");
    guest.deafen();
    drop(agent);
    fs::write(guest.workspace("go"), "x").unwrap();
    until("the program's end", || guest.processes().is_empty().then_some(()));
    for _ in 0..2 {
        guest.listen();
        let mut agent = guest.accept(true);
        assert_eq!(agent.expect("Exited", exited), Exit::Code { code: 7 });
        guest.deafen();
    }
    guest.listen();
    let mut agent = guest.accept(true);
    assert_eq!(agent.expect("Exited", exited), Exit::Code { code: 7 });
    agent.say(&ToInit::ExitSeen);
    assert_eq!(guest.ended(), Some(7));
}

#[test]
fn f07_what_the_program_leaves_behind_dies_before_its_exit_is_told() {
    let guest = Guest::start();
    let left = "setsid sh -c 'trap \"\" TERM HUP; echo 1 > ready; while :; do sleep 1; done' & \
                while [ ! -e ready ]; do sleep 0.02; done; kill -9 $$";
    let (mut agent, _ring) = guest.begin(shell(left));
    assert_eq!(agent.expect("Exited", exited), Exit::Signal { signal: 9 });
    assert_eq!(guest.states(), "");
}

#[test]
fn f11_a_hundred_orphan_zombies_are_reaped() {
    let guest = Guest::start();
    let make = "for i in $(seq 100); do sh -c 'sleep 0.05 & exit 0'; done; echo 1 > ready; sleep 1000";
    let (_agent, _ring) = guest.begin(shell(make));
    guest.wait_for_file("ready");
    until("only the shell and its sleep are left", || {
        let processes = guest.processes();
        (processes.len() == 2 && processes.iter().all(|(_, state, _)| *state != 'Z')).then_some(())
    });
}

#[test]
fn the_end_file_ends_a_guest_that_no_agent_listens_to() {
    let mut guest = Guest::start();
    let (agent, _ring) = guest.begin(shell("echo 1 > ready; sleep 1000"));
    guest.wait_for_file("ready");
    guest.deafen();
    drop(agent);
    fs::write(guest.control("end"), "").unwrap();
    assert_eq!(guest.ended(), Some(137));
}

#[test]
fn an_end_file_that_was_there_first_ends_it_at_once() {
    let mut guest = Guest::start_alone();
    fs::write(guest.control("end"), "").unwrap();
    assert_eq!(guest.ended(), Some(137));
}

#[test]
fn the_engine_can_end_it_and_the_guest_can_neither_end_nor_read_it() {
    let mut guest = Guest::start();
    let attack = r#"
        for s in KILL STOP TERM INT QUIT HUP USR1 SEGV CHLD; do kill -$s 1; done
        cat /proc/1/environ >> loot; cat /proc/1/mem >> loot; ls /proc/1/fd/ >> loot
        rm -f /run/gpunion-ctl/init.sock; touch /run/gpunion-ctl/end
        echo done > ready; sleep 1000"#;
    let (mut agent, _ring) = guest.begin(shell(attack));
    guest.wait_for_file("ready");
    assert_eq!(fs::read(guest.workspace("loot")).unwrap(), b"");
    assert!(exists(&guest.control("init.sock")) && !exists(&guest.control("end")));
    agent.say(&ToInit::Ping { seq: 3 });
    agent.expect("Pong", |word| (*word == FromInit::Pong { seq: 3, processes: 2 }).then_some(()));
    let init = rustix::process::Pid::from_raw(guest.init()).unwrap();
    rustix::process::kill_process(init, rustix::process::Signal::TERM).unwrap();
    assert_eq!(guest.ended(), Some(137));
}

/// The moment of the start is the weakest: a program that fires at once, again and again.
#[test]
fn no_signal_of_the_guest_ends_init_while_it_starts_the_program() {
    for _ in 0..20 {
        let guest = Guest::start();
        let attack = "for s in TERM INT QUIT HUP USR1 SEGV TERM HUP; do kill -$s 1; done; echo done > ready; sleep 1000";
        let (mut agent, _ring) = guest.begin(shell(attack));
        guest.wait_for_file("ready");
        agent.say(&ToInit::Ping { seq: 1 });
        agent.expect("Pong", |word| matches!(word, FromInit::Pong { .. }).then_some(()));
    }
}

#[test]
fn garbage_confuses_init_and_a_frame_too_long_costs_the_connection_only() {
    let guest = Guest::start();
    let (mut agent, _ring) = guest.begin(shell("echo 1 > ready; sleep 1000"));
    guest.wait_for_file("ready");
    agent.send(&[3, 0, 0, 0, b'{', 0xff, b'!']);
    agent.expect("Confused", |word| matches!(word, FromInit::Confused { .. }).then_some(()));
    agent.say(&ToInit::Begin(shell("echo twice > twice")));
    agent.expect("Confused", |word| matches!(word, FromInit::Confused { .. }).then_some(()));
    agent.send(&[0xff; 8]);
    assert_eq!(agent.next(), None);
    let mut agent = guest.accept(true);
    agent.expect("Started", |word| matches!(word, FromInit::Started { .. }).then_some(()));
    agent.say(&ToInit::ExitSeen);
    agent.expect("Confused", |word| matches!(word, FromInit::Confused { .. }).then_some(()));
    assert!(agent.silent_for(Duration::from_millis(200)));
    assert!(!exists(&guest.workspace("twice")));
    assert_eq!(guest.processes().len(), 2);
}

#[test]
fn a_guest_that_takes_away_inits_right_to_open_files_is_stopped_and_ended_all_the_same() {
    let mut guest = Guest::start();
    let attack = "prlimit --pid 1 --nofile=0:0; echo $? > ready; sleep 1000";
    let (mut agent, _ring) = guest.begin(shell(attack));
    assert_eq!(guest.wait_for_file("ready").trim(), "0");
    let (_, took_us, running) = agent.stop(1);
    assert!(running > 0 && took_us >= 2_000_000, "it can't be seen, and init says so");
    assert!(guest.states().chars().all(|state| "TtZD".contains(state)), "{}", guest.states());
    agent.go_on(2);
    guest.deafen();
    drop(agent);
    fs::write(guest.control("end"), "").unwrap();
    assert_eq!(guest.ended(), Some(137));
}
