//! The rows of the table, as text or as JSON.

use serde::Serialize;

use crate::pair::Pair;

/// One operation and its bound.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    group: &'static str,
    work: String,
    ours: f64,
    /// What `ours` is compared with, in the same unit; null if the bound is absolute.
    peer: Option<f64>,
    unit: &'static str,
    /// Of ours to the peer's.
    ratio: Option<f64>,
    /// Upper bound on `ratio` or, without a peer, on `ours`. Null if there is no bound.
    bound: Option<f64>,
    holds: Option<bool>,
}

/// Prints rows as they are measured.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) json: bool,
    /// Whether to check instruction counts against the recorded ones.
    pub(crate) check: bool,
    /// Whether to record instruction counts.
    pub(crate) write: bool,
    group: &'static str,
    failed: bool,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            check: false,
            write: false,
            group: "",
            failed: false,
        }
    }

    /// Starts a group.
    pub(crate) fn group(&mut self, name: &'static str) {
        self.group = name;
        if !self.json {
            println!(
                "{name:<54}{:>18}{:>18}{:>10}{:>15}",
                "ours", "peer", "ratio", "bound"
            );
        }
    }

    /// Reports an operation that was compared with a peer's.
    pub(crate) fn pair(
        &mut self,
        work: impl Into<String>,
        pair: Pair,
        unit: &'static str,
        bound: impl Into<Option<f64>>,
    ) {
        let bound = bound.into();
        self.print(&Row {
            group: self.group,
            work: work.into(),
            ours: pair.ours,
            peer: Some(pair.peer),
            unit,
            ratio: Some(pair.ratio),
            bound,
            holds: bound.map(|bound| pair.ratio <= bound),
        });
    }

    /// Reports an operation without a peer: its bound is absolute.
    pub(crate) fn alone(
        &mut self,
        work: impl Into<String>,
        ours: f64,
        unit: &'static str,
        bound: impl Into<Option<f64>>,
    ) {
        let bound = bound.into();
        self.print(&Row {
            group: self.group,
            work: work.into(),
            ours,
            peer: None,
            unit,
            ratio: None,
            bound,
            holds: bound.map(|bound| ours <= bound),
        });
    }

    /// Reports that something could not be measured on this machine, and why.
    pub(crate) fn skipped(&self, work: &str, why: &str) {
        eprintln!("skipped: {}: {work}: {why}", self.group);
    }

    /// Reports a failed measurement.
    pub(crate) fn failed(&mut self, work: &str, why: &str) {
        eprintln!("failed: {}: {work}: {why}", self.group);
        self.failed = true;
    }

    /// Whether every bound holds and no measurement failed.
    pub(crate) fn holds(&self) -> bool {
        !self.failed
    }

    fn print(&mut self, row: &Row) {
        self.failed |= row.holds == Some(false);
        if self.json {
            let line = serde_json::to_string(row).expect("a row has no map and no odd number");
            println!("{line}");
            return;
        }
        let unit = row.unit;
        let ours = format!("{} {unit}", number(row.ours));
        let peer = row
            .peer
            .map_or(String::new(), |peer| format!("{} {unit}", number(peer)));
        let ratio = row
            .ratio
            .map_or(String::new(), |ratio| format!("{ratio:.3} ×"));
        let bound = match (row.bound, row.ratio) {
            (Some(bound), Some(_)) => format!("≤ {bound} ×"),
            (Some(bound), None) => format!("≤ {} {unit}", number(bound)),
            (None, _) => String::new(),
        };
        let holds = match row.holds {
            Some(true) => "holds",
            Some(false) => "MISSED",
            None => "recorded",
        };
        println!(
            "  {:<52}{ours:>18}{peer:>18}{ratio:>10}{bound:>15}  {holds}",
            row.work
        );
    }
}

/// Formats a number with about three significant digits.
fn number(value: f64) -> String {
    let decimals = match value.abs() {
        size if value.fract() == 0.0 || size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_documented_fields() {
        let row = Row {
            group: "reader",
            work: "poll".into(),
            ours: 1.0,
            peer: None,
            unit: "system calls",
            ratio: None,
            bound: Some(1.0),
            holds: Some(true),
        };
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"group":"reader","work":"poll","ours":1.0,"peer":null,"unit":"system calls","ratio":null,"bound":1.0,"holds":true}"#
        );
    }

    #[test]
    fn one_missed_bound_fails_the_report() {
        let mut report = Report::new(true);
        report.pair("a", Pair::of(1.0, 2.0), "ns", 0.5);
        report.pair("b", Pair::of(9.0, 2.0), "ns", None);
        assert!(report.holds());
        report.alone("c", 2.0, "ns", 1.9);
        assert!(!report.holds());
    }
}
