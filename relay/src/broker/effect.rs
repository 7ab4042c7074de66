//! All that the broker wants done. Each may be done twice without harm, and any may get lost:
//! what must arrive is said again until it is answered.

use gpunion_protocol::http::{Event as Told, Role, Submitted};
use gpunion_protocol::ids::{DeviceId, InviteId, JobId, MemberId};
use gpunion_protocol::job::JobState;
use gpunion_protocol::problem::Problem;
use gpunion_protocol::session::ToAgent;
use gpunion_protocol::time::WallMs;

use super::event::RequestId;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// To the device's present session; dropped when there is none.
    Send {
        device: DeviceId,
        message: ToAgent,
    },
    Reply {
        request: RequestId,
        result: Result<Reply, Problem>,
    },
    Announce {
        event: Told,
        audience: Audience,
    },
    /// The job is forgotten: what is kept of it outside the broker's records goes too.
    Forget {
        job: JobId,
    },
    /// End the device's session, after what was sent to it; `why` is one sentence.
    Disconnect {
        device: DeviceId,
        why: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Invited {
        id: InviteId,
        expires: WallMs,
    },
    Joined {
        member: MemberId,
        member_name: String,
        role: Role,
        device: DeviceId,
    },
    Submitted(Submitted),
    /// The state after the call.
    State(JobState),
    Done,
}

/// Who is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audience {
    Everybody,
    /// This member, and all operators.
    Member(MemberId),
}
