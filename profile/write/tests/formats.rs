//! The formats for people's tools.

mod shop;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use otelctx_profile::sample::Sample;
use otelctx_profile::{Error, Format, Options, Profile};

fn written(format: Format, options: &Options) -> Vec<u8> {
    let mut bytes = Vec::new();
    shop::profile().write(format, options, &mut bytes).unwrap();
    bytes
}

fn by_route() -> Options {
    let mut options = Options::default();
    options.by = vec!["http.route".to_owned()];
    options
}

#[test]
fn folded_stacks_are_counted_from_the_root() {
    let text = |options: &Options| String::from_utf8(written(Format::Folded, options)).unwrap();
    let expected = "other;other:x;[unknown] 1\n\
        shop;worker-1;main;serve;parse 7\n\
        shop;worker-2;main 1\n\
        shop;worker-2;main;serve;do_syscall_64 2\n\
        shop;worker-2;main;serve;parse 1\n";
    assert_eq!(text(&Options::default()), expected);
    let expected = "(none);other;other:x;[unknown] 1\n\
        (none);shop;worker-2;main 1\n\
        (none);shop;worker-2;main;serve;do_syscall_64 2\n\
        /cart;shop;worker-1;main;serve;parse 6\n\
        /cart;shop;worker-2;main;serve;parse 1\n\
        /pay;shop;worker-1;main;serve;parse 1\n";
    assert_eq!(text(&by_route()), expected);
}

#[test]
fn a_flame_graph_has_the_route_at_its_root() {
    let svg = String::from_utf8(written(Format::FlameGraph, &by_route())).unwrap();
    assert!(svg.starts_with("<?xml") && svg.trim_end().ends_with("</svg>"));
    assert!(
        svg.contains(">shop and other;x: CPU by http.route<"),
        "{svg}"
    );
    let subtitle = ">12 samples at 100 Hz, 120 ms, 1.0 s from 2023-11-14 22:13:20 UTC<";
    assert!(svg.contains(subtitle), "{svg}");
    for tooltip in [
        "All\n120 ms · 100.0 % · 12 samples",
        "shop\n110 ms · 91.7 % · 11 samples",
        "/cart\n70.0 ms · 58.3 % · 7 samples",
        "parse\n/src/shop.rs:7 · native\n70.0 ms · 58.3 % · 7 samples",
        "main\n/src/shop.rs:10 · native\n70.0 ms · 58.3 % · 7 samples",
        // The kernel's entry at the end of stacks.
        "[system call]\n20.0 ms · 16.7 % · 2 samples\ncalled through up to 1 frame of plumbing",
    ] {
        assert!(
            svg.contains(&format!("<title>{tooltip}</title>")),
            "{tooltip}: {svg}"
        );
    }
    let mut options = by_route();
    options.with_plumbing = true;
    let svg = String::from_utf8(written(Format::FlameGraph, &options)).unwrap();
    assert!(svg.contains("<title>do_syscall_64\n"), "{svg}");
    // The threads of a pool are one.
    options.by = vec!["thread".to_owned()];
    let svg = String::from_utf8(written(Format::FlameGraph, &options)).unwrap();
    let pool = "<title>worker-*\n110 ms · 91.7 % · 11 samples</title>";
    assert!(svg.contains(pool), "{svg}");
}

