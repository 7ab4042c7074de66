//! `cargo xtask demo`: gets the machine ready, builds, and hands over to the demo itself.
//!
//! The scenario is `tests/src/bin/demo/`; here is what must be there before it. stdout is the
//! demo's alone, for its JSON.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use crate::build::{build_guests, build_programs, programs};
use crate::command::{as_root, root};
use crate::handover::{Ended, hand_over, sweep};
use crate::setup;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Install what is missing without asking.
    #[arg(long)]
    yes: bool,
    /// Print one JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
    /// Leave everything running at the end, and say how to reach it.
    #[arg(long)]
    keep: bool,
}

/// With `--json` there is an object whatever happens: the demo's own, or one that says why there
/// was no demo.
pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    match play(options) {
        Ok(Ended::With(code)) => Ok(ExitCode::from(code)),
        Ok(Ended::Killed) => {
            if options.json {
                println!("{}", not_shown("the demo was killed"));
            }
            Ok(ExitCode::FAILURE)
        }
        Err(error) if options.json => {
            eprintln!("xtask: {error:#}");
            println!("{}", not_shown(&format!("{error:#}")));
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error),
    }
}

/// The demo's object, of a demo that never began or never ended.
fn not_shown(why: &str) -> Value {
    json!({
        "ok": false, "accuracy": null, "timeline": {}, "receipt": null, "finished_elsewhere": false,
        "failures": [why],
    })
}

fn play(options: &Options) -> Result<Ended> {
    setup::ready(setup::FOR_DEMO, options.yes)?;
    eprintln!("Building (some minutes the first time)");
    build_programs()?;
    let programs = programs()?;
    build_guests(&programs)?;
    let mut demo = as_root(programs.join("demo"))?;
    demo.current_dir(root());
    for (wanted, argument) in [(options.json, "--json"), (options.keep, "--keep")] {
        if wanted {
            demo.arg(argument);
        }
    }
    let ended = hand_over(demo)?;
    // A demo that was killed could not clean up. One that was to be kept is.
    if !(options.keep && ended == Ended::With(0)) {
        sweep(&programs, None)?;
    }
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demo_that_never_began_says_why_in_the_demos_own_form() {
        let object = not_shown("no C compiler");
        let keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
        let mut wanted = ["ok", "accuracy", "timeline", "receipt", "finished_elsewhere", "failures"];
        wanted.sort_unstable();
        assert_eq!(keys, wanted);
        assert_eq!((&object["ok"], &object["failures"][0]), (&Value::Bool(false), &"no C compiler".into()));
    }
}
