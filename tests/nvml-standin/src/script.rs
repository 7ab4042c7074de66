//! The script: which GPUs there are and what is wrong with them.
//!
//! A test edits the file while the library is loaded, so it is read again at every call; while
//! it is half written, the last whole one counts. What a *guest* holds is never in here: that
//! is found in the world (see `holders`).
//!
//! ```json
//! { "gpus": [ { "uuid": "GPU-0001", "name": "stand-in A", "memory_total": 8589934592,
//!               "folder": "/path/of/the/device", "temperature": 41, "power": 25000,
//!               "utilisation": { "idle": 0, "busy": 97 } } ] }
//! ```

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;

/// The whole file. An unknown field is an error, so that a typing mistake can't test nothing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    #[serde(default)]
    pub(crate) driver: Driver,
    #[serde(default)]
    pub(crate) gpus: Vec<Gpu>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Driver {
    #[default]
    Loaded,
    NotLoaded,
    /// The library is of another version than the loaded kernel module.
    VersionMismatch,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Gpu {
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// Bytes.
    pub(crate) memory_total: u64,
    /// Bytes that are always used.
    #[serde(default)]
    pub(crate) memory_baseline: u64,
    /// Bytes used that no listed process explains.
    #[serde(default)]
    pub(crate) memory_unexplained: u64,
    /// Bytes used, whatever the truth: for impossible values.
    #[serde(default)]
    pub(crate) memory_used_override: Option<u64>,
    #[serde(default = "yes")]
    pub(crate) memory_supported: bool,
    /// The folder that stands for the device.
    pub(crate) folder: PathBuf,
    /// Percent while nobody holds memory, and while somebody does; absent: not supported.
    #[serde(default)]
    pub(crate) utilisation: Option<Utilisation>,
    /// Degrees Celsius; absent: not supported.
    #[serde(default)]
    pub(crate) temperature: Option<u32>,
    /// Milliwatts; absent: not supported.
    #[serde(default)]
    pub(crate) power: Option<u32>,
    /// Milliwatts; absent: not supported.
    #[serde(default)]
    pub(crate) power_limit: Option<u32>,
    #[serde(default)]
    pub(crate) fallen_off: bool,
    #[serde(default)]
    pub(crate) mig: bool,
    /// Processes of somebody else; give the pid of a living process.
    #[serde(default)]
    pub(crate) foreign: Vec<Foreign>,
    #[serde(default)]
    pub(crate) process_list: ProcessList,
    /// Whether the list tells each process's bytes.
    #[serde(default = "yes")]
    pub(crate) process_memory: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Utilisation {
    pub(crate) idle: u32,
    pub(crate) busy: u32,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Foreign {
    pub(crate) pid: u32,
    /// Bytes.
    pub(crate) memory: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ProcessList {
    #[default]
    Given,
    NotSupported,
    /// What some drivers answer where they mean "empty".
    NotFound,
}

fn yes() -> bool {
    true
}

impl Script {
    /// The script as it is now; the last whole one while it can't be read; None when there
    /// never was one.
    pub(crate) fn now() -> Option<Script> {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path()?;
        let text = std::fs::read_to_string(&path);
        match text.map_err(|e| e.to_string()).and_then(|t| parse(&t)) {
            Ok(script) => last.script = Some(script),
            Err(why) => last.say(&path, &why),
        }
        last.script.clone()
    }
}

pub(crate) fn parse(text: &str) -> Result<Script, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

struct Last {
    script: Option<Script>,
    said: String,
}

static LAST: Mutex<Last> = Mutex::new(Last { script: None, said: String::new() });

impl Last {
    /// Each trouble once: the library is asked many times a second.
    fn say(&mut self, path: &Path, why: &str) {
        if self.said != why {
            let _ = writeln!(std::io::stderr(), "nvml stand-in: {}: {why}", path.display());
            why.clone_into(&mut self.said);
        }
    }
}

/// `GPUNION_STANDIN`, else `standin.json` in the folder that this library was loaded from: so
/// that two copies of the library in one process can have a script each.
fn path() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("GPUNION_STANDIN") {
        return Some(path.into());
    }
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let library = mapped_file(&maps, path as fn() -> Option<PathBuf> as usize as u64)?;
    Some(Path::new(library).parent()?.join("standin.json"))
}

/// The file whose mapping holds this address.
fn mapped_file(maps: &str, address: u64) -> Option<&str> {
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = u64::from_str_radix(from, 16).ok()?;
        let to = u64::from_str_radix(to, 16).ok()?;
        let file = rest.find('/').and_then(|at| rest.get(at..))?;
        (from..to).contains(&address).then_some(file)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_field_is_an_error() {
        let text = r#"{"gpus":[{"uuid":"GPU-1","name":"A","memory_total":1,"folder":"/f","temprature":3}]}"#;
        assert!(parse(text).unwrap_err().contains("temprature"));
    }

    #[test]
    fn finds_the_mapped_file_with_spaces_in_its_name() {
        let maps = "1000-2000 r-xp 0 08:01 5 /a/b.so\n2000-3000 r-xp 0 08:01 5    /a dir/c.so\n4000-5000 rw-p 0 0 0 \n";
        assert_eq!(mapped_file(maps, 0x2fff), Some("/a dir/c.so"));
        assert_eq!(mapped_file(maps, 0x3000), None);
        assert_eq!(mapped_file(maps, 0x4800), None);
    }
}
