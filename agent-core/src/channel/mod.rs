//! The agent's end of the control channel of each guest.
//!
//! The owner's way to stop and end a guest goes over it, so it waits for nobody: not for the
//! container engine, a disk, the relay or the async runtime. Each guest's channel has a thread of
//! its own, and a word is written straight onto the socket by whoever says it. Whoever connects is
//! believed only when the kernel says that it is the first process of the expected container.

mod control_dir;
mod error;
mod handle;
mod link;
mod peer;
mod ring;
mod thread;
mod watched;

#[cfg(test)]
mod tests;

pub use control_dir::{ControlDir, write_end_file};
pub use error::ChannelError;
pub use handle::Channel;
pub use link::{Heard, What};
pub use peer::Peer;
pub use ring::{Ring, RingRead, RingReader};
pub use watched::{Watched, identify};
