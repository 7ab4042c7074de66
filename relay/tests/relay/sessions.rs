//! The WebSocket session: greeting, beats, replacement, and a job's whole life with its log.

use gpunion_protocol::WIRE_VERSION;
use gpunion_protocol::http::{LogPiece, Submit};
use gpunion_protocol::ids::{AttemptRef, GpuUuid, SnapshotId};
use gpunion_protocol::job::{
    AttemptState, Blob, Checkpoint, EndCause, JobState, JobView, Quality, WrappedKey,
};
use gpunion_protocol::offer::{Offer, OfferedGpu};
use gpunion_protocol::session::{Assignment, MESSAGE_MAX, ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::Bytes;
use gpunion_relay::Config;

use crate::common::*;
use crate::jobs::{job, submit};

fn quick(dir: &std::path::Path) -> Config {
    let mut config = Config::new(dir);
    config.terms.heartbeat = Millis(200);
    config
}

pub(crate) fn offer() -> ToRelay {
    let gpu = OfferedGpu {
        uuid: GpuUuid("GPU-standin-1".to_owned()),
        name: "stand-in".to_owned(),
        memory: Bytes(8 << 30),
        free_for_guests: true,
        standin: true,
    };
    let offer = Offer {
        open: true,
        gpus: vec![gpu],
        cpus: 8,
        memory: Bytes(64 << 30),
        disk: Bytes(500 << 30),
        architecture: "amd64".to_owned(),
        ..Offer::default()
    };
    ToRelay::Offer { offer }
}

/// A job whose key every one of these devices can unwrap.
pub(crate) fn job_for(n: u8, clients: &[&Client]) -> Submit {
    let key =
        |client: &&Client| WrappedKey { device: client.joined().device.clone(), wrapped: Blob(vec![4; 80]) };
    Submit { keys: clients.iter().map(key).collect(), ..job(n) }
}

fn log(attempt: &AttemptRef, offset: u64, text: &str) -> ToRelay {
    ToRelay::Log { attempt: attempt.clone(), offset, bytes: Blob(text.as_bytes().to_vec()) }
}

async fn assigned(socket: &mut Socket) -> Assignment {
    match socket.until("an assignment", |m| matches!(m, ToAgent::Assign(_))).await {
        ToAgent::Assign(assignment) => *assignment,
        other => unreachable!("{other:?}"),
    }
}

pub(crate) async fn running(socket: &mut Socket) -> AttemptRef {
    let attempt = assigned(socket).await.attempt;
    for state in [AttemptState::Ready, AttemptState::Running] {
        socket.say(&ToRelay::State { attempt: attempt.clone(), state, note: None }).await;
    }
    attempt
}

#[tokio::test]
async fn f103_both_sides_beat_and_silence_ends_a_session() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::with(quick(dir.path())).await;
    let olga = relay.operator().await;
    let mut talking = olga.session().await;
    for _ in 0..6 {
        talking.say(&ToRelay::Beat).await;
        talking.until("a beat", |m| *m == ToAgent::Beat).await;
    }
    // From here on nothing is said.
    talking.end().await;
    relay.stop().await;
}

#[tokio::test]
async fn a_session_begins_with_hello_and_a_newer_one_replaces_it() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let mut rude = olga.socket().await.unwrap();
    rude.say(&ToRelay::Beat).await;
    assert!(rude.end().await.contains("hello"));
    let mut first = olga.session().await;
    // What a later version may say is ignored.
    first.say_text(r#"{"say":"something new","x":1}"#).await;
    first.say(&ToRelay::Hello { wire: WIRE_VERSION, agent: "again".to_owned() }).await;
    first.until("welcome", |m| matches!(m, ToAgent::Welcome { .. })).await;
    let mut second = olga.session().await;
    assert!(first.end().await.contains("anew"));
    second.say(&ToRelay::Hello { wire: WIRE_VERSION, agent: "again".to_owned() }).await;
    second.until("welcome", |m| matches!(m, ToAgent::Welcome { .. })).await;
    second.say_text(&"x".repeat(MESSAGE_MAX + 1)).await;
    second.end().await;
    relay.stop().await;
}

