//! Images: here or not, pulled by digest, carried as archives where no registry has them.

use std::collections::BTreeMap;

use bollard::models::{CreateImageInfo, ImageInspect};
use bollard::query_parameters::{CreateImageOptions, ImportImageOptions};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use super::archive::Gate;
use super::calls::{Engine, LONG, SHORT, STALL, within, within_optional};
use super::error::EngineError;
use super::reference::{Reference, digest_for, is_digest, is_name_or_id};
use super::space::free_space;

/// What the image says about how it is run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    pub entrypoint: Vec<String>,
    pub cmd: Vec<String>,
    /// `NAME=value`.
    pub env: Vec<String>,
    pub workdir: String,
}

/// An image that the engine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalImage {
    /// `sha256:…`
    pub id: String,
    /// Where registries know it, as `repository@sha256:…`; empty: no registry is known to have it.
    pub repo_digests: Vec<String>,
    /// Bytes on disk.
    pub size: u64,
    /// As the engine names it; empty when the image does not say.
    pub architecture: String,
    pub config: ImageConfig,
    /// Places that the image wants volumes of its own at.
    pub volumes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pulled {
    /// `sha256:…`, as the registry names it.
    pub digest: String,
    pub image: LocalImage,
}

/// Bytes of layers that came, of those known of so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PullProgress {
    pub done: u64,
    pub total: u64,
}

/// Least free space (bytes) that a pull is begun with, and that must stay.
const SPACE_FLOOR: u64 = 1 << 30;
/// A layer is on disk packed and unpacked while it is taken in.
const UNPACKED_FACTOR: u64 = 3;

impl Engine {
    /// By name, digest or id; `None` when the engine does not have it.
    pub async fn image(&self, name: &str) -> Result<Option<LocalImage>, EngineError> {
        const DOING: &str = "looking for the image";
        must_be_name(DOING, name)?;
        let call = self.client(DOING).await?.inspect_image(name);
        Ok(within_optional(DOING, SHORT, call).await?.map(local_image))
    }

    /// Has the image here. With a digest exactly that one; without, what the name stands for at
    /// the registry now, whose digest is then fixed for later attempts. An image that is here
    /// under the wanted digest is not asked for again.
    pub async fn pull(
        &self,
        reference: &str,
        digest: Option<&str>,
        progress: &mut (dyn FnMut(PullProgress) + Send),
    ) -> Result<Pulled, EngineError> {
        const DOING: &str = "pulling the image";
        let named = Reference::parse(reference).map_err(|why| EngineError::refused(DOING, why))?;
        let wanted = match digest.or(named.digest.as_deref()) {
            Some(digest) if is_digest(digest) => Some(digest.to_owned()),
            Some(digest) => return Err(EngineError::refused(DOING, format!("{digest:?} is not a digest"))),
            None => None,
        };
        if let Some(digest) = &wanted
            && let Some(image) = self.image(&named.by_digest(digest)).await?
        {
            return Ok(Pulled { digest: digest.clone(), image });
        }
        let root = self.root(DOING).await?;
        let name = match &wanted {
            Some(digest) => named.by_digest(digest),
            None => format!("{}:{}", named.repository, named.tag.as_deref().unwrap_or("latest")),
        };
        self.fetch(&name, &root, progress).await?;
        let image = self.image(&name).await?.ok_or_else(|| {
            EngineError::refused(DOING, format!("the engine pulled {name} but does not have it now"))
        })?;
        let found = digest_for(&named, &image.repo_digests).filter(|_| wanted.is_none()).or_else(|| {
            wanted.clone().filter(|digest| image.repo_digests.iter().any(|d| d.ends_with(digest.as_str())))
        });
        match found {
            Some(digest) => Ok(Pulled { digest, image }),
            None => Err(EngineError::refused(
                DOING,
                format!("{name} came with another digest than it was asked for by"),
            )),
        }
    }

    async fn fetch(
        &self,
        name: &str,
        root: &std::path::Path,
        progress: &mut (dyn FnMut(PullProgress) + Send),
    ) -> Result<(), EngineError> {
        const DOING: &str = "pulling the image";
        enough_space(DOING, root, 0)?;
        let options =
            CreateImageOptions { from_image: Some(name.to_owned()), ..CreateImageOptions::default() };
        let mut stream = self.client(DOING).await?.create_image(Some(options), None, None);
        let mut meter = PullMeter::default();
        loop {
            match tokio::time::timeout(STALL, stream.next()).await {
                Err(_) => return Err(EngineError::timed_out(DOING, STALL)),
                Ok(None) => return Ok(()),
                Ok(Some(Err(error))) => return Err(EngineError::of_api(DOING, error)),
                Ok(Some(Ok(info))) => {
                    if let Some(now) = meter.feed(&info) {
                        // Dropping the stream makes the engine give up the pull.
                        enough_space(DOING, root, now.total.saturating_sub(now.done))?;
                        progress(now);
                    }
                }
            }
        }
    }

    /// The image as an archive, layers and all. By id, so that no name of the owner's travels.
    pub async fn export(
        &self,
        image_id: &str,
    ) -> Result<impl Stream<Item = Result<Bytes, EngineError>> + Send + use<>, EngineError> {
        const DOING: &str = "reading the image out of the engine";
        let Some(image) = self.image(image_id).await? else {
            return Err(EngineError::refused(DOING, format!("the engine has no image {image_id}")));
        };
        let client = self.client(DOING).await?.clone();
        let bytes = async_stream(client, image.id);
        Ok(bytes.map(|piece| piece.map_err(|error| EngineError::of_api(DOING, error))))
    }

