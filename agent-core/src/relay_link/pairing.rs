//! Joining a group by its invite link, and leaving it.

use std::sync::Arc;
use std::time::Duration;

use gpunion_protocol::http::{Join, Joined};
use gpunion_protocol::ids::DeviceId;
use gpunion_protocol::invite::Invite;
use gpunion_protocol::job::Blob;
use gpunion_protocol::local::JoinRequest;
use gpunion_protocol::problem::{Code, Problem};
use tokio::sync::{Mutex, watch};
use zeroize::Zeroizing;

use super::client::RelayClient;
use crate::config::settings::TokenStoreChoice;
use crate::config::{Dirs, Found, GroupFile, Identity, Locked, Membership, Settings, TokenStore};

/// A keyring that did not open is tried again after the first, then twice that each time, up to the
/// last: each try may ask a person.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(300));

/// Owns the device's membership: loads it, makes it, ends it, and tells everybody who follows.
#[derive(Debug)]
pub struct Pairing {
    dirs: Dirs,
    settings: Settings,
    tell: watch::Sender<Option<Arc<Membership>>>,
    /// A membership that is there and can't be used for now.
    locked: watch::Sender<Option<Arc<Locked>>>,
    /// One at a time.
    turn: Mutex<()>,
}

impl Pairing {
    /// Takes up the membership that is on disk, if any. A keyring that does not open stops nothing
    /// (F105): lending, reclaim and what runs need no token.
    pub fn load(dirs: Dirs, settings: Settings) -> anyhow::Result<Self> {
        let (member, locked) = match Membership::find(&dirs)? {
            Found::Nothing => (None, None),
            Found::Locked(locked) => (None, Some(Arc::from(locked))),
            Found::Member(member) => (Some(Arc::from(member)), None),
        };
        Ok(Self {
            dirs,
            settings,
            tell: watch::Sender::new(member),
            locked: watch::Sender::new(locked),
            turn: Mutex::new(()),
        })
    }

    pub fn locked(&self) -> watch::Receiver<Option<Arc<Locked>>> {
        self.locked.subscribe()
    }

    /// Tries until the keyring opens, or the membership is left; for the agent's life.
    pub async fn unlock(&self) {
        let mut wait = TRY_AGAIN.0;
        loop {
            let Some(locked) = self.locked.borrow().clone() else { return };
            tracing::warn!(why = %locked.why, fix = %locked.fix(), "no session with the relay");
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(TRY_AGAIN.1);
            let _turn = self.turn.lock().await;
            if self.locked.borrow().is_none() {
                return;
            }
            let dirs = self.dirs.clone();
            match tokio::task::spawn_blocking(move || Membership::find(&dirs)).await {
                Ok(Ok(Found::Member(member))) => {
                    tracing::info!("the keyring has opened");
                    self.tell.send_replace(Some(Arc::from(member)));
                    self.locked.send_replace(None);
                }
                Ok(Ok(Found::Locked(locked))) => {
                    self.locked.send_replace(Some(Arc::from(locked)));
                }
                Ok(Ok(Found::Nothing) | Err(_)) | Err(_) => {}
            }
        }
    }

    /// A relay that moves tells where to; taken up and written down, for the agent's life.
    pub async fn follow_addresses(&self) {
        let mut memberships = self.follow();
        loop {
            let Some(member) = memberships.borrow_and_update().clone() else {
                if memberships.changed().await.is_err() {
                    return;
                }
                continue;
            };
            let mut announced = member.client.announced();
            let told = announced.borrow_and_update().clone();
            if let Err(error) = self.move_to(&member, told).await {
                tracing::warn!("the relay's new address can't be kept: {error:#}");
            }
            tokio::select! {
                changed = memberships.changed() => if changed.is_err() { return },
                // The sender lives in the membership that is held here.
                _ = announced.changed() => {}
            }
        }
    }

