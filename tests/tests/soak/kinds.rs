//! The kinds of jobs, and what each ends with when nobody disturbs it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpunion_protocol::local::SubmitProgress;
use system_tests::campus::{Device, Pace, Pair, Ran};

/// Of each kind: the static trainer, and those of `odd-jobs`.
pub(crate) const KINDS: [&str; 6] = ["digits", "never-saves", "deaf", "torn", "forks", "big"];

/// About a second and a half of each: some are met by a kill while they compute, and most get on.
const PACE: Pace = Pace { epochs: 3, epoch_seconds: 0.5 };
const STEPS: u32 = 40;
const STEP_MS: u32 = 40;

/// A result: what is in its files, by their path.
pub(crate) type Tree = BTreeMap<PathBuf, Vec<u8>>;

/// By kind, in the order of `KINDS`. The folders of the kinds are there afterwards.
pub(crate) fn undisturbed(pair: &Pair) -> Vec<Tree> {
    let submit = |kind: &&str| {
        make_folder(&pair.ada, kind);
        let name = format!("undisturbed-{kind}");
        (submitted(&ran(submit_command(&pair.ada, kind, &name))), name)
    };
    let jobs: Vec<_> = KINDS.iter().map(submit).collect();
    let fetch = |(job, name): (String, String)| {
        let job = pair.succeeds(&job).unwrap();
        assert_eq!(job.attempts.len(), 1, "{job:#?}");
        ran(fetch_command(&pair.ada, job.id.as_str(), &name)).ok().unwrap();
        let tree = read(&pair.ada.user.home().join(name));
        assert!(tree.values().any(|bytes| !bytes.is_empty()), "{:?}", tree.keys());
        tree
    };
    jobs.into_iter().map(fetch).collect()
}

fn make_folder(ada: &Device, kind: &str) {
    if kind == "digits" {
        let folder = ada.digits_folder(kind, PACE).unwrap();
        let spec = std::fs::read_to_string(folder.join("gpunion.toml")).unwrap();
        let mut spec: toml::Table = spec.parse().unwrap();
        spec["checkpoint"].as_table_mut().unwrap().insert("every".to_owned(), "1 s".into());
        ada.write_in(&folder, "gpunion.toml", &toml::to_string(&spec).unwrap()).unwrap();
        return;
    }
    let spec = format!(
        "name = \"{kind}\"\nimage = \"odd-jobs:latest\"\n\
         command = [\"/odd-jobs\", \"{kind}\", \"{STEPS}\", \"{STEP_MS}\"]\n\
         [resources]\ngpus = 1\ngpu_memory = \"1 GiB\"\ncpus = 1\nmemory = \"256 MiB\"\ndisk = \"1 GiB\"\n\
         [checkpoint]\nevery = \"1 s\"\n"
    );
    ada.job_folder(kind, &spec).unwrap();
}

/// Under a name of its own; the folder is that of all of its kind.
pub(crate) fn submit_command(ada: &Device, kind: &str, name: &str) -> Command {
    ada.command(["--json", "submit", kind, "--yes", "--name", name])
}

/// The job's id.
pub(crate) fn submitted(ran: &Ran) -> String {
    match ran.json() {
        Ok(SubmitProgress::Submitted { job, .. }) => job.to_string(),
        other => panic!("submit ended with {other:?}: {ran:?}"),
    }
}

pub(crate) fn fetch_command(ada: &Device, job: &str, into: &str) -> Command {
    ada.command(["fetch", job, into])
}

fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    Ran {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// All files below a folder that the member's own commands wrote.
pub(crate) fn read(folder: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let bytes = std::fs::read(&path).unwrap();
                tree.insert(path.strip_prefix(folder).unwrap().to_owned(), bytes);
            }
        }
    }
    tree
}
