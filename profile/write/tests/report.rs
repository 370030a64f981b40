//! What a recorded file tells.

mod shop;

use std::fs;

use std::path::PathBuf;

use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_profile::report::{Cost, NO_ATTRIBUTE, Report, ReportOptions};
use otelctx_profile::{Error, Format, Input, NoSymbols, Options, Profile, rules};
use prost::Message as _;

struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("otelctx-report-{name}-{}.otlp", std::process::id());
        let file = Self(std::env::temp_dir().join(name));
        let options = Options::default();
        shop::profile().write_file(&file.0, &options).unwrap();
        file
    }
}

impl File {
    fn report(&self) -> Result<Report, Error> {
        Report::read(
            &Input::recording(&self.0),
            &ReportOptions::by(&["http.route"]),
        )
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn time_is_added_up_by_route_trace_function_and_process() {
    let file = File::new("sums");
    let report = file.report().unwrap();
    let samples = |cost: &Cost| {
        assert_eq!(cost.nanoseconds, cost.samples * shop::PERIOD);
        cost.samples
    };
    assert_eq!(samples(&report.total), 12);
    assert_eq!(samples(&report.with_trace), 8);
    assert_eq!(report.duration, 1_000_000_000);
    let routes = report.groups.iter();
    let routes: Vec<_> = routes
        .map(|it| (&it.values[0][..], samples(&it.cost)))
        .collect();
    assert_eq!(routes, [("/cart", 7), (NO_ATTRIBUTE, 4), ("/pay", 1)]);
    let attributes = report.attributes.iter().map(String::as_str);
    assert!(attributes.eq(["http.route", "thread.name", "thread.state"]));
    let [trace] = &report.by_trace[..] else {
        panic!("{:?}", report.by_trace)
    };
    assert_eq!(
        (&trace.trace.id, &trace.trace.attribute[..]),
        (&"01".repeat(16), "/cart")
    );
    assert_eq!(samples(&trace.cost), 8);
    let functions = report.by_function.iter();
    let functions: Vec<_> = functions
        .map(|(it, cost)| (&it.name[..], samples(&cost.own), samples(&cost.total)))
        .collect();
    let expected = [
        ("parse", 8, 8),
        ("do_syscall_64", 2, 2),
        ("main", 1, 11),
        ("[unknown]", 1, 1),
        ("serve", 0, 10),
    ];
    assert_eq!(functions, expected);
    let processes = report.by_process.iter();
    let processes: Vec<_> = processes
        .map(|(name, cost)| (&name[..], samples(cost)))
        .collect();
    // The second is named after its first thread.
    assert_eq!(processes, [("shop 4711", 11), ("other;x 9", 1)]);
}

/// As in the other formats and in `top`.
#[test]
fn a_process_without_a_service_has_its_command_name() {
    let report = |resource: &[(&str, &str)], first_thread, published| {
        let mut recording = shop::recording();
        let catalog = &mut recording.catalog;
        let other = catalog.thread_facts(recording.samples.last().unwrap().thread);
        let process = other.process;
        let facts = catalog.process_mut(process);
        facts.executable = "/usr/bin/python3.11".into();
        facts.published = published;
        facts.resource = resource
            .iter()
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        let thread = catalog.thread(process, if first_thread { 9 } else { 10 }, "python3");
        recording.samples.last_mut().unwrap().thread = thread;
        let profile = Profile::new(recording, &mut NoSymbols);
        let mut message = Vec::new();
        let options = Options::default();
        profile.write(Format::Otlp, &options, &mut message).unwrap();
        let report = Report::of(&message, &ReportOptions::by(&[])).unwrap();
        report.by_process[1].0.clone()
    };
    assert_eq!(report(&[], true, false), "python3 9");
    // Without a sample of the first thread.
    assert_eq!(report(&[], false, false), "python3.11 9");
    assert_eq!(report(&[("service.name", "a")], true, true), "a 9");
    // What its environment says is marked.
    assert_eq!(report(&[("service.name", "a")], true, false), "(a) 9");
    // What the process publishes is not changed.
    let published = ("service.name", "unknown_service:b");
    assert_eq!(report(&[published], true, true), "unknown_service:b 9");
}

/// Time in a program without symbols is not skipped.
#[test]
fn where_no_function_is_known_the_file_stands_for_it() {
    let file = File::new("unnamed");
    let profile = Profile::new(shop::recording(), &mut NoSymbols);
    profile.write_file(&file.0, &Options::default()).unwrap();
    let report = file.report().unwrap();
    let functions = report.by_function.iter();
    let functions: Vec<_> = functions
        .map(|(it, cost)| (&it.name[..], cost.own.samples, cost.total.samples))
        .collect();
    let expected = [
        ("/usr/bin/shop", 9, 11),
        ("[kernel]", 2, 2),
        ("[unknown]", 1, 1),
    ];
    assert_eq!(functions, expected);
}

/// Wherever it is cut, a file is not taken for a whole one.
#[test]
fn a_file_that_is_cut_short_is_refused() {
    let file = File::new("cut");
    let whole = fs::read(&file.0).unwrap();
    for length in 0..whole.len() {
        fs::write(&file.0, &whole[..length]).unwrap();
        let result = file.report();
        assert!(
            matches!(result, Err(Error::Malformed { .. })),
            "{length} bytes"
        );
    }
    fs::write(&file.0, &whole).unwrap();
    file.report().unwrap();
}

/// As the file exporter of OpenTelemetry's Collector writes it: several messages with their sizes before
/// them, whose resources refer to the dictionary's strings.
#[test]
fn several_messages_are_one_report() {
    let file = File::new("several");
    let alone = file.report().unwrap();
    let mut data = ProfilesData::decode(&fs::read(&file.0).unwrap()[..]).unwrap();
    let dictionary = data.dictionary.as_mut().unwrap();
    dictionary.attribute_table[0].value = Some(AnyValue::default());
    let strings = &mut dictionary.string_table;
    let mut refer = |text: &str| {
        let found = strings.iter().position(|string| string == text);
        found.unwrap_or_else(|| {
            strings.push(text.to_owned());
            strings.len() - 1
        }) as i32
    };
    for resource in &mut data.resource_profiles {
        for attribute in &mut resource.resource.as_mut().unwrap().attributes {
            attribute.key_strindex = refer(&std::mem::take(&mut attribute.key));
            let value = &mut attribute.value.as_mut().unwrap().value;
            if let Some(Value::StringValue(text)) = value {
                *value = Some(Value::StringValueStrindex(refer(text)));
            }
        }
    }
    assert_eq!(rules::missed_by_backends(&data), [""; 0]);
    let message = data.encode_to_vec();
    let size = u32::try_from(message.len()).unwrap().to_be_bytes();
    let sized = [&size[..], &message].concat();
    fs::write(&file.0, &sized).unwrap();
    assert_eq!(file.report().unwrap(), alone);
    fs::write(&file.0, sized.repeat(2)).unwrap();
    let twice = file.report().unwrap();
    assert_eq!(twice.total.samples, 2 * alone.total.samples);
    assert_eq!(twice.by_process[0].0, alone.by_process[0].0);
    assert_eq!(
        twice.by_process[0].1.samples,
        2 * alone.by_process[0].1.samples
    );
    assert_eq!(twice.by_trace.len(), alone.by_trace.len());
    assert_eq!(twice.duration, alone.duration);
    for length in 1..sized.len() {
        fs::write(&file.0, [&sized, &sized[..length]].concat()).unwrap();
        let error = file.report().unwrap_err();
        assert!(
            error.to_string().contains("its last message is truncated"),
            "{error}"
        );
    }
}

#[test]
fn what_is_no_profile_is_refused() {
    let file = File::new("other");
    for (beginning, why) in [
        (
            &[0x1f, 0x8b, 8, 0][..],
            "its compressed data was cut off or damaged",
        ),
        (b"<?xml version", "it is an SVG image"),
        (
            b"{\"resourceProfiles\":[]}\n",
            "it is JSON; configure the Collector's file exporter with `format: proto`",
        ),
        (
            &[0, 0, 0, 4, 0x28, 0xb5, 0x2f, 0xfd],
            "without `compression`",
        ),
        (&[0, 0, 0, 9, 0x0a], "its last message is truncated"),
    ] {
        fs::write(&file.0, beginning).unwrap();
        let error = file.report().unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    fs::write(&file.0, "#!/bin/sh\necho no profile\n").unwrap();
    let error = file.report().unwrap_err();
    assert!(
        error.to_string().contains("not a profile that can be read"),
        "{error}"
    );
    fs::remove_file(&file.0).unwrap();
    let error = file.report().unwrap_err();
    assert!(matches!(error, Error::Read { .. }), "{error:?}");
}
