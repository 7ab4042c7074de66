//! The lab by hand: `lab up [BASE]` starts one engine and holds it until its input ends or it is
//! killed; `lab clean [BASE]` removes what killed labs left.

use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::{Result, bail};
use system_tests::lab::{DEFAULT_BASE, Lab, clean_leftovers};

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let word = arguments.next().unwrap_or_default();
    let base = PathBuf::from(arguments.next().unwrap_or_else(|| DEFAULT_BASE.to_owned()));
    let mut out = std::io::stdout();
    match word.as_str() {
        "clean" => {
            let cleaned = clean_leftovers(&base)?;
            writeln!(out, "labs removed: {cleaned}")?;
        }
        "up" => {
            let lab = Lab::new(&base)?;
            let engine = lab.engine("up")?;
            let pid = engine.dockerd_pid().unwrap_or_default();
            writeln!(out, "DOCKER_HOST={} dockerd {pid}", engine.host())?;
            out.flush()?;
            let mut rest = Vec::new();
            std::io::stdin().read_to_end(&mut rest)?;
        }
        _ => bail!("usage: lab up [BASE] | lab clean [BASE]"),
    }
    Ok(())
}
