//! Columns and cells of all tables of a report.

use otelctx_profile::report::Cost;

use crate::output::table::Align;
use crate::output::text::grouped;

pub(in crate::command) fn number(name: &'static str) -> (&'static str, Align) {
    (name, Align::Right)
}

pub(in crate::command) fn text(name: &'static str) -> (&'static str, Align) {
    (name, Align::Left)
}

/// Formats time, in milliseconds or seconds; the number of samples if the recording does not tell.
pub(in crate::command) fn time(cost: Cost) -> String {
    match cost.nanoseconds as f64 / 1e6 {
        _ if cost.nanoseconds == 0 => grouped(cost.samples as usize),
        milliseconds if milliseconds >= 10_000.0 => format!("{:.1} s", milliseconds / 1e3),
        milliseconds => format!("{} ms", grouped(milliseconds.round() as usize)),
    }
}

/// Formats a part of a cost, in percent.
pub(in crate::command) fn share(part: Cost, all: Cost) -> String {
    let (part, all) = match all.nanoseconds {
        0 => (part.samples, all.samples),
        all => (part.nanoseconds, all),
    };
    format!("{:.1} %", part as f64 / all.max(1) as f64 * 100.0)
}
