use gpunion_protocol::ids::{AttemptNo, Epoch, Token};
use proptest::prelude::*;

use super::*;

fn token(attempt: u32) -> Token {
    Token { epoch: Epoch(1), attempt: AttemptNo(attempt) }
}

/// All pieces from a position, as a reader with small reads gets them.
fn read(log: &JobLog, from: u64, max: usize) -> Vec<LogPiece> {
    let mut cursor = Cursor::at(from);
    let mut all = Vec::new();
    loop {
        let pieces = log.view().read(&mut cursor, max).unwrap();
        if pieces.is_empty() {
            return all;
        }
        all.extend(pieces);
    }
}

/// Marks as `<1>`, gaps as `[n]`, output as it is.
fn text(pieces: &[LogPiece]) -> String {
    pieces
        .iter()
        .map(|piece| match piece {
            LogPiece::Bytes { bytes, .. } => String::from_utf8_lossy(&bytes.0).into_owned(),
            LogPiece::Attempt { number, .. } => format!("<{number}>"),
            LogPiece::Gap { bytes, .. } => format!("[{bytes}]"),
            LogPiece::End { .. } => "END".to_owned(),
        })
        .collect()
}

#[test]
fn it_is_one_stream_over_attempts_without_doubles_and_with_gaps_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = JobLog::open(dir.path(), 1 << 20).unwrap();
    assert!(log.append(token(1), "a", 0, b"one ").unwrap());
    assert!(!log.append(token(1), "a", 0, b"one ").unwrap(), "sent twice, stored once");
    assert!(log.append(token(1), "a", 2, b"e two ").unwrap(), "overlap: only the new end");
    log.append(token(1), "a", 18, b"three").unwrap();
    log.append(token(2), "b", 0, b"four ").unwrap();
    log.append(token(1), "a", 23, b" late").unwrap();
    let expected = "<1>one two [10]three<2>four <1> late";
    assert_eq!(text(&read(&log, 0, 1 << 20)), expected);
    assert_eq!(text(&read(&log, 0, 1)), expected, "whatever the size of a read");

    // Each `next` resumes exactly there.
    let all = read(&log, 0, 1);
    for (i, piece) in all.iter().enumerate() {
        let (LogPiece::Bytes { next, .. }
        | LogPiece::Attempt { next, .. }
        | LogPiece::Gap { next, .. }
        | LogPiece::End { next }) = piece;
        assert_eq!(text(&read(&log, *next, 7)), text(&all[i + 1..]));
    }
    assert_eq!(text(&read(&log, 3, 1 << 20)), expected[5..], "and so does the middle of a piece");
}

#[test]
fn a_crash_in_the_middle_of_a_frame_costs_only_that_frame() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = JobLog::open(dir.path(), 1 << 20).unwrap();
    log.append(token(1), "a", 0, b"kept ").unwrap();
    log.append(token(1), "a", 5, b"torn").unwrap();
    drop(log);
    let path = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 2).unwrap();

    let mut log = JobLog::open(dir.path(), 1 << 20).unwrap();
    assert_eq!(text(&read(&log, 0, 99)), "<1>kept ");
    log.append(token(1), "a", 0, b"kept torn!").unwrap();
    assert_eq!(text(&read(&log, 0, 99)), "<1>kept torn!");
}

#[test]
fn f99_the_oldest_is_dropped_and_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = JobLog::open(dir.path(), 3 << 20).unwrap();
    let piece = vec![b'x'; 60_000];
    for n in 0..200u64 {
        log.append(token(1), "a", n * 60_000, &piece).unwrap();
    }
    let stored: u64 =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(stored <= 5 << 20, "{stored} bytes are kept");
    let pieces = read(&log, 0, 1 << 20);
    assert!(matches!(pieces[0], LogPiece::Gap { bytes, .. } if bytes > 6 << 20));
    assert_eq!(log.end(), 200 * 60_000 + 1, "positions go on as if all were there");
    drop(log);
    assert_eq!(JobLog::open(dir.path(), 3 << 20).unwrap().end(), 200 * 60_000 + 1);
}

