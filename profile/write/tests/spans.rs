//! Spans of traces, read from the files of a Collector and joined with a report.

mod shop;

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use otelctx_profile::report::{Cost, FunctionCost, Report, ReportOptions};
use otelctx_profile::{Format, Options, Spans};
use prost::encoding::encode_varint;

/// A span of trace 1: its ID and its parent's, its name, start and duration in ms.
type Given = (u8, u8, &'static str, u64, u64);

const GIVEN: [Given; 3] = [
    (1, 0, "GET /cart", 0, 200),
    (2, 1, "SELECT", 20, 30),
    (3, 2, "fetch", 25, 10),
];

const MILLISECOND: u64 = 1_000_000;

fn time(milliseconds: u64) -> u64 {
    shop::START_UNIX + milliseconds * MILLISECOND
}

fn digits(byte: u8, length: usize) -> String {
    format!("{byte:02x}").repeat(length)
}

/// An object of OTLP JSON, as the Collector writes it: 64-bit numbers are strings.
fn json_of(trace: u8, spans: &[Given]) -> String {
    let span = |(id, parent, name, start, duration): &Given| {
        serde_json::json!({
            "traceId": digits(trace, 16), "spanId": digits(*id, 8),
            "parentSpanId": if *parent == 0 { String::new() } else { digits(*parent, 8) },
            "name": name, "kind": 2, "flags": 256, "status": {},
            "startTimeUnixNano": time(*start).to_string(),
            "endTimeUnixNano": time(start + duration).to_string(),
            "attributes": [{"key": "http.route", "value": {"stringValue": "/cart"}}],
        })
    };
    let spans: Vec<_> = spans.iter().map(span).collect();
    let attributes = [
        serde_json::json!({"key": "telemetry.sdk.language", "value": {"stringValue": "rust"}}),
        serde_json::json!({"key": "process.pid", "value": {"intValue": "7"}}),
        serde_json::json!({"key": "service.name", "value": {"stringValue": "shop"}}),
    ];
    serde_json::json!({"resourceSpans": [{
        "resource": {"attributes": attributes},
        "scopeSpans": [{"scope": {"name": "x"}, "spans": spans, "schemaUrl": "y"}],
    }]})
    .to_string()
}

fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![(number << 3 | 2) as u8];
    encode_varint(content.len() as u64, &mut bytes);
    [&bytes, content].concat()
}

fn fixed(number: u32, value: u64) -> Vec<u8> {
    [&[(number << 3 | 1) as u8][..], &value.to_le_bytes()].concat()
}

