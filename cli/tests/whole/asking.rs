//! What is asked before anything is sent, and what Ctrl-C does at each moment.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gpunion_protocol::job::JobView;
use gpunion_protocol::problem::{Code, Problem};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{LocalFlags, tcgetattr};
use nix::unistd::Pid;

use crate::support::{Half, LIMIT, Relay, noise};

fn command(half: &Half, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpunion"));
    command.args(words).env_clear().env("HOME", &half.dirs.data).env("GPUNION_DATA", &half.dirs.data);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn folder(home: &Path, spec: &str) -> PathBuf {
    let at = home.join("job");
    fs::create_dir(&at).unwrap();
    fs::write(at.join("gpunion.toml"), spec).unwrap();
    at
}

const SPEC: &str = "name = \"job\"\nimage = \"a:1\"\ncommand = [\"x\"]\n[resources]\ngpus = 0\n";

fn interrupt(child: &Child) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGINT).unwrap();
}

async fn jobs(half: &Half) -> Vec<JobView> {
    half.pairing.current().unwrap().client.jobs(&Default::default()).await.unwrap()
}

/// Until it holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, waited).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Its exit code and what it says on stderr, from here on.
async fn ended(mut child: Child) -> (Option<i32>, String) {
    let mut stderr = child.stderr.take().unwrap();
    tokio::task::spawn_blocking(move || {
        let mut said = String::new();
        stderr.read_to_string(&mut said).unwrap();
        (child.wait().unwrap().code(), said)
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_when_nobody_can_be_asked() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = folder(home.path(), SPEC);
    let path = at.to_str().unwrap();
    let text = half.gpunion(&["submit", path]).await;
    assert!(text.code == 2 && text.stderr.contains("add --yes") && text.stdout.is_empty(), "{text:?}");
    let json = half.gpunion(&["run", path, "--json"]).await;
    let problem: Problem = serde_json::from_str(json.stderr.trim()).unwrap();
    assert_eq!((json.code, problem.code), (2, Code::BadRequest), "{json:?}");
    assert!(problem.detail.unwrap().contains("--yes"));
    assert!(jobs(&half).await.is_empty());
    assert_eq!(half.gpunion(&["submit", path, "--yes"]).await.code, 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ctrl_c_at_a_secret_leaves_the_terminal_as_it_was() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = folder(home.path(), &format!("{SPEC}[secrets]\nHF_TOKEN = {{}}\n"));
    let terminal = nix::pty::openpty(None, None).unwrap();
    let slave = || Stdio::from(terminal.slave.try_clone().unwrap());
    let mut child = command(&half, &["submit", at.to_str().unwrap()]);
    let child = child.stdin(slave()).stderr(slave()).spawn().unwrap();
    let mut keyboard = fs::File::from(terminal.master.try_clone().unwrap());
    let mut screen = BufReader::new(keyboard.try_clone().unwrap());
    let mut shown = Vec::new();
    let asked = tokio::task::spawn_blocking(move || {
        while !shown.ends_with(b"Send it? [Y/n] ") {
            shown.push(0);
            screen.read_exact(shown.last_mut().map(std::slice::from_mut).unwrap()).unwrap();
        }
        (screen, String::from_utf8(shown).unwrap())
    });
    let (screen, shown) = tokio::time::timeout(LIMIT, asked).await.unwrap().unwrap();
    assert!(shown.contains("HF_TOKEN (will be asked for)"), "{shown}");
    let echoes = || tcgetattr(terminal.slave.as_fd()).unwrap().local_flags.contains(LocalFlags::ECHO);
    assert!(echoes());
    keyboard.write_all(b"y\n").unwrap();
    until("what is typed is hidden", || !echoes()).await;
    interrupt(&child);
    let mut child = child;
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(status.code(), Some(130));
    assert!(echoes(), "the terminal is as it was");
    assert!(jobs(&half).await.is_empty());
    drop(screen);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ctrl_c_while_it_sends_submits_nothing_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let state = home.path().join("relay");
    let relay = Relay::start(&state).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = folder(home.path(), SPEC);
    fs::write(at.join("big"), noise(5, 96 << 20)).unwrap();
    let child = command(&half, &["submit", at.to_str().unwrap(), "--yes"]).spawn().unwrap();
    let packs = state.join("packs");
    until("the first pack", || {
        fs::read_dir(&packs).unwrap().any(|sub| fs::read_dir(sub.unwrap().path()).unwrap().next().is_some())
    })
    .await;
    interrupt(&child);
    let (code, said) = ended(child).await;
    assert!(code == Some(130) && said.contains("nothing was submitted"), "{code:?}: {said}");
    assert!(jobs(&half).await.is_empty());
    relay.stop().await;
}

/// Pressed at many moments: what was said about the job is what the relay has.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_presses_ctrl_c_is_told_whether_there_is_a_job() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = folder(home.path(), SPEC);
    let mut told = BTreeSet::new();
    for turn in 0..10 {
        let child = command(&half, &["submit", at.to_str().unwrap(), "--yes"]);
        let mut child = { child }.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        // The preview has been shown: what is sent, and soon after the job, is under way.
        let shown = tokio::task::spawn_blocking(move || {
            let seen = lines.by_ref().map(Result::unwrap).find(|line| line.starts_with("sends"));
            (seen, lines)
        });
        let (seen, lines) = shown.await.unwrap();
        assert!(seen.is_some());
        tokio::time::sleep(Duration::from_millis(turn * 4)).await;
        interrupt(&child);
        let said =
            tokio::task::spawn_blocking(move || lines.map(Result::unwrap).collect::<Vec<_>>().join("\n"));
        let said = said.await.unwrap();
        let code = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap().code();
        match said.split("submitted as ").nth(1).or_else(|| said.split("already, as ").nth(1)) {
            Some(rest) => told.insert(rest[..30].to_owned()),
            None => {
                assert!(code == Some(130) && said.contains("nothing was submitted"), "{code:?}: {said}");
                false
            }
        };
    }
    let there: BTreeSet<String> = jobs(&half).await.into_iter().map(|job| job.id.to_string()).collect();
    assert_eq!(told, there);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ctrl_c_while_following_detaches() {
    let home = tempfile::tempdir().unwrap();
    let relay = Relay::start(&home.path().join("relay")).await;
    let half = Half::start(&home.path().join("agent"));
    half.join(relay.link.as_ref().unwrap()).await;
    let at = folder(home.path(), SPEC);
    for words in [vec!["run", at.to_str().unwrap(), "--yes"], vec!["logs", "-f", "job"]] {
        let mut child = command(&half, &words).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let follows = tokio::task::spawn_blocking(move || {
            let seen = lines.by_ref().map(Result::unwrap).find(|line| line.contains("── queued"));
            (seen, lines)
        });
        let (seen, lines) = tokio::time::timeout(LIMIT, follows).await.unwrap().unwrap();
        assert!(seen.is_some(), "{words:?}");
        interrupt(&child);
        let said =
            tokio::task::spawn_blocking(move || lines.map(Result::unwrap).collect::<Vec<_>>().join("\n"));
        let said = said.await.unwrap();
        let code = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap().code();
        assert!(code == Some(130) && said.contains("the job goes on"), "{words:?}: {code:?}: {said}");
    }
    let there = jobs(&half).await;
    assert!(there.len() == 1 && !there[0].state.is_final(), "{there:?}");
    relay.stop().await;
}
