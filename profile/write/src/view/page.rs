//! Turns what was read into a page.

use std::cmp::Reverse;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use indexmap::IndexSet;
use otelctx_page as page;

use super::levels::{Levels, Run, Value, run_of};
use super::plumbing::{PLUMBING, plumbing_of};
use super::spans::{Span, Spans};
use super::tables::{self, Group, Id, Kind, Known, NONE, Sink, Tables, UNKNOWN_TIME, known};
use crate::report::NO_ATTRIBUTE;
use crate::wait::FRAME_KIND;

/// Maximum number of samples in a page. Of more, every second one is left out, as often as needed,
/// and the others stand for them.
const MAX_SAMPLES: usize = 3_000_000;

/// Nanoseconds of a part of a wait, and the maximum number of parts.
const WAIT_PART: u64 = 100_000_000;
const MAX_WAIT_PARTS: u64 = 1000;

/// Collects samples.
#[derive(Debug)]
pub(super) struct Paging {
    /// What routes are.
    levels: Levels,
    recording: page::Recording,
    routes: IndexSet<Box<[Value]>, RandomState>,
    threads: Known<u32>,
    /// The process of each thread that was added.
    processes: Vec<Id>,
    /// By context and route.
    contexts: HashMap<(Id, Option<u32>), Option<u32>, RandomState>,
    /// The context of the last samples.
    last: Option<(Run, Option<u32>)>,
    /// The last node of each stack.
    stacks: Known<u32>,
    /// Nodes by parent and function.
    nodes: HashMap<(u32, Id), u32, RandomState>,
    /// One of this many samples is kept, with the weight of as many.
    step: u64,
    /// Samples so far, with the further parts of waits.
    seen: u64,
    further_parts: u64,
    /// Nanoseconds of samples that were left out since the last one that was kept.
    carried: u64,
    /// The recording does not tell the time that a sample stands for.
    is_counted: bool,
}

impl Paging {
    pub(super) fn new(by: &[String]) -> Self {
        let plumbing = PLUMBING.iter().map(|it| it.name.to_owned()).collect();
        Self {
            levels: Levels::new(by),
            recording: page::Recording {
                by: by.join(", "),
                plumbing,
                nodes: vec![page::Node::default()],
                ..page::Recording::default()
            },
            routes: IndexSet::default(),
            threads: Vec::new(),
            processes: Vec::new(),
            contexts: HashMap::default(),
            last: None,
            stacks: Vec::new(),
            nodes: HashMap::default(),
            step: 1,
            seen: 0,
            further_parts: 0,
            carried: 0,
            is_counted: false,
        }
    }

    /// Returns the page's content, with spans of its traces if they are known.
    pub(super) fn finish(
        &self,
        title: &str,
        tables: &Tables,
        spans: Option<&Spans>,
    ) -> page::Recording {
        let mut recording = self.recording.clone();
        title.clone_into(&mut recording.title);
        if self.step > 1 {
            let (step, seen) = (self.step, self.seen - self.further_parts);
            recording.note = Some(format!(
                "One of {step} samples is shown and stands for the others: the recording has {seen}."
            ));
        }
        let start = tables.span.map_or(0, |(start, _)| start);
        for sample in &mut recording.samples {
            sample.time = sample.time.saturating_sub(start);
        }
        if self.step == 1 {
            recording.further_parts = usize::try_from(self.further_parts).unwrap_or(0);
        }
        if let Some(last) = recording.samples.last_mut() {
            last.weight = last.weight.saturating_add(self.carried);
        }
        recording.start = if tables.has_date { start } else { 0 };
        recording.period = match tables.period {
            0 => UNKNOWN_TIME,
            period => period,
        };
        if self.is_counted {
            let unknown = "The recording does not tell the time of a sample: 1 ms stands for one.";
            let note = recording.note.iter().map(String::as_str).chain([unknown]);
            recording.note = Some(note.collect::<Vec<_>>().join(" "));
        }
        // The name of a process is that of its first thread, which may have come late.
        let mut services: IndexSet<String, RandomState> = IndexSet::default();
        for (thread, process) in recording.threads.iter_mut().zip(&self.processes) {
            let service = tables.processes[*process as usize].service(tables);
            thread.service = services.insert_full(service.into_owned()).0 as u32;
        }
        recording.services = services.into_iter().collect();
        let text = |value: &Value| self.levels.shown(tables, *value);
        let texts = |values: &[Value]| match values {
            [value] => text(value).unwrap_or_default(),
            values => {
                let texts = values.iter().map(text);
                let texts = texts.map(|it| it.unwrap_or_else(|| NO_ATTRIBUTE.to_owned()));
                texts.collect::<Vec<_>>().join(", ")
            }
        };
        recording.routes = self.routes.iter().map(|it| texts(it)).collect();
        // The first one stands for none.
        recording.traces = tables.traces.iter().skip(1).copied().collect();
        recording.functions = tables
            .functions
            .iter()
            .enumerate()
            .map(|(index, function)| function_of(tables, index as Id, function))
            .collect();
        if let Some(spans) = spans {
            add_spans(&mut recording, spans);
        }
        recording
    }

