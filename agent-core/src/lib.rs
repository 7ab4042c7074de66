//! The agent: lends this machine's GPUs, runs guests, gives the GPUs back; submits and follows
//! jobs. Headless: it knows no window, and it does not know the relay's insides.

pub mod agent;
pub mod channel;
pub mod config;
pub mod consumer;
pub mod container;
pub mod driver;
pub mod egress;
pub mod gpu;
pub mod local_api;
pub mod provider;
pub mod relay_link;
pub mod rules;
pub mod second_way;
