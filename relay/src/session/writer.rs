//! The writing half: what is queued, a beat when there was nothing, a farewell at the end.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use futures_util::SinkExt as _;
use futures_util::stream::SplitSink;
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::Millis;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kept::Kept;
use crate::driver::Outgoing;

/// "Going away" and "policy violation" of RFC 6455 tell an agent nothing it would act on; this
/// one says: the relay ended it, dial again later.
const ENDED: u16 = 4000;
const FAREWELL: Duration = Duration::from_secs(2);

/// Ends with the queue, when `over`, or when the agent takes nothing for three heartbeats.
pub(super) async fn run(
    mut sink: SplitSink<WebSocket, Message>,
    mut queue: mpsc::Receiver<Outgoing>,
    kept: Arc<Kept>,
    heartbeat: Millis,
    over: CancellationToken,
) {
    let patience = heartbeat.as_std() * 3;
    let why = loop {
        let messages = tokio::select! {
            biased;
            () = over.cancelled() => break "the session is over".to_owned(),
            outgoing = queue.recv() => match outgoing {
                Some(Outgoing::Say(message)) => vec![*message],
                Some(Outgoing::Close(why)) => break why,
                None => break "the session is over".to_owned(),
            },
            words = kept.take() => words,
            () = tokio::time::sleep(heartbeat.as_std()) => vec![ToAgent::Beat],
        };
        let send = async {
            for message in &messages {
                let Ok(text) = serde_json::to_string(message) else { continue };
                sink.feed(Message::text(text)).await?;
            }
            sink.flush().await
        };
        match tokio::time::timeout(patience, send).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => break "it takes nothing".to_owned(),
        }
    };
    over.cancel();
    // 123 bytes are what a close frame has room for.
    let reason: String = why.chars().take(40).collect();
    let frame = CloseFrame { code: ENDED, reason: reason.into() };
    let _ = tokio::time::timeout(FAREWELL, async {
        let _ = sink.send(Message::Close(Some(frame))).await;
        let _ = sink.close().await;
    })
    .await;
}
