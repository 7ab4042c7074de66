//! The lab of real engines, and the simulated world.
pub mod campus;
pub mod interrupt;
pub mod lab;
pub mod sim;
