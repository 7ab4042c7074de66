//! What a world was made of, in numbers.

use std::collections::BTreeMap;

use gpunion_agent_core::provider::effect::Operation;
use gpunion_relay::broker::record::JobEnd;
use serde::Serialize;

/// Where a machine's driver can be killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Crash {
    BetweenUrgent,
    BeforeCommit,
    AfterCommit,
    BetweenEffects,
}

impl Crash {
    const fn word(self) -> &'static str {
        match self {
            Self::BetweenUrgent => "before an urgent effect",
            Self::BeforeCommit => "before the commit",
            Self::AfterCommit => "after the commit",
            Self::BetweenEffects => "between effects",
        }
    }
}

#[derive(Debug, Default, Clone, Serialize)]
pub struct Stats {
    pub steps: u64,
    pub virtual_seconds: u64,
    pub jobs: u64,
    /// Jobs by their end.
    pub ended: BTreeMap<&'static str, u64>,
    pub held: u64,
    pub attempts: u64,
    pub guests: u64,
    pub program_steps: u64,
    pub agent_crashes: u64,
    pub relay_crashes: u64,
    pub reboots: u64,
    pub engine_outages: u64,
    pub guests_killed: u64,
    pub deaf_inits: u64,
    /// Guests of such that were ended through their cgroup.
    pub second_ways: u64,
    pub sessions: u64,
    pub cuts: u64,
    pub doubled: u64,
    pub lost: u64,
    pub reordered: u64,
    pub sleeps: u64,
    pub hangs: u64,
    pub ambushes: u64,
    pub leavings: u64,
    /// Guests whose owner stopped lending under them.
    pub told_to_leave: u64,
    /// Agents that were told to stop, and did.
    pub stops: u64,
    pub revoked: u64,
    /// Providers where nothing started.
    pub put_aside: u64,
    /// Guests with egress that stood still because their lease was over.
    pub leases_over: u64,
    pub commits_failed: u64,
    pub batches: u64,
    pub restores: u64,
    /// Snapshots that were wanted after a sweep.
    pub swept: u64,
    /// Kills of agents and of the relay, by the point of the driver.
    pub crashes: BTreeMap<String, u64>,
    pub reclaims: u64,
    pub reclaims_by_hand: u64,
    pub receipts: u64,
    pub receipts_verified: u64,
    /// Operations that were answered, by kind.
    pub operations: BTreeMap<&'static str, u64>,
    pub operations_in_trouble: u64,
    /// What guests computed, and what of it was lost at moves: milliseconds of the world.
    pub work_done_ms: u64,
    pub work_lost_ms: u64,
    pub moves: u64,
    /// Moves whose cost, as it was told, was held against the work that was lost.
    pub moves_checked: u64,
    /// Moves after a notice during which nothing was amiss: no step was lost.
    pub left_in_peace: u64,
}

impl Stats {
    pub(super) fn count_operation(&mut self, what: Operation, worked: bool) {
        let word = match what {
            Operation::Image => "image",
            Operation::Stage => "stage",
            Operation::Create => "create",
            Operation::Start => "start",
            Operation::PassOne => "pass one",
            Operation::PassTwo => "pass two",
            Operation::Whole => "whole",
            Operation::Upload { .. } => "upload",
            Operation::Clean => "clean",
        };
        if worked {
            *self.operations.entry(word).or_default() += 1;
        } else {
            self.operations_in_trouble += 1;
        }
    }

    pub(super) fn crash(&mut self, whose: &str, point: Crash) {
        *self.crashes.entry(format!("{whose} {}", point.word())).or_default() += 1;
    }

    pub(super) fn count_end(&mut self, end: Option<&JobEnd>) {
        let word = match end {
            Some(JobEnd::Succeeded) => "succeeded",
            Some(JobEnd::Failed { .. }) => "failed",
            Some(JobEnd::Cancelled) => "cancelled",
            None => "unfinished",
        };
        *self.ended.entry(word).or_default() += 1;
    }

    /// The sum of both.
    pub fn add(&mut self, other: &Self) {
        let Self {
            steps,
            virtual_seconds,
            jobs,
            ended,
            held,
            attempts,
            guests,
            program_steps,
            agent_crashes,
            relay_crashes,
            reboots,
            engine_outages,
            guests_killed,
            deaf_inits,
            second_ways,
            sessions,
            cuts,
            doubled,
            lost,
            reordered,
            sleeps,
            hangs,
            ambushes,
            leavings,
            told_to_leave,
            stops,
            revoked,
            put_aside,
            leases_over,
            commits_failed,
            batches,
            restores,
            swept,
            crashes,
            reclaims,
            reclaims_by_hand,
            receipts,
            receipts_verified,
            operations,
            operations_in_trouble,
            work_done_ms,
            work_lost_ms,
            moves,
            moves_checked,
            left_in_peace,
        } = other;
        self.work_done_ms += work_done_ms;
        self.work_lost_ms += work_lost_ms;
        self.moves += moves;
        self.moves_checked += moves_checked;
        self.left_in_peace += left_in_peace;
        self.steps += steps;
        self.virtual_seconds += virtual_seconds;
        self.jobs += jobs;
        self.held += held;
        self.attempts += attempts;
        self.guests += guests;
        self.program_steps += program_steps;
        self.agent_crashes += agent_crashes;
        self.relay_crashes += relay_crashes;
        self.reboots += reboots;
        self.engine_outages += engine_outages;
        self.guests_killed += guests_killed;
        self.deaf_inits += deaf_inits;
        self.second_ways += second_ways;
        self.sessions += sessions;
        self.cuts += cuts;
        self.doubled += doubled;
        self.lost += lost;
        self.reordered += reordered;
        self.sleeps += sleeps;
        self.hangs += hangs;
        self.ambushes += ambushes;
        self.leavings += leavings;
        self.told_to_leave += told_to_leave;
        self.stops += stops;
        self.revoked += revoked;
        self.put_aside += put_aside;
        self.leases_over += leases_over;
        self.commits_failed += commits_failed;
        self.batches += batches;
        self.restores += restores;
        self.swept += swept;
        for (point, count) in crashes {
            *self.crashes.entry(point.clone()).or_default() += count;
        }
        self.reclaims += reclaims;
        self.reclaims_by_hand += reclaims_by_hand;
        self.receipts += receipts;
        self.receipts_verified += receipts_verified;
        self.operations_in_trouble += operations_in_trouble;
        for (word, count) in ended {
            *self.ended.entry(word).or_default() += count;
        }
        for (word, count) in operations {
            *self.operations.entry(word).or_default() += count;
        }
    }
}
