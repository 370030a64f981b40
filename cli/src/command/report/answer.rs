//! The JSON object of docs/json.md.

use otelctx_profile::report::{Cost, KindCosts, Report};
use serde::Serialize;

use super::spans::{Found, SpansJson};

use crate::command::filter::NONE;
use crate::command::record::gil::GilSamples;
use crate::command::selection::GivenOption;

#[derive(Serialize)]
pub(super) struct Answer<'r> {
    samples: u64,
    filter: Vec<GivenOption>,
    cpu_ns: u64,
    #[serde(flatten)]
    kinds: KindTimes,
    idle_ns: u64,
    idle_samples: u64,
    with_trace: u64,
    gil: GilSamples,
    start_ns: u64,
    duration_ns: u64,
    period_ns: u64,
    by: String,
    by_attribute: Vec<GroupRow<'r>>,
    by_trace: Vec<TraceRow<'r>>,
    by_function: Vec<FunctionRow<'r>>,
    by_process: Vec<Row<'r>>,
    by_service: Vec<Row<'r>>,
    unnamed: Vec<Row<'r>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spans: Option<SpansJson>,
}

/// Nanoseconds by kind of time.
#[derive(Serialize)]
struct KindTimes {
    running_ns: u64,
    queued_ns: u64,
    waiting_ns: u64,
}

impl From<&KindCosts> for KindTimes {
    fn from(costs: &KindCosts) -> Self {
        Self {
            running_ns: costs.running.nanoseconds,
            queued_ns: costs.queued.nanoseconds,
            waiting_ns: costs.waiting.nanoseconds,
        }
    }
}

#[derive(Serialize)]
struct Row<'r> {
    name: &'r str,
    samples: u64,
    cpu_ns: u64,
}

#[derive(Serialize)]
struct GroupRow<'r> {
    /// The first of `values`.
    name: &'r str,
    values: &'r [String],
    samples: u64,
    cpu_ns: u64,
    #[serde(flatten)]
    kinds: KindTimes,
}

#[derive(Serialize)]
struct TraceRow<'r> {
    trace_id: &'r str,
    attribute: &'r str,
    samples: u64,
    cpu_ns: u64,
    #[serde(flatten)]
    kinds: KindTimes,
    first_ns: u64,
    last_ns: u64,
    threads: usize,
}

#[derive(Serialize)]
struct FunctionRow<'r> {
    name: &'r str,
    file: &'r str,
    line: u32,
    kind: &'r str,
    self_ns: u64,
    total_ns: u64,
    self_samples: u64,
    total_samples: u64,
}

pub(super) fn of<'r>(
    report: &'r Report,
    by: &[String],
    filter: Vec<GivenOption>,
    spans: Option<&Found>,
) -> Answer<'r> {
    let row = |(name, cost): &'r (String, Cost)| Row {
        name,
        samples: cost.samples,
        cpu_ns: cost.nanoseconds,
    };
    let rows = |rows: &'r [(String, Cost)]| rows.iter().map(row).collect();
    let groups = report.groups.iter().map(|group| GroupRow {
        name: group.values.first().map_or("", String::as_str),
        values: &group.values,
        samples: group.cost.samples,
        cpu_ns: group.cost.nanoseconds,
        kinds: (&group.kinds).into(),
    });
    let traces = report.by_trace.iter().map(|it| TraceRow {
        trace_id: &it.trace.id,
        attribute: &it.trace.attribute,
        samples: it.cost.samples,
        cpu_ns: it.cost.nanoseconds,
        kinds: (&it.kinds).into(),
        first_ns: it.first,
        last_ns: it.last,
        threads: it.threads,
    });
    let functions = report.by_function.iter();
    let functions = functions.map(|(function, cost)| FunctionRow {
        name: &function.name,
        file: &function.file,
        line: function.line,
        kind: &function.kind,
        self_ns: cost.own.nanoseconds,
        total_ns: cost.total.nanoseconds,
        self_samples: cost.own.samples,
        total_samples: cost.total.samples,
    });
    Answer {
        samples: report.total.samples,
        filter,
        cpu_ns: report.total.nanoseconds,
        kinds: (&report.kinds).into(),
        idle_ns: report.idle.nanoseconds,
        idle_samples: report.idle.samples,
        with_trace: report.with_trace.samples,
        gil: GilSamples::of_report(report),
        start_ns: report.start,
        duration_ns: report.duration,
        period_ns: report.period,
        by: match by {
            [] => NONE.to_owned(),
            names => names.join(","),
        },
        by_attribute: match by {
            [] => Vec::new(),
            _ => groups.collect(),
        },
        by_trace: traces.collect(),
        by_function: functions.collect(),
        by_process: rows(&report.by_process),
        by_service: rows(&report.by_service),
        unnamed: rows(&report.unnamed),
        spans: spans.map(Found::json),
    }
}
