//! One campus for all tests of this program: made by the first, taken down after the last.
//!
//! A value in a static is never dropped, so the tests that will run are counted beforehand, and
//! each holds a share for as long as it runs.

use std::ops::Deref;
use std::process::Command;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::world::World;

static WORLD: RwLock<Option<World>> = RwLock::new(None);
/// Tests that have not ended yet.
static LEFT: Mutex<Option<usize>> = Mutex::new(None);

/// The campus, while a test runs.
pub(crate) struct Share(Option<RwLockReadGuard<'static, Option<World>>>);

pub(crate) fn world() -> Share {
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    if left.is_none() {
        *left = Some(count());
        *WORLD.write().unwrap() = Some(World::make());
    }
    drop(left);
    Share(Some(WORLD.read().unwrap()))
}

/// How many tests this program was asked to run: it is asked again, for a list.
fn count() -> usize {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let list = command.args(std::env::args().skip(1)).arg("--list").output().unwrap();
    String::from_utf8_lossy(&list.stdout).lines().filter(|line| line.ends_with(": test")).count()
}

impl Deref for Share {
    type Target = World;

    fn deref(&self) -> &World {
        let world = self.0.as_ref().and_then(|world| world.as_ref());
        world.unwrap_or_else(|| panic!("the campus could not be made; the first test says why"))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0 = None;
        let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.map(|left| left.saturating_sub(1));
        if *left == Some(0)
            && let Ok(mut world) = WORLD.write()
        {
            *world = None;
        }
    }
}
