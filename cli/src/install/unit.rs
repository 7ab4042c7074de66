//! The text of a systemd unit for the agent or the relay. Pure.
//!
//! Hardened as far as it breaks nothing. The agent reads members' folders, GPUs and /proc, and
//! NVIDIA's own library starts a set-user-id program (nvidia-modprobe) when the GPU's device files
//! are missing after a boot. A unit of a user can't make them beforehand, so it keeps that way open,
//! which rules out all that implies NoNewPrivileges; a system unit makes them as root first.

use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    Agent,
    Relay,
}

impl What {
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Agent => "gpunion-agent.service",
            Self::Relay => "gpunion-relay.service",
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Agent => "GPUnion agent: lends this machine's GPUs, sends and follows jobs",
            Self::Relay => "GPUnion relay of a group",
        }
    }
}

/// Whose unit it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Of the user who installs it.
    Mine,
    /// Of the system; runs as this user.
    System { user: String },
}

/// What both kinds bear in any scope.
const PLAIN: &[&str] = &["LimitCORE=0"];
/// The kernel's filters: nothing is mounted anew, so they work for a user's manager too.
const FILTERS: &[&str] = &[
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "RestrictNamespaces=yes",
    "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK",
    "SystemCallArchitectures=native",
];
/// Only where the system's manager sets it up. Not ProtectClock or PrivateDevices: they close
/// /dev/nvidia*. Not ProtectHome or PrivateTmp: members' folders, results and backups lie there.
const SYSTEM: &[&str] = &[
    "CapabilityBoundingSet=",
    "ProtectSystem=full",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
];
const RELAY_SYSTEM: &[&str] = &["PrivateDevices=yes", "ProtectClock=yes"];

/// `command` is the program and its arguments.
pub(crate) fn text(what: What, scope: &Scope, command: &[String]) -> String {
    let mut unit = format!("[Unit]\nDescription={}\n", what.description());
    if let Scope::System { .. } = scope {
        unit.push_str("Wants=network-online.target\nAfter=network-online.target");
        unit.push_str(if what == What::Agent { " docker.service\n" } else { "\n" });
    }
    // Whatever keeps it from starting may pass: it is tried for as long as the machine is up.
    unit.push_str("StartLimitIntervalSec=0\n\n[Service]\n");
    if let Scope::System { user } = scope {
        unit.push_str(&format!("User={user}\n"));
        if what == What::Agent {
            unit.push_str(
                "# Makes the GPUs' device files after a boot, where the driver has not; as root, before.\n",
            );
            unit.push_str("ExecStartPre=-+/usr/bin/nvidia-modprobe -c 0 -u\n");
        }
    }
    let words: Vec<String> = command.iter().map(|word| quoted(word)).collect();
    unit.push_str(&format!("ExecStart={}\n", words.join(" ")));
    if what == What::Relay {
        unit.push_str("# The first operator's invite link goes to stdout; the journal is no place for it.\nStandardOutput=null\n");
    }
    unit.push_str("Restart=always\nRestartSec=5\nTimeoutStopSec=15min\n");
    for line in hardening(what, scope) {
        unit.push_str(line);
        unit.push('\n');
    }
    let wanted_by = match scope {
        Scope::Mine => "default.target",
        Scope::System { .. } => "multi-user.target",
    };
    unit.push_str(&format!("\n[Install]\nWantedBy={wanted_by}\n"));
    unit
}

fn hardening(what: What, scope: &Scope) -> Vec<&'static str> {
    let system = matches!(scope, Scope::System { .. });
    let mut lines = PLAIN.to_vec();
    if system || what == What::Relay {
        lines.extend(FILTERS);
    }
    if system {
        lines.extend(SYSTEM);
    }
    if system && what == What::Relay {
        lines.extend(RELAY_SYSTEM);
    }
    lines
}

/// One word of a command, as systemd reads it.
fn quoted(word: &str) -> String {
    let mut text = String::with_capacity(word.len() + 2);
    for c in word.chars() {
        match c {
            '%' => text.push_str("%%"),
            '$' => text.push_str("$$"),
            '"' | '\\' => {
                text.push('\\');
                text.push(c);
            }
            other => text.push(other),
        }
    }
    let plain = !text.is_empty() && !text.contains([' ', '\t', '\'', '"', '\\', ';']);
    if plain { text } else { format!("\"{text}\"") }
}

/// For a cron table, where there is no systemd.
pub(crate) fn at_reboot(command: &[String], log: &Path) -> String {
    let words: Vec<String> =
        command.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    // A per cent sign ends a command there.
    format!("@reboot {} >>'{}' 2>&1", words.join(" "), log.display()).replace('%', "\\%")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> Vec<String> {
        ["/opt/my tools/gpunion", "agent", "100%", "$x"].map(str::to_owned).to_vec()
    }

    #[test]
    fn words_are_quoted_as_systemd_reads_them() {
        let unit = text(What::Agent, &Scope::Mine, &command());
        assert!(unit.contains("ExecStart=\"/opt/my tools/gpunion\" agent 100%% $$x\n"), "{unit}");
        assert_eq!(quoted("a\"b\\"), "\"a\\\"b\\\\\"");
        assert_eq!(
            at_reboot(&["a b".to_owned(), "100%".to_owned()], Path::new("/l")),
            "@reboot 'a b' '100\\%' >>'/l' 2>&1"
        );
    }

    #[test]
    fn f30_nothing_closes_the_gpus_to_the_agent() {
        let mine = text(What::Agent, &Scope::Mine, &command());
        let system = text(What::Agent, &Scope::System { user: "ada".to_owned() }, &command());
        for unit in [&mine, &system] {
            for closes in
                ["PrivateDevices", "DevicePolicy", "ProtectClock", "ProtectHome", "ProtectProc", "PrivateTmp"]
            {
                assert!(!unit.contains(closes), "{closes} in {unit}");
            }
        }
        // Without nvidia-modprobe run as root before, its set-user-id bit must go on to work.
        let implies = FILTERS.iter().any(|line| mine.contains(*line));
        assert!(!implies, "{mine}");
        assert!(
            system.contains("ExecStartPre=-+/usr/bin/nvidia-modprobe")
                && system.contains("NoNewPrivileges=yes")
        );
        assert!(system.contains("User=ada\n") && system.contains("WantedBy=multi-user.target"));
    }

    #[test]
    fn a_relay_is_closed_and_its_link_is_in_no_journal() {
        for scope in [Scope::Mine, Scope::System { user: "op".to_owned() }] {
            let unit = text(What::Relay, &scope, &command());
            assert!(
                unit.contains("NoNewPrivileges=yes\n") && unit.contains("StandardOutput=null\n"),
                "{unit}"
            );
        }
    }
}
