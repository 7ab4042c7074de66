//! From what a member names (a folder, a `gpunion.toml`, an image) to the job that results, before
//! anything is sent.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use gpunion_protocol::local::{DataPreview, Preview, PreviewRequest, Thing};
use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::spec::{self, JobSpec};
use gpunion_protocol::units::Bytes;

use super::Consumer;
use super::images::{Found, local_image};
use super::suggest;
use super::tree::{self, Rules, Tree};

/// All that a submit needs to know, and a preview shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub spec: JobSpec,
    pub secrets_missing: Vec<String>,
    pub image_suggested: Option<String>,
    pub image: Found,
    /// The job's input; absent for a bare image.
    pub input: Option<Tree>,
    /// Where each `[[data]]` goes in the guest, and what it is.
    pub data: Vec<(String, Tree)>,
    pub warnings: Vec<String>,
}

impl Consumer {
    /// What would be sent.
    pub async fn preview(&self, request: &PreviewRequest) -> Result<Preview, Problem> {
        self.plan(request).await?.preview()
    }

    pub(super) async fn plan(&self, request: &PreviewRequest) -> Result<Plan, Problem> {
        let asked = request.clone();
        let read = tokio::task::spawn_blocking(move || read(&asked)).await;
        let mut plan = read.map_err(|error| Problem::new(Code::Internal, error.to_string()))??;
        if !plan.spec.image.is_empty() {
            plan.spec.check().map_err(|error| Problem::new(Code::BadSpec, error.to_string()))?;
            plan.image = local_image(&*self.images, &plan.spec.image).await;
        }
        Ok(plan)
    }
}