/// The same as protobuf.
fn protobuf_of(trace: u8, spans: &[Given]) -> Vec<u8> {
    let span = |(id, parent, name, start, duration): &Given| {
        let parent = if *parent == 0 {
            vec![]
        } else {
            vec![*parent; 8]
        };
        let parts = [
            field(1, &[trace; 16]),
            field(2, &[*id; 8]),
            field(4, &parent),
            field(5, name.as_bytes()),
            fixed(7, time(*start)),
            fixed(8, time(start + duration)),
        ];
        field(2, &parts.concat())
    };
    let spans: Vec<u8> = spans.iter().flat_map(span).collect();
    let value = field(2, &field(1, b"shop"));
    let attribute = field(1, &[field(1, b"service.name"), value].concat());
    field(1, &[field(1, &attribute), field(2, &spans)].concat())
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn spans_are_read_in_each_encoding() {
    let json = json_of(1, &GIVEN);
    let spans = Spans::of(json.as_bytes()).unwrap();
    let facts: Vec<_> = spans
        .all
        .iter()
        .map(|it| {
            let parent = it.parent.map(|parent| parent[0]);
            let start = (it.start - shop::START_UNIX) / MILLISECOND;
            (
                it.id[0],
                parent,
                &it.name[..],
                start,
                it.duration / MILLISECOND,
            )
        })
        .collect();
    let expected = [
        (1, None, "GET /cart", 0, 200),
        (2, Some(1), "SELECT", 20, 30),
        (3, Some(2), "fetch", 25, 10),
    ];
    assert_eq!(facts, expected);
    assert!(
        spans
            .all
            .iter()
            .all(|it| it.service == "shop" && it.trace == [1; 16])
    );
    let lines: String = GIVEN.iter().map(|it| json_of(1, &[*it]) + "\n").collect();
    let pretty: serde_json::Value = serde_json::from_str(&json).unwrap();
    let pretty = serde_json::to_string_pretty(&pretty).unwrap();
    let protobuf = protobuf_of(1, &GIVEN);
    let sized = |spans: &[Given]| {
        let message = protobuf_of(1, spans);
        [&(message.len() as u32).to_be_bytes()[..], &message].concat()
    };
    let several = [sized(&GIVEN[..2]), sized(&GIVEN[2..])].concat();
    for content in [lines.as_bytes(), pretty.as_bytes(), &protobuf, &several] {
        assert_eq!(Spans::of(content).as_ref(), Ok(&spans));
        assert_eq!(Spans::of(&gzip(content)).as_ref(), Ok(&spans));
    }
}

#[test]
fn hostile_spans_are_skipped_or_refused() {
    let whole = json_of(1, &GIVEN);
    // Of each span an ID, of wrong lengths, digits and types.
    for (id, wrong) in [
        (digits(1, 16), digits(1, 15)),
        (digits(1, 16), digits(1, 17)),
        (digits(1, 16), "0".repeat(32)),
        (digits(1, 16), "x".repeat(32)),
        (digits(3, 8), digits(3, 7)),
        (digits(3, 8), "é".repeat(8)),
    ] {
        let name = if id.len() == 32 { "traceId" } else { "spanId" };
        let id = format!("\"{name}\":\"{id}\"");
        let changed = whole.replacen(&id, &format!("\"{name}\":\"{wrong}\""), 1);
        assert_ne!(changed, whole);
        let spans = Spans::of(changed.as_bytes()).unwrap();
        assert_eq!((spans.all.len(), spans.invalid), (2, 1), "{wrong}");
    }
    let twice = format!("{whole}\n{whole}");
    let spans = Spans::of(twice.as_bytes()).unwrap();
    assert_eq!((spans.all.len(), spans.duplicates), (3, 3));
    // An end before the start, a time that is none, a long name.
    let end = time(200).to_string();
    let odd = whole
        .replace(&end, "3")
        .replace("SELECT", &"é".repeat(100_000));
    let spans = Spans::of(odd.as_bytes()).unwrap();
    assert_eq!(spans.all[0].duration, 0);
    assert_eq!(spans.all[1].name, "é".repeat(256));
    let why = |content: &[u8]| Spans::of(content).unwrap_err();
    for cut in [1, 10, whole.len() / 2, whole.len() - 1] {
        assert_eq!(why(&whole.as_bytes()[..cut]), "it was cut off", "{cut}");
    }
    assert_eq!(why(&gzip(whole.as_bytes())[..50]), "it was cut off");
    let protobuf = protobuf_of(1, &GIVEN);
    for cut in 1..protobuf.len() {
        let _ = Spans::of(&protobuf[..cut]).unwrap_err();
    }
    for wrong in [
        whole.replace("\"spans\":[", "\"spans\":7,\"x\":["),
        whole.replace("\"GET /cart\"", "{}"),
    ] {
        assert!(
            why(wrong.as_bytes()).starts_with("it is not OTLP: "),
            "{wrong}"
        );
    }
    assert_eq!(why(b""), "it is empty");
    assert_eq!(why(b"{}"), "it has no spans");
    assert_eq!(
        why(&[0x28, 0xb5, 0x2f, 0xfd]).split(';').next(),
        Some("it is compressed")
    );
    let mut profile = Vec::new();
    let options = Options::default();
    shop::profile()
        .write(Format::Otlp, &options, &mut profile)
        .unwrap();
    let reason = why(&profile);
    assert!(reason.contains("no span"), "{reason}");
}

fn report() -> Report {
    let mut content = Vec::new();
    let options = Options::default();
    shop::profile()
        .write(Format::Otlp, &options, &mut content)
        .unwrap();
    let mut options = ReportOptions::by(&["http.route"]);
    options.with_spans = true;
    Report::of(&content, &options).unwrap()
}

fn cost(samples: u64) -> Cost {
    let nanoseconds = samples * shop::PERIOD;
    Cost {
        samples,
        nanoseconds,
    }
}

/// Of trace 1, six samples are in span 1 and two in span 2.
#[test]
fn spans_have_the_time_of_the_spans_below_them() {
    let other: [Given; 2] = [(7, 0, "other", 0, 5000), (8, 7, "other", 0, 4000)];
    let content = format!("{}\n{}", json_of(1, &GIVEN), json_of(9, &other));
    let spans = Spans::of(content.as_bytes()).unwrap().within(&report());
    assert_eq!(spans.unseen, (1, 2));
    let [trace] = &spans.traces[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(
        (&trace.longest.name[..], trace.spans, trace.cost),
        ("GET /cart", 3, cost(8))
    );
    let costs: Vec<_> = spans
        .spans
        .iter()
        .map(|it| (&it.span.name[..], it.cost))
        .collect();
    let of = |own, total| FunctionCost {
        own: cost(own),
        total: cost(total),
    };
    let expected = [
        ("GET /cart", of(6, 8)),
        ("SELECT", of(2, 2)),
        ("fetch", of(0, 0)),
    ];
    assert_eq!(costs, expected);
}

#[test]
fn parents_in_a_circle_end() {
    let circle: [Given; 2] = [(1, 2, "one", 0, 9), (2, 1, "other", 0, 8)];
    let spans = Spans::of(json_of(1, &circle).as_bytes()).unwrap();
    let spans = spans.within(&report()).spans;
    let costs: Vec<_> = spans.iter().map(|it| it.cost.total).collect();
    assert_eq!(costs, [cost(6), cost(2)]);
}

/// Sampled spans are the innermost two of a long chain.
#[test]
fn the_outermost_of_many_spans_has_the_time_of_all() {
    let chain: Vec<Given> = (1..=200)
        .map(|id| {
            (
                id,
                if id == 200 { 0 } else { id + 1 },
                "span",
                0,
                9 + u64::from(id),
            )
        })
        .collect();
    let spans = Spans::of(json_of(1, &chain).as_bytes()).unwrap();
    let spans = spans.within(&report()).spans;
    assert_eq!(spans.len(), 200);
    // The slowest is the outermost.
    assert_eq!(spans[0].cost.total, cost(8));
    assert_eq!(spans[199].cost.total, cost(6));
}

/// As while a Collector is writing it.
#[test]
fn a_file_that_ends_within_a_line_or_message_has_the_spans_before() {
    let line = json_of(1, &GIVEN);
    let all = Spans::of(line.as_bytes()).unwrap();
    let two = format!("{line}\n{}", json_of(2, &GIVEN));
    for cut in [line.len() + 2, two.len() - 1] {
        let mut spans = Spans::of(&two.as_bytes()[..cut]).unwrap();
        assert!(std::mem::take(&mut spans.is_truncated), "{cut}");
        assert_eq!(spans, all, "{cut}");
    }
    assert!(!Spans::of(two.as_bytes()).unwrap().is_truncated);
}
