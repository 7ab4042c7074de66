//! How everybody else reaches the driver: bounded, and with an answer in bounded time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::session::{ToAgent, ToRelay};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::broker::{Broker, Event, Reply, RequestId, SessionId};

/// Inputs that wait for the driver at most.
const QUEUE: usize = 1_024;
/// A caller is told "busy" after so long; a proxy in between waits longer for an answer.
const PATIENCE: Duration = Duration::from_secs(8);

pub(super) type Question = Box<dyn FnOnce(&Broker) + Send>;

/// What comes to the driver.
pub(crate) enum Input {
    Call {
        request: RequestId,
        event: Box<Event>,
        reply: oneshot::Sender<Result<Reply, Problem>>,
    },
    Ask(Question),
    Opened {
        device: DeviceId,
        mailbox: Mailbox,
    },
    Closed {
        device: DeviceId,
        session: SessionId,
    },
    Heard {
        device: DeviceId,
        session: SessionId,
        message: Box<ToRelay>,
    },
    /// Something that needs no decision, to the device's present session.
    Say {
        device: DeviceId,
        message: Box<ToAgent>,
    },
}

/// What goes to one agent.
pub(crate) enum Outgoing {
    Say(Box<ToAgent>),
    /// Nothing follows; the reason is for the agent's log.
    Close(String),
}

/// The driver's end of one session. What does not fit is dropped: all that matters is said again
/// until it is answered, and a session that takes nothing is ended by its own writer.
pub(crate) struct Mailbox {
    pub(crate) session: SessionId,
    pub(crate) queue: mpsc::Sender<Outgoing>,
    pub(crate) over: CancellationToken,
}

impl Mailbox {
    /// False when it did not fit.
    pub(crate) fn send(&self, message: Box<ToAgent>) -> bool {
        self.queue.try_send(Outgoing::Say(message)).is_ok()
    }

    /// Ends the session after what is queued; at once when not even this fits.
    pub(crate) fn close(&self, why: &str) {
        if self.queue.try_send(Outgoing::Close(why.to_owned())).is_err() {
            self.over.cancel();
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    inputs: mpsc::Sender<Input>,
    numbers: Arc<AtomicU64>,
}

impl Handle {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Input>) {
        let (inputs, inbox) = mpsc::channel(QUEUE);
        (Self { inputs, numbers: Arc::default() }, inbox)
    }

    /// Has an event handled and returns the reply, once what it changed is on the disk.
    pub(crate) async fn call(&self, make: impl FnOnce(RequestId) -> Event) -> Result<Reply, Problem> {
        let request = RequestId(self.number());
        let (reply, answer) = oneshot::channel();
        self.send(Input::Call { request, event: Box::new(make(request)), reply }).await?;
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| busy())?.map_err(|_| stopped())?
    }

    /// Looks at the broker, as it is on the disk.
    pub(crate) async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Broker) -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        let ask = move |broker: &Broker| drop(reply.send(question(broker)));
        self.send(Input::Ask(Box::new(ask))).await?;
        tokio::time::timeout(PATIENCE, answer).await.map_err(|_| busy())?.map_err(|_| stopped())
    }

    pub(crate) async fn send(&self, input: Input) -> Result<(), Problem> {
        match self.inputs.send_timeout(input, PATIENCE).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => Err(busy()),
            Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(stopped()),
        }
    }

    pub(crate) fn new_session(&self) -> SessionId {
        SessionId(self.number())
    }

    /// Inputs that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.inputs.max_capacity() - self.inputs.capacity()
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }
}

fn busy() -> Problem {
    Problem::new(Code::Busy, "the relay has too much to do").with_detail("try again in a moment")
}

fn stopped() -> Problem {
    Problem::new(Code::Busy, "the relay is stopping").with_detail("try again once it is back")
}
