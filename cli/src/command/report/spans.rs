//! Traces and spans by the time that they took, with the CPU time in it.

use std::time::{Duration, SystemTime};

use otelctx_profile::report::{Cost, KindCosts, Report};
use otelctx_profile::sample::format::{SpanId, TraceId};
use otelctx_profile::{Span, SpanReport, SpanTime, Spans, awaited};
use serde::Serialize;

use super::kinds::Kinds;
use super::tables::{number, text, time};
use crate::output::clock;
use crate::output::table::Table;
use crate::output::terminal::{Style, Terminal, escape};
use crate::output::text::{count, grouped};

/// Spans of a report.
#[derive(Debug)]
pub(super) struct Found {
    spans: Spans,
    report: SpanReport,
    /// What the time that a span took consists of is known: running, queued, waiting, and the rest.
    has_waits: bool,
}

impl Found {
    pub(super) fn new(spans: Spans, report: &Report, kinds: &Kinds) -> Self {
        Self {
            report: spans.within(report),
            spans,
            has_waits: kinds.has_waits_beside(),
        }
    }

    /// Formats traces, or the spans of selected ones, the slowest first.
    pub(super) fn text(&self, of_traces: bool, rows: usize, terminal: &Terminal) -> String {
        let hidden = !self.has_waits;
        let (head, all, table) = if of_traces {
            let traces = self.report.traces.iter().take(rows);
            let table = traces.map(|it| {
                let span = &it.longest;
                let [queued, waiting, awaited] = off_cpu(span.duration, &it.kinds);
                [
                    lasted(span.duration),
                    time(it.cost),
                    share(it.cost, span.duration),
                    queued,
                    waiting,
                    awaited,
                    started(span),
                    TraceId::from_bytes(span.trace).to_string(),
                    escape(&span.name),
                ]
            });
            let columns = [
                number("LASTED"),
                number("CPU"),
                number("SHARE"),
                number("QUEUED"),
                number("WAITING"),
                number("AWAITED"),
                text("STARTED"),
                text("TRACE"),
                text("LONGEST SPAN"),
            ];
            let columns = Table::new(columns).hide([
                false, false, false, hidden, hidden, hidden, false, false, false,
            ]);
            let table = columns.render(table, terminal);
            (
                "By trace, the slowest first",
                self.report.traces.len(),
                table,
            )
        } else {
            let spans = self.report.spans.iter().take(rows);
            let table = spans.map(|it| {
                let [queued, waiting, awaited] = off_cpu(it.span.duration, &it.kinds);
                [
                    lasted(it.span.duration),
                    time(it.cost.total),
                    share(it.cost.total, it.span.duration),
                    time(it.cost.own),
                    queued,
                    waiting,
                    awaited,
                    started(&it.span),
                    escape(&it.span.service),
                    escape(&it.span.name),
                ]
            });
            let columns = [
                number("LASTED"),
                number("CPU"),
                number("SHARE"),
                number("SELF"),
                number("QUEUED"),
                number("WAITING"),
                number("AWAITED"),
                text("STARTED"),
                text("SERVICE"),
                text("SPAN"),
            ];
            let columns = Table::new(columns).hide([
                false, false, false, false, hidden, hidden, hidden, false, false, false,
            ]);
            let table = columns.render(table, terminal);
            ("By span, the slowest first", self.report.spans.len(), table)
        };
        let mut shown = format!("\n{}\n{table}", terminal.paint(Style::Bold, head));
        if all > rows {
            shown += &format!("  and {} more; -n 0 shows all\n", grouped(all - rows));
        }
        if self.has_waits {
            shown += "awaited: no thread worked on it; the least, if several did at once\n";
        }
        let (traces, spans) = self.report.unseen;
        if traces > 0 {
            shown += &format!(
                "{} of {} without a selected sample\n",
                count(spans, "span", "spans"),
                count(traces, "trace", "traces")
            );
        }
        shown + &self.skipped()
    }

