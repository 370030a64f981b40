//! What the page has of a recording, read back from its bytes as README.md describes them.

mod decoded;
mod recordings;

use std::io::ErrorKind;

use decoded::{DecodedPage, DecodedSample};
use otelctx_page::{
    Function, Language, MAX_DEPTH, MAX_NAME_BYTES, Node, Recording, Sample, Span, Thread,
};
use recordings::{hostile, shop, synthetic};

fn page(recording: &Recording) -> DecodedPage {
    let mut bytes = Vec::new();
    otelctx_page::write(recording, &mut bytes).unwrap();
    DecodedPage::new(String::from_utf8(bytes).unwrap())
}

/// The samples as the page should have them: by thread and time.
fn expected(recording: &Recording) -> Vec<DecodedSample> {
    let mut samples: Vec<&Sample> = recording.samples.iter().collect();
    samples.sort_by_key(|sample| (sample.thread, sample.time));
    let times = samples.iter().map(|sample| sample.time);
    let starts = recording.spans.iter().map(|span| span.start);
    let first = times.chain(starts).min().unwrap_or(0);
    let expect = |sample: &&Sample| {
        let context = sample
            .context
            .map(|index| recording.contexts[index as usize]);
        let mut stack = Vec::new();
        let mut node = sample.node;
        while node != 0 {
            let Node { parent, function } = recording.nodes[node as usize];
            stack.insert(0, recording.functions[function as usize].name.clone());
            node = parent;
        }
        let thread = &recording.threads[sample.thread as usize];
        let route = context.and_then(|context| context.route);
        DecodedSample {
            time: (sample.time - first + 5_000) / 10_000,
            thread: sample.thread,
            kind: sample.kind as u8,
            weight: ((sample.weight + 500) / 1_000).max(1),
            trace: context
                .and_then(|context| context.trace)
                .map(|trace| recording.traces[trace as usize]),
            service: recording.services[thread.service as usize].clone(),
            route: route.map(|route| recording.routes[route as usize].clone()),
            stack,
        }
    };
    samples.iter().map(expect).collect()
}

#[test]
fn a_page_has_every_sample_of_a_recording() {
    for recording in [shop::recording(), synthetic::recording(20_000, 1_500, 200)] {
        let page = page(&recording);
        assert_eq!(page.samples(), expected(&recording));
    }
}

#[test]
fn samples_need_not_be_sorted() {
    let mut recording = shop::recording();
    let in_order = page(&recording);
    recording.samples.reverse();
    let reversed = page(&recording);
    assert_eq!(reversed.samples(), expected(&recording));
    assert_eq!(reversed.samples().len(), in_order.samples().len());
}

#[test]
fn functions_have_their_files_lines_languages_and_kinds_of_plumbing() {
    let recording = shop::recording();
    let page = page(&recording);
    let mut found: Vec<_> = page.functions().into_iter().collect();
    let index = |language: Language| match language {
        Language::Python => 0,
        Language::JavaScript => 1,
        Language::Java => 2,
        Language::Native => 3,
        Language::Kernel => 4,
        Language::Other => 5,
        Language::Waiting => 6,
    };
    let all = recording.functions.iter().map(|function| {
        let Function {
            name,
            file,
            line,
            language,
            plumbing,
        } = function;
        let plumbing = plumbing.map_or(0, |kind| u64::from(kind) + 1);
        (
            name.clone(),
            file.clone(),
            u64::from(*line),
            index(*language),
            plumbing,
        )
    });
    let mut all: Vec<_> = all.collect();
    found.sort();
    all.sort();
    assert_eq!(found, all);
}

#[test]
fn cells_have_the_cpu_time_of_their_samples() {
    let recording = synthetic::recording(20_000, 1_500, 200);
    let page = page(&recording);
    let mut sums = vec![0; page.cells().len()];
    for (cell, sample) in page.cell_of_samples().into_iter().zip(page.samples()) {
        sums[cell] += if sample.kind == 0 { sample.weight } else { 0 };
    }
    assert_eq!(page.cells(), sums);
    // The most frequent cell has the shortest number.
    let mut counts = vec![0; sums.len()];
    for cell in page.cell_of_samples() {
        counts[cell] += 1;
    }
    assert!(counts.is_sorted_by(|one, other| one >= other), "{counts:?}");
}

