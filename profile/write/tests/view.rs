//! Recordings that are selected, grouped and converted.

mod shop;

use std::fs;
use std::path::PathBuf;

use otelctx_profile::report::{
    AttributeFilter, Condition, Cost, Moment, Report, ReportOptions, Selection, ThreadFilter,
    TimeKind,
};
use otelctx_profile::{Format, Input, Options, convert, load};

fn content() -> Vec<u8> {
    let mut content = Vec::new();
    let options = Options::default();
    let written = shop::profile().write(Format::Otlp, &options, &mut content);
    written.unwrap();
    content
}

fn by(names: &[&str]) -> ReportOptions {
    ReportOptions::by(names)
}

fn of(options: &ReportOptions) -> Report {
    Report::of(&content(), options).unwrap()
}

/// The number of samples of a selection.
fn selected(change: impl FnOnce(&mut Selection)) -> u64 {
    let mut options = by(&[]);
    change(&mut options.selection);
    let report = of(&options);
    assert_eq!(
        report.total.nanoseconds,
        report.total.samples * shop::PERIOD
    );
    report.total.samples
}

#[test]
fn each_condition_selects_its_samples() {
    let attribute = |name: &str, condition| {
        let filter = AttributeFilter {
            name: name.to_owned(),
            condition,
        };
        selected(|it| it.attributes.push(filter))
    };
    let text = |text: &str| text.to_owned();
    assert_eq!(attribute("http.route", Condition::Is(text("/cart"))), 7);
    assert_eq!(attribute("http.route", Condition::IsNot(text("/cart"))), 5);
    assert_eq!(attribute("http.route", Condition::StartsWith(text("/"))), 8);
    assert_eq!(
        attribute("http.route", Condition::StartsWith(text("/p"))),
        1
    );
    assert_eq!(attribute("http.route", Condition::IsPresent), 8);
    assert_eq!(attribute("http.method", Condition::IsPresent), 0);
    // Of the resource.
    assert_eq!(attribute("service.name", Condition::Is(text("shop"))), 11);
    assert_eq!(attribute("process.pid", Condition::Is(text("9"))), 1);
    assert_eq!(selected(|it| it.traces.push([1; 16])), 8);
    assert_eq!(selected(|it| it.traces.push([2; 16])), 0);
    let thread = |filter| selected(|it| it.threads.push(filter));
    assert_eq!(thread(ThreadFilter::Name(text("worker-1"))), 7);
    assert_eq!(thread(ThreadFilter::Name(text("worker-*"))), 11);
    assert_eq!(thread(ThreadFilter::Name(text("worker"))), 0);
    assert_eq!(thread(ThreadFilter::Id(4713)), 4);
    assert_eq!(selected(|it| it.processes.push(4711)), 11);
    assert_eq!(selected(|it| it.processes.extend([4711, 9])), 12);
    assert_eq!(selected(|it| it.functions.push(text("pars"))), 8);
    assert_eq!(selected(|it| it.functions.push(text("shop.rs"))), 11);
    assert_eq!(selected(|it| it.kinds.push(TimeKind::Queued)), 0);
}

/// Samples on and off a CPU: eight of twelve and none of one have the function.
#[test]
fn samples_of_a_profile_are_kept_by_function() {
    let mut profile = shop::profile();
    let of = |texts: &[&str]| texts.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(profile.keep_functions(&of(&["PARS", "no such"])), 5);
    assert_eq!(profile.len(), 8);
    let sum: usize = profile.groups().map(|group| group.samples.len()).sum();
    assert_eq!(sum, 8);
    assert_eq!(profile.keep_functions(&of(&["shop.rs"])), 0);
    assert_eq!(profile.keep_functions(&of(&["no such"])), 8);
    assert!(profile.is_empty());
}

#[test]
fn frames_of_a_profile_are_kept_by_language() {
    let folded = |languages: &[&str]| {
        let mut profile = shop::profile();
        let languages: Vec<String> = languages.iter().map(ToString::to_string).collect();
        profile.keep_languages(&languages);
        assert_eq!(profile.len(), 13);
        let mut content = Vec::new();
        let options = Options::default();
        profile
            .write(Format::Folded, &options, &mut content)
            .unwrap();
        String::from_utf8(content).unwrap()
    };
    let whole = folded(&["native", "kernel"]);
    assert!(whole.contains("main;serve;do_syscall_64 2\n"), "{whole}");
    let native = folded(&["native"]);
    assert!(native.contains("main;serve 2\n"), "{native}");
    assert!(native.contains("main;serve;parse 7\n"), "{native}");
    assert!(!native.contains("do_syscall_64"), "{native}");
    // A stack without frames is that of its thread alone.
    assert!(folded(&["kernel"]).contains("do_syscall_64 2\n"));
}

