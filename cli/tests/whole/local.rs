//! The local API as a face uses it.

use std::sync::Arc;

use futures_util::StreamExt as _;
use gpunion_agent_core::relay_link::{sse, tls};
use gpunion_protocol::local::Snapshot;
use gpunion_protocol::problem::{CONTENT_TYPE, Code, Problem};

use crate::support::{Half, LIMIT};

fn client(half: &Half) -> reqwest::Client {
    let tls = tls::client_config(Some([0; 32])).unwrap();
    reqwest::Client::builder()
        .unix_socket(half.dirs.socket.clone())
        .tls_backend_preconfigured(tls)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_whole_picture_is_pushed_on_change() {
    let home = tempfile::tempdir().unwrap();
    let half = Half::start(home.path());
    let response = client(&half).get("http://agent/v1/events").send().await.unwrap();
    let mut events = sse::events(Box::pin(response.bytes_stream()));
    for version in 1..4 {
        let event = tokio::time::timeout(LIMIT, events.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&event.data).unwrap().version, version);
        half.picture.send_modify(|picture| Arc::make_mut(picture).version += 1);
    }
    half.stop.cancel();
    let ended = async { while events.next().await.is_some_and(|event| event.is_ok()) {} };
    tokio::time::timeout(LIMIT, ended).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_refusal_is_a_problem_and_quotes_no_value() {
    let home = tempfile::tempdir().unwrap();
    let half = Half::start(home.path());
    let client = client(&half);
    let body = "{\"thing\": {\"kind\": \"image\", \"value\": \"a\"}, \"secrets\": {\"A\": \"x\", \"B\": [\"hunter2\"]}}";
    let cases = [
        (client.get("http://agent/v1/nothing"), Code::NotFound),
        (client.get("http://agent/v1/jobs"), Code::NoGroup),
        (client.get("http://agent/v1/jobs/job_1"), Code::BadRequest),
        (client.post("http://agent/v1/preview").body(body), Code::BadRequest),
        (client.post("http://agent/v1/share").body("nonsense"), Code::BadRequest),
    ];
    for (request, code) in cases {
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], CONTENT_TYPE);
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let problem: Problem = serde_json::from_str(&text).unwrap();
        assert_eq!((problem.code, problem.status), (code, status), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
