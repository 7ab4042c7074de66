//! One WebSocket a device: reads what the agent says, writes what the broker wants said.
//!
//! It decides nothing about attempts. Log pieces go to `logs`, all else to the broker, in the
//! order in which it came. Both directions are bounded in size and in time.

mod kept;
mod reader;
mod writer;

use std::sync::Arc;

use axum::extract::ws::WebSocket;
use futures_util::StreamExt as _;
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::session::Terms;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::driver::{Handle, Input, Mailbox};
use crate::logs::Logs;
use crate::packs::Packs;
use kept::Kept;

/// Messages that wait for one agent at most.
const QUEUE: usize = 64;

/// What a session works with.
pub(crate) struct Session {
    pub(crate) device: DeviceId,
    pub(crate) device_name: String,
    pub(crate) handle: Handle,
    pub(crate) logs: Logs,
    pub(crate) packs: Arc<Packs>,
    pub(crate) terms: Terms,
    /// The relay is stopping.
    pub(crate) stopping: CancellationToken,
}

impl Session {
    /// Serves the connection until it ends.
    pub(crate) async fn run(self, socket: WebSocket) {
        let (sink, mut stream) = socket.split();
        let over = self.stopping.child_token();
        let (queue, inbox) = mpsc::channel(QUEUE);
        let kept = Arc::new(Kept::default());
        let heartbeat = self.terms.heartbeat;
        let writer = writer::run(sink, inbox, Arc::clone(&kept), heartbeat, over.clone());
        let writer = tokio::spawn(writer);
        let _guard = over.clone().drop_guard();
        let session = self.handle.new_session();
        let device = self.device.clone();

        match reader::greeting(&mut stream, &over).await {
            Ok(hello) => {
                let mailbox = Mailbox { session, queue, over: over.clone() };
                let opened = Input::Opened { device: device.clone(), mailbox };
                if self.handle.send(opened).await.is_ok() {
                    tracing::info!(%device, "session began");
                    let ended = self.read(session, hello, &mut stream, &kept, &over).await;
                    tracing::info!(%device, because = %ended, "session ended");
                    let closed = Input::Closed { device, session };
                    // A driver that is gone needs no news.
                    let _ = self.handle.send(closed).await;
                }
            }
            Err(why) => {
                tracing::info!(%device, because = %why, "a session did not begin");
                let _ = queue.try_send(crate::driver::Outgoing::Close(why));
            }
        }
        // The writer's mailbox is dropped by now or has a farewell in it; either ends it.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), writer).await;
    }
}
