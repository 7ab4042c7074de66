//! The folder that a test and a process that it may end share.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

pub(crate) static ASKED: LazyLock<Option<PathBuf>> =
    LazyLock::new(|| std::env::var_os("GPUNION_CRASH").map(PathBuf::from));

/// Notes the pass, and whether it is the one that the process must not make.
pub(crate) fn is_the_end(folder: &Path, name: &str) -> bool {
    let trace = File::options().create(true).append(true).open(folder.join("trace"));
    // What can't be traced is passed all the same: the test misses it.
    let _ = trace.and_then(|mut trace| trace.write_all(format!("{name}\n").as_bytes()));
    let at = folder.join("at");
    let Ok(text) = fs::read_to_string(&at) else { return false };
    let Some((nth, wanted)) = text.trim().split_once(' ') else { return false };
    if wanted != name {
        return false;
    }
    match nth.parse::<u32>() {
        // One that can't be removed would end the next process as well, and that one for ever.
        Ok(0..=1) => fs::remove_file(&at).is_ok(),
        Ok(nth) => {
            let _ = fs::write(&at, format!("{} {name}", nth - 1));
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_of_a_name_is_the_end_once_and_all_passes_are_traced() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let passes = ["Do Upload", "Commit", "Do Upload", "Do Upload"];
        let ends = || passes.map(|name| is_the_end(folder, name));
        assert_eq!(ends(), [false; 4], "nothing is asked for");
        fs::write(folder.join("at"), "2 Do Upload").unwrap();
        assert_eq!(ends(), [false, false, true, false]);
        assert!(!folder.join("at").exists(), "the next process passes");
        let trace = fs::read_to_string(folder.join("trace")).unwrap();
        assert_eq!(trace.lines().collect::<Vec<_>>(), [passes, passes].concat());
    }

    #[test]
    fn what_makes_no_sense_ends_nobody() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "Commit", "x Commit", "1"] {
            fs::write(folder.path().join("at"), text).unwrap();
            assert!(!is_the_end(folder.path(), "Commit"), "{text:?}");
        }
    }
}
