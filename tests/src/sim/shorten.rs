//! A failure made small: the same seed with parts of its world left out, as long as the same thing
//! still does not hold. Delta debugging over faults, jobs and kinds of small trouble.

use std::collections::BTreeSet;

use super::Outcome;
use super::script::{Part, Script, Small};

/// Worlds that are tried at most.
const TRIES: usize = 400;

/// A world with as few parts as were found to do.
#[derive(Debug)]
pub struct Short {
    /// How many parts the world had that failed.
    pub of: usize,
    pub parts: Vec<Part>,
    pub outcome: Outcome,
}

/// `run` gives the outcome of a world with these parts alone.
pub(super) fn shorten(outcome: Outcome, mut run: impl FnMut(Script) -> Outcome) -> Short {
    let wanted = outcome.failure.as_ref().map(|failure| kind(&failure.what));
    let mut parts: Vec<Part> = outcome.happened.clone();
    parts.extend(Small::ALL.map(Part::Small));
    let mut best = Short { of: parts.len(), parts, outcome };
    let (mut tries, mut pieces) = (0, 2);
    while tries < TRIES && !best.parts.is_empty() {
        let size = best.parts.len().div_ceil(pieces);
        let mut smaller = None;
        for piece in best.parts.chunks(size) {
            tries += 1;
            let left: BTreeSet<Part> = best.parts.iter().copied().filter(|p| !piece.contains(p)).collect();
            let outcome = run(Script::of(left.iter().copied()));
            let same = outcome.failure.as_ref().map(|failure| kind(&failure.what)) == wanted;
            if same {
                let happened =
                    |part: &Part| matches!(part, Part::Small(_)) || outcome.happened.contains(part);
                let parts = best.parts.iter().copied().filter(|p| left.contains(p) && happened(p)).collect();
                smaller = Some(Short { of: best.of, parts, outcome });
                break;
            }
            if tries >= TRIES {
                break;
            }
        }
        match smaller {
            Some(short) => {
                best = short;
                pieces = pieces.saturating_sub(1).max(2);
            }
            None if pieces >= best.parts.len() => break,
            None => pieces = (pieces * 2).min(best.parts.len()),
        }
    }
    best
}

/// A failure without its names and numbers.
fn kind(what: &str) -> String {
    let words = what.split_whitespace();
    let words = words.filter(|word| !word.chars().any(|c| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::pairs::Pairs;
    use super::super::{Failure, Stats};
    use super::*;

    fn world(script: &Script) -> Outcome {
        let has = |number| script.has(Part::Fault(number));
        let failure = (has(3) && has(17)).then(|| Failure {
            step: 9,
            what: "job-17 is lost".to_owned(),
            trace: Vec::new(),
        });
        let happened = (0..40).filter(|number| has(*number)).map(Part::Fault).collect();
        Outcome { seed: 1, steps: 9, stats: Stats::default(), pairs: Pairs::default(), happened, failure }
    }

    #[test]
    fn of_forty_faults_the_two_are_left_that_it_takes() {
        let short = shorten(world(&Script::default()), |script| world(&script));
        assert_eq!(short.parts, [Part::Fault(3), Part::Fault(17)]);
        assert!(short.outcome.failure.is_some());
        assert_eq!(short.of, 40 + Small::ALL.len());
    }

    #[test]
    fn another_failure_is_not_the_same() {
        assert_eq!(kind("job 3 lives 5000 ms after"), kind("job 4 lives 70 ms after"));
        assert_ne!(kind("it lives"), kind("it is lost"));
    }
}
