//! Rows: a figure, what it was measured against, and whether it is what we aim at.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

/// `aim` is the most that `value` may be, in the same unit. A figure without an aim is there to
/// be read.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    value: f64,
    unit: &'static str,
    against: String,
    aim: Option<f64>,
    holds: bool,
}

/// Rows that were asked for, by how their names begin; all of them when none was named.
#[derive(Debug)]
pub(crate) struct Wanted(Vec<String>);

impl Wanted {
    pub(crate) fn new(names: &[String]) -> Self {
        Self(names.to_vec())
    }

    /// Rows of this name, suffixes included. A name with a suffix asks for what fills that row.
    pub(crate) fn row(&self, row: &str) -> bool {
        let fits = |name: &String| row.starts_with(name.as_str()) || name.starts_with(row);
        self.0.is_empty() || self.0.iter().any(fits)
    }

    pub(crate) fn any(&self, rows: &[&str]) -> bool {
        rows.iter().any(|row| self.row(row))
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    wanted: Wanted,
    rows: Vec<Row>,
    whole: bool,
}

/// The one object that scripts read.
#[derive(Debug, Serialize)]
struct Told<'a> {
    ok: bool,
    rows: &'a [Row],
}

impl Table {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self { wanted, rows: Vec::new(), whole: true }
    }

    /// Whether rows of this name were asked for.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.wanted.row(row)
    }

    /// A figure that is aimed at.
    pub(crate) fn aimed(&mut self, name: &str, value: f64, unit: &'static str, against: &str, aim: f64) {
        self.push(name, value, unit, against, Some(aim));
    }

    /// A figure to be read beside the others.
    pub(crate) fn told(&mut self, name: &str, value: f64, unit: &'static str, against: &str) {
        self.push(name, value, unit, against, None);
    }

    fn push(&mut self, name: &str, value: f64, unit: &'static str, against: &str, aim: Option<f64>) {
        let value = (value * 1000.0).round() / 1000.0;
        let holds = aim.is_none_or(|aim| value <= aim);
        let row = Row { name: name.to_owned(), value, unit, against: against.to_owned(), aim, holds };
        eprintln!("   {}", row.line());
        self.rows.push(row);
    }

    /// Something that was asked for could not be measured.
    pub(crate) fn broke_off(&mut self) {
        self.whole = false;
    }

    fn ok(&self) -> bool {
        self.whole && self.rows.iter().all(|row| row.holds)
    }

    fn object(&self) -> Result<String> {
        Ok(serde_json::to_string(&Told { ok: self.ok(), rows: &self.rows })?)
    }

    pub(crate) fn print(&self, json: bool) -> ExitCode {
        if json {
            match self.object() {
                Ok(object) => println!("{object}"),
                Err(error) => eprintln!("bench: {error:#}"),
            }
        } else {
            println!();
            for row in &self.rows {
                println!("{}", row.line());
            }
            let held = self.rows.iter().filter(|row| row.aim.is_some() && row.holds).count();
            let aimed = self.rows.iter().filter(|row| row.aim.is_some()).count();
            println!("\n{held} of {aimed} aims hold");
        }
        if self.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Row {
    fn line(&self) -> String {
        let aim = match (self.aim, self.holds) {
            (Some(aim), true) => format!("at most {aim}: holds"),
            (Some(aim), false) => format!("at most {aim}: DOES NOT HOLD"),
            (None, _) => String::new(),
        };
        format!("{:<32}{:>12} {:<14}{:<44}{aim}", self.name, self.value, self.unit, self.against)
    }
}

/// The value that `share` (0 to 1) of the others do not exceed; nearest rank.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

pub(crate) fn worst(values: &[f64]) -> f64 {
    quantile(values, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values = [5.0, 1.0, 4.0, 2.0, 3.0];
        assert_eq!((median(&values), worst(&values), quantile(&values, 0.0)), (3.0, 5.0, 1.0));
        assert!(median(&[]).is_nan(), "and nothing measured is no number");
    }

    #[test]
    fn nothing_measured_holds_no_aim() {
        let mut table = Table::new(Wanted::new(&[]));
        table.aimed("x", f64::NAN, "x", "", 1.0);
        assert!(!table.ok());
    }

    #[test]
    fn the_object_has_the_form_that_scripts_read() {
        let mut table = Table::new(Wanted::new(&[]));
        table.aimed("reclaim_ended_p50", 0.25, "x", "engine kill", 0.5);
        table.told("ended_after_click_p50", 3.0, "ms", "stand-in GPU");
        let rows = r#"[{"name":"reclaim_ended_p50","value":0.25,"unit":"x","against":"engine kill","aim":0.5,"holds":true},{"name":"ended_after_click_p50","value":3.0,"unit":"ms","against":"stand-in GPU","aim":null,"holds":true}]"#;
        assert_eq!(table.object().unwrap(), format!(r#"{{"ok":true,"rows":{rows}}}"#));
        table.broke_off();
        assert_eq!(table.object().unwrap(), format!(r#"{{"ok":false,"rows":{rows}}}"#));
    }

    #[test]
    fn a_name_asks_for_the_rows_that_begin_so_with_or_without_a_suffix() {
        let wanted = |name: &str, row| Wanted::new(&[name.to_owned()]).row(row);
        assert!(wanted("reclaim", "reclaim_ended") && wanted("reclaim", "reclaim_verified"));
        assert!(wanted("reclaim_ended", "reclaim_ended") && wanted("reclaim_ended_p50", "reclaim_ended"));
        assert!(!wanted("reclaim_ended", "reclaim_verified") && !wanted("relay", "reclaim_ended"));
        assert!(Wanted::new(&[]).row("reclaim_ended"));
    }
}