    /// Returns true if no sample was collected.
    pub(super) fn is_empty(&self) -> bool {
        self.seen == 0
    }

    fn thread(&mut self, tables: &Tables, id: Id) -> u32 {
        if let Some(known) = known(&mut self.threads, id) {
            return *known;
        }
        let (process_id, process) = tables.process_of(id);
        let thread = tables.thread(id);
        let number = |value: Option<i64>| value.and_then(|it| u32::try_from(it).ok()).unwrap_or(0);
        let added = self.recording.threads.len() as u32;
        self.processes.push(process_id);
        self.recording.threads.push(page::Thread {
            pid: number(process.pid),
            tid: number(thread.tid),
            service: 0,
            name: tables.text(thread.name).to_owned(),
        });
        *known(&mut self.threads, id).insert(added)
    }

    fn context(&mut self, tables: &Tables, group: &Group<'_>) -> Option<u32> {
        let run = run_of(group);
        match self.last {
            Some((known, context)) if known == run => return context,
            _ => {}
        }
        let values = self.levels.values(tables, group);
        let has_route = values.iter().any(|value| *value != Value::None);
        let route = has_route.then(|| self.routes.insert_full(values).0 as u32);
        let context = &tables.contexts[group.context as usize];
        let is_none = context.trace == NONE && context.span == [0; 8] && route.is_none();
        let contexts = &mut self.recording.contexts;
        let add = || {
            (!is_none).then(|| {
                contexts.push(page::Context {
                    trace: context.trace.checked_sub(1),
                    span: context.span,
                    route,
                });
                contexts.len() as u32 - 1
            })
        };
        let key = (group.context, route);
        let found = *self.contexts.entry(key).or_insert_with(add);
        self.last = Some((run, found));
        found
    }

    fn stack(&mut self, tables: &Tables, id: Id) -> u32 {
        if let Some(known) = known(&mut self.stacks, id) {
            return *known;
        }
        let mut node = 0;
        for line in tables.frames(id).rev() {
            let nodes = &mut self.recording.nodes;
            let next = nodes.len() as u32;
            let parent = node;
            node = *self.nodes.entry((parent, line.function)).or_insert(next);
            if node == next {
                nodes.push(page::Node {
                    parent,
                    function: line.function,
                });
            }
        }
        *known(&mut self.stacks, id).insert(node)
    }

    /// Adds a wait, which ends at the sample's time, as samples that begin at theirs. A long one is
    /// several samples, so that a range of time has its part of it; not an idle one, of which there
    /// are many.
    fn add_wait(&mut self, wait: page::Sample) {
        let parts = match wait.kind {
            page::Kind::Idle => 1,
            _ => wait.weight.div_ceil(WAIT_PART).clamp(1, MAX_WAIT_PARTS),
        };
        // A page has whole microseconds.
        let each = wait.weight / parts / 1000 * 1000;
        let start = wait.time.saturating_sub(wait.weight);
        for part in 0..parts {
            let before = part * each;
            self.add_sample(page::Sample {
                time: start.saturating_add(before),
                weight: if part + 1 == parts {
                    wait.weight - before
                } else {
                    each
                },
                ..wait
            });
        }
        self.further_parts = self.further_parts.saturating_add(parts - 1);
    }

