//! Stacks in which native frames and frames that a runtime has named mix, in every format.

mod shop;

use std::collections::BTreeMap;
use std::io::Read;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::report::{Report, ReportOptions};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, Mapping, NamedFrame, ProcessFacts, Sample,
    StackEnd,
};
use otelctx_profile::{Format, Options, Profile, rules};
use prost::Message;

/// Where the program is mapped; its first byte is byte 0x1000 of the file.
const CODE: u64 = 0x7000_0000;
/// What a runtime that the semantic conventions do not list calls its frames.
const TOY: FrameKind = FrameKind::new("toy");

fn named(kind: FrameKind, function: &str, qualified_name: &str, line: u32) -> Frame {
    Frame::from(NamedFrame {
        kind,
        function: function.into(),
        qualified_name: qualified_name.into(),
        file: "/srv/shop.py".into(),
        line,
    })
}

/// Two processes with these stacks, outermost first:
///
/// | samples | process | stack |
/// |---|---|---|
/// | 2 | shop | main, serve, handle (Python), Shop.checkout (Python, line 42) |
/// | 1 | shop | main, handle (Python), serve with parse inlined |
/// | 1 | other | handle (Python), loop (toy), whose callers are unknown |
fn profile() -> Profile {
    let mut catalog = Catalog::new();
    let module = shop::module(&mut catalog);
    let shop = catalog.add_process(ProcessFacts {
        pid: 4711,
        comm: "shop".into(),
        executable: "/usr/bin/shop".into(),
        mappings: vec![Mapping {
            start: CODE,
            end: CODE + 0x1000,
            offset: 0x1000,
            module,
            since: 0,
        }],
        ..ProcessFacts::default()
    });
    let other = catalog.add_process(ProcessFacts {
        pid: 9,
        comm: "other".into(),
        ..ProcessFacts::default()
    });
    let handle = || named(FrameKind::CPYTHON, "handle", "", 7);
    let checkout = catalog.stack(&[
        named(FrameKind::CPYTHON, "checkout", "Shop.checkout", 42),
        handle(),
        // Behind the call at the end of `serve`.
        Frame::return_address(CODE + 0x180),
        Frame::return_address(CODE + 0x20),
    ]);
    let parse = catalog.stack(&[
        Frame::instruction(CODE + 0x180),
        handle(),
        Frame::return_address(CODE + 0x20),
    ]);
    let toy = catalog.stack(&[named(TOY, "loop", "", 3), handle()]);
    let (empty, mut counts) = (catalog.stack(&[]), Counts::default());
    let worker = catalog.thread(shop, 4712, "worker");
    let lone = catalog.thread(other, 9, "other");
    let samples = [
        (worker, checkout, None),
        (worker, parse, None),
        (worker, checkout, None),
        (lone, toy, Some(StackEnd::NoTables)),
    ];
    let sample = |(index, (thread, user_stack, stack_end))| {
        counts.add(Found::NotPublished);
        Sample {
            time: shop::START + index as u64 * shop::PERIOD,
            cpu: 0,
            thread,
            event: Event::OnCpu,
            found: Found::NotPublished,
            gil: None,
            user_stack,
            stack_end,
            kernel_stack: empty,
        }
    };
    let samples = samples.into_iter().enumerate().map(sample).collect();
    let recording = shop::recording_of(catalog, samples, counts);
    Profile::new(recording, &mut shop::Names)
}

fn written(format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = profile().write(format, &Options::default(), &mut bytes);
    written.unwrap();
    bytes
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(bytes);
    decoder.read_to_end(&mut out).unwrap();
    out
}

#[test]
fn folded_stacks_and_flame_graphs_have_them() {
    let text = String::from_utf8(written(Format::Folded)).unwrap();
    let expected = "other;other;[incomplete: no unwind tables];handle;loop 1\n\
        shop;worker;main;handle;serve;parse 1\n\
        shop;worker;main;serve;handle;Shop.checkout 2\n";
    assert_eq!(text, expected);
    let svg = String::from_utf8(written(Format::FlameGraph)).unwrap();
    for (name, share) in [
        ("Shop.checkout", "50.0 % · 2 samples"),
        ("loop", "25.0 % · 1 sample"),
        ("parse", "25.0 % · 1 sample"),
        ("[incomplete: no unwind tables]", "25.0 % · 1 sample"),
    ] {
        let mut tooltips = svg
            .split("<title>")
            .filter_map(|it| it.split_once("</title>"));
        let found = tooltips.find(|(tooltip, _)| tooltip.lines().next() == Some(name));
        let (tooltip, _) = found.unwrap_or_else(|| panic!("{name}: {svg}"));
        assert!(tooltip.ends_with(share), "{tooltip}");
    }
}

