//! The real program: its help, its exit codes, its JSON, its silence about secrets.

use std::fs;
use std::path::Path;
use std::process::{Child, Command};

use crate::support::{Half, Ran, Relay, gpunion};
use gpunion_agent_core::config::GroupFile;
use gpunion_agent_core::driver::word;
use gpunion_agent_core::provider::word::Wanted;
use gpunion_protocol::http::{MadeInvite, MemberView};
use gpunion_protocol::job::{JobState, JobView};
use gpunion_protocol::local::{Finding, GpuStatus, Left, ShareStatus, SubmitProgress};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::receipt::{HistoryEntry, Receipt, Way};
use serde::de::DeserializeOwned;

fn json<T: DeserializeOwned>(ran: &Ran) -> T {
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stdout.lines().count(), 1, "one object, one line: {ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn problem(ran: &Ran) -> Problem {
    serde_json::from_str(ran.stderr.trim()).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_explains_itself() {
    let home = tempfile::tempdir().unwrap();
    let help = gpunion(home.path(), &["--help"], &[]).await;
    assert_eq!(help.code, 0);
    let commands: Vec<&str> = help
        .stdout
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    for wanted in [
        "up",
        "relay",
        "agent",
        "join",
        "leave-group",
        "share",
        "reclaim",
        "run",
        "submit",
        "jobs",
        "show",
        "why",
        "logs",
        "fetch",
        "cancel",
        "gpus",
        "history",
        "doctor",
    ] {
        assert!(commands.contains(&wanted), "{wanted} in {commands:?}");
    }
    for command in commands.into_iter().filter(|command| *command != "help") {
        let ran = gpunion(home.path(), &[command, "--help"], &[]).await;
        assert!(ran.code == 0 && ran.stdout.contains("Usage: gpunion"), "{command}: {ran:?}");
    }
    for command in ["serve", "invite", "members", "backup"] {
        let ran = gpunion(home.path(), &["relay", command, "--help"], &[]).await;
        assert!(ran.code == 0 && ran.stdout.contains("--state"), "{command}: {ran:?}");
    }
    assert!(gpunion(home.path(), &["run", "--help"], &[]).await.stdout.contains("Examples:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_say_what_went_wrong() {
    let home = tempfile::tempdir().unwrap();
    assert_eq!(gpunion(home.path(), &["dance"], &[]).await.code, 2);
    assert_eq!(gpunion(home.path(), &[], &[]).await.code, 2);
    assert_eq!(gpunion(home.path(), &["run", "./not-here"], &[]).await.code, 2);
    let away = gpunion(home.path(), &["jobs"], &[]).await;
    assert!(away.code == 3 && away.stderr.contains("gpunion agent") && away.stdout.is_empty(), "{away:?}");
    let away = gpunion(home.path(), &["jobs", "--json"], &[]).await;
    assert_eq!(problem(&away).code, Code::AgentAway);
    assert_eq!(gpunion(home.path(), &["relay", "members", "--state", "nowhere"], &[]).await.code, 3);
    let wrong = ["relay", "serve", "--state", "new", "--listen", "127.0.0.1:0", "--address", "relay.lab"];
    let wrong = gpunion(home.path(), &wrong, &[]).await;
    assert!(wrong.code == 2 && wrong.stderr.contains("\"relay.lab\" is not host:port"), "{wrong:?}");
    assert!(!wrong.stderr.contains("relay.toml"), "no file is to blame: {wrong:?}");

    let half = Half::start(&home.path().join("agent"));
    let alone = half.gpunion(&["jobs"]).await;
    assert!(alone.code == 4 && alone.stderr.contains("gpunion join"), "{alone:?}");
    assert_eq!(half.gpunion(&["join", "nonsense"]).await.code, 2);
    let unknown = half.gpunion(&["share", "on", "--until", "noon"]).await;
    assert!(unknown.code == 2 && unknown.stderr.contains("18:00"), "{unknown:?}");
    assert_eq!(half.gpunion(&["doctor"]).await.code, 1, "no engine here");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_laptop_is_revoked_by_name_on_the_relays_machine() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("relay");
    let relay = Relay::start(&state).await;
    let half = Half::start(&home.path().join("agent"));
    let link = relay.link.as_ref().unwrap();
    let joined = half.gpunion(&["join", link, "--name", "Ada", "--device-name", "laptop"]).await;
    assert_eq!(joined.code, 0, "{joined:?}");
    let members = ["relay", "members", "--state", state.to_str().unwrap()];
    let unknown = gpunion(home.path(), &[&members[..], &["--revoke", "desktop"]].concat(), &[]).await;
    assert!(unknown.code == 2 && unknown.stderr.contains("no device desktop"), "{unknown:?}");
    let last = gpunion(home.path(), &[&members[..], &["--remove", "Ada"]].concat(), &[]).await;
    assert!(last.code != 0 && last.stderr.contains("relay invite --role operator"), "{last:?}");
    let revoked = gpunion(home.path(), &[&members[..], &["--revoke", "laptop"]].concat(), &[]).await;
    assert!(revoked.code == 0 && revoked.stdout.contains("Ada"), "{revoked:?}");
    let refused = half.gpunion(&["jobs"]).await;
    assert!(refused.code != 0 && refused.stderr.contains("token"), "{refused:?}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn json_has_the_shape_of_the_protocol() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("relay");
    let relay = Relay::start(&state).await;
    let half = Half::start(&home.path().join("agent"));
    let joined: GroupFile =
        json(&half.gpunion(&["join", relay.link.as_ref().unwrap(), "--name", "Ada", "--json"]).await);
    assert_eq!((joined.group.as_str(), joined.member_name.as_str()), ("lab", "Ada"));
    let members: Vec<MemberView> = json(&half.gpunion(&["members", "--json"]).await);
    assert_eq!(members.len(), 1);
    json::<MadeInvite>(&half.gpunion(&["invite", "--json"]).await);
    let made: MadeInvite =
        json(&half.gpunion(&["relay", "invite", "--state", state.to_str().unwrap(), "--json"]).await);
    assert!(made.link.starts_with("gpunion://join/"));
    json::<ShareStatus>(&half.gpunion(&["share", "status", "--json"]).await);
    json::<Vec<GpuStatus>>(&half.gpunion(&["gpus", "--json"]).await);
    json::<Vec<HistoryEntry>>(&half.gpunion(&["history", "--json"]).await);
    assert!(json::<Receipt>(&half.gpunion(&["reclaim", "--json"]).await).verified);
    let doctor = half.gpunion(&["doctor", "--json"]).await;
    assert!(
        serde_json::from_str::<Vec<Finding>>(&doctor.stdout)
            .unwrap()
            .iter()
            .any(|finding| finding.about == "relay")
    );

    let folder = home.path().join("job");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("gpunion.toml"), "name = \"cli\"\nimage = \"a:1\"\n[resources]\ngpus = 0\n")
        .unwrap();
    let submitted: SubmitProgress =
        json(&half.gpunion(&["submit", folder.to_str().unwrap(), "--yes", "--json"]).await);
    let SubmitProgress::Submitted { job, .. } = submitted else { panic!("{submitted:?}") };
    let jobs: Vec<JobView> = json(&half.gpunion(&["jobs", "--json"]).await);
    assert_eq!(jobs[0].id, job);
    assert_eq!(json::<JobView>(&half.gpunion(&["show", "cli", "--json"]).await).id, job);
    assert!(matches!(
        json::<JobState>(&half.gpunion(&["why", job.as_str(), "--json"]).await),
        JobState::Queued { .. }
    ));
    let end = &job.as_str()[job.as_str().len() - 6..];
    assert_eq!(json::<JobView>(&half.gpunion(&["cancel", end, "--json"]).await).state, JobState::Cancelled);
    assert_eq!(half.gpunion(&["fetch", "cli"]).await.code, 1);
    let over = half.gpunion(&["logs", "-f", "cli"]).await;
    assert!(over.code == 0 && over.stdout.is_empty(), "{over:?}");
    assert_eq!(json::<Left>(&half.gpunion(&["leave-group", "--json"]).await).trouble, None);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn f104_secrets_are_in_no_output_and_no_file() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let folder = home.path().join("job");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("gpunion.toml"), "name = \"s\"\nimage = \"a:1\"\n[secrets]\nHF_TOKEN = {}\n")
        .unwrap();
    let path = folder.to_str().unwrap();
    let without = half.gpunion(&["submit", path, "--yes"]).await;
    assert!(without.code == 2 && without.stderr.contains("HF_TOKEN"), "{without:?}");
    const VALUE: &str = "hunter2hunter2";
    let env = [("HF_TOKEN", VALUE)];
    let mut said = String::new();
    for args in [
        vec!["submit", path, "--yes"],
        vec!["submit", path, "--yes", "--json"],
        vec!["show", "s", "--json"],
        vec!["show", "s"],
    ] {
        let ran = gpunion(&half.dirs.data, &args, &env).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        said.push_str(&ran.stdout);
        said.push_str(&ran.stderr);
    }
    assert!(!said.contains(VALUE));
    let token = half.pairing.current().unwrap().identity.token.clone().unwrap();
    assert!(!said.contains(token.as_str()));
    relay.stop().await;
    for path in files(home.path()) {
        let bytes = fs::read(&path).unwrap();
        let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
        assert!(!holds(VALUE), "the secret is in {}", path.display());
        let own = path == half.dirs.data.join("identity.json");
        assert!(own || !holds(token.as_str()), "the token is in {}", path.display());
    }
}

fn files(root: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => open.push(entry.path()),
                kind if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// A stand-in for a guest's init: it ends when `end` appears, as the real one does.
fn guest(data: &Path, name: &str, ends: bool) -> Child {
    let folder = data.join("guests").join(name);
    fs::create_dir_all(folder.join("ctl")).unwrap();
    let end = folder.join("ctl/end");
    let script = if ends {
        format!("while [ ! -e '{}' ]; do sleep 0.05; done", end.display())
    } else {
        "exec sleep 60".to_owned()
    };
    let child = Command::new("/bin/sh").args(["-c", &format!("{script}; exit 0")]).spawn().unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    let start_time: u64 =
        stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
    let facts = serde_json::json!({
        "attempt": {"job": "job_01k0000000000000000000000a", "token": {"epoch": 1, "attempt": 1}},
        "name": name, "member": "Ada", "container": "0".repeat(64),
        "pid": child.id(), "start_time": start_time, "gpus": [], "before": [],
    });
    fs::write(folder.join("guest.json"), facts.to_string()).unwrap();
    child
}

#[tokio::test(flavor = "multi_thread")]
async fn reclaim_needs_no_agent() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path();
    let mut child = guest(data, "obeys", true);
    let waiting = tokio::task::spawn_blocking(move || child.wait().unwrap());
    let receipt: Receipt = json(&gpunion(data, &["reclaim", "--json"], &[]).await);
    assert!(receipt.verified && receipt.wish_saved, "{receipt:?}");
    assert_eq!(receipt.guests[0].way, Way::EndFile);
    assert!(waiting.await.unwrap().success());
    assert_eq!(word::read(&data.join("reclaimed")).unwrap().unwrap().wanted, Wanted::All);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_does_not_end_is_not_called_verified() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path();
    let mut child = guest(data, "stays", false);
    let ran = gpunion(data, &["reclaim", "--json"], &[]).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(ran.code, 5, "{ran:?}");
    let receipt: Receipt = serde_json::from_str(&ran.stdout).unwrap();
    assert!(!receipt.verified && receipt.guests[0].way == Way::NotEnded, "{receipt:?}");
    assert!(receipt.troubles.iter().any(|trouble| trouble.contains("stays")), "{receipt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_just_starts_is_told_and_not_called_verified() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("guests/new/ctl");
    fs::create_dir_all(&folder).unwrap();
    let ran = gpunion(home.path(), &["reclaim"], &[]).await;
    assert!(ran.code == 5 && folder.join("end").exists(), "{ran:?}");
}
