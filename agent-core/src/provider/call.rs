//! What the owner asks of the provider half, each with its answer's way back.

use gpunion_protocol::local::{PauseRequest, ReclaimRequest, ShareRequest, ShareStatus, Wiped};
use gpunion_protocol::problem::Problem;
use gpunion_protocol::receipt::{HistoryEntry, Receipt};
use gpunion_protocol::rules::{RulesRequest, RulesStatus};
use tokio::sync::oneshot;

use super::event::Zones;

/// A reclaim is answered twice: at once that somebody acts on it, and by its receipt.
#[derive(Debug)]
pub struct ReclaimAnswers {
    /// Not said when it is refused.
    pub taken: oneshot::Sender<()>,
    pub receipt: oneshot::Sender<Result<Receipt, Problem>>,
}

/// Sent over a bounded channel to the provider's driver.
#[derive(Debug)]
pub enum OwnerCall {
    Share(ShareRequest, oneshot::Sender<Result<ShareStatus, Problem>>),
    Pause(PauseRequest, oneshot::Sender<Result<ShareStatus, Problem>>),
    Rules(RulesRequest, Zones, oneshot::Sender<Result<RulesStatus, Problem>>),
    Wipe(oneshot::Sender<Result<Wiped, Problem>>),
    Reclaim(ReclaimRequest, ReclaimAnswers),
    History(oneshot::Sender<Vec<HistoryEntry>>),
}