impl Plan {
    /// Names what a member is shown: the spec, and what each tree holds.
    pub(super) fn digest(&self) -> Result<String, Problem> {
        let spec = serde_json::to_vec(&self.spec).map_err(|error| {
            Problem::new(Code::Internal, "the spec has no JSON form").with_detail(error.to_string())
        })?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(spec.len() as u64).to_le_bytes()).update(&spec);
        for tree in self.input.iter().chain(self.data.iter().map(|(_, tree)| tree)) {
            tree.sum(&mut hasher);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    fn preview(self) -> Result<Preview, Problem> {
        let digest = self.digest()?;
        let trees = || {
            self.input.iter().map(|tree| ("", tree)).chain(self.data.iter().map(|(at, t)| (at.as_str(), t)))
        };
        let mut largest: Vec<(String, u64)> = trees()
            .flat_map(|(at, tree)| {
                tree.largest.iter().map(move |(path, size)| {
                    (if at.is_empty() { path.clone() } else { format!("{at}/{path}") }, *size)
                })
            })
            .collect();
        largest.sort_by_key(|(_, size)| std::cmp::Reverse(*size));
        largest.truncate(10);
        Ok(Preview {
            digest,
            data: self
                .data
                .iter()
                .map(|(at, tree)| DataPreview {
                    from: tree.root.clone(),
                    at: at.clone(),
                    files: tree.files,
                    bytes: tree.bytes,
                })
                .collect(),
            files: trees().map(|(_, tree)| tree.files).sum(),
            bytes: trees().map(|(_, tree)| tree.bytes).sum(),
            left_out: trees().map(|(_, tree)| tree.left_out).sum(),
            largest,
            warnings: trees()
                .flat_map(|(_, tree)| tree.warnings.clone())
                .chain(self.warnings.clone())
                .collect(),
            image_from: self.image.words(),
            spec: self.spec,
            secrets_missing: self.secrets_missing,
            image_suggested: self.image_suggested,
        })
    }
}

/// Reads the folder; blocks.
fn read(request: &PreviewRequest) -> Result<Plan, Problem> {
    let (folder, mut spec) = match &request.thing {
        Thing::Image(reference) => (None, JobSpec::of_image(reference)),
        Thing::Folder(path) => {
            let (folder, spec) = folder_and_spec(path)?;
            (Some(folder), spec)
        }
    };
    if let Some(image) = &request.image {
        spec.image.clone_from(image);
    }
    if let Some(name) = &request.name {
        spec.name.clone_from(name);
    }
    if !request.args.is_empty() {
        spec.command.clone_from(&request.args);
    }
    let mut warnings = Vec::new();
    let mut plan = Plan {
        secrets_missing: spec
            .secrets
            .keys()
            .filter(|name| !request.secrets.contains_key(*name))
            .cloned()
            .collect(),
        image_suggested: None,
        image: Found::NotLooked,
        input: None,
        data: Vec::new(),
        warnings: Vec::new(),
        spec,
    };
    if let Some(folder) = folder {
        if plan.spec.image.is_empty() {
            plan.image_suggested = suggest::image(&tree::names(&folder)).map(str::to_owned);
        }
        let mut apart = BTreeSet::new();
        for data in &plan.spec.data {
            let path = folder.join(&data.path);
            let path = path.canonicalize().map_err(|error| {
                Problem::new(Code::BadSpec, format!("data.path = {:?} can't be read", data.path))
                    .with_detail(format!("{}: {error}", path.display()))
            })?;
            if !path.is_dir() {
                return Err(Problem::new(
                    Code::BadSpec,
                    format!("data.path = {:?} is not a folder", data.path),
                )
                .with_detail("put the file into a folder of its own and name that"));
            }
            if !path.starts_with(&folder) {
                warnings.push(format!(
                    "data.path = {:?} lies outside the job's folder: {} will be sent",
                    data.path,
                    path.display()
                ));
            }
            plan.data.push((data.at.clone(), tree::read(&path, Rules::All, &BTreeSet::new())?));
            apart.insert(path);
        }
        plan.input = Some(tree::read(&folder, Rules::Folder, &apart)?);
        if plan.spec.command.is_empty() {
            warnings.push(
                "no command is named; the image's own runs (name one after --, or in gpunion.toml)"
                    .to_owned(),
            );
        }
    } else if !plan.spec.data.is_empty() {
        return Err(Problem::new(Code::BadSpec, "an image alone has no folder to take [[data]] from"));
    }
    let bytes: u64 =
        plan.input.iter().chain(plan.data.iter().map(|(_, tree)| tree)).map(|tree| tree.bytes).sum();
    if bytes > plan.spec.resources.disk.0 {
        warnings.push(format!(
            "{} will be sent, but resources.disk is {}; raise it, or leave files out",
            Bytes(bytes),
            plan.spec.resources.disk
        ));
    }
    plan.warnings = warnings;
    Ok(plan)
}

/// The folder that travels, and its spec: from a spec file that was named, or that lies in it.
fn folder_and_spec(path: &Path) -> Result<(PathBuf, JobSpec), Problem> {
    let missing = |error: std::io::Error| {
        Problem::new(Code::BadRequest, format!("{} can't be read", path.display()))
            .with_detail(error.to_string())
    };
    let path = path.canonicalize().map_err(missing)?;
    let (folder, file) = if path.is_dir() {
        let file = path.join(spec::FILE_NAME);
        (path, file.is_file().then_some(file))
    } else {
        let folder = path.parent().unwrap_or(Path::new("/")).to_owned();
        (folder, Some(path))
    };
    let called =
        || folder.file_name().map_or_else(|| "job".to_owned(), |name| name.to_string_lossy().into_owned());
    let Some(file) = file else {
        let mut spec = JobSpec::of_image("");
        spec.name = called();
        return Ok((folder, spec));
    };
    let bad = |why: String| Problem::new(Code::BadSpec, format!("{}: {why}", file.display()));
    let text = std::fs::read_to_string(&file).map_err(|error| bad(error.to_string()))?;
    let json = file.extension().is_some_and(|ending| ending == "json");
    let read = if json { spec::from_json(&text) } else { spec::from_toml(&text) };
    let mut spec = read.map_err(|error| bad(error.to_string()))?;
    if spec.name.is_empty() {
        spec.name = called();
    }
    Ok((folder, spec))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn request(path: &Path) -> PreviewRequest {
        PreviewRequest {
            thing: Thing::Folder(path.to_owned()),
            image: None,
            name: None,
            args: Vec::new(),
            secrets: Default::default(),
        }
    }

    #[test]
    fn a_folder_with_a_spec_becomes_its_job() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap();
        fs::create_dir(path.join("dataset")).unwrap();
        fs::write(path.join("dataset/a"), [7; 100]).unwrap();
        fs::write(path.join("train.py"), "print(1)").unwrap();
        fs::write(
            path.join("gpunion.toml"),
            "image = \"python:3.12\"\n[secrets]\nHF_TOKEN = {}\nOTHER = {}\n[[data]]\npath = \"dataset/\"\nat = \"/data\"\n",
        )
        .unwrap();
        let mut asked = request(&path.join("gpunion.toml"));
        asked.args = vec!["python".to_owned(), "train.py".to_owned()];
        asked.secrets.insert("OTHER".to_owned(), "x".to_owned());
        let plan = read(&asked).unwrap();
        assert_eq!(plan.spec.command, asked.args);
        assert_eq!(plan.secrets_missing, ["HF_TOKEN"]);
        assert_eq!(Some(plan.spec.name.as_str()), path.file_name().unwrap().to_str());
        let input = plan.input.as_ref().unwrap();
        assert!(input.leaves_out(b"dataset") && input.kept.contains_key(b"train.py".as_slice()));
        assert_eq!(plan.data[0].1.bytes, 100);
        let preview = plan.preview().unwrap();
        assert_eq!((preview.data[0].from.clone(), preview.data[0].bytes), (path.join("dataset"), 100));
        assert!(preview.warnings.is_empty(), "{:?}", preview.warnings);
        assert!(preview.largest.iter().any(|(path, size)| path == "/data/a" && *size == 100));
    }

