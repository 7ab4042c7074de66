//! Changes to bytes that were valid: what an attacker does who knows the form.

use proptest::prelude::*;
use proptest::sample::Index;

/// Words that break parsers: of numbers, of text, of structure, of paths.
const WORDS: &[&[u8]] = &[
    b"null",
    b"{}",
    b"[]",
    b"\"",
    b"-1",
    b"1e999",
    b"-0.0",
    b"18446744073709551616",
    b"340282366920938463463374607431768211456",
    b"0.00000000000000000000000000000000000000000001",
    b"\"99999999999999999999999 TiB\"",
    b"\"1.7976931348623157e308 GiB\"",
    b"\"\\u0000\"",
    b"\"\\ud800\"",
    b"\"../../../etc/shadow\"",
    b"\\",
    b"\xff\xfe",
    b"\0",
    b"\r\n\r\n",
    b",",
    b":",
    b"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    b"{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":{\"a\":",
    b"\"say\":\"beat\",",
    b"a.b.c.d = 1\n",
    b"[[data]]\n",
];

#[derive(Clone, Debug)]
pub(crate) enum Change {
    Flip(Index, u8),
    Cut(Index),
    Remove(Index, usize),
    Word(Index, Index),
    /// A piece of it again, so many times.
    Again(Index, usize, usize),
    /// A number, the nearest behind this place, becomes this one.
    Number(Index, Index),
}

pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let index = any::<Index>;
    let change = prop_oneof![
        (index(), any::<u8>()).prop_map(|(at, byte)| Change::Flip(at, byte)),
        index().prop_map(Change::Cut),
        (index(), 1_usize..40).prop_map(|(at, n)| Change::Remove(at, n)),
        (index(), index()).prop_map(|(at, word)| Change::Word(at, word)),
        (index(), 1_usize..60, 1_usize..40).prop_map(|(at, n, times)| Change::Again(at, n, times)),
        (index(), index()).prop_map(|(at, word)| Change::Number(at, word)),
    ];
    proptest::collection::vec(change, 1..6)
}

pub(crate) fn altered(text: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = text.to_vec();
    for change in changes {
        if bytes.is_empty() {
            return bytes;
        }
        match change {
            Change::Flip(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] ^= byte;
            }
            Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Change::Remove(at, n) => {
                let at = at.index(bytes.len());
                bytes.drain(at..bytes.len().min(at + n));
            }
            Change::Word(at, word) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, WORDS[word.index(WORDS.len())].iter().copied());
            }
            Change::Again(at, n, times) => {
                let at = at.index(bytes.len());
                let piece = bytes[at..bytes.len().min(at + n)].repeat(*times);
                bytes.splice(at..at, piece);
            }
            Change::Number(at, word) => {
                let from = at.index(bytes.len());
                let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit) else { continue };
                let start = from + start;
                let end = bytes[start..].iter().position(|byte| !byte.is_ascii_digit());
                let end = end.map_or(bytes.len(), |end| start + end);
                bytes.splice(start..end, WORDS[word.index(WORDS.len())].iter().copied());
            }
        }
    }
    bytes
}
