//! What somebody with a valid token may send who means harm: any bytes, and lengths that are
//! declared and do not come. The relay answers with a problem or ends that one session, and serves
//! the next.

use std::sync::Arc;

use futures_util::SinkExt as _;
use gpunion_protocol::http::{IDEMPOTENCY_KEY, Me};
use gpunion_protocol::session::ToAgent;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;

use crate::common::*;
use crate::jobs::job;

/// Each beginning of it, and it with each byte changed.
fn harmed(text: &str) -> Vec<Vec<u8>> {
    let bytes = text.as_bytes();
    let cut = (0..bytes.len()).step_by(3).map(|at| bytes[..at].to_vec());
    let changed = (0..bytes.len()).step_by(2).map(|at| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= [0x15, 0x80, 0x01][at % 3];
        bytes
    });
    cut.chain(changed).collect()
}

/// What no parser likes, whatever it parses.
fn odd() -> Vec<Vec<u8>> {
    let deep = |open: &str| open.repeat(50_000).into_bytes();
    vec![
        Vec::new(),
        vec![0; 4096],
        vec![0xff; 4096],
        (0..=255).cycle().take(8192).collect(),
        b"null".to_vec(),
        b"1e999".to_vec(),
        b"\"\\ud800\"".to_vec(),
        deep("["),
        deep("{\"a\":"),
        format!("{{\"packs\":{}}}", "9".repeat(10_000)).into_bytes(),
    ]
}

async fn still_serves(client: &Client) {
    client.get::<Me>("/v1/me").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn any_bytes_as_a_body_are_answered_by_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let hash = "ab".repeat(32);
    let bodies = [
        ("/v1/invites", "{\"role\":\"member\",\"valid_s\":3600}".to_owned()),
        ("/v1/packs/have", format!("{{\"packs\":[\"{hash}\"]}}")),
        ("/v1/snapshots/have", format!("{{\"packs\":[\"{hash}\"]}}")),
        ("/v1/jobs", serde_json::to_string(&job(1)).unwrap()),
        ("/v1/jobs/job_1/cancel", "{}".to_owned()),
    ];
    let mut refused = 0;
    for (path, body) in bodies {
        for body in harmed(&body).into_iter().chain(odd()) {
            let request = olga.request(reqwest::Method::POST, path).header(IDEMPOTENCY_KEY, "key");
            // `send` sees that a refusal is a problem.
            if let Err(problem) =
                olga.send(request.header("content-type", "application/json").body(body)).await
            {
                assert!(problem.status < 500, "{path}: {problem}");
                refused += 1;
            }
        }
    }
    for (path, form) in [("/v1/packs", "GPUPACK1"), ("/v1/snapshots", "GPUMANI1")] {
        for body in odd() {
            for body in [
                body.clone(),
                [form.as_bytes(), &body].concat(),
                [form.as_bytes(), &[0xff; 4], &body].concat(),
            ] {
                // Under its own name, so that the bytes are looked at.
                let id = blake3::hash(&body).to_hex();
                if let Err(problem) = olga.put(&format!("{path}/{id}"), body.clone()).await {
                    assert!(problem.status < 500, "{path}: {problem}");
                    refused += 1;
                }
                assert!(
                    olga.put(&format!("{path}/{hash}"), body).await.is_err(),
                    "another's name is not taken"
                );
            }
        }
    }
    assert!(refused > 500, "only {refused} were refused");
    still_serves(&olga).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_words_of_a_session_are_skipped_or_end_it_alone() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let mut other =
        crate::common::invited(&olga, gpunion_protocol::http::Role::Member, "ada").await.session().await;

    // First words that are none: that connection is closed, with a reason.
    for first in odd() {
        let mut socket = olga.socket().await.unwrap();
        socket.say_text(&String::from_utf8_lossy(&first)).await;
        let why = socket.end().await;
        assert!(why.contains("hello"), "{why}");
    }
    let attempt = "{\"job\":\"job_01m8qfkhe2r9xwn04gv94p9d7z\",\"token\":{\"epoch\":1,\"attempt\":1}}";
    let words = [
        format!("{{\"say\":\"renew\",\"seq\":1,\"attempts\":[{attempt}]}}"),
        format!("{{\"say\":\"state\",\"attempt\":{attempt},\"state\":{{\"state\":\"running\"}}}}"),
        format!("{{\"say\":\"log\",\"attempt\":{attempt},\"offset\":18446744073709551615,\"bytes\":\"aGVsbG8=\"}}"),
        format!("{{\"say\":\"ended\",\"attempt\":{attempt},\"cause\":{{\"kind\":\"exited\",\"code\":0}}}}"),
        "{\"say\":\"offer\",\"offer\":{\"open\":false,\"gpus\":[],\"cpus\":4294967295,\"memory\":\"16777215 TiB\",\"disk\":\"1 B\",\"architecture\":\"amd64\"}}".to_owned(),
        "{\"say\":\"wrapped\",\"job\":\"job_01m8qfkhe2r9xwn04gv94p9d7z\",\"key\":{\"device\":\"dev_01m8qfkhe2r9xwn04gv94p9d7z\",\"wrapped\":\"AAAA\"}}".to_owned(),
    ];
    let mut socket = olga.session().await;
    for word in &words {
        for text in std::iter::once(word.clone().into_bytes()).chain(harmed(word)) {
            socket.say_text(&String::from_utf8_lossy(&text)).await;
        }
    }
    for text in odd() {
        socket.0.send(Message::binary(text.clone())).await.unwrap();
        socket.say_text(&String::from_utf8_lossy(&text)).await;
    }
    // It is not out of step: it answers what came after all of that, and nobody else felt it.
    for socket in [&mut socket, &mut other] {
        socket.say_text("{\"say\":\"renew\",\"seq\":777777,\"attempts\":[]}").await;
        socket.until("an answer", |m| matches!(m, ToAgent::Renewed { seq: 777_777, .. })).await;
    }
    still_serves(&olga).await;
    relay.stop().await;
}