    #[test]
    fn data_from_outside_the_folder_is_told() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        fs::create_dir_all(home.join(".ssh")).unwrap();
        fs::create_dir_all(home.join("job")).unwrap();
        fs::write(home.join(".ssh/id"), "key").unwrap();
        std::os::unix::fs::symlink("../.ssh", home.join("job/link")).unwrap();
        for path in ["../.ssh", "link", home.join(".ssh").to_str().unwrap()] {
            let spec =
                format!("image = \"a:1\"\ncommand = [\"x\"]\n[[data]]\npath = {path:?}\nat = \"/data\"\n");
            fs::write(home.join("job/gpunion.toml"), spec).unwrap();
            let preview = read(&request(&home.join("job"))).unwrap().preview().unwrap();
            assert_eq!(preview.data[0].from, home.join(".ssh"), "{path}");
            let shown = home.join(".ssh").display().to_string();
            assert!(
                preview.warnings.iter().any(|w| w.contains("outside") && w.contains(&shown)),
                "{preview:?}"
            );
        }
    }

    #[test]
    fn a_digest_changes_with_what_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("gpunion.toml"), "image = \"a:1\"\ncommand = [\"x\"]\n").unwrap();
        fs::write(at("a"), "1").unwrap();
        let mut asked = request(folder.path());
        let digest = |asked: &PreviewRequest| read(asked).unwrap().digest().unwrap();
        let first = digest(&asked);
        assert_eq!(digest(&asked), first);
        fs::write(at("b"), "").unwrap();
        let second = digest(&asked);
        fs::write(at("a"), "12").unwrap();
        let third = digest(&asked);
        asked.args = vec!["y".to_owned()];
        let all = BTreeSet::from([first, second, third, digest(&asked)]);
        assert_eq!(all.len(), 4, "a new file, a longer one, another command");
    }

    #[test]
    fn a_folder_without_a_spec_is_given_a_suggestion() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("requirements.txt"), "numpy").unwrap();
        let plan = read(&request(folder.path())).unwrap();
        assert_eq!(plan.image_suggested.as_deref(), Some("python:3.12-slim"));
        assert!(plan.spec.image.is_empty());
    }

    #[test]
    fn a_wrong_spec_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("gpunion.toml"), "imgae = \"x\"").unwrap();
        let problem = read(&request(folder.path())).unwrap_err();
        assert_eq!(problem.code, Code::BadSpec);
        assert!(
            problem.to_string().contains("`image`") && problem.to_string().contains("gpunion.toml"),
            "{problem}"
        );
    }
}
