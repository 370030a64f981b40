//! Flame graphs have their boxes where the page has them: its table of cases.

use std::fs;
use std::num::NonZeroU64;
use std::path::Path;

use otelctx_profile::sample::format::process_context::Value as Resource;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, NamedFrame, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, Format, NoSymbols, Options, Profile, Recording};
use serde_json::Value;

/// Nanoseconds of a weight of 1.
const PERIOD: u64 = 1_000;

/// See `layout.rs` of the page's tests.
fn profile(case: &Value) -> (Profile, u64) {
    let mut catalog = Catalog::new();
    let mut samples = Vec::new();
    let empty = catalog.stack(&[]);
    for (index, stack) in case["stacks"].as_array().unwrap().iter().enumerate() {
        let text = |index: usize| stack[index].as_str().unwrap();
        let process = catalog.add_process(ProcessFacts {
            pid: index as i32 + 1,
            resource: vec![("service.name".into(), Resource::from(text(0)))],
            published: true,
            ..ProcessFacts::default()
        });
        let found = match text(1) {
            "" => Found::Detached,
            route => {
                let mut context = DecodedContext::default();
                context.attributes = vec![("http.route".into(), route.into())];
                Found::Attached(catalog.context(&context))
            }
        };
        let frames = text(2).split(' ').rev().map(|frame| {
            let is_plumbing = frame.ends_with(':');
            Frame::from(NamedFrame {
                kind: if is_plumbing {
                    FrameKind::NATIVE
                } else {
                    FrameKind::CPYTHON
                },
                function: frame.trim_end_matches(':').into(),
                ..NamedFrame::default()
            })
        });
        let sample = Sample {
            time: 0,
            cpu: 0,
            thread: catalog.thread(process, index as i32 + 1, "worker"),
            event: Event::OnCpu,
            found,
            gil: None,
            user_stack: catalog.stack(&frames.collect::<Vec<_>>()),
            stack_end: None,
            kernel_stack: empty,
        };
        let weight = stack[3].as_u64().unwrap();
        samples.extend((0..weight).map(|_| sample));
    }
    let all = samples.len() as u64;
    let recording = Recording {
        catalog,
        samples,
        clock: Clock {
            start: 0,
            end: 1,
            start_unix: 0,
        },
        period: NonZeroU64::new(PERIOD).unwrap(),
        counts: Counts::default(),
    };
    (Profile::new(recording, &mut NoSymbols), all)
}

/// Row, left edge and width, and text of each box.
fn boxes(svg: &str, all: u64) -> Vec<String> {
    let boxes = svg.split("<svg class=\"box ").skip(1);
    let line = |text: &str| {
        let number = |name: &str| {
            let (_, value) = text.split_once(&format!(" {name}=\"")).unwrap();
            value
                .split(['"', '%'])
                .next()
                .unwrap()
                .parse::<f64>()
                .unwrap()
        };
        let unit = |name: &str| (number(name) / 100.0 * all as f64).round();
        let (_, tooltip) = text.split_once("<title>").unwrap();
        let (tooltip, _) = tooltip.split_once("</title>").unwrap();
        let mut name = tooltip.lines().next().unwrap().to_owned();
        let repeats = tooltip.lines().find_map(|line| {
            let number = line.strip_prefix("calls itself, up to ")?;
            number.strip_suffix(" frames in one")
        });
        if let Some(repeats) = repeats {
            name += &format!(" × {repeats}");
        }
        if text.starts_with("joined") {
            name = "(joined)".to_owned();
        }
        format!(
            "{} {} {} {name}",
            (number("y") - 56.0) / 19.0,
            unit("x"),
            unit("width")
        )
    };
    boxes.map(line).collect()
}

#[test]
fn boxes_are_where_the_table_of_cases_says() {
    let cases = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../page/tests/layout/cases.json"
    );
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(Path::new(cases)).unwrap()).unwrap();
    assert!(cases.len() >= 9);
    for case in &cases {
        let mut options = Options::default();
        options.by = vec!["http.route".to_owned()];
        options.with_plumbing = case["plumbing"].as_bool().unwrap_or_default();
        let (profile, all) = profile(case);
        let mut svg = Vec::new();
        profile
            .write(Format::FlameGraph, &options, &mut svg)
            .unwrap();
        let found = boxes(str::from_utf8(&svg).unwrap(), all);
        let expected = case["boxes"].as_array().unwrap().iter();
        let expected: Vec<_> = expected.map(|line| line.as_str().unwrap()).collect();
        assert_eq!(found, expected, "{}", case["name"]);
    }
}
