//! What happened last, for whoever has to understand a failure. Kept only when asked for: words
//! cost more than the steps they tell of.

use std::collections::VecDeque;

/// Lines kept, and characters of each.
const LINES: usize = 60_000;
const WIDTH: usize = 260;

#[derive(Debug, Default)]
pub(super) struct Trace {
    wanted: bool,
    lines: VecDeque<String>,
}

impl Trace {
    pub(super) fn new(wanted: bool) -> Self {
        Self { wanted, lines: VecDeque::new() }
    }

    pub(super) fn say(&mut self, at: u64, words: impl FnOnce() -> String) {
        if !self.wanted {
            return;
        }
        let line = format!("{:>9.3} {}", at as f64 / 1_000.0, words());
        let short = line.chars().take(WIDTH).collect();
        self.lines.push_back(short);
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.into()
    }
}
