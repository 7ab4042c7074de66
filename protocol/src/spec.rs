//! What a member asks for: the job's spec, written as TOML (`gpunion.toml`) or JSON.
//!
//! Reading a spec that a person wrote is strict: an unknown field is an error that names it and
//! its nearest known neighbour. On the wire the same type is forgiving.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::egress::{BadName, EgressName, NAMES_MAX};
use crate::time::Millis;
use crate::units::{Bytes, Span};

/// The file that makes a folder a job.
pub const FILE_NAME: &str = "gpunion.toml";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobSpec {
    #[serde(default)]
    pub name: String,
    #[serde(default)]
    pub image: String,
    /// The image's own command when empty.
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub resources: Resources,
    #[serde(default)]
    pub checkpoint: CheckpointRules,
    #[serde(default)]
    pub network: Network,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Names only; values are sealed with the job's key and handed over by init.
    #[serde(default)]
    pub secrets: BTreeMap<String, Secret>,
    #[serde(default)]
    pub data: Vec<Data>,
    #[serde(default)]
    pub writable_root: bool,
}

impl Eq for JobSpec {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resources {
    /// 0 is a CPU job.
    #[serde(default = "Resources::one")]
    pub gpus: u32,
    /// Least memory of each GPU.
    #[serde(default)]
    pub gpu_memory: Bytes,
    #[serde(default = "Resources::one")]
    pub cpus: u32,
    /// /dev/shm is part of it.
    #[serde(default = "Resources::memory")]
    pub memory: Bytes,
    #[serde(default = "Resources::disk")]
    pub disk: Bytes,
}

impl Resources {
    fn one() -> u32 {
        1
    }

    fn memory() -> Bytes {
        Bytes(4 << 30)
    }

