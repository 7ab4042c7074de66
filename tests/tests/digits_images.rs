//! `examples/digits` as a member's images on a real engine, in both forms: killed in the middle
//! and started again in another container, it ends with the bytes of an undisturbed training.
//!
//! No GPUnion here: this proves the example, so that other tests may build on it.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::lab::{DEFAULT_BASE, Engine, Lab, python_rootfs, scratch_rootfs, wait_for};

const LIMIT: Duration = Duration::from_secs(120);

/// A uid that is nobody's on the host.
const NOBODYS: u32 = 231_072;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits")
}

/// The folder of finished programs; `cargo xtask test` puts the static ones there.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_lab")).parent().unwrap().to_owned()
}

/// What differs between the two forms.
struct Form<'a> {
    engine: &'a Engine,
    image: &'a str,
    command: &'a [&'a str],
    /// Copied into each workspace: (from, to).
    files: &'a [(PathBuf, &'a str)],
}

impl Form<'_> {
    fn workspace(&self, lab: &Lab, name: &str) -> PathBuf {
        let folder = lab.dir().join(name);
        for (from, to) in self.files {
            let to = folder.join(to);
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(from, &to).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
            fs::set_permissions(&to, fs::Permissions::from_mode(0o644)).unwrap();
        }
        chown(&folder, Some(NOBODYS), Some(NOBODYS)).unwrap();
        folder
    }

    /// Starts a hardened container on the workspace.
    fn start(&self, workspace: &Path, epoch_seconds: &str) -> String {
        let spec = json!({
            "Image": self.image,
            "Cmd": self.command,
            "User": format!("{NOBODYS}:{NOBODYS}"),
            "WorkingDir": "/workspace",
            "Env": ["EPOCHS=10", format!("EPOCH_SECONDS={epoch_seconds}"), "OPENBLAS_NUM_THREADS=1"],
            "HostConfig": {
                "Binds": [format!("{}:/workspace", workspace.display())],
                "NetworkMode": "none",
                "ReadonlyRootfs": true,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges"],
            },
        });
        let made = self.engine.call("POST", "/containers/create", Some(&spec)).unwrap().ok().unwrap();
        let id = made.json().unwrap()["Id"].as_str().unwrap().to_owned();
        self.engine.call("POST", &format!("/containers/{id}/start"), None).unwrap().ok().unwrap();
        id
    }

    fn state(&self, id: &str) -> Value {
        let shown = self.engine.call("GET", &format!("/containers/{id}/json"), None).unwrap();
        shown.ok().unwrap().json().unwrap()["State"].clone()
    }

    fn log(&self, id: &str) -> String {
        let path = format!("/containers/{id}/logs?stdout=1&stderr=1");
        self.engine.call("GET", &path, None).unwrap().body
    }

    fn finish(&self, workspace: &Path) -> String {
        let id = self.start(workspace, "0");
        wait_for("the end of the training", LIMIT, || {
            Ok((!self.state(&id)["Running"].as_bool().unwrap()).then_some(()))
        })
        .unwrap();
        let log = self.log(&id);
        assert_eq!(self.state(&id)["ExitCode"], 0, "{log}");
        log
    }

    /// The whole proof for one form.
    fn holds(&self, lab: &Lab) {
        let undisturbed = self.workspace(lab, "undisturbed");
        self.finish(&undisturbed);
        let disturbed = self.workspace(lab, "disturbed");
        let id = self.start(&disturbed, "2");
        wait_for("an epoch or two", LIMIT, || Ok(self.log(&id).contains("epoch 2/10 loss").then_some(())))
            .unwrap();
        self.engine.call("POST", &format!("/containers/{id}/kill"), None).unwrap().ok().unwrap();
        assert!(!disturbed.join("weights.bin").exists(), "it was in the middle");
        let log = self.finish(&disturbed);
        assert!(log.contains("resuming"), "{log}");
        for name in ["weights.bin", "result.json"] {
            let [one, other] = [&undisturbed, &disturbed].map(|folder| fs::read(folder.join(name)).unwrap());
            assert!(one == other, "{name} differs");
        }
        let result: Value =
            serde_json::from_slice(&fs::read(disturbed.join("result.json")).unwrap()).unwrap();
        assert!(result["accuracy"].as_f64().unwrap() > 0.95, "{result}");
    }
}

#[test]
fn the_static_program_needs_nothing_in_its_image() {
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let engine = lab.engine("static").unwrap();
    let rootfs = scratch_rootfs(&programs().join("digits"), &lab.dir().join("digits.tar")).unwrap();
    engine.import(&rootfs, "digits:latest").unwrap();
    let files = [(examples().join("dataset/digits.csv"), "dataset/digits.csv")];
    Form { engine: &engine, image: "digits:latest", command: &["/digits"], files: &files }.holds(&lab);
}

#[test]
fn the_python_form_runs_on_plain_python_and_numpy() {
    let cache = programs().join("../lab-cache");
    let rootfs = python_rootfs(&cache).unwrap();
    let lab = Lab::new(DEFAULT_BASE).unwrap();
    let engine = lab.engine("python").unwrap();
    engine.import(&rootfs, "digits-python:latest").unwrap();
    let python = examples().join("python");
    let files = [(python.join("train.py"), "train.py"), (python.join("digits.csv.gz"), "digits.csv.gz")];
    let command = ["python3", "train.py"];
    Form { engine: &engine, image: "digits-python:latest", command: &command, files: &files }.holds(&lab);
}

/// Each form is a folder of its own, so the data set is there twice; packed or not, it is one.
#[test]
fn both_forms_have_the_same_digits() {
    let unpacked = std::process::Command::new("gzip")
        .args(["--decompress", "--stdout"])
        .arg(examples().join("python/digits.csv.gz"))
        .output()
        .unwrap();
    assert!(unpacked.status.success());
    assert!(unpacked.stdout == fs::read(examples().join("dataset/digits.csv")).unwrap());
}

#[test]
fn both_specs_are_what_a_member_may_write() {
    for (file, image) in [("gpunion.toml", "digits:latest"), ("python/gpunion.toml", "digits-python:latest")]
    {
        let text = fs::read_to_string(examples().join(file)).unwrap();
        let spec = gpunion_protocol::spec::from_toml(&text).unwrap();
        assert_eq!((spec.image.as_str(), spec.resources.gpus), (image, 1), "{file}");
    }
}