#[tokio::test]
async fn a_log_is_one_stream_over_two_attempts() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let bob = invited(&olga, gpunion_protocol::http::Role::Member, "bob").await;
    let mut one = olga.session().await;
    one.say(&offer()).await;
    submit(&olga, "k", &job_for(1, &[&olga, &bob])).await.unwrap();
    let first = running(&mut one).await;
    let path = format!("/v1/jobs/{}/log?follow=1", first.job);
    let mut reader = olga.sse(&path, None).await.unwrap();
    one.say(&log(&first, 0, "epoch 1\n")).await;
    one.say(&log(&first, 0, "epoch 1\nepoch 2\n")).await;
    one.until("what is kept", |m| matches!(m, ToAgent::LogKept { offset: 16, .. })).await;
    // Somebody else's words about this attempt are not kept.
    let mut two = bob.session().await;
    two.say(&log(&first, 16, "forged\n")).await;

    let ended = ToRelay::Ended { attempt: first.clone(), cause: EndCause::Reclaimed, result: None };
    one.say(&ToRelay::Offer { offer: Offer::default() }).await;
    one.say(&ended).await;
    one.until("its end", |m| matches!(m, ToAgent::EndSeen { .. })).await;
    two.say(&offer()).await;
    let second = running(&mut two).await;
    assert!(second.token > first.token);
    two.say(&log(&second, 0, "epoch 3\n")).await;
    let sealed = crate::objects::manifest(&[], b"result");
    let result = SnapshotId(*blake3::hash(&sealed).as_bytes());
    bob.put(&format!("/v1/snapshots/{result}"), sealed).await.unwrap();
    let cause = EndCause::Exited { code: 0 };
    two.say(&ToRelay::Ended { attempt: second.clone(), cause, result: Some(result) }).await;

    let mut text = String::new();
    let mut positions = Vec::new();
    loop {
        let (id, piece) = reader.next::<LogPiece>().await.unwrap();
        positions.push((id.parse::<u64>().unwrap(), text.len()));
        match piece {
            LogPiece::Bytes { bytes, .. } => text.push_str(std::str::from_utf8(&bytes.0).unwrap()),
            LogPiece::Attempt { number, device_name, .. } => {
                text.push_str(&format!("<{number} {device_name}>"))
            }
            LogPiece::Gap { bytes, .. } => text.push_str(&format!("[{bytes}]")),
            LogPiece::End { .. } => break,
        }
    }
    assert_eq!(text, "<1 olga-laptop>epoch 1\nepoch 2\n<2 bob-box>epoch 3\n");
    let view: JobView = olga.get(&format!("/v1/jobs/{}", first.job)).await.unwrap();
    assert_eq!((view.state, view.attempts.len()), (JobState::Succeeded, 2));

    // From the middle, and after a restart.
    relay.stop().await;
    let relay = Relay::start(dir.path()).await;
    let olga = relay.stranger().being(&olga);
    let mut again = olga.sse(&format!("/v1/jobs/{}/log?from=9", first.job), None).await.unwrap();
    let piece = again.next::<LogPiece>().await.unwrap().1;
    assert_eq!(piece, LogPiece::Bytes { next: 17, bytes: Blob(b"epoch 2\n".to_vec()) });
    relay.stop().await;
}

#[tokio::test]
async fn a_checkpoint_counts_only_when_its_snapshot_is_here() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let mut agent = olga.session().await;
    agent.say(&offer()).await;
    submit(&olga, "k", &job_for(1, &[&olga])).await.unwrap();
    let attempt = running(&mut agent).await;
    let sealed = crate::objects::manifest(&[], b"sealed");
    let snapshot = SnapshotId(*blake3::hash(&sealed).as_bytes());
    let checkpoint = Checkpoint {
        number: 0,
        snapshot,
        quality: Quality::Quiet,
        token: attempt.token,
        bytes: 0,
        new_bytes: 0,
        stopped: Millis(3),
        at: None,
        taken: None,
    };
    let publish = ToRelay::Publish { attempt: attempt.clone(), checkpoint, age: Millis(0) };
    agent.say(&publish).await;
    agent.until("a refusal", |m| matches!(m, ToAgent::PublishRefused { .. })).await;
    let cause = EndCause::Exited { code: 0 };
    let ended = ToRelay::Ended { attempt: attempt.clone(), cause, result: Some(snapshot) };
    agent.say(&ended).await;
    olga.put(&format!("/v1/snapshots/{snapshot}"), sealed).await.unwrap();
    agent.say(&publish).await;
    agent.until("published", |m| matches!(m, ToAgent::Published { .. })).await;
    let view: JobView = olga.get(&format!("/v1/jobs/{}", attempt.job)).await.unwrap();
    assert_eq!(view.state, JobState::Running, "an end without its result is not taken");
    agent.say(&ended).await;
    agent.until("its end", |m| matches!(m, ToAgent::EndSeen { .. })).await;
    let view: JobView = olga.get(&format!("/v1/jobs/{}", attempt.job)).await.unwrap();
    assert_eq!((view.state, view.result), (JobState::Succeeded, Some(snapshot)));
    relay.stop().await;
}

#[tokio::test]
async fn a_session_that_was_cut_is_taken_up_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let mut agent = olga.session().await;
    agent.say(&offer()).await;
    submit(&olga, "k", &job_for(1, &[&olga])).await.unwrap();
    let attempt = running(&mut agent).await;
    agent.say(&log(&attempt, 0, "half")).await;
    agent.until("what is kept", |m| matches!(m, ToAgent::LogKept { offset: 4, .. })).await;
    agent.cut();

    let mut agent = olga.session().await;
    agent.say(&offer()).await;
    agent.say(&ToRelay::Renew { seq: 7, attempts: vec![attempt.clone()] }).await;
    let (mut kept, mut counts) = (false, false);
    while !(kept && counts) {
        match agent.hear().await.unwrap() {
            ToAgent::LogKept { offset: 4, .. } => kept = true,
            ToAgent::Renewed { seq: 7, counting, .. } => counts = counting == [attempt.clone()],
            _ => {}
        }
    }
    relay.stop().await;
}

