//! Any bytes into the local API. It is open to every process of the owner's, and reclaiming to whoever
//! may open the socket: none of them may end the agent or fill its memory.

use std::path::Path;

use gpunion_protocol::problem::{CONTENT_TYPE, Problem};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

use crate::support::{Half, LIMIT, noise};

const POSTS: [(&str, &str); 7] = [
    ("/v1/share", r#"{"on":false,"cpus":2,"memory":"4 GiB"}"#),
    ("/v1/reclaim", r#"{"gpu":"GPU-1"}"#),
    ("/v1/join", r#"{"link":"gpunion://join/0","member_name":"Ada","device_name":null}"#),
    ("/v1/group/invites", r#"{"role":"member","valid_s":3600}"#),
    ("/v1/preview", r#"{"thing":{"kind":"image","value":"a"},"secrets":{"A":"x"}}"#),
    ("/v1/jobs", r#"{"thing":{"kind":"image","value":"a"},"accepted":true,"secrets":{}}"#),
    ("/v1/jobs/job_1/fetch", r#"{"into":"results"}"#),
];

/// What no parser likes, whatever it parses.
fn odd() -> Vec<Vec<u8>> {
    let deep = |open: &str| open.repeat(100_000).into_bytes();
    vec![
        vec![0; 4096],
        vec![0xff; 4096],
        noise(7, 4096),
        b"null".to_vec(),
        b"1e999".to_vec(),
        b"\"\\ud800\"".to_vec(),
        deep("["),
        deep("{\"a\":"),
        format!("{{\"cpus\":{}}}", "9".repeat(10_000)).into_bytes(),
    ]
}

/// Each beginning of it, and it with single bytes changed.
fn harmed(text: &str) -> impl Iterator<Item = Vec<u8>> {
    let bytes = text.as_bytes();
    let cut = (1..bytes.len()).map(|at| bytes[..at].to_vec());
    let changed = (0..bytes.len()).map(|at| {
        let mut bytes = bytes.to_vec();
        bytes[at] ^= [0x15, 0x80, 0x01][at % 3];
        bytes
    });
    cut.chain(changed).collect::<Vec<_>>().into_iter()
}

/// Whether more could follow what was said.
#[derive(PartialEq)]
enum Then {
    Waits,
    Ends,
}

/// What comes back until it ends; nothing, when it was hung up.
async fn say(socket: &Path, bytes: &[u8], then: Then) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    let mut answer = Vec::new();
    let talk = async {
        // It may be refused before all of it is written.
        let _ = stream.write_all(bytes).await;
        if then == Then::Ends {
            let _ = stream.shutdown().await;
        }
        let _ = stream.read_to_end(&mut answer).await;
    };
    tokio::time::timeout(LIMIT, talk).await.unwrap();
    answer
}

async fn post(socket: &Path, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: agent\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    say(socket, &[head.as_bytes(), body].concat(), Then::Waits).await
}

async fn still_serves(socket: &Path) {
    let ask = b"GET /v1/snapshot HTTP/1.1\r\nhost: agent\r\nconnection: close\r\n\r\n";
    let answer = say(socket, ask, Then::Waits).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

fn is_problem(answer: &str) -> bool {
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    answer.contains(CONTENT_TYPE) && serde_json::from_str::<Problem>(body).is_ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn any_bytes_as_a_body_are_answered_by_a_problem() {
    let home = tempfile::tempdir().unwrap();
    let half = Half::start(home.path());
    let socket = &half.dirs.socket;
    let mut refused = 0;
    for (path, body) in POSTS {
        for body in harmed(body).chain(odd()) {
            let answer = post(socket, path, &body).await;
            let answer = String::from_utf8_lossy(&answer);
            // Some of what is changed still makes sense.
            if answer.starts_with("HTTP/1.1 2") {
                continue;
            }
            assert!(is_problem(&answer), "{path}: {answer}");
            assert!(!answer.starts_with("HTTP/1.1 500"), "{path}: {answer}");
            refused += 1;
        }
    }
    assert!(refused > 300, "only {refused} were refused");
    still_serves(socket).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_http_and_lengths_that_do_not_come_cost_one_connection() {
    let home = tempfile::tempdir().unwrap();
    let half = Half::start(home.path());
    let socket = &half.dirs.socket;
    for bytes in odd() {
        let answer = say(socket, &[bytes.as_slice(), b"\r\n\r\n"].concat(), Then::Ends).await;
        let text = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    }
    let long = "POST /v1/share HTTP/1.1\r\nhost: agent\r\ncontent-length: 1099511627776\r\n\r\n{";
    let answer = say(socket, long.as_bytes(), Then::Ends).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4"), "{text}");
    // A body and a head without end are cut, and not kept.
    for (start, piece) in [
        ("POST /v1/share HTTP/1.1\r\nhost: agent\r\ntransfer-encoding: chunked\r\n\r\n", "1000\r\n"),
        ("GET /v1/snapshot HTTP/1.1\r\n", "x: "),
    ] {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        stream.write_all(start.as_bytes()).await.unwrap();
        let piece = format!("{piece}{}\r\n", "y".repeat(0x1000));
        let mut written = 0;
        while written < 64 << 20 && stream.write_all(piece.as_bytes()).await.is_ok() {
            written += piece.len();
        }
        assert!(written < 16 << 20, "{written} bytes after {start:?} were taken in");
    }
    still_serves(socket).await;
}
