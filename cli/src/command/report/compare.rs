//! What has changed between two recordings.

use std::collections::HashMap;

use otelctx_profile::report::{Cost, Function, GroupCost, Report, TimeKind};
use serde::Serialize;

use super::kinds::Kinds;
use super::tables::{number, text, with_place};
use crate::command::selection;
use crate::output::table::Table;
use crate::output::terminal::{Style, Terminal, escape};
use crate::output::text::{count, grouped};

/// Number of functions below each row.
const FUNCTIONS_OF_ROW: usize = 3;
/// A difference of less than this many standard errors is none: by chance, one in twenty is as
/// large.
const STANDARD_ERRORS: f64 = 2.0;
/// The same for functions, of which there are many: by chance, one in 370 is as large.
const STANDARD_ERRORS_OF_FUNCTION: f64 = 3.0;

/// Smallest difference that is not shown as 0.0.
const SHOWN: f64 = 0.05;

/// A value in both recordings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Change {
    before: f64,
    after: f64,
    /// The standard error of the difference.
    error: f64,
}

impl Change {
    fn difference(self) -> f64 {
        self.after - self.before
    }

    /// Returns true if sampling again would show a difference, too.
    fn is_certain(self) -> bool {
        self.is_beyond(STANDARD_ERRORS)
    }

    fn is_beyond(self, errors: f64) -> bool {
        self.difference().abs() > errors * self.error
    }

    /// Returns the order, by which certain changes are first, the largest before smaller ones.
    fn order(self, other: Self) -> std::cmp::Ordering {
        let key = |it: Self| (it.is_certain(), it.difference().abs());
        let ((one, by), (another, more)) = (key(self), key(other));
        another.cmp(&one).then(more.total_cmp(&by))
    }
}

/// A group that is in at least one of the recordings.
#[derive(Debug, Serialize)]
pub(super) struct Row<'r> {
    /// The kind of time, as in the selection.
    kind: String,
    values: &'r [String],
    /// Milliseconds per trace, if both recordings have whole traces of it; else the share
    /// of all, in percent.
    is_per_trace: bool,
    change: Change,
    functions: Vec<FunctionRow<'r>>,
}

#[derive(Debug, Serialize)]
struct FunctionRow<'r> {
    name: &'r str,
    file: &'r str,
    line: u32,
    #[serde(skip)]
    function: &'r Function,
    change: Change,
}

/// How costs become values: with one unit for a group and its functions.
#[derive(Clone, Copy)]
struct Scale {
    /// Divides nanoseconds.
    divisor: f64,
    /// Nanoseconds that a sample stands for; 0 if unknown, or if each has its own.
    period: u64,
}

impl Scale {
    /// Returns the value of a cost, and its standard error: samples are independent events. Where
    /// there is none, one may have been missed.
    fn value(self, cost: Cost) -> (f64, f64) {
        let time = size(cost);
        let (samples, each) = match (cost.nanoseconds, self.period) {
            (0, 0) => (cost.samples as f64, 1.0),
            (nanoseconds, 0) => {
                let samples = cost.samples.max(1) as f64;
                (samples, nanoseconds as f64 / samples)
            }
            (nanoseconds, period) => (nanoseconds as f64 / period as f64, period as f64),
        };
        let error = samples.max(1.0).sqrt() * each;
        (time / self.divisor, error / self.divisor)
    }
}

/// Returns the time of a cost, or where the recording does not tell, the number of samples.
fn size(cost: Cost) -> f64 {
    match cost.nanoseconds {
        0 => cost.samples as f64,
        time => time as f64,
    }
}

fn change(before: (Cost, Scale), after: (Cost, Scale)) -> Change {
    let (value, error) = before.1.value(before.0);
    let (now, now_error) = after.1.value(after.0);
    Change {
        before: value,
        after: now,
        error: error.hypot(now_error),
    }
}

/// Compares two recordings of these kinds of time by group and function.
pub(super) fn rows<'r>(before: &'r Report, after: &'r Report, kinds: &[TimeKind]) -> Vec<Row<'r>> {
    let is_on_cpu = matches!(kinds, [] | [TimeKind::Running]);
    let kind = if kinds.is_empty() {
        selection::kind_names(&[TimeKind::Running])
    } else {
        selection::kind_names(kinds)
    };
    let mut groups: HashMap<&[String], [Option<&GroupCost>; 2]> = HashMap::new();
    for (position, report) in [before, after].into_iter().enumerate() {
        // Others have other kinds of time alone.
        let with_cost = report.groups.iter().filter(|it| it.cost.samples > 0);
        for group in with_cost {
            groups.entry(&group.values).or_default()[position] = Some(group);
        }
    }
    let mut rows: Vec<Row<'r>> = groups
        .into_iter()
        .map(|(values, groups)| {
            let is_per_trace =
                periods_are_equal(before, after) && groups.into_iter().all(has_whole_traces);
            let scale = |group: Option<&GroupCost>, report: &Report| Scale {
                divisor: match group {
                    Some(group) if is_per_trace => group.traces as f64 * 1e6,
                    _ => size(report.total).max(1.0) / 100.0,
                },
                period: if is_on_cpu { report.period } else { 0 },
            };
            let scales = [scale(groups[0], before), scale(groups[1], after)];
            let cost = |group: Option<&GroupCost>| match group {
                Some(group) if is_per_trace => group.with_trace,
                Some(group) => group.cost,
                None => Cost::default(),
            };
            Row {
                kind: kind.clone(),
                values,
                is_per_trace,
                change: change((cost(groups[0]), scales[0]), (cost(groups[1]), scales[1])),
                functions: functions(groups, scales),
            }
        })
        .collect();
    rows.sort_by(|one, other| {
        let order = one.change.order(other.change);
        order.then_with(|| one.values.cmp(other.values))
    });
    rows
}

