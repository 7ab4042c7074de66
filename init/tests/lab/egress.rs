//! The guest's loopback, from which init carries connections to the agent's proxy.

use gpunion_protocol::guest::{Begin, EGRESS_PORT};
use gpunion_protocol::time::Millis;

use crate::guest::{Guest, boot_now, shell};

/// A script of bash, which can open connections, in a guest with egress.
fn with_egress(script: &str) -> Begin {
    let mut begin = shell(script);
    begin.command = ["bash", "-c", script].map(str::to_owned).to_vec();
    begin.env.push(("PORT".to_owned(), EGRESS_PORT.to_string()));
    begin.egress_deadline = Some(boot_now() + Millis::from_secs(600));
    begin
}

/// Sends `$1` bytes and counts how many come back.
const TALK: &str = r#"
    talk() {
        exec 3<>/dev/tcp/127.0.0.1/$PORT || return 1
        head -c $1 /dev/zero >&3 &
        head -c $1 <&3 | wc -c
    }
"#;

#[test]
fn connections_are_carried_there_and_back_also_more_than_there_is_room_for_at_once() {
    let guest = Guest::start();
    guest.echo();
    let script = format!(
        "{TALK}
        for i in $(seq 60); do (talk 300000 > got.$i) & done; wait
        cat got.* | sort | uniq -c > counted; sleep 1000"
    );
    let (_agent, _ring) = guest.begin(with_egress(&script));
    let counted = guest.wait_for_file("counted");
    assert_eq!(counted.split_whitespace().collect::<Vec<_>>(), ["60", "300000"], "{counted}");
}

#[test]
fn without_an_agent_a_connection_ends_and_with_a_new_one_it_is_carried() {
    let guest = Guest::start();
    let script = format!(
        "{TALK}
        talk 10 > alone 2>/dev/null; echo 0 >> alone; until [ -e go ]; do sleep 0.02; done
        talk 10 > carried; sleep 1000"
    );
    let (_agent, _ring) = guest.begin(with_egress(&script));
    assert!(guest.wait_for_file("alone").lines().all(|line| line.trim() == "0"));
    guest.echo();
    std::fs::write(guest.workspace("go"), "1").unwrap();
    assert_eq!(guest.wait_for_file("carried").trim(), "10");
}

#[test]
fn a_guest_without_egress_finds_nobody_listening() {
    let guest = Guest::start();
    guest.echo();
    let mut begin = with_egress(&format!("{TALK} talk 10 2> refused; echo 1 >> refused; sleep 1000"));
    begin.egress_deadline = None;
    let (_agent, _ring) = guest.begin(begin);
    let refused = guest.wait_for_file("refused");
    assert!(refused.contains("refused"), "{refused}");
}

#[test]
fn a_flood_of_connections_never_holds_up_init() {
    let guest = Guest::start();
    guest.echo();
    let script = format!(
        "{TALK}
        for i in $(seq 8); do (while :; do exec 3<>/dev/tcp/127.0.0.1/$PORT; done 2>/dev/null) & done
        for i in $(seq 40); do (exec 3<>/dev/tcp/127.0.0.1/$PORT; sleep 1000) & done
        echo 1 > ready; wait"
    );
    let (mut agent, _ring) = guest.begin(with_egress(&script));
    guest.wait_for_file("ready");
    for round in 0..3 {
        let (processes, took_us, running) = agent.stop(round);
        assert!(processes >= 40 && running == 0, "{processes} processes, {running} running");
        assert!(took_us < 2_000_000, "{took_us} us");
        agent.go_on(round);
    }
}
