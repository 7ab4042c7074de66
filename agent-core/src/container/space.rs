//! Free space where the engine keeps its data.

use std::path::Path;

/// Bytes free to ordinary users on the file system of the nearest folder that can be asked: the
/// engine's own folder is often closed to us, and may not exist on this side at all.
pub fn free_space(engine_root: &Path) -> Option<u64> {
    engine_root.ancestors().find_map(|folder| {
        let found = rustix::fs::statvfs(folder).ok()?;
        Some(found.f_bavail.saturating_mul(found.f_frsize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_answered_by_its_nearest_parent() {
        assert!(free_space(Path::new("/no/such/folder/at/all")).is_some_and(|bytes| bytes > 0));
    }
}
