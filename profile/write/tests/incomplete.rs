//! Samples whose stack does not reach the start of its thread.

mod shop;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::report::{Report, ReportOptions};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, NamedFrame, ProcessFacts, Sample, StackEnd,
};
use otelctx_profile::{Format, NoSymbols, Options, Profile, rules};
use prost::Message;

/// A thread with the stack `main`, `work`, which ends in each way, and once in none; and, in the kernel, one without a
/// stack in the process.
fn profile() -> Profile {
    let mut catalog = Catalog::new();
    let process = catalog.add_process(ProcessFacts {
        pid: 7,
        comm: "shop".into(),
        ..ProcessFacts::default()
    });
    let thread = catalog.thread(process, 7, "worker");
    let named = |function: &str| {
        Frame::from(NamedFrame {
            function: function.into(),
            ..NamedFrame::default()
        })
    };
    let work = catalog.stack(&[named("work"), named("main")]);
    let none = catalog.stack(&[]);
    let system_call = catalog.stack(&[named("read")]);
    let ends = StackEnd::ALL.map(|end| (work, Some(end), none));
    let others = [
        (work, None, none),
        (none, Some(StackEnd::Unreadable), system_call),
    ];
    let samples = ends.into_iter().chain(others).enumerate();
    let samples = samples.map(|(index, (user_stack, stack_end, kernel_stack))| Sample {
        time: shop::START + index as u64 * shop::PERIOD,
        cpu: 0,
        thread,
        event: Event::OnCpu,
        found: Found::NotPublished,
        gil: None,
        user_stack,
        stack_end,
        kernel_stack,
    });
    let samples = samples.collect();
    let recording = shop::recording_of(catalog, samples, Counts::default());
    Profile::new(recording, &mut NoSymbols)
}

fn written(format: Format) -> Vec<u8> {
    let mut bytes = Vec::new();
    let options = Options::default();
    profile().write(format, &options, &mut bytes).unwrap();
    bytes
}

#[test]
fn folded_stacks_begin_with_what_stands_for_missing_frames() {
    let text = String::from_utf8(written(Format::Folded)).unwrap();
    // Complete, walked by frame pointers, and unknown.
    let mut expected = vec![
        "shop;worker;main;work 3".to_owned(),
        "shop;worker;read 1".to_owned(),
    ];
    expected.extend(
        [
            "too many executable mappings",
            "too many unwind tables",
            "no unwind tables",
            "unwind tables not ready yet",
            "unsupported or wrong unwind tables",
            "unreadable memory",
            "return address is not code",
            "generated code whose caller is unknown",
            "too many frames",
        ]
        .map(|why| format!("shop;worker;[incomplete: {why}];main;work 1")),
    );
    expected.sort();
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, expected);
}

#[test]
fn otlp_and_its_report_have_it_as_a_marker() {
    let data = ProfilesData::decode(&written(Format::Otlp)[..]).unwrap();
    assert_eq!(rules::violations(&data), [""; 0]);
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| &dictionary.string_table[index as usize][..];
    let mut markers = Vec::new();
    for location in &dictionary.location_table {
        let types = location.attribute_indices.iter();
        let mut types = types.map(|it| &dictionary.attribute_table[*it as usize]);
        let is_marker = types.any(|it| {
            let value = it.value.clone().and_then(|it| it.value);
            text(it.key_strindex) == "profile.frame.type"
                && value == Some(Value::StringValue("abort-marker".into()))
        });
        if is_marker {
            let function = location.lines[0].function_index as usize;
            markers.push(text(dictionary.function_table[function].name_strindex));
        }
    }
    assert_eq!(markers.len(), 9);
    assert!(markers.contains(&"[incomplete: no unwind tables]"));
    let outermost = dictionary.stack_table.iter().filter(|stack| {
        let last = stack.location_indices.last().copied().unwrap_or_default();
        let location = &dictionary.location_table[last as usize];
        let line = location.lines.first();
        line.is_some_and(|it| {
            let function = &dictionary.function_table[it.function_index as usize];
            markers.contains(&text(function.name_strindex))
        })
    });
    assert_eq!(outermost.count(), 9);
    let content = data.encode_to_vec();
    let report = Report::of(&content, &ReportOptions::by(&["http.route"])).unwrap();
    let mut marked = report.by_function.iter();
    let marked = marked.find(|it| it.0.name == "[incomplete: unreadable memory]");
    let cost = &marked.unwrap().1;
    assert_eq!((cost.total.samples, cost.own.samples), (1, 0));
}
