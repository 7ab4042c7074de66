//! A thousand devices on one relay, by the product's own client and session.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gpunion_agent_core::config::{GroupFile, Identity, Membership, TokenStore};
use gpunion_agent_core::relay_link::RelayClient;
use gpunion_agent_core::relay_link::session::{self, LinkStatus};
use gpunion_protocol::http::{Join, NewInvite, Role};
use gpunion_protocol::invite::Invite;
use gpunion_protocol::job::Blob;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use zeroize::Zeroizing;

const PATIENCE: Duration = Duration::from_secs(60);

/// Joins by links; the first is the operator's.
pub(crate) async fn join_all(first: &str, count: usize) -> Result<Vec<Arc<Membership>>> {
    let operator = Arc::new(join(first, 0).await?);
    let mut all = vec![Arc::clone(&operator)];
    for n in 1..count {
        let invite = NewInvite { role: Role::Member, member: None, valid_s: 3600 };
        let made = operator.client.invite(&invite).await.map_err(told)?;
        all.push(Arc::new(join(&made.link, n).await?));
    }
    Ok(all)
}

async fn join(link: &str, n: usize) -> Result<Membership> {
    let invite: Invite = link.parse().ok().context("the relay's link")?;
    let mut identity = Identity::new()?;
    let client = RelayClient::new(invite.addresses.clone(), invite.pin, None)?;
    let join = Join {
        code: invite.code.clone(),
        member_name: format!("member {n}"),
        device_name: format!("device-{n}"),
        public_key: Blob(identity.secret.public().0.to_vec()),
    };
    let joined = client.join(&join).await.map_err(told)?;
    identity.token = Some(Zeroizing::new(joined.token.to_string()));
    let group = GroupFile {
        group: joined.group,
        member: joined.member,
        member_name: join.member_name,
        role: joined.role,
        device: joined.device,
        device_name: join.device_name,
        addresses: invite.addresses,
        pin: invite.pin.map(hex::encode),
        token_in: TokenStore::File,
        no_keyring: None,
    };
    Membership::assemble(group, identity)
}

/// Sessions of all of them, up until the token is cancelled; what the relay says is read.
pub(crate) async fn connect(
    all: &[Arc<Membership>],
    until: &CancellationToken,
) -> Result<Vec<watch::Receiver<LinkStatus>>> {
    let mut statuses = Vec::with_capacity(all.len());
    for membership in all {
        let (tell, follow) = watch::channel(Some(Arc::clone(membership)));
        let session = session::open(follow, "bench".to_owned(), until.clone());
        let mut status = session.status.clone();
        let until = until.clone();
        tokio::spawn(until.run_until_cancelled_owned(async move {
            let _member_for_ever = tell;
            // All of it: a session whose words nobody can say any more ends itself.
            let mut session = session;
            while session.incoming.recv().await.is_some() {}
        }));
        let up = status.wait_for(|status| *status == LinkStatus::Up);
        tokio::time::timeout(PATIENCE, up).await.context("a session in a minute")?.map(drop)?;
        statuses.push(status);
    }
    Ok(statuses)
}

/// What was measured was measured with all of them.
pub(crate) fn all_are_up(statuses: &[watch::Receiver<LinkStatus>]) -> Result<()> {
    let up = statuses.iter().filter(|status| *status.borrow() == LinkStatus::Up).count();
    ensure!(up == statuses.len(), "only {up} of {} sessions are up", statuses.len());
    Ok(())
}

pub(crate) fn told(problem: gpunion_protocol::problem::Problem) -> anyhow::Error {
    anyhow::anyhow!("{problem:?}")
}
