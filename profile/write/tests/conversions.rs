//! What each format says of a selection is what the report says.

mod shop;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use otelctx_profile::report::{
    AttributeFilter, Condition, Moment, Report, ReportOptions, Selection, ThreadFilter,
};
use otelctx_profile::sample::{Catalog, Counts, Event, Found, ProcessFacts, Sample};
use otelctx_profile::{Clock, Format, Input, NoSymbols, Options, Profile, convert, converted};
use prost::Message;
use serde_json::Value;

/// Own samples and all samples of each function.
type Functions = BTreeMap<String, (u64, u64)>;

fn of_report(report: &Report) -> Functions {
    let functions = report.by_function.iter();
    functions
        .map(|(it, cost)| (it.name.clone(), (cost.own.samples, cost.total.samples)))
        .collect()
}

/// Adds a stack, from the outermost frame on.
fn add(functions: &mut Functions, stack: &[String], samples: u64) {
    for (index, name) in stack.iter().enumerate() {
        let (own, total) = functions.entry(name.clone()).or_default();
        if index + 1 == stack.len() {
            *own += samples;
        }
        if !stack[..index].contains(name) {
            *total += samples;
        }
    }
}

fn of_folded(content: &[u8]) -> Functions {
    let mut functions = Functions::new();
    for line in str::from_utf8(content).unwrap().lines() {
        let (stack, samples) = line.rsplit_once(' ').unwrap();
        // Behind process and thread.
        let stack: Vec<_> = stack.split(';').skip(2).map(str::to_owned).collect();
        add(&mut functions, &stack, samples.parse().unwrap());
    }
    functions
}

