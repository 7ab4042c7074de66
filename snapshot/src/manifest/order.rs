//! The order that entries keep, and the folders that must be there before what is in them. One
//! rule for both directions: nothing is sealed that would not open again.

use super::Entry;
use crate::path::TreePath;

/// The folders on the way to the last entry: what may come next lies in one of them.
#[derive(Default)]
pub(super) struct Folders(Vec<usize>);

impl Folders {
    /// Whether an entry of this path may follow `before`.
    pub(super) fn admit(&mut self, before: &[Entry], path: &TreePath, is_dir: bool) -> bool {
        if before.last().is_some_and(|last| last.path >= *path) {
            return false;
        }
        let (parent, _) = path.split();
        let is_parent = |at: &usize| before.get(*at).map(|folder| folder.path.as_bytes()) == parent;
        while self.0.last().is_some_and(|at| !is_parent(at)) {
            self.0.pop();
        }
        if self.0.is_empty() && parent.is_some() {
            return false;
        }
        if is_dir {
            self.0.push(before.len());
        }
        true
    }
}
