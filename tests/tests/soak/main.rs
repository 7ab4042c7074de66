//! Fifty small jobs of six kinds over two providers, while agents, inits, the relay and engines are
//! killed in turn at random moments: none is lost, none counts twice, and each ends with the bytes
//! of an undisturbed run of its kind.

#![expect(clippy::unwrap_used, reason = "tests")]

mod kills;
mod kinds;
mod member;

use std::time::{Duration, Instant};

use system_tests::campus::{Luck, Pair, say};
use system_tests::lab::Engine;

use kills::Kills;
use member::Member;

const JOBS: usize = 50;
/// GPUs of each machine, and so jobs at a time.
const GPUS: usize = 2;
/// So long there are kills; what is not over then ends in peace.
const DISTURBED: Duration = Duration::from_secs(150);
/// When the test gives up: not a time-out of the product's.
const LIMIT: Duration = Duration::from_secs(480);

#[expect(clippy::disallowed_methods, reason = "a test's own patience")]
fn now() -> Instant {
    Instant::now()
}

/// Of her own, which nobody kills: without it she would believe that a registry has her images.
fn give_the_member_an_engine(pair: &mut Pair) -> Engine {
    let engine = pair.campus.lab.engine("c").unwrap();
    pair.campus.digits_image(&engine).unwrap();
    pair.campus.odd_jobs_image(&engine).unwrap();
    let eve = pair.campus.lab.user("eve").unwrap();
    pair.ada = pair.campus.device("desk", eve, &engine.socket(), None).unwrap();
    pair.ada.join(&pair.relay.invite("member").unwrap(), "eve").unwrap();
    engine
}

#[test]
fn fifty_jobs_of_six_kinds_outlive_random_kills_with_the_bytes_of_undisturbed_runs() {
    let mut luck = Luck::of("the soak").unwrap();
    let mut pair = Pair::lending_each(GPUS).unwrap();
    let _engine = give_the_member_an_engine(&mut pair);
    let undisturbed = kinds::undisturbed(&pair);
    let mut member = Member::who_wants(JOBS, undisturbed, &mut luck);
    let mut kills = Kills::from_now_on();
    let began = now();
    while !member.has_all() {
        let goes_on = began.elapsed() < DISTURBED;
        kills.tick(&mut pair, member.jobs(), &mut luck, goes_on);
        member.tick(&pair.ada);
        assert!(member.lost().is_none(), "{:#?}\n{}", member.lost(), pair.logs());
        assert!(began.elapsed() < LIMIT, "{:#?}\n{}", member.wants_still(), pair.logs());
        std::thread::sleep(Duration::from_millis(20));
    }
    kills.raise_all(&mut pair);
    let seconds = began.elapsed().as_secs();
    say(&format!("{JOBS} jobs in {seconds} s, {} attempts; {kills}", member.attempts()));
    member.sees_each_once(&pair.ada);
    pair.is_clean().unwrap();
    kills.were_many();
}
