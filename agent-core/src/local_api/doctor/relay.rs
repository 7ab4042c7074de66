//! The relay as this machine reaches it, and the two clocks.

use gpunion_protocol::local::Finding;
use gpunion_protocol::problem::{Code, Problem};

use super::{Agent, Patient, bad, good, warning};
use crate::config::{Locked, clock};
use crate::relay_link::{LinkStatus, RelayClient};

/// A clock further off than this from the relay's is told; nothing depends on it but certificates.
const SKEW_MS: i64 = 120_000;

pub(super) async fn look(patient: &Patient) -> Vec<Finding> {
    const ABOUT: &str = "relay";
    if let Some(locked) = &patient.locked {
        return reached(locked).await;
    }
    let Some(member) = &patient.membership else {
        return vec![warning(
            ABOUT,
            "this machine belongs to no group",
            "ask for an invite link, then gpunion join LINK",
        )];
    };
    let group = &member.group.group;
    match member.client.seen().await {
        Ok(date) => {
            let mut found =
                vec![good(ABOUT, format!("the relay of {group} answers at {}", member.client.address()))];
            if let Agent::Runs(LinkStatus::Down { problem }) = &patient.agent {
                found.push(warning(
                    ABOUT,
                    format!("but the agent has no session: {problem}"),
                    "it goes on dialling; wait a minute",
                ));
            }
            found.extend(date.map(|date| skew(date, clock::wall().0)));
            found
        }
        Err(problem) => vec![missed(&member.client, problem).await],
    }
}

/// Without its token a device can still see whether the relay is there.
async fn reached(locked: &Locked) -> Vec<Finding> {
    const ABOUT: &str = "relay";
    let group = &locked.group.group;
    let client =
        locked.group.pin().and_then(|pin| RelayClient::new(locked.group.addresses.clone(), pin, None));
    let client = match client {
        Ok(client) => client,
        Err(error) => return vec![bad(ABOUT, format!("{error:#}"), locked.fix())],
    };
    match client.answers().await {
        Ok(date) => {
            let answers = good(ABOUT, format!("the relay of {group} answers at {}", client.address()));
            std::iter::once(answers).chain(date.map(|date| skew(date, clock::wall().0))).collect()
        }
        Err(problem) => vec![missed(&client, problem).await],
    }
}

/// Why a relay was not reached, and what somebody can do.
async fn missed(client: &RelayClient, problem: Problem) -> Finding {
    const ABOUT: &str = "relay";
    if problem.code == Code::Unauthorized {
        let fix =
            "this device was removed from the group: gpunion leave-group, then gpunion join with a new link";
        return bad(ABOUT, problem.to_string(), fix);
    }
    if let Some(address) = client.other_key().await {
        return bad(
            ABOUT,
            format!("{address} shows another key than the relay that this device joined"),
            "ask its operator: a relay that was moved needs its key.pem back (it is beside each backup). If it is a new relay: \
             gpunion leave-group, then gpunion join with its link",
        );
    }
    let (host, port) = client.address().rsplit_once(':').unwrap_or((client.address(), "7443"));
    let fix = format!(
        "look whether it can be reached: nc -vz {host} {port}; on its own machine it is started with gpunion relay serve"
    );
    bad(ABOUT, problem.to_string(), fix)
}

/// For people's eyes only: no decision compares clocks of two machines.
fn skew(relay_ms: i64, here_ms: i64) -> Finding {
    let off = here_ms - relay_ms;
    if off.abs() <= SKEW_MS {
        return good("clock", "agrees with the relay's");
    }
    let (secs, word) = (off.abs() / 1_000, if off > 0 { "ahead of" } else { "behind" });
    warning(
        "clock",
        format!("is {secs} s {word} the relay's"),
        "sudo timedatectl set-ntp true, on both machines",
    )
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::local::Grade;

    use super::*;

    #[test]
    fn a_wrong_clock_is_told() {
        assert_eq!(skew(0, SKEW_MS).grade, Grade::Good);
        assert!(skew(0, -600_000).what.contains("600 s behind"));
    }
}
