//! A recording whose every text would do harm if the page took it for anything but text.

use otelctx_page::{Context, Function, Language, Node, Recording, Sample, Span, Thread};

/// Markup that would run, in the forms that pages are usually attacked with. Whatever runs says so
/// in the page's title and in `globalThis.harmed`.
pub(crate) const MARKUP: [&str; 8] = [
    "<img src=x onerror=\"globalThis.harmed=1\">",
    "</script><script>globalThis.harmed=2</script>",
    "\"><svg onload=globalThis.harmed=3>",
    "'; globalThis.harmed=4; //",
    "<!--<script>globalThis.harmed=5",
    "@SCRIPT@ @DATA@ @TITLE@",
    "javascript:globalThis.harmed=6",
    "__proto__",
];

/// Characters that have no picture, or that turn text around.
const CONTROLS: &str =
    "\0\u{1}\n\r\u{7f}\u{85}\u{200f}\u{202e}evil\u{2066}\u{2028}\u{2029}\u{feff}";

/// Markup, controls and 64 KiB of text.
fn text(index: usize) -> String {
    let markup = MARKUP[index % MARKUP.len()];
    format!(
        "{markup}{CONTROLS}{}",
        "W".repeat(if index.is_multiple_of(3) {
            1 << 16
        } else {
            index
        })
    )
}

pub(crate) fn recording() -> Recording {
    let count = MARKUP.len();
    let texts = |offset: usize| {
        (0..count)
            .map(|index| text(index + offset))
            .collect::<Vec<_>>()
    };
    let function = |index: usize| Function {
        name: text(index),
        file: text(index + 1),
        line: u32::MAX,
        language: Language::Native,
        plumbing: (index % 4 == 3).then_some(0),
    };
    let sample = |index: usize| Sample {
        time: (index as u64) * 10_000_000,
        thread: (index % count) as u32,
        weight: 10_000_000,
        context: Some((index % count) as u32),
        node: (index % (count + 1)) as u32,
        ..Sample::default()
    };
    Recording {
        title: text(0),
        period: 10_000_000,
        by: text(1),
        functions: (0..count).map(function).collect(),
        plumbing: texts(2),
        nodes: std::iter::once(Node::default())
            .chain((0..count as u32).map(|index| Node {
                parent: index,
                function: index,
            }))
            .collect(),
        services: texts(3),
        routes: texts(4),
        traces: (0..count as u8).map(|index| [index; 16]).collect(),
        contexts: (0..count as u32)
            .map(|index| Context {
                trace: Some(index),
                span: [index as u8; 8],
                route: Some(index),
            })
            .collect(),
        threads: (0..count as u32)
            .map(|index| Thread {
                pid: 1,
                tid: index,
                service: index,
                name: text(index as usize),
            })
            .collect(),
        samples: (0..200).map(sample).collect(),
        spans: (0..count as u32)
            .map(|index| Span {
                trace: index,
                id: [index as u8; 8],
                // Each is its own parent, or in a circle.
                parent: Some(index ^ 1),
                service: index,
                name: text(index as usize + 5),
                start: u64::from(index),
                duration: 100,
            })
            .collect(),
        note: Some(text(6)),
        ..Recording::default()
    }
}
