//! Time off the CPU in files and reports.

mod waiting;

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{self as proto, ProfilesData};
use otelctx_profile::report::{Cost, KindCosts, Report, ReportOptions, TimeKind};
use otelctx_profile::{Format, Profile, load, rules};
use prost::Message;

use waiting::{LOCK, MS, PERIOD, POLL, READ, profile, written};

/// The samples of a file: type of value, state, call, reason, number of samples, and values.
fn otlp(bytes: &[u8]) -> Vec<(String, [String; 3], usize, Vec<i64>)> {
    let data = ProfilesData::decode(bytes).unwrap();
    assert_eq!(rules::violations(&data), [""; 0]);
    let dictionary = data.dictionary.as_ref().unwrap();
    let text = |index: i32| dictionary.string_table[index as usize].clone();
    let mut found = Vec::new();
    let profiles = data.resource_profiles.iter();
    let profiles = profiles.flat_map(|it| &it.scope_profiles);
    for profile in profiles.flat_map(|it| &it.profiles) {
        let kind = text(profile.sample_type.unwrap().type_strindex);
        let is_off_cpu = kind == "off_cpu";
        assert_eq!(profile.period_type.is_none(), is_off_cpu);
        assert_eq!(profile.period, if is_off_cpu { 0 } else { PERIOD as i64 });
        for sample in &profile.samples {
            let attributes = sample.attribute_indices.iter();
            let attributes = attributes.map(|it| &dictionary.attribute_table[*it as usize]);
            let attributes = attributes.filter_map(|it| {
                let value = it.value.clone()?.value?;
                match value {
                    Value::StringValue(value) => Some((text(it.key_strindex), value)),
                    _ => None,
                }
            });
            let attributes: BTreeMap<_, _> = attributes.collect();
            let of = |name: &str| attributes.get(name).cloned().unwrap_or_default();
            let own = ["thread.state", "wait.call", "wait.reason"].map(of);
            let count = sample.timestamps_unix_nano.len();
            if of("http.route") == "/report" {
                assert_eq!(of("process.context.label.wait.call"), "mine");
            }
            found.push((kind.clone(), own, count, sample.values.clone()));
        }
    }
    found.sort();
    found
}

#[test]
fn otlp_has_a_profile_of_time_off_the_cpu_with_states_and_reasons() {
    let sample = |kind: &str, own: [&str; 3], count, values: &[i64]| {
        let values = values.iter().map(|it| it * MS as i64);
        (
            kind.to_owned(),
            own.map(str::to_owned),
            count,
            values.collect(),
        )
    };
    let epoll = ["asleep", "epoll_wait", "epoll_wait"];
    let expected = [
        sample("off_cpu", epoll, 3, &[100; 3]),
        sample("off_cpu", ["asleep", "futex", LOCK], 1, &[20]),
        sample("off_cpu", ["asleep", "poll", POLL], 2, &[30; 2]),
        sample("off_cpu", ["disk", "read", READ], 1, &[7]),
        sample("off_cpu", ["queued", "", ""], 1, &[2]),
        sample("off_cpu", ["queued", "futex", "futex"], 1, &[5]),
        sample("off_cpu", ["stopped", "", ""], 1, &[1]),
        sample("samples", [""; 3], 1, &[]),
        sample("samples", [""; 3], 4, &[]),
    ];
    let bytes = written(&profile(), Format::Otlp);
    assert_eq!(otlp(&bytes), expected);
    // Also if it is read and written again.
    let again = load(&bytes, &Default::default()).unwrap();
    assert_eq!(otlp(&written(&again, Format::Otlp)), expected);
}

fn cost(samples: u64, milliseconds: u64) -> Cost {
    Cost {
        samples,
        nanoseconds: milliseconds * MS,
    }
}

/// Running, queued and waiting time.
fn parts(kinds: &KindCosts) -> [(u64, u64); 3] {
    [kinds.running, kinds.queued, kinds.waiting].map(|it| (it.samples, it.nanoseconds / MS))
}

fn report(profile: &Profile, options: &ReportOptions) -> Report {
    Report::of(&written(profile, Format::Otlp), options).unwrap()
}