#[test]
fn spans_come_with_their_parents_and_the_samples_in_them() {
    let recording = shop::recording();
    let page = page(&recording);
    let spans = page.spans();
    assert_eq!(spans.len(), recording.spans.len());
    let first = recording.spans.iter().map(|span| span.start).min().unwrap();
    let first = first.min(
        recording
            .samples
            .iter()
            .map(|sample| sample.time)
            .min()
            .unwrap(),
    );
    for span in &recording.spans {
        let found = spans.iter().find(|found| found.id == span.id).unwrap();
        assert_eq!(found.name, span.name);
        assert_eq!(found.depth, u64::from(span.parent.is_some()));
        assert_eq!(found.start, (span.start - first) / 1_000);
        assert_eq!(found.duration, span.duration / 1_000);
        if let Some(parent) = span.parent {
            let place = spans.iter().position(|found| found.id == span.id).unwrap();
            let parent = &recording.spans[parent as usize];
            assert_eq!(spans[place - 1].id, parent.id);
        }
    }
    let mut samples: Vec<&Sample> = recording.samples.iter().collect();
    samples.sort_by_key(|sample| (sample.thread, sample.time));
    for (sample, span) in samples.iter().zip(page.span_of_samples()) {
        let id = sample
            .context
            .map(|index| recording.contexts[index as usize].span);
        assert_eq!(span.map(|span| spans[span].id), id);
    }
}

#[test]
fn spans_in_a_circle_of_parents_are_listed() {
    let mut recording = shop::recording();
    let (first, trace) = (recording.spans.len() as u32, recording.spans[0].trace);
    // The parent of each is the next, of the last the first; and one is its own parent.
    for (index, parent) in [(0, 1), (1, 2), (2, 0), (3, 3)] {
        let parent = Some(first + parent);
        recording.spans.push(Span {
            trace,
            id: [index; 8],
            parent,
            ..Span::default()
        });
    }
    let page = page(&recording);
    let spans = page.spans();
    let is_new = |id: &&[u8; 8]| **id == [id[0]; 8];
    let new = spans.iter().map(|span| &span.id).filter(is_new);
    let mut ids: Vec<_> = new.map(|id| id[0]).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3]);
    assert_eq!(page.spans().len(), recording.spans.len());
    assert_eq!(page.samples(), expected(&recording));
}

#[test]
fn a_recording_of_one_kind_without_anything_else_is_a_page() {
    let empty = page(&Recording::default());
    assert_eq!(empty.samples(), []);
    let recording = Recording {
        services: vec!["one".to_owned()],
        threads: vec![Thread::default()],
        samples: vec![Sample {
            time: 5,
            weight: 7_000_400,
            ..Sample::default()
        }],
        ..Recording::default()
    };
    assert_eq!(page(&recording).samples(), expected(&recording));
    let spans_alone = Recording {
        services: vec!["one".to_owned()],
        traces: vec![[1; 16]],
        spans: vec![Span {
            id: [2; 8],
            duration: u64::MAX,
            ..Span::default()
        }],
        ..Recording::default()
    };
    assert_eq!(page(&spans_alone).spans()[0].id, [2; 8]);
}

#[test]
fn times_that_are_too_far_apart_have_a_larger_unit() {
    let sample = |time, weight| Sample {
        time,
        weight,
        ..Sample::default()
    };
    let recording = Recording {
        period: u64::MAX,
        start: u64::MAX,
        services: vec![String::new()],
        threads: vec![Thread::default()],
        samples: vec![
            sample(u64::MAX, u64::MAX),
            sample(0, 0),
            sample(u64::MAX / 2, 1),
        ],
        ..Recording::default()
    };
    let found = page(&recording);
    let unit = found.facts["timeUnit"].as_u64().unwrap();
    assert_eq!(unit, u64::MAX.div_ceil(i32::MAX as u64));
    let samples: Vec<_> = found
        .samples()
        .iter()
        .map(|it| (it.time, it.weight))
        .collect();
    let last = i32::MAX as u64;
    assert_eq!(
        samples,
        [(0, 1), (last / 2, 1), (last, u64::from(u32::MAX))]
    );
}

/// Makes an index of a recording invalid.
type Change = fn(&mut Recording);

