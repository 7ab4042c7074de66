//! Each kind, ended at some moment and started again, leaves what it leaves undisturbed. Without
//! that no comparison of results would say anything.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

const STEPS: usize = 60;

fn command(folder: &Path, kind: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_odd-jobs"));
    command.args([kind, &STEPS.to_string(), "3"]).current_dir(folder).stdin(Stdio::null());
    command
}

fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

#[test]
fn whatever_ends_it_on_the_way_the_folder_is_the_same_in_the_end() {
    for kind in ["never-saves", "deaf", "torn", "forks", "big"] {
        let undisturbed = tempfile::tempdir().unwrap();
        assert!(command(undisturbed.path(), kind).stdout(Stdio::null()).status().unwrap().success());
        let undisturbed = files(undisturbed.path());
        assert!(undisturbed.contains_key("result.txt"), "{kind}");

        let folder = tempfile::tempdir().unwrap();
        let mut interrupted = 0;
        for lines in [1, 2, 5, 9] {
            let mut child = command(folder.path(), kind).stdout(Stdio::piped()).spawn().unwrap();
            let out = BufReader::new(child.stdout.take().unwrap());
            let _seen = out.lines().take(lines).count();
            child.kill().unwrap();
            interrupted += usize::from(!child.wait().unwrap().success());
        }
        assert!(interrupted > 0, "{kind} was always faster than its end");
        assert!(command(folder.path(), kind).stdout(Stdio::null()).status().unwrap().success(), "{kind}");
        assert!(files(folder.path()) == undisturbed, "{kind} ends with other files");
    }
}