/// Each stack, innermost first: kind of frame, name, system name, file and line, mapping, address.
#[test]
fn otlp_says_what_executes_each_frame() {
    let data = ProfilesData::decode(&written(Format::Otlp)[..]).unwrap();
    assert_eq!(rules::violations(&data), [""; 0]);
    assert_eq!(
        rules::missed_by_backends(&data),
        ["a resource has no service.name"; 0]
    );
    let dictionary = data.dictionary.as_ref().unwrap();
    let string = |index: i32| &dictionary.string_table[index as usize][..];
    let location = |index: &i32| {
        let location = &dictionary.location_table[*index as usize];
        let mut lines = String::new();
        for line in &location.lines {
            let function = &dictionary.function_table[line.function_index as usize];
            let (name, system) = (function.name_strindex, function.system_name_strindex);
            let file = string(function.filename_strindex);
            lines += &format!(" {}/{} {file}:{}", string(name), string(system), line.line);
        }
        let [index] = location.attribute_indices[..] else {
            panic!("{location:?}")
        };
        let attribute = &dictionary.attribute_table[index as usize];
        assert_eq!(string(attribute.key_strindex), "profile.frame.type");
        let kind = attribute.value.as_ref().unwrap().value.as_ref().unwrap();
        let Value::StringValue(kind) = kind else {
            panic!("{kind:?}")
        };
        let (mapping, address) = (location.mapping_index, location.address);
        format!("{kind}{lines} {mapping} {address:#x}")
    };
    let mut stacks = Vec::new();
    for resource in &data.resource_profiles {
        for sample in &resource.scope_profiles[0].profiles[0].samples {
            let stack = &dictionary.stack_table[sample.stack_index as usize];
            let locations = stack.location_indices.iter().map(location);
            stacks.push((
                sample.timestamps_unix_nano.len(),
                locations.collect::<Vec<_>>(),
            ));
        }
    }
    let handle = "cpython handle/ /srv/shop.py:7 0 0x0";
    let serve = "native serve/_serve /src/shop.rs:20 1 0x1180";
    let main = "native main/_main /src/shop.rs:10 1 0x1020";
    let checkout = "cpython Shop.checkout/checkout /srv/shop.py:42 0 0x0";
    let parse = "native parse/_parse /src/shop.rs:7 serve/_serve /src/shop.rs:21 1 0x1180";
    let toy = "toy loop/ /srv/shop.py:3 0 0x0";
    let cut = "abort-marker [incomplete: no unwind tables]/ :0 0 0x0";
    let strings = |frames: &[&str]| frames.iter().map(ToString::to_string).collect();
    let expected: [(usize, Vec<String>); 3] = [
        (2, strings(&[checkout, handle, serve, main])),
        (1, strings(&[parse, handle, main])),
        (1, strings(&[toy, handle, cut])),
    ];
    assert_eq!(stacks, expected);
}

#[test]
fn a_report_adds_them_up() {
    let options = ReportOptions::by(&["http.route"]);
    let report = Report::of(&written(Format::Otlp), &options).unwrap();
    let functions: BTreeMap<&str, (u64, u64)> = report
        .by_function
        .iter()
        .map(|(name, cost)| (&name.name[..], (cost.own.samples, cost.total.samples)))
        .collect();
    let expected = [
        ("Shop.checkout", (2, 2)),
        ("[incomplete: no unwind tables]", (0, 1)),
        ("handle", (0, 4)),
        ("loop", (1, 1)),
        ("main", (0, 3)),
        ("parse", (1, 1)),
        ("serve", (0, 3)),
    ];
    assert_eq!(functions, BTreeMap::from(expected));
}

