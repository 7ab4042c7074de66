//! The rules as the owner reads and writes them: keys, values, and what is wrong with one.

use std::collections::BTreeMap;

use gpunion_protocol::problem::{Code, Problem};
use gpunion_protocol::rules::RuleSetting;
use gpunion_protocol::spec::nearest_word;
use gpunion_protocol::time::Millis;
use gpunion_protocol::units::{Bytes, Span};

use super::Rules;
use super::band::Band;
use super::own_work::Yields;

/// Longer than this nobody waits for anything here.
const LONGEST: Millis = Millis::from_secs(24 * 3600);
/// Slower than this no job would ever get away.
const SLOWEST: Bytes = Bytes(64 << 10);
const OFF: &str = "off";

struct Key {
    name: &'static str,
    what: &'static str,
    example: &'static str,
    get: fn(&Rules) -> String,
    set: fn(&mut Rules, &str) -> Result<(), String>,
}

const KEYS: &[Key] = &[
    Key {
        name: "hours",
        what: "when this machine is lent at all; \"always\", or windows of the week",
        example: "\"Mon-Fri 18:00-08:00; Sat-Sun\"",
        get: |rules| rules.hours.to_string(),
        set: |rules, text| text.parse().map(|hours| rules.hours = hours),
    },
    Key {
        name: "zone",
        what: "the zone that the hours are of, by its name",
        example: "Europe/Berlin",
        get: |rules| rules.zone.clone().unwrap_or_default(),
        set: |rules, text| {
            rules.zone = (!text.is_empty()).then(|| text.to_owned());
            Ok(())
        },
    },
    Key {
        name: "own_work",
        what: "when your own work comes to a lent GPU its guest must \"leave\", \"stop\" at once, or (\"off\") may stay",
        example: "leave",
        get: |rules| rules.own_work.to_string(),
        set: |rules, text| {
            let all = [Yields::Leaves, Yields::Stops, Yields::Stays];
            let meant = all.into_iter().find(|yields| yields.to_string() == text);
            meant.map(|yields| rules.own_work = yields).ok_or_else(|| "it is leave, stop or off".to_owned())
        },
    },
    Key {
        name: "own_work_memory",
        what: "own work is what holds this much memory of a GPU,",
        example: "\"1 GiB\"",
        get: |rules| rules.own_memory.to_string(),
        set: |rules, text| {
            let bytes: Bytes = text.parse().map_err(|e| format!("{e}"))?;
            (bytes.0 > 0)
                .then(|| rules.own_memory = bytes)
                .ok_or_else(|| "it is more than nothing".to_owned())
        },
    },
    Key {
        name: "own_work_busy",
        what: "or keeps it busy so much of the time while no guest is on it,",
        example: "\"20 %\"",
        get: |rules| format!("{} %", rules.own_busy),
        set: |rules, text| {
            let number = text.trim().trim_end_matches('%').trim().parse::<u32>().ok();
            let number = number.filter(|percent| (1..=100).contains(percent));
            number.map(|percent| rules.own_busy = percent).ok_or_else(|| "it is 1 % to 100 %".to_owned())
        },
    },
    Key {
        name: "own_work_after",
        what: "for longer than this",
        example: "\"10 s\"",
        get: |rules| Span(rules.own_after).to_string(),
        set: |rules, text| length(text).map(|length| rules.own_after = length),
    },
    Key {
        name: "own_work_free",
        what: "the GPU is lent again when it has been free of own work for so long",
        example: "\"5 min\"",
        get: |rules| Span(rules.own_free).to_string(),
        set: |rules, text| length(text).map(|length| rules.own_free = length),
    },
    Key {
        name: "battery",
        what: "while this machine runs on its battery guests must \"leave\", or (\"off\") may stay",
        example: "leave",
        get: |rules| if rules.on_battery { OFF.to_owned() } else { "leave".to_owned() },
        set: |rules, text| {
            let known = [("leave", false), (OFF, true)].into_iter().find(|(word, _)| *word == text);
            known.map(|(_, stays)| rules.on_battery = stays).ok_or_else(|| "it is leave or off".to_owned())
        },
    },
    Key {
        name: "temperature",
        what: "guests leave a GPU that is hotter than the first number (°C), and it is lent again at the second",
        example: "85/75",
        get: |rules| shown(rules.temperature),
        set: |rules, text| band(text).map(|band| rules.temperature = band),
    },
    Key {
        name: "power",
        what: "guests leave a GPU that draws more than the first number (watts), and it is lent again at the second",
        example: "300/200",
        get: |rules| shown(rules.power),
        set: |rules, text| band(text).map(|band| rules.power = band),
    },
    Key {
        name: "upload",
        what: "what guests save leaves this machine at so much a second at most",
        example: "\"5 MiB\"",
        get: |rules| rules.upload.map_or_else(|| OFF.to_owned(), |rate| rate.to_string()),
        set: |rules, text| rate(text).map(|rate| rules.upload = rate),
    },
];

