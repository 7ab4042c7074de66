//! The one thread that writes. It takes whole transactions and says when each is on the disk.

use std::path::PathBuf;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use super::Store;
use crate::broker::{Change, Record};
use crate::error::Error;

enum Order {
    Commit { changes: Vec<Change>, done: oneshot::Sender<Result<(), Error>> },
    Load { done: oneshot::Sender<Result<Vec<Record>, Error>> },
}

/// Cheap to clone. The thread ends when the last one is dropped.
#[derive(Clone)]
pub(crate) struct Writer {
    orders: mpsc::Sender<Order>,
    path: PathBuf,
}

impl Writer {
    pub(crate) fn start(store: Store) -> Result<(Self, JoinHandle<()>), Error> {
        let (orders, inbox) = mpsc::channel(16);
        let path = store.path().to_owned();
        let thread = std::thread::Builder::new()
            .name("relay-store".to_owned())
            .spawn(move || run(store, inbox))
            .map_err(Error::io("start the writer of", &path))?;
        Ok((Self { orders, path }, thread))
    }

    /// Returns when all of it is on the disk, or none.
    pub(crate) async fn commit(&self, changes: Vec<Change>) -> Result<(), Error> {
        self.order(|done| Order::Commit { changes, done }).await
    }

    pub(crate) async fn load(&self) -> Result<Vec<Record>, Error> {
        self.order(|done| Order::Load { done }).await
    }

    /// Beside the writing, however long it takes: leases are renewed by what is committed meanwhile.
    pub(crate) async fn backup(&self, to: PathBuf) -> Result<(), Error> {
        let path = self.path.clone();
        let copied = tokio::task::spawn_blocking(move || super::backup(&path, &to)).await;
        copied.map_err(|e| Error::Stopped(e.to_string()))?
    }

    async fn order<T>(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Order,
    ) -> Result<T, Error> {
        let gone = || Error::Stopped("its writer thread ended".to_owned());
        let (done, answer) = oneshot::channel();
        self.orders.send(make(done)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

/// Answers go to callers that may have gone: the work is done all the same.
fn run(mut store: Store, mut inbox: mpsc::Receiver<Order>) {
    while let Some(order) = inbox.blocking_recv() {
        match order {
            Order::Commit { changes, done } => drop(done.send(store.commit(&changes))),
            Order::Load { done } => drop(done.send(store.load())),
        }
    }
}
