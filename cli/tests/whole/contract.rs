//! What scripts hold on to: docs/protocol.md names every code and every command, and a wrong
//! command line is a problem like any other.

use std::collections::BTreeSet;

use gpunion_protocol::problem::{Code, Problem};

use crate::support::gpunion;

const PROTOCOL: &str = include_str!("../../../docs/protocol.md");

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_command_line_is_one_problem_where_json_was_asked_for() {
    let home = tempfile::tempdir().unwrap();
    for words in [
        &["--json", "dance"][..],
        &["--json"],
        &["show", "--json"],
        &["jobs", "--json", "--frobnicate"],
        &["share", "--json", "sideways"],
    ] {
        let ran = gpunion(home.path(), words, &[]).await;
        assert!(
            ran.code == 2 && ran.stdout.is_empty() && ran.stderr.lines().count() == 1,
            "{words:?}: {ran:?}"
        );
        let problem: Problem = serde_json::from_str(&ran.stderr).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
        assert_eq!(problem.code, Code::BadRequest);
        assert!(!problem.title.is_empty() && !problem.title.starts_with("error:"), "{problem:?}");
    }
    // Of the job's own words none asks for anything; and help is no problem.
    let text = gpunion(home.path(), &["run", "--frobnicate", "--", "--json"], &[]).await;
    assert!(text.code == 2 && text.stderr.contains("Usage:"), "{text:?}");
    let help = gpunion(home.path(), &["jobs", "--help", "--json"], &[]).await;
    assert!(help.code == 0 && help.stdout.contains("Usage:"), "{help:?}");
}

/// The commands of a help text.
fn commands(help: &str) -> Vec<String> {
    let lines = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "));
    let words =
        lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    words.filter(|word| *word != "help").map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_has_an_example_of_its_json() {
    let home = tempfile::tempdir().unwrap();
    let block = PROTOCOL.split("One line of each, shortened:").nth(1).unwrap().split("```").nth(1).unwrap();
    let mut shown = BTreeSet::new();
    for line in block.lines().skip(1) {
        let at = line.find(['{', '[']).unwrap_or_else(|| panic!("no JSON in {line}"));
        let value: serde_json::Value =
            serde_json::from_str(&line[at..]).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(value.is_object() || value.is_array());
        shown.insert(line[..at].trim().to_owned());
    }
    let mut wanted = BTreeSet::new();
    for command in commands(&gpunion(home.path(), &["--help"], &[]).await.stdout) {
        let inner = commands(&gpunion(home.path(), &[&command, "--help"], &[]).await.stdout);
        // The agent itself prints nothing.
        if inner.is_empty() && command != "agent" {
            wanted.insert(command.clone());
        }
        wanted.extend(inner.into_iter().map(|word| format!("{command} {word}")));
    }
    assert_eq!(shown, wanted);
    for command in &wanted {
        let words: Vec<&str> = command.split(' ').collect();
        assert!(PROTOCOL.contains(&format!("`{}", words.join(" "))), "{command} is in no table");
    }
}

#[test]
fn every_code_is_in_a_table() {
    // In full, so that a new code is asked for here.
    let codes = [
        Code::BadRequest,
        Code::BadSpec,
        Code::NotFound,
        Code::Unauthorized,
        Code::Forbidden,
        Code::InviteGone,
        Code::Stale,
        Code::KeyReused,
        Code::Conflict,
        Code::TooLarge,
        Code::Corrupt,
        Code::Missing,
        Code::Busy,
        Code::DiskFull,
        Code::Version,
        Code::NoGroup,
        Code::RelayAway,
        Code::EngineAway,
        Code::AgentAway,
        Code::Unsupported,
        Code::Internal,
    ];
    for code in codes {
        let name = serde_json::to_value(code).unwrap();
        let (name, status) = (name.as_str().unwrap(), code.status());
        let row = PROTOCOL.lines().find(|line| line.starts_with(&format!("| `{name}` | {status}")));
        assert!(row.is_some(), "`{name}` with {status} is in no table of docs/protocol.md");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn examples_in_the_help_replace_the_whole_command() {
    let home = tempfile::tempdir().unwrap();
    let help = gpunion(home.path(), &["run", "--help"], &[]).await.stdout;
    let examples: Vec<&str> =
        help.lines().filter(|line| line.trim_start().starts_with("gpunion run")).collect();
    assert!(examples.len() >= 4, "{help}");
    for example in examples {
        // What follows -- stands in the image's entry point's place, too: it begins with a program.
        if let Some((_, command)) = example.split_once(" -- ") {
            assert!(!command.starts_with('-'), "{example}");
        }
    }
}
