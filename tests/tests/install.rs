//! `agent install` and `relay install`: what they write, run and print, with a systemd and without.
//!
//! Where this machine has no systemd, one is stood in for: the folder by which it is known, in a
//! mount namespace, and `systemctl` and `loginctl` that write down what they are asked.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use system_tests::campus::{Campus, Ran, login};
use system_tests::lab::User;

/// A machine with or without a systemd, and an ordinary user on it.
struct Machine {
    user: User,
    /// Holds `systemctl` and `loginctl`; what they were asked is in `asked`.
    tools: PathBuf,
    systemd: bool,
    campus: Campus,
}

const TOOL: &str =
    "#!/bin/sh\necho \"$(basename \"$0\") $*\" >>\"$ASKED\"\ncase \"$*\" in *show*MainPID*) echo 0 ;; esac\n";

impl Machine {
    fn new(systemd: bool) -> Result<Self> {
        let campus = Campus::new()?;
        let user = campus.lab.user("ada")?;
        let tools = campus.lab.shared_folder("tools")?;
        for name in ["systemctl", "loginctl"] {
            fs::write(tools.join(name), TOOL)?;
            fs::set_permissions(tools.join(name), fs::Permissions::from_mode(0o755))?;
        }
        Ok(Self { user, tools, systemd, campus })
    }

