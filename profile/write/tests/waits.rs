//! Time off the CPU in files and reports.

mod waiting;

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{self as proto, ProfilesData};
use otelctx_profile::report::{Cost, KindCosts, Report, ReportOptions, Selection, TimeKind};
use otelctx_profile::sample::{Event, OffCpuState};
use otelctx_profile::{Format, Input, NoSymbols, Options, Profile, load, rules};
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
    options.selection.languages = vec!["native".to_owned()];
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

/// The boxes of a flame graph with their tooltips' first and last line, by class.
fn boxes(svg: &str) -> Vec<(String, String, String)> {
    let of_box = |part: &str| {
        let (class, rest) = part.split_once('"')?;
        let (_, rest) = rest.split_once("<title>")?;
        let lines = rest.split_once("</title>")?.0;
        let (first, last) = (lines.lines().next()?, lines.lines().last()?);
        Some((class.to_owned(), first.to_owned(), last.to_owned()))
    };
    svg.split("class=\"box ")
        .skip(1)
        .filter_map(of_box)
        .collect()
}

fn converted(profile: &Profile, kinds: &[TimeKind], format: Format) -> String {
    let folder = std::env::temp_dir();
    let path = folder.join(format!(
        "otelctx-waits-{}-{kinds:?}.otlp",
        std::process::id()
    ));
    std::fs::write(&path, written(profile, Format::Otlp)).unwrap();
    let mut selection = Selection::default();
    selection.kinds = kinds.to_vec();
    let options = Options::default();
    let content =
        otelctx_profile::converted(&Input::recording(&path), &selection, format, &options);
    std::fs::remove_file(&path).unwrap();
    String::from_utf8(content.unwrap().unwrap()).unwrap()
}

#[test]
fn a_flame_graph_of_waits_ends_in_their_reasons() {
    let svg = converted(&profile(), &[TimeKind::Waiting], Format::FlameGraph);
    assert!(svg.contains(">shop: waiting</text>"), "{svg}");
    assert!(
        svg.contains(">5 samples, 88.0 ms, 1.0 s from 2023-11-14 22:13:20 UTC</text>"),
        "{svg}"
    );
    let reasons = boxes(&svg).into_iter();
    // Their class is that of waits, with one of its shades.
    let reasons = reasons.filter(|(class, ..)| class.starts_with("l6"));
    let mut reasons: Vec<_> = reasons.map(|(_, name, cost)| (name, cost)).collect();
    reasons.sort();
    let mut expected = [
        (POLL, "60.0 ms · 68.2 % · 2 samples"),
        (LOCK, "20.0 ms · 22.7 % · 1 sample"),
        (READ, "7.0 ms · 8.0 % · 1 sample"),
        ("stopped", "1.0 ms · 1.1 % · 1 sample"),
    ]
    .map(|(name, cost)| (format!("[{name}]"), cost.to_owned()));
    expected.sort();
    assert_eq!(reasons, expected);
    // Of all kinds, they are beside the time on a CPU of the same functions.
    let all = [TimeKind::Running, TimeKind::Queued, TimeKind::Waiting];
    let svg = converted(&profile(), &all, Format::FlameGraph);
    assert!(svg.contains(">shop: time</text>"), "{svg}");
    let of = |svg: &str, name: &str| {
        let named = boxes(svg).into_iter().find(|(_, first, _)| first == name);
        named.map(|(.., cost)| cost)
    };
    assert_eq!(of(&svg, "cart").unwrap(), "106 ms · 73.1 % · 8 samples");
    // By default, a graph has time on a CPU, and if there is none, the other.
    let svg = converted(&profile(), &[], Format::FlameGraph);
    assert!(svg.contains(">shop: CPU</text>"), "{svg}");
    assert_eq!(of(&svg, "cart").unwrap(), "40.0 ms · 80.0 % · 4 samples");
    assert_eq!(of(&svg, "[queued]"), None);
    let svg = converted(&waiting::waits_only(), &[], Format::FlameGraph);
    assert!(svg.contains(">shop: time off the CPU</text>"), "{svg}");
    assert_eq!(of(&svg, "cart").unwrap(), "66.0 ms · 69.5 % · 4 samples");
    // The same of a recorder.
    for (profile, title) in [
        (profile(), "CPU"),
        (waiting::waits_only(), "time off the CPU"),
    ] {
        let svg = String::from_utf8(written(&profile, Format::FlameGraph)).unwrap();
        assert!(svg.contains(&format!(">shop: {title}</text>")), "{svg}");
    }
}