#[test]
fn all_conditions_must_hold() {
    let both = selected(|it| {
        it.threads.push(ThreadFilter::Id(4713));
        it.attributes.push(AttributeFilter {
            name: "http.route".to_owned(),
            condition: Condition::IsPresent,
        });
    });
    assert_eq!(both, 1);
}

#[test]
fn a_time_ends_before_its_last_moment() {
    let time = |from, to| selected(|it| it.time = Some((from, to)));
    let after = |samples: u64| Some(Moment::AfterStart(samples * shop::PERIOD));
    assert_eq!(time(after(2), after(5)), 3);
    assert_eq!(time(None, after(5)), 5);
    // The sample off-CPU is not of this kind of time.
    assert_eq!(time(after(5), None), 7);
    let unix = |samples: u64| Some(Moment::Unix(shop::START_UNIX + samples * shop::PERIOD));
    assert_eq!(time(unix(2), after(5)), 3);
    assert_eq!(time(after(5), after(2)), 0);
    assert_eq!(time(after(1000), None), 0);
}

#[test]
fn time_off_cpu_is_another_kind() {
    let mut options = by(&["http.route"]);
    options.selection.kinds.push(TimeKind::Waiting);
    let report = of(&options);
    let expected = Cost {
        samples: 1,
        nanoseconds: 7_000_000,
    };
    assert_eq!(report.total, expected);
    assert_eq!(report.groups[0].values, ["/cart"]);
    options.selection.kinds.push(TimeKind::Running);
    assert_eq!(of(&options).total.samples, 13);
}

fn groups(names: &[&str]) -> Vec<(String, u64)> {
    let groups = of(&by(names)).groups;
    let groups = groups.into_iter();
    groups
        .map(|it| (it.values.join(" "), it.cost.samples))
        .collect()
}

#[test]
fn samples_are_grouped_by_several_levels() {
    let own = |rows: &[(&str, u64)]| -> Vec<(String, u64)> {
        rows.iter()
            .map(|(name, samples)| ((*name).to_owned(), *samples))
            .collect()
    };
    let expected = own(&[
        ("worker-1 /cart", 6),
        ("worker-2 (none)", 3),
        ("other;x (none)", 1),
        ("worker-1 /pay", 1),
        ("worker-2 /cart", 1),
    ]);
    assert_eq!(groups(&["thread", "http.route"]), expected);
    assert_eq!(groups(&["service"]), own(&[("shop", 11), ("other;x", 1)]));
    assert_eq!(
        groups(&["process"]),
        own(&[("shop 4711", 11), ("other;x 9", 1)])
    );
    let trace = "01".repeat(16);
    assert_eq!(groups(&["trace"]), own(&[(&trace, 8), ("(none)", 4)]));
    let expected = own(&[
        ("parse", 8),
        ("do_syscall_64", 2),
        ("[unknown]", 1),
        ("main", 1),
    ]);
    assert_eq!(groups(&["function"]), expected);
    let expected = own(&[
        ("/src/shop.rs:7", 8),
        ("/src/shop.rs:0", 2),
        ("(none)", 1),
        ("/src/shop.rs:10", 1),
    ]);
    assert_eq!(groups(&["line"]), expected);
    // Of the resource.
    assert_eq!(
        groups(&["container.id"]),
        own(&[("c0ffee", 11), ("(none)", 1)])
    );
    assert_eq!(groups(&[]), own(&[("", 12)]));
}

