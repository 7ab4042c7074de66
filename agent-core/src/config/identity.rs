//! The device's secrets: its key, its token, and the member's chunk key. In the OS keyring, else
//! in a 0600 file with a warning.
//!
//! A keyring may be absent, locked, or never answer (F105): it is asked on a thread of its own and
//! given up after a while. Secrets have no `Debug` and are wiped when dropped.

use std::fmt;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Context as _;
use gpunion_snapshot::{ChunkKey, DeviceSecret, SystemRandomness};
use keyring_core::{CredentialStore, Entry, Error as KeyringError};
use serde::{Deserialize, Serialize};
use zbus_secret_service_keyring_store::Store as SecretService;
use zeroize::{Zeroize as _, Zeroizing};

use super::dirs::Dirs;
use super::files;
use super::settings::TokenStoreChoice;

const SERVICE: &str = "gpunion";
/// A keyring that has not answered by then is as good as none.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone)]
pub struct Identity {
    pub secret: DeviceSecret,
    /// Names this member's chunks; a device of the member makes its own and reads any.
    pub chunk_key: ChunkKey,
    /// Absent while the device belongs to no group.
    pub token: Option<Zeroizing<String>>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("paired", &self.token.is_some()).finish_non_exhaustive()
    }
}

/// Where the secrets are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenStore {
    Keyring,
    File,
}

impl TokenStore {
    pub fn word(self) -> &'static str {
        match self {
            Self::Keyring => "keyring",
            Self::File => "file",
        }
    }
}

/// The text form, in either store.
#[derive(Serialize, Deserialize)]
struct Stored {
    secret: String,
    chunk_key: String,
    token: Option<String>,
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.secret.zeroize();
        self.chunk_key.zeroize();
        self.token.zeroize();
    }
}

impl Identity {
    pub fn new() -> anyhow::Result<Self> {
        let random = &mut SystemRandomness;
        Ok(Self {
            secret: DeviceSecret::generate(random)?,
            chunk_key: ChunkKey::generate(random)?,
            token: None,
        })
    }

    /// Saves in the keyring when it may and answers, else in a file; says where, and why not there.
    pub fn save(
        &self,
        dirs: &Dirs,
        choice: TokenStoreChoice,
    ) -> anyhow::Result<(TokenStore, Option<String>)> {
        let text = self.to_text()?;
        let why = match choice {
            TokenStoreChoice::File => None,
            TokenStoreChoice::Auto => {
                match keyring_set(account(dirs), Zeroizing::new(text.as_bytes().to_vec())) {
                    Ok(()) => {
                        files::remove(&dirs.identity())?;
                        return Ok((TokenStore::Keyring, None));
                    }
                    Err(why) => Some(why),
                }
            }
        };
        files::write_whole(&dirs.identity(), text.as_bytes())
            .with_context(|| format!("{} can't be written", dirs.identity().display()))?;
        Ok((TokenStore::File, why))
    }

    /// `None` when nothing was ever saved there.
    pub fn load(dirs: &Dirs, store: TokenStore) -> anyhow::Result<Option<Self>> {
        let bytes = match store {
            TokenStore::File => files::read_whole(&dirs.identity())
                .with_context(|| format!("{} can't be read", dirs.identity().display()))?,
            TokenStore::Keyring => keyring_get(account(dirs)).map_err(|why| {
                anyhow::anyhow!("the keyring that holds this device's token does not open: {why}")
            })?,
        };
        bytes.map(|bytes| Self::of_text(&Zeroizing::new(bytes))).transpose()
    }

    /// After they have been moved into the file.
    pub fn forget_in_keyring(dirs: &Dirs) -> anyhow::Result<()> {
        keyring_delete(account(dirs)).map_err(|why| anyhow::anyhow!("{why}"))
    }

    /// Forgets the secrets wherever they are.
    pub fn forget(dirs: &Dirs, store: TokenStore) -> anyhow::Result<()> {
        if store == TokenStore::Keyring {
            keyring_delete(account(dirs))
                .map_err(|why| anyhow::anyhow!("the keyring keeps the token: {why}"))?;
        }
        files::remove(&dirs.identity())?;
        Ok(())
    }

    fn to_text(&self) -> anyhow::Result<Zeroizing<String>> {
        let stored = Stored {
            secret: hex::encode(self.secret.expose()),
            chunk_key: hex::encode(self.chunk_key.expose()),
            token: self.token.as_ref().map(|token| token.to_string()),
        };
        Ok(Zeroizing::new(serde_json::to_string(&stored)?))
    }

    fn of_text(bytes: &[u8]) -> anyhow::Result<Self> {
        // The parser's words could quote a secret.
        let stored: Stored = serde_json::from_slice(bytes)
            .map_err(|_| anyhow::anyhow!("the device's stored identity makes no sense"))?;
        let key = |text: &str| -> anyhow::Result<[u8; 32]> {
            let mut bytes = [0; 32];
            hex::decode_to_slice(text, &mut bytes)
                .map_err(|_| anyhow::anyhow!("the device's stored identity holds a damaged key"))?;
            Ok(bytes)
        };
        Ok(Self {
            secret: DeviceSecret::from_bytes(key(&stored.secret)?),
            chunk_key: ChunkKey::from_bytes(key(&stored.chunk_key)?),
            token: stored.token.clone().map(Zeroizing::new),
        })
    }
}

