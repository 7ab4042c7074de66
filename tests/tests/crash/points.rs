//! Boundaries of a traced run.

use std::collections::BTreeMap;
use std::fmt;

use system_tests::campus::Luck;

/// The nth pass of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    pub(crate) name: String,
    pub(crate) nth: u32,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.nth, self.name)
    }
}

/// In the order of their passes.
#[derive(Debug)]
pub(crate) struct Points {
    /// One pass of each kind, which chance picks.
    pub(crate) kinds: Vec<Point>,
    pub(crate) others: Vec<Point>,
}

impl Points {
    pub(crate) fn of(passed: &[String], luck: &mut Luck) -> Self {
        let mut times: BTreeMap<&str, u32> = BTreeMap::new();
        let each = passed.iter().map(|name| {
            let nth = times.entry(name).or_default();
            *nth += 1;
            Point { name: name.clone(), nth: *nth }
        });
        let each: Vec<Point> = each.collect();
        let picked: BTreeMap<&str, u32> =
            times.iter().map(|(name, times)| (*name, luck.between(1, (*times).into()) as u32)).collect();
        let (kinds, others) = each.into_iter().partition(|point| picked[point.name.as_str()] == point.nth);
        Self { kinds, others }
    }
}

/// Those of a campus where nothing happens tell nothing of a job.
pub(crate) fn of_a_job(passed: &[String]) -> Vec<String> {
    const IDLE: [&str; 6] = ["Gpus", "Timeout", "Engine", "WatchGpus", "Send Renewed", "Relay Renewed"];
    passed.iter().filter(|name| !IDLE.contains(&name.as_str())).cloned().collect()
}

/// From the first word to init on until it says that the program has ended: then an init lives, and
/// has something to lose.
pub(crate) fn of_a_guest(passed: &[String]) -> &[String] {
    let Some(from) = passed.iter().position(|name| name == "Say Begin") else { return &[] };
    let guest = &passed[from..];
    let until = guest.iter().position(|name| name == "Init Exited");
    &guest[..until.unwrap_or(guest.len())]
}

#[test]
fn a_guest_lives_from_its_first_word_until_its_programs_exit() {
    let passed = ["Commit", "Say Begin", "Commit", "Gpus", "Commit", "Init Exited", "Commit"];
    let passed = passed.map(str::to_owned);
    assert_eq!(of_a_guest(&passed[..1]), [""; 0]);
    assert_eq!(of_a_guest(&passed[..3]), ["Say Begin", "Commit"]);
    let guest = of_a_job(of_a_guest(&passed));
    assert_eq!(guest, ["Say Begin", "Commit", "Commit"]);
    let points = Points::of(&guest, &mut Luck::of("points").unwrap());
    let names = points.kinds.iter().map(|point| point.name.as_str());
    assert!(names.eq(["Say Begin", "Commit"]) && points.others.len() == 1, "{points:?}");
}