#[test]
fn functions_have_their_files_and_each_group_has_its_own() {
    let mut options = by(&["http.route"]);
    options.detailed_groups = 2;
    options.functions_of_group = 2;
    options.by_total = true;
    let report = of(&options);
    let shown = |group: usize| -> Vec<(String, u64, u64)> {
        let functions = report.groups[group].functions.iter();
        functions
            .map(|(function, cost)| {
                let place = format!("{} {}:{}", function.name, function.file, function.line);
                (place, cost.own.samples, cost.total.samples)
            })
            .collect()
    };
    let row = |place: &str, own, total| (place.to_owned(), own, total);
    let parse = row("parse /src/shop.rs:7", 7, 7);
    assert_eq!(shown(0), [parse, row("main /src/shop.rs:10", 0, 7)]);
    assert_eq!(report.groups[0].traces, 1);
    // Of the second, and not of the third.
    assert_eq!(shown(1).len(), 2);
    assert_eq!(report.groups[2].functions, []);
}

#[test]
fn plumbing_is_left_out_and_its_time_is_kept() {
    let mut options = by(&[]);
    options.with_plumbing = false;
    let report = of(&options);
    let functions = report.by_function.iter();
    let functions: Vec<_> = functions
        .map(|(it, cost)| (&it.name[..], cost.own.samples, cost.total.samples))
        .collect();
    // One box stands for the kernel's entry at the end of stacks.
    let expected = [
        ("parse", 8, 8),
        ("[system call]", 2, 2),
        ("main", 1, 11),
        ("[unknown]", 1, 1),
        ("serve", 0, 10),
    ];
    assert_eq!(functions, expected);
    options.selection.languages = vec!["kernel".to_owned()];
    options.with_plumbing = true;
    let report = of(&options);
    let names: Vec<_> = report
        .by_function
        .iter()
        .map(|(it, _)| &it.name[..])
        .collect();
    assert_eq!(names, ["do_syscall_64"]);
}

#[test]
fn a_tree_has_callers_above_callees_or_below() {
    let shown = |nodes: &[otelctx_profile::report::TreeNode]| -> Vec<String> {
        let nodes = nodes.iter();
        nodes
            .map(|node| {
                let (own, total) = (node.cost.own.samples, node.cost.total.samples);
                format!(
                    "{}{} {total} {own}",
                    " ".repeat(node.depth),
                    node.function.name
                )
            })
            .collect()
    };
    let mut options = by(&[]);
    options.with_tree = true;
    let report = of(&options);
    let expected = [
        "main 11 1",
        " serve 10 0",
        "  parse 8 8",
        "  do_syscall_64 2 2",
        "[unknown] 1 1",
    ];
    assert_eq!(shown(&report.tree), expected);
    assert_eq!(shown(&report.callers), [""; 0]);
    options.selection.functions.push("serve".to_owned());
    let report = of(&options);
    let expected = ["serve 10 0", " parse 8 8", " do_syscall_64 2 2"];
    assert_eq!(shown(&report.tree), expected);
    assert_eq!(shown(&report.callers), ["serve 10 0", " main 10 10"]);
}