    /// Takes in an archive that some member's engine wrote. It may bring exactly the image
    /// `image_id` and no name: a name could take the place of one of the owner's images.
    pub async fn import<S>(&self, archive: S, image_id: &str) -> Result<LocalImage, EngineError>
    where
        S: Stream<Item = std::io::Result<Bytes>> + Send + 'static,
    {
        const DOING: &str = "taking the image into the engine";
        if let Some(image) = self.image(image_id).await? {
            return Ok(image);
        }
        let root = self.root(DOING).await?;
        enough_space(DOING, &root, 0)?;
        let gate = Gate::new(image_id);
        let refusal = gate.refusal();
        let guarded = gate.guard(archive);
        let client = self.client(DOING).await?;
        let mut stream =
            client.import_image_stream(ImportImageOptions { quiet: true, platform: None }, guarded, None);
        loop {
            match tokio::time::timeout(STALL, stream.next()).await {
                Err(_) => return Err(EngineError::timed_out(DOING, STALL)),
                Ok(None) => break,
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => {
                    return Err(match refusal.reason() {
                        Some(reason) => EngineError::refused(DOING, reason),
                        None => EngineError::of_api(DOING, error),
                    });
                }
            }
        }
        if let Some(reason) = refusal.reason() {
            return Err(EngineError::refused(DOING, reason));
        }
        self.image(image_id).await?.ok_or_else(|| {
            EngineError::refused(DOING, format!("the archive holds another image than {image_id}"))
        })
    }

    /// Removes an image that nothing uses; one that is in use or gone stays as it is.
    pub async fn remove_image(&self, name: &str) -> Result<(), EngineError> {
        const DOING: &str = "removing an image";
        must_be_name(DOING, name)?;
        let call = self.client(DOING).await?.remove_image(
            name,
            None::<bollard::query_parameters::RemoveImageOptions>,
            None,
        );
        within_optional(DOING, LONG, call).await.map(drop)
    }

    async fn root(&self, doing: &'static str) -> Result<std::path::PathBuf, EngineError> {
        let info = within(doing, SHORT, self.client(doing).await?.info()).await?;
        Ok(info.docker_root_dir.map_or_else(|| "/var/lib/docker".into(), Into::into))
    }
}

/// The client's stream borrows its client, so one that is handed out takes it along.
fn async_stream(
    client: bollard::Docker,
    id: String,
) -> impl Stream<Item = Result<Bytes, bollard::errors::Error>> + Send + use<> {
    client.export_image(&id).boxed()
}

fn must_be_name(doing: &'static str, name: &str) -> Result<(), EngineError> {
    if is_name_or_id(name) {
        return Ok(());
    }
    Err(EngineError::refused(doing, format!("{name:?} is not the name of an image")))
}

fn enough_space(doing: &'static str, root: &std::path::Path, still_to_come: u64) -> Result<(), EngineError> {
    let Some(free) = free_space(root) else { return Ok(()) };
    let needed = still_to_come.saturating_mul(UNPACKED_FACTOR).saturating_add(SPACE_FLOOR);
    if free >= needed {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(EngineError::refused(
        doing,
        format!(
            "it needs about {} MiB and {} MiB are free below {}; free some space there",
            mib(needed),
            mib(free),
            root.display()
        ),
    ))
}

fn local_image(found: ImageInspect) -> LocalImage {
    let config = found.config.unwrap_or_default();
    LocalImage {
        id: found.id.unwrap_or_default(),
        repo_digests: found.repo_digests.unwrap_or_default(),
        size: found.size.and_then(|size| u64::try_from(size).ok()).unwrap_or(0),
        architecture: found.architecture.unwrap_or_default(),
        volumes: config.volumes.unwrap_or_default(),
        config: ImageConfig {
            entrypoint: config.entrypoint.unwrap_or_default(),
            cmd: config.cmd.unwrap_or_default(),
            env: config.env.unwrap_or_default(),
            workdir: config.working_dir.unwrap_or_default(),
        },
    }
}

/// Adds up the layers of one pull, which the engine tells about one by one.
#[derive(Default)]
struct PullMeter {
    layers: BTreeMap<String, (u64, u64)>,
}

impl PullMeter {
    fn feed(&mut self, info: &CreateImageInfo) -> Option<PullProgress> {
        let id = info.id.clone()?;
        let unsigned = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
        let layer = self.layers.entry(id).or_default();
        match info.status.as_deref() {
            Some("Downloading") => {
                let detail = info.progress_detail.as_ref()?;
                let total = unsigned(detail.total)?;
                *layer = (unsigned(detail.current).unwrap_or(0).min(total), total);
            }
            Some("Download complete" | "Pull complete" | "Already exists" | "Extracting") => {
                layer.0 = layer.1
            }
            Some(_) | None => return None,
        }
        let sum = |part: fn(&(u64, u64)) -> u64| self.layers.values().map(part).fold(0, u64::saturating_add);
        Some(PullProgress { done: sum(|layer| layer.0), total: sum(|layer| layer.1) })
    }
}

#[cfg(test)]
mod tests {
    use bollard::models::ProgressDetail;

    use super::*;

    #[test]
    fn progress_adds_up_over_layers_and_never_passes_the_total() {
        let mut meter = PullMeter::default();
        let says = |id: &str, status: &str, current: i64, total: i64| CreateImageInfo {
            id: Some(id.to_owned()),
            status: Some(status.to_owned()),
            progress_detail: Some(ProgressDetail { current: Some(current), total: Some(total) }),
            ..CreateImageInfo::default()
        };
        meter.feed(&says("a", "Downloading", 10, 100));
        meter.feed(&says("b", "Downloading", 70, 50));
        assert_eq!(meter.feed(&says("c", "Waiting", 0, 0)), None);
        assert_eq!(
            meter.feed(&says("a", "Download complete", 0, 0)),
            Some(PullProgress { done: 150, total: 150 })
        );
    }
}