fn of_speedscope(content: &[u8]) -> Functions {
    let file: Value = serde_json::from_slice(content).unwrap();
    let mut functions = Functions::new();
    let is_on_cpu = |profile: &&Value| !profile["name"].as_str().unwrap().ends_with(" CPU");
    for profile in file["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_on_cpu)
    {
        let (stacks, weights) = (&profile["samples"], &profile["weights"]);
        for (stack, weight) in stacks
            .as_array()
            .unwrap()
            .iter()
            .zip(weights.as_array().unwrap())
        {
            let name = |frame: &Value| {
                let frame = &file["shared"]["frames"][number(frame)];
                frame["name"].as_str().unwrap().to_owned()
            };
            let stack: Vec<_> = stack.as_array().unwrap().iter().map(name).collect();
            let weight = weight.as_u64().unwrap();
            assert!(weight.is_multiple_of(shop::PERIOD));
            add(&mut functions, &stack, weight / shop::PERIOD);
        }
    }
    functions
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

fn of_firefox(content: &[u8]) -> Functions {
    let file: Value = serde_json::from_slice(&unzipped(content)).unwrap();
    let mut functions = Functions::new();
    for thread in file["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        for (index, stack) in samples["stack"].as_array().unwrap().iter().enumerate() {
            let (mut names, mut next) = (Vec::new(), stack);
            while next.is_u64() {
                let frame = number(&thread["stackTable"]["frame"][number(next)]);
                let function = number(&thread["frameTable"]["func"][frame]);
                let name = number(&thread["funcTable"]["name"][function]);
                let name = file["shared"]["stringArray"][name].as_str().unwrap();
                names.push(name.to_owned());
                next = &thread["stackTable"]["prefix"][number(next)];
            }
            names.reverse();
            if samples["threadCPUDelta"][index] == 0 {
                continue;
            }
            add(
                &mut functions,
                &names,
                samples["weight"][index].as_u64().unwrap(),
            );
        }
    }
    functions
}

/// All samples of each function: the sum of its boxes, as no function of the shop calls itself. Its
/// own samples are what the boxes below it lack.
fn of_flame_graph(content: &[u8]) -> Functions {
    let svg = str::from_utf8(content).unwrap();
    let value = |text: &str, name: &str| {
        let (_, value) = text.split_once(&format!(" {name}=\"")).unwrap();
        value
            .split(['"', '%'])
            .next()
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    let mut boxes = Vec::new();
    for text in svg.split("<svg class=\"box ").skip(1) {
        let (_, tooltip) = text.split_once("<title>").unwrap();
        let (tooltip, _) = tooltip.split_once("</title>").unwrap();
        let (_, samples) = tooltip
            .lines()
            .find_map(|it| it.rsplit_once(" % · "))
            .unwrap();
        let samples: u64 = samples.split(' ').next().unwrap().parse().unwrap();
        let is_frame = text.starts_with('l') || text.starts_with("plumbing");
        let name = tooltip.lines().next().unwrap().to_owned();
        let x = value(text, "x");
        boxes.push((
            name,
            samples,
            is_frame,
            value(text, "y"),
            x..x + value(text, "width"),
        ));
    }
    let mut functions = Functions::new();
    for (name, samples, _, y, place) in boxes.iter().filter(|(_, _, is_frame, ..)| *is_frame) {
        let below = boxes.iter().filter(|(_, _, _, row, inside)| {
            *row == y + 19.0 && inside.start > place.start - 1e-3 && inside.end < place.end + 1e-3
        });
        let below: u64 = below.map(|(_, samples, ..)| samples).sum();
        let (own, total) = functions.entry(name.clone()).or_default();
        *own += samples - below;
        *total += samples;
    }
    functions
}

fn unzipped(content: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    let mut gzip = flate2::read::GzDecoder::new(content);
    gzip.read_to_end(&mut plain).unwrap();
    plain
}

/// All, a route, threads of a pool, a function, a time, a process, and frames of a language.
fn selections() -> Vec<Selection> {
    let selection = |change: &dyn Fn(&mut Selection)| {
        let mut selection = Selection::default();
        change(&mut selection);
        selection
    };
    let after = |samples: u64| Some(Moment::AfterStart(samples * shop::PERIOD));
    vec![
        Selection::default(),
        selection(&|it| {
            it.attributes.push(AttributeFilter {
                name: "http.route".to_owned(),
                condition: Condition::Is("/cart".to_owned()),
            });
        }),
        selection(&|it| it.threads.push(ThreadFilter::Name("worker-2".to_owned()))),
        selection(&|it| it.functions.push("syscall".to_owned())),
        selection(&|it| it.time = Some((after(2), after(9)))),
        selection(&|it| it.processes.push(9)),
        selection(&|it| it.languages.push("native".to_owned())),
        // What selects is not always what is shown.
        selection(&|it| {
            it.functions.push("syscall".to_owned());
            it.languages.push("native".to_owned());
        }),
    ]
}

struct Recording(PathBuf);

impl Recording {
    fn new() -> Self {
        let name = format!("otelctx-conversions-{}.otlp", std::process::id());
        let path = std::env::temp_dir().join(name);
        shop::profile()
            .write_file(&path, &Options::default())
            .unwrap();
        Self(path)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn functions_have_equal_numbers_in_every_format() {
    let recording = Recording::new();
    let input = Input::recording(&recording.0);
    for (index, selection) in selections().into_iter().enumerate() {
        let mut options = ReportOptions::by(&[]);
        options.selection = selection.clone();
        let report = Report::read(&input, &options).unwrap();
        let expected = of_report(&report);
        assert!(!expected.is_empty(), "{index}");
        let mut options = Options::default();
        options.with_plumbing = true;
        let content = |format| {
            let content = converted(&input, &selection, format, &options);
            content.unwrap().unwrap()
        };
        assert_eq!(of_folded(&content(Format::Folded)), expected, "{index}");
        assert_eq!(
            of_speedscope(&content(Format::Speedscope)),
            expected,
            "{index}"
        );
        assert_eq!(of_firefox(&content(Format::Firefox)), expected, "{index}");
        assert_eq!(
            of_flame_graph(&content(Format::FlameGraph)),
            expected,
            "{index}"
        );
        for format in [Format::Otlp, Format::Pprof] {
            let content = content(format);
            let again = Input::read_once(&content[..], Path::new("again")).unwrap();
            let again = Report::read(&again, &ReportOptions::by(&[])).unwrap();
            assert_eq!(of_report(&again), expected, "{index} {format:?}");
            assert_eq!(again.total, report.total, "{index} {format:?}");
        }
    }
}

/// Names of a page's attribute, and its values, from the facts that it has for its script.
fn routes(page: &str) -> (String, Vec<String>) {
    let facts = page.split_once("id=\"facts\">").unwrap().1;
    let facts: Value = serde_json::from_str(facts.split_once("</script>").unwrap().0).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let routes = facts["routes"].as_array().unwrap().iter().map(text);
    (text(&facts["by"]), routes.collect())
}

#[test]
fn a_page_is_divided_by_nothing_if_nothing_is_asked_for() {
    let recording = Recording::new();
    let input = Input::recording(&recording.0);
    let pages = |by: &[&str]| {
        let mut options = Options::default();
        options.by = by.iter().map(|it| (*it).to_owned()).collect();
        let read = converted(&input, &Selection::default(), Format::Page, &options);
        let mut written = Vec::new();
        shop::profile()
            .write(Format::Page, &options, &mut written)
            .unwrap();
        [read.unwrap().unwrap(), written].map(|it| routes(&String::from_utf8(it).unwrap()))
    };
    for page in pages(&[]) {
        assert_eq!(page, (String::new(), Vec::new()));
    }
    let by_route = ["/cart", "/pay"].map(str::to_owned).to_vec();
    for page in pages(&["http.route"]) {
        assert_eq!(page, ("http.route".to_owned(), by_route.clone()));
    }
}

/// A flame graph does the same; tables and folded stacks have each thread.
#[test]
fn a_page_joins_the_threads_of_a_pool() {
    let recording = Recording::new();
    let mut options = Options::default();
    options.by = vec!["thread".to_owned()];
    let input = Input::recording(&recording.0);
    let page = converted(&input, &Selection::default(), Format::Page, &options);
    let (by, mut threads) = routes(&String::from_utf8(page.unwrap().unwrap()).unwrap());
    threads.sort_unstable();
    assert_eq!(by, "thread");
    assert_eq!(threads, ["other;x", "worker-*"]);
}

/// What a format shows in any case divides no file of a recorder.
#[test]
fn files_are_not_divided_by_what_they_show_anyway() {
    for format in [
        Format::Folded,
        Format::FlameGraph,
        Format::Page,
        Format::Firefox,
    ] {
        let written = |by: &[&str]| {
            let mut options = Options::default();
            options.by = by.iter().map(|it| (*it).to_owned()).collect();
            let mut written = Vec::new();
            shop::profile()
                .write(format, &options, &mut written)
                .unwrap();
            written
        };
        let all = [
            "service",
            "process",
            "thread",
            "trace",
            "function",
            "file",
            "line",
            "http.route",
        ];
        let shown: &[&str] = match format {
            Format::Folded => &["function", "file", "line"],
            Format::Firefox => &all[..7],
            _ => &["service", "function", "file", "line"],
        };
        let others: Vec<&str> = all
            .into_iter()
            .filter(|name| !shown.contains(name))
            .collect();
        assert!(written(&all) == written(&others), "{format:?}");
        for name in all {
            assert_eq!(
                format.has_level(name),
                shown.contains(&name),
                "{format:?} {name}"
            );
        }
    }
}

/// OTLP has the thread's name under that of an attribute, by which `--by` may ask for it.
#[test]
fn files_are_divided_by_the_attribute_of_threads() {
    let recording = Recording::new();
    let input = Input::recording(&recording.0);
    for format in [Format::Folded, Format::FlameGraph, Format::Page] {
        let by = |name: &str| {
            let mut options = Options::default();
            options.by = vec![name.to_owned()];
            let content = converted(&input, &Selection::default(), format, &options).unwrap();
            let mut written = Vec::new();
            shop::profile()
                .write(format, &options, &mut written)
                .unwrap();
            [content.unwrap(), written].map(|it| String::from_utf8(it).unwrap())
        };
        let (threads, other) = (by("thread"), by("no such attribute"));
        for ((threads, attribute), other) in threads.iter().zip(by("thread.name")).zip(other) {
            // Titles name what was asked for.
            let expected = threads
                .replace("CPU by thread<", "CPU by thread.name<")
                .replace("(no thread)", "(no thread.name)")
                .replace(r#""by":"thread""#, r#""by":"thread.name""#);
            assert_eq!(attribute, expected, "{format:?}");
            assert_ne!(*threads, other, "{format:?}");
        }
    }
    let groups = |name| {
        let report = Report::read(&input, &ReportOptions::by(&[name])).unwrap();
        report.groups
    };
    assert_eq!(groups("thread.name"), groups("thread"));
}

/// The values of several levels, outermost first, with the number of samples.
#[test]
fn files_are_divided_by_several_levels() {
    let recording = Recording::new();
    let input = Input::recording(&recording.0);
    let mut options = Options::default();
    // The second one is of the resource, and no sample has the last one.
    options.by = ["process", "container.id", "http.route", "tenant"]
        .map(str::to_owned)
        .to_vec();
    let content = |format| {
        let content = converted(&input, &Selection::default(), format, &options);
        String::from_utf8(content.unwrap().unwrap()).unwrap()
    };
    let folded = content(Format::Folded);
    let mut values: BTreeMap<String, u64> = BTreeMap::new();
    for line in folded.lines() {
        let (stack, samples) = line.rsplit_once(' ').unwrap();
        let levels: Vec<&str> = stack.split(';').take(3).collect();
        // What ends a frame is replaced.
        let levels = levels.join("  ").replace("other:x", "other;x");
        *values.entry(levels).or_default() += samples.parse::<u64>().unwrap();
    }
    let mut by = ReportOptions::by(&["process", "container.id", "http.route"]);
    let rows = |report: &Report| {
        let rows = report.groups.iter();
        let rows = rows.map(|it| (it.values.join("  "), it.cost.samples));
        rows.collect::<BTreeMap<_, _>>()
    };
    let report = Report::read(&input, &by).unwrap();
    let expected = [
        ("other;x 9  (none)  (none)", 1),
        ("shop 4711  c0ffee  (none)", 3),
        ("shop 4711  c0ffee  /cart", 7),
        ("shop 4711  c0ffee  /pay", 1),
    ];
    let expected: BTreeMap<String, u64> = expected
        .map(|(values, samples)| (values.to_owned(), samples))
        .into();
    assert_eq!(rows(&report), expected);
    assert_eq!(values, expected);
    // A flame graph has a box for each, and a page joins them.
    let graph = content(Format::FlameGraph);
    assert!(
        graph.contains("CPU by process, container.id, http.route<"),
        "{graph}"
    );
    for (values, samples) in &expected {
        let last = values
            .rsplit("  ")
            .next()
            .unwrap()
            .replace("(none)", "(no http.route)");
        let noun = if *samples == 1 { "sample" } else { "samples" };
        let end = format!(" · {samples} {noun}");
        let has_box = |name: &str| {
            graph.split("<title>").any(|text| {
                let tooltip = text.split("</title>").next().unwrap_or_default();
                tooltip.lines().next() == Some(name) && tooltip.ends_with(&end)
            })
        };
        let process = values.split("  ").next().unwrap();
        // Where there is no other value, none is shown.
        let is_alone = process == "other;x 9";
        assert_eq!(has_box(&last), !is_alone, "{values} {samples}: {graph}");
        assert!(!is_alone || has_box(process), "{values} {samples}: {graph}");
    }
    // A recorder leaves out what no sample has, too.
    let written = |format| {
        let mut bytes = Vec::new();
        shop::profile().write(format, &options, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let title = |svg: &str| {
        let (_, rest) = svg.split_once("class=\"title\"").unwrap();
        rest.lines().next().unwrap().to_owned()
    };
    assert_eq!(title(&written(Format::FlameGraph)), title(&graph));
    let written = written(Format::Folded);
    let of_shop = |text: &str| {
        let lines = text.lines().filter(|it| it.starts_with("shop 4711;"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(of_shop(&written), of_shop(&folded));
    assert_eq!(of_shop(&written).len(), 5, "{written}");
    let page = content(Format::Page);
    let facts = page.split_once("id=\"facts\">").unwrap().1;
    let facts: Value = serde_json::from_str(facts.split_once("</script>").unwrap().0).unwrap();
    assert_eq!(facts["by"], "process, container.id, http.route, tenant");
    let mut routes: Vec<&str> = facts["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it.as_str().unwrap())
        .collect();
    routes.sort_unstable();
    let expected = [
        "other;x 9, (none), (none), (none)",
        "shop 4711, c0ffee, (none), (none)",
        "shop 4711, c0ffee, /cart, (none)",
        "shop 4711, c0ffee, /pay, (none)",
    ];
    assert_eq!(routes, expected);
    // What the last level is alone.
    by.by = vec!["http.route".to_owned()];
    let report = Report::read(&input, &by).unwrap();
    options.by.clone_from(&by.by);
    let folded = converted(&input, &Selection::default(), Format::Folded, &options);
    let folded = String::from_utf8(folded.unwrap().unwrap()).unwrap();
    for (value, samples) in rows(&report) {
        let of = folded
            .lines()
            .filter(|it| it.split(';').next() == Some(&value));
        let sum: u64 = of
            .map(|it| it.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap())
            .sum();
        assert_eq!(sum, samples, "{value}");
    }
}

/// The part of pprof's `Profile` that has columns, and what it says of frames.
#[derive(Clone, PartialEq, Message)]
struct Pprof {
    #[prost(message, repeated, tag = "4")]
    locations: Vec<PprofLocation>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
    #[prost(int64, tag = "7")]
    drop_frames: i64,
    #[prost(int64, tag = "8")]
    keep_frames: i64,
    #[prost(int64, tag = "15")]
    doc_url: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLocation {
    #[prost(message, repeated, tag = "4")]
    lines: Vec<PprofLine>,
}

#[derive(Clone, PartialEq, Message)]
struct PprofLine {
    #[prost(int64, tag = "2")]
    line: i64,
    #[prost(int64, tag = "3")]
    column: i64,
}

#[test]
fn lines_have_their_columns_and_what_pprof_says_of_frames_is_kept() {
    let recording = Recording::new();
    let convert = |input: &Input, format| {
        let content = converted(input, &Selection::default(), format, &Options::default());
        unzipped(&content.unwrap().unwrap())
    };
    let places = |pprof: &Pprof| {
        let lines = pprof.locations.iter().flat_map(|it| &it.lines);
        lines
            .map(|it| (it.line, it.column))
            .collect::<BTreeSet<_>>()
    };
    let input = Input::recording(&recording.0);
    let mut bytes = convert(&input, Format::Pprof);
    let pprof = Pprof::decode(&bytes[..]).unwrap();
    let expected = [(0, 0), (7, 107), (10, 110), (20, 120), (21, 121)];
    assert_eq!(places(&pprof), expected.into());
    // A field that follows replaces the first one.
    let next = pprof.strings.len() as i64;
    let rules = ["malloc|_int_.*", "main", "https://example.org/"];
    let more = Pprof {
        strings: rules.map(str::to_owned).to_vec(),
        drop_frames: next,
        keep_frames: next + 1,
        doc_url: next + 2,
        ..Pprof::default()
    };
    bytes.extend(more.encode_to_vec());
    let again = Input::read_once(&bytes[..], Path::new("again")).unwrap();
    let again = Pprof::decode(&convert(&again, Format::Pprof)[..]).unwrap();
    let text = |index: i64| &again.strings[index as usize][..];
    let kept = [again.drop_frames, again.keep_frames, again.doc_url].map(text);
    assert_eq!(kept, rules);
    assert_eq!(places(&again), expected.into());
    let firefox: Value = serde_json::from_slice(&convert(&input, Format::Firefox)).unwrap();
    let threads = firefox["threads"].as_array().unwrap().iter();
    let frames = threads.map(|thread| &thread["frameTable"]);
    let pairs = frames.flat_map(|it| {
        let values = |name: &str| it[name].as_array().unwrap().clone().into_iter();
        let number = |value: Value| value.as_i64().unwrap_or(0);
        values("line").map(number).zip(values("column").map(number))
    });
    assert_eq!(pairs.collect::<BTreeSet<_>>(), expected.into());
}

/// The name of a process is that of its first thread, of which the samples come last here.
#[test]
fn a_process_has_one_name_in_all_formats() {
    let mut catalog = Catalog::new();
    let process = catalog.add_process(ProcessFacts {
        pid: 7,
        comm: "gunicorn".into(),
        executable: "/usr/bin/python3".into(),
        ..ProcessFacts::default()
    });
    let none = catalog.native_stack(&[]);
    let threads = [(8, "worker"), (7, "gunicorn")];
    let samples = threads.map(|(tid, name)| Sample {
        time: 1_000_000_000,
        cpu: 0,
        thread: catalog.thread(process, tid, name),
        event: Event::OnCpu,
        found: Found::Detached,
        gil: None,
        user_stack: none,
        stack_end: None,
        kernel_stack: none,
    });
    let recording = otelctx_profile::Recording {
        catalog,
        samples: samples.to_vec(),
        clock: Clock {
            start: 0,
            end: 2_000_000_000,
            start_unix: 1_700_000_000_000_000_000,
        },
        period: NonZeroU64::new(1_000_000).unwrap(),
        counts: Counts::default(),
    };
    let profile = Profile::new(recording, &mut NoSymbols);
    let directory = std::env::temp_dir().join(format!("otelctx-names-{}", std::process::id()));
    fs::create_dir_all(&directory).unwrap();
    let otlp = directory.join("profile.otlp");
    profile.write_file(&otlp, &Options::default()).unwrap();
    let input = Input::recording(&otlp);
    let report = Report::read(&input, &ReportOptions::by(&[])).unwrap();
    let services: Vec<_> = report
        .by_service
        .iter()
        .map(|(name, _)| &name[..])
        .collect();
    assert_eq!(services, ["gunicorn"]);
    for format in [Format::Folded, Format::FlameGraph, Format::Speedscope] {
        let (selection, options) = (Selection::default(), Options::default());
        let content = converted(&input, &selection, format, &options)
            .unwrap()
            .unwrap();
        let text = String::from_utf8(content).unwrap();
        assert!(text.contains("gunicorn"), "{format:?}: {text}");
        assert!(!text.contains("python3"), "{format:?}: {text}");
    }
    let folder = directory.join("parts/");
    let (selection, options) = (Selection::default(), Options::default());
    convert(&input, &selection, Format::ParquetFolder, &options, &folder).unwrap();
    let hour = folder.join("hour=2023-11-14T22");
    let parts: Vec<_> = fs::read_dir(hour)
        .unwrap()
        .map(|it| it.unwrap().file_name())
        .collect();
    assert_eq!(parts, ["service=gunicorn"]);
    fs::remove_dir_all(&directory).unwrap();
}
