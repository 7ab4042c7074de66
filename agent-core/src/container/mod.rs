//! The container engine, through its API.
//!
//! Everything here is asked of the engine as an ordinary user of its socket and only about what
//! carries this device's label: another container, volume or image is never touched (F02). No
//! call waits for ever. It decides nothing about attempts; the provider's machine does. Plans
//! and parsers are pure and lie apart from the calls that carry them out.

mod archive;
mod calls;
pub mod cgroup;
pub mod command;
mod error;
mod facts;
mod guest;
mod helper;
mod image;
pub mod labels;
pub mod limits;
mod plan;
mod reference;
mod second_way;
mod space;
mod uid;
mod volume;

pub use calls::Engine;
pub use error::EngineError;
pub use facts::{EngineFacts, GpuWay, Trouble};
pub use guest::{GuestState, Ours};
pub use helper::{Aside, HelperEnd, HelperImage, HelperSession};
pub use image::{ImageConfig, LocalImage, PullProgress, Pulled};
pub use labels::Kind;
pub use plan::{DataMount, GuestPlan, PIDS, STANDIN_DIR};
pub use reference::by_digest;
pub use second_way::SecondWayPlan;
pub use space::free_space;
pub use uid::guest_uid;
pub use volume::OurVolume;