    fn skipped(&self) -> String {
        let reasons = [
            (self.spans.invalid, "without a valid ID"),
            (self.spans.duplicates, "that occur twice"),
            (self.spans.omitted, "beyond 1,000,000"),
        ];
        let reasons = reasons.into_iter().filter(|(number, _)| *number > 0);
        let line = |(number, reason): (u64, &str)| {
            format!(
                "skipped: {} {reason}\n",
                count(number as usize, "span", "spans")
            )
        };
        let mut text: String = reasons.map(line).collect();
        if self.spans.is_truncated {
            text += "truncated: the file ends within a line or message, which was skipped\n";
        }
        text
    }

    /// Returns the value of docs/json.md.
    pub(super) fn json(&self) -> SpansJson {
        let of_waits = |time: u64| self.has_waits.then_some(time);
        let row = |span: &Span, cpu: Cost, own: Option<Cost>, kinds: &KindCosts| RowJson {
            trace_id: TraceId::from_bytes(span.trace).to_string(),
            span_id: SpanId::from_bytes(span.id).to_string(),
            service: span.service.clone(),
            name: span.name.clone(),
            start_ns: span.start,
            duration_ns: span.duration,
            cpu_ns: cpu.nanoseconds,
            samples: cpu.samples,
            self_ns: own.map(|own| own.nanoseconds),
            queued_ns: of_waits(kinds.queued.nanoseconds),
            waiting_ns: of_waits(kinds.waiting.nanoseconds),
            awaited_ns: of_waits(awaited(span.duration, kinds)),
        };
        let traces = self.report.traces.iter();
        let traces = traces.map(|it| row(&it.longest, it.cost, None, &it.kinds));
        let spans = self.report.spans.iter();
        let own = |it: &SpanTime| row(&it.span, it.cost.total, Some(it.cost.own), &it.kinds);
        let spans = spans.map(own);
        SpansJson {
            traces: traces.collect(),
            spans: spans.collect(),
            unseen_traces: self.report.unseen.0,
            unseen_spans: self.report.unseen.1,
            invalid: self.spans.invalid,
            duplicates: self.spans.duplicates,
            omitted: self.spans.omitted,
            is_truncated: self.spans.is_truncated,
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct SpansJson {
    traces: Vec<RowJson>,
    spans: Vec<RowJson>,
    unseen_traces: usize,
    unseen_spans: usize,
    invalid: u64,
    duplicates: u64,
    omitted: u64,
    is_truncated: bool,
}

#[derive(Debug, Serialize)]
struct RowJson {
    trace_id: String,
    span_id: String,
    service: String,
    name: String,
    start_ns: u64,
    duration_ns: u64,
    cpu_ns: u64,
    samples: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    self_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queued_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiting_ns: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    awaited_ns: Option<u64>,
}

/// Formats the parts of a span's time in which no thread ran for it.
fn off_cpu(duration: u64, kinds: &KindCosts) -> [String; 3] {
    let [_, queued, waiting] = Kinds::cells(kinds);
    [queued, waiting, lasted(awaited(duration, kinds))]
}

fn lasted(nanoseconds: u64) -> String {
    match nanoseconds as f64 / 1e6 {
        long if long >= 10_000.0 => format!("{:.1} s", long / 1e3),
        milliseconds => format!("{milliseconds:.1} ms"),
    }
}

/// Formats CPU time as a share of the time that a span took: of several threads, more than 100 %.
fn share(cost: Cost, lasted: u64) -> String {
    match (lasted, cost.nanoseconds) {
        (0, _) | (_, 0) => String::new(),
        (lasted, cpu) => format!("{:.1} %", cpu as f64 / lasted as f64 * 100.0),
    }
}

fn started(span: &Span) -> String {
    clock::local(SystemTime::UNIX_EPOCH + Duration::from_nanos(span.start))
}