    /// `gpunion` as this user, or as root.
    fn gpunion(&self, root: bool, words: &[&str]) -> Result<Ran> {
        let inner =
            if root { Command::new(self.campus.program()) } else { self.user.command(self.campus.program()) };
        // A run folder of its own: with the mark of a systemd, or without.
        let mark = if self.systemd { "mkdir /run/systemd/system" } else { "true" };
        let script = format!(
            "mkdir -p /run/systemd && mount -t tmpfs none /run/systemd && {mark} && {} exec \"$0\" \"$@\"",
            if root {
                format!(
                    "mount -t tmpfs none /etc/systemd && mount --bind {0}/etc /etc/systemd &&",
                    self.tools.display()
                )
            } else {
                String::new()
            }
        );
        if root {
            fs::create_dir_all(self.tools.join("etc/system"))?;
        }
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.arg(inner.get_program()).args(inner.get_args()).args(words).env_clear();
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", self.tools.display()));
        command.env("ASKED", self.tools.join("asked")).stdin(Stdio::null());
        let output = command.output().context("unshare")?;
        Ok(Ran {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// What systemd was asked since the last time, without questions.
    fn asked(&self) -> Vec<String> {
        let asked = fs::read_to_string(self.tools.join("asked")).unwrap_or_default();
        let _ = fs::remove_file(self.tools.join("asked"));
        asked.lines().filter(|line| !line.contains("MainPID")).map(str::to_owned).collect()
    }

    fn unit(&self, name: &str) -> PathBuf {
        self.user.home().join(".config/systemd/user").join(name)
    }
}

/// systemd's own reading of a unit, where its checker is installed.
fn verified(unit: &Path) -> Result<()> {
    let Ok(output) = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output() else {
        return Ok(());
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> =
        said.lines().filter(|line| line.contains("gpunion-") && !line.contains("nvidia-modprobe")).collect();
    ensure!(ours.is_empty(), "systemd does not like it: {ours:?}");
    Ok(())
}

#[test]
fn an_agent_is_installed_where_there_is_a_systemd() -> Result<()> {
    let machine = Machine::new(true)?;
    let install = ["agent", "install", "--engine", "/run/docker.sock", "--device-name", "desk"];
    let ran = machine.gpunion(false, &install)?.ok()?;
    let unit = machine.unit("gpunion-agent.service");
    let text = fs::read_to_string(&unit)?;
    let exec = format!("ExecStart={} agent --token-file\n", machine.campus.program().display());
    ensure!(
        text.contains(&exec) && text.contains("Restart=always") && text.contains("WantedBy=default.target"),
        "{text}"
    );
    verified(&unit)?;
    let first = [
        "systemctl --user daemon-reload",
        "systemctl --user enable --now gpunion-agent.service",
        "loginctl enable-linger",
    ];
    ensure!(machine.asked() == first, "{ran:?}");
    for said in [&format!("wrote {}", unit.display()), first[1], first[2]] {
        ensure!(ran.out.contains(said), "{said:?} is not in {ran:?}");
    }
    let settings = machine.user.home().join(".local/share/gpunion/settings.toml");
    let saved: toml::Table = fs::read_to_string(&settings)?.parse()?;
    ensure!(
        saved["token_store"].as_str() == Some("file") && saved["device_name"].as_str() == Some("desk"),
        "{saved}"
    );

    // Again: nothing is written, nothing restarted. With another program: it is.
    let again = machine.gpunion(false, &install)?.ok()?;
    ensure!(machine.asked() == first && !again.out.contains("wrote"), "{again:?}");
    fs::write(&unit, text.replace("RestartSec=5", "RestartSec=50"))?;
    machine.gpunion(false, &install)?.ok()?;
    let asked = machine.asked();
    ensure!(asked.contains(&"systemctl --user restart gpunion-agent.service".to_owned()), "{asked:?}");

    let gone = machine.gpunion(false, &["agent", "install", "--uninstall"])?.ok()?;
    ensure!(!unit.exists() && gone.out.contains("removed"), "{gone:?}");
    ensure!(machine.asked()[0] == "systemctl --user disable --now gpunion-agent.service");
    let twice = machine.gpunion(false, &["agent", "install", "--uninstall"])?.ok()?;
    ensure!(machine.asked().is_empty() && twice.out.contains("is not there"), "{twice:?}");
    Ok(())
}

#[test]
fn without_a_systemd_the_unit_is_printed_with_what_to_do() -> Result<()> {
    let machine = Machine::new(false)?;
    let ran = machine.gpunion(false, &["agent", "install"])?.ok()?;
    ensure!(ran.out.starts_with("[Unit]\n") && ran.out.contains("ExecStart="), "{ran:?}");
    ensure!(ran.err.contains("there is no systemd here") && ran.err.contains("@reboot '"), "{ran:?}");
    ensure!(machine.asked().is_empty() && !machine.unit("gpunion-agent.service").exists());
    let ran = machine.gpunion(false, &["--json", "agent", "install"])?.ok()?;
    let object: Value = ran.json()?;
    ensure!(object["installed"] == false && object["to_do"][0].as_str().is_some(), "{object}");
    // The line for cron runs: its program is there, and its words are its own.
    let line = object["to_do"][0].as_str().context("a sentence")?;
    let line = line
        .split("@reboot ")
        .nth(1)
        .context("a line for cron")?
        .replace("agent' '--token-file'", "agent' '--help'");
    let started = machine.user.command("sh").args(["-c", &line]).status()?;
    let log = machine.user.home().join(".local/share/gpunion/agent.log");
    ensure!(started.success() && fs::read_to_string(log)?.contains("Usage: gpunion agent"), "{line}");
    Ok(())
}

#[test]
fn a_unit_of_the_system_runs_as_an_ordinary_user() -> Result<()> {
    let machine = Machine::new(true)?;
    let name = machine.user.name().to_owned();
    let data = machine.user.home().join("gp");
    let data = data.to_str().context("a path")?;
    let refused = machine.gpunion(true, &["agent", "install"])?;
    ensure!(refused.code == Some(2) && refused.err.contains("--system --user"), "{refused:?}");
    let refused = machine.gpunion(true, &["agent", "install", "--system", "--user", "root"])?;
    ensure!(refused.code == Some(2) && refused.err.contains("must not run as root"), "{refused:?}");

    let install =
        ["--data", data, "agent", "install", "--system", "--user", &name, "--device-name", "server"];
    let ran = machine.gpunion(true, &install)?.ok()?;
    let unit = machine.tools.join("etc/system/gpunion-agent.service");
    let text = fs::read_to_string(&unit)?;
    ensure!(
        text.contains(&format!("User={name}\n")) && text.contains(&format!("--data {data} agent")),
        "{text}"
    );
    verified(&unit)?;
    ensure!(
        machine.asked() == ["systemctl daemon-reload", "systemctl enable --now gpunion-agent.service"],
        "{ran:?}"
    );
    // What is the user's was written by the user.
    let settings = machine.user.home().join("gp/settings.toml");
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(&settings)?);
    ensure!(owner == machine.user.uid() && fs::read_to_string(&settings)?.contains("server"), "{owner}");

    // The user alone prepares it, and is told what root must do.
    let mine = machine.gpunion(false, &["--data", data, "agent", "install", "--system"])?.ok()?;
    ensure!(
        mine.out == text && mine.err.contains("as root: write the above to /etc/systemd/system"),
        "{mine:?}"
    );
    ensure!(machine.asked().is_empty());
    Ok(())
}

#[test]
fn a_relay_is_installed_and_its_link_goes_to_no_journal() -> Result<()> {
    let machine = Machine::new(true)?;
    let state = machine.user.home().join("my relay");
    let state = state.to_str().context("a path")?;
    let words = [
        "relay",
        "install",
        "--state",
        state,
        "--address",
        "relay.lab.example:7443",
        "--group",
        "vision lab",
    ];
    let ran = machine.gpunion(false, &words)?.ok()?;
    let unit = machine.unit("gpunion-relay.service");
    let text = fs::read_to_string(&unit)?;
    let exec = format!(
        "relay serve --state \"{state}\" --listen 0.0.0.0:7443 --address relay.lab.example:7443 --group \"vision lab\"\n"
    );
    ensure!(text.contains(&exec) && text.contains("StandardOutput=null"), "{text}");
    verified(&unit)?;
    ensure!(ran.err.contains("gpunion relay invite --role operator"), "{ran:?}");
    ensure!(machine.asked()[1] == "systemctl --user enable --now gpunion-relay.service");
    Ok(())
}

#[test]
fn an_agent_in_the_foreground_is_not_fought_with() -> Result<()> {
    let machine = Machine::new(true)?;
    let data = machine.user.home().join("gp");
    fs::create_dir(&data)?;
    chown(&data, Some(machine.user.uid()), Some(machine.user.gid()))?;
    // Another process of the user has the folder, as an agent has.
    let lock = data.join("agent.lock");
    let script = format!(
        "exec 9>'{0}'; flock -n 9 || exit 1; echo '\"desk\" with pid '$$ >&9; echo held; cat",
        lock.display()
    );
    let mut holder = machine
        .user
        .command("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = std::io::BufReader::new(holder.stdout.take().context("its stdout")?);
    std::io::BufRead::read_line(&mut said, &mut String::new())?;
    let data = data.to_str().context("a path")?;
    let refused = machine.gpunion(false, &["--data", data, "agent", "install"])?;
    drop(holder.stdin.take());
    holder.wait()?;
    ensure!(
        refused.code == Some(1) && refused.err.contains("stop that agent") && refused.err.contains("desk"),
        "{refused:?}"
    );
    ensure!(machine.asked().is_empty() && !machine.unit("gpunion-agent.service").exists());
    machine.gpunion(false, &["--data", data, "agent", "install"])?.ok()?;
    Ok(())
}

/// A login's keyring, then the machine that starts with nobody logged in.
const SESSION: &str = r#"
agent
gp join "$LINK" --name ada >/dev/null
connected
kill $pid; wait $pid || true
gp agent install --prepare
echo "in the keyring: $(secret-tool search --all service gpunion 2>&1 | grep -c '^secret = ' || true)"
echo "mode: $(stat -c %a "$HOME/gp/identity.json")"
unset DBUS_SESSION_BUS_ADDRESS
agent --token-file
connected
echo "connected without a keyring"
kill $pid; wait $pid || true
"#;

#[test]
fn f105_the_token_moves_from_the_keyring_into_a_private_file() -> Result<()> {
    let campus = Campus::new()?;
    let relay = campus.relay(campus.lab.user("op")?)?;
    let ada = campus.lab.user("ada")?;
    let wanted =
        ["in the keyring: 0", "mode: 600", "connected without a keyring", "moved this device's token"];
    login::session(&campus, &relay, &ada, SESSION, &wanted)?;
    Ok(())
}