#[tokio::test]
async fn the_log_of_a_job_is_closed_when_it_is_final_and_its_device_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::with(quick(dir.path())).await;
    let olga = relay.operator().await;
    let mut socket = olga.session().await;
    socket.say(&offer()).await;
    let id = submit(&olga, "k", &job_for(1, &[&olga])).await.unwrap().job;
    let attempt = running(&mut socket).await;
    socket.say(&log(&attempt, 0, "before ")).await;
    olga.post::<gpunion_protocol::http::Submitted>(&format!("/v1/jobs/{id}/cancel"), &()).await.unwrap();
    socket.say(&log(&attempt, 7, "last words ")).await;
    let ended = ToRelay::Ended { attempt: attempt.clone(), cause: EndCause::Cancelled, result: None };
    socket.say(&ended).await;
    socket.until("the end is seen", |m| matches!(m, ToAgent::EndSeen { .. })).await;
    // A provider that goes on for ever; a renewal is answered after all that was said before it.
    for n in 0..20 {
        socket.say(&log(&attempt, 18 + n * 4, "more")).await;
    }
    socket.say(&ToRelay::Renew { seq: 3, attempts: vec![] }).await;
    socket.until("the renewal", |m| matches!(m, ToAgent::Renewed { seq: 3, .. })).await;
    let mut lines = olga.sse(&format!("/v1/jobs/{id}/log?follow=1"), None).await.unwrap();
    let mut text = String::new();
    while let Some((_, piece)) = lines.next::<LogPiece>().await {
        if let LogPiece::Bytes { bytes, .. } = piece {
            text.push_str(std::str::from_utf8(&bytes.0).unwrap());
        }
    }
    assert_eq!(text, "before last words ");
    relay.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_newer_is_answered_and_its_new_words_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let mut agent = olga.socket().await.unwrap();
    let wire = WIRE_VERSION + 1;
    agent
        .say_text(&format!(r#"{{"say":"hello","wire":{wire},"agent":"next","mood":{{"good":true}}}}"#))
        .await;
    agent.until("welcome", |m| matches!(m, ToAgent::Welcome { wire: WIRE_VERSION, .. })).await;
    // Kinds that this relay does not know, a known one with new fields, an end of a new kind.
    let ToRelay::Offer { offer } = offer() else { unreachable!() };
    let mut newer = serde_json::json!({ "say": "offer", "offer": offer, "since": 7 });
    newer["offer"]["fans"] = "loud".into();
    newer["offer"]["gpus"][0]["color"] = serde_json::json!([1, 2, 3]);
    agent.say_text(r#"{"say":"dance","steps":3}"#).await;
    agent.say_text(&newer.to_string()).await;
    submit(&olga, "k", &job_for(1, &[&olga])).await.unwrap();
    let attempt = running(&mut agent).await;
    let ended = serde_json::json!({
        "say": "ended", "attempt": attempt, "cause": { "cause": "eaten_by_a_bear" }, "result": null
    });
    agent.say_text(&ended.to_string()).await;
    agent.say_text("[]").await;
    let renew = serde_json::json!({ "say": "renew", "seq": 5, "attempts": [attempt], "heat": 80 });
    agent.say_text(&renew.to_string()).await;
    let counts =
        |m: &_| matches!(m, ToAgent::Renewed { seq: 5, counting, .. } if *counting == [attempt.clone()]);
    agent.until("the same session's answer", counts).await;

    // Over HTTP: a field more, and a query that this relay does not know.
    let mut body = serde_json::to_value(job_for(2, &[&olga])).unwrap();
    body["colour"] = "blue".into();
    body["spec"]["resources"]["tpus"] = 0.into();
    let request = olga.request(reqwest::Method::POST, "/v1/jobs").header("idempotency-key", "newer");
    olga.json::<gpunion_protocol::http::Submitted>(request.json(&body)).await.unwrap();
    assert_eq!(olga.get::<Vec<JobView>>("/v1/jobs?sorted=yes").await.unwrap().len(), 2);
    relay.stop().await;
}

#[tokio::test]
async fn a_relay_tells_where_it_is_to_be_reached_when_its_operator_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    let relay = Relay::with(config.clone()).await;
    let olga = relay.operator().await;
    let told = async |client: &Client| {
        let mut socket = client.socket().await.unwrap();
        socket.say(&ToRelay::Hello { wire: WIRE_VERSION, agent: "test".to_owned() }).await;
        match socket.until("welcome", |m| matches!(m, ToAgent::Welcome { .. })).await {
            ToAgent::Welcome { addresses, .. } => addresses,
            other => unreachable!("{other:?}"),
        }
    };
    assert_eq!(told(&olga).await, [""; 0], "an address that was guessed is told to nobody");
    relay.stop().await;
    config.addresses = vec!["relay.new:7443".to_owned(), "relay.old:7443".to_owned()];
    let relay = Relay::with(config).await;
    assert_eq!(told(&relay.stranger().being(&olga)).await, ["relay.new:7443", "relay.old:7443"]);
    relay.stop().await;
}
