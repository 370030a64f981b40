//! Spans that OpenTelemetry's Collector has written to a file are read.

mod collector;

use std::io::{Read, Write};
use std::net::TcpStream;

use collector::{Collector, documented};
use otelctx_profile::Spans;

const SPANS: &str = r#"{"resourceSpans": [{
    "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]},
    "scopeSpans": [{"spans": [
        {"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7", "name": "GET /cart",
         "kind": 2, "startTimeUnixNano": "1700000000000000000", "endTimeUnixNano": "1700000000250000000"},
        {"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b8", "name": "SELECT",
         "parentSpanId": "00f067aa0ba902b7",
         "startTimeUnixNano": "1700000000050000000", "endTimeUnixNano": "1700000000150000000"}
    ]}]
}]}"#;

#[test]
fn spans_are_read_from_each_format_of_the_file_exporter() {
    for format in ["json", "proto"] {
        let Some(preparation) = Collector::prepare(0) else {
            return;
        };
        let configuration = documented().replace("    profiles:", "    traces:");
        let configuration = configuration.replace("format: proto", &format!("format: {format}"));
        let mut collector = preparation.start(&configuration);
        let mut stream = TcpStream::connect((collector.address.as_str(), 4318)).unwrap();
        let head = format!(
            "POST /v1/traces HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            SPANS.len()
        );
        stream.write_all((head + SPANS).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let spans = Spans::read(&collector.written()).unwrap();
        let facts = spans.all.iter().map(|span| {
            let parent = span.parent.map(|parent| parent[7]);
            (
                &span.name[..],
                &span.service[..],
                parent,
                span.duration / 1_000_000,
            )
        });
        let facts = facts.collect::<Vec<_>>();
        let expected = [
            ("GET /cart", "shop", None, 250),
            ("SELECT", "shop", Some(0xb7), 100),
        ];
        assert_eq!(facts, expected, "{format}");
    }
}
