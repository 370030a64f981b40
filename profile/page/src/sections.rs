//! The columns of the page. README.md describes them for readers.

use std::collections::BTreeMap;

use crate::bytes::Bytes;
use crate::order::{Ordered, in_weight_units, kind};
use crate::spans::SpanOrder;
use crate::text::{MAX_NAME_BYTES, clean, clean_all, name_limit};
use crate::tree::{Cell, ROUTE_DEPTH, SERVICE_DEPTH, Tree};
use crate::{Function, Language, Recording, Sample};

/// The longest name of a file, of a thread or of a span.
pub(crate) const MAX_SHORT_BYTES: usize = 1024;

/// What the page shows of frames that are not in its tree.
const MORE_FRAMES: &str = "[more frames]";

/// A section of the page.
#[derive(Debug)]
pub(crate) struct Section {
    /// The name that scripts find it by.
    pub(crate) name: &'static str,
    /// Its bytes.
    pub(crate) bytes: Bytes,
}

/// The sections of a page, in their order.
#[derive(Debug)]
pub(crate) struct Sections {
    /// What the first picture needs.
    pub(crate) overview: Vec<Section>,
    /// All else, which is most of the page.
    pub(crate) samples: Vec<Section>,
}

/// Encodes a recording.
pub(crate) fn encode(recording: &Recording, ordered: &Ordered, tree: &Tree) -> Sections {
    let spans = SpanOrder::new(recording, ordered);
    let functions = shown_functions(recording, tree);
    let section = |name, bytes| Section { name, bytes };
    let overview = vec![
        section("names", names(&functions)),
        section("functions", places(&functions)),
        section("tree", shape(tree)),
        section("cells", cells(tree, ordered)),
    ];
    let mut samples = vec![
        section("threads", threads(recording, ordered)),
        section("traces", traces(recording, ordered)),
        section("time", times(recording, ordered)),
        section("kind", kinds(recording, ordered)),
        section("weight", weights(recording, ordered)),
        section("trace", traces_of_samples(recording, ordered)),
        section("cell", cells_of_samples(ordered, tree)),
    ];
    if !recording.spans.is_empty() {
        samples.push(section("spans", spans_by_trace(recording, ordered, &spans)));
        samples.push(section(
            "span",
            spans_of_samples(recording, ordered, &spans),
        ));
    }
    Sections { overview, samples }
}

/// The functions that occur, in the tree's order.
fn shown_functions(recording: &Recording, tree: &Tree) -> Vec<Function> {
    let names = tree
        .functions
        .iter()
        .filter_map(|index| recording.functions.get(*index as usize));
    let lengths: Vec<usize> = names.map(|function| function.name.len()).collect();
    let limit = name_limit(lengths.into_iter());
    let shown = |index: &u32| match recording.functions.get(*index as usize) {
        None => Function {
            name: MORE_FRAMES.to_owned(),
            ..Function::default()
        },
        Some(function) => Function {
            name: clean(&function.name, limit).into_owned(),
            file: clean(&function.file, limit.min(MAX_SHORT_BYTES)).into_owned(),
            ..*function
        },
    };
    tree.functions.iter().map(shown).collect()
}

fn names(functions: &[Function]) -> Bytes {
    let mut bytes = Bytes::default();
    bytes.texts(functions.iter().map(|function| &function.name[..]));
    bytes
}

/// The files, and each function's file, line, language and kind of plumbing.
fn places(functions: &[Function]) -> Bytes {
    let mut files: BTreeMap<&str, u32> = BTreeMap::new();
    for function in functions {
        files.insert(&function.file, 0);
    }
    for (index, number) in files.values_mut().enumerate() {
        *number = index as u32;
    }
    let mut bytes = Bytes::default();
    let sorted: Vec<&str> = files.keys().copied().collect();
    bytes.texts(sorted.iter().copied());
    for function in functions {
        bytes.number(files[&function.file[..]]);
    }
    for function in functions {
        bytes.number(function.line);
    }
    for function in functions {
        bytes.byte(language(function.language));
    }
    for function in functions {
        bytes.number(function.plumbing.map_or(0, |kind| u32::from(kind) + 1));
    }
    bytes
}

const fn language(language: Language) -> u8 {
    match language {
        Language::Python => 0,
        Language::JavaScript => 1,
        Language::Java => 2,
        Language::Native => 3,
        Language::Kernel => 4,
        Language::Other => 5,
        Language::Waiting => 6,
    }
}

/// The number of nodes; for each but the root how many levels it is above the deepest that could
/// follow; and for each its label, of which a function's is 0 where it occurs for the first time,
/// and else how far back its first occurrence is.
fn shape(tree: &Tree) -> Bytes {
    let mut bytes = Bytes::with_capacity(tree.parent.len() * 2);
    bytes.number(tree.parent.len() as u64);
    for pair in tree.depth.windows(2) {
        bytes.number(pair[0] + 1 - pair[1]);
    }
    let mut next = 0;
    for (label, depth) in tree.label.iter().zip(&tree.depth).skip(1) {
        match *depth {
            SERVICE_DEPTH | ROUTE_DEPTH => bytes.number(*label),
            _ if *label == next => {
                bytes.number(0_u32);
                next += 1;
            }
            _ => bytes.number(next - label),
        }
    }
    bytes
}