/// Refused at the length: were it waited for, the answer would come after time-outs only.
#[tokio::test(flavor = "multi_thread")]
async fn a_length_that_is_declared_and_does_not_come_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let relay = Relay::start(dir.path()).await;
    let olga = relay.operator().await;
    let hash = "ab".repeat(32);
    let token = &olga.joined().token;
    for (method, path) in [
        ("PUT", format!("/v1/packs/{hash}")),
        ("PUT", format!("/v1/snapshots/{hash}")),
        ("POST", "/v1/invites".to_owned()),
    ] {
        let mut stream = tls(&olga).await;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: 1099511627776\r\n\r\nGPUPACK1"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = [0; 512];
        let read = soon("the refusal", stream.read(&mut answer)).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]);
        assert!(answer.starts_with("HTTP/1.1 413"), "{method} {path}: {answer}");
    }

    // A frame of 2^62 bytes, of which the header comes.
    let mut socket = olga.session().await;
    let stream = socket.0.get_mut();
    stream.write_all(&[0x81, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]).await.unwrap();
    stream.flush().await.unwrap();
    socket.end().await;

    // Bytes that are no HTTP, and a head without end.
    for bytes in odd().into_iter().filter(|bytes| !bytes.is_empty()) {
        let mut stream = tls(&olga).await;
        // It may be refused before all of it is written.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.write_all(b"\r\n\r\n").await;
        let mut answer = Vec::new();
        let _ = soon("the end", stream.read_to_end(&mut answer)).await;
        assert!(
            answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    let mut stream = tls(&olga).await;
    let mut written = 0;
    let header = format!("x: {}\r\n", "y".repeat(1000));
    stream.write_all(b"GET /healthz HTTP/1.1\r\n").await.unwrap();
    while written < 64 << 20 && stream.write_all(header.as_bytes()).await.is_ok() {
        written += header.len();
    }
    assert!(written < 16 << 20, "a head of {written} bytes was taken in");
    still_serves(&olga).await;
    relay.stop().await;
}

async fn tls(client: &Client) -> tokio_rustls::client::TlsStream<TcpStream> {
    let tcp = TcpStream::connect(&client.address).await.unwrap();
    let name = ServerName::try_from("relay").unwrap();
    tokio_rustls::TlsConnector::from(Arc::clone(&client.tls)).connect(name, tcp).await.unwrap()
}
