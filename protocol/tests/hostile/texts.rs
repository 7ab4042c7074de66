//! What people write or paste: specs, links, ids, sizes, durations.

use gpunion_protocol::ids::{ChunkId, DeviceId, InviteId, JobId, MemberId, PackId, SnapshotId};
use gpunion_protocol::invite::Invite;
use gpunion_protocol::spec::{JobSpec, from_json, from_toml};
use gpunion_protocol::units::{Bytes, Span};
use proptest::prelude::*;

use crate::alter::{altered, changes};
use crate::memory::most;
use crate::samples::{LINK, SPEC_JSON, SPEC_TOML};

/// A TOML parser keeps where each piece stood beside the piece.
const EACH: usize = 200;
const ALWAYS: usize = 64 << 10;

/// Reads it both ways; what passes the check is written as JSON and as TOML and is the same again.
fn read_spec(text: &str) {
    for read in [from_toml, from_json] {
        let mut spec = None;
        let held = most(|| spec = read(text).ok());
        assert!(held <= ALWAYS + EACH * text.len(), "{held} bytes for {} of text", text.len());
        let Some(spec) = spec else { continue };
        if spec.check().is_ok() {
            same_again(&spec);
        }
    }
}

fn same_again(spec: &JobSpec) {
    assert_eq!(from_json(&serde_json::to_string(spec).unwrap()).as_ref(), Ok(spec));
    assert_eq!(from_toml(&toml::to_string(spec).unwrap()).as_ref(), Ok(spec));
    assert!(spec.signal_number().is_some());
}

fn read_all(text: &str) {
    let held = most(|| {
        let _ = (text.parse::<Bytes>(), text.parse::<Span>(), text.parse::<Invite>());
        let _ = (text.parse::<JobId>(), text.parse::<MemberId>(), text.parse::<DeviceId>());
        let _ = (text.parse::<InviteId>(), text.parse::<ChunkId>());
        let _ = (text.parse::<PackId>(), text.parse::<SnapshotId>());
    });
    assert!(held <= ALWAYS + 16 * text.len(), "{held} bytes for {} of text", text.len());
    if let Ok(invite) = text.parse::<Invite>() {
        assert_eq!(invite.to_string().parse::<Invite>().as_ref(), Ok(&invite), "{text}");
    }
    if let Ok(id) = text.parse::<JobId>() {
        assert_eq!(id.as_str(), text);
    }
    if let Ok(size) = text.parse::<Bytes>() {
        let written = serde_json::to_string(&size).unwrap();
        assert_eq!(serde_json::from_str::<Bytes>(&written).unwrap(), size);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_as_a_spec_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        read_spec(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_spec_altered_anywhere_does_no_harm(json: bool, changes in changes()) {
        let text = if json { SPEC_JSON } else { SPEC_TOML };
        read_spec(&String::from_utf8_lossy(&altered(text.as_bytes(), &changes)));
    }

    #[test]
    fn values_of_any_size_in_a_spec_do_no_harm(
        number in "[0-9]{1,40}", fraction in "(\\.[0-9]{0,30})?", unit in "( ?[a-zA-Z]{0,4})?", field in 0_usize..9,
    ) {
        let value = format!("{number}{fraction}{unit}");
        let text = match field {
            0 => format!("[resources]\ngpus = {number}"),
            1 => format!("[resources]\ncpus = -{number}"),
            2 => format!("[resources]\nmemory = \"{value}\""),
            3 => format!("[resources]\ndisk = \"{value}\""),
            4 => format!("[resources]\ngpu_memory = {number}{fraction}"),
            5 => format!("[checkpoint]\nevery = \"{value}\""),
            6 => format!("[checkpoint]\ngrace = \"{value}\""),
            7 => format!("[checkpoint]\nstop_max = {number}"),
            _ => format!("[env]\nA = {number}{fraction}"),
        };
        read_spec(&format!("name = \"n\"\nimage = \"i\"\n{text}\n"));
        read_all(&value);
    }

    #[test]
    fn any_text_as_a_link_or_an_id_does_no_harm(text in ".{0,120}", prefix in 0_usize..6) {
        let prefix = ["", "job_", "dev_", "mem_", "gpunion://join/", LINK][prefix];
        read_all(&format!("{prefix}{text}"));
    }

    #[test]
    fn a_link_altered_anywhere_does_no_harm(changes in changes()) {
        read_all(&String::from_utf8_lossy(&altered(LINK.as_bytes(), &changes)));
    }
}

#[test]
fn a_spec_nested_without_end_overflows_no_stack() {
    const DEEP: usize = 100_000;
    let deep = [
        format!("a = {}", "[".repeat(DEEP)),
        format!("a = {}{}", "[".repeat(DEEP), "]".repeat(DEEP)),
        format!("a = {}1{}", "{a=".repeat(DEEP), "}".repeat(DEEP)),
        format!("{}a = 1", "a.".repeat(DEEP)),
        format!("[{}a]\nb = 1", "a.".repeat(DEEP)),
        format!("[env]\n{}a = 1", "a.".repeat(DEEP)),
        format!("{}1{}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP)),
        format!("{{\"env\":{}1{}}}", "{\"a\":".repeat(DEEP), "}".repeat(DEEP)),
        "[".repeat(DEEP),
        "[[data]]\n".repeat(DEEP / 10),
    ];
    for text in deep {
        for read in [from_toml, from_json] {
            let spec = read(&text).and_then(|spec| spec.check());
            assert!(spec.is_err(), "{}", &text[..40]);
        }
    }
}

/// A page of whatever costs a parser most.
#[test]
fn the_costliest_spec_of_its_length_is_held_in_proportion() {
    let fill =
        |start: &str, each: &str, end: &str| start.to_owned() + &each.repeat((128 << 10) / each.len()) + end;
    let names = |end: &str| (0..8_000).map(|n| format!("a{n}{end}")).collect::<String>();
    let texts = [
        fill("command = [", "'',", "]"),
        fill("env = [", "[],", "]"),
        fill("data = [", "{},", "]"),
        fill("", "[[data]]\n", ""),
        fill("", "\n", ""),
        fill("{\"env\":[", "[],", "[]]}"),
        fill("{\"command\":[", "\"\",", "\"\"]}"),
        format!("[env]\n{}", names("=''\n")),
        format!("[secrets]\n{}", names("={}\n")),
        names("=1\n"),
    ];
    for text in texts {
        read_spec(&text);
    }
}

#[test]
fn a_link_of_any_length_is_refused_at_its_length() {
    let long = format!("{LINK}{}", "&at=a:1".repeat(1 << 20));
    assert!(most(|| assert!(long.parse::<Invite>().is_err())) < 4 << 10);
}