fn length(text: &str) -> Result<Millis, String> {
    let Span(length) = text.parse().map_err(|e| format!("{e}"))?;
    (length <= LONGEST).then_some(length).ok_or_else(|| format!("it is at most {}", Span(LONGEST)))
}

fn rate(text: &str) -> Result<Option<Bytes>, String> {
    if text == OFF {
        return Ok(None);
    }
    let rate: Bytes = text.trim_end_matches("/s").parse().map_err(|e| format!("{e}"))?;
    (rate >= SLOWEST).then_some(Some(rate)).ok_or_else(|| format!("it is at least {SLOWEST}"))
}

fn shown(band: Option<Band>) -> String {
    band.map_or_else(|| OFF.to_owned(), |band| band.to_string())
}

fn band(text: &str) -> Result<Option<Band>, String> {
    if text == OFF { Ok(None) } else { text.parse().map(Some) }
}

impl Rules {
    /// With all of this, or nothing of it.
    pub fn with(&self, words: &BTreeMap<String, String>) -> Result<Self, Problem> {
        let mut rules = self.clone();
        for (name, value) in words {
            let value = value.trim();
            let Some(key) = KEYS.iter().find(|key| key.name == name) else { return Err(unknown(name)) };
            if value == "default" {
                (key.set)(&mut rules, &(key.get)(&Self::default())).map_err(|why| wrong(key, value, &why))?;
            } else {
                (key.set)(&mut rules, value).map_err(|why| wrong(key, value, &why))?;
            }
        }
        Ok(rules)
    }

    pub fn shown(&self) -> Vec<RuleSetting> {
        let default = Self::default();
        let shown = KEYS.iter().map(|key| RuleSetting {
            key: key.name.to_owned(),
            value: (key.get)(self),
            default: (key.get)(&default),
            what: key.what.to_owned(),
        });
        shown.collect()
    }
}

fn wrong(key: &Key, value: &str, why: &str) -> Problem {
    Problem::new(Code::BadRequest, format!("{} can't be {value:?}: {why}", key.name))
        .with_detail(format!("For example: gpunion rules {}={}", key.name, key.example))
}

fn unknown(name: &str) -> Problem {
    let names: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
    let meant = nearest_word(name, &names);
    let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"));
    Problem::new(Code::BadRequest, format!("There is no rule {name:?}{meant}"))
        .with_detail(format!("Rules are {}; for example: gpunion rules own_work=leave", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[(&str, &str)]) -> Result<Rules, Problem> {
        let words = words.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Rules::default().with(&words.collect())
    }

    #[test]
    fn what_is_shown_can_be_set_and_examples_are_right() {
        let rules =
            set(&[("hours", "Mon-Fri 18:00-08:00; Sat-Sun"), ("temperature", "85/75"), ("own_work", "stop")]);
        let rules = rules.unwrap();
        let shown = rules.shown().into_iter().map(|rule| (rule.key, rule.value)).collect();
        assert_eq!(Rules::default().with(&shown).unwrap(), rules);
        for key in KEYS {
            assert!(set(&[(key.name, key.example.trim_matches('"'))]).is_ok(), "{}", key.name);
            let back = rules.with(&[(key.name.to_owned(), "default".to_owned())].into()).unwrap();
            assert_eq!((key.get)(&back), (key.get)(&Rules::default()));
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_an_example() {
        for (key, value) in [
            ("hours", "weekends"),
            ("own_work", "pause"),
            ("own_work_memory", "10"),
            ("own_work_memory", "0 B"),
            ("own_work_busy", "120 %"),
            ("own_work_after", "soon"),
            ("own_work_free", "2 d"),
            ("battery", "on"),
            ("temperature", "75/85"),
            ("power", "300"),
            ("upload", "1 KiB"),
        ] {
            let problem = set(&[(key, value)]).unwrap_err();
            let text = problem.to_string();
            assert!(text.contains(key) && text.contains(value), "{text}");
            assert!(text.contains(&format!("gpunion rules {key}=")), "{text}");
        }
    }

    #[test]
    fn a_key_that_is_not_there_names_its_nearest() {
        let text = set(&[("temprature", "85/75")]).unwrap_err().to_string();
        assert!(text.contains("did you mean temperature?"), "{text}");
        assert!(set(&[("hours", "always"), ("xyzzy", "1")]).unwrap_err().to_string().contains("own_work"));
    }

    #[test]
    fn they_read_back_from_the_disk_and_older_records_have_defaults() {
        let rules = set(&[("hours", "Sat-Sun"), ("power", "300/200"), ("battery", "off")]).unwrap();
        let text = serde_json::to_string(&rules).unwrap();
        assert_eq!(serde_json::from_str::<Rules>(&text).unwrap(), rules);
        assert_eq!(serde_json::from_str::<Rules>("{}").unwrap(), Rules::default());
    }
}
