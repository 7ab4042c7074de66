//! All that can happen to the broker. Ids, hashes and times come in from outside: the broker has
//! no randomness and no clock.

use gpunion_protocol::http::{Role, Submit};
use gpunion_protocol::ids::{DeviceId, InviteId, JobId, MemberId};
use gpunion_protocol::job::Blob;
use gpunion_protocol::session::ToRelay;
use gpunion_protocol::time::WallMs;

use super::record::Digest;

/// Names a call that waits for its `Effect::Reply`; chosen by the driver, never saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// Names one WebSocket session; chosen by the driver, never twice in one run of the relay. What
/// comes late from a session that another one replaced is thus known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// Whoever has the relay's own machine: first start, `gpunion relay invite`.
    Relay,
    Member(MemberId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Answered by `Reply::Invited`.
    NewInvite {
        request: RequestId,
        by: By,
        invite: InviteId,
        code: Digest,
        role: Role,
        /// For another device of this member; absent: a new member.
        member: Option<MemberId>,
        expires: WallMs,
    },
    /// Answered by `Reply::Joined`. `member` is taken only when the invite is for a new member.
    Redeem {
        request: RequestId,
        code: Digest,
        member_name: String,
        device_name: String,
        public_key: Blob,
        member: MemberId,
        device: DeviceId,
        token: Digest,
    },
    /// Answered by `Reply::Done`, as is the next.
    RemoveMember {
        request: RequestId,
        by: By,
        member: MemberId,
    },
    RevokeDevice {
        request: RequestId,
        by: By,
        device: DeviceId,
    },
    /// A session of an authenticated device began. It replaces one that is still there.
    Connected {
        device: DeviceId,
        session: SessionId,
    },
    Disconnected {
        device: DeviceId,
        session: SessionId,
    },
    /// A message of a device. Before a `Publish` or a result is passed in, the driver has seen that
    /// the manifest and all its packs are in the store.
    From {
        device: DeviceId,
        session: SessionId,
        message: ToRelay,
    },
    /// Answered by `Reply::Submitted`. The driver has seen that input, data and layers are here.
    Submit {
        request: RequestId,
        member: MemberId,
        key: String,
        body: Digest,
        submit: Box<Submit>,
    },
    /// Answered by `Reply::State`.
    Cancel {
        request: RequestId,
        by: MemberId,
        job: JobId,
    },
    /// The relay itself stood still (a slow disk, a machine that slept) for longer than agents wait
    /// between renewals. What they said meanwhile comes after this.
    StoodStill,
    /// The instant of `poll_timeout` has come.
    Timeout,
}
