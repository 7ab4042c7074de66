//! Where a job's image comes from: a registry, or this member's own engine.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::units;

/// An image as the engine of this machine has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalImage {
    /// `sha256:…` of its configuration.
    pub id: String,
    /// `sha256:…` under which a registry has it; absent: none does, as far as the engine knows.
    pub digest: Option<String>,
    pub bytes: Option<u64>,
}

pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send + 'a>>;
/// The bytes of a `docker save` archive.
pub type Archive = BoxStream<'static, Result<Bytes, Problem>>;

/// The engine, as far as the consumer half needs it.
pub trait ImageStore: Send + Sync {
    /// `None` when it does not have the image.
    fn local<'a>(&'a self, reference: &'a str) -> Answer<'a, Option<LocalImage>>;

    fn export<'a>(&'a self, reference: &'a str) -> Answer<'a, Archive>;
}

impl fmt::Debug for dyn ImageStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ImageStore")
    }
}

/// A machine without a container engine: every image is a registry's.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoEngine;

impl ImageStore for NoEngine {
    fn local<'a>(&'a self, _reference: &'a str) -> Answer<'a, Option<LocalImage>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn export<'a>(&'a self, reference: &'a str) -> Answer<'a, Archive> {
        let problem = Problem::new(
            Code::EngineAway,
            format!("there is no container engine here to take {reference} from"),
        );
        Box::pin(std::future::ready(Err(problem)))
    }
}

/// Where the image of a plan was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    NotLooked,
    /// A registry has it, or is believed to.
    Registry {
        digest: Option<String>,
    },
    /// Only this member's engine: its layers travel.
    Here(LocalImage),
}

impl Found {
    pub fn words(&self) -> String {
        match self {
            Self::NotLooked => String::new(),
            Self::Registry { digest: None } => "the registry; the first provider fixes its digest".to_owned(),
            Self::Registry { digest: Some(_) } => {
                "the registry, by the digest that this machine has".to_owned()
            }
            Self::Here(image) => {
                let size = image.bytes.map(|bytes| format!(" ({})", units::Bytes(bytes))).unwrap_or_default();
                format!("this machine's container engine{size}: no registry has it, so its layers travel")
            }
        }
    }
}

/// A healthy engine answers this out of its memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// An engine that does not answer is no reason not to submit: the registry is asked then.
pub(super) async fn local_image(store: &dyn ImageStore, reference: &str) -> Found {
    let found = tokio::time::timeout(PATIENCE, store.local(reference)).await;
    let found =
        found.unwrap_or_else(|_| Err(Problem::new(Code::EngineAway, "the container engine does not answer")));
    match found {
        Ok(Some(LocalImage { digest: Some(digest), .. })) => Found::Registry { digest: Some(digest) },
        Ok(Some(image)) => Found::Here(image),
        Ok(None) => Found::Registry { digest: None },
        Err(problem) => {
            tracing::info!(%problem, reference, "whether this machine has the image is not known");
            Found::Registry { digest: None }
        }
    }
}
