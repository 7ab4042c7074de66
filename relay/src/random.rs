//! Secrets and random parts of ids, from the system.
//!
//! Machines never call this: what is random comes to them inside an event.

use gpunion_protocol::problem::{Code, Problem};

pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], Problem> {
    let mut out = [0; N];
    getrandom::fill(&mut out).map_err(|e| {
        tracing::error!(error = %e, "the system gives no random bytes");
        Problem::new(Code::Internal, "the relay's system gives no random bytes")
    })?;
    Ok(out)
}