    fn add_sample(&mut self, sample: page::Sample) {
        self.seen = self.seen.saturating_add(1);
        if !self.seen.is_multiple_of(self.step) {
            self.carried = self.carried.saturating_add(sample.weight);
            return;
        }
        let weight = sample
            .weight
            .saturating_add(std::mem::take(&mut self.carried));
        self.recording
            .samples
            .push(page::Sample { weight, ..sample });
        if self.recording.samples.len() >= MAX_SAMPLES {
            self.thin();
        }
    }

    /// Leaves out every second sample.
    fn thin(&mut self) {
        let (mut index, mut carried) = (0_usize, 0_u64);
        self.recording.samples.retain_mut(|sample| {
            index += 1;
            if !index.is_multiple_of(2) {
                carried = sample.weight;
                return false;
            }
            sample.weight = sample.weight.saturating_add(std::mem::take(&mut carried));
            true
        });
        self.carried = self.carried.saturating_add(carried);
        self.step *= 2;
    }
}

impl Sink for Paging {
    fn add(&mut self, tables: &Tables, group: &Group<'_>) {
        let thread = self.thread(tables, group.thread);
        let context = self.context(tables, group);
        let node = self.stack(tables, group.shown_stack);
        let kind = match group.kind {
            Kind::Running => page::Kind::Running,
            Kind::Queued => page::Kind::Queued,
            Kind::Waiting if group.context == NONE => page::Kind::Idle,
            Kind::Waiting => page::Kind::Waiting,
        };
        group.each(|time, samples, nanoseconds| {
            let weight = match nanoseconds {
                0 => {
                    self.is_counted = true;
                    samples.saturating_mul(UNKNOWN_TIME)
                }
                nanoseconds => nanoseconds,
            };
            let sample = page::Sample {
                time: time.unwrap_or(0),
                thread,
                kind,
                weight,
                context,
                node,
            };
            match kind {
                page::Kind::Running => self.add_sample(sample),
                _ => self.add_wait(sample),
            }
        });
    }

    fn hides_idle(&self) -> bool {
        // The page has a switch.
        false
    }

    fn needs_start(&self) -> bool {
        false
    }
}

/// Maximum number of spans in a page; of more, the longest are shown.
const MAX_SPANS: usize = 200_000;

/// Adds the spans of a recording's traces.
fn add_spans(recording: &mut page::Recording, spans: &Spans) {
    let traces = recording.traces.iter().enumerate();
    let traces: HashMap<[u8; 16], u32, RandomState> =
        traces.map(|(index, id)| (*id, index as u32)).collect();
    let known = spans.all.iter();
    let mut known: Vec<&Span> = known.filter(|it| traces.contains_key(&it.trace)).collect();
    if known.len() > MAX_SPANS {
        known.sort_by_key(|span| Reverse(span.duration));
        known.truncate(MAX_SPANS);
    }
    let at = known.iter().enumerate();
    let at: HashMap<([u8; 16], [u8; 8]), u32, RandomState> = at
        .map(|(index, span)| ((span.trace, span.id), index as u32))
        .collect();
    let mut services: IndexSet<String, RandomState> = recording.services.drain(..).collect();
    let added = known.into_iter().map(|span| {
        // The part before the recording is not shown.
        let start = span.start.saturating_sub(recording.start);
        let before = recording.start.saturating_sub(span.start);
        page::Span {
            trace: traces[&span.trace],
            id: span.id,
            parent: span
                .parent
                .and_then(|id| at.get(&(span.trace, id)).copied()),
            service: services.insert_full(span.service.clone()).0 as u32,
            name: span.name.clone(),
            start,
            duration: span.duration.saturating_sub(before),
        }
    });
    recording.spans = added.collect();
    recording.services = services.into_iter().collect();
}