    fn disk() -> Bytes {
        Bytes(10 << 30)
    }
}

impl Default for Resources {
    fn default() -> Self {
        Self { gpus: 1, gpu_memory: Bytes(0), cpus: 1, memory: Self::memory(), disk: Self::disk() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckpointRules {
    /// Absent: the provider finds it, from what a checkpoint costs there and how often it leaves. (Not
    /// written then: earlier agents and relays take a text or nothing.)
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    #[serde(default = "CheckpointRules::signal")]
    pub signal: String,
    /// Wanted; the owner's limit wins.
    #[serde(default = "CheckpointRules::grace")]
    pub grace: Span,
    /// Longest stop for a periodic checkpoint.
    #[serde(default = "CheckpointRules::stop_max")]
    pub stop_max: Span,
}

impl CheckpointRules {
    fn signal() -> String {
        "SIGTERM".to_owned()
    }

    fn grace() -> Span {
        Span(Millis::from_secs(60))
    }

    fn stop_max() -> Span {
        Span(Millis::from_secs(2))
    }
}

impl Default for CheckpointRules {
    fn default() -> Self {
        Self { every: None, signal: Self::signal(), grace: Self::grace(), stop_max: Self::stop_max() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Network {
    /// Names the job may reach; none when absent. (Text, so that a bad one is told with its field.)
    #[serde(default)]
    pub egress: Vec<String>,
}

impl Network {
    /// What is asked for, when every name is one.
    pub fn names(&self) -> Result<Vec<EgressName>, BadName> {
        self.egress.iter().map(|name| name.parse()).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Secret {}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Data {
    /// Relative to the folder of the spec.
    pub path: String,
    /// Absolute path in the guest.
    pub at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadSpec {
    #[error("the spec is not valid TOML: {0}")]
    Toml(String),
    #[error("the spec is not valid JSON: {0}")]
    Json(String),
    #[error("unknown field `{field}`{}", .nearest.as_deref().map(|n| format!("; did you mean `{n}`?")).unwrap_or_default())]
    UnknownField { field: String, nearest: Option<String> },
    #[error("`{field}`: {reason}")]
    Value { field: String, reason: String },
}

/// Reads a spec that a person wrote as TOML.
pub fn from_toml(text: &str) -> Result<JobSpec, BadSpec> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| BadSpec::Toml(e.to_string()))?;
    let value = serde_json::to_value(table).map_err(|e| BadSpec::Toml(e.to_string()))?;
    check_fields(&value, "", FIELDS)?;
    // Deserialised from the text once more, so that the error points at the line.
    let spec: JobSpec = toml::from_str(text).map_err(|e| BadSpec::Toml(e.to_string()))?;
    Ok(spec)
}

/// Reads a spec that a person wrote as JSON.
pub fn from_json(text: &str) -> Result<JobSpec, BadSpec> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|e| BadSpec::Json(e.to_string()))?;
    check_fields(&value, "", FIELDS)?;
    serde_json::from_value(value).map_err(|e| BadSpec::Json(e.to_string()))
}

/// Known fields by table; a table whose keys are the member's own is absent.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "name",
            "image",
            "command",
            "resources",
            "checkpoint",
            "network",
            "env",
            "secrets",
            "data",
            "writable_root",
        ],
    ),
    ("resources", &["gpus", "gpu_memory", "cpus", "memory", "disk"]),
    ("checkpoint", &["every", "signal", "grace", "stop_max"]),
    ("network", &["egress"]),
    ("data", &["path", "at"]),
];

fn check_fields(value: &serde_json::Value, table: &str, known: &[(&str, &[&str])]) -> Result<(), BadSpec> {
    if let serde_json::Value::Array(items) = value {
        return items.iter().try_for_each(|item| check_fields(item, table, known));
    }
    let serde_json::Value::Object(object) = value else { return Ok(()) };
    let Some((_, fields)) = known.iter().find(|(name, _)| *name == table) else { return Ok(()) };
    for (key, inner) in object {
        if !fields.contains(&key.as_str()) {
            let field = if table.is_empty() { key.clone() } else { format!("{table}.{key}") };
            return Err(BadSpec::UnknownField { field, nearest: nearest(key, known) });
        }
        if table.is_empty() {
            check_fields(inner, key, known)?;
        }
    }
    Ok(())
}

/// The known word that was probably meant, if any is near.
pub fn nearest_word(word: &str, known: &[&str]) -> Option<String> {
    nearest(word, &[("", known)])
}

/// The known field with the smallest edit distance, with its table, when it is near enough.
fn nearest(key: &str, known: &[(&str, &[&str])]) -> Option<String> {
    known
        .iter()
        .flat_map(|(table, fields)| fields.iter().map(move |field| (distance(key, field), *table, *field)))
        .filter(|(d, _, field)| *d <= (field.len() / 3).max(1) + 1 && *d < field.len())
        .min()
        .map(
            |(_, table, field)| {
                if table.is_empty() { (*field).to_owned() } else { format!("{table}.{field}") }
            },
        )
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(!x.eq_ignore_ascii_case(y));
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Signals that a job may be told to leave with.
pub const SIGNALS: &[(&str, i32)] =
    &[("SIGTERM", 15), ("SIGINT", 2), ("SIGUSR1", 10), ("SIGUSR2", 12), ("SIGHUP", 1)];

impl JobSpec {
    /// The smallest spec that runs an image.
    pub fn of_image(image: &str) -> Self {
        let name = image.rsplit('/').next().unwrap_or(image).split([':', '@']).next().unwrap_or(image);
        Self {
            name: name.to_owned(),
            image: image.to_owned(),
            command: Vec::new(),
            resources: Resources::default(),
            checkpoint: CheckpointRules::default(),
            network: Network::default(),
            env: BTreeMap::new(),
            secrets: BTreeMap::new(),
            data: Vec::new(),
            writable_root: false,
        }
    }

    pub fn signal_number(&self) -> Option<i32> {
        SIGNALS.iter().find(|(name, _)| *name == self.checkpoint.signal).map(|(_, number)| *number)
    }

    /// Everything that can be said about a spec without a machine to run it on.
    pub fn check(&self) -> Result<(), BadSpec> {
        let bad = |field: &str, reason: String| Err(BadSpec::Value { field: field.to_owned(), reason });
        if self.image.trim().is_empty() {
            return bad("image", "is missing; name a container image, or give --image".to_owned());
        }
        if self.image.len() > 512 || self.image.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return bad("image", "is not an image reference".to_owned());
        }
        if self.name.is_empty() || self.name.len() > 80 || self.name.chars().any(char::is_control) {
            return bad("name", "must have 1 to 80 printable characters".to_owned());
        }
        if self.command.iter().any(|word| word.contains('\0'))
            || self.command.iter().map(String::len).sum::<usize>() > 64 << 10
        {
            return bad("command", "must be under 64 KiB and without NUL".to_owned());
        }
        let r = &self.resources;
        if r.gpus > 64 {
            return bad("resources.gpus", format!("{} is more than any machine has", r.gpus));
        }
        if r.cpus == 0 || r.cpus > 4096 {
            return bad("resources.cpus", "must be at least 1".to_owned());
        }
        if r.memory < Bytes(16 << 20) {
            return bad("resources.memory", "must be at least 16 MiB".to_owned());
        }
        if r.disk < Bytes(1 << 20) {
            return bad("resources.disk", "must be at least 1 MiB".to_owned());
        }
        if self.writable_root {
            return bad("writable_root", "what a guest writes outside its workspace is not counted in this version; write to /workspace, or put it into the image".to_owned());
        }
        if self.checkpoint.every.is_some_and(|every| every < Span(Millis::from_secs(1))) {
            return bad("checkpoint.every", "must be at least 1 s".to_owned());
        }
        if self.signal_number().is_none() {
            let names: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).collect();
            return bad("checkpoint.signal", format!("must be one of {}", names.join(", ")));
        }
        if self.network.egress.len() > NAMES_MAX {
            return bad("network.egress", format!("may name {NAMES_MAX} hosts at most"));
        }
        if let Err(error) = self.network.names() {
            return bad("network.egress", error.to_string());
        }
        self.check_names()?;
        self.check_data()
    }

    fn check_names(&self) -> Result<(), BadSpec> {
        for name in self.env.keys().chain(self.secrets.keys()) {
            let good = !name.is_empty()
                && name.len() <= 128
                && !name.as_bytes()[0].is_ascii_digit()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if !good {
                return Err(BadSpec::Value {
                    field: format!("env.{name}"),
                    reason: "is not a name of a variable".to_owned(),
                });
            }
            if name.starts_with("GPUNION_") {
                return Err(BadSpec::Value {
                    field: format!("env.{name}"),
                    reason: "GPUNION_ names are set by the provider".to_owned(),
                });
            }
        }
        if let Some(both) = self.env.keys().find(|name| self.secrets.contains_key(*name)) {
            return Err(BadSpec::Value {
                field: format!("secrets.{both}"),
                reason: "is also in [env]; keep one".to_owned(),
            });
        }
        if self.env.values().any(|v| v.contains('\0'))
            || self.env.values().map(String::len).sum::<usize>() > 128 << 10
        {
            return Err(BadSpec::Value {
                field: "env".to_owned(),
                reason: "must be under 128 KiB and without NUL".to_owned(),
            });
        }
        Ok(())
    }

    fn check_data(&self) -> Result<(), BadSpec> {
        const RESERVED: &[&str] = &["/workspace", "/tmp", "/run", "/proc", "/sys", "/dev"];
        let mut seen = BTreeSet::new();
        for data in &self.data {
            let bad =
                |reason: String| Err(BadSpec::Value { field: format!("data.at = {:?}", data.at), reason });
            let parts: Vec<&str> = data.at.split('/').skip(1).collect();
            if !data.at.starts_with('/')
                || parts.iter().any(|p| p.is_empty() || *p == "." || *p == "..")
                || data.at.len() > 512
            {
                return bad("must be an absolute path such as /data".to_owned());
            }
            if RESERVED.iter().any(|r| data.at == *r || data.at.starts_with(&format!("{r}/"))) {
                return bad("is a place of the guest's own".to_owned());
            }
            if !seen.insert(&data.at) {
                return bad("is named twice".to_owned());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DESIGN: &str = r#"
name = "digits"
image = "python:3.12-slim"
command = ["python", "train.py"]
[resources]
gpus = 1
gpu_memory = "10 GiB"
cpus = 4
memory = "8 GiB"
disk = "20 GiB"
[checkpoint]
every = "5 min"
signal = "SIGTERM"
grace = "60 s"
stop_max = "2 s"
[network]
egress = ["huggingface.co", "github.com"]
[env]
EPOCHS = "20"
[secrets]
HF_TOKEN = {}
[[data]]
path = "dataset/"
at = "/data"
"#;

    #[test]
    fn the_spec_of_the_design_is_read() {
        let spec = from_toml(DESIGN).unwrap();
        spec.check().unwrap();
        assert_eq!(spec.resources.gpu_memory, Bytes(10 << 30));
        assert_eq!(spec.checkpoint.every, Some(Span(Millis::from_secs(300))));
        assert_eq!(from_json(&serde_json::to_string(&spec).unwrap()).unwrap(), spec);
    }

    #[test]
    fn whether_the_spec_sets_its_checkpoints_is_known_and_an_earlier_peer_reads_it() {
        let spec = from_toml("image = \"python:3.12\"\n[checkpoint]\ngrace = \"30 s\"").unwrap();
        assert_eq!(spec.checkpoint.every, None);
        let json = serde_json::to_value(&spec).unwrap();
        assert_eq!(json["checkpoint"].get("every"), None, "null is no duration: {json}");
        assert_eq!(serde_json::from_value::<JobSpec>(json).unwrap(), spec);
        let every = |text: &str| {
            let mut spec = JobSpec::of_image("python:3.12");
            spec.checkpoint = toml::from_str(&format!("every = \"{text}\"")).unwrap();
            spec.check().map_err(|error| error.to_string())
        };
        assert_eq!(every("1 s"), Ok(()));
        assert!(every("999 ms").unwrap_err().contains("checkpoint.every"));
    }

    #[test]
    fn an_unknown_field_is_named_with_its_neighbour() {
        let error = from_toml("name = \"x\"\nimgae = \"y\"").unwrap_err().to_string();
        assert!(error.contains("`imgae`") && error.contains("`image`"), "{error}");
        let error = from_toml("[resources]\ngpu_mem = \"1 GiB\"").unwrap_err().to_string();
        assert!(error.contains("`resources.gpu_mem`") && error.contains("`resources.gpu_memory`"), "{error}");
        let error = from_toml("every = \"5 min\"").unwrap_err().to_string();
        assert!(error.contains("`checkpoint.every`"), "{error}");
    }

    #[test]
    fn a_wrong_value_points_at_its_line() {
        let error = from_toml("[resources]\nmemory = \"8\"").unwrap_err().to_string();
        assert!(error.contains("line 2") || error.contains("memory = "), "{error}");
    }

    #[test]
    fn egress_names_hosts_and_nothing_else() {
        let mut spec = JobSpec::of_image("python:3.12");
        spec.network.egress.extend(["github.com".to_owned(), "*.pypi.org:8443".to_owned()]);
        spec.check().unwrap();
        assert_eq!(spec.network.names().unwrap().len(), 2);
        spec.network.egress.push("10.0.0.1".to_owned());
        let error = spec.check().unwrap_err().to_string();
        assert!(error.contains("network.egress") && error.contains("10.0.0.1"), "{error}");
        spec.network.egress = vec!["a.org".to_owned(); NAMES_MAX + 1];
        assert!(spec.check().unwrap_err().to_string().contains("at most"));
    }

    #[test]
    fn a_writable_root_is_refused_with_a_plain_sentence_for_now() {
        let mut spec = JobSpec::of_image("python:3.12");
        spec.writable_root = true;
        assert!(spec.check().unwrap_err().to_string().contains("is not counted in this version"));
    }

    #[test]
    fn data_can_not_cover_what_the_guest_needs() {
        for at in ["/workspace", "/run/gpunion", "/proc/1", "relative", "/a/../b", "/", "//x"] {
            let mut spec = JobSpec::of_image("python:3.12");
            spec.data.push(Data { path: "d".to_owned(), at: at.to_owned() });
            assert!(spec.check().is_err(), "{at} must be refused");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,300}") {
            let _ = from_toml(&text).map(|spec| spec.check());
            let _ = from_json(&text).map(|spec| spec.check());
        }
    }
}