#[test]
fn indexes_that_are_out_of_range_are_refused() {
    let cases: [(Change, &str); 14] = [
        (
            |it| it.functions[2].plumbing = Some(4),
            "function 2 refers to kind of plumbing 4",
        ),
        (
            |it| it.nodes[3].parent = 3,
            "node 3 refers to parent that precedes it 3",
        ),
        (
            |it| it.nodes[3].function = u32::MAX,
            "node 3 refers to function 4294967295",
        ),
        (
            |it| it.contexts[0].trace = Some(240),
            "context 0 refers to trace 240",
        ),
        (
            |it| it.contexts[1].route = Some(5),
            "context 1 refers to route 5",
        ),
        (
            |it| it.threads[0].service = 3,
            "thread 0 refers to service 3",
        ),
        (
            |it| it.samples[9].thread = 10,
            "sample 9 refers to thread 10",
        ),
        (
            |it| it.samples[9].context = Some(u32::MAX),
            "sample 9 refers to context 4294967295",
        ),
        (
            |it| it.samples[9].node = 1_000,
            "sample 9 refers to node 1000",
        ),
        (|it| it.spans[0].trace = 240, "span 0 refers to trace 240"),
        (|it| it.spans[0].service = 3, "span 0 refers to service 3"),
        (
            |it| it.spans[0].parent = Some(1_000),
            "span 0 refers to parent 1000",
        ),
        (|it| it.nodes.clear(), "sample 0 refers to node "),
        (|it| it.services.clear(), "thread 0 refers to service 0"),
    ];
    for (change, why) in cases {
        let mut recording = shop::recording();
        change(&mut recording);
        let error = otelctx_page::write(&recording, &mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let found = error.to_string().replace(" of the recording", "");
        assert!(found.starts_with(why), "{found}, not {why}");
    }
}

#[test]
fn names_are_clean_and_never_markup() {
    let recording = hostile::recording();
    let page = page(&recording);
    assert_eq!(page.samples().len(), recording.samples.len());
    for name in page.all_texts() {
        assert!(
            name.chars().all(|it| !it.is_control() && it != '\u{202e}'),
            "{name:?}"
        );
        assert!(
            name.len() <= MAX_NAME_BYTES + '…'.len_utf8(),
            "{} bytes",
            name.len()
        );
    }
    // Only the page's own elements, whose number does not depend on the names.
    let tags = |page: &DecodedPage, tag: &str| page.html.matches(tag).count();
    let harmless = self::page(&shop::recording());
    for tag in [
        "<script",
        "</script>",
        "<style",
        "<img",
        "<svg",
        "<!--",
        "<bdi",
        "<title",
    ] {
        if tag != "<bdi" {
            assert_eq!(tags(&page, tag), tags(&harmless, tag), "{tag}");
        }
    }
}

#[test]
fn deep_stacks_are_cut_and_counted() {
    const LEVELS: u32 = 100_000;
    let nodes = (0..=LEVELS).map(|index| Node {
        parent: index.saturating_sub(1),
        function: index % 7,
    });
    let sample = |node| Sample {
        node,
        weight: 1_000_000,
        ..Sample::default()
    };
    let recording = Recording {
        period: 1_000_000,
        services: vec!["deep".to_owned()],
        functions: (0..7)
            .map(|index| Function {
                name: format!("f{index}"),
                ..Function::default()
            })
            .collect(),
        nodes: nodes.collect(),
        threads: vec![Thread::default()],
        samples: vec![
            sample(LEVELS),
            sample(MAX_DEPTH),
            sample(MAX_DEPTH + 1),
            sample(1),
        ],
        ..Recording::default()
    };
    let page = page(&recording);
    let lengths: Vec<_> = page
        .samples()
        .iter()
        .map(|sample| sample.stack.len())
        .collect();
    let most = MAX_DEPTH as usize;
    assert_eq!(lengths, [most + 1, most, most + 1, 1]);
    assert_eq!(page.samples()[0].stack[most], "[more frames]");
    assert_eq!(page.samples()[1].stack[most - 1], format!("f{}", most % 7));
    assert!(
        page.html
            .contains("The stacks of 2 samples end in “[more frames]”.")
    );
}

#[test]
fn an_error_of_the_writer_is_returned() {
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = otelctx_page::write(&shop::recording(), &mut Full).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StorageFull);
}

#[test]
fn the_static_table_has_the_functions_with_most_time_of_their_own() {
    let page = page(&shop::recording());
    let body = page
        .html
        .split("<tbody>")
        .nth(1)
        .unwrap()
        .split("</tbody>")
        .next()
        .unwrap();
    let rows: Vec<&str> = body.split("</tr>").filter(|row| !row.is_empty()).collect();
    assert_eq!(rows.len(), 16);
    let expected = "<tr><th scope=\"row\"><bdi>bn_mul_mont</bdi><small><bdi></bdi></small></th>\
        <td>3,350 ms</td><td>3,350 ms</td>";
    // After plumbing, like in the table that scripts show.
    assert_eq!(rows[1], expected);
}
