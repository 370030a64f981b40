//! Spans in the order in which a trace's view lists them.

use foldhash::{HashMap, HashMapExt};

use crate::Recording;
use crate::order::Ordered;

/// The most levels of spans that are indented.
const MAX_SPAN_DEPTH: u32 = 64;

/// Spans by trace, each before its children, and by start.
#[derive(Debug, Default)]
pub(crate) struct SpanOrder {
    /// Indexes of spans, and how deep each is below its trace's root.
    pub(crate) spans: Vec<(u32, u32)>,
    /// The place of a span + 1, by number of its trace and ID.
    place: HashMap<(u32, [u8; 8]), u32>,
}

impl SpanOrder {
    pub(crate) fn new(recording: &Recording, ordered: &Ordered) -> Self {
        let trace_of = |span: u32| {
            let trace = recording.spans[span as usize].trace;
            ordered.trace_number[trace as usize]
        };
        // Sorted by trace and start, the last first, as the last of a stack is the first taken.
        let mut all: Vec<u32> = (0..recording.spans.len() as u32).collect();
        all.sort_by_key(|span| (trace_of(*span), recording.spans[*span as usize].start));
        all.reverse();
        let parent = |span: u32| {
            let parent = recording.spans[span as usize].parent;
            parent.filter(|parent| trace_of(*parent) == trace_of(span))
        };
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        let mut open = Vec::new();
        for span in &all {
            match parent(*span) {
                Some(parent) => children.entry(parent).or_default().push(*span),
                None => open.push((*span, 0)),
            }
        }
        let mut order = Self::default();
        let mut is_placed = vec![false; recording.spans.len()];
        order.place_all(&mut open, &children, &mut is_placed);
        // What remains are spans in circles of parents, which a hostile file can have.
        for span in all {
            if !is_placed[span as usize] {
                order.place_all(&mut vec![(span, 0)], &children, &mut is_placed);
            }
        }
        order.spans.sort_by_key(|(span, _)| trace_of(*span));
        for (place, (span, _)) in order.spans.iter().enumerate() {
            let key = (trace_of(*span), recording.spans[*span as usize].id);
            order.place.entry(key).or_insert(place as u32 + 1);
        }
        order
    }

    /// Places spans with their depth, the last first, and what is below each.
    fn place_all(
        &mut self,
        open: &mut Vec<(u32, u32)>,
        children: &HashMap<u32, Vec<u32>>,
        is_placed: &mut [bool],
    ) {
        while let Some((span, depth)) = open.pop() {
            if std::mem::replace(&mut is_placed[span as usize], true) {
                continue;
            }
            self.spans.push((span, depth.min(MAX_SPAN_DEPTH)));
            let below = children.get(&span).into_iter().flatten();
            open.extend(below.map(|child| (*child, depth.saturating_add(1))));
        }
    }

    /// The place of a span + 1, or 0 if there is no such span.
    pub(crate) fn number(&self, trace: u32, id: [u8; 8]) -> u32 {
        self.place.get(&(trace, id)).copied().unwrap_or(0)
    }
}
