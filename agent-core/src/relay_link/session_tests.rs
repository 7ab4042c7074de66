//! The session over pipes of memory: what goes first, and what ends nothing.

use gpunion_protocol::ids::{AttemptNo, AttemptRef, JobId, Token};
use gpunion_protocol::job::Blob;
use gpunion_protocol::session::LOG_PIECE_MAX;
use gpunion_protocol::time::Millis;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::*;

fn log() -> ToRelay {
    let token = Token { epoch: Epoch(1), attempt: AttemptNo(1) };
    let attempt = AttemptRef { job: JobId::new(1, [1; 10]), token };
    ToRelay::Log { attempt, offset: 0, bytes: Blob(vec![b'x'; LOG_PIECE_MAX]) }
}

fn task() -> (Task, SessionHandle) {
    let (outgoing, control) = mpsc::channel(QUEUE);
    let (logs, logs_to_send) = mpsc::channel(LOGS);
    let (deliver, incoming) = mpsc::channel(QUEUE);
    let (tell, status) = watch::channel(LinkStatus::Up);
    let to_send = ToSend { control, logs: logs_to_send };
    let task = Task { membership: watch::channel(None).1, agent: String::new(), to_send, deliver, tell };
    (task, SessionHandle { outgoing, logs, incoming, status })
}

/// A guest prints without end and the relay reads slowly: no renewal is dropped for it, and
/// each is the next thing said.
#[tokio::test]
async fn f99_output_waits_for_all_else_and_crowds_nothing_out() {
    let (mut task, handle) = task();
    let (keep, membership) = watch::channel(None);
    task.membership = membership;
    let (here, there) = tokio::io::duplex(4 << 10);
    let carrying = tokio::spawn(async move {
        let socket = WebSocketStream::from_raw_socket(here, Role::Client, None).await;
        let second = Millis::from_secs(1);
        let terms = Terms { lease: second, renew: second, margin: second, heartbeat: Millis::from_secs(60) };
        let _ = task.carry(socket, terms).await;
    });
    let logs = handle.logs.clone();
    let printing = tokio::spawn(async move { while logs.send(log()).await.is_ok() {} });
    let mut relay = WebSocketStream::from_raw_socket(there, Role::Server, None).await;
    let mut next = async || match understood_text(relay.next().await) {
        ToRelay::Renew { seq, .. } => Some(seq),
        _ => None,
    };
    // Output is under way, and what waits of it is all that may wait.
    assert_eq!(next().await, None);
    for seq in 0..50 {
        handle.outgoing.try_send(ToRelay::Renew { seq, attempts: Vec::new() }).unwrap();
        // One piece may be on the line already.
        let mut before = 0;
        loop {
            match next().await {
                Some(said) => break assert_eq!(said, seq),
                None => before += 1,
            }
            assert!(before <= 2, "output is said before a renewal");
        }
    }
    printing.abort();
    carrying.abort();
    drop(keep);
}

/// A relay one version newer: what it says that is not known is passed over, what is known is
/// heard with whatever else stands in it, and the session goes on.
#[tokio::test]
async fn new_words_of_a_newer_relay_end_nothing() {
    let (mut task, mut handle) = task();
    let (_keep, membership) = watch::channel(None);
    task.membership = membership;
    let (here, there) = tokio::io::duplex(64 << 10);
    let carrying = tokio::spawn(async move {
        let socket = WebSocketStream::from_raw_socket(here, Role::Client, None).await;
        let minute = Millis::from_secs(60);
        let terms = Terms { lease: minute, renew: minute, margin: minute, heartbeat: minute };
        let _ = task.carry(socket, terms).await;
    });
    let mut relay = WebSocketStream::from_raw_socket(there, Role::Server, None).await;
    for text in [
        r#"{"say":"dance","steps":3}"#,
        r#"{"say":"assign","attempt":{"of":"a newer kind"}}"#,
        r#"["say","nothing"]"#,
        r#"{"say":"renewed","seq":9,"counting":[],"stale":[],"resting":[],"until":{"noon":1}}"#,
    ] {
        relay.send(Message::text(text)).await.unwrap();
    }
    relay.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    let renewed = ToAgent::Renewed { seq: 9, counting: Vec::new(), stale: Vec::new(), put_aside: None };
    assert_eq!(handle.incoming.recv().await, Some(SessionEvent::Message(renewed)));
    assert!(!carrying.is_finished());
    carrying.abort();
    // The first word of all, with fields that are not known, one of an older relay without.
    let welcome = r#"{"say":"welcome","wire":3,"relay":"9","epoch":7,"terms":{"lease":45000,"renew":10000,
        "margin":5000,"heartbeat":6000,"patience":1},"device":"DEVICE","motto":"hello"}"#;
    let device = gpunion_protocol::ids::DeviceId::new(1, [1; 10]).to_string();
    let welcome = Message::text(welcome.replace("DEVICE", &device));
    let Ok(Some(ToAgent::Welcome { addresses, .. })) = understood(Some(Ok(welcome))) else {
        panic!("not understood")
    };
    assert_eq!(addresses, [""; 0]);
}

fn understood_text(message: Option<Result<Message, WsError>>) -> ToRelay {
    match message {
        Some(Ok(Message::Text(text))) => serde_json::from_str(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}