/// A recorder's files show the kinds that it kept as files of a report that selects the same kinds.
#[test]
fn flame_graphs_and_folded_stacks_of_a_recorder_have_the_selected_kinds_together() {
    use TimeKind::{Queued, Running, Waiting};
    let title = |svg: &str| {
        svg.split("class=\"title\"")
            .nth(1)
            .map(|it| it.split('<').next().unwrap().to_owned())
    };
    for kinds in [
        &[][..],
        &[Running],
        &[Waiting],
        &[Running, Waiting],
        &[Queued, Waiting],
        &[Running, Queued, Waiting],
    ] {
        let mut recording = waiting::recording();
        recording.samples.retain(|sample| {
            let kind = match sample.event {
                Event::OffCpu(off) if off.state == OffCpuState::Queued => Queued,
                Event::OffCpu(_) => Waiting,
                _ => Running,
            };
            kinds.is_empty() || kinds.contains(&kind)
        });
        let mut options = Options::default();
        options.kinds = kinds.to_vec();
        let kept = Profile::new(recording, &mut NoSymbols);
        let written = |format| {
            let mut bytes = Vec::new();
            kept.write(format, &options, &mut bytes).unwrap();
            String::from_utf8(bytes).unwrap()
        };
        let folded = converted(&profile(), kinds, Format::Folded);
        assert_eq!(written(Format::Folded), folded, "{kinds:?}");
        let (svg, expected) = (
            written(Format::FlameGraph),
            converted(&profile(), kinds, Format::FlameGraph),
        );
        assert_eq!(title(&svg), title(&expected), "{kinds:?}");
        assert!(title(&svg).is_some(), "{svg}");
        assert_eq!(boxes(&svg), boxes(&expected), "{kinds:?}");
    }
}

#[test]
fn folded_stacks_have_one_unit() {
    let on_cpu = "shop;worker-1;serve;cart 4\nshop;worker-2;serve;report 1\n";
    let waits = format!(
        "shop;worker-1;serve;cart;[stopped] 1000\n\
        shop;worker-1;serve;cart;query;poll;[{POLL}] 60000\n\
        shop;worker-2;serve;report;[{READ}] 7000\n\
        shop;worker-2;serve;wait;[{LOCK}] 20000\n"
    );
    let queued = "shop;idle;serve;[queued] 2000\nshop;worker-1;serve;cart;[queued] 5000\n";
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let folded = |profile: &Profile| String::from_utf8(written(profile, Format::Folded)).unwrap();
    assert_eq!(folded(&profile()), on_cpu);
    assert_eq!(
        sorted(&folded(&waiting::waits_only())),
        sorted(&format!("{queued}{waits}"))
    );
    let of = |kinds: &[TimeKind]| sorted(&converted(&profile(), kinds, Format::Folded));
    assert_eq!(of(&[]), sorted(on_cpu));
    assert_eq!(of(&[TimeKind::Waiting]), sorted(&waits));
    // Of several kinds, all are microseconds.
    let on_cpu = "shop;worker-1;serve;cart 40000\nshop;worker-2;serve;report 10000\n";
    let both = [TimeKind::Running, TimeKind::Waiting];
    assert_eq!(of(&both), sorted(&format!("{on_cpu}{waits}")));
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut decoder = flate2::read::GzDecoder::new(bytes);
    std::io::Read::read_to_end(&mut decoder, &mut out).unwrap();
    out
}

