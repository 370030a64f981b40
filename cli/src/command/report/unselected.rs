//! Explains why no sample is selected.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use otelctx_profile::Input;
use otelctx_profile::report::{Report, ReportOptions, TimeKind};

use super::tables::time;
use crate::command::selection::Select;
use crate::error::Error;
use crate::output::clock;
use crate::output::terminal::{self, escape};
use crate::output::text::{argument, count};

/// Maximum number of values to list.
const MAX_LISTED: usize = 5;

/// Says that no sample is selected, and what the recording has of what was asked for.
pub(in crate::command) fn explain(input: &Input, select: &Select) -> Result<(), Error> {
    let mut all = ReportOptions::by(&[]);
    all.selection.kinds = vec![TimeKind::Running, TimeKind::Queued, TimeKind::Waiting];
    all.selection.with_idle = true;
    let report = Report::read(input, &all)?;
    if report.total.samples == 0 {
        terminal::complain("the recording has no samples", None);
        return Ok(());
    }
    let mut hints = Vec::new();
    let selected = ReportOptions {
        selection: select.within(input)?,
        ..ReportOptions::by(&[])
    };
    let idle = Report::read(input, &selected)?.idle;
    if idle.samples > 0 {
        let idle = time(idle);
        hints.push(format!(
            "{idle} of waiting threads without a context is hidden; --idle shows it"
        ));
    }
    let names: BTreeSet<&str> = select.attributes().collect();
    for name in names {
        all.by = vec![name.to_owned()];
        let report = Report::read(input, &all)?;
        let values = report.groups.iter().map(|group| &group.values[0]);
        let values: Vec<&String> = values.filter(|value| *value != "(none)").collect();
        hints.push(match &values[..] {
            [] => format!(
                "no sample has the attribute {}; recorded attributes: {}",
                escape(name),
                list(report.attributes.iter())
            ),
            values => format!(
                "values of {}: {}",
                escape(name),
                list(values.iter().copied())
            ),
        });
    }
    if select.has_kinds() {
        let [running, queued, waiting] = [TimeKind::Running, TimeKind::Queued, TimeKind::Waiting]
            .map(|it| time(report.kinds.of(it)));
        hints.push(format!(
            "the recording has {running} running, {queued} queued and {waiting} waiting"
        ));
    }
    if select.has_threads() {
        all.by = vec!["thread".to_owned()];
        let report = Report::read(input, &all)?;
        let names = report.groups.iter().map(|group| &group.values[0]);
        hints.push(format!("threads: {}", list(names)));
    }
    if select.has_processes() {
        let names = report.by_process.iter().map(|(name, _)| name);
        hints.push(format!("processes: {}", list(names)));
    }
    if select.has_time() {
        let seconds = report.duration as f64 / 1e9;
        hints.push(match report.start {
            0 => format!("the recording lasts {seconds:.1} s and does not tell when it was made"),
            start => {
                let start = SystemTime::UNIX_EPOCH + Duration::from_nanos(start);
                let start = clock::local_with_offset(start);
                format!("the recording starts at {start} and lasts {seconds:.1} s")
            }
        });
    }
    if select.has_functions() {
        let names = report.by_function.iter().map(|(it, _)| &it.name);
        hints.push(format!("functions: {}", list(names)));
    }
    if select.has_traces() {
        let traces = count(report.by_trace.len(), "trace", "traces");
        hints.push(format!("the recording has {traces}: --traces lists them"));
    }
    terminal::complain_with("no sample is selected", hints.iter().map(String::as_str));
    Ok(())
}

fn list<'v>(values: impl Iterator<Item = &'v String>) -> String {
    let values: Vec<String> = values.map(|value| escape(&argument(value))).collect();
    match &values[..] {
        [] => "none".to_owned(),
        few if few.len() <= MAX_LISTED => few.join(", "),
        many => format!(
            "{}, and {} more",
            many[..MAX_LISTED].join(", "),
            many.len() - MAX_LISTED
        ),
    }
}
