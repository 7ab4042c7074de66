//! Tests of the provider half through its one door: events in, effects and changes out.

mod ahead;
mod bounds;
mod checkpoints;
mod egress;
mod flows;
mod last;
mod leave;
mod left;
mod lent;
mod random;
mod reclaims;
mod refused;
mod restart;
mod states;
mod told;
mod waiting;
mod wakes;
mod world;