/// What is not published is never shown as if it were.
#[test]
fn a_service_that_only_the_environment_names_is_in_parentheses() {
    for (published, name, service) in [
        (true, "cart", Some("cart")),
        (false, "cart", Some("(cart)")),
        (true, "unknown_service:shop", Some("unknown_service:shop")),
        (false, "unknown_service:shop", None),
        (true, "", None),
    ] {
        let mut recording = shop::recording();
        let shop = recording.samples[0].thread;
        let shop = recording.catalog.thread_facts(shop).process;
        let catalog = &recording.catalog;
        let of_shop = |sample: &Sample| catalog.thread_facts(sample.thread).process == shop;
        recording.samples.retain(of_shop);
        let facts = recording.catalog.process_mut(shop);
        facts.resource = vec![("service.name".into(), name.into())];
        facts.published = published;
        let profile = Profile::new(recording, &mut shop::Names);
        let written = |format| {
            let mut bytes = Vec::new();
            let options = Options::default();
            profile.write(format, &options, &mut bytes).unwrap();
            bytes
        };
        let process = service.unwrap_or("shop");
        let folded = String::from_utf8(written(Format::Folded)).unwrap();
        let first = format!("{process};");
        assert!(
            folded.lines().all(|line| line.starts_with(&first)),
            "{folded}"
        );
        let svg = String::from_utf8(written(Format::FlameGraph)).unwrap();
        // Like the page, which knows no command of a process that publishes.
        let subject = match name {
            "" => "unknown_service",
            _ => process.trim_start_matches("unknown_service:"),
        };
        assert!(svg.contains(&format!(">{subject}: CPU<")), "{svg}");
        let json: serde_json::Value =
            serde_json::from_slice(&unzipped(&written(Format::Firefox))).unwrap();
        for thread in json["threads"].as_array().unwrap() {
            assert_eq!(thread["processName"], process);
        }
        let pprof = unzipped(&written(Format::Pprof));
        // An entry of the table of strings: the field's tag, the length, and the text.
        let has = |text: &str| {
            let entry = [&[0x32, text.len() as u8], text.as_bytes()].concat();
            pprof.windows(entry.len()).any(|bytes| bytes == entry)
        };
        assert_eq!(has("service.name"), service.is_some());
        let names = ["cart", "(cart)", "unknown_service:shop"].map(Some);
        for name in names {
            assert_eq!(name.is_some_and(has), name == service, "{name:?}");
        }
    }
}

#[test]
fn an_empty_recording_is_a_picture_all_the_same() {
    let mut recording = shop::recording();
    recording.samples.clear();
    let profile = Profile::new(recording, &mut shop::Names);
    for format in [
        Format::FlameGraph,
        Format::Folded,
        Format::Firefox,
        Format::Speedscope,
        Format::Pprof,
        Format::Parquet,
    ] {
        let mut bytes = Vec::new();
        profile
            .write(format, &Options::default(), &mut bytes)
            .unwrap();
        assert_eq!(bytes.is_empty(), format == Format::Folded);
    }
}

#[test]
fn the_firefox_profiler_gets_libraries_addresses_and_inlined_functions() {
    let json = unzipped(&written(Format::Firefox, &Options::default()));
    let profile: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let libraries: Vec<_> = profile["libs"].as_array().unwrap().iter().collect();
    let shop = serde_json::json!({
        "name": "shop",
        "path": "/usr/bin/shop",
        "debugName": "shop",
        "debugPath": "/usr/bin/shop",
        "breakpadId": "0000ADDE0000000000000000000000000",
        "codeId": "dead",
        "arch": null,
    });
    assert_eq!(libraries[0], &shop);
    assert_eq!(libraries[1]["name"], "[kernel]");
    assert_eq!(libraries.len(), 2);
    let thread = &profile["threads"][1];
    let (frames, functions) = (&thread["frameTable"], &thread["funcTable"]);
    let column = |table: &serde_json::Value, name: &str, index: usize| table[name][index].clone();
    let string = |index: serde_json::Value| match index.as_u64() {
        Some(index) => profile["shared"]["stringArray"][index as usize].clone(),
        None => index,
    };
    let mut described: Vec<String> = Vec::new();
    for index in 0..frames["length"].as_u64().unwrap() as usize {
        let function = column(frames, "func", index).as_u64().unwrap() as usize;
        let resource = column(functions, "resource", function).as_i64().unwrap();
        let library = usize::try_from(resource).ok().map(|resource| {
            assert_eq!(column(&thread["resourceTable"], "type", resource), 1);
            string(column(&thread["resourceTable"], "name", resource))
        });
        described.push(format!(
            "{} {}:{} in {} line {} at {} depth {}",
            string(column(functions, "name", function)),
            string(column(functions, "fileName", function)),
            column(functions, "lineNumber", function),
            library.unwrap_or_default(),
            column(frames, "line", index),
            column(frames, "address", index),
            column(frames, "inlineDepth", index),
        ));
    }
    described.sort();
    let expected = [
        // What the thread waits for.
        r#""[asleep]" null:null in null line null at -1 depth 0"#,
        r#""do_syscall_64" "/src/shop.rs":null in "[kernel]" line null at -1 depth 0"#,
        r#""main" "/src/shop.rs":10 in "shop" line 10 at 4112 depth 0"#,
        r#""main" "/src/shop.rs":10 in "shop" line 10 at 4128 depth 0"#,
        r#""main" "/src/shop.rs":10 in "shop" line 10 at 4352 depth 0"#,
        r#""parse" "/src/shop.rs":7 in "shop" line 7 at 4480 depth 1"#,
        r#""serve" "/src/shop.rs":20 in "shop" line 20 at 4368 depth 0"#,
        r#""serve" "/src/shop.rs":20 in "shop" line 21 at 4480 depth 0"#,
    ];
    assert_eq!(described, expected);
}