/// Names the entry in the keyring: one for each data folder.
fn account(dirs: &Dirs) -> String {
    dirs.data.display().to_string()
}

/// Whether the keyring can be read now: asks for this device's own entry, which may be absent.
/// One sentence, for `doctor`.
pub fn keyring_answers(dirs: &Dirs) -> Result<(), String> {
    keyring_get(account(dirs)).map(|secret| drop(secret.map(Zeroizing::new)))
}

fn keyring_set(account: String, secret: Zeroizing<Vec<u8>>) -> Result<(), String> {
    ask(move |store| {
        let entry = Entry::new_in_store(store, SERVICE, &account)?;
        entry.set_secret(&secret)?;
        // Some keyrings take a secret and lose it.
        match entry.get_secret() {
            Ok(back) if back == *secret => Ok(()),
            Ok(_) => Err(KeyringError::NoEntry),
            Err(error) => Err(error),
        }
    })
}

fn keyring_get(account: String) -> Result<Option<Vec<u8>>, String> {
    ask(move |store| match Entry::new_in_store(store, SERVICE, &account)?.get_secret() {
        Ok(secret) => Ok(Some(secret)),
        Err(KeyringError::NoEntry) => Ok(None),
        Err(error) => Err(error),
    })
}

fn keyring_delete(account: String) -> Result<(), String> {
    ask(move |store| match Entry::new_in_store(store, SERVICE, &account)?.delete_credential() {
        Err(KeyringError::NoEntry) => Ok(()),
        other => other,
    })
}

/// Asks on a connection of its own: the keyring of before may have been replaced, and one that was
/// absent at boot may be there now.
fn ask<T: Send + 'static>(
    question: impl FnOnce(&Arc<CredentialStore>) -> keyring_core::Result<T> + Send + 'static,
) -> Result<T, String> {
    patiently(move || {
        let store =
            SecretService::new().map_err(|error| format!("no keyring answers on this machine ({error})"))?;
        let store: Arc<CredentialStore> = store;
        // The error's own words name the service, never the secret.
        question(&store).map_err(|error| error.to_string())
    })
}

/// Runs on a plain thread (the keyring blocks, with a runtime of its own inside) and gives up after
/// `PATIENCE`; the thread is then left behind.
fn patiently<T: Send + 'static>(
    question: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (answer, wait) = mpsc::sync_channel(1);
    let started = std::thread::Builder::new().name("keyring".to_owned()).spawn(move || {
        let _ = answer.send(question());
    });
    started.map_err(|error| format!("no thread to ask it on ({error})"))?;
    match wait.recv_timeout(PATIENCE) {
        Ok(answer) => answer,
        Err(mpsc::RecvTimeoutError::Timeout) => Err("it did not answer within 3 s".to_owned()),
        Err(mpsc::RecvTimeoutError::Disconnected) => Err("it broke off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn dirs() -> (tempfile::TempDir, Dirs) {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs { data: home.path().to_owned(), socket: home.path().join("s") };
        (home, dirs)
    }

    #[test]
    fn an_identity_reads_back_from_its_private_file() {
        let (_home, dirs) = dirs();
        let mut identity = Identity::new().unwrap();
        identity.token = Some(Zeroizing::new("ab".repeat(32)));
        let (store, why) = identity.save(&dirs, TokenStoreChoice::File).unwrap();
        assert_eq!((store, why), (TokenStore::File, None));
        let mode = std::fs::metadata(dirs.identity()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let back = Identity::load(&dirs, TokenStore::File).unwrap().unwrap();
        assert!(
            back.secret == identity.secret
                && back.chunk_key == identity.chunk_key
                && back.token == identity.token
        );
        assert!(!format!("{back:?}").contains("abab"));
        Identity::forget(&dirs, TokenStore::File).unwrap();
        assert!(Identity::load(&dirs, TokenStore::File).unwrap().is_none());
    }

    #[test]
    fn f105_a_keyring_that_never_answers_is_given_up() {
        let before = crate::config::clock::boot();
        let (hold, never) = mpsc::channel::<()>();
        let answer = patiently(move || {
            let _ = never.recv();
            Ok(())
        });
        drop(hold);
        assert!(answer.unwrap_err().contains("did not answer"));
        assert!((crate::config::clock::boot() - before).0 < 10_000);
    }

    #[test]
    fn a_damaged_identity_is_not_quoted() {
        let (_home, dirs) = dirs();
        files::write_whole(&dirs.identity(), b"{\"secret\":\"hunter2\",\"chunk_key\":\"x\",\"token\":null}")
            .unwrap();
        let error = format!("{:#}", Identity::load(&dirs, TokenStore::File).unwrap_err());
        assert!(!error.contains("hunter2"), "{error}");
    }
}
