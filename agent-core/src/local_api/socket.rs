//! Makes the socket: reachable by the owner, and by one unix group where the owner named one.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use nix::unistd::Group;
use tokio::net::UnixListener;

use crate::config::{Dirs, Settings, dirs, files};

/// The caller holds the data folder's lock, so a socket that is there is a dead agent's.
pub fn bind(place: &Dirs, settings: &Settings) -> anyhow::Result<UnixListener> {
    let path = &place.socket;
    let folder = path.parent().context("the socket needs a folder")?;
    let group = settings.socket_group.as_deref();
    // A folder that everybody shares (/tmp, /run) is not ours to close.
    if !folder.exists() || folder.starts_with(&place.data) || folder.ends_with("gpunion") {
        dirs::private_folder(folder, if group.is_some() { 0o750 } else { 0o700 })?;
    }
    refuse_living(path)?;
    let listener = std::os::unix::net::UnixListener::bind(path).with_context(|| {
        format!("the socket {} can't be made; is its path over 107 bytes?", path.display())
    })?;
    listener.set_nonblocking(true)?;
    fs::set_permissions(path, Permissions::from_mode(if group.is_some() { 0o660 } else { 0o600 }))?;
    if let Some(name) = group {
        let found = Group::from_name(name)?
            .with_context(|| format!("there is no unix group {name:?} (socket_group)"))?;
        for shared in [folder, path] {
            nix::unistd::chown(shared, None, Some(found.gid)).with_context(|| {
                format!(
                    "{} can't be given to the group {name:?}; is the agent's user in it?",
                    shared.display()
                )
            })?;
        }
        if folder.starts_with(&place.data) {
            tracing::warn!(
                "the socket lies in the closed data folder, where its group can't reach it; set --socket to a place of its own"
            );
        }
    }
    let shown = path.to_str().context("the socket's path is no text; name another with --socket")?;
    files::write_whole(&place.pointer(), format!("{shown}\n").as_bytes())
        .with_context(|| format!("{} can't be written", place.pointer().display()))?;
    UnixListener::from_std(listener).context("the socket can't be listened on")
}

/// Somebody who answers at the path is another agent, with another data folder.
fn refuse_living(path: &Path) -> anyhow::Result<()> {
    match std::os::unix::net::UnixStream::connect(path) {
        Ok(_) => anyhow::bail!(
            "another agent answers at {}; give this one a socket of its own with --socket",
            path.display()
        ),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(_) => fs::remove_file(path).with_context(|| format!("{} is in the way", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_its_owners_alone_unless_a_group_is_named() {
        let home = tempfile::tempdir().unwrap();
        let dirs = Dirs { data: home.path().to_owned(), socket: home.path().join("run/s") };
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let alone = bind(&dirs, &Settings::default()).unwrap();
        assert_eq!(mode(&dirs.socket), 0o600);
        drop(alone);
        let own = Group::from_gid(nix::unistd::getegid()).unwrap().unwrap();
        let settings = Settings { socket_group: Some(own.name), ..Settings::default() };
        let _shared = bind(&dirs, &settings).unwrap();
        assert_eq!((mode(&dirs.socket), mode(dirs.socket.parent().unwrap())), (0o660, 0o750));
    }
}
