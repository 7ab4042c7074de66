//! Whether this machine runs on its battery, as the kernel says. A thin reader: it decides nothing
//! about lending, and what it can't read is not known.

use std::fs;
use std::path::Path;

/// Where the kernel lists what feeds this machine.
pub const ROOT: &str = "/sys/class/power_supply";

/// None: there is no battery, or it can't be told. A battery of a mouse feeds no machine.
pub fn on_battery(root: &Path) -> Option<bool> {
    let mut discharging = None;
    for entry in fs::read_dir(root).ok()?.flatten() {
        let word = |name: &str| {
            let text = fs::read_to_string(entry.path().join(name)).ok()?;
            Some(text.trim().to_owned())
        };
        match word("type").as_deref() {
            Some("Mains" | "USB") if word("online").as_deref() == Some("1") => return Some(false),
            Some("Battery" | "UPS") if word("scope").as_deref() != Some("Device") => {
                let empties = word("status").map(|status| status == "Discharging");
                discharging = discharging.max(empties);
            }
            Some(_) | None => {}
        }
    }
    discharging
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(supplies: &[(&str, &[(&str, &str)])]) -> Option<bool> {
        let root = tempfile::tempdir().unwrap();
        for (name, words) in supplies {
            fs::create_dir(root.path().join(name)).unwrap();
            for (word, value) in *words {
                fs::write(root.path().join(name).join(word), format!("{value}\n")).unwrap();
            }
        }
        on_battery(root.path())
    }

    #[test]
    fn a_machine_without_a_battery_is_never_on_one() {
        assert_eq!(on_battery(Path::new("/nowhere/at/all")), None);
        assert_eq!(machine(&[]), None);
        let mouse = ("mouse", &[("type", "Battery"), ("scope", "Device"), ("status", "Discharging")][..]);
        assert_eq!(machine(&[mouse]), None);
    }

    #[test]
    fn the_mains_decide_and_without_a_word_of_them_the_battery() {
        let mains = |online| ("AC", vec![("type", "Mains"), ("online", online)]);
        let battery = |status| ("BAT0", vec![("type", "Battery"), ("status", status)]);
        let is = |supplies: &[(&'static str, Vec<(&'static str, &'static str)>)]| {
            let supplies: Vec<(&str, &[(&str, &str)])> =
                supplies.iter().map(|(name, words)| (*name, words.as_slice())).collect();
            machine(&supplies)
        };
        assert_eq!(is(&[mains("1"), battery("Discharging")]), Some(false));
        assert_eq!(is(&[mains("0"), battery("Discharging")]), Some(true));
        assert_eq!(is(&[mains("0"), battery("Not charging")]), Some(false));
        assert_eq!(is(&[battery("Discharging")]), Some(true));
        assert_eq!(
            is(&[battery("Full"), ("BAT1", vec![("type", "Battery"), ("status", "Discharging")])]),
            Some(true)
        );
        assert_eq!(is(&[mains("1")]), Some(false));
    }
}