pub(super) fn function_of(tables: &Tables, id: Id, function: &tables::Function) -> page::Function {
    let text = |id| tables.text(id);
    let kind = text(function.kind);
    let (name, file) = (text(function.name), text(function.file));
    // A file stands for its functions: its own name is short, and the path is where files are.
    let of_file = name
        .rsplit_once('/')
        .filter(|_| file.is_empty() && name.starts_with('/'));
    if let Some((_, own)) = of_file {
        return page::Function {
            name: format!("[{own}]"),
            file: name.to_owned(),
            language: page::Language::Native,
            ..page::Function::default()
        };
    }
    page::Function {
        name: name.to_owned(),
        file: file.to_owned(),
        line: tables.line_of(id),
        language: match kind {
            "cpython" => page::Language::Python,
            "v8js" => page::Language::JavaScript,
            "jvm" => page::Language::Java,
            "native" | "" => page::Language::Native,
            "kernel" => page::Language::Kernel,
            FRAME_KIND => page::Language::Waiting,
            _ => page::Language::Other,
        },
        plumbing: plumbing_of(kind, name, file).and_then(|index| u8::try_from(index).ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(trace: u8, id: u8, parent: u8, start: u64, duration: u64) -> Span {
        let content = serde_json::json!({"resourceSpans": [{
            "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
            "scopeSpans": [{"spans": [{
                "traceId": format!("{trace:02x}").repeat(16), "spanId": format!("{id:02x}").repeat(8),
                "parentSpanId": format!("{parent:02x}").repeat(8), "name": format!("span {id}"),
                "startTimeUnixNano": start, "endTimeUnixNano": start + duration,
            }]}],
        }]});
        let spans = Spans::of(content.to_string().as_bytes()).unwrap();
        spans.all.into_iter().next().unwrap()
    }

    /// A wait of 250.0015 ms that ends 300 ms after 1970.
    fn parts(kind: page::Kind) -> Vec<(u64, u64)> {
        let mut paging = Paging::new(&[]);
        paging.add_wait(page::Sample {
            time: 300_000_000,
            kind,
            weight: 250_001_500,
            ..page::Sample::default()
        });
        let samples = paging.recording.samples.iter();
        let parts: Vec<_> = samples.map(|it| (it.time, it.weight)).collect();
        assert_eq!(paging.further_parts, parts.len() as u64 - 1);
        let recording = paging.finish("shop", &Tables::default(), None);
        assert_eq!(recording.further_parts, parts.len() - 1);
        parts
    }

    #[test]
    fn a_long_wait_has_parts_that_end_when_it_does() {
        let expected = [
            (49_998_500, 83_333_000),
            (133_331_500, 83_333_000),
            (216_664_500, 83_335_500),
        ];
        assert_eq!(parts(page::Kind::Waiting), expected);
        assert_eq!(parts(page::Kind::Idle), [(49_998_500, 250_001_500)]);
        let mut paging = Paging::new(&[]);
        paging.add_wait(page::Sample {
            kind: page::Kind::Queued,
            weight: u64::MAX,
            ..page::Sample::default()
        });
        let samples = &paging.recording.samples;
        assert_eq!(samples.len() as u64, MAX_WAIT_PARTS);
        let sum = samples
            .iter()
            .map(|it| it.weight)
            .fold(0, u64::saturating_add);
        assert_eq!(sum, u64::MAX);
    }

    #[test]
    fn a_page_has_the_spans_of_its_traces_and_of_no_others() {
        let mut recording = page::Recording {
            start: 1000,
            services: vec!["(shop)".to_owned()],
            traces: vec![[1; 16], [2; 16]],
            ..page::Recording::default()
        };
        let all = vec![
            // It starts before the recording.
            span(2, 1, 0, 990, 30),
            span(2, 2, 1, 1005, 7),
            span(9, 3, 0, 1000, 5),
        ];
        let spans = Spans {
            all,
            ..Spans::default()
        };
        add_spans(&mut recording, &spans);
        assert_eq!(recording.services, ["(shop)", "shop"]);
        let facts = recording.spans.iter().map(|it| {
            let times = (it.start, it.duration);
            (
                it.trace,
                it.id[0],
                it.parent,
                it.service,
                &it.name[..],
                times,
            )
        });
        let expected = [
            (1, 1, None, 1, "span 1", (0, 20)),
            (1, 2, Some(0), 1, "span 2", (5, 7)),
        ];
        assert_eq!(facts.collect::<Vec<_>>(), expected);
    }
}
