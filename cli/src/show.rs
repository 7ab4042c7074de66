//! Text for people: tables, times, sizes. Pure.

use gpunion_protocol::receipt::{Receipt, Way};
use gpunion_protocol::time::WallMs;
use gpunion_protocol::units::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use unicode_width::UnicodeWidthStr as _;

/// Columns as wide as their widest cell; the last one is not padded.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let all: Vec<Vec<String>> = std::iter::once(head.iter().map(|cell| (*cell).to_owned()).collect())
        .chain(rows.iter().map(|row| row.iter().map(|cell| clean(cell)).collect()))
        .collect();
    let widths: Vec<usize> = (0..head.len())
        .map(|at| all.iter().filter_map(|row| row.get(at)).map(|cell| cell.width()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in &all {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate() {
            line.push_str(cell);
            let pad = widths.get(at).copied().unwrap_or(0).saturating_sub(cell.width()) + 2;
            if at + 1 < row.len() {
                line.extend(std::iter::repeat_n(' ', pad));
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Names come from other people: nothing in them may steer a terminal.
pub(crate) fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// In this machine's zone.
pub(crate) fn time(at: WallMs) -> String {
    match Timestamp::from_millisecond(at.0) {
        Ok(stamp) => stamp.to_zoned_datetime(TimeZone::system()).strftime("%Y-%m-%d %H:%M:%S").to_string(),
        Err(_) => "?".to_owned(),
    }
}

pub(crate) fn opt_time(at: Option<WallMs>) -> String {
    at.map_or_else(|| "-".to_owned(), time)
}

/// "n/a" where a driver could not tell, never 0.
pub(crate) fn figure(value: Option<impl std::fmt::Display>, unit: &str) -> String {
    value.map_or_else(|| "n/a".to_owned(), |value| format!("{value}{unit}"))
}

pub(crate) fn lasted(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{:.1} s", ms as f64 / 1_000.0),
        10_000..60_000 => format!("{} s", ms / 1_000),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms / 1_000 % 60),
        _ => format!("{} h {} min", ms / 3_600_000, ms / 60_000 % 60),
    }
}

pub(crate) fn receipt(receipt: &Receipt) -> String {
    let ms = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |ms| format!("{ms} ms"));
    let verdict = if receipt.verified { "The GPU is yours again" } else { "NOT verified" };
    let mut text = format!("{verdict}, {}\n", receipt.how.words());
    text.push_str(&format!(
        "  stopped after {}, ended after {}, verified after {}\n",
        ms(receipt.stopped_ms),
        ms(receipt.ended_ms),
        ms(receipt.verified_ms)
    ));
    for gpu in &receipt.gpus {
        let bytes =
            |value: Option<u64>| value.map_or_else(|| "n/a".to_owned(), |bytes| Bytes(bytes).to_string());
        let standin = if gpu.standin { " (stand-in: not a figure of a GPU)" } else { "" };
        text.push_str(&format!(
            "  {} {}{standin}: memory {} at the click, {} now, {} before the guest\n",
            clean(&gpu.name),
            clean(&gpu.uuid.0),
            bytes(gpu.memory_before),
            bytes(gpu.memory_after),
            bytes(gpu.memory_baseline)
        ));
    }
    for guest in &receipt.guests {
        text.push_str(&format!(
            "  {} of {} (attempt {}): {} processes, {}\n",
            clean(&guest.name),
            clean(&guest.member),
            guest.attempt.token.attempt,
            guest.processes,
            way(guest.way)
        ));
    }
    if receipt.guests.is_empty() {
        text.push_str("  no guest was here\n");
    }
    for trouble in &receipt.troubles {
        text.push_str(&format!("  ! {}\n", clean(trouble)));
    }
    if !receipt.wish_saved {
        text.push_str("  ! that you want it back could not be written down; say it again after a restart: gpunion share off\n");
    }
    text
}

fn way(way: Way) -> &'static str {
    match way {
        Way::Init => "ended by its init",
        Way::EndFile => "ended by its init, through the file in its mount",
        Way::SecondWay => "ended through its cgroup, as its init did not answer",
        Way::Engine => "ended by the container engine",
        Way::Already => "had ended already",
        Way::NotEnded => "NOT ended",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_names_steer_no_terminal() {
        let text = table(
            &["A", "B"],
            &[vec!["wide é".to_owned(), "x\u{1b}[2J".to_owned()], vec!["y".to_owned(), "z".to_owned()]],
        );
        assert_eq!(text, "A       B\nwide é  x\u{fffd}[2J\ny       z\n");
    }

    #[test]
    fn lengths_of_time_read_well() {
        assert_eq!(
            (lasted(1_500), lasted(61_000), lasted(7_260_000)),
            ("1.5 s".into(), "1 min 1 s".into(), "2 h 1 min".into())
        );
    }
}
