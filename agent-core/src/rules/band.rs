//! A figure with two edges: above one lending stops, and only below the other it begins again, each
//! when that has lasted a while. One edge would be crossed with every breath of a fan.

use std::fmt;
use std::str::FromStr;

use gpunion_protocol::time::{BootMs, Millis};
use serde::{Deserialize, Serialize};

/// A figure that is above for a moment is no reason to send a guest away.
const STOPS_AFTER: Millis = Millis::from_secs(10);
const AGAIN_AFTER: Millis = Millis::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Band {
    /// Above this it stops.
    pub stop: u32,
    /// At this or below it begins again.
    pub again: u32,
}

impl fmt::Display for Band {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.stop, self.again)
    }
}

impl From<Band> for String {
    fn from(band: Band) -> Self {
        band.to_string()
    }
}

impl TryFrom<String> for Band {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl FromStr for Band {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || "write two numbers: stop above the first, begin again at the second".to_owned();
        let (stop, again) = text.split_once('/').ok_or_else(bad)?;
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        let (stop, again) = (number(stop)?, number(again)?);
        if again >= stop {
            return Err("the second number must be below the first".to_owned());
        }
        Ok(Self { stop, again })
    }
}

/// One figure of one GPU over time.
#[derive(Debug, Default)]
pub struct Latch {
    over: bool,
    /// Since when the figure is on the other side.
    other_since: Option<BootMs>,
}

impl Latch {
    /// A figure that the driver does not tell says nothing.
    pub fn see(&mut self, band: Band, figure: Option<u32>, at: BootMs) {
        let Some(figure) = figure else { return };
        let other = if self.over { figure <= band.again } else { figure > band.stop };
        if !other {
            self.other_since = None;
            return;
        }
        let since = *self.other_since.get_or_insert(at);
        let wait = if self.over { AGAIN_AFTER } else { STOPS_AFTER };
        if at - since >= wait {
            *self = Self { over: !self.over, other_since: None };
        }
    }

    pub fn is_over(&self) -> bool {
        self.over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(latch: &mut Latch, figures: &[(u64, u32)]) -> bool {
        for (second, figure) in figures {
            latch.see(Band { stop: 85, again: 75 }, Some(*figure), BootMs(second * 1_000));
        }
        latch.is_over()
    }

    #[test]
    fn it_stops_above_one_edge_and_begins_again_below_the_other() {
        let mut latch = Latch::default();
        assert!(!after(&mut latch, &[(0, 86), (9, 86)]), "a moment is not enough");
        assert!(!after(&mut latch, &[(10, 85), (11, 86), (20, 90)]), "and is counted anew");
        assert!(after(&mut latch, &[(21, 86)]));
        assert!(after(&mut latch, &[(30, 84), (300, 76)]), "between the edges nothing changes");
        assert!(after(&mut latch, &[(301, 75), (360, 75)]));
        assert!(!after(&mut latch, &[(361, 70)]));
    }

    #[test]
    fn a_figure_that_is_not_told_changes_nothing() {
        let mut latch = Latch::default();
        assert!(after(&mut latch, &[(0, 99), (10, 99)]));
        for second in 11..1_000 {
            latch.see(Band { stop: 85, again: 75 }, None, BootMs(second * 1_000));
        }
        assert!(latch.is_over());
    }

    #[test]
    fn a_band_that_makes_no_sense_is_refused() {
        assert_eq!("85/75".parse::<Band>(), Ok(Band { stop: 85, again: 75 }));
        for text in ["85", "75/85", "85/85", "hot/cold", "85/-1", ""] {
            assert!(text.parse::<Band>().is_err(), "{text}");
        }
    }
}
