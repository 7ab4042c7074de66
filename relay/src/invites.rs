//! Making an invite: a code that only the link has, and its hash for the broker.

use gpunion_protocol::http::{MadeInvite, NewInvite};
use gpunion_protocol::ids::InviteId;
use gpunion_protocol::invite::Invite;
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::time::{Millis, WallMs};

use crate::broker::{By, Digest, Event, Reply};
use crate::driver::Handle;
use crate::{clock, random};

/// An invite that is valid for longer is a standing key under somebody's door mat.
const VALID_MAX_S: u64 = 30 * 24 * 3600;

/// What stands in every link of this relay.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) addresses: Vec<String>,
    /// Absent: the certificate is that of a proxy, and devices trust it by their system's roots.
    pub(crate) pin: Option<[u8; 32]>,
    pub(crate) group: String,
}

/// The link is the only place where the code is ever written.
pub(crate) async fn make(
    handle: &Handle,
    link: &Link,
    by: By,
    wanted: NewInvite,
) -> Result<MadeInvite, Problem> {
    if wanted.valid_s == 0 || wanted.valid_s > VALID_MAX_S {
        return Err(Problem::new(Code::BadRequest, "valid_s must be from 1 to 2,592,000 (30 days)"));
    }
    let code = hex::encode(random::bytes::<16>()?);
    let now = clock::now().wall;
    let id = InviteId::new(now.0.unsigned_abs(), random::bytes()?);
    let valid = Millis::from_secs(wanted.valid_s);
    let expires = WallMs(now.0.saturating_add(valid.0.try_into().unwrap_or(i64::MAX)));
    let digest = Digest::of(code.as_bytes());
    let NewInvite { role, member, .. } = wanted;
    let reply = handle
        .call(|request| Event::NewInvite { request, by, invite: id, code: digest, role, member, expires })
        .await?;
    let Reply::Invited { id, expires } = reply else {
        return Err(Problem::new(Code::Internal, "the broker gave another answer than was asked for"));
    };
    let Link { addresses, pin, group } = link.clone();
    let link = Invite { code, addresses, pin, group }.to_string();
    Ok(MadeInvite { id, link, expires })
}
