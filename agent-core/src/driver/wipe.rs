//! What jobs left on this machine that no attempt here needs: read-only inputs, and images that came for
//! guests alone. All of it goes at the owner's word, and by itself when nobody has used it for a day.
//!
//! An image that was here before a guest came is the owner's and is never touched. One that is in use,
//! also by a container of the owner's, stays: the engine refuses to remove it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use gpunion_protocol::ids::SnapshotId;
use gpunion_protocol::job::Image;
use gpunion_protocol::local::Wiped;
use gpunion_protocol::problem::Problem;
use gpunion_protocol::time::WallMs;
use tokio::sync::oneshot;

use super::operations::Operations;
use super::trouble::of_engine;
use super::{Driver, data};
use crate::config::{clock, files};
use crate::provider::Attempt;
use crate::provider::event::Trouble;
use crate::provider::record::Phase;

/// The folder of marks of images, beside those of inputs.
const IMAGES: &str = "images";
/// What has not been used for so long goes by itself.
pub(super) const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// What an image is asked for by: whoever removes it by that takes nothing that has another name.
pub(super) fn name_of(image: &Image) -> String {
    match image {
        Image::Registry { reference, digest: None } => reference.clone(),
        Image::Registry { reference, digest: Some(digest) } => {
            crate::container::by_digest(reference, digest).unwrap_or_else(|| reference.clone())
        }
        Image::Layers { image_id, .. } => image_id.clone(),
    }
}

/// All names that an attempt may have it by: its digest is found when it is here.
pub(super) fn names_of(image: &Image) -> BTreeSet<String> {
    let asked = match image {
        Image::Registry { reference, .. } => Some(reference.clone()),
        Image::Layers { .. } => None,
    };
    asked.into_iter().chain([name_of(image)]).collect()
}

fn marks(ops: &Operations) -> PathBuf {
    ops.fixed.data.join(IMAGES)
}

/// It was not here, and comes for a guest; or it came for one before, and is used again.
pub(super) fn mark_image(ops: &Operations, name: &str, was_here: bool) {
    let mark = marks(ops).join(blake3::hash(name.as_bytes()).to_hex().as_str());
    if was_here && !mark.exists() {
        return;
    }
    let made = std::fs::create_dir_all(marks(ops));
    if let Err(error) = made.and_then(|()| files::write_whole(&mark, name.as_bytes())) {
        // Then it stays, as if it had been here.
        tracing::info!("{}: {error}", mark.display());
    }
}

impl Driver {
    /// Read-only inputs that an attempt here still may need.
    fn inputs(&self) -> BTreeSet<SnapshotId> {
        self.kept().flat_map(|a| a.record.assignment.data.iter().map(|data| data.snapshot)).collect()
    }

    /// Attempts of which something is still here.
    fn kept(&self) -> impl Iterator<Item = &Attempt> {
        let attempts = self.parts.provider.attempts();
        attempts.filter(|a| !matches!(a.record.phase, Phase::Over { cleaned: true, .. }))
    }

    pub(super) fn name_what_is_needed(&self) {
        self.parts.operations.name_inputs(self.inputs());
        let images = self.kept().flat_map(|a| names_of(&a.record.assignment.image));
        self.parts.operations.name_images(images.collect());
    }

    /// What nobody has used for a day is looked for soon after the start, and then each hour.
    pub(super) fn wipe_old_if_due(&mut self) {
        self.seconds = self.seconds.wrapping_add(1);
        if self.seconds % 3_600 == 600 {
            self.name_what_is_needed();
            self.parts.operations.wipe_old();
        }
    }
}

impl Operations {
    pub(super) fn name_images(&self, images: BTreeSet<String>) {
        self.state().named_images = images;
    }

    pub(super) fn wipe(&self, salvages: u32, answer: oneshot::Sender<Result<Wiped, Problem>>) {
        let this = self.clone();
        tokio::spawn(async move {
            let mut wiped = this.wipe_idle(Duration::ZERO).await;
            wiped.salvages = salvages;
            let _ = answer.send(Ok(wiped));
        });
    }

    /// What nobody has used for a day.
    pub(super) fn wipe_old(&self) {
        let this = self.clone();
        tokio::spawn(async move {
            let wiped = this.wipe_idle(KEPT_FOR).await;
            if wiped != Wiped::default() {
                tracing::info!(?wiped, "what nobody has used for a day is removed");
            }
        });
    }

    async fn wipe_idle(&self, idle: Duration) -> Wiped {
        let mut troubles = Vec::new();
        let mut note = |removed: Result<u32, Trouble>| {
            removed.unwrap_or_else(|(Trouble::Away { why } | Trouble::Refused { reason: why })| {
                troubles.push(why);
                0
            })
        };
        let inputs = note(data::remove_idle(self, idle).await);
        let images = note(self.remove_images(idle).await);
        Wiped { salvages: 0, inputs, images, troubles }
    }

    async fn remove_images(&self, idle: Duration) -> Result<u32, Trouble> {
        let Ok(marks) = std::fs::read_dir(marks(self)) else { return Ok(0) };
        let now = clock::wall();
        let mut removed = 0;
        for mark in marks.flatten() {
            let Ok(name) = std::fs::read_to_string(mark.path()) else { continue };
            if !is_idle(&mark.path(), idle, now) || self.state().named_images.contains(&name) {
                continue;
            }
            let engine = &self.fixed.engine;
            match engine.remove_image(&name).await {
                Ok(()) => removed += 1,
                Err(error) if error.is_away() => return Err(of_engine(error)),
                Err(error) => {
                    tracing::info!(%name, "an image stays for now: {error}");
                    continue;
                }
            }
            let _ = files::remove(&mark.path());
        }
        Ok(removed)
    }
}

/// A mark is written anew at each use; what has none is nobody's.
pub(super) fn is_idle(mark: &Path, idle: Duration, now: WallMs) -> bool {
    let used = std::fs::metadata(mark).and_then(|found| found.modified()).ok();
    let used = used.and_then(|used| used.duration_since(UNIX_EPOCH).ok());
    used.is_none_or(|used| {
        let now = Duration::from_millis(u64::try_from(now.0).unwrap_or(0));
        now.saturating_sub(used) >= idle
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_idle_when_it_has_not_been_used_for_long_enough() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("mark");
        std::fs::write(&mark, "x").unwrap();
        let now = clock::wall();
        assert!(is_idle(&mark, Duration::ZERO, now) && !is_idle(&mark, KEPT_FOR, now));
        let later = WallMs(now.0 + KEPT_FOR.as_millis() as i64);
        assert!(is_idle(&mark, KEPT_FOR, later));
        assert!(!is_idle(&mark, KEPT_FOR, WallMs(0)), "a clock that was set back makes nothing old");
        assert!(is_idle(&folder.path().join("none"), KEPT_FOR, now));
    }

    #[test]
    fn an_image_is_named_by_what_it_was_fixed_to() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let registry = |digest| Image::Registry { reference: "python:3.12".to_owned(), digest };
        assert_eq!(name_of(&registry(None)), "python:3.12");
        assert_eq!(name_of(&registry(Some(digest.clone()))), format!("python@{digest}"));
    }
}
