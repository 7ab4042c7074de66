//! `examples/digits` as a member has it: a folder in the home, submitted and fetched by commands.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gpunion_protocol::local::SubmitProgress;

use super::{Device, repository};

/// What a member wrote, with a pace of the test's own. A job's result depends on `epochs` alone.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub epochs: u32,
    pub epoch_seconds: f64,
}

/// A result's files, by name.
pub type Files = Vec<(String, Vec<u8>)>;

impl Device {
    /// A copy of the example's static form in the home.
    pub fn digits_folder(&self, name: &str, pace: Pace) -> Result<PathBuf> {
        let example = repository()?.join("examples/digits");
        let dataset = self.user.copy_in(&example.join("dataset"), &format!("{name}/dataset"))?;
        let folder = dataset.parent().context("the folder of the job")?.to_owned();
        self.write_spec(&folder, &example, name, pace)?;
        Ok(folder)
    }

    /// The same of the Python form.
    pub fn python_folder(&self, name: &str, pace: Pace) -> Result<PathBuf> {
        let example = repository()?.join("examples/digits/python");
        let folder = self.user.copy_in(&example, name)?;
        self.write_spec(&folder, &example, name, pace)?;
        Ok(folder)
    }

    fn write_spec(&self, folder: &Path, example: &Path, name: &str, pace: Pace) -> Result<()> {
        let mut table: toml::Table = fs::read_to_string(example.join("gpunion.toml"))?.parse()?;
        table.insert("name".to_owned(), name.into());
        let env = table.entry("env").or_insert_with(|| toml::Table::new().into());
        let env = env.as_table_mut().context("env is a table")?;
        env.insert("EPOCHS".to_owned(), pace.epochs.to_string().into());
        env.insert("EPOCH_SECONDS".to_owned(), pace.epoch_seconds.to_string().into());
        self.write_in(folder, "gpunion.toml", &toml::to_string(&table)?)
    }

    /// A folder with this spec and nothing else.
    pub fn job_folder(&self, name: &str, spec: &str) -> Result<PathBuf> {
        let folder = self.user.home().join(name);
        fs::create_dir_all(&folder)?;
        chown(&folder, Some(self.user.uid()), Some(self.user.gid()))?;
        self.write_in(&folder, "gpunion.toml", spec)?;
        Ok(folder)
    }

    /// Writes a file as its user would.
    pub fn write_in(&self, folder: &Path, name: &str, text: &str) -> Result<()> {
        let path = folder.join(name);
        fs::write(&path, text)?;
        for path in [folder, &path] {
            chown(path, Some(self.user.uid()), Some(self.user.gid()))?;
        }
        Ok(())
    }

    /// `gpunion submit`; the job's id, and the bytes that were sent and that were there already.
    pub fn submit(&self, folder: &Path) -> Result<(String, u64, u64)> {
        let words = [OsStr::new("--json"), OsStr::new("submit"), folder.as_os_str(), OsStr::new("--yes")];
        let submitted: SubmitProgress = self.run(words)?.ok()?.json()?;
        match submitted {
            SubmitProgress::Submitted { job, sent, reused } => Ok((job.to_string(), sent, reused)),
            other => anyhow::bail!("submit ended with {other:?}"),
        }
    }

    /// `gpunion fetch`; the files that are the training's own work.
    pub fn fetch(&self, job: &str, into: &str) -> Result<Files> {
        self.run(["fetch", job, into])?.ok()?;
        let folder = self.user.home().join(into);
        let read = |name: &str| {
            let bytes = fs::read(folder.join(name)).with_context(|| format!("{name} of the result"))?;
            Ok((name.to_owned(), bytes))
        };
        ["weights.bin", "result.json"].into_iter().map(read).collect()
    }
}