/// Labels have what a report needs.
#[test]
fn pprof_keeps_kinds_and_reasons() {
    let report =
        |options: &ReportOptions| Report::of(&written(&profile(), Format::Pprof), options).unwrap();
    let mut options = ReportOptions::by(&["wait.reason"]);
    let all = report(&options);
    // Samples that were added up are one.
    let ms = |kinds: &KindCosts| parts(kinds).map(|(_, milliseconds)| milliseconds);
    assert_eq!(ms(&all.kinds), [50, 7, 88]);
    assert_eq!(all.idle.nanoseconds, 300 * MS);
    options.selection.kinds = vec![TimeKind::Waiting];
    let waits = groups(&report(&options));
    let waits: Vec<_> = waits
        .iter()
        .map(|(name, cost)| (&name[..], cost.nanoseconds / MS))
        .collect();
    assert_eq!(waits, [(POLL, 60), (LOCK, 20), (READ, 7), ("(none)", 1)]);
    options.by = vec!["thread.state".to_owned()];
    options.selection.kinds = vec![TimeKind::Queued];
    assert_eq!(groups(&report(&options))[0].1.nanoseconds, 7 * MS);
}

/// A track's samples have no CPU use where it waits, and there is a marker.
#[test]
fn the_firefox_profiler_gets_waits_as_samples_and_markers() {
    let json = unzipped(&written(&profile(), Format::Firefox));
    let file: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let threads = file["threads"].as_array().unwrap();
    let thread = threads.iter().find(|it| it["name"] == "worker-1").unwrap();
    let strings = &file["shared"]["stringArray"];
    let text = |id: &serde_json::Value| strings[id.as_u64().unwrap() as usize].as_str().unwrap();
    let columns = |table: &str, names: [&str; 3]| {
        let [one, two, three] = names.map(|name| thread[table][name].as_array().unwrap());
        let rows = one.iter().zip(two).zip(three);
        rows.map(|((one, two), three)| [one, two, three].map(Clone::clone))
            .collect::<Vec<_>>()
    };
    // Time after the sample before, weight in periods, and microseconds on a CPU. A wait ends when it
    // is sampled: two of 30 ms, one of 5 ms in the queue, and one of 1 ms stopped.
    let rows = columns("samples", ["timeDeltas", "weight", "threadCPUDelta"]);
    let rows: Vec<_> = rows
        .iter()
        .map(|row| row.each_ref().map(|it| it.as_f64().unwrap()))
        .collect();
    let expected = [
        [0.0, 1.0, 10_000.0],
        [10.0, 1.0, 10_000.0],
        [10.0, 1.0, 10_000.0],
        [10.0, 1.0, 10_000.0],
        [10.0, 3.0, 0.0],
        [10.0, 3.0, 0.0],
        [10.0, 1.0, 0.0],
        [10.0, 1.0, 0.0],
    ];
    assert_eq!(rows, expected);
    let rows = columns("markers", ["data", "startTime", "endTime"]);
    let waits = rows.iter().filter(|[data, ..]| data["type"] == "Wait");
    let waits: Vec<_> = waits
        .map(|[data, start, end]| {
            let fields = [text(&data["state"]), text(&data["reason"])];
            (fields, start.as_f64().unwrap(), end.as_f64().unwrap())
        })
        .collect();
    let expected = [
        (["asleep", POLL], 10.0, 40.0),
        (["asleep", POLL], 20.0, 50.0),
        (["queued", "futex"], 55.0, 60.0),
        (["stopped", ""], 69.0, 70.0),
    ];
    assert_eq!(waits, expected);
    let categories = file["meta"]["categories"].as_array().unwrap();
    let names: Vec<&str> = categories
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"Waiting") && names.contains(&"Queued"),
        "{names:?}"
    );
    let schemas = file["meta"]["markerSchema"].as_array().unwrap();
    assert_eq!(schemas[1]["name"], "Wait");
}