#[test]
fn a_trace_has_its_times_and_threads() {
    let report = of(&by(&[]));
    let [trace] = &report.by_trace[..] else {
        panic!("{:?}", report.by_trace)
    };
    assert_eq!(trace.first, shop::START_UNIX);
    // The last one is off the CPU.
    assert_eq!(trace.last, shop::START_UNIX + 11 * shop::PERIOD);
    assert_eq!(trace.threads, 2);
}

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("otelctx-view-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The stacks of a file are those of the samples.
#[test]
fn a_recording_becomes_any_format() {
    let folder = Folder::new("formats");
    let otlp = folder.path("a.otlp");
    fs::write(&otlp, content()).unwrap();
    let input = Input::recording(&otlp);
    let mut options = Options::default();
    options.by = vec!["http.route".to_owned()];
    let mut selection = Selection::default();
    // OTLP has no command name of the other one.
    selection.processes.push(4711);
    let converted = |format: Format| {
        let path = folder.path("b").with_extension(&format.extension()[1..]);
        convert(&input, &selection, format, &options, &path).unwrap();
        String::from_utf8(fs::read(&path).unwrap()).unwrap()
    };
    let mut expected = Vec::new();
    let profile = shop::profile();
    profile
        .write(Format::Folded, &options, &mut expected)
        .unwrap();
    let expected = String::from_utf8(expected).unwrap();
    let of_shop: String = expected
        .split_inclusive('\n')
        .filter(|line| line.contains(";shop;"))
        .collect();
    assert_eq!(converted(Format::Folded), of_shop);
    let svg = converted(Format::FlameGraph);
    let tooltip = "<title>parse\n/src/shop.rs:7 · native\n70.0 ms · 63.6 % · 7 samples</title>";
    assert!(svg.contains(tooltip), "{svg}");
    assert!(converted(Format::Page).starts_with("<!doctype html>"));
}

/// Everything that a report says is the same after a way through the formats that can keep it.
#[test]
fn reports_are_equal_in_all_formats() {
    let folder = Folder::new("reports");
    let otlp = folder.path("a.otlp");
    fs::write(&otlp, content()).unwrap();
    let options = by(&["http.route"]);
    let expected = Report::read(&Input::recording(&otlp), &options).unwrap();
    for name in ["b.otlp", "b.pb.gz"] {
        let path = folder.path(name);
        let format = Format::from_path(&path).unwrap();
        let input = Input::recording(&otlp);
        convert(
            &input,
            &Selection::default(),
            format,
            &Options::default(),
            &path,
        )
        .unwrap();
        let report = Report::read(&Input::recording(&path), &options).unwrap();
        assert_eq!(report.total, expected.total, "{name}");
        assert_eq!(report.with_trace, expected.with_trace, "{name}");
        assert_eq!(report.groups, expected.groups, "{name}");
        let functions = |report: &Report| -> Vec<_> {
            let functions = report.by_function.iter();
            functions
                .map(|(it, cost)| (it.name.clone(), it.file.clone(), *cost))
                .collect()
        };
        assert_eq!(functions(&report), functions(&expected), "{name}");
        assert_eq!(report.start, expected.start, "{name}");
        assert_eq!(report.duration, expected.duration, "{name}");
    }
    let path = folder.path("b.otlp");
    let report = Report::read(&Input::recording(&path), &options).unwrap();
    assert_eq!(report, expected);
}

#[test]
fn further_parts_of_a_recording_belong_to_it() {
    let folder = Folder::new("parts");
    let samples = |name: &str| {
        let input = Input::recording(&folder.path(name));
        Report::read(&input, &by(&[])).unwrap().total.samples
    };
    for name in ["a.otlp", "a.2.otlp", "a.3.otlp", "a.5.otlp", "b.otlp"] {
        fs::write(folder.path(name), content()).unwrap();
    }
    assert_eq!(samples("a.otlp"), 36);
    assert_eq!(samples("a.2.otlp"), 12);
    assert_eq!(samples("b.otlp"), 12);
    let both =
        Input::recording(&folder.path("b.otlp")).and(Input::recording(&folder.path("a.otlp")));
    assert_eq!(Report::read(&both, &by(&[])).unwrap().total.samples, 48);
}

#[test]
fn folded_stacks_have_numbers_of_samples() {
    let text = "main;serve;parse 3\nmain;serve 1\n\nmain;a b;c 2\n";
    let report = Report::of(text.as_bytes(), &by(&["function"])).unwrap();
    let expected = Cost {
        samples: 6,
        nanoseconds: 0,
    };
    assert_eq!(report.total, expected);
    let functions = report.by_function.iter();
    let functions: Vec<_> = functions
        .map(|(it, cost)| (&it.name[..], cost.own.samples, cost.total.samples))
        .collect();
    let expected = [
        ("parse", 3, 3),
        ("c", 2, 2),
        ("serve", 1, 4),
        ("main", 0, 6),
        ("a b", 0, 2),
    ];
    assert_eq!(functions, expected);
}

/// `perf record -e cpu-clock -F 100 -g`, then `perf script`, shortened.
#[test]
fn the_output_of_perf_script_is_read() {
    let text = "\
python3  4711/4712  [001]     1.500000:   10000000 cpu-clock:ppp: 
\t    5581 PyDict_GetItem+0x1a (/usr/bin/python3.12)
\t    7f10 [unknown] (/usr/lib/libc.so.6)
\tffffffff81 do_syscall_64+0x5 ([kernel.kallsyms])

my app  4713/4713  [000]     2.500000:   10000000 cpu-clock:ppp: 
\t    5581 PyDict_GetItem+0x22 (/usr/bin/python3.12)
";
    let report = Report::of(text.as_bytes(), &by(&["process"])).unwrap();
    assert_eq!(report.total.samples, 2);
    assert_eq!(report.total.nanoseconds, 20_000_000);
    let groups: Vec<_> = report
        .groups
        .iter()
        .map(|it| (&it.values[0][..], it.cost.samples))
        .collect();
    assert_eq!(groups, [("my app 4713", 1), ("python3 4711", 1)]);
    let functions = report.by_function.iter();
    let functions: Vec<_> = functions
        .map(|(it, cost)| (&it.name[..], &it.kind[..], cost.own.samples))
        .collect();
    let expected = [
        ("PyDict_GetItem", "native", 2),
        ("/usr/lib/libc.so.6", "native", 0),
        ("do_syscall_64", "kernel", 0),
    ];
    assert_eq!(functions, expected);
    assert_eq!(report.duration, 1_000_000_001);
}

/// Wherever a recording is cut or damaged, it is read or refused, and nothing panics.
#[test]
fn damaged_recordings_are_refused() {
    let whole = content();
    let options = by(&["http.route", "thread", "line"]);
    for position in 0..whole.len() {
        for change in [1, 0x7f, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[position] ^= change;
            let report = Report::of(&damaged, &options);
            let loaded = load(&damaged, &options.selection);
            // A sample may stand for more than any format can have.
            assert!(report.is_ok() || loaded.is_err(), "{position} {change}");
        }
    }
}

/// A profile for pprof without a number of samples, of another producer.
fn pprof_of_times() -> Vec<u8> {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    struct Numbers {
        #[prost(int64, tag = "1")]
        one: i64,
        #[prost(int64, tag = "2")]
        two: i64,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        locations: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        values: Vec<i64>,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Location {
        #[prost(uint64, tag = "1")]
        id: u64,
        #[prost(message, repeated, tag = "4")]
        lines: Vec<Numbers>,
    }
    #[derive(Clone, PartialEq, Message)]
    struct Profile {
        #[prost(message, repeated, tag = "1")]
        types: Vec<Numbers>,
        #[prost(message, repeated, tag = "2")]
        samples: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        locations: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        functions: Vec<Numbers>,
        #[prost(string, repeated, tag = "6")]
        strings: Vec<String>,
    }
    let location = |id: u64| Location {
        id,
        lines: vec![Numbers {
            one: id as i64,
            two: 7,
        }],
    };
    let sample = |location: u64, milliseconds: i64| Sample {
        locations: vec![location],
        values: vec![milliseconds * 1_000_000],
    };
    Profile {
        types: vec![Numbers { one: 1, two: 2 }],
        samples: vec![sample(1, 3000), sample(2, 1000)],
        locations: vec![location(1), location(2)],
        functions: vec![Numbers { one: 1, two: 3 }, Numbers { one: 2, two: 4 }],
        strings: ["", "cpu", "nanoseconds", "a", "b"]
            .map(str::to_owned)
            .to_vec(),
    }
    .encode_to_vec()
}

/// The shares of functions, in percent, of a file in each format that it is converted to.
fn shares_in_all_formats(name: &str, content: &[u8], expected: [(&str, u64); 2]) {
    let folder = Folder::new(name);
    let path = folder.path(name);
    fs::write(&path, content).unwrap();
    let mut inputs = vec![path.clone()];
    for format in ["b.otlp", "b.pb.gz", "b.folded"] {
        let to = folder.path(format);
        let input = Input::recording(&path);
        let format = Format::from_path(&to).unwrap();
        convert(
            &input,
            &Selection::default(),
            format,
            &Options::default(),
            &to,
        )
        .unwrap();
        inputs.push(to);
    }
    for path in inputs {
        let report = Report::read(&Input::recording(&path), &by(&[])).unwrap();
        let (time, samples) = report.total.size();
        let share = |cost: &Cost| match time {
            0 => cost.samples * 100 / samples,
            time => cost.nanoseconds * 100 / time,
        };
        let functions = report.by_function.iter();
        let found = functions.filter(|(_, cost)| cost.own.samples > 0);
        let found: Vec<_> = found
            .map(|(it, cost)| (&it.name[..], share(&cost.own)))
            .collect();
        assert_eq!(found, expected, "{}", path.display());
    }
}

#[test]
fn shares_are_the_same_in_every_format() {
    shares_in_all_formats("a.pb", &pprof_of_times(), [("a", 75), ("b", 25)]);
    shares_in_all_formats("a.folded", b"m;a 300\nm;b 100\n", [("a", 75), ("b", 25)]);
    let perf = "\
x 1/1 [000] 1.0: 30000000 cpu-clock: \n\t 10 a (/x)\n
x 1/1 [000] 2.0: 10000000 cpu-clock: \n\t 20 b (/x)\n";
    shares_in_all_formats("a.txt", perf.as_bytes(), [("a", 75), ("b", 25)]);
}

#[test]
fn a_number_of_samples_without_end_is_refused() {
    let folder = Folder::new("many");
    let path = folder.path("a.folded");
    fs::write(&path, "m;a 18446744073709551615\n").unwrap();
    let (input, selection) = (Input::recording(&path), Selection::default());
    let report = Report::read(&input, &by(&[])).unwrap();
    assert_eq!(report.total.samples, u64::MAX);
    let converted = |format, name: &str| {
        let path = folder.path(name);
        let converted = convert(&input, &selection, format, &Options::default(), &path);
        (converted, path)
    };
    let (error, pprof) = converted(Format::Pprof, "a.pb.gz");
    let error = error.unwrap_err().to_string();
    assert!(error.contains("more than 20 million samples"), "{error}");
    assert!(!pprof.exists());
    // Sums of stacks have room for them.
    let (drawn, svg) = converted(Format::FlameGraph, "a.svg");
    assert!(drawn.unwrap());
    let all = "<title>All\n100.0 % · 18,446,744,073,709,551,615 samples</title>";
    assert!(fs::read_to_string(svg).unwrap().contains(all));
}

fn zipped(content: &[u8]) -> Vec<u8> {
    let level = flate2::Compression::default();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), level);
    std::io::Write::write_all(&mut gzip, content).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn every_format_may_be_compressed() {
    let perf = "x 1/1 [000] 1.0: 30000000 cpu-clock: \n\t 10 a (/x)\n";
    let options = by(&[]);
    for plain in [
        &content()[..],
        b"m;a 3\nm;b 1\n",
        perf.as_bytes(),
        &pprof_of_times(),
    ] {
        let expected = Report::of(plain, &options).unwrap();
        assert!(expected.total.samples > 0);
        assert_eq!(Report::of(&zipped(plain), &options).unwrap(), expected);
    }
}

/// A GiB of zeros takes a MiB.
#[test]
fn what_unpacks_to_more_than_a_file_may_have_is_refused() {
    let folder = Folder::new("bomb");
    let path = folder.path("a.otlp");
    // Members one after the other, as `cat a.gz b.gz` makes them.
    let member = zipped(&vec![0; 64 << 20]);
    fs::write(&path, member.repeat(17)).unwrap();
    let error = Report::read(&Input::recording(&path), &by(&[])).unwrap_err();
    let expected = format!("{}: too large: it has more than 1024 MiB", path.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
}

#[test]
fn a_damaged_file_is_described_by_its_own_format() {
    let folder = Folder::new("damaged");
    let error = |name: &str, content: &[u8]| {
        let path = folder.path(name);
        fs::write(&path, content).unwrap();
        let error = Report::read(&Input::recording(&path), &by(&[])).unwrap_err();
        let error = error.to_string();
        let head = format!("{}: ", path.display());
        error.strip_prefix(&head).unwrap().to_owned()
    };
    let folded = format!("{}no number\n", "m;a 1\n".repeat(100));
    assert_eq!(
        error("a.folded", folded.as_bytes()),
        "not complete folded stacks: line 101 has no number of samples; a line has frames between \
        semicolons, a space and a number"
    );
    let perf = "x 1/1 [000] 1.0: 30000000 cpu-clock: \n\t 10 a (/x)\n\nnonsense\n";
    assert_eq!(
        error("a.txt", perf.as_bytes()),
        "not the complete output of perf script: line 4 names no thread and event; write it again \
        with `perf script > FILE`"
    );
    let pprof = zipped(&pprof_of_times());
    let cut = error("a.pb.gz", &pprof[..pprof.len() - 6]);
    assert_eq!(
        cut,
        "not a complete profile for pprof: its compressed data was cut off or damaged; `go tool \
        pprof -top FILE` reads it with pprof's own code"
    );
    let otlp = content();
    let cut = error("a.otlp", &otlp[..otlp.len() - 1]);
    assert!(cut.starts_with("not a complete OTLP profile: "), "{cut}");
    let json = error("a.json.gz", &zipped(b"{\"meta\": 1}"));
    assert_eq!(
        json,
        "not a profile that can be read: it is compressed JSON, as for the Firefox Profiler: load \
        it at https://profiler.firefox.com"
    );
    let text = error("a.log.gz", &zipped(b"some log\nwith lines\n"));
    assert!(
        text.starts_with("not a profile that can be read: it is a text"),
        "{text}"
    );
}

/// Each file counts once, also if it is a part of another recording and if it can be read once.
#[test]
fn recordings_that_are_added_up_count_once() {
    let folder = Folder::new("once");
    for name in ["a.otlp", "a.2.otlp", "b.otlp"] {
        fs::write(folder.path(name), content()).unwrap();
    }
    let recording = |name: &str| Input::recording(&folder.path(name));
    let samples = |input: &Input| Report::read(input, &by(&[])).unwrap().total.samples;
    let both = recording("a.otlp").and(recording("a.2.otlp"));
    assert_eq!(samples(&both), 24);
    assert_eq!(samples(&both.clone().and(recording("b.otlp"))), 36);
    let content = content();
    let once = Input::read_once(&content[..], "standard input".as_ref()).unwrap();
    assert_eq!(samples(&once.clone().and(both.clone())), 36);
    assert_eq!(samples(&both.and(once)), 36);
}

/// What is shown alike is one group, whichever way it came.
#[test]
fn the_same_value_of_context_and_resource_is_one_group() {
    use otelctx_profile::sample::format::process_context::Value;

    let mut recording = shop::recording();
    let other = recording.samples.last().unwrap().thread;
    let process = recording.catalog.thread_facts(other).process;
    let facts = recording.catalog.process_mut(process);
    facts.resource = vec![("http.route".into(), Value::from("/cart"))];
    facts.published = true;
    let mut content = Vec::new();
    let profile = otelctx_profile::Profile::new(recording, &mut shop::Names);
    profile
        .write(Format::Otlp, &Options::default(), &mut content)
        .unwrap();
    let report = Report::of(&content, &by(&["http.route"])).unwrap();
    let groups = report.groups.iter();
    let groups: Vec<_> = groups
        .map(|it| (&it.values[0][..], it.cost.samples))
        .collect();
    assert_eq!(groups, [("/cart", 8), ("(none)", 3), ("/pay", 1)]);
}

/// Sums are linear in the depth of a stack, and in the number of groups: otherwise, this would not end.
#[test]
fn deep_stacks_and_many_groups_are_summed_up() {
    let deep: Vec<String> = (0..100_000).map(|depth| format!("f{depth}")).collect();
    let text = format!("{} 1\n", deep.join(";"));
    let report = Report::of(text.as_bytes(), &by(&["function"])).unwrap();
    assert_eq!(report.by_function.len(), 100_000);
    let many: String = (0..100_000)
        .map(|number| format!("m;f{number} 1\n"))
        .collect();
    let mut options = by(&["function"]);
    options.detailed_groups = usize::MAX;
    options.functions_of_group = 1;
    let report = Report::of(many.as_bytes(), &options).unwrap();
    assert_eq!(report.groups.len(), 100_000);
    assert!(report.groups.iter().all(|group| group.functions.len() == 1));
}

#[test]
fn what_stands_for_no_time_on_a_cpu_is_named() {
    use prost::Message as _;

    let mut data =
        opentelemetry_proto::tonic::profiles::v1development::ProfilesData::decode(&content()[..])
            .unwrap();
    let strings = &mut data.dictionary.as_mut().unwrap().string_table;
    for text in strings.iter_mut() {
        match &text[..] {
            "samples" | "off_cpu" => "inuse_space".clone_into(text),
            "count" => "bytes".clone_into(text),
            _ => {}
        }
    }
    let folder = Folder::new("heap");
    let path = folder.path("a.otlp");
    fs::write(&path, data.encode_to_vec()).unwrap();
    let error = Report::read(&Input::recording(&path), &by(&[])).unwrap_err();
    let expected = "it has inuse_space in bytes, and no CPU time";
    assert!(error.to_string().contains(expected), "{error}");
}
