//! What of a folder is sent: all of it, without `.git` and without what its ignore file names.
//!
//! `.gpunionignore` where there is one at the top, else `.gitignore` at any depth. Only this
//! folder's own files decide; a `.gitignore` above it does not.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use gpunion_protocol::problem::{Code, Problem};
use ignore::WalkBuilder;

pub const IGNORE_FILE: &str = ".gpunionignore";
const LARGEST: usize = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    pub root: PathBuf,
    /// Relative paths as bytes, folders among them, with the bytes of each file.
    pub kept: BTreeMap<Vec<u8>, u64>,
    pub files: u64,
    pub bytes: u64,
    /// Up to ten, largest first.
    pub largest: Vec<(String, u64)>,
    /// Files and folders that stay here; a folder counts as one.
    pub left_out: u64,
    pub warnings: Vec<String>,
}

/// Whose rules say what stays out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// The folder's ignore files.
    Folder,
    /// None but `.git`: data is often named in a `.gitignore` just because it is large.
    All,
}

/// Walks `root`; `without` are absolute paths below it that travel apart.
pub fn read(root: &Path, rules: Rules, without: &BTreeSet<PathBuf>) -> Result<Tree, Problem> {
    let own_rules = rules == Rules::Folder && root.join(IGNORE_FILE).is_file();
    let apart = without.clone();
    let mut walk = WalkBuilder::new(root);
    walk.standard_filters(false)
        .follow_links(false)
        .require_git(false)
        .git_ignore(rules == Rules::Folder && !own_rules)
        .filter_entry(move |entry| entry.file_name() != ".git" && !apart.contains(entry.path()));
    if own_rules {
        walk.add_custom_ignore_filename(IGNORE_FILE);
    }
    let mut tree = Tree { root: root.to_owned(), ..Tree::default() };
    let mut folders = vec![root.to_owned()];
    for entry in walk.build() {
        let entry = entry.map_err(|error| {
            Problem::new(Code::BadRequest, format!("the folder {} can't be read", root.display()))
                .with_detail(format!("{error}; make it readable, or leave it out in {IGNORE_FILE}"))
        })?;
        if entry.depth() == 0 {
            continue;
        }
        let Ok(path) = entry.path().strip_prefix(root) else { continue };
        let Some(kind) = entry.file_type() else { continue };
        let mut bytes = 0;
        if kind.is_dir() {
            folders.push(entry.path().to_owned());
        } else if kind.is_file() {
            let size = entry.metadata().map_err(|error| unreadable(path, &error.to_string()))?.len();
            tree.files += 1;
            tree.bytes += size;
            bytes = size;
            tree.rank(path, size);
        } else if !kind.is_symlink() {
            tree.warnings.push(format!("{} is no file, folder or link and stays here", path.display()));
            continue;
        }
        tree.kept.insert(path.as_os_str().as_bytes().to_vec(), bytes);
    }
    tree.left_out = count_left_out(&tree, &folders);
    Ok(tree)
}

/// Names at the top of a folder, for a suggestion.
pub fn names(root: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(root) else { return BTreeSet::new() };
    entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

impl Tree {
    /// Whether a path of the walk stays out.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        !self.kept.contains_key(path)
    }

    /// Takes up what a member was shown of this tree: where it is, what is in it, how large.
    pub fn sum(&self, hasher: &mut blake3::Hasher) {
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
        };
        field(self.root.as_os_str().as_bytes());
        field(&(self.kept.len() as u64).to_le_bytes());
        for (path, size) in &self.kept {
            field(path);
            field(&size.to_le_bytes());
        }
    }

    fn rank(&mut self, path: &Path, size: u64) {
        let at = self.largest.partition_point(|(_, other)| *other >= size);
        if at < LARGEST {
            self.largest.insert(at, (path.display().to_string(), size));
            self.largest.truncate(LARGEST);
        }
    }
}

fn count_left_out(tree: &Tree, folders: &[PathBuf]) -> u64 {
    let mut count = 0;
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            let relative = path.strip_prefix(&tree.root).unwrap_or(&path);
            count += u64::from(tree.leaves_out(relative.as_os_str().as_bytes()));
        }
    }
    count
}

fn unreadable(path: &Path, why: &str) -> Problem {
    Problem::new(Code::BadRequest, format!("{} can't be read", path.display()))
        .with_detail(format!("{why}; make it readable, or leave it out in {IGNORE_FILE}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let at = |path: &str| folder.path().join(path);
        for dir in [".git/objects", "src", "venv/lib", "dataset"] {
            fs::create_dir_all(at(dir)).unwrap();
        }
        for (path, size) in [
            (".git/objects/x", 9000),
            ("src/a.py", 10),
            (".env", 3),
            ("venv/lib/big", 5000),
            ("dataset/d.csv", 700),
        ] {
            fs::write(at(path), vec![1; size]).unwrap();
        }
        folder
    }

    fn kept(tree: &Tree) -> Vec<String> {
        tree.kept.keys().map(|path| String::from_utf8(path.clone()).unwrap()).collect()
    }

    #[test]
    fn f98_git_never_travels_and_ignore_files_count() {
        let folder = folder();
        fs::write(folder.path().join(".gitignore"), "venv/\n").unwrap();
        fs::write(folder.path().join("src/.gitignore"), "*.log\n").unwrap();
        fs::write(folder.path().join("src/x.log"), "x").unwrap();
        let tree = read(folder.path(), Rules::Folder, &BTreeSet::new()).unwrap();
        assert_eq!(
            kept(&tree),
            [".env", ".gitignore", "dataset", "dataset/d.csv", "src", "src/.gitignore", "src/a.py"]
        );
        assert_eq!((tree.files, tree.left_out), (5, 3));
        assert_eq!(tree.largest[0], ("dataset/d.csv".to_owned(), 700));
    }

    #[test]
    fn gpunionignore_stands_in_for_gitignore() {
        let folder = folder();
        fs::write(folder.path().join(".gitignore"), "dataset\n").unwrap();
        fs::write(folder.path().join(IGNORE_FILE), "/venv\n.env\n").unwrap();
        let tree = read(folder.path(), Rules::Folder, &BTreeSet::new()).unwrap();
        assert!(tree.kept.contains_key(b"dataset/d.csv".as_slice()));
        assert!(tree.leaves_out(b".env") && tree.leaves_out(b"venv") && tree.leaves_out(b".git"));
    }

    #[test]
    fn data_that_travels_apart_is_not_in_the_input() {
        let folder = folder();
        fs::write(folder.path().join(".gitignore"), "dataset\nvenv\n").unwrap();
        let apart = BTreeSet::from([folder.path().join("dataset")]);
        let tree = read(folder.path(), Rules::Folder, &apart).unwrap();
        assert!(tree.leaves_out(b"dataset"));
        let data = read(&folder.path().join("dataset"), Rules::All, &BTreeSet::new()).unwrap();
        assert_eq!(kept(&data), ["d.csv"]);
    }
}