#[test]
fn speedscope_gets_a_profile_with_times_for_each_thread() {
    let json = written(Format::Speedscope, &Options::default());
    let file: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let schema = "https://www.speedscope.app/file-format-schema.json";
    assert_eq!(file["$schema"], schema);
    assert_eq!(file["name"], "2 processes");
    let frame = |index: &serde_json::Value| {
        let frame = &file["shared"]["frames"][index.as_u64().unwrap() as usize];
        let place = match (frame["file"].as_str(), frame["line"].as_u64()) {
            (Some(file), Some(line)) => format!(" {file}:{line}"),
            (Some(file), None) => format!(" {file}"),
            _ => String::new(),
        };
        format!("{}{place}", frame["name"].as_str().unwrap())
    };
    let period = shop::PERIOD;
    let profile = |profile: &serde_json::Value| {
        assert_eq!(
            (&profile["type"], &profile["unit"]),
            (&"sampled".into(), &"nanoseconds".into())
        );
        assert_eq!(
            (profile["startValue"].as_u64(), profile["endValue"].as_u64()),
            (Some(0), Some(1_000_000_000))
        );
        let (stacks, weights) = (
            profile["samples"].as_array().unwrap(),
            profile["weights"].as_array().unwrap(),
        );
        let samples = stacks.iter().zip(weights).map(|(stack, weight)| {
            let stack: Vec<_> = stack.as_array().unwrap().iter().map(frame).collect();
            (stack.join(" > "), weight.as_u64().unwrap())
        });
        (
            profile["name"].as_str().unwrap().to_owned(),
            samples.collect::<Vec<_>>(),
        )
    };
    let profiles: Vec<_> = file["profiles"]
        .as_array()
        .unwrap()
        .iter()
        .map(profile)
        .collect();
    let (main, serve) = ("main /src/shop.rs:10", "serve /src/shop.rs:20");
    // The line of a function is the lowest that was sampled.
    let parse = format!("{main} > {serve} > parse /src/shop.rs:7");
    let kernel = format!("{main} > {serve} > do_syscall_64 /src/shop.rs");
    let sample = |stack: &str, nanoseconds| (stack.to_owned(), nanoseconds);
    let expected = [
        (
            "shop 4711: worker-1 4712".to_owned(),
            vec![sample(&parse, period); 7],
        ),
        (
            "shop 4711: worker-2 4713".to_owned(),
            // Before its first sample, it did not run.
            vec![
                sample("", 7 * period),
                sample(&parse, period),
                sample(&kernel, period),
                sample(&kernel, period),
                sample(main, period),
            ],
        ),
        (
            "other 9: other;x 9".to_owned(),
            vec![sample("", 12 * period), sample("[unknown]", period)],
        ),
        (
            "shop 4711: worker-2 4713, off the CPU".to_owned(),
            // A wait ends when it is sampled.
            vec![
                sample("", 11 * period - 7_000_000),
                sample("do_syscall_64 /src/shop.rs > [asleep]", 7_000_000),
            ],
        ),
    ];
    assert_eq!(profiles, expected);
}

fn unzipped(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut out)
        .unwrap();
    out
}

