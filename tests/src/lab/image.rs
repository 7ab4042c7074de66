//! Root file systems for images that no registry has, as tar files for `Engine::import`.
//!
//! They are what a member would have made on the own machine; providers never build.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// `FROM scratch`: one static program as `/NAME`, and nothing else. Written to `to`.
pub fn scratch_rootfs(program: &Path, to: &Path) -> Result<PathBuf> {
    ensure_static(program)?;
    let stage = to.with_extension("stage");
    fs::create_dir_all(&stage).with_context(|| format!("making {}", stage.display()))?;
    let name = program.file_name().context("a program has a file name")?;
    let copy = stage.join(name);
    fs::copy(program, &copy).with_context(|| format!("copying {}", program.display()))?;
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--mtime=@0", "--create", "--file"]).arg(to);
    run(tar.arg("--directory").arg(&stage).arg(name))?;
    fs::remove_dir_all(&stage)?;
    Ok(to.to_owned())
}

/// A program that asks for a loader ends, in an image that has none, with "no such file".
fn ensure_static(program: &Path) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let head = &bytes[..bytes.len().min(4096)];
    if head.windows(7).any(|window| window == b"/ld-lin" || window == b"/ld-mus") {
        bail!("{} is not static; `cargo xtask test` builds it so and runs the tests", program.display());
    }
    Ok(())
}

/// A small system with Python and numpy, kept in `cache` (about 270 MB; made in a minute or two by
/// mmdebstrap, the first time).
pub fn python_rootfs(cache: &Path) -> Result<PathBuf> {
    let to = cache.join("python-rootfs.tar");
    if to.exists() {
        return Ok(to);
    }
    fs::create_dir_all(cache).with_context(|| format!("making {}", cache.display()))?;
    let unfinished = cache.join(format!("python-rootfs.{}.tar", std::process::id()));
    let mut command = Command::new("mmdebstrap");
    command
        .args(["--variant=minbase", "--include=python3-minimal,python3-numpy"])
        .args(["--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/doc/*"])
        .args(["--dpkgopt=path-exclude=/usr/share/locale/*", "--aptopt=Acquire::Retries \"3\""])
        .arg(suite())
        .arg(&unfinished);
    run(&mut command).context("install mmdebstrap where it is missing")?;
    // Whole or not there: another test may look for it this moment.
    fs::rename(&unfinished, &to)?;
    Ok(to)
}

/// The machine's own release, whose keys it has; else Debian's.
fn suite() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let found = release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.map(|text| text.trim_matches('"').to_owned())
    };
    match (value("ID").as_deref(), value("VERSION_CODENAME")) {
        (Some("debian" | "ubuntu"), Some(codename)) => codename,
        _ => "bookworm".to_owned(),
    }
}

fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = error.lines().collect();
        bail!("{program}: {}", lines[lines.len().saturating_sub(8)..].join("\n"));
    }
    Ok(())
}
