//! The digits: read from the CSV, split into those to learn from and those held out.
//!
//! The split is by line number, never random: what is held out must be the same in each attempt.

use std::path::Path;

pub(crate) const PIXELS: usize = 64;
pub(crate) const CLASSES: usize = 10;

/// Each fifth line is held out. Neighbouring lines come from one writer's hand, so both parts see
/// all writers.
const HELD_OUT_EACH: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Digit {
    pub(crate) pixels: [f64; PIXELS],
    pub(crate) class: usize,
}

#[derive(Debug)]
pub(crate) struct Digits {
    pub(crate) train: Vec<Digit>,
    pub(crate) held_out: Vec<Digit>,
    /// Of the file's bytes: a checkpoint of other data must be refused.
    pub(crate) fingerprint: u64,
}

impl Digits {
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("can't read the digits in {}: {e}", path.display()))?;
        Self::parse(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (mut train, mut held_out) = (Vec::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            let digit = parse_line(line).map_err(|e| format!("line {}: {e}", number + 1))?;
            if number % HELD_OUT_EACH == HELD_OUT_EACH - 1 {
                held_out.push(digit);
            } else {
                train.push(digit);
            }
        }
        if held_out.is_empty() {
            return Err(format!("fewer than {HELD_OUT_EACH} lines"));
        }
        Ok(Digits { train, held_out, fingerprint: fnv1a(text.as_bytes()) })
    }
}

fn parse_line(line: &str) -> Result<Digit, String> {
    let mut pixels = [0.0; PIXELS];
    let mut fields = line.split(',');
    for pixel in &mut pixels {
        *pixel = f64::from(number(&mut fields, 16)?) / 16.0;
    }
    let class = usize::from(number(&mut fields, CLASSES as u8 - 1)?);
    match fields.next() {
        None => Ok(Digit { pixels, class }),
        Some(_) => Err(format!("more than {} fields", PIXELS + 1)),
    }
}

fn number<'a>(fields: &mut impl Iterator<Item = &'a str>, most: u8) -> Result<u8, String> {
    let field = fields.next().ok_or_else(|| format!("fewer than {} fields", PIXELS + 1))?;
    match field.trim().parse() {
        Ok(value) if value <= most => Ok(value),
        Ok(_) | Err(_) => Err(format!("\"{field}\" is not a number from 0 to {most}")),
    }
}

/// Finds accidents (another file, a torn one), not enemies.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_is_the_one_that_uci_describes() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dataset/digits.csv");
        let digits = Digits::read(&path).expect("the data set of the repository parses");
        assert_eq!((digits.train.len(), digits.held_out.len()), (1438, 359));
        let zeros = digits.train.iter().chain(&digits.held_out).filter(|d| d.class == 0);
        assert_eq!(zeros.count(), 178, "UCI lists 178 zeros in the test part");
    }

    #[test]
    fn a_broken_line_is_named() {
        let good = format!("{}7", "16,".repeat(PIXELS));
        let text = format!("{good}\n{good}\n1,2,3\n");
        let error = Digits::parse(&text).expect_err("three fields are no digit");
        assert!(error.contains("line 3"), "the member looks for the line: {error}");
    }
}
