//! The group this device belongs to: what is known of it, without secrets, in `group.json`.

use anyhow::Context as _;
use gpunion_protocol::http::Role;
use gpunion_protocol::ids::{DeviceId, MemberId};
use serde::{Deserialize, Serialize};

use super::dirs::Dirs;
use super::files;
use super::identity::{Identity, TokenStore};
use crate::relay_link::client::RelayClient;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFile {
    pub group: String,
    pub member: MemberId,
    pub member_name: String,
    pub role: Role,
    pub device: DeviceId,
    pub device_name: String,
    /// `host:port`, in the order to try.
    pub addresses: Vec<String>,
    /// SHA-256 of the relay's SubjectPublicKeyInfo in hex; absent: the system's roots decide.
    #[serde(default)]
    pub pin: Option<String>,
    pub token_in: TokenStore,
    /// Why the token is not in a keyring, when one was wanted.
    #[serde(default)]
    pub no_keyring: Option<String>,
}

impl GroupFile {
    pub fn load(dirs: &Dirs) -> anyhow::Result<Option<Self>> {
        files::read_json(&dirs.group()).with_context(|| format!("{} can't be read", dirs.group().display()))
    }

    pub fn save(&self, dirs: &Dirs) -> anyhow::Result<()> {
        files::write_json(&dirs.group(), self)
            .with_context(|| format!("{} can't be written", dirs.group().display()))
    }

    pub fn forget(dirs: &Dirs) -> anyhow::Result<()> {
        files::remove(&dirs.group()).with_context(|| format!("{} can't be removed", dirs.group().display()))
    }

    pub fn pin(&self) -> anyhow::Result<Option<[u8; 32]>> {
        let Some(text) = &self.pin else { return Ok(None) };
        let mut pin = [0; 32];
        hex::decode_to_slice(text, &mut pin).context("the relay's pinned key in group.json is damaged")?;
        Ok(Some(pin))
    }
}

/// A group with all that is needed to take part in it.
#[derive(Debug, Clone)]
pub struct Membership {
    pub group: GroupFile,
    pub identity: Identity,
    pub client: RelayClient,
}

/// A group whose token can't be had: its keyring is locked or silent, or the token is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Locked {
    pub group: GroupFile,
    /// One sentence, without the fix.
    pub why: String,
}

impl Locked {
    /// What a person can do about it.
    pub fn fix(&self) -> String {
        match self.group.token_in {
            TokenStore::Keyring => "unlock the keyring (log in at the desktop, or gnome-keyring-daemon --replace --unlock): the agent goes on by \
                                    itself; or gpunion leave-group, then start the agent with --token-file and join again"
                .to_owned(),
            TokenStore::File => "gpunion leave-group, then join again with a new link".to_owned(),
        }
    }
}

/// What there is of a membership on this machine.
#[derive(Debug, Clone)]
pub enum Found {
    /// This device belongs to no group.
    Nothing,
    Locked(Box<Locked>),
    Member(Box<Membership>),
}

impl Membership {
    /// Blocks for as long as a keyring is given. An error is a damaged `group.json`.
    pub fn find(dirs: &Dirs) -> anyhow::Result<Found> {
        let Some(group) = GroupFile::load(dirs)? else { return Ok(Found::Nothing) };
        let identity = match Identity::load(dirs, group.token_in) {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                let why = format!("this device's token of the group {} is gone", group.group);
                return Ok(Found::Locked(Box::new(Locked { group, why })));
            }
            Err(error) => return Ok(Found::Locked(Box::new(Locked { group, why: format!("{error:#}") }))),
        };
        match Self::assemble(group.clone(), identity) {
            Ok(member) => Ok(Found::Member(Box::new(member))),
            Err(error) => Ok(Found::Locked(Box::new(Locked { group, why: format!("{error:#}") }))),
        }
    }

    pub fn assemble(group: GroupFile, identity: Identity) -> anyhow::Result<Self> {
        let token = identity.token.clone().context("the device has no token; join again")?;
        let client = RelayClient::new(group.addresses.clone(), group.pin()?, Some(token))?;
        Ok(Self { group, identity, client })
    }
}