#[test]
fn a_report_has_other_kinds_beside_time_on_a_cpu() {
    let report = report(&profile(), &ReportOptions::by(&["http.route"]));
    assert_eq!(report.total, cost(5, 50));
    assert_eq!(report.with_trace, cost(5, 50));
    assert_eq!(parts(&report.kinds), [(5, 50), (2, 7), (5, 88)]);
    assert_eq!(report.idle, cost(3, 300));
    let groups = report.groups.iter();
    let groups: Vec<_> = groups
        .map(|it| (&it.values[0][..], it.cost, parts(&it.kinds), it.traces))
        .collect();
    let expected = [
        ("/cart", cost(4, 40), [(4, 40), (1, 5), (3, 61)], 1),
        ("/report", cost(1, 10), [(1, 10), (0, 0), (1, 7)], 1),
        ("/wait", cost(0, 0), [(0, 0), (0, 0), (1, 20)], 0),
        ("(none)", cost(0, 0), [(0, 0), (1, 2), (0, 0)], 0),
    ];
    assert_eq!(groups, expected);
    let traces = report.by_trace.iter();
    let traces: Vec<_> = traces
        .map(|it| (&it.trace.id[..2], &it.trace.attribute[..], parts(&it.kinds)))
        .collect();
    let expected = [
        ("01", "/cart", [(4, 40), (1, 5), (3, 61)]),
        ("02", "/report", [(1, 10), (0, 0), (1, 7)]),
        ("03", "/wait", [(0, 0), (0, 0), (1, 20)]),
    ];
    assert_eq!(traces, expected);
    let functions = report.by_function.iter();
    let functions: Vec<_> = functions
        .map(|(it, cost)| (&it.name[..], cost.own.samples, cost.total.samples))
        .collect();
    assert_eq!(
        functions,
        [("cart", 4, 4), ("report", 1, 1), ("serve", 0, 5)]
    );
}

/// Numbers of time on a CPU do not depend on waits.
#[test]
fn waits_do_not_change_time_on_a_cpu() {
    let with_waits = report(&profile(), &ReportOptions::by(&["thread"]));
    let mut without = waiting::recording();
    let on_cpu =
        |it: &otelctx_profile::sample::Sample| it.event == otelctx_profile::sample::Event::OnCpu;
    without.samples.retain(on_cpu);
    let without = Profile::new(without, &mut otelctx_profile::NoSymbols);
    let without = report(&without, &ReportOptions::by(&["thread"]));
    assert_eq!(with_waits.total, without.total);
    assert_eq!(with_waits.by_function, without.by_function);
    assert_eq!(with_waits.by_process, without.by_process);
    let costs = |report: &Report| {
        let groups = report.groups.iter().filter(|it| it.cost.samples > 0);
        let groups = groups.map(|it| (it.values.clone(), it.cost, it.traces, it.with_trace));
        groups.collect::<Vec<_>>()
    };
    assert_eq!(costs(&with_waits), costs(&without));
}

fn of_kinds(kinds: &[TimeKind], by: &[&str], with_idle: bool) -> Report {
    let mut options = ReportOptions::by(by);
    options.selection.kinds = kinds.to_vec();
    options.selection.with_idle = with_idle;
    report(&profile(), &options)
}

fn groups(report: &Report) -> Vec<(String, Cost)> {
    let groups = report.groups.iter();
    groups.map(|it| (it.values.join(" "), it.cost)).collect()
}

#[test]
fn waits_are_grouped_by_state_call_and_reason() {
    use TimeKind::{Queued, Running, Waiting};
    let own = |rows: &[(&str, Cost)]| -> Vec<(String, Cost)> {
        rows.iter()
            .map(|(name, cost)| ((*name).into(), *cost))
            .collect()
    };
    let all = [Running, Queued, Waiting];
    let expected = own(&[
        ("asleep", cost(3, 80)),
        ("running", cost(5, 50)),
        ("disk", cost(1, 7)),
        ("queued", cost(2, 7)),
        ("stopped", cost(1, 1)),
    ]);
    let found = groups(&of_kinds(&all, &["thread.state"], false));
    let mut sorted = found.clone();
    sorted.sort_by_key(|(name, cost)| (std::cmp::Reverse(cost.nanoseconds), name.clone()));
    assert_eq!(sorted, expected);
    let expected = own(&[
        (POLL, cost(2, 60)),
        (LOCK, cost(1, 20)),
        (READ, cost(1, 7)),
        ("(none)", cost(1, 1)),
    ]);
    assert_eq!(
        groups(&of_kinds(&[Waiting], &["wait.reason"], false)),
        expected
    );
    let mut with_idle = expected.clone();
    with_idle.insert(0, ("epoll_wait".into(), cost(3, 300)));
    let report = of_kinds(&[Waiting], &["wait.reason"], true);
    assert_eq!(groups(&report), with_idle);
    assert_eq!(report.idle, Cost::default());
    // An attribute of a context with that name is another one.
    let expected = own(&[
        ("poll /cart", cost(2, 60)),
        ("futex /wait", cost(1, 20)),
        ("read /report", cost(1, 7)),
        ("(none) /cart", cost(1, 1)),
    ]);
    let by = ["wait.call", "http.route"];
    assert_eq!(groups(&of_kinds(&[Waiting], &by, false)), expected);
    let names = ["thread.state", "wait.call", "wait.reason"].map(str::to_owned);
    assert!(names.iter().all(|name| report.attributes.contains(name)));
    assert!(!names.iter().any(|name| report.varying.contains(name)));
}

