//! Formats with one file per recording have the same content, however many parts the recording has.

use std::collections::BTreeSet;
use std::io::Read;

use flate2::read::GzDecoder;
use prost::Message;
use serde_json::Value as Json;

use crate::{Aggregate, Format, NoSymbols, Options, Profile};

use super::*;

const SAMPLES: u64 = 5000;

/// The files of a recording: pprof, Firefox Profiler, flame graph, folded.
fn files(recordings: Vec<Recording>) -> [Vec<u8>; 4] {
    static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let directory = format!("otelctx-parts-{}-{number}", std::process::id());
    let directory = std::env::temp_dir().join(directory);
    std::fs::create_dir(&directory).unwrap();
    let options = Options {
        by: vec!["http.route".into()],
        ..Options::default()
    };
    let paths = ["a.pb.gz", "a.json.gz", "a.svg", "a.folded"].map(|name| directory.join(name));
    let formats = paths
        .each_ref()
        .map(|path| Format::from_path(path).unwrap());
    let mut all = Aggregate::new(&options, &formats, clock(1000 + SAMPLES), SAMPLES);
    for recording in recordings {
        all.add(&Profile::new(recording, &mut NoSymbols));
    }
    let files = paths.map(|path| {
        all.write_file(&path).unwrap();
        std::fs::read(path).unwrap()
    });
    std::fs::remove_dir_all(directory).unwrap();
    files
}

fn unzipped(file: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// pprof's `profile.proto`, as far as samples go.
#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "2")]
    samples: Vec<PprofSample>,
    #[prost(message, repeated, tag = "4")]
    locations: Vec<PprofLocation>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "9")]
    time: i64,
    #[prost(int64, tag = "10")]
    duration: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    locations: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    values: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    labels: Vec<PprofLabel>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLabel {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLocation {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
}

/// Time, duration, and each sample as text.
fn pprof(file: &[u8]) -> (i64, i64, BTreeSet<String>) {
    let profile = Pprof::decode(&unzipped(file)[..]).unwrap();
    let address = |id: &u64| {
        profile
            .locations
            .iter()
            .find(|it| it.id == *id)
            .unwrap()
            .address
    };
    let string = |id: i64| &profile.strings[id as usize];
    let described = |sample: &PprofSample| {
        let addresses: Vec<u64> = sample.locations.iter().map(address).collect();
        let label = |it: &PprofLabel| (string(it.key), string(it.text), it.number);
        let labels: Vec<_> = sample.labels.iter().map(label).collect();
        format!("{:?} {addresses:?} {labels:?}", sample.values)
    };
    let samples: BTreeSet<String> = profile.samples.iter().map(described).collect();
    assert_eq!(samples.len(), profile.samples.len(), "equal ones are one");
    (profile.time, profile.duration, samples)
}

/// Each thread's samples and spans as text.
fn firefox(file: &[u8]) -> Vec<Vec<String>> {
    let profile: Json = serde_json::from_slice(&unzipped(file)).unwrap();
    let thread = |thread: &Json| {
        let column = |table: &str, column: &str| thread[table][column].as_array().unwrap().clone();
        let strings = &profile["shared"]["stringArray"];
        let text = |id: &Json| id.as_u64().map(|id| strings[id as usize].as_str().unwrap());
        let name = |stack: &Json| {
            let frame = &thread["stackTable"]["frame"][stack.as_u64().unwrap() as usize];
            let function = &thread["frameTable"]["func"][frame.as_u64().unwrap() as usize];
            let name = text(&thread["funcTable"]["name"][function.as_u64().unwrap() as usize]);
            name.unwrap().to_owned()
        };
        let mut lines = vec![format!(
            "{} {} {}",
            thread["pid"], thread["tid"], thread["name"]
        )];
        let (times, weights) = (column("samples", "timeDeltas"), column("samples", "weight"));
        for ((stack, time), weight) in column("samples", "stack").iter().zip(times).zip(weights) {
            lines.push(format!("{time} {weight} {}", name(stack)));
        }
        let (starts, ends) = (column("markers", "startTime"), column("markers", "endTime"));
        for ((data, start), end) in column("markers", "data").iter().zip(starts).zip(ends) {
            let fields = ["trace", "attributes", "state"].map(|name| text(&data[name]));
            lines.push(format!("{start} {end} {fields:?}"));
        }
        lines
    };
    let mut threads: Vec<_> = profile["threads"]
        .as_array()
        .unwrap()
        .iter()
        .map(thread)
        .collect();
    threads.sort();
    threads
}

#[test]
fn several_parts_make_the_same_file_as_one() {
    let (_, one) = record(LIMITS, SAMPLES);
    let (_, several) = record(small(), SAMPLES);
    assert!(one.len() == 1 && several.len() >= 3, "{}", several.len());
    let ([pprof_one, firefox_one, svg_one, folded_one], several) = (files(one), files(several));
    let [pprof_several, firefox_several, svg_several, folded_several] = several;
    assert_eq!(folded_one, folded_several);
    assert_eq!(svg_one, svg_several);
    let on_cpu = SAMPLES - SAMPLES.div_ceil(7);
    let folded = String::from_utf8(folded_one).unwrap();
    let count = |line: &str| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap();
    assert_eq!(folded.lines().map(count).sum::<u64>(), on_cpu);
    let (one, several) = (pprof(&pprof_one), pprof(&pprof_several));
    assert_eq!((one.0, one.1), (1_700_000_000_000_000_000, SAMPLES as i64));
    assert_eq!(one.2.len() as u64, SAMPLES, "each has a stack of its own");
    assert_eq!(one, several);
    let (one, several) = (firefox(&firefox_one), firefox(&firefox_several));
    // Two processes with three threads each.
    assert_eq!(one.len(), 6);
    for (one, several) in one.iter().zip(several) {
        assert_eq!(one[0], several[0]);
        let differs = one
            .iter()
            .zip(&several)
            .find(|(one, several)| one != several);
        assert_eq!((differs, one.len()), (None, several.len()));
    }
}
