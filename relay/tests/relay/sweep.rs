//! What nothing needs any more goes, and nothing else does; the sweep runs all the time.

use std::path::Path;
use std::time::Duration;

use gpunion_protocol::http::{HavePacks, MissingPacks, Submit, Submitted};
use gpunion_protocol::ids::{AttemptRef, PackId, SnapshotId};
use gpunion_protocol::job::{Checkpoint, EndCause, JobState, JobView, Quality};
use gpunion_protocol::problem::Code;
use gpunion_protocol::session::{ToAgent, ToRelay};
use gpunion_protocol::time::Millis;
use gpunion_relay::Config;
use reqwest::Method;

use crate::common::*;
use crate::jobs::{job, submit};
use crate::objects::manifest;
use crate::sessions::{job_for, offer, running};

/// Sweeps each instant; what has been replaced goes at once, what was left after a moment.
fn sweeping(dir: &Path) -> Config {
    let mut config = Config::new(dir);
    config.limits.sweep = Millis(20);
    config.limits.grace_short = Millis(50);
    config.limits.grace = Millis(3_000);
    config
}

/// A snapshot of one pack of its own and of these.
async fn send(client: &Client, text: &str, others: &[PackId]) -> (SnapshotId, PackId) {
    let pack = PackId(*blake3::hash(text.as_bytes()).as_bytes());
    let named: Vec<PackId> = others.iter().copied().chain([pack]).collect();
    let sealed = manifest(&named, text.as_bytes());
    let snapshot = SnapshotId(*blake3::hash(&sealed).as_bytes());
    client.put(&format!("/v1/packs/{pack}"), text.to_owned()).await.unwrap();
    client.put(&format!("/v1/snapshots/{snapshot}"), sealed).await.unwrap();
    (snapshot, pack)
}

/// Looked at on the disk: to ask the relay for it would keep it.
fn is_there(dir: &Path, kind: &str, id: &[u8; 32]) -> bool {
    let name = hex::encode(id);
    dir.join(kind).join(&name[..2]).join(&name).exists()
}

fn all_there(dir: &Path, (snapshot, pack): &(SnapshotId, PackId)) -> bool {
    is_there(dir, "snapshots", &snapshot.0) && is_there(dir, "packs", &pack.0)
}

