//! Reads the sections of a page.

use std::collections::HashMap;
use std::io::Read;

use flate2::read::DeflateDecoder;
use serde_json::Value;

/// A sample of a page, with what its indexes refer to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecodedSample {
    pub(crate) time: u64,
    pub(crate) thread: u32,
    pub(crate) kind: u8,
    pub(crate) weight: u64,
    pub(crate) trace: Option<[u8; 16]>,
    pub(crate) service: String,
    pub(crate) route: Option<String>,
    pub(crate) stack: Vec<String>,
}

/// A span of a page.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DecodedSpan {
    pub(crate) depth: u64,
    pub(crate) start: u64,
    pub(crate) duration: u64,
    pub(crate) name: String,
    pub(crate) id: [u8; 8],
}

/// Name, file, line, language, and kind of plumbing + 1.
pub(crate) type DecodedFunction = (String, String, u64, u8, u64);

/// A node: its parent, its depth and its label.
type DecodedNode = (usize, u64, u64);

/// A page as it is written.
pub(crate) struct DecodedPage {
    pub(crate) html: String,
    pub(crate) facts: Value,
    sections: HashMap<String, Vec<u8>>,
}

impl DecodedPage {
    pub(crate) fn new(html: String) -> Self {
        let facts = html
            .split("id=\"facts\">")
            .nth(1)
            .unwrap()
            .split("</script>")
            .next()
            .unwrap();
        let facts = serde_json::from_str(facts).unwrap();
        let mut sections = HashMap::new();
        for part in html.split("data-section=\"").skip(1) {
            let (name, rest) = part.split_once("\">").unwrap();
            let packed = unpack(rest.split('<').next().unwrap());
            sections.insert(name.to_owned(), packed);
        }
        Self {
            html,
            facts,
            sections,
        }
    }

