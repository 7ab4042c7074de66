//! `gpunion rules`: the owner's rules, shown and set. What they mean is the agent's.

use std::collections::BTreeMap;
use std::process::ExitCode;

use gpunion_protocol::rules::{RulesRequest, RulesStatus, Verdict};

use crate::api::Api;
use crate::args::{Place, Rules};
use crate::failure::Failure;
use crate::out::Out;
use crate::show;

pub(crate) async fn rules(place: &Place, asked: Rules, out: &Out) -> Result<ExitCode, Failure> {
    let set = settings(&asked.settings)?;
    let api = Api::new(place)?;
    let status: RulesStatus = match set.is_empty() {
        true => api.get("/v1/rules").await?,
        false => api.post("/v1/rules", &RulesRequest { set }).await?,
    };
    out.answer(&status, describe)?;
    Ok(ExitCode::SUCCESS)
}

fn settings(words: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let mut set = BTreeMap::new();
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            let failure = Failure::usage(format!("{word:?} is no KEY=VALUE"));
            return Err(failure.fix("for example: gpunion rules own_work=leave"));
        };
        if set.insert(key.trim().to_owned(), value.to_owned()).is_some() {
            return Err(Failure::usage(format!("{:?} is set twice", key.trim())).fix("say it once"));
        }
    }
    Ok(set)
}

fn describe(status: &RulesStatus) -> String {
    let rows: Vec<Vec<String>> = status
        .rules
        .iter()
        .map(|rule| {
            let changed = if rule.value == rule.default { "" } else { "set" };
            vec![rule.key.clone(), rule.value.clone(), changed.to_owned(), rule.what.clone()]
        })
        .collect();
    format!("{}{}", show::table(&["RULE", "VALUE", "", "WHAT"], &rows), verdicts(&status.verdicts))
}

/// A line for each.
pub(crate) fn verdicts(verdicts: &[Verdict]) -> String {
    let line = |verdict: &Verdict| {
        let gpu = verdict.gpu.as_ref().map_or_else(String::new, |gpu| format!(" of {}", show::clean(&gpu.0)));
        let says = if verdict.allows { "lends" } else { "does NOT lend" };
        let until = verdict.until.map_or_else(String::new, |at| format!(", until {}", show::time(at)));
        format!("rule {}{gpu}: {says}{until}. {}\n", show::clean(&verdict.rule), show::clean(&verdict.reason))
    };
    verdicts.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use gpunion_protocol::ids::GpuUuid;

    use super::*;

    #[test]
    fn what_is_no_setting_is_named() {
        let words =
            |words: &[&str]| settings(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let set = words(&["hours=Mon-Fri 18:00-08:00", " zone =Europe/Berlin"]).unwrap();
        assert_eq!(set["hours"], "Mon-Fri 18:00-08:00");
        assert_eq!(set["zone"], "Europe/Berlin");
        assert!(words(&["own_work"]).unwrap_err().to_string().contains("\"own_work\""));
        assert!(words(&["power=1/0", "power=2/1"]).unwrap_err().to_string().contains("twice"));
    }

    #[test]
    fn a_verdict_is_a_line_that_steers_no_terminal() {
        let verdict = Verdict {
            rule: "own_work".to_owned(),
            gpu: Some(GpuUuid("GPU-1\u{1b}".to_owned())),
            allows: false,
            reason: "Your own work is on it".to_owned(),
            until: None,
        };
        assert_eq!(
            verdicts(&[verdict]),
            "rule own_work of GPU-1\u{fffd}: does NOT lend. Your own work is on it\n"
        );
    }
}
