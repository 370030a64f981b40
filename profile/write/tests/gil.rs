//! Samples of threads that hold an interpreter's global lock, wait for it, or have released it, in every
//! format.

mod shop;

use std::io::Read;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::report::{NO_ATTRIBUTE, Report, ReportOptions};
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, GilState, NamedFrame, OffCpu, OffCpuState,
    ProcessFacts, Sample,
};
use otelctx_profile::{Format, GIL_ATTRIBUTE, NoSymbols, Options, Profile, rules};
use prost::Message;

fn named(function: &str) -> Frame {
    Frame::from(NamedFrame {
        kind: FrameKind::CPYTHON,
        function: function.into(),
        ..NamedFrame::default()
    })
}

/// A thread with these samples, all with the stack `main`, `work`, and the context attribute `gil.state=mine`:
///
/// | samples | state | in addition |
/// |---|---|---|
/// | 2 | held | |
/// | 3 | waiting | the frame that says so, and a native one that it calls |
/// | 1 | released | |
/// | 1 | none | |
/// | 1 | waiting | as above, off-CPU for 7 ms |
fn profile() -> Profile {
    let mut catalog = Catalog::new();
    let process = catalog.add_process(ProcessFacts {
        pid: 7,
        comm: "shop".into(),
        executable: "/usr/bin/shop".into(),
        ..ProcessFacts::default()
    });
    let thread = catalog.thread(process, 7, "worker");
    let work = catalog.stack(&[named("work"), named("main")]);
    let waiting = catalog.stack(&[
        Frame::instruction(0x1234),
        named(GilState::WAITING_FRAME),
        named("work"),
        named("main"),
    ]);
    let mut context = DecodedContext::default();
    context.attributes = vec![("gil.state".into(), "mine".into())];
    let found = Found::Attached(catalog.context(&context));
    let kernel_stack = catalog.stack(&[]);
    let off = Event::OffCpu(OffCpu {
        state: OffCpuState::Asleep,
        nanoseconds: 7_000_000,
        since: 0,
        reason: None,
    });
    let on = Event::OnCpu;
    let [held, waits, released] = GilState::ALL.map(Some);
    let samples = [
        (on, held, work),
        (on, waits, waiting),
        (on, waits, waiting),
        (on, released, work),
        (on, held, work),
        (on, None, work),
        (on, waits, waiting),
        (off, waits, waiting),
    ];
    let sample = |(index, (event, gil, user_stack))| Sample {
        time: shop::START + index as u64 * shop::PERIOD,
        cpu: 0,
        thread,
        event,
        found,
        gil,
        user_stack,
        stack_end: None,
        kernel_stack,
    };
    let samples = samples.into_iter().enumerate().map(sample).collect();
    let recording = shop::recording_of(catalog, samples, Counts::default());
    Profile::new(recording, &mut NoSymbols)
}

fn written(format: Format, by: Option<&str>) -> Vec<u8> {
    let mut options = Options::default();
    options.by = by.map(str::to_owned).into_iter().collect();
    let mut bytes = Vec::new();
    profile().write(format, &options, &mut bytes).unwrap();
    bytes
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(bytes);
    decoder.read_to_end(&mut out).unwrap();
    out
}

#[test]
fn otlp_has_the_state_beside_a_record_attribute_of_that_name() {
    let data = ProfilesData::decode(&written(Format::Otlp, None)[..]).unwrap();
    assert_eq!(rules::violations(&data), [""; 0]);
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| &dictionary.string_table[index as usize][..];
    let mut found = Vec::new();
    for profile in &data.resource_profiles[0].scope_profiles[0].profiles {
        let kind = text(profile.sample_type.unwrap().type_strindex);
        for sample in &profile.samples {
            let attributes = sample.attribute_indices.iter();
            let attributes = attributes.map(|it| &dictionary.attribute_table[*it as usize]);
            let own = attributes.filter(|it| text(it.key_strindex).ends_with("gil.state"));
            let own = own.map(|it| match it.value.clone().unwrap().value.unwrap() {
                Value::StringValue(value) => format!("{}={value}", text(it.key_strindex)),
                other => panic!("{other:?}"),
            });
            let own: Vec<String> = own.collect();
            let count = sample.timestamps_unix_nano.len();
            found.push((kind, count, own.join(" "), sample.values.clone()));
        }
    }
    let attributes = |state: &str| {
        let mine = "process.context.label.gil.state=mine";
        match state {
            "" => mine.to_owned(),
            state => format!("gil.state={state} {mine}"),
        }
    };
    found.sort();
    let expected = [
        ("off_cpu", 1, attributes("waiting"), vec![7_000_000]),
        ("samples", 1, attributes("released"), vec![]),
        ("samples", 1, attributes(""), vec![]),
        ("samples", 2, attributes("held"), vec![]),
        ("samples", 3, attributes("waiting"), vec![]),
    ];
    assert_eq!(found, expected);
}

