//! Submitting, seeing, cancelling; the event stream; what a crash leaves.

use std::path::Path;

use gpunion_protocol::http::{Event, IDEMPOTENCY_KEY, LogPiece, Role, Submit, Submitted};
use gpunion_protocol::ids::{JobId, SnapshotId};
use gpunion_protocol::job::{Blob, Image, JobState, JobView, WrappedKey};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::spec::JobSpec;
use gpunion_relay::{Config, Error, launch};
use reqwest::Method;

use crate::common::*;

pub(crate) fn job(n: u8) -> Submit {
    let reference = "python:3.12-slim".to_owned();
    Submit {
        job: JobId::new(1_764_000_000_000, [n; 10]),
        spec: JobSpec { name: format!("job {n}"), ..JobSpec::of_image(&reference) },
        image: Image::Registry { reference, digest: None },
        input: None,
        data: Vec::new(),
        keys: Vec::new(),
        sealed: Blob(vec![1, 2, 3]),
    }
}

pub(crate) async fn submit(client: &Client, key: &str, body: &Submit) -> Result<Submitted, Problem> {
    let mut body = body.clone();
    if body.keys.is_empty() {
        // Somebody must be able to open it.
        body.keys.push(WrappedKey { device: client.joined().device.clone(), wrapped: Blob(vec![4; 80]) });
    }
    let request = client.request(Method::POST, "/v1/jobs").header(IDEMPOTENCY_KEY, key).json(&body);
    client.json(request).await
}

#[tokio::test]
async fn a_submit_may_be_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let first = submit(&olga, "key-1", &job(1)).await.unwrap();
    assert!(matches!(&first.state, JobState::Queued { why } if !why.is_empty()));
    assert_eq!(submit(&olga, "key-1", &job(1)).await.unwrap().job, first.job);
    assert_eq!(code(submit(&olga, "key-1", &job(2)).await), Code::KeyReused);
    let twice =
        futures_util::future::join_all((0..8).map(|_| async { submit(&olga, "key-3", &job(3)).await }));
    assert!(twice.await.into_iter().all(|s| s.unwrap().job == job(3).job), "all at once, too");
    assert_eq!(code(submit(&olga, "", &job(4)).await), Code::BadRequest);
    assert_eq!(olga.get::<Vec<JobView>>("/v1/jobs").await.unwrap().len(), 2);

    let mut bad = job(5);
    bad.spec.network.egress.push("10.0.0.1".to_owned());
    let problem = submit(&olga, "key-5", &bad).await.unwrap_err();
    assert_eq!(problem.code, Code::BadSpec);
    let mut early = job(6);
    early.input = Some(SnapshotId([9; 32]));
    let problem = submit(&olga, "key-6", &early).await.unwrap_err();
    assert_eq!((problem.code, problem.detail.unwrap()), (Code::Missing, "09".repeat(32)));
    relay.stop().await;
}

#[tokio::test]
async fn jobs_are_their_members_and_the_operators() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let ada = invited(&olga, Role::Member, "ada").await;
    let bob = invited(&olga, Role::Member, "bob").await;
    let id = submit(&ada, "k", &job(1)).await.unwrap().job;
    let path = format!("/v1/jobs/{id}");
    let view: JobView = ada.get(&path).await.unwrap();
    assert_eq!(view.sealed, Some(Blob(vec![1, 2, 3])));
    assert_eq!(code(bob.get::<JobView>(&path).await), Code::NotFound);
    assert_eq!(code(bob.sse(&format!("{path}/log"), None).await.map(|_| ())), Code::NotFound);
    bob.post::<Submitted>(&format!("{path}/cancel"), &()).await.unwrap_err();
    assert!(bob.get::<Vec<JobView>>("/v1/jobs").await.unwrap().is_empty());
    let view: JobView = olga.get(&path).await.unwrap();
    assert_eq!(view.sealed, None, "an operator sees the job, not what is sealed for its member");
    assert_eq!(olga.get::<Vec<JobView>>("/v1/jobs?all=true").await.unwrap().len(), 1);
    let state = ada.post::<Submitted>(&format!("{path}/cancel"), &()).await.unwrap().state;
    assert_eq!(state, JobState::Cancelled);
    let mut log = ada.sse(&format!("{path}/log?follow=1"), None).await.unwrap();
    assert!(matches!(log.next().await, Some((_, LogPiece::End { next: 0 }))));
    assert!(log.next::<LogPiece>().await.is_none());
    relay.stop().await;
}

