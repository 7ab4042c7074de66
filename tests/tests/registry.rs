//! Images of a real registry: by tag the first time, by digest ever after, and never by a wrong
//! one.

use std::fs;
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use gpunion_protocol::job::{Image, JobState};
use system_tests::campus::{PATIENCE, Pace, Pair};
use system_tests::lab::{Engine, User, wait_for};

/// Debian's registry on loopback, run by an ordinary user.
struct Registry {
    address: String,
    child: Child,
    _user: User,
}

impl Registry {
    fn start(user: User) -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("127.0.0.1:{port}");
        let config = user.home().join("registry.yml");
        let store = user.home().join("store");
        let text = format!(
            "version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: {address}\n",
            store.display()
        );
        fs::write(&config, text)?;
        std::os::unix::fs::chown(&config, Some(user.uid()), Some(user.gid()))?;
        let mut command = user.command("docker-registry");
        command.arg("serve").arg(&config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("starting docker-registry")?;
        let registry = Self { address, child, _user: user };
        wait_for("the registry", Duration::from_secs(60), || {
            Ok(std::net::TcpStream::connect(&registry.address).ok().map(drop))
        })?;
        Ok(registry)
    }

    /// Gives an engine's image a name at this registry, and brings it there.
    fn push(&self, engine: &Engine, image: &str, name: &str) -> Result<String> {
        let full = format!("{}/{name}", self.address);
        docker(engine, &["tag", image, &full])?;
        docker(engine, &["push", "--quiet", &full])?;
        docker(engine, &["rmi", &full])?;
        Ok(full)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn docker(engine: &Engine, words: &[&str]) -> Result<String> {
    let output =
        Command::new("docker").args(["-H", &engine.host()]).args(words).output().context("docker")?;
    ensure!(output.status.success(), "docker {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_first_preparation_fixes_the_digest_for_all_later_attempts() -> Result<()> {
    let pair = Pair::lending()?;
    let registry = Registry::start(pair.campus.lab.user("registry")?)?;
    let name = registry.push(&pair.engines[0], "digits:latest", "digits:1")?;
    let pace = Pace { epochs: 8, epoch_seconds: 0.8 };
    let folder = pair.ada.digits_folder("by-registry", pace)?;
    with_image(&pair, &folder, &name)?;
    let (job, ..) = pair.ada.submit(&folder)?;
    let owner = pair.in_the_middle(&job)?;
    let digest = match pair.ada.job(&job)?.image {
        Image::Registry { digest: Some(digest), .. } => digest,
        other => anyhow::bail!("no digest is fixed: {other:?}"),
    };
    // The tag moves to an image that can't train anything.
    pair.campus.busybox_image(&pair.engines[0])?;
    registry.push(&pair.engines[0], "busybox:latest", "digits:1")?;
    pair.providers[owner].run(["reclaim"])?.ok()?;
    let ended = pair.succeeds(&job)?;
    ensure!(ended.attempts.len() == 2 && pair.at(&ended)? != owner, "{ended:#?}");
    ensure!(matches!(&ended.image, Image::Registry { digest: Some(d), .. } if *d == digest), "{ended:#?}");
    Ok(())
}

#[test]
fn an_image_that_is_not_there_by_its_digest_is_refused_with_the_reason() -> Result<()> {
    let pair = Pair::lending()?;
    let registry = Registry::start(pair.campus.lab.user("registry")?)?;
    registry.push(&pair.engines[0], "digits:latest", "digits:1")?;
    let folder = pair.ada.digits_folder("wrong-digest", Pace { epochs: 1, epoch_seconds: 0.0 })?;
    let wrong = format!("{}/digits@sha256:{}", registry.address, "0".repeat(64));
    with_image(&pair, &folder, &wrong)?;
    let (job, ..) = pair.ada.submit(&folder)?;
    let view = pair.ada.wait_job(&job, "a failed preparation", PATIENCE, |job| {
        job.attempts.iter().any(|attempt| attempt.state.is_ended())
    })?;
    ensure!(!view.state.is_final(), "a provider's trouble is never the member's failure: {view:#?}");
    ensure!(view.attempts.iter().all(|attempt| attempt.started.is_none()), "{view:#?}");
    let shown = pair.ada.run(["show", &job])?.ok()?;
    ensure!(shown.out.contains("could not start"), "{}", shown.out);
    pair.ada.run(["cancel", &job])?.ok()?;
    pair.ada.wait_job(&job, "the end", PATIENCE, |job| job.state == JobState::Cancelled)?;
    Ok(())
}

fn with_image(pair: &Pair, folder: &std::path::Path, image: &str) -> Result<()> {
    let spec = fs::read_to_string(folder.join("gpunion.toml"))?;
    let mut table: toml::Table = spec.parse()?;
    table.insert("image".to_owned(), image.into());
    pair.ada.write_in(folder, "gpunion.toml", &toml::to_string(&table)?)
}
