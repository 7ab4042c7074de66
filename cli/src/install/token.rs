//! What an agent that starts with nobody logged in needs: its token in a 0600 file, since a keyring
//! is locked at boot, and its settings in their file.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use gpunion_agent_core::config::lock::{self, AgentLock};
use gpunion_agent_core::config::settings::TokenStoreChoice;
use gpunion_agent_core::config::{Dirs, GroupFile, Identity, TokenStore};

use super::unit::Scope;
use super::{ids, own_path, path_text};
use crate::args::Agent;
use crate::failure::Failure;

/// Saves the settings and moves the token; says what was done. `service` is the process of the
/// service that is installed already. Blocks while a keyring is asked.
pub(super) fn prepare(dirs: &Dirs, said: Agent, service: Option<u32>) -> Result<Vec<String>, Failure> {
    dirs.make_data()?;
    // An agent in the foreground would keep the service from starting.
    let _held = match AgentLock::take(dirs, "install") {
        Ok(lock) => Some(lock),
        Err(_) if service.is_some() && lock::holder(dirs) == service => None,
        Err(error) => {
            return Err(Failure::failed(format!("{error:#}"))
                .fix("stop that agent, then install; guests go on meanwhile"));
        }
    };
    let mut done = Vec::new();
    let before = gpunion_agent_core::config::Settings::load(dirs)
        .map_err(|error| Failure::usage(format!("{error:#}")))?;
    let mut settings = said.settings(dirs)?;
    settings.token_store = TokenStoreChoice::File;
    if settings != before {
        settings.save(dirs)?;
        done.push(format!("wrote {}", dirs.settings().display()));
    }
    done.extend(move_token(dirs)?);
    Ok(done)
}

/// From the keyring into a file. The file is whole before `group.json` names it, and the keyring
/// forgets last: cut anywhere, one of them has it.
fn move_token(dirs: &Dirs) -> Result<Option<String>, Failure> {
    let Some(mut group) = GroupFile::load(dirs)? else { return Ok(None) };
    if group.token_in == TokenStore::File {
        return Ok(None);
    }
    let locked = |error: anyhow::Error| {
        Failure::failed(format!("{error:#}"))
            .fix("the token must be moved into a file, since nobody unlocks a keyring at boot: unlock it now, and install again")
    };
    let identity = Identity::load(dirs, TokenStore::Keyring).map_err(locked)?;
    let Some(identity) = identity else {
        return Err(Failure::failed("this device's token is gone from the keyring")
            .fix("gpunion leave-group, then join again"));
    };
    identity.save(dirs, TokenStoreChoice::File)?;
    group.token_in = TokenStore::File;
    group.no_keyring = None;
    group.save(dirs)?;
    let mut said =
        format!("moved this device's token from the keyring to {} (0600)", dirs.identity().display());
    if let Err(error) = Identity::forget_in_keyring(dirs) {
        said.push_str(&format!("; the keyring has it still: {error:#}"));
    }
    Ok(Some(said))
}

/// The same as another user, whose files and keyring they are: by this program, run as them.
pub(super) fn prepare_as(
    scope: &Scope,
    dirs: &Dirs,
    said: &Agent,
    done: &mut Vec<String>,
) -> Result<(), Failure> {
    let Scope::System { user } = scope else { return Ok(()) };
    let (uid, gid, home) = ids(user)?;
    let runtime = format!("/run/user/{uid}");
    let mut command = Command::new(own_path()?);
    command.args(["--data", &path_text(&dirs.data)?, "agent", "install", "--system", "--prepare"]);
    command.args(said.words());
    command
        .uid(uid.as_raw())
        .gid(gid.as_raw())
        .current_dir("/")
        .env("HOME", home)
        .env("USER", user)
        .env_remove("SUDO_USER");
    if std::path::Path::new(&runtime).is_dir() {
        command
            .env("DBUS_SESSION_BUS_ADDRESS", format!("unix:path={runtime}/bus"))
            .env("XDG_RUNTIME_DIR", runtime);
    }
    let output = command
        .output()
        .map_err(|error| Failure::failed(format!("nothing can be run as {user} ({error})")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::failed(format!("as {user}: {}", said.trim().trim_start_matches("gpunion: "))));
    }
    let said = String::from_utf8_lossy(&output.stdout);
    done.extend(said.lines().filter(|line| !line.is_empty()).map(str::to_owned));
    Ok(())
}