#[tokio::test]
async fn events_go_on_where_a_reader_was() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = Config::new(dir.path());
    config.limits.events = 8;
    let relay = Relay::with(config.clone()).await;
    let olga = relay.operator().await;
    let ada = invited(&olga, Role::Member, "ada").await;
    let bob = invited(&olga, Role::Member, "bob").await;
    let mut events = ada.sse("/v1/events", None).await.unwrap();
    submit(&bob, "b", &job(9)).await.unwrap();
    submit(&ada, "1", &job(1)).await.unwrap();
    submit(&ada, "2", &job(2)).await.unwrap();
    let mut named = Vec::new();
    let mut ids = Vec::new();
    while named.len() < 2 {
        let (id, event) = events.next::<Event>().await.unwrap();
        if let Event::Job { job: named_job, .. } = event
            && named.last() != Some(&named_job)
        {
            named.push(named_job);
            ids.push(id);
        }
    }
    assert_eq!(named, [job(1).job, job(2).job], "not bob's");
    drop(events);

    let mut resumed = ada.sse("/v1/events", Some(&ids[0])).await.unwrap();
    let found = loop {
        match resumed.next::<Event>().await.unwrap().1 {
            Event::Job { job: found, .. } if found != job(1).job => break found,
            Event::Job { .. } | Event::Note { .. } | Event::Group => {}
            Event::Missed => panic!("nothing was missed"),
        }
    };
    assert_eq!(found, job(2).job);
    for n in 10..30 {
        submit(&ada, &n.to_string(), &job(n)).await.unwrap();
    }
    let mut late = ada.sse("/v1/events", Some(&ids[0])).await.unwrap();
    let (id, first) = late.next::<Event>().await.unwrap();
    assert_eq!(first, Event::Missed);
    relay.stop().await;

    let relay = Relay::with(config).await;
    let ada = relay.stranger().being(&ada);
    let mut other_epoch = ada.sse("/v1/events", Some(&id)).await.unwrap();
    assert_eq!(other_epoch.next::<Event>().await.unwrap().1, Event::Missed);
    relay.stop().await;
}

/// Runs a relay in a runtime of its own that is then torn down without a word, as by kill -9:
/// what was not committed is gone.
async fn crashed(dir: &Path, client: Option<Client>, numbers: std::ops::Range<u8>) -> (Client, usize) {
    let dir = dir.to_owned();
    let run = move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let answered = runtime.block_on(async {
            let relay = started(&dir).await;
            let client = match client {
                Some(client) => relay.stranger().being(&client),
                None => relay.operator().await,
            };
            let mut answered = 0;
            for n in numbers {
                answered += usize::from(submit(&client, &n.to_string(), &job(n)).await.is_ok());
            }
            // Under way at the end: either is right, as long as a restart knows what was answered.
            let last = (client.clone(), job(250));
            tokio::spawn(async move { drop(submit(&last.0, "last", &last.1).await) });
            (client, answered)
        });
        runtime.shutdown_background();
        answered
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// The folder is free once the runtime that held it has let go.
async fn started(dir: &Path) -> Relay {
    soon("the lock", async {
        loop {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            match launch(Config::new(dir), listener, std::future::pending()).await {
                Ok(started) => return Relay::running(started),
                Err(Error::StateInUse { .. }) => {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await
                }
                Err(e) => panic!("{e}"),
            }
        }
    })
    .await
}

#[tokio::test]
async fn a_job_that_was_accepted_outlives_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (client, first) = crashed(dir.path(), None, 0..10).await;
    let (client, second) = crashed(dir.path(), Some(client), 10..20).await;
    assert_eq!(first + second, 20);
    let relay = started(dir.path()).await;
    let client = relay.stranger().being(&client);
    let jobs: Vec<JobView> = client.get("/v1/jobs").await.unwrap();
    for n in 0..20 {
        assert!(jobs.iter().any(|view| view.id == job(n).job), "job {n} is lost");
    }
    assert_eq!(submit(&client, "3", &job(3)).await.unwrap().job, job(3).job, "and its key is known");
}