    async fn move_to(&self, member: &Arc<Membership>, told: Vec<String>) -> anyhow::Result<()> {
        if told.is_empty() || told == member.group.addresses {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        if !self.tell.borrow().as_ref().is_some_and(|there| Arc::ptr_eq(there, member)) {
            return Ok(());
        }
        let group = GroupFile { addresses: told, ..member.group.clone() };
        let (dirs, saved) = (self.dirs.clone(), group.clone());
        tokio::task::spawn_blocking(move || saved.save(&dirs)).await??;
        tracing::info!(addresses = ?group.addresses, "the relay told where it is to be reached");
        let moved = Membership::assemble(group, member.identity.clone())?;
        self.tell.send_replace(Some(Arc::new(moved)));
        Ok(())
    }

    pub fn follow(&self) -> watch::Receiver<Option<Arc<Membership>>> {
        self.tell.subscribe()
    }

    /// The membership, or the problem that there is none.
    pub fn current(&self) -> Result<Arc<Membership>, Problem> {
        let member = self.tell.borrow().clone();
        member.ok_or_else(|| {
            if let Some(locked) = &*self.locked.borrow() {
                return Problem::new(Code::Unauthorized, locked.why.clone()).with_detail(locked.fix());
            }
            Problem::new(Code::NoGroup, "this machine belongs to no group")
                .with_detail("ask the group's operator for an invite link, then run `gpunion join LINK`")
        })
    }

    pub async fn join(&self, request: JoinRequest) -> Result<GroupFile, Problem> {
        let _turn = self.turn.lock().await;
        let belongs = self.current().ok().map(|member| member.group.group.clone());
        let belongs =
            belongs.or_else(|| self.locked.borrow().as_ref().map(|locked| locked.group.group.clone()));
        if let Some(group) = belongs {
            return Err(Problem::new(
                Code::Conflict,
                format!("this machine already belongs to the group {group}"),
            )
            .with_detail("leave it first with `gpunion leave-group`"));
        }
        let invite: Invite = request.link.parse().map_err(|error: gpunion_protocol::invite::BadInvite| {
            Problem::new(Code::BadRequest, error.to_string())
        })?;
        let mut identity = Identity::new().map_err(|error| internal("no key can be made", &error))?;
        let device_name = request.device_name.unwrap_or_else(|| self.settings.device());
        let join = Join {
            code: invite.code.clone(),
            member_name: request.member_name.unwrap_or_else(person),
            device_name: device_name.clone(),
            public_key: Blob(identity.secret.public().0.to_vec()),
        };
        let client = RelayClient::new(invite.addresses.clone(), invite.pin, None)
            .map_err(|error| internal("the relay can't be dialled", &error))?;
        let joined = client.join(&join).await?;
        let token = Zeroizing::new(joined.token.clone());
        identity.token = Some(token.clone());
        let device = joined.device.clone();
        match self.keep(joined, device_name, &invite, identity).await {
            Ok(membership) => {
                let group = membership.group.clone();
                self.tell.send_replace(Some(Arc::new(membership)));
                Ok(group)
            }
            Err(problem) => Err(self.undo(&invite, &device, token, problem).await),
        }
    }

    /// Writes down what joining gave.
    async fn keep(
        &self,
        joined: Joined,
        device_name: String,
        invite: &Invite,
        identity: Identity,
    ) -> Result<Membership, Problem> {
        let (dirs, choice) = (self.dirs.clone(), self.settings.token_store);
        let kept = identity.clone();
        let (token_in, no_keyring) = tokio::task::spawn_blocking(move || kept.save(&dirs, choice))
            .await
            .map_err(|error| internal("the token can't be kept", &error.into()))?
            .map_err(|error| internal("the token can't be kept", &error))?;
        if let Some(why) = &no_keyring {
            tracing::warn!(%why, file = %self.dirs.identity().display(), "the device's token is in a file, not in the keyring");
        }
        let group = GroupFile {
            group: joined.group,
            member: joined.member,
            member_name: joined.member_name,
            role: joined.role,
            device: joined.device,
            device_name,
            addresses: invite.addresses.clone(),
            pin: invite.pin.map(hex::encode),
            token_in,
            no_keyring,
        };
        group.save(&self.dirs).map_err(|error| internal("the group can't be written down", &error))?;
        Membership::assemble(group, identity)
            .map_err(|error| internal("the membership can't be used", &error))
    }

    /// A device that could not keep its token must not stay in the group as one that nobody has.
    async fn undo(
        &self,
        invite: &Invite,
        device: &DeviceId,
        token: Zeroizing<String>,
        cause: Problem,
    ) -> Problem {
        let dirs = self.dirs.clone();
        let store = match self.settings.token_store {
            TokenStoreChoice::Auto => TokenStore::Keyring,
            TokenStoreChoice::File => TokenStore::File,
        };
        let forgotten = tokio::task::spawn_blocking(move || {
            if let Err(error) = Identity::forget(&dirs, store) {
                tracing::info!(%error, "of the device's token nothing is there to be forgotten");
            }
            GroupFile::forget(&dirs)
        });
        if let Ok(Err(error)) = forgotten.await {
            tracing::warn!(%error, "what joining left can't be removed");
        }
        let revoked = match RelayClient::new(invite.addresses.clone(), invite.pin, Some(token)) {
            Ok(client) => client.revoke(device).await.map_err(|problem| problem.to_string()),
            Err(error) => Err(format!("{error:#}")),
        };
        let detail = cause.detail.clone().unwrap_or_default();
        match revoked {
            Ok(()) => cause.with_detail(format!("{detail}; the link is used up: mend it, then join with a new one")),
            Err(why) => cause.with_detail(format!(
                "{detail}; and the relay could not be told ({why}): ask the operator to remove this device and for a new link"
            )),
        }
    }

    /// The token is revoked where the relay can be reached, and forgotten here in any case.
    /// Answers what could not be done, in a sentence.
    pub async fn leave(&self) -> Result<Option<String>, Problem> {
        let _turn = self.turn.lock().await;
        let locked = self.locked.borrow().clone();
        if let Some(locked) = locked {
            return self.leave_locked(&locked).await.map(Some);
        }
        let member = self.current()?;
        let trouble = match member.client.revoke(&member.group.device).await {
            Ok(()) => None,
            Err(problem) if problem.code == Code::Unauthorized => None,
            Err(problem) => Some(format!(
                "the relay was not told ({problem}); ask the operator to remove the device {}",
                member.group.device_name
            )),
        };
        self.tell.send_replace(None);
        self.forget(member.group.token_in)
            .await?
            .map_err(|error| internal("the group can't be forgotten", &error))?;
        Ok(trouble)
    }

    /// Without the token nothing can be revoked; here the group ends all the same.
    async fn leave_locked(&self, locked: &Locked) -> Result<String, Problem> {
        let kept = self.forget(locked.group.token_in).await?;
        self.locked.send_replace(None);
        let mut trouble = format!(
            "the relay was not told ({}); ask the operator to remove the device {}",
            locked.why, locked.group.device_name
        );
        if let Err(error) = kept {
            trouble.push_str(&format!("; and {error:#}"));
        }
        Ok(trouble)
    }

    /// The inner error: the group is forgotten, its token is not.
    async fn forget(&self, store: TokenStore) -> Result<anyhow::Result<()>, Problem> {
        let dirs = self.dirs.clone();
        tokio::task::spawn_blocking(move || {
            GroupFile::forget(&dirs)?;
            // Which packs of which folder the relay had is of no use in another group.
            let _ = std::fs::remove_dir_all(dirs.sent());
            anyhow::Ok(Identity::forget(&dirs, store))
        })
        .await
        .map_err(|error| internal("the group can't be forgotten", &error.into()))?
        .map_err(|error| internal("the group can't be forgotten", &error))
    }
}

/// How the person is called when nothing else was said.
fn person() -> String {
    let known = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    let Some(user) = known else { return "somebody".to_owned() };
    let full = user.gecos.to_string_lossy().split(',').next().unwrap_or("").trim().to_owned();
    if full.is_empty() { user.name } else { full }
}

fn internal(title: &str, error: &anyhow::Error) -> Problem {
    Problem::new(Code::Internal, title).with_detail(format!("{error:#}"))
}
