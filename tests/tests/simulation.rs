//! Simulated worlds that every run of the tests lives through: those that ever found a mistake,
//! and a few more. `cargo xtask test` runs millions of steps of others.

#![expect(clippy::unwrap_used, reason = "tests")]

use system_tests::sim;

#[test]
fn worlds_that_found_a_mistake_hold() {
    let seeds = include_str!("../seeds.txt").lines().filter(|line| !line.starts_with('#'));
    let seeds: Vec<u64> =
        seeds.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    assert!(!seeds.is_empty());
    seeds.into_iter().for_each(holds);
}

#[test]
fn the_first_worlds_hold() {
    (1..=6).for_each(holds);
}

#[test]
fn the_same_seed_is_the_same_world() {
    let (one, other) = (sim::run(7, sim::WORLD), sim::run(7, sim::WORLD));
    let stats = |outcome: &sim::Outcome| serde_json::to_string(&outcome.stats).unwrap();
    assert_eq!(stats(&one), stats(&other));
    assert!(one.stats.program_steps > 0 && one.stats.guests > 0, "nothing happens in it: {one:?}");
}

fn holds(seed: u64) {
    let outcome = sim::run(seed, sim::WORLD);
    if outcome.failure.is_some() {
        let short = sim::shorten(outcome, sim::WORLD);
        let parts: Vec<String> = short.parts.iter().map(ToString::to_string).collect();
        let failure = short.outcome.failure.unwrap();
        let (what, trace) = (&failure.what, failure.last(60).join("\n"));
        panic!("seed {seed}, of its {} parts {parts:?} do: {what}\n{trace}", short.of);
    }
}
