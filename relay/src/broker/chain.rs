//! Which of a job's checkpoints are kept. Pure: the rule alone.
//!
//! Two, so that there is one to go back to. What the program said that it saved is worth more than
//! what was caught while it computed, and is not pushed out by that.

use gpunion_protocol::job::{Checkpoint, Quality};

/// The newest; and before it the newest quiet one when the newest is none, else the one before it.
pub(super) fn kept(mut chain: Vec<Checkpoint>) -> Vec<Checkpoint> {
    let Some(newest) = chain.pop() else { return chain };
    let quiet = chain.iter().rposition(|checkpoint| checkpoint.quality == Quality::Quiet);
    let other = match newest.quality {
        Quality::Running => quiet.map(|at| chain.swap_remove(at)).or_else(|| chain.pop()),
        Quality::Quiet => chain.pop(),
    };
    other.into_iter().chain([newest]).collect()
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::{AttemptNo, Epoch, SnapshotId, Token};
    use gpunion_protocol::time::Millis;

    use super::*;

    /// Oldest first: `q` is quiet, `r` was taken while it computed.
    fn of(text: &str) -> Vec<Checkpoint> {
        let checkpoint = |(n, quality)| Checkpoint {
            number: 0,
            snapshot: SnapshotId([n as u8; 32]),
            quality: if quality == 'q' { Quality::Quiet } else { Quality::Running },
            token: Token { epoch: Epoch(1), attempt: AttemptNo(1) },
            bytes: 1,
            new_bytes: 1,
            stopped: Millis(1),
            at: None,
            taken: None,
        };
        text.chars().enumerate().map(checkpoint).collect()
    }

    #[test]
    fn the_newest_is_kept_and_the_newest_quiet_one_or_the_one_before() {
        for (chain, stay) in [
            ("", &[][..]),
            ("r", &[0]),
            ("q", &[0]),
            ("rr", &[0, 1]),
            ("qr", &[0, 1]),
            ("rq", &[0, 1]),
            ("qq", &[0, 1]),
            ("rrr", &[1, 2]),
            ("qrr", &[0, 2]),
            ("rqr", &[1, 2]),
            ("qqr", &[1, 2]),
            ("qrq", &[1, 2]),
            ("rrq", &[1, 2]),
            ("qqq", &[1, 2]),
        ] {
            let left: Vec<u8> = kept(of(chain)).iter().map(|checkpoint| checkpoint.snapshot.0[0]).collect();
            assert_eq!(left, stay, "{chain}");
        }
    }

    #[test]
    fn a_quiet_one_outlasts_any_number_of_others() {
        let mut chain = of("q");
        for n in 1..20 {
            let mut next = of("r");
            next[0].snapshot = SnapshotId([n; 32]);
            chain.append(&mut next);
            chain = kept(chain);
            let left: Vec<u8> = chain.iter().map(|checkpoint| checkpoint.snapshot.0[0]).collect();
            assert_eq!(left, [0, n]);
        }
    }
}
