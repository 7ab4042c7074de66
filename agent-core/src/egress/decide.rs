//! Whether a guest may reach what it asks for. Pure.
//!
//! First the name, by what the job's spec asked for and what the owner allows; then every address
//! that the name has now. One that is not public refuses all of them: a name that answers with a
//! public and a private address is no honest one.

use std::net::IpAddr;

use gpunion_protocol::egress::{EgressName, EgressRule, host_name};

use super::address::not_public;

/// So many addresses of a name are tried, one after the other.
const TRIED: usize = 4;

/// Both lists must have a name.
#[derive(Debug, Clone)]
pub(super) struct Policy {
    pub(super) asked: Vec<EgressName>,
    pub(super) rule: EgressRule,
}

/// Why not; its text is what the member's program and the owner are told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// What was asked for is not quoted: it may be anything.
    #[error("{0}")]
    NoName(String),
    #[error("{name}:{port} is not in this job's [network] egress; name it there")]
    NotAsked { name: String, port: u16 },
    #[error("the owner of this machine does not let jobs reach {name}:{port}")]
    NotAllowed { name: String, port: u16 },
    #[error("{name} has no address")]
    NoAddress { name: String },
    #[error("{name} leads to {address}, {kind}; only public addresses are reached")]
    NotPublic { name: String, address: IpAddr, kind: &'static str },
    #[error("the lease of this job has run out on this machine; it reaches nothing until it is renewed")]
    LeaseOver,
}

impl Policy {
    /// The host's name in its plain form, when it may be looked up at all.
    pub(super) fn judge_name(&self, host: &str, port: u16) -> Result<String, Refusal> {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            let reason = format!("{address} is an address; only the names in [network] egress are reached");
            return Err(Refusal::NoName(reason));
        }
        let name = host_name(host).map_err(|reason| {
            let shown: String = host.chars().filter(char::is_ascii_graphic).take(60).collect();
            Refusal::NoName(format!("{shown} {reason}"))
        })?;
        if !self.asked.iter().any(|asked| asked.matches(&name, port)) {
            return Err(Refusal::NotAsked { name, port });
        }
        if !self.rule.allows_host(&name, port) {
            return Err(Refusal::NotAllowed { name, port });
        }
        Ok(name)
    }
}

/// The addresses to connect to, in this order; the very ones, since another look-up may have
/// another answer.
pub(super) fn judge_addresses(name: &str, found: &[IpAddr], own: &[IpAddr]) -> Result<Vec<IpAddr>, Refusal> {
    let name = name.to_owned();
    let bad = found.iter().find_map(|address| Some((*address, not_public(*address, own)?)));
    if let Some((address, kind)) = bad {
        return Err(Refusal::NotPublic { name, address, kind });
    }
    let mut good: Vec<IpAddr> = Vec::new();
    for address in found {
        if good.len() < TRIED && !good.contains(address) {
            good.push(*address);
        }
    }
    if good.is_empty() { Err(Refusal::NoAddress { name }) } else { Ok(good) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn policy(asked: &[&str], rule: &str) -> Policy {
        Policy {
            asked: asked.iter().map(|name| name.parse().unwrap()).collect(),
            rule: rule.parse().unwrap(),
        }
    }

    #[test]
    fn a_name_must_be_asked_for_and_allowed() {
        let policy = policy(&["github.com", "pypi.org:8443"], "github.com,example.org");
        assert_eq!(policy.judge_name("GitHub.com.", 443).unwrap(), "github.com");
        let not_asked = policy.judge_name("example.org", 443).unwrap_err();
        assert!(matches!(not_asked, Refusal::NotAsked { .. }) && not_asked.to_string().contains("[network]"));
        let not_allowed = policy.judge_name("pypi.org", 8443).unwrap_err();
        assert!(matches!(not_allowed, Refusal::NotAllowed { .. }), "{not_allowed}");
        assert!(matches!(policy.judge_name("github.com", 22), Err(Refusal::NotAsked { .. })));
        for address in ["10.0.0.1", "[::1]", "127.1", "2130706433", "0x7f.1", "93.184.216.34"] {
            let refusal = policy.judge_name(address, 443).unwrap_err();
            assert!(refusal.to_string().contains("address"), "{refusal}");
        }
    }

    #[test]
    fn one_address_near_the_owner_refuses_all() {
        let found: Vec<IpAddr> = vec!["93.184.216.34".parse().unwrap(), "10.0.0.1".parse().unwrap()];
        let refusal = judge_addresses("a.org", &found, &[]).unwrap_err();
        assert!(refusal.to_string().contains("10.0.0.1, a private address"), "{refusal}");
        assert_eq!(judge_addresses("a.org", &found[..1], &[]).unwrap(), found[..1]);
        assert!(matches!(judge_addresses("a.org", &found[..1], &found), Err(Refusal::NotPublic { .. })));
        assert!(matches!(judge_addresses("a.org", &[], &[]), Err(Refusal::NoAddress { .. })));
    }

    proptest! {
        #[test]
        fn what_is_reached_is_public_and_was_found(found in proptest::collection::vec(any::<IpAddr>(), 0..12)) {
            match judge_addresses("a.org", &found, &[]) {
                Ok(good) => {
                    prop_assert!(!good.is_empty() && good.len() <= TRIED);
                    prop_assert!(good.iter().all(|a| found.contains(a) && not_public(*a, &[]).is_none()));
                    prop_assert!(found.iter().all(|a| not_public(*a, &[]).is_none()));
                }
                Err(Refusal::NoAddress { .. }) => prop_assert!(found.is_empty()),
                Err(_) => prop_assert!(found.iter().any(|a| not_public(*a, &[]).is_some())),
            }
        }

        #[test]
        fn no_host_panics_and_none_gets_through_that_neither_list_has(host in "\\PC{0,80}", port in any::<u16>()) {
            let policy = policy(&["*.a.org"], "*.a.org");
            if let Ok(name) = policy.judge_name(&host, port) {
                prop_assert!(name.ends_with(".a.org") && matches!(port, 80 | 443));
            }
        }
    }
}
