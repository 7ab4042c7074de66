//! The word that `gpunion reclaim` leaves when no agent answers: which GPUs the owner has back.
//!
//! Pure. Two reclaims without an agent are two wishes and one file, so the later one adds to the
//! word that lies there and never replaces it.

use std::collections::BTreeSet;

use gpunion_protocol::ids::GpuUuid;
use gpunion_protocol::time::WallMs;
use serde::{Deserialize, Serialize};

/// What an owner wants back.
#[derive(Default, Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    #[default]
    All,
    These(BTreeSet<GpuUuid>),
}

/// The file. One that makes no sense means all: a wish too many costs the owner a click.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReclaimWord {
    #[serde(default)]
    pub wanted: Wanted,
    /// When it was last added to.
    #[serde(default)]
    pub at: WallMs,
}

impl Wanted {
    /// As the command line and the local API say it: one GPU, or all.
    pub fn of(gpu: Option<&GpuUuid>) -> Self {
        gpu.map_or(Self::All, |gpu| Self::These([gpu.clone()].into()))
    }

    /// "All" wins, else it is a list.
    #[must_use]
    pub fn and(self, more: Self) -> Self {
        match (self, more) {
            (Self::These(mut these), Self::These(more)) => {
                these.extend(more);
                Self::These(these)
            }
            (Self::All, _) | (_, Self::All) => Self::All,
        }
    }

    pub fn holds(&self, gpu: &GpuUuid) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => these.contains(gpu),
        }
    }
}

impl ReclaimWord {
    /// What lies there already, and what is wanted now.
    pub fn merged(before: Option<Self>, wanted: Wanted, at: WallMs) -> Self {
        let wanted = match before {
            Some(before) => before.wanted.and(wanted),
            None => wanted,
        };
        Self { wanted, at }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wanted() -> impl Strategy<Value = Wanted> {
        let gpu = (0u8..4).prop_map(|n| GpuUuid(format!("GPU-{n}")));
        prop_oneof![Just(Wanted::All), proptest::collection::btree_set(gpu, 0..3).prop_map(Wanted::These)]
    }

    #[test]
    fn a_second_word_never_takes_back_the_first() {
        let one = Wanted::of(Some(&GpuUuid("GPU-1".to_owned())));
        let two = Wanted::of(Some(&GpuUuid("GPU-2".to_owned())));
        let both =
            ReclaimWord::merged(Some(ReclaimWord::merged(None, one.clone(), WallMs(1))), two, WallMs(2));
        assert!(
            both.wanted.holds(&GpuUuid("GPU-1".to_owned()))
                && both.wanted.holds(&GpuUuid("GPU-2".to_owned()))
        );
        assert!(!both.wanted.holds(&GpuUuid("GPU-3".to_owned())));
        let all = ReclaimWord { wanted: Wanted::All, at: WallMs(1) };
        assert_eq!(ReclaimWord::merged(Some(all), one, WallMs(2)).wanted, Wanted::All);
    }

    #[test]
    fn the_word_of_an_older_command_means_all() {
        let old: ReclaimWord = serde_json::from_str(r#"{"gpu": "GPU-1", "at": 7}"#).unwrap();
        assert_eq!(old.wanted, Wanted::All);
    }

    proptest! {
        #[test]
        fn the_order_of_two_words_does_not_matter(a in wanted(), b in wanted(), gpu in 0u8..4) {
            let gpu = GpuUuid(format!("GPU-{gpu}"));
            let both = a.clone().and(b.clone());
            prop_assert_eq!(&both, &b.clone().and(a.clone()));
            prop_assert_eq!(both.holds(&gpu), a.holds(&gpu) || b.holds(&gpu));
            let text = serde_json::to_string(&both).unwrap();
            prop_assert_eq!(serde_json::from_str::<Wanted>(&text).unwrap(), both);
        }
    }
}