/// The number of cells, each one's node as the difference to the last, and its weight of samples of
/// running threads: twice the number of periods, or twice the weight and 1.
fn cells(tree: &Tree, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::default();
    bytes.number(tree.cells.len() as u64);
    let mut last = 0;
    for cell in &tree.cells {
        bytes.signed(cell.node as i32 - last);
        last = cell.node as i32;
    }
    let period = u64::from(ordered.period);
    for Cell { running, .. } in &tree.cells {
        let is_whole = running.is_multiple_of(period);
        bytes.number(if is_whole {
            running / period * 2
        } else {
            running * 2 + 1
        });
    }
    bytes
}

/// The number of threads, and each one's IDs, service and number of samples; their names.
fn threads(recording: &Recording, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::default();
    bytes.number(recording.threads.len() as u64);
    for (thread, samples) in recording.threads.iter().zip(&ordered.of_thread) {
        bytes.number(thread.pid);
        bytes.number(thread.tid);
        bytes.number(thread.service);
        bytes.number(*samples);
    }
    let names = recording.threads.iter().map(|thread| &thread.name[..]);
    let names = clean_all(names, MAX_SHORT_BYTES);
    bytes.texts(names.iter().map(|name| &name[..]));
    bytes
}

/// 16 bytes for each trace.
fn traces(recording: &Recording, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::default();
    for trace in &ordered.traces {
        bytes.raw(&recording.traces[*trace as usize]);
    }
    bytes
}

/// The samples in the page's order.
fn samples<'r>(recording: &'r Recording, ordered: &'r Ordered) -> impl Iterator<Item = &'r Sample> {
    let at = |index: &u32| &recording.samples[*index as usize];
    ordered.samples.iter().map(at)
}

/// How much later than a period after the thread's last sample. All arithmetic is modulo 2³².
fn times(recording: &Recording, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::with_capacity(ordered.samples.len() * 2);
    let period = period_in_time_units(recording, ordered);
    let (mut thread, mut last) = (u32::MAX, 0_i32);
    for sample in samples(recording, ordered) {
        if sample.thread != thread {
            thread = sample.thread;
            last = 0_i32.wrapping_sub(period);
        }
        let time = ordered.time(sample.time);
        bytes.signed(time.wrapping_sub(last).wrapping_sub(period));
        last = time;
    }
    bytes
}

/// The period in the unit of times.
pub(crate) fn period_in_time_units(recording: &Recording, ordered: &Ordered) -> i32 {
    let units = recording.period.saturating_add(ordered.unit / 2) / ordered.unit;
    i32::try_from(units).unwrap_or(i32::MAX)
}

/// A byte for each sample; no bytes if all were of running threads.
fn kinds(recording: &Recording, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::default();
    if recording.samples.iter().any(|sample| kind(sample) != 0) {
        for sample in samples(recording, ordered) {
            bytes.byte(kind(sample));
        }
    }
    bytes
}

/// 0 for a period, or the weight.
fn weights(recording: &Recording, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::with_capacity(ordered.samples.len());
    for sample in samples(recording, ordered) {
        let weight = in_weight_units(sample.weight);
        bytes.number(if weight == ordered.period { 0 } else { weight });
    }
    bytes
}

/// The number of the trace, 0 for none, as the difference to the last sample's.
fn traces_of_samples(recording: &Recording, ordered: &Ordered) -> Bytes {
    let mut bytes = Bytes::with_capacity(ordered.samples.len());
    let mut last = 0;
    for sample in samples(recording, ordered) {
        let trace = ordered.trace(recording, sample) as i32;
        bytes.signed(trace.wrapping_sub(last));
        last = trace;
    }
    bytes
}

/// 0 for the cell of the sample before, or the cell's index + 1.
fn cells_of_samples(ordered: &Ordered, tree: &Tree) -> Bytes {
    let mut bytes = Bytes::with_capacity(ordered.samples.len() * 2);
    let mut last = u32::MAX;
    for index in &ordered.samples {
        let cell = tree.cell_of_sample[*index as usize];
        bytes.number(if cell == last { 0 } else { cell + 1 });
        last = cell;
    }
    bytes
}

/// The number of spans; each one's trace, depth, service, start and duration; their names and IDs.
fn spans_by_trace(recording: &Recording, ordered: &Ordered, spans: &SpanOrder) -> Bytes {
    let mut bytes = Bytes::default();
    bytes.number(spans.spans.len() as u64);
    let listed = || {
        let at = |&(index, depth): &(u32, u32)| (&recording.spans[index as usize], depth);
        spans.spans.iter().map(at)
    };
    for (span, depth) in listed() {
        bytes.number(ordered.trace_number[span.trace as usize]);
        bytes.number(depth);
        bytes.number(span.service);
        bytes.number((span.start - ordered.first) / crate::order::WEIGHT_UNIT);
        bytes.number(span.duration / crate::order::WEIGHT_UNIT);
    }
    let names = clean_all(listed().map(|(span, _)| &span.name[..]), MAX_SHORT_BYTES);
    bytes.texts(names.iter().map(|name| &name[..]));
    for (span, _) in listed() {
        bytes.raw(&span.id);
    }
    bytes
}

/// The number of the span, 0 for none, as the difference to the last sample's.
fn spans_of_samples(recording: &Recording, ordered: &Ordered, spans: &SpanOrder) -> Bytes {
    let mut bytes = Bytes::with_capacity(ordered.samples.len());
    let mut last = 0;
    for sample in samples(recording, ordered) {
        let trace = ordered.trace(recording, sample);
        let id = sample
            .context
            .map_or([0; 8], |index| recording.contexts[index as usize].span);
        let span = spans.number(trace, id) as i32;
        bytes.signed(span.wrapping_sub(last));
        last = span;
    }
    bytes
}

/// The longest name of a service or a route.
pub(crate) const MAX_LABEL_BYTES: usize = MAX_NAME_BYTES;
