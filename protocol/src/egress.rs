//! Egress: the names that a job asks to reach, what an owner allows, and what was contacted.
//!
//! Names only. An address, a URL or a wildcard for everything is refused when the spec is read,
//! with the sentence here; what a name resolves to is the provider's business at each request.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::WallMs;

/// A spec, and an owner's list, names at most so many.
pub const NAMES_MAX: usize = 64;
const WEB: [u16; 2] = [80, 443];

/// `github.com`, `*.githubusercontent.com`, `pypi.example.org:8443`. Without a port: 80 and 443.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EgressName {
    /// Every name below, at any depth, and not the name itself.
    below: bool,
    /// In small letters, without a dot at the end.
    name: String,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(String);

impl EgressName {
    pub fn matches(&self, host: &str, port: u16) -> bool {
        self.port.map_or(WEB.contains(&port), |own| own == port) && self.has_host(host)
    }

    fn has_host(&self, host: &str) -> bool {
        match host.strip_suffix(&self.name) {
            Some("") => !self.below,
            Some(more) => self.below && more.ends_with('.'),
            None => false,
        }
    }

    /// Whatever the other one matches, this one does too.
    pub fn covers(&self, other: &Self) -> bool {
        let port = match (self.port, other.port) {
            (None, None) => true,
            (None, Some(port)) => WEB.contains(&port),
            (Some(own), other) => Some(own) == other,
        };
        let same = self.below == other.below && self.name == other.name;
        port && (same || (self.below && self.has_host(&other.name)))
    }
}

impl fmt::Display for EgressName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", if self.below { "*." } else { "" }, self.name)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl FromStr for EgressName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let bad = |reason: &str| Err(BadName(format!("{text:?} {reason}")));
        if text.contains("://") || text.contains('/') {
            return bad("is a URL; name the host alone, such as github.com");
        }
        if text.starts_with('[') || text.matches(':').count() > 1 {
            return bad("is an address; only names are allowed, since addresses change hands");
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => match port.parse::<u16>() {
                Ok(port) if port > 0 => (host, Some(port)),
                Ok(_) | Err(_) => return bad("has no port from 1 to 65535 after the colon"),
            },
            None => (text, None),
        };
        let (below, host) = host.strip_prefix("*.").map_or((false, host), |rest| (true, rest));
        if host == "*" || host.is_empty() || (below && !host.contains('.')) {
            return bad("would allow everything; name the hosts, or *.name with two parts or more");
        }
        if host.contains('*') {
            return bad("has its wildcard in an odd place; only *.name is understood");
        }
        match host_name(host) {
            Ok(name) => Ok(Self { below, name, port }),
            Err(reason) => bad(reason),
        }
    }
}

/// A host's name in the form that is compared: small letters, no dot at the end. Refuses what some
/// resolver would take for an address.
pub fn host_name(text: &str) -> Result<String, &'static str> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let labels: Vec<&str> = name.split('.').collect();
    if !name.is_ascii() {
        return Err("is not in ASCII; write it as browsers send it (xn--…)");
    }
    let plain = |label: &&str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.is_empty() || name.len() > 253 || !labels.iter().all(plain) {
        return Err("is not the name of a host");
    }
    let last = labels.last().copied().unwrap_or_default();
    if last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") {
        return Err("is an address; only names are allowed, since addresses change hands");
    }
    if labels.len() < 2 {
        return Err("is a name inside some network; write it in full, such as github.com");
    }
    Ok(name)
}

impl Serialize for EgressName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EgressName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

/// What an owner allows guests to reach: `"off"`, `"asked"` (whatever a job's spec names), or a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EgressRule {
    #[default]
    Off,
    Asked,
    /// What the spec names and this list has too.
    Names(Vec<EgressName>),
}

impl EgressRule {
    pub fn allows(&self, asked: &EgressName) -> bool {
        match self {
            Self::Off => false,
            Self::Asked => true,
            Self::Names(names) => names.iter().any(|name| name.covers(asked)),
        }
    }

    pub fn allows_host(&self, host: &str, port: u16) -> bool {
        match self {
            Self::Off => false,
            Self::Asked => true,
            Self::Names(names) => names.iter().any(|name| name.matches(host, port)),
        }
    }

    /// The first of these that is not allowed whole.
    pub fn missing<'a>(&self, asked: &'a [EgressName]) -> Option<&'a EgressName> {
        asked.iter().find(|name| !self.allows(name))
    }
}

impl fmt::Display for EgressRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Asked => f.write_str("asked"),
            Self::Names(names) => {
                let names: Vec<String> = names.iter().map(ToString::to_string).collect();
                f.write_str(&names.join(","))
            }
        }
    }
}

impl FromStr for EgressRule {
    type Err = BadName;

    /// `off`, `asked`, or names with commas between.
    fn from_str(text: &str) -> Result<Self, BadName> {
        match text {
            "off" => Ok(Self::Off),
            "asked" => Ok(Self::Asked),
            list => list.split(',').map(|name| name.trim().parse()).collect::<Result<_, _>>().and_then(names),
        }
    }
}

fn names(list: Vec<EgressName>) -> Result<EgressRule, BadName> {
    if list.is_empty() {
        return Ok(EgressRule::Off);
    }
    if list.len() > NAMES_MAX {
        return Err(BadName(format!("{} names are too many; {NAMES_MAX} are the most", list.len())));
    }
    Ok(EgressRule::Names(list))
}

impl Serialize for EgressRule {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off | Self::Asked => to.collect_str(self),
            Self::Names(names) => names.serialize(to),
        }
    }
}