    fn section(&self, name: &str) -> Reader<'_> {
        Reader(&self.sections[name])
    }

    fn labels(&self, name: &str) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        self.facts[name]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect()
    }

    pub(crate) fn functions(&self) -> Vec<DecodedFunction> {
        let names = self.section("names").texts();
        let mut reader = self.section("functions");
        let files = reader.texts();
        let count = names.len();
        let file: Vec<u64> = (0..count).map(|_| reader.number()).collect();
        let line: Vec<u64> = (0..count).map(|_| reader.number()).collect();
        let language: Vec<u8> = (0..count).map(|_| reader.take(1)[0]).collect();
        let plumbing: Vec<u64> = (0..count).map(|_| reader.number()).collect();
        let function = |(index, name)| {
            let file = files[file[index] as usize].clone();
            (name, file, line[index], language[index], plumbing[index])
        };
        names.into_iter().enumerate().map(function).collect()
    }

    fn tree(&self) -> Vec<DecodedNode> {
        let mut reader = self.section("tree");
        let count = reader.number() as usize;
        let (mut nodes, mut path): (Vec<DecodedNode>, _) = (vec![(0, 0, 0)], vec![0]);
        for index in 1..count {
            let depth = nodes[index - 1].1 + 1 - reader.number();
            path.truncate(depth as usize);
            nodes.push((path[depth as usize - 1], depth, 0));
            path.push(index);
        }
        let mut next = 0;
        for node in &mut nodes[1..] {
            let value = reader.number();
            node.2 = match (node.1, value) {
                (1 | 2, label) => label,
                (_, 0) => {
                    next += 1;
                    next - 1
                }
                (_, back) => next - back,
            };
        }
        assert!(reader.0.is_empty());
        nodes
    }

    /// The CPU time of each cell.
    pub(crate) fn cells(&self) -> Vec<u64> {
        let (nodes, mut reader) = self.nodes_of_cells();
        let period = self.facts["period"].as_u64().unwrap();
        let weight = |value: u64| {
            if value.is_multiple_of(2) {
                value / 2 * period
            } else {
                value / 2
            }
        };
        nodes.iter().map(|_| weight(reader.number())).collect()
    }

    fn nodes_of_cells(&self) -> (Vec<usize>, Reader<'_>) {
        let mut reader = self.section("cells");
        let count = reader.number();
        let mut node = 0;
        let mut next = || {
            node += reader.signed();
            node as usize
        };
        ((0..count).map(|_| next()).collect(), reader)
    }

    pub(crate) fn cell_of_samples(&self) -> Vec<usize> {
        let (mut reader, mut last) = (self.section("cell"), 0);
        let mut cells = Vec::new();
        while !reader.0.is_empty() {
            last = reader.number().checked_sub(1).unwrap_or(last);
            cells.push(last as usize);
        }
        cells
    }

    pub(crate) fn samples(&self) -> Vec<DecodedSample> {
        let (tree, functions) = (self.tree(), self.functions());
        let (services, routes) = (self.labels("services"), self.labels("routes"));
        let (nodes, _) = self.nodes_of_cells();
        let number = |name: &str| self.facts[name].as_i64().unwrap();
        let mut sections = ["time", "weight", "trace"].map(|name| self.section(name));
        let (mut kinds, traces) = (self.section("kind"), &self.sections["traces"]);
        let cells = self.cell_of_samples();
        let (mut samples, mut at, mut trace) = (Vec::new(), 0, 0);
        for (thread, count) in self.samples_of_threads().into_iter().enumerate() {
            let mut time = -number("periodInTime");
            for _ in 0..count {
                // Modulo 2³².
                time += number("periodInTime") + sections[0].signed();
                let weight = Some(sections[1].number()).filter(|weight| *weight > 0);
                trace += sections[2].signed();
                let (mut node, mut stack, mut above) = (nodes[cells[at]], Vec::new(), [0, 0, 0]);
                while node != 0 {
                    let (parent, depth, label) = tree[node];
                    match depth {
                        1 | 2 => above[depth as usize] = label as usize,
                        _ => stack.insert(0, functions[label as usize].0.clone()),
                    }
                    node = parent;
                }
                let id = |at: usize| traces[at * 16..at * 16 + 16].try_into().unwrap();
                samples.push(DecodedSample {
                    time: u64::from(time as u32),
                    thread: thread as u32,
                    kind: if kinds.0.is_empty() {
                        0
                    } else {
                        kinds.take(1)[0]
                    },
                    weight: weight.unwrap_or(number("period") as u64),
                    trace: (trace as usize).checked_sub(1).map(id),
                    service: services[above[1]].clone(),
                    route: above[2].checked_sub(1).map(|route| routes[route].clone()),
                    stack,
                });
                at += 1;
            }
        }
        assert!(sections.iter().all(|section| section.0.is_empty()));
        samples
    }

    fn samples_of_threads(&self) -> Vec<u64> {
        let mut reader = self.section("threads");
        let count = reader.number();
        (0..count)
            .map(|_| [(); 4].map(|()| reader.number())[3])
            .collect()
    }

    pub(crate) fn spans(&self) -> Vec<DecodedSpan> {
        let mut reader = self.section("spans");
        let count = reader.number();
        let numbers: Vec<_> = (0..count)
            .map(|_| [(); 5].map(|()| reader.number()))
            .collect();
        let names = reader.texts();
        let span = |([_, depth, _, start, duration], name): ([u64; 5], String)| {
            let id = reader.take(8).try_into().unwrap();
            DecodedSpan {
                depth,
                start,
                duration,
                name,
                id,
            }
        };
        numbers.into_iter().zip(names).map(span).collect()
    }

    /// By sample: the index of its span.
    pub(crate) fn span_of_samples(&self) -> Vec<Option<usize>> {
        let (mut reader, mut last) = (self.section("span"), 0);
        let mut spans = Vec::new();
        while !reader.0.is_empty() {
            last += reader.signed();
            spans.push((last as usize).checked_sub(1));
        }
        spans
    }

    /// Every text of the recording that the page has.
    pub(crate) fn all_texts(&self) -> Vec<String> {
        let mut texts = self.section("names").texts();
        texts.extend(self.section("functions").texts());
        for name in ["services", "routes", "plumbing"] {
            texts.extend(self.labels(name));
        }
        for name in ["title", "by"] {
            texts.push(self.facts[name].as_str().unwrap().to_owned());
        }
        texts.extend(self.spans().into_iter().map(|span| span.name));
        texts
    }
}

/// Bytes that are left.
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, count: usize) -> &'b [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn number(&mut self) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = self.take(1)[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return value;
            }
        }
        unreachable!()
    }

    fn signed(&mut self) -> i64 {
        let value = self.number();
        i64::try_from(value >> 1).unwrap() ^ -((value & 1) as i64)
    }

    fn texts(&mut self) -> Vec<String> {
        let count = self.number();
        let lengths: Vec<_> = (0..count).map(|_| self.number()).collect();
        let size = self.number() as usize;
        let all = std::str::from_utf8(self.take(size)).unwrap();
        let units: Vec<u16> = all.encode_utf16().collect();
        let (mut at, mut texts) = (0, Vec::new());
        for length in lengths {
            let end = at + length as usize;
            texts.push(String::from_utf16(&units[at..end]).unwrap());
            at = end;
        }
        texts
    }
}

/// Decodes base64 and inflates.
fn unpack(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        _ => 63,
    };
    let mut packed = Vec::new();
    for four in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = four
            .iter()
            .fold(0_u32, |bits, byte| bits << 6 | u32::from(digit(*byte)));
        let bytes = (bits << (6 * (4 - four.len()))).to_be_bytes();
        packed.extend_from_slice(&bytes[1..four.len()]);
    }
    let mut bytes = Vec::new();
    DeflateDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .unwrap();
    bytes
}
