//! Tests of the provider half through its one door: events in, effects and changes out.

mod checkpoints;
mod egress;
mod flows;
mod leave;
mod left;
mod pause;
mod random;
mod refused;
mod restart;
mod rules;
mod told;
mod waiting;
mod wipe;
mod world;
