//! Taking all there is: processes, log, memory, disk.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use crate::{Outcome, say, words};

/// More than any guest may have; a machine that allows these has no limit for us.
const MANY: usize = 20_000;

/// Processes that wait, until no more can be made. They end with this one.
pub(crate) fn processes() -> Outcome {
    let mut children = Vec::new();
    let mut refused = None;
    while refused.is_none() && children.len() < MANY {
        // Each is this program again, since `fork` without a new program is not safe to offer.
        match std::process::Command::new("/proc/self/exe").arg("wait").spawn() {
            Ok(child) => children.push(child),
            Err(error) => refused = Some(error),
        }
        if children.len() % 256 == 0 {
            say(&format!("{} processes", children.len()));
        }
    }
    let made = children.len();
    say(&format!("{made} processes made"));
    for child in &mut children {
        let _ = child.kill();
    }
    for child in &mut children {
        let _ = child.wait();
    }
    match refused {
        Some(error) => Err(format!("{made} processes, then {error}")),
        None => Ok(format!("{made} processes and no end")),
    }
}

/// Output without an end of line, and then lines. Says how much was taken of it.
pub(crate) fn log(mebibytes: &str) -> Outcome {
    let mebibytes: usize = mebibytes.parse().map_err(words)?;
    let piece = vec![b'x'; 1 << 20];
    let mut out = io::stdout();
    for at in 0..mebibytes {
        out.write_all(&piece).map_err(words)?;
        if at >= mebibytes / 2 {
            out.write_all(b"\n").map_err(words)?;
        }
    }
    out.write_all(b"\n").map_err(words)?;
    Ok(format!("wrote {mebibytes} MiB"))
}

/// Memory that is used, until somebody ends this.
pub(crate) fn memory() -> Outcome {
    let mut held: Vec<Vec<u8>> = Vec::new();
    loop {
        held.push(vec![1; 4 << 20]);
        if held.len().is_multiple_of(4) {
            say(&format!("{} MiB held", held.len() * 4));
        }
        if held.len() > 4096 {
            return Ok("16 GiB".to_owned());
        }
    }
}

/// One file that grows, at full speed.
pub(crate) fn folder(path: &str, mebibytes: &str) -> Outcome {
    let most: usize = mebibytes.parse().map_err(words)?;
    let piece = vec![7; 1 << 20];
    let name = Path::new(path).join("filler");
    let mut file = File::create(&name).map_err(words)?;
    let mut refused = None;
    let mut written = 0;
    while refused.is_none() && written < most {
        match file.write_all(&piece) {
            Ok(()) => written += 1,
            Err(error) => refused = Some(error),
        }
    }
    // The next attempt finds the room that this one found.
    let _ = fs::remove_file(name);
    match refused {
        Some(error) => Err(format!("{written} MiB, then {error}")),
        None => Ok(format!("{written} MiB")),
    }
}

/// Many files with nothing in them: what counts bytes alone does not see them.
pub(crate) fn files(path: &str) -> Outcome {
    const MOST: usize = 50_000;
    let name = |at: usize| Path::new(path).join(format!("empty{at}"));
    let refused = (0..MOST).find_map(|at| fs::write(name(at), "").err().map(|error| (at, error)));
    let made = refused.as_ref().map_or(MOST, |(at, _)| *at);
    (0..made).for_each(|at| drop(fs::remove_file(name(at))));
    match refused {
        Some((at, error)) => Err(format!("{at} files, then {error}")),
        None => Ok(format!("{MOST} files")),
    }
}