#[test]
fn the_firefox_profiler_gets_threads_as_tracks_and_spans_as_markers() {
    let json = unzipped(&written(Format::Firefox, &Options::default()));
    let profile: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let threads = profile["threads"].as_array().unwrap();
    let named: Vec<_> = threads
        .iter()
        .map(|thread| {
            (
                thread["name"].as_str().unwrap(),
                thread["processName"].as_str().unwrap(),
                thread["samples"]["length"].as_u64().unwrap(),
                thread["markers"]["length"].as_u64().unwrap(),
            )
        })
        .collect();
    // worker-1's samples in the order of time: span 1, 1, 2, 1, 1 (other flags), 2, then /pay.
    let expected = [
        ("worker-1", "shop", 7, 5),
        // With a wait, which is a marker of its own, and of another span than the samples before it.
        ("worker-2", "shop", 5, 4),
        // A main thread goes by its process.
        ("other", "other", 1, 0),
    ];
    assert_eq!(named, expected);
    let markers = &threads[0]["markers"]["data"];
    let text = |value: &serde_json::Value| {
        let strings = profile["shared"]["stringArray"].as_array().unwrap();
        strings[value.as_u64().unwrap() as usize]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text(&markers[0]["trace"]), "01".repeat(16));
    assert_eq!(text(&markers[1]["span"]), "02".repeat(8));
    assert_eq!(text(&markers[4]["attributes"]), "http.route=/pay");
}

/// Attributes of resources name markers, too.
#[test]
fn markers_of_spans_are_named_by_attributes_of_contexts_and_resources() {
    let mut options = Options::default();
    options.by = ["container.id", "tenant", "http.route"]
        .map(str::to_owned)
        .to_vec();
    let json = unzipped(&written(Format::Firefox, &options));
    let profile: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let names = profile["threads"][0]["markers"]["name"].as_array().unwrap();
    let texts = &profile["shared"]["stringArray"];
    let names = names
        .iter()
        .map(|it| texts[it.as_u64().unwrap() as usize].as_str().unwrap());
    let cart = "c0ffee /cart";
    assert!(
        names.clone().eq([cart, cart, cart, cart, "c0ffee /pay"]),
        "{:?}",
        names.collect::<Vec<_>>()
    );
}