/// Samples of a trace, on average, from which on few traces of a group have none: one of 20.
const SAMPLES_OF_TRACE: u64 = 3;

/// Returns true if nearly all samples of a group have a trace, and nearly all of its traces have
/// samples. Else the time of a trace would be at least a period, however short it is.
fn has_whole_traces(group: Option<&GroupCost>) -> bool {
    group.is_some_and(|group| {
        let traced = group.with_trace.samples;
        let is_enough = traced >= SAMPLES_OF_TRACE.saturating_mul(group.traces as u64);
        group.traces > 0 && is_enough && traced.saturating_mul(10) >= group.cost.samples * 9
    })
}

/// Returns true if both were recorded at the same frequency: at a lower one, fewer short traces have
/// samples.
fn periods_are_equal(before: &Report, after: &Report) -> bool {
    before.period.abs_diff(after.period) <= before.period / 20
}

fn functions<'r>(groups: [Option<&'r GroupCost>; 2], scales: [Scale; 2]) -> Vec<FunctionRow<'r>> {
    // Lines move when code changes.
    let mut costs: HashMap<(&str, &str), (&Function, [Cost; 2])> = HashMap::new();
    for (position, group) in groups.into_iter().enumerate() {
        for (function, cost) in group.iter().flat_map(|group| &group.functions) {
            let key = (&function.name[..], &function.file[..]);
            let entry = costs.entry(key).or_insert((function, [Cost::default(); 2]));
            entry.0 = function;
            entry.1[position] = cost.own;
        }
    }
    let mut rows: Vec<FunctionRow<'r>> = costs
        .into_values()
        .map(|(function, costs)| FunctionRow {
            name: &function.name,
            file: &function.file,
            line: function.line,
            function,
            change: change((costs[0], scales[0]), (costs[1], scales[1])),
        })
        .filter(|row| row.change.is_beyond(STANDARD_ERRORS_OF_FUNCTION))
        .filter(|row| row.change.difference().abs() >= SHOWN)
        .collect();
    rows.sort_by(|one, other| {
        let order = one.change.order(other.change);
        order.then_with(|| one.function.cmp(other.function))
    });
    rows
}

/// Formats the comparison.
pub(super) fn table(
    before: &Report,
    after: &Report,
    kinds: &[TimeKind],
    by: &[String],
    most: usize,
    terminal: &Terminal,
) -> String {
    let rows = rows(before, after, kinds);
    let noun = Kinds::new(kinds, after).noun();
    let samples = |report: &Report| count(report.total.samples as usize, "sample", "samples");
    let mut shown = format!("before: {}; after: {}\n", samples(before), samples(after));
    let head = match by {
        [] => "All samples".to_owned(),
        names => format!("By {}", names.join(", ")),
    };
    let head = match kinds {
        [] => head,
        _ => format!("{head}: {noun}"),
    };
    shown += &format!("\n{}\n", terminal.paint(Style::Bold, &escape(&head)));
    let lines = rows.iter().take(most).flat_map(|row| {
        let values = match row.values {
            [] => "all".to_owned(),
            values => escape(&values.join("  ")),
        };
        let unit = if row.is_per_trace { " ms" } else { " %" };
        let functions = row.functions.iter().take(FUNCTIONS_OF_ROW);
        let functions = functions.map(move |it| {
            let name = format!("    {}", with_place(it.function));
            cells(it.change, unit, name)
        });
        std::iter::once(cells(row.change, unit, values)).chain(functions)
    });
    let columns = [
        number("BEFORE"),
        number("AFTER"),
        number("DIFFERENCE"),
        text("VALUE"),
    ];
    shown += &Table::new(columns).render(lines, terminal);
    if rows.len() > most {
        shown += &format!(
            "  and {} more; -n 0 shows all\n",
            grouped(rows.len() - most)
        );
    }
    if !periods_are_equal(before, after) {
        shown += "recorded at different frequencies: only shares can be compared\n";
    }
    if rows.iter().any(|row| row.is_per_trace) {
        shown += &format!("ms: {noun} per sampled trace\n");
    }
    if !rows.iter().all(|row| row.is_per_trace) {
        shown += &format!("%: share of the recording's {noun}\n");
    }
    shown += "none: within the noise of sampling; functions by the time in themselves\n";
    shown
}

fn cells(change: Change, unit: &str, name: String) -> [String; 4] {
    let value = |value: f64| format!("{value:.1}{unit}");
    let difference = if change.is_certain() {
        format!("{:+.1}{unit}", change.difference())
    } else {
        "none".to_owned()
    };
    [value(change.before), value(change.after), difference, name]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(samples: u64) -> Cost {
        Cost {
            samples,
            nanoseconds: samples * 10_000_000,
        }
    }

    /// 100 samples have a standard error of 10.
    #[test]
    fn a_difference_within_the_noise_is_none() {
        let scale = Scale {
            divisor: 1e7,
            period: 10_000_000,
        };
        let of = |before, after| change((cost(before), scale), (cost(after), scale));
        assert!(!of(100, 100).is_certain());
        // √(100 + 128) × 2 = 30.2
        assert!(!of(100, 128).is_certain());
        assert!(of(100, 135).is_certain());
        assert!(of(135, 100).is_certain());
        // √(1 + 3) × 2 = 4
        assert!(!of(0, 3).is_certain());
        assert!(of(0, 9).is_certain());
        assert_eq!(of(9, 16).error, 5.0);
        assert_eq!(of(9, 16).difference(), 7.0);
    }
}
