//! What an operator may set: in code, or in `relay.toml` of the state folder.

use std::path::{Path, PathBuf};

use gpunion_protocol::session::Terms;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::{Bytes, Span};
use serde::Deserialize;

use crate::error::Error;

/// The file in the state folder; every line of it is optional.
pub const FILE_NAME: &str = "relay.toml";

#[derive(Debug, Clone)]
pub struct Config {
    pub state_dir: PathBuf,
    /// `host:port` under which devices reach this relay, the best first; they stand in invite
    /// links. Empty: the address of the listener.
    pub addresses: Vec<String>,
    /// Invite links pin the relay's key. Not so behind a proxy that ends TLS with a certificate of
    /// its own: then devices trust that one by the roots of their system.
    pub pin: bool,
    pub group: String,
    pub terms: Terms,
    pub limits: Limits,
}

/// Bounds that keep one small machine standing.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at a time; further ones wait to be accepted.
    pub connections: usize,
    /// Pack and snapshot uploads at a time; further ones wait, then are told "busy".
    pub uploads: usize,
    /// Of each job's output the newest so many bytes are kept.
    pub log_bytes: u64,
    /// Uploads and logs are refused when fewer bytes than these are free, so that the database can
    /// always be written.
    pub keep_free: u64,
    /// Between two sweeps of the packs.
    pub sweep: Millis,
    /// How long a pack or snapshot stays that nothing names: it may be on its way to a job.
    pub grace: Millis,
    /// The same for what a later checkpoint or a result has replaced, and for everything while the
    /// disk is nearly full.
    pub grace_short: Millis,
    /// Finished jobs kept of each member; of more the one that finished first is forgotten.
    pub finished: usize,
    /// Connections from one address on which nobody has shown a token yet; further ones are cut.
    pub strangers: usize,
    /// How long such a connection may stay.
    pub stranger: Millis,
    /// Events kept for readers that come back.
    pub events: usize,
    /// Joins one address may try in a row; one more every two seconds.
    pub joins: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 2_048,
            uploads: 32,
            log_bytes: 16 << 20,
            keep_free: 256 << 20,
            sweep: Millis::from_secs(10 * 60),
            grace: Millis::from_secs(24 * 3600),
            grace_short: Millis::from_secs(3600),
            finished: 1_000,
            strangers: 64,
            stranger: Millis::from_secs(20),
            events: 4_096,
            joins: 20,
        }
    }
}

impl Config {
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            addresses: Vec::new(),
            pin: true,
            group: "gpunion".to_owned(),
            terms: Terms::default(),
            limits: Limits::default(),
        }
    }

    /// The defaults, changed by what `relay.toml` in the state folder says.
    pub fn load(state_dir: impl Into<PathBuf>) -> Result<Self, Error> {
        let mut config = Self::new(state_dir);
        let path = config.state_dir.join(FILE_NAME);
        match std::fs::read_to_string(&path) {
            Ok(text) => config.apply(&text, &path)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(Error::io("read the settings", &path)(e)),
        }
        Ok(config)
    }

    fn apply(&mut self, text: &str, path: &Path) -> Result<(), Error> {
        let bad = |reason: String| Error::BadSettings { path: path.to_owned(), reason };
        let file: File = toml::from_str(text).map_err(|e| bad(e.to_string()))?;
        if let Some(group) = file.group {
            self.group = group;
        }
        if let Some(addresses) = file.addresses {
            self.addresses = addresses;
        }
        if let Some(pin) = file.pin {
            self.pin = pin;
        }
        let terms = &mut self.terms;
        for (set, to) in [
            (file.lease, &mut terms.lease),
            (file.renew, &mut terms.renew),
            (file.margin, &mut terms.margin),
            (file.heartbeat, &mut terms.heartbeat),
            (file.sweep, &mut self.limits.sweep),
            (file.grace, &mut self.limits.grace),
            (file.grace_short, &mut self.limits.grace_short),
        ] {
            if let Some(span) = set {
                *to = span.0;
            }
        }
        if let Some(bytes) = file.log_size {
            self.limits.log_bytes = bytes.0;
        }
        if let Some(bytes) = file.keep_free {
            self.limits.keep_free = bytes.0;
        }
        if let Some(count) = file.finished {
            self.limits.finished = count;
        }
        self.check().map_err(bad)
    }

    /// What would make leases meaningless, or links that nobody can use; in a sentence.
    pub fn check(&self) -> Result<(), String> {
        let terms = &self.terms;
        if terms.renew.0 == 0 || terms.heartbeat.0 == 0 {
            return Err("renew and heartbeat must be more than 0".to_owned());
        }
        if terms.lease.0 < terms.renew.0.saturating_mul(2) {
            return Err("lease must be at least twice renew, or one lost message ends attempts".to_owned());
        }
        let limits = &self.limits;
        if limits.sweep.0 == 0 || limits.grace_short.0 == 0 || limits.grace < limits.grace_short {
            return Err(
                "sweep and grace_short must be more than 0, and grace at least grace_short".to_owned()
            );
        }
        if self.group.is_empty() || self.group.len() > 80 || self.group.chars().any(char::is_control) {
            return Err("group must have 1 to 80 printable characters".to_owned());
        }
        match self.addresses.iter().find(|a| !is_address(a)) {
            Some(address) => Err(format!("{address:?} is not host:port")),
            None => Ok(()),
        }
    }
}

fn is_address(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && !host.contains(['/', ' ']) && port.parse::<u16>().is_ok_and(|p| p > 0)
    })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    group: Option<String>,
    addresses: Option<Vec<String>>,
    pin: Option<bool>,
    lease: Option<Span>,
    renew: Option<Span>,
    margin: Option<Span>,
    heartbeat: Option<Span>,
    log_size: Option<Bytes>,
    keep_free: Option<Bytes>,
    sweep: Option<Span>,
    grace: Option<Span>,
    grace_short: Option<Span>,
    finished: Option<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_and_nonsense_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE_NAME);
        assert_eq!(Config::load(dir.path()).unwrap().terms, Terms::default());
        std::fs::write(&path, "group = \"vision lab\"\nlease = \"2 min\"\n").unwrap();
        let config = Config::load(dir.path()).unwrap();
        assert_eq!((config.group.as_str(), config.terms.lease), ("vision lab", Millis::from_secs(120)));
        for (text, word) in [
            ("leese = \"1 s\"", "leese"),
            ("lease = \"1 s\"", "twice"),
            ("addresses = [\"x\"]", "host:port"),
            ("grace = \"30 min\"", "grace_short"),
        ] {
            std::fs::write(&path, text).unwrap();
            let error = Config::load(dir.path()).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