/// What pprof itself makes of the file.
#[test]
fn pprof_reads_samples_with_their_labels() {
    if !nix::unistd::geteuid().is_root() {
        // go builds pprof at its first use, and keeps it for each user.
        println!("skipped: only root's tests have pprof built, which takes a minute");
        return;
    }
    let directory = Scratch::new("pprof");
    let path = directory.0.join("shop.pb.gz");
    shop::profile()
        .write_file(&path, &Options::default())
        .unwrap();
    let pprof = |arguments: &[&str]| {
        let output = Command::new("go")
            .args(["tool", "pprof", "-symbolize=none"])
            .args(arguments)
            .arg(&path)
            .output();
        let Ok(output) = output else {
            println!("skipped: there is no go, so nothing was read by pprof itself");
            return None;
        };
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Some(String::from_utf8(output.stdout).unwrap())
    };
    let Some(top) = pprof(&["-top", "-sample_index=cpu", "-unit=ms"]) else {
        return;
    };
    assert!(top.starts_with("File: shop\n"), "{top}");
    // 12 samples of 10 ms: flat and cumulated time of each function.
    let line = |name: &str| {
        let line = top
            .lines()
            .find(|line| line.ends_with(name))
            .unwrap_or_else(|| panic!("{top}"));
        let words: Vec<_> = line.split_whitespace().collect();
        (words[0].to_owned(), words[3].to_owned())
    };
    assert!(
        top.contains("Showing nodes accounting for 120ms, 100% of 120ms total"),
        "{top}"
    );
    assert_eq!(line("parse (inline)"), ("80ms".into(), "80ms".into()));
    assert_eq!(line("serve"), ("0".into(), "100ms".into()));
    assert_eq!(line("main"), ("10ms".into(), "110ms".into()));
    assert_eq!(line("do_syscall_64"), ("20ms".into(), "20ms".into()));
    let lines = pprof(&["-top", "-lines", "-sample_index=samples"]).unwrap();
    for line in [
        "8 66.67% 66.67% 8 66.67% parse /src/shop.rs:7 (inline)",
        "0 0% 100% 8 66.67% serve /src/shop.rs:21",
        "0 0% 100% 2 16.67% serve /src/shop.rs:20",
    ] {
        let mut all = lines.lines();
        let same = |it: &str| it.split_whitespace().collect::<Vec<_>>().join(" ") == line;
        assert!(all.any(same), "{line}: {lines}");
    }
    // Without ^ and $, pprof takes digits for a number.
    let focus = "-tagfocus=span_id=^0202020202020202$";
    let focused = pprof(&["-top", "-sample_index=samples", focus]).unwrap();
    assert!(
        focused.contains("Showing nodes accounting for 2, "),
        "{focused}"
    );
    let tags = pprof(&["-tags", "-sample_index=samples"]).unwrap();
    for tag in [
        "http.route: Total 8",
        "trace_id: Total 8",
        "thread: Total 12",
        "pid: Total 12",
    ] {
        assert!(tags.contains(tag), "{tag}: {tags}");
    }
}

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let entry = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = fs::read_dir(&self.0).unwrap().map(entry);
        names.map(|name| name.into_string().unwrap()).collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_is_there_whole_or_as_it_was() {
    let directory = Scratch::new("whole");
    let path = directory.0.join("a.folded");
    let profile = shop::profile();
    profile.write_file(&path, &Options::default()).unwrap();
    let first = fs::read(&path).unwrap();
    assert_eq!(first, written(Format::Folded, &Options::default()));
    profile.write_file(&path, &by_route()).unwrap();
    assert_eq!(
        fs::read(&path).unwrap(),
        written(Format::Folded, &by_route())
    );
    // Through a link, and the link stays.
    let link = directory.0.join("link.folded");
    std::os::unix::fs::symlink("a.folded", &link).unwrap();
    profile.write_file(&link, &Options::default()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(directory.names().len(), 2, "{:?}", directory.names());
}

/// Some file systems have no files without a name, and a name is taken over by renaming: a writer that is
/// killed can leave a file of its own.
#[test]
fn what_a_killed_writer_has_left_is_removed_and_nothing_else() {
    let directory = Scratch::new("left");
    let path = directory.0.join("a.folded");
    let beside = |name: &str| directory.0.join(name);
    let own = format!(".a.folded.{}", std::process::id());
    for name in [".a.folded.1", ".a.folded.4294967295", &own] {
        fs::write(beside(name), "left").unwrap();
    }
    let others = [".a.folded.", ".a.folded.x", ".a.svg.1", "a.folded.1"];
    for name in others {
        fs::write(beside(name), "another's").unwrap();
    }
    std::os::unix::fs::symlink("a.folded.1", beside(".a.folded.2")).unwrap();
    mkfifo(&beside(".a.folded.3"), Mode::S_IRWXU).unwrap();
    // A writer is active.
    let written = fs::File::create(beside(".a.folded.4")).unwrap();
    let written = Flock::lock(written, FlockArg::LockExclusiveNonblock).unwrap();
    let names = || {
        let mut names = directory.names();
        names.retain(|name| !others.contains(&&**name));
        names.sort();
        names
    };
    let profile = shop::profile();
    profile.write_file(&path, &Options::default()).unwrap();
    let kept = [".a.folded.2", ".a.folded.3", ".a.folded.4", "a.folded"];
    assert_eq!(names(), kept);
    assert_eq!(directory.names().len(), kept.len() + others.len());
    // He is killed.
    drop(written);
    profile.write_file(&path, &by_route()).unwrap();
    assert_eq!(names(), [".a.folded.2", ".a.folded.3", "a.folded"]);
}

#[test]
fn what_cannot_be_written_is_said_and_leaves_nothing() {
    let directory = Scratch::new("failing");
    let profile = shop::profile();
    let fails = |path: &Path| {
        let error = profile.write_file(path, &Options::default()).unwrap_err();
        assert!(
            matches!(&error, Error::Write { path: failed, .. } if failed == path),
            "{error:?}"
        );
        error.to_string()
    };
    let missing = fails(&directory.0.join("none/a.otlp"));
    assert!(missing.contains("No such file or directory"), "{missing}");
    // A full device, by a name with the right ending.
    let full = directory.0.join("full.svg");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    assert!(fails(&full).contains("No space left on device"));
    let taken = directory.0.join("taken.otlp");
    fs::create_dir(&taken).unwrap();
    fails(&taken);
    assert_eq!(directory.names().len(), 2, "{:?}", directory.names());
    let error = profile
        .write_file(Path::new("a.txt"), &Options::default())
        .unwrap_err();
    assert!(matches!(error, Error::Ending(_)));
}