async fn goes(dir: &Path, (snapshot, pack): &(SnapshotId, PackId)) {
    soon("the end of a snapshot and its pack", async {
        while is_there(dir, "snapshots", &snapshot.0) || is_there(dir, "packs", &pack.0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

async fn publish(agent: &mut Socket, attempt: &AttemptRef, snapshot: SnapshotId) {
    let (quality, token) = (Quality::Quiet, attempt.token);
    let checkpoint = Checkpoint {
        number: 0,
        snapshot,
        quality,
        token,
        bytes: 0,
        new_bytes: 0,
        stopped: Millis(3),
        at: None,
        taken: None,
    };
    agent.say(&ToRelay::Publish { attempt: attempt.clone(), checkpoint, age: Millis(0) }).await;
    agent.until("published", |m| matches!(m, ToAgent::Published { .. })).await;
}

#[tokio::test]
async fn a_job_keeps_its_last_two_checkpoints_and_its_result_and_what_was_left_goes() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let relay = Relay::with(sweeping(at)).await;
    let olga = relay.operator().await;
    let left = send(&olga, "left", &[]).await;
    let input = send(&olga, "input", &[]).await;
    let mut agent = olga.session().await;
    agent.say(&offer()).await;
    let body = Submit { input: Some(input.0), ..job_for(1, &[&olga]) };
    submit(&olga, "k", &body).await.unwrap();
    let attempt = running(&mut agent).await;
    let mut sent = Vec::new();
    for n in 1..=5 {
        let checkpoint = send(&olga, &format!("checkpoint {n}"), &[input.1]).await;
        publish(&mut agent, &attempt, checkpoint.0).await;
        sent.push(checkpoint);
    }
    for replaced in &sent[..3] {
        goes(at, replaced).await;
    }
    // Longer than anything is kept that nothing needs.
    goes(at, &left).await;
    assert!(all_there(at, &sent[3]) && all_there(at, &sent[4]) && all_there(at, &input));

    let result = send(&olga, "result", &[sent[4].1]).await;
    let cause = EndCause::Exited { code: 0 };
    agent.say(&ToRelay::Ended { attempt: attempt.clone(), cause, result: Some(result.0) }).await;
    agent.until("its end", |m| matches!(m, ToAgent::EndSeen { .. })).await;
    goes(at, &sent[3]).await;
    goes(at, &input).await;
    assert!(!is_there(at, "snapshots", &sent[4].0.0));
    for (path, bytes) in [
        (format!("/v1/snapshots/{}", result.0), manifest(&[result.1, sent[4].1], b"result")),
        (format!("/v1/packs/{}", result.1), b"result".to_vec()),
        (format!("/v1/packs/{}", sent[4].1), b"checkpoint 5".to_vec()),
    ] {
        let read = olga.send(olga.request(Method::GET, &path)).await.unwrap();
        assert_eq!(read.bytes().await.unwrap(), bytes, "{path}");
    }
    let text = olga.send(olga.request(Method::GET, "/metrics")).await.unwrap().text().await.unwrap();
    for line in ["gpunion_packs 2", "gpunion_snapshots 1", "gpunion_snapshots_missing 0"] {
        assert!(text.lines().any(|l| l == line), "{line} is not in\n{text}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn what_a_cancelled_job_had_goes_and_what_others_name_stays() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let relay = Relay::with(sweeping(at)).await;
    let olga = relay.operator().await;
    let shared = send(&olga, "shared", &[]).await;
    let own = send(&olga, "own", &[shared.1]).await;
    let body = |n: u8, input: SnapshotId| Submit { input: Some(input), ..job(n) };
    submit(&olga, "k1", &body(1, own.0)).await.unwrap();
    submit(&olga, "k2", &body(2, shared.0)).await.unwrap();
    let cancel = format!("/v1/jobs/{}/cancel", job(1).job);
    olga.post::<Submitted>(&cancel, &()).await.unwrap();
    goes(at, &own).await;
    assert!(all_there(at, &shared));

    // Whoever was slower than the grace is told what to send, and goes on.
    let late = manifest(&[own.1, shared.1], b"late");
    let id = SnapshotId(*blake3::hash(&late).as_bytes());
    let problem = olga.put(&format!("/v1/snapshots/{id}"), late.clone()).await.unwrap_err();
    assert_eq!((problem.code, problem.detail), (Code::Missing, Some(own.1.to_string())));
    assert_eq!(code(submit(&olga, "k3", &body(3, own.0)).await), Code::Missing);
    let have = HavePacks { packs: vec![own.1, shared.1] };
    let missing = olga.post::<MissingPacks>("/v1/packs/have", &have).await.unwrap().missing;
    assert_eq!(missing, [own.1]);
    olga.put(&format!("/v1/packs/{}", own.1), "own").await.unwrap();
    olga.put(&format!("/v1/snapshots/{id}"), late).await.unwrap();
    submit(&olga, "k3", &body(3, id)).await.unwrap();
    relay.stop().await;
}

#[tokio::test]
async fn a_result_that_went_before_its_word_came_is_asked_for_and_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let relay = Relay::with(sweeping(at)).await;
    let olga = relay.operator().await;
    let mut agent = olga.session().await;
    agent.say(&offer()).await;
    let id = submit(&olga, "k", &job_for(1, &[&olga])).await.unwrap().job;
    let attempt = running(&mut agent).await;
    let result = send(&olga, "result", &[]).await;
    // The line is cut just then, for longer than a grace.
    goes(at, &result).await;
    let cause = EndCause::Exited { code: 0 };
    let ended = |result| ToRelay::Ended { attempt: attempt.clone(), cause: cause.clone(), result };
    agent.say(&ended(Some(result.0))).await;
    let refused = |m: &_| matches!(m, ToAgent::PublishRefused { snapshot, .. } if *snapshot == result.0);
    agent.until("a word about it", refused).await;
    // It can't be had any more: the attempt did not finish the job.
    agent.say(&ended(None)).await;
    agent.until("its end", |m| matches!(m, ToAgent::EndSeen { .. })).await;
    let view: JobView = olga.get(&format!("/v1/jobs/{id}")).await.unwrap();
    assert!(!view.state.is_final() && view.state != JobState::Running, "{:?}", view.state);
    assert_eq!(view.result, None);
    relay.stop().await;
}
