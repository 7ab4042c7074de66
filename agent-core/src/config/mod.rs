//! Where the agent keeps what, its settings, and its identity in the group.
//!
//! Reads and writes its own small files and nothing else. No decision is made here.

pub mod clock;
pub mod dirs;
pub mod files;
pub mod identity;
pub mod lock;
pub mod membership;
pub mod past_cache;
pub mod power_supply;
pub mod settings;

pub use dirs::Dirs;
pub use identity::{Identity, TokenStore};
pub use membership::{Found, GroupFile, Locked, Membership};
pub use settings::Settings;
