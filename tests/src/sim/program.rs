//! The fake program: counts steps and keeps a running hash, so that a run that was interrupted
//! and resumed shows whether it lost, doubled or swapped anything.

use gpunion_protocol::guest::Exit;

/// What a workspace holds of a program: how far it came, and proof of the way there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) steps: u64,
    pub(super) hash: u64,
}

/// How the program ends, the same each time it is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Finishes,
    Exits {
        code: i32,
        at: u64,
    },
    IsSignalled {
        signal: i32,
        at: u64,
    },
    WantsTooMuchMemory {
        at: u64,
    },
    WantsTooMuchDisk {
        at: u64,
    },
    /// Its command is not in the image.
    NeverStarts,
    /// Fails at once when it is resumed from exactly this step: a checkpoint that holds, and that
    /// the program can't read.
    StumblesOver {
        at: u64,
    },
    /// No provider ever gets it to run.
    HasNoImage,
    HasNoInput,
}

/// What the program does when it is told that it must leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// It computes on.
    Ignores,
    Saves,
    /// It ends as if it had done what it had to do.
    Ends(Exit),
}

/// How a program fails that can't read its own checkpoint.
pub(super) const STUMBLED: i32 = 5;

#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) seed: u64,
    /// Saves until it is finished.
    pub(super) steps: u64,
    /// Milliseconds from one save to the next.
    pub(super) pace: u64,
    pub(super) says_saved: bool,
    pub(super) fate: Fate,
    pub(super) farewell: Farewell,
}

/// What happens when a program has come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    Computes,
    Exits { exit: Exit, memory_limit: bool },
    FillsDisk,
}

impl Program {
    pub(super) fn begin(&self) -> Content {
        Content { steps: 0, hash: self.seed }
    }

    /// One step further.
    pub(super) fn step(&self, from: Content) -> Content {
        let mixed = (from.hash ^ from.steps.wrapping_mul(0x9e37_79b9_7f4a_7c15)).rotate_left(23);
        Content { steps: from.steps + 1, hash: mixed.wrapping_mul(0xff51_afd7_ed55_8ccd) ^ self.seed }
    }

    /// What an undisturbed run has after so many steps.
    pub(super) fn undisturbed(&self, steps: u64) -> Content {
        (0..steps).fold(self.begin(), |content, _| self.step(content))
    }

    pub(super) fn next(&self, at: Content, begun_from: u64) -> Next {
        let exits = |exit, memory_limit| Next::Exits { exit, memory_limit };
        match self.fate {
            Fate::Exits { code, at: when } if at.steps >= when => exits(Exit::Code { code }, false),
            Fate::IsSignalled { signal, at: when } if at.steps >= when => {
                exits(Exit::Signal { signal }, false)
            }
            Fate::WantsTooMuchMemory { at: when } if at.steps >= when => {
                exits(Exit::Signal { signal: 9 }, true)
            }
            // It is seen when it is counted, and the program may be through by then.
            Fate::WantsTooMuchDisk { at: when } if (when..self.steps).contains(&at.steps) => Next::FillsDisk,
            Fate::StumblesOver { at: when } if at.steps == when && begun_from == when => {
                exits(Exit::Code { code: STUMBLED }, false)
            }
            _ if at.steps >= self.steps => exits(Exit::Code { code: 0 }, false),
            Fate::Finishes
            | Fate::Exits { .. }
            | Fate::IsSignalled { .. }
            | Fate::WantsTooMuchMemory { .. }
            | Fate::WantsTooMuchDisk { .. }
            | Fate::StumblesOver { .. }
            | Fate::HasNoImage
            | Fate::HasNoInput
            | Fate::NeverStarts => Next::Computes,
        }
    }
}
