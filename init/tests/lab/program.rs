//! What the program is given, and what it is not.

use std::fs;

use gpunion_protocol::guest::{FromInit, ToInit};

use crate::guest::{Guest, shell, until};

#[test]
fn the_program_gets_its_environment_and_no_descriptor_of_inits() {
    let guest = Guest::start();
    let mut begin = shell(
        "env > env; ls /proc/$$/fd > fds; readlink /proc/$$/fd/0 > stdin; pwd > pwd; nice > nice; cat /proc/self/oom_score_adj > oom; grep -h -E 'SigBlk|SigIgn' /proc/self/status > signals; echo 1 > ready; sleep 1000",
    );
    begin.env.push(("HF_TOKEN".to_owned(), "hunter2-in-the-clear".to_owned()));
    let (_agent, _ring) = guest.begin(begin);
    guest.wait_for_file("ready");
    let read = |name: &str| fs::read_to_string(guest.workspace(name)).unwrap();
    assert!(read("env").contains("HF_TOKEN=hunter2-in-the-clear"));
    let descriptors = read("fds");
    // The shell itself may hold one of its own, at 10 or above.
    let mut low: Vec<u32> =
        descriptors.split_whitespace().map(|n| n.parse().unwrap()).filter(|n| *n < 10).collect();
    low.sort_unstable();
    assert_eq!(low, [0, 1, 2]);
    assert_eq!(read("stdin").trim(), "/dev/null");
    assert_eq!(read("pwd").trim(), "/workspace");
    assert_eq!(read("nice").trim(), "19");
    assert_eq!(read("oom").trim(), "1000");
    // 32 and 33 are the C library's own.
    let odd = |mask: &str| u64::from_str_radix(mask, 16).unwrap() & !(1 << 31 | 1 << 32);
    let masks: Vec<u64> = read("signals").split_whitespace().skip(1).step_by(2).map(odd).collect();
    assert_eq!(masks, [0, 0]);
}

#[test]
fn secrets_are_in_neither_the_arguments_nor_the_environment_of_init() {
    let guest = Guest::start();
    let mut begin = shell("echo 1 > ready; sleep 1000");
    begin.env.push(("HF_TOKEN".to_owned(), "hunter2-in-the-clear".to_owned()));
    let (_agent, _ring) = guest.begin(begin);
    guest.wait_for_file("ready");
    for name in ["cmdline", "environ", "status", "comm"] {
        let bytes = fs::read(format!("/proc/{}/{name}", guest.init())).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("hunter2"), "{name}");
    }
}

#[test]
fn a_program_that_can_not_run_is_told_with_its_reason_until_it_is_seen() {
    let mut guest = Guest::start();
    let mut agent = guest.accept(false);
    let mut begin = shell("");
    begin.command = vec!["pyhton".to_owned(), "train.py".to_owned()];
    agent.say(&ToInit::Begin(begin));
    let reason = |word: &FromInit| match word {
        FromInit::NotStarted { reason } => Some(reason.clone()),
        _ => None,
    };
    let first = agent.expect("NotStarted", reason);
    assert!(first.contains("pyhton: command not found"), "{first}");
    drop(agent);
    let mut agent = guest.accept(true);
    assert_eq!(agent.expect("NotStarted", reason), first);
    agent.say(&ToInit::ExitSeen);
    assert_eq!(guest.ended(), Some(127));
}

#[test]
fn the_workspace_is_counted_when_it_is_limited() {
    let guest = Guest::start();
    fs::write(guest.workspace("data"), vec![7; 1 << 20]).unwrap();
    let mut begin = shell("sleep 1000");
    begin.disk_limit = 1;
    let (mut agent, _ring) = guest.begin(begin);
    let (bytes, files) = agent.expect("Usage", |word| match word {
        FromInit::Usage { bytes, files } => Some((*bytes, *files)),
        _ => None,
    });
    assert!(bytes >= 1 << 20 && files == 1, "{bytes} bytes, {files} files");
}

#[test]
fn f86_a_shell_wrapper_does_not_keep_the_signal_from_the_program() {
    let guest = Guest::start();
    fs::write(
        guest.workspace("train.sh"),
        "trap 'echo got > got; exit 0' TERM; echo 1 > ready; while :; do sleep 0.02; done",
    )
    .unwrap();
    let (mut agent, _ring) = guest.begin(shell("trap 'sleep 1000' TERM; sh train.sh; echo"));
    guest.wait_for_file("ready");
    agent.say(&ToInit::Signal { seq: 4, signal: 15 });
    let processes = agent.expect("Signalled", |word| match word {
        FromInit::Signalled { seq: 4, processes } => Some(*processes),
        _ => None,
    });
    assert!(processes >= 2);
    guest.wait_for_file("got");
    agent.say(&ToInit::Signal { seq: 5, signal: 4000 });
    agent.expect("Confused", |word| matches!(word, FromInit::Confused { .. }).then_some(()));
    until("the wrapper goes on", || (!guest.processes().is_empty()).then_some(()));
}
