//! The engine as a whole, seen from the driver: does it answer, what of ours is there, what of ours
//! must go. Its silence is told as silence; only a list that it gave says that something is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use gpunion_protocol::ids::AttemptRef;
use gpunion_protocol::units::Bytes;
use tokio_util::sync::CancellationToken;

use super::operations::{Operations, remove_tree};
use super::workspace::folder;
use crate::container::{EngineError, Kind, free_space};
use crate::provider::event::{Engine as EngineEvent, Event, Found, Inventory};
use crate::provider::record::attempt_of_key;

/// How often a silent engine is asked again, and one that answers.
pub(super) const ASK_SILENT: Duration = Duration::from_secs(2);
const ASK_WELL: Duration = Duration::from_secs(10);

impl Operations {
    /// Asks the engine for the agent's life how it is, and tells the machine.
    pub fn watch_engine(&self) {
        self.keep_second_way();
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                let gpus: Vec<_> = this.gpus.view().gpus.into_keys().collect();
                let (event, wait) = match this.fixed.engine.probe(&gpus, this.fixed.standin.as_deref()).await
                {
                    Ok(facts) => {
                        let event = EngineEvent::Known {
                            architecture: facts.architecture.clone(),
                            cpus: facts.cpus,
                            memory: Bytes(facts.memory),
                            disk: Bytes(free_space(&facts.root).unwrap_or(0)),
                            blocked: facts
                                .troubles
                                .iter()
                                .find(|trouble| trouble.blocks)
                                .map(|trouble| format!("{}; {}", trouble.what, trouble.fix)),
                        };
                        this.facts.send_replace(Some(facts));
                        (event, ASK_WELL)
                    }
                    Err(error) => (EngineEvent::Unknown { why: error.to_string() }, ASK_SILENT),
                };
                if this.events.send(Event::Engine(event)).await.is_err() {
                    return;
                }
                tokio::time::sleep(wait).await;
            }
        });
    }

    /// The engine's kill, and its word on whether anything is left.
    pub fn engine_kill(&self, attempt: &AttemptRef) {
        let (this, attempt) = (self.clone(), attempt.clone());
        tokio::spawn(async move {
            let engine = &this.fixed.engine;
            let name = crate::container::labels::guest_name(engine.device(), &attempt);
            if let Err(error) = engine.kill_guest(&name).await {
                tracing::warn!(%attempt, "{error}");
                return;
            }
            let gone = match engine.inspect_guest(&name).await {
                Ok(found) => found.is_none_or(|state| !state.running),
                Err(_) => false,
            };
            if gone {
                let _ = this.events.send(Event::GuestGone { attempt, memory_limit: false }).await;
            }
        });
    }

    pub fn remove_container(&self, container: String) {
        let this = self.clone();
        tokio::spawn(async move {
            if let Err(error) = this.fixed.engine.remove_guest(&container).await {
                tracing::warn!(%container, "{error}");
            }
        });
    }

    /// Lists what carries our label; one list at a time, the newest that was asked for. Helpers of
    /// an earlier run go at once, nobody talks to them; what else may stay the machine decides, by
    /// the books as they are when it has the list (F78).
    pub fn list_ours(&self) {
        let this = self.clone();
        let token = CancellationToken::new();
        if let Some(old) = self.state().listing.replace(token.clone()) {
            old.cancel();
        }
        let asking = async move {
            loop {
                match this.found().await {
                    Ok(found) => {
                        let _ = this.events.send(Event::Found(found)).await;
                        return;
                    }
                    Err(error) => tracing::info!("{error}; asking again"),
                }
                tokio::time::sleep(ASK_SILENT).await;
            }
        };
        tokio::spawn(token.run_until_cancelled_owned(asking));
    }

    async fn found(&self) -> Result<Inventory, EngineError> {
        let containers = self.containers().await?;
        let volumes = self.fixed.engine.list_volumes().await?;
        let mut left: BTreeSet<AttemptRef> = volumes.into_iter().filter_map(|v| v.attempt).collect();
        if let Ok(folders) = std::fs::read_dir(&self.fixed.guests) {
            let names = folders.flatten().map(|entry| entry.file_name());
            left.extend(names.filter_map(|name| attempt_of_key(name.to_str()?)));
        }
        Ok(Inventory { containers, left })
    }

    async fn containers(&self) -> Result<Vec<Found>, EngineError> {
        let engine = &self.fixed.engine;
        let mut found = Vec::new();
        for ours in engine.list_ours().await? {
            let attempt = match (ours.kind, ours.attempt) {
                (Kind::Guest, Some(attempt)) => attempt,
                (Kind::Guest, None) => {
                    engine.remove_guest(&ours.id).await?;
                    continue;
                }
                // Its keeper looks after it.
                (Kind::SecondWay, _) => continue,
                (Kind::Helper, _) => {
                    if ours.orphan {
                        engine.remove_guest(&ours.id).await?;
                    }
                    continue;
                }
            };
            let pid = engine.inspect_guest(&ours.id).await?.filter(|state| state.running).and_then(|s| s.pid);
            let process = pid.and_then(crate::channel::identify);
            found.push(Found { attempt, container: ours.id, process });
        }
        Ok(found)
    }

    /// What is left of an attempt that is not on the books.
    pub fn remove_left(&self, attempt: AttemptRef) {
        let this = self.clone();
        {
            let mut state = self.state();
            // Taken again since: what lies there is its own.
            if state.running.contains_key(&attempt) || !state.removing.insert(attempt.clone()) {
                return;
            }
        }
        tokio::spawn(async move {
            match this.fixed.engine.remove_workspace(&attempt).await {
                Ok(()) => drop(remove_tree(folder(&this.fixed.guests, &attempt)).await),
                // One that a container still holds goes the next time.
                Err(error) => tracing::info!(%attempt, "{error}"),
            }
            this.state().removing.remove(&attempt);
        });
    }
}
