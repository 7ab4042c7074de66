//! A test's way through its boundaries, and what came of them.

use std::time::{Duration, Instant};

use system_tests::campus::{Luck, say};

use crate::points::{Point, Points};

/// What a test may take where nobody asked for all.
const BUDGET: Duration = Duration::from_secs(75);
/// A trace with fewer kinds is none of a whole job.
const KINDS_LEAST: usize = 6;
/// Where there is time for one in so many, these are evenly apart.
const APART: usize = 3;

fn all() -> bool {
    std::env::var_os("GPUNION_CRASH_ALL").is_some()
}

pub(crate) struct Course {
    what: &'static str,
    of: usize,
    /// The next one is the last.
    left: Vec<Point>,
    /// So many are tried however long that takes.
    least: usize,
    until: Instant,
    tried: usize,
    reached: usize,
    not_reached: Vec<String>,
}

#[expect(clippy::disallowed_methods, reason = "a test's own patience")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

impl Course {
    /// Through one pass of each kind, and then through all others as time allows.
    pub(crate) fn through(what: &'static str, points: Points, least: usize, luck: &mut Luck) -> Self {
        let Points { kinds, others } = points;
        assert!(kinds.len() >= KINDS_LEAST.max(least), "{what}: hardly a boundary was traced: {kinds:?}");
        let of = kinds.len() + others.len();
        let mut left = spread(kinds, luck);
        left.extend(spread(others, luck));
        left.reverse();
        let until = now() + BUDGET;
        Self { what, of, left, least, until, tried: 0, reached: 0, not_reached: Vec::new() }
    }

    /// The next ones, at most so many; none when it is over.
    pub(crate) fn next(&mut self, most: usize) -> Vec<Point> {
        // Where a busy machine passed few of them, it may pass others.
        let goes_on = all()
            || self.tried < self.least
            || now() < self.until
            || (self.reached * 2 < self.tried && self.tried < 2 * self.least);
        let most = if goes_on { most.min(self.left.len()) } else { 0 };
        let mut next = self.left.split_off(self.left.len() - most);
        next.reverse();
        next
    }

    /// Whether who had to end there did.
    pub(crate) fn came(&mut self, point: &Point, reached: bool) {
        self.tried += 1;
        if reached {
            self.reached += 1;
        } else {
            self.not_reached.push(point.to_string());
        }
    }

    pub(crate) fn finish(self) {
        let Self { what, of, tried, reached, not_reached, .. } = self;
        say(&format!("{what}: {tried} of {of} boundaries tried, {reached} reached; not {not_reached:?}"));
        assert!(tried >= self.least, "{what}: {tried} of {of} boundaries were tried");
        // No two runs pass the same ones; but a test that mostly ends nobody tests nothing.
        assert!(reached * 2 >= tried, "{what}: of {tried} boundaries {reached} were reached");
    }
}

/// Each third one first, from any on: when there is time for no more, they lie all over.
fn spread(points: Vec<Point>, luck: &mut Luck) -> Vec<Point> {
    let (count, from) = (points.len(), luck.index(points.len()));
    let each = (0..APART).flat_map(move |begin| (begin..count).step_by(APART));
    each.map(|at| points[(from + at) % count].clone()).collect()
}

#[test]
fn each_comes_once_and_a_third_of_them_lies_all_over() {
    let mut luck = Luck::of("the order of boundaries").unwrap();
    for count in 0..40 {
        let points: Vec<Point> = (0..count).map(|nth| Point { name: String::new(), nth }).collect();
        let order: Vec<u32> = spread(points, &mut luck).iter().map(|point| point.nth).collect();
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..count), "{order:?}");
        let third = &order[..order.len().div_ceil(APART)];
        assert!(third.windows(2).all(|two| (two[0] + APART as u32) % count == two[1]), "{third:?}");
    }
}