/// Stacks of waits end in their reasons.
#[test]
fn functions_of_waits_are_above_their_reasons() {
    let report = of_kinds(&[TimeKind::Waiting, TimeKind::Queued], &[], false);
    let functions = report.by_function.iter();
    let mut functions: Vec<_> = functions
        .map(|(it, cost)| {
            let ms = |cost: Cost| cost.nanoseconds / MS;
            (&it.name[..], &it.kind[..], ms(cost.own), ms(cost.total))
        })
        .collect();
    functions.sort_unstable();
    let (poll, lock, read) = (
        format!("[{POLL}]"),
        format!("[{LOCK}]"),
        format!("[{READ}]"),
    );
    let mut expected = [
        (&poll[..], "wait", 60, 60),
        (&lock, "wait", 20, 20),
        (&read, "wait", 7, 7),
        ("[queued]", "wait", 7, 7),
        ("[stopped]", "wait", 1, 1),
        ("cart", "cpython", 0, 66),
        ("poll", "native", 0, 60),
        ("query", "cpython", 0, 60),
        ("report", "cpython", 0, 7),
        ("serve", "cpython", 0, 95),
        ("wait", "cpython", 0, 20),
    ];
    expected.sort_unstable();
    assert_eq!(functions, expected);
    // They are found by what they wait for, too.
    let mut options = ReportOptions::by(&[]);
    options.selection.kinds = vec![TimeKind::Waiting];
    options.selection.functions = vec!["POSTGRES".to_owned()];
    assert_eq!(self::report(&profile(), &options).total, cost(2, 60));
    // Reasons are in no language.
    options.selection.functions.clear();
    options.languages = vec!["native".to_owned()];
    let report = self::report(&profile(), &options);
    let names = report.by_function.iter().map(|(it, _)| &it.name[..]);
    assert_eq!(names.collect::<Vec<_>>()[..2], [&poll[..], &lock]);
}

/// Changes the types of the profiles of a file.
fn retyped(change: impl Fn(&mut proto::Profile, &mut dyn FnMut(&str) -> i32)) -> Vec<u8> {
    let mut data = ProfilesData::decode(&written(&profile(), Format::Otlp)[..]).unwrap();
    let mut strings = std::mem::take(&mut data.dictionary.as_mut().unwrap().string_table);
    let mut string = |text: &str| {
        let known = strings.iter().position(|it| it == text);
        known.unwrap_or_else(|| {
            strings.push(text.to_owned());
            strings.len() - 1
        }) as i32
    };
    for profile in &mut data.resource_profiles[0].scope_profiles[0].profiles {
        if profile.period == 0 {
            change(profile, &mut string);
            // Others write no states.
            for sample in &mut profile.samples {
                sample.attribute_indices.clear();
            }
        }
    }
    data.dictionary.as_mut().unwrap().string_table = strings;
    data.encode_to_vec()
}

/// OpenTelemetry's eBPF profiler writes `events`, later `off_cpu`; profilers of runtimes `wall`.
#[test]
fn time_off_the_cpu_of_other_producers_is_time_that_waits() {
    let mut options = ReportOptions::by(&[]);
    options.selection.with_idle = true;
    for name in ["off_cpu", "events", "wall"] {
        let bytes = retyped(|profile, string| {
            profile.sample_type.as_mut().unwrap().type_strindex = string(name);
        });
        let report = Report::of(&bytes, &options).unwrap();
        assert_eq!(parts(&report.kinds), [(5, 50), (0, 0), (10, 395)], "{name}");
        // The state is not made up.
        let again = load(&bytes, &Default::default()).unwrap();
        let again = otlp(&written(&again, Format::Otlp));
        let states = again.into_iter().map(|(_, [state, ..], ..)| state);
        assert!(states.into_iter().all(|state| state.is_empty()), "{name}");
    }
    // A number of samples with a period of such time.
    let bytes = retyped(|profile, string| {
        let value_type = |kind: i32, unit| {
            Some(proto::ValueType {
                type_strindex: kind,
                unit_strindex: unit,
            })
        };
        profile.sample_type = value_type(string("samples"), string("count"));
        profile.period_type = value_type(string("wall"), string("nanoseconds"));
        profile.period = 3 * MS as i64;
        for sample in &mut profile.samples {
            sample.values.clear();
        }
    });
    let report = Report::of(&bytes, &options).unwrap();
    assert_eq!(parts(&report.kinds), [(5, 50), (0, 0), (10, 30)]);
    assert_eq!(report.period, PERIOD);
}