#[tokio::test]
async fn a_follower_is_woken_by_what_comes() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), 1 << 20, 0).unwrap();
    let job = JobId::new(1, [1; 10]);
    let mut follower = logs.follow(job.clone(), 0).await.unwrap();
    assert_eq!(follower.read().await.unwrap(), []);
    let attempt = AttemptRef { job: job.clone(), token: token(1) };
    logs.append(attempt, "a".to_owned(), 0, b"hello".to_vec()).await.unwrap();
    follower.news().await;
    assert_eq!(text(&follower.read().await.unwrap()), "<1>hello");
    assert_eq!(follower.position(), 6);
    logs.nudge(&job);
    follower.news().await;
    assert_eq!(follower.read().await.unwrap(), []);
}

#[tokio::test]
async fn f101_on_a_nearly_full_disk_a_piece_is_dropped_and_told_as_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let attempt = AttemptRef { job: JobId::new(1, [1; 10]), token: token(1) };
    let logs = Logs::open(dir.path(), 1 << 20, 0).unwrap();
    let append = |logs: Logs, at: u64, bytes: &'static [u8]| {
        let attempt = attempt.clone();
        async move { logs.append(attempt, "a".to_owned(), at, bytes.to_vec()).await.unwrap() }
    };
    assert_eq!(append(logs.clone(), 0, b"one ").await, 4);
    let full = Logs::open(dir.path(), 1 << 20, u64::MAX).unwrap();
    assert_eq!(append(full, 4, b"two ").await, 4, "nothing of it is kept");
    assert_eq!(append(logs.clone(), 8, b"three").await, 13);
    let mut reader = logs.follow(attempt.job.clone(), 0).await.unwrap();
    assert_eq!(text(&reader.read().await.unwrap()), "<1>one [4]three");
}

#[tokio::test]
async fn logs_of_forgotten_jobs_go_also_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let logs = Logs::open(dir.path(), 1 << 20, 0).unwrap();
    let jobs: Vec<JobId> = (1..=3).map(|n| JobId::new(n, [1; 10])).collect();
    for job in &jobs {
        let attempt = AttemptRef { job: job.clone(), token: token(1) };
        logs.append(attempt, "a".to_owned(), 0, b"x".to_vec()).await.unwrap();
    }
    let there = |n: usize| dir.path().join("logs").join(jobs[n].as_str()).exists();
    let mut reader = logs.follow(jobs[0].clone(), 2).await.unwrap();
    logs.forget(jobs[0].clone());
    reader.news().await;
    assert!(!there(0) && there(1) && there(2));
    let again = Logs::open(dir.path(), 1 << 20, 0).unwrap();
    again.keep_only(|job| *job == jobs[1]).unwrap();
    assert!(there(1) && !there(2));
}

proptest! {
    /// Whatever an agent sends, in whatever order, cut and repeated: an attempt's output is stored
    /// in order, each byte at most once, and the reader sees the same before and after a restart.
    #[test]
    fn pieces_in_any_order_are_one_stream(
        sent in proptest::collection::vec((1u32..3, 0usize..60, 0usize..20), 1..30),
        from in 0u64..80,
    ) {
        let output: Vec<u8> = (0..100).collect();
        let dir = tempfile::tempdir().unwrap();
        let mut log = JobLog::open(dir.path(), 1 << 20).unwrap();
        for (attempt, start, len) in sent {
            log.append(token(attempt), "a", start as u64, &output[start..start + len]).unwrap();
        }
        let pieces = read(&log, 0, 5);
        let mut at = BTreeMap::new();
        let mut speaking = 0;
        for piece in &pieces {
            match piece {
                LogPiece::Attempt { number, .. } => speaking = *number,
                LogPiece::Gap { bytes, .. } => *at.entry(speaking).or_insert(0) += *bytes as usize,
                LogPiece::Bytes { bytes, .. } => {
                    let at = at.entry(speaking).or_insert(0);
                    prop_assert_eq!(&output[*at..*at + bytes.0.len()], &bytes.0[..]);
                    *at += bytes.0.len();
                }
                LogPiece::End { .. } => unreachable!("a log on disk has no end"),
            }
        }
        let from = from.min(log.end());
        let tail = text(&read(&log, from, 5));
        drop(log);
        let again = JobLog::open(dir.path(), 1 << 20).unwrap();
        prop_assert_eq!(text(&read(&again, from, 9)), tail);
        prop_assert_eq!(text(&read(&again, 0, 64)), text(&pieces));
    }
}