impl<'de> Deserialize<'de> for EgressRule {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        use serde::de::Error as _;

        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Word(String),
            List(Vec<String>),
        }
        match Written::deserialize(from)? {
            Written::Word(word) if word == "off" => Ok(Self::Off),
            Written::Word(word) if word == "asked" => Ok(Self::Asked),
            Written::Word(word) => {
                let hint = "is neither \"off\" nor \"asked\" nor a list of names";
                Err(D::Error::custom(format!("{word:?} {hint}")))
            }
            Written::List(list) => list
                .iter()
                .map(|name| name.parse())
                .collect::<Result<_, _>>()
                .and_then(names)
                .map_err(D::Error::custom),
        }
    }
}

/// What a guest contacted, or tried to: the owner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Contacts {
    /// The first ones of each kind, bounded; in order of name and port.
    pub list: Vec<Contact>,
    /// Contacts to further destinations than the list has room for.
    #[serde(default)]
    pub left_out: u64,
    /// Bytes to and from all destinations, also those that were left out.
    #[serde(default)]
    pub up: u64,
    #[serde(default)]
    pub down: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contact {
    pub name: String,
    pub port: u16,
    /// Bytes that the guest sent there, and that came from there.
    pub up: u64,
    pub down: u64,
    /// How often it was connected, or refused.
    pub times: u64,
    pub first: WallMs,
    pub last: WallMs,
    /// Why it was refused, in a sentence; absent when it was let through.
    #[serde(default)]
    pub refused: Option<String>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> EgressName {
        text.parse().unwrap()
    }

    #[test]
    fn names_are_read_and_everything_else_is_refused_with_its_reason() {
        for text in ["github.com", "*.githubusercontent.com", "a.b-c.example:8443", "xn--bcher-kva.example"] {
            assert_eq!(name(text).to_string(), text);
        }
        assert_eq!(name("GitHub.COM."), name("github.com"));
        for (text, reason) in [
            ("https://github.com", "URL"),
            ("github.com/owner", "URL"),
            ("10.0.0.1", "address"),
            ("127.1", "address"),
            ("2130706433", "address"),
            ("0x7f.0x1", "address"),
            ("1.2.3.4:80", "address"),
            ("[::1]", "address"),
            ("fe80::1", "address"),
            ("*", "everything"),
            ("*.com", "everything"),
            ("*.", "everything"),
            ("", "everything"),
            ("git*.com", "odd place"),
            ("*.*.com", "odd place"),
            ("localhost", "in full"),
            ("github.com:0", "port"),
            ("github.com:http", "port"),
            ("bücher.example", "xn--"),
            ("-a.com", "not the name"),
            ("a..com", "not the name"),
            ("a b.com", "not the name"),
        ] {
            let error = text.parse::<EgressName>().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_name_without_a_port_means_the_web_and_one_with_a_port_that_alone() {
        assert!(name("a.org").matches("a.org", 443) && name("a.org").matches("a.org", 80));
        assert!(!name("a.org").matches("a.org", 22) && !name("a.org").matches("b.a.org", 443));
        assert!(name("a.org:22").matches("a.org", 22) && !name("a.org:22").matches("a.org", 443));
        assert!(name("*.a.org").matches("c.b.a.org", 443));
        assert!(!name("*.a.org").matches("a.org", 443) && !name("*.a.org").matches("eva.org", 443));
        assert!(!name("a.org").matches("eva.org", 443));
    }

    #[test]
    fn a_rule_reads_back_and_names_what_is_no_rule() {
        for text in ["off", "asked", "github.com,*.pypi.org:443"] {
            let rule: EgressRule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            let json = serde_json::to_string(&rule).unwrap();
            assert_eq!(serde_json::from_str::<EgressRule>(&json).unwrap(), rule, "{json}");
        }
        let error = serde_json::from_str::<EgressRule>("\"on\"").unwrap_err().to_string();
        assert!(error.contains("neither"), "{error}");
        assert!(serde_json::from_str::<EgressRule>("[\"10.0.0.1\"]").is_err());
        assert_eq!(serde_json::from_str::<EgressRule>("[]").unwrap(), EgressRule::Off);
        let asked = [name("github.com"), name("pypi.org")];
        assert_eq!(EgressRule::Off.missing(&asked), Some(&asked[0]));
        assert_eq!(EgressRule::Asked.missing(&asked), None);
        assert_eq!("github.com".parse::<EgressRule>().unwrap().missing(&asked), Some(&asked[1]));
    }

    fn some_name() -> impl Strategy<Value = EgressName> {
        let port = prop_oneof![Just(None), Just(Some(80)), Just(Some(443)), Just(Some(22))];
        (any::<bool>(), "(a\\.|b\\.|ab\\.){1,3}(org|a)", port).prop_map(|(below, name, port)| EgressName {
            below,
            name,
            port,
        })
    }

    proptest! {
        #[test]
        fn what_covers_matches_all_that_the_other_matches(
            wide in some_name(),
            narrow in some_name(),
            host in "(a\\.|b\\.|ab\\.){1,4}(org|a)",
            port in prop_oneof![Just(80u16), Just(443), Just(22)],
        ) {
            if wide.covers(&narrow) && narrow.matches(&host, port) {
                prop_assert!(wide.matches(&host, port), "{} covers {}, not {}:{}", wide, narrow, host, port);
            }
            prop_assert!(wide.covers(&wide));
        }

        #[test]
        fn no_text_panics_and_what_is_read_reads_back(text in ".{0,80}") {
            if let Ok(name) = text.parse::<EgressName>() {
                prop_assert_eq!(name.to_string().parse::<EgressName>().unwrap(), name);
            }
            let _ = text.parse::<EgressRule>();
        }
    }
}
