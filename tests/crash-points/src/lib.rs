//! Crash points, for tests: a debug build that is asked for it ends by SIGKILL just before it
//! passes a named boundary. A release build has none.
//!
//! `GPUNION_CRASH` names a folder. Each boundary that is passed becomes a line of its file
//! `trace`. Its file `at`, "N NAME", ends the process before the Nth of that name from then on,
//! and goes before that, so that the process that is started next passes.
//!
//! Who has boundaries names them; here is only what happens there.

#[cfg(debug_assertions)]
mod folder;

use std::fmt::Debug;

/// The name is made only where somebody listens.
#[cfg(debug_assertions)]
pub fn before(name: impl FnOnce() -> String) {
    if let Some(folder) = folder::ASKED.as_ref()
        && folder::is_the_end(folder, &name())
    {
        let own = rustix::process::getpid();
        let _ = rustix::process::kill_process(own, rustix::process::Signal::KILL);
    }
}

#[cfg(not(debug_assertions))]
pub fn before(_name: impl FnOnce() -> String) {}

/// The first word of its debug form, which is the name of its variant.
pub fn variant(what: &impl Debug) -> String {
    format!("{what:?}").chars().take_while(|letter| letter.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_named_without_what_it_carries() {
        assert_eq!(variant(&Some(3)), "Some");
        assert_eq!(variant(&None::<u8>), "None");
    }
}