#[test]
fn a_report_sums_up_states_and_can_group_by_them() {
    let options = ReportOptions::by(&[GIL_ATTRIBUTE]);
    let report = Report::of(&written(Format::Otlp, None), &options).unwrap();
    assert_eq!(report.total.samples, 7);
    assert_eq!(report.by_gil.map(|cost| cost.samples), [2, 3, 1]);
    let states = report.groups.iter();
    let states: Vec<_> = states
        .map(|it| (&it.values[0][..], it.cost.samples))
        .collect();
    // The record's own attribute has another name here.
    let expected = [
        ("waiting", 3),
        ("held", 2),
        (NO_ATTRIBUTE, 1),
        ("released", 1),
    ];
    assert_eq!(states, expected);
    let waiting = report.by_function.iter();
    let mut waiting = waiting.filter(|(function, _)| function.name == GilState::WAITING_FRAME);
    assert_eq!(waiting.next().unwrap().1.total.samples, 3);
}

#[test]
fn folded_stacks_have_a_frame_that_waits_and_can_have_the_state_at_the_root() {
    let text = |by| String::from_utf8(written(Format::Folded, by)).unwrap();
    let waiting = "shop;worker;main;work;[waiting for the GIL];[unknown] 3\n";
    assert_eq!(text(None), format!("shop;worker;main;work 4\n{waiting}"));
    let expected = format!(
        "(none);shop;worker;main;work 1\n\
        held;shop;worker;main;work 2\n\
        released;shop;worker;main;work 1\n\
        waiting;{waiting}"
    );
    assert_eq!(text(Some(GIL_ATTRIBUTE)), expected);
}

/// As much of pprof's `profile.proto` as is compared.
mod pprof {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Profile {
        #[prost(message, repeated, tag = "2")]
        pub(super) samples: Vec<Sample>,
        #[prost(string, repeated, tag = "6")]
        pub(super) strings: Vec<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Sample {
        #[prost(int64, repeated, tag = "2")]
        pub(super) values: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub(super) labels: Vec<Label>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Label {
        #[prost(int64, tag = "1")]
        pub(super) key: i64,
        #[prost(int64, tag = "2")]
        pub(super) text: i64,
    }
}

#[test]
fn pprof_has_a_label() {
    let profile = pprof::Profile::decode(&unzipped(&written(Format::Pprof, None))[..]).unwrap();
    let string = |index: i64| &profile.strings[index as usize][..];
    let sample = |sample: &pprof::Sample| {
        let labels = sample.labels.iter();
        let mut own = labels.filter(|it| string(it.key) == "gil.state");
        let state = own.next().map_or("", |it| string(it.text));
        assert!(own.next().is_none());
        let period = shop::PERIOD as i64;
        let [count, cpu, off_cpu] = sample.values[..] else {
            panic!("{sample:?}")
        };
        assert_eq!(cpu, count * period);
        (state, count, off_cpu)
    };
    let mut samples: Vec<_> = profile.samples.iter().map(sample).collect();
    samples.sort_unstable();
    let expected = [
        ("", 1, 0),
        ("held", 2, 0),
        ("released", 1, 0),
        // With the label of what kept it off the CPU.
        ("waiting", 0, 7_000_000),
        ("waiting", 3, 0),
    ];
    assert_eq!(samples, expected);
}

/// A thread's graph has the colours of its innermost frames.
#[test]
fn the_firefox_profiler_has_a_category_for_what_waits() {
    let json = unzipped(&written(Format::Firefox, None));
    let profile: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let categories = &profile["meta"]["categories"];
    let number = |value: &serde_json::Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let thread = &profile["threads"][0];
    let (stacks, frames) = (&thread["stackTable"], &thread["frameTable"]);
    let stack = |stack: &serde_json::Value| {
        let (mut next, mut found) = (stack, Vec::new());
        while let Some(index) = next.as_u64() {
            let frame = number(&stacks["frame"][index as usize]);
            let category = &categories[number(&frames["category"][frame])]["name"];
            found.push(category.as_str().unwrap());
            next = &stacks["prefix"][index as usize];
        }
        found
    };
    let found = thread["samples"]["stack"].as_array().unwrap();
    let found: Vec<_> = found.iter().map(stack).collect();
    let work = vec!["cpython", "cpython"];
    let mut waits = vec!["Waiting for the GIL"; 2];
    waits.extend(&work);
    let off_cpu = [&["Waiting"], &waits[..]].concat();
    let [work, waits] = [&work, &waits];
    assert_eq!(
        found.iter().collect::<Vec<_>>(),
        [work, waits, waits, work, work, work, waits, &off_cpu]
    );
}