/// As much of pprof's `profile.proto` as is compared.
mod pprof {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "2")]
        pub(super) samples: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        pub(super) locations: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub(super) functions: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub(super) strings: Vec<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub(super) locations: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub(super) values: Vec<i64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Location {
        #[prost(uint64, tag = "2")]
        pub(super) mapping: u64,
        #[prost(uint64, tag = "3")]
        pub(super) address: u64,
        #[prost(message, repeated, tag = "4")]
        pub(super) lines: Vec<Line>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Line {
        #[prost(uint64, tag = "1")]
        pub(super) function: u64,
        #[prost(int64, tag = "2")]
        pub(super) line: i64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Function {
        #[prost(int64, tag = "2")]
        pub(super) name: i64,
        #[prost(int64, tag = "3")]
        pub(super) system_name: i64,
        #[prost(int64, tag = "4")]
        pub(super) file: i64,
    }
}

#[test]
fn pprof_has_them() {
    let profile = pprof::Profile::decode(&unzipped(&written(Format::Pprof))[..]).unwrap();
    let string = |index: i64| &profile.strings[index as usize][..];
    let location = |id: &u64| {
        let location = &profile.locations[*id as usize - 1];
        let mut text = format!("{} {:#x}", location.mapping, location.address);
        for line in &location.lines {
            let function = &profile.functions[line.function as usize - 1];
            let (name, system_name) = (string(function.name), string(function.system_name));
            let file = string(function.file);
            text += &format!(" {name}/{system_name} {file}:{}", line.line);
        }
        text
    };
    let sample = |sample: &pprof::Sample| {
        let locations: Vec<_> = sample.locations.iter().map(location).collect();
        (sample.values[0], locations.join(", "))
    };
    let samples: Vec<_> = profile.samples.iter().map(sample).collect();
    let expected = [
        (
            2,
            "0 0x0 Shop.checkout/checkout /srv/shop.py:42, 0 0x0 handle/handle /srv/shop.py:7, \
             1 0x70000180 serve/_serve /src/shop.rs:20, 1 0x70000020 main/_main /src/shop.rs:10",
        ),
        (
            1,
            "1 0x70000180 parse/_parse /src/shop.rs:7 serve/_serve /src/shop.rs:21, \
             0 0x0 handle/handle /srv/shop.py:7, 1 0x70000020 main/_main /src/shop.rs:10",
        ),
        (
            1,
            "0 0x0 loop/loop /srv/shop.py:3, 0 0x0 handle/handle /srv/shop.py:7, \
             0 0x0 [incomplete: no unwind tables]/[incomplete: no unwind tables] :0",
        ),
    ];
    let expected = expected.map(|(samples, stack)| (samples, stack.to_owned()));
    assert_eq!(samples, expected);
}

/// Each sample's stack, innermost first, with the category of each frame.
#[test]
fn the_firefox_profiler_has_a_category_for_each_runtime() {
    let json = unzipped(&written(Format::Firefox));
    let profile: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let categories = &profile["meta"]["categories"];
    let number = |value: &serde_json::Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let mut described = Vec::new();
    for thread in profile["threads"].as_array().unwrap() {
        let (stacks, frames) = (&thread["stackTable"], &thread["frameTable"]);
        for stack in thread["samples"]["stack"].as_array().unwrap() {
            let (mut next, mut names) = (stack, Vec::new());
            while let Some(index) = next.as_u64() {
                let index = index as usize;
                let frame = number(&stacks["frame"][index]);
                let function = number(&frames["func"][frame]);
                let name = number(&thread["funcTable"]["name"][function]);
                let category = &categories[number(&frames["category"][frame])]["name"];
                let name = profile["shared"]["stringArray"][name].as_str().unwrap();
                names.push(format!("{name} ({})", category.as_str().unwrap()));
                next = &stacks["prefix"][index];
            }
            described.push(names.join(", "));
        }
    }
    let checkout = "Shop.checkout (cpython), handle (cpython), serve (User), main (User)";
    let parse = "parse (User), serve (User), handle (cpython), main (User)";
    let toy = "loop (toy), handle (cpython), [incomplete: no unwind tables] (User)";
    assert_eq!(described, [checkout, parse, checkout, toy]);
}
