//! What docs/questions.md asks a recording, of which every number is known.

use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::format::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, NamedFrame, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, NoSymbols, Options, Profile, Recording};

use crate::run::{Answer, Scratch, command};

/// 2023-11-14 22:13:20 UTC.
const START: u64 = 1_700_000_000_000_000_000;
const PERIOD: u64 = 10_000_000;

fn frame(kind: FrameKind, function: &str, file: &str, line: u32) -> Frame {
    Frame::from(NamedFrame {
        kind,
        function: function.into(),
        file: file.into(),
        line,
        ..NamedFrame::default()
    })
}

/// Writes a recording of 10 s: of a shop, whose handler for /report takes `report` samples, of which
/// half are in md5, and whose handler for /cart takes 100; and of a mailer without a trace, which
/// takes 50. Each trace has ten samples, one every 10 ms: those of /cart first, then the others.
pub(crate) fn write(path: &Path, report: usize) {
    let mut catalog = Catalog::new();
    let mut process = |pid: i32, name: &str| {
        catalog.add_process(ProcessFacts {
            pid,
            comm: name.into(),
            resource: vec![("service.name".into(), Value::from(name))],
            published: true,
            ..ProcessFacts::default()
        })
    };
    let (shop, mailer) = (process(7, "shop"), process(8, "mailer"));
    let workers = [
        catalog.thread(shop, 71, "worker-1"),
        catalog.thread(shop, 72, "worker-2"),
    ];
    let main = catalog.thread(mailer, 8, "main");
    let python = |function, line| frame(FrameKind::CPYTHON, function, "shop/app.py", line);
    let native = |function| frame(FrameKind::NATIVE, function, "", 0);
    let serve = [
        native("_PyEval_Vector"),
        python("serve", 10),
        native("_start"),
    ];
    let stack = |inner: &[Frame]| [inner, &serve].concat();
    let cart = catalog.stack(&stack(&[python("cart", 20)]));
    let totals = catalog.stack(&stack(&[python("totals", 40), python("report", 30)]));
    let md5 = catalog.stack(&stack(&[native("md5"), python("report", 33)]));
    let send = catalog.stack(&[frame(FrameKind::GO, "main.send", "mail.go", 5)]);
    let empty = catalog.stack(&[]);
    let mut samples = Vec::new();
    let mut add = |thread, found, user_stack| {
        samples.push(Sample {
            time: samples.len() as u64 * PERIOD,
            cpu: 0,
            thread,
            event: Event::OnCpu,
            found,
            gil: None,
            user_stack,
            stack_end: None,
            kernel_stack: empty,
        });
    };
    let mut context = |trace: usize, route: &str| {
        let mut context = DecodedContext::default();
        context.trace_id = TraceId::from_bytes((trace as u128).to_be_bytes());
        context.span_id = SpanId::from_bytes([1; 8]);
        context.attributes = vec![("http.route".into(), route.into())];
        Found::Attached(catalog.context(&context))
    };
    for index in 0..100 {
        add(workers[0], context(1 + index / 10, "/cart"), cart);
    }
    for index in 0..report {
        let stack = if index % 2 == 0 { totals } else { md5 };
        let worker = workers[index % 10 / 5];
        add(worker, context(101 + index / 10, "/report"), stack);
    }
    for _ in 0..50 {
        add(main, Found::Detached, send);
    }
    let recording = Recording {
        catalog,
        samples,
        clock: Clock {
            start: 0,
            end: 10_000_000_000,
            start_unix: START,
        },
        period: NonZeroU64::new(PERIOD).unwrap(),
        counts: Counts::default(),
    };
    let profile = Profile::new(recording, &mut NoSymbols);
    profile.write_file(path, &Options::default()).unwrap();
}

/// Runs the command where the recording is.
pub(crate) fn ask(scratch: &Scratch, arguments: &[&str]) -> Answer {
    let mut asked = command(arguments);
    asked.current_dir(scratch.folder()).env("TZ", "UTC");
    Answer::of(asked.output().unwrap()).expect(0)
}

/// The lines of a table, with single spaces.
pub(crate) fn section(answer: &Answer, head: &str) -> Vec<String> {
    let lines = answer.stdout.lines().skip_while(|line| *line != head);
    let lines = lines.skip(2).take_while(|line| !line.is_empty());
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    lines.map(words).collect()
}

/// What a page is divided by, and its number of routes.
fn divided(page: &Path) -> (String, usize) {
    let page = std::fs::read_to_string(page).unwrap();
    let (_, facts) = page.split_once("id=\"facts\">").unwrap();
    let (facts, _) = facts.split_once("</script>").unwrap();
    let facts: serde_json::Value = serde_json::from_str(facts).unwrap();
    let routes = facts["routes"].as_array().unwrap().len();
    (facts["by"].as_str().unwrap().to_owned(), routes)
}

#[test]
fn pages_are_divided_by_what_was_asked_for() {
    let scratch = Scratch::new("divided");
    write(&scratch.folder().join("profile.otlp"), 200);
    let by_route = ("http.route".to_owned(), 2);
    let by_nothing = (String::new(), 0);
    for (by, expected) in [
        (&[][..], by_route),
        (&["--by", "none"], by_nothing.clone()),
        (&["--by", "service"], by_nothing),
    ] {
        let report = ["report", "profile.otlp", "-o", "a.html"];
        ask(&scratch, &[&report, by].concat());
        let page = scratch.folder().join("a.html");
        assert_eq!(divided(&page), expected, "report {by:?}");
        if !nix::unistd::geteuid().is_root() {
            // A browser may open the page instead.
            continue;
        }
        let viewed = ask(&scratch, &[&["view", "profile.otlp"], by].concat());
        let page = Path::new(viewed.stdout.trim_end());
        assert_eq!(divided(page), expected, "view {by:?}");
        std::fs::remove_dir_all(page.parent().unwrap()).unwrap();
    }
}

#[test]
fn questions_have_their_answers() {
    let scratch = Scratch::new("questions");
    write(&scratch.folder().join("profile.otlp"), 200);
    let ask = |arguments: &[&str]| ask(&scratch, arguments);
    // Which routes cost most, and which functions of each?
    let answer = ask(&["report"]);
    let first = "profile.otlp: 350 samples in 10.0 s from 22:13:20 +00:00, 3,500 ms of CPU time, \
        85.7 % with a trace";
    assert_eq!(answer.stdout.lines().next(), Some(first));
    let expected = [
        "2,000 ms 57.1 % /report",
        "1,000 ms 28.6 % md5",
        "1,000 ms 28.6 % totals shop/app.py:40",
        "1,000 ms 28.6 % /cart",
        "1,000 ms 28.6 % cart shop/app.py:20",
        "500 ms 14.3 % (none)",
        "500 ms 14.3 % main.send mail.go:5",
    ];
    assert_eq!(section(&answer, "By http.route"), expected);
    // Which service costs most?
    let expected = ["3,000 ms 85.7 % shop", "500 ms 14.3 % mailer"];
    assert_eq!(section(&answer, "By service"), expected);
    // Which function is slow on /report?
    let answer = ask(&["report", "--filter", "http.route=/report"]);
    let expected = [
        "1,000 ms 50.0 % 1,000 ms md5",
        "1,000 ms 50.0 % 1,000 ms totals shop/app.py:40",
        "0 0.0 % 2,000 ms report shop/app.py:30",
        "0 0.0 % 2,000 ms serve shop/app.py:10",
    ];
    assert_eq!(section(&answer, "By function"), expected);
    // What calls md5, and what does it call?
    let answer = ask(&["report", "--function", "MD5", "--tree"]);
    let expected = [
        "1,000 ms 100.0 % md5",
        "1,000 ms 100.0 % report shop/app.py:30",
        "1,000 ms 100.0 % serve shop/app.py:10",
    ];
    assert_eq!(section(&answer, "Callers"), expected);
    let expected = ["1,000 ms 100.0 % 1,000 ms md5"];
    assert_eq!(section(&answer, "Callees"), expected);
    // Which request took most CPU time, when, on how many threads?
    let answer = ask(&[
        "report",
        "--traces",
        "-n",
        "1",
        "--filter",
        "http.route=/report",
    ]);
    let id = format!("{:032x}", 101);
    let expected = [
        &format!("100 ms 5.0 % 22:13:21 100.0 ms 2 {id} /report")[..],
        "and 19 more; -n 0 shows all",
    ];
    assert_eq!(section(&answer, "By trace"), expected);
    // Which request at that time, and where?
    let answer = ask(&["report", "--traces", "--time", "22:13:22..22:13:22.1"]);
    let expected = [format!(
        "100 ms 100.0 % 22:13:22 100.0 ms 2 {:032x} /report",
        111
    )];
    assert_eq!(section(&answer, "By trace"), expected);
    let answer = ask(&["report", "--time", "+1s..+1.1s", "--by", "trace"]);
    assert_eq!(
        section(&answer, "By trace")[0],
        format!("100 ms 100.0 % {id}")
    );
    let answer = ask(&["report", "--trace", &id, "--tree", "--language", "python"]);
    let expected = [
        "100 ms 100.0 % serve shop/app.py:10",
        "100 ms 100.0 % 50 ms report shop/app.py:30",
        "50 ms 50.0 % 50 ms totals shop/app.py:40",
    ];
    assert_eq!(section(&answer, "Callees"), expected);
    // What do the pool's threads do apart from that?
    let answer = ask(&[
        "report",
        "--thread",
        "worker-*",
        "--filter",
        "http.route!=/cart",
        "--by",
        "thread,function",
        "--plumbing",
    ]);
    let values = section(&answer, "By thread, function");
    let rows = values.iter().filter(|it| it.contains(" worker-"));
    let rows: Vec<&str> = rows.map(String::as_str).collect();
    let expected = [
        "600 ms 30.0 % worker-1 totals",
        "600 ms 30.0 % worker-2 md5",
        "400 ms 20.0 % worker-1 md5",
        "400 ms 20.0 % worker-2 totals",
    ];
    assert_eq!(rows, expected);
}

/// Spans of three traces: 101 took 400 ms, of which its ten samples are 100 ms; 1 took 100.5 ms; the
/// recording never saw the other one.
fn write_spans(path: &Path) {
    let span = |trace: usize, id: u8, parent: &str, name: &str, start: u64, end: u64| {
        serde_json::json!({
            "traceId": format!("{trace:032x}"), "spanId": format!("{id:02x}").repeat(8),
            "parentSpanId": parent, "name": name,
            "startTimeUnixNano": (START + start * 1000).to_string(),
            "endTimeUnixNano": (START + end * 1000).to_string(),
        })
    };
    let line = |spans: Vec<serde_json::Value>| {
        let attributes =
            [serde_json::json!({"key": "service.name", "value": {"stringValue": "shop"}})];
        serde_json::json!({"resourceSpans": [
            {"resource": {"attributes": attributes}, "scopeSpans": [{"spans": spans}]},
        ]})
    };
    let root = "02".repeat(8);
    let lines = [
        line(vec![span(1, 1, "", "GET /cart", 0, 100_500)]),
        line(vec![
            span(101, 2, "", "GET /report", 1_000_000, 1_400_000),
            span(101, 1, &root, "totals", 1_000_000, 1_125_000),
        ]),
        line(vec![span(999, 1, "", "GET /other", 0, 9_000_000)]),
    ];
    let lines: String = lines.iter().map(|it| format!("{it}\n")).collect();
    fs::write(path, lines).unwrap();
}

/// Which request was slowest, and what of that was CPU?
#[test]
fn the_slowest_request_is_found_with_spans() {
    let scratch = Scratch::new("spans");
    write(&scratch.folder().join("profile.otlp"), 200);
    write_spans(&scratch.folder().join("spans.json"));
    let ask = |arguments: &[&str]| ask(&scratch, arguments);
    let answer = ask(&["report", "--spans", "spans.json"]);
    let slowest = format!("{:032x}", 101);
    let expected = [
        format!("400.0 ms 100 ms 25.0 % 22:13:21 {slowest} GET /report"),
        format!("100.5 ms 100 ms 99.5 % 22:13:20 {:032x} GET /cart", 1),
        "1 span of 1 trace without a selected sample".to_owned(),
    ];
    assert_eq!(section(&answer, "By trace, the slowest first"), expected);
    let answer = ask(&["report", "--traces", "--spans", "spans.json", "-n", "1"]);
    assert_eq!(
        section(&answer, "By trace, the slowest first")[1],
        "and 1 more; -n 0 shows all"
    );
    // Its spans: all of its samples are in one that is a part of the other.
    let answer = ask(&["report", "--trace", &slowest, "--spans", "spans.json"]);
    let expected = [
        "400.0 ms 100 ms 25.0 % 0 22:13:21 shop GET /report",
        "125.0 ms 100 ms 80.0 % 100 ms 22:13:21 shop totals",
        "2 spans of 2 traces without a selected sample",
    ];
    assert_eq!(section(&answer, "By span, the slowest first"), expected);
    let json = ask(&["report", "--spans", "spans.json", "--json"]).json();
    let first = &json["spans"]["traces"][0];
    assert_eq!(first["trace_id"], slowest);
    assert_eq!(
        (&first["duration_ns"], &first["cpu_ns"]),
        (&400_000_000.into(), &100_000_000.into())
    );
    assert_eq!(json["spans"]["spans"][1]["self_ns"], 100_000_000);
    assert_eq!(json["spans"]["unseen_spans"], 1);
    // In a page, and in nothing else.
    let page = |arguments: &[&str]| {
        ask(&[&["report", "-o", "page.html"], arguments].concat());
        fs::read_to_string(scratch.folder().join("page.html")).unwrap()
    };
    let (without, with) = (page(&[]), page(&["--spans", "spans.json"]));
    assert!(with.len() > without.len());
    let mut svg = command(&["report", "-o", "a.svg", "--spans", "spans.json"]);
    let answer = Answer::of(svg.current_dir(scratch.folder()).output().unwrap()).expect(2);
    assert!(
        answer.stderr.contains("only a page (.html) shows spans"),
        "{answer:?}"
    );
    fs::write(scratch.folder().join("cut.json"), "{\"resourceSpans\": [{").unwrap();
    let mut cut = command(&["report", "--spans", "cut.json"]);
    let answer = Answer::of(cut.current_dir(scratch.folder()).output().unwrap()).expect(2);
    assert!(
        answer
            .stderr
            .contains("cut.json: not a complete OTLP file of spans: it was cut off\n"),
        "{answer:?}"
    );
}

#[test]
fn what_selects_nothing_is_explained() {
    let scratch = Scratch::new("nothing");
    write(&scratch.folder().join("profile.otlp"), 20);
    let otlp = fs::read(scratch.folder().join("profile.otlp")).unwrap();
    for (selection, said) in [
        (
            ["--filter", "http.route=/nope"],
            "values of http.route: /cart, /report",
        ),
        (
            ["--filter", "http.rout=/cart"],
            "no sample has the attribute http.rout; recorded attributes: ",
        ),
        (["--thread", "nobody"], "threads: worker-1, main"),
        (["--pid", "1"], "processes: 'shop 7', 'mailer 8'"),
        (
            ["--time", "23:00..24:00"],
            "the recording starts at 22:13:20 +00:00 and lasts 10.0 s",
        ),
        (
            ["--trace", "4bf92f3577b34da6a3ce929d0e0e4736"],
            "no sample is selected",
        ),
    ] {
        for output in [&[][..], &["-o", "other.svg"]] {
            let mut asked = command(&[&["report"], &selection[..], output].concat());
            asked.current_dir(scratch.folder()).env("TZ", "UTC");
            let answer = Answer::of(asked.output().unwrap()).expect(1);
            assert!(answer.stderr.contains(said), "{said}: {answer:?}");
            assert_eq!(answer.stdout, "");
        }
        assert!(!scratch.folder().join("other.svg").exists());
    }
    // No page is left behind.
    let mut view = command(&["view", "--thread", "nobody"]);
    view.current_dir(scratch.folder())
        .env("TMPDIR", scratch.folder());
    let answer = Answer::of(view.output().unwrap()).expect(1);
    assert!(
        answer.stderr.contains("threads: worker-1, main"),
        "{answer:?}"
    );
    assert_eq!(scratch.names(), ["profile.otlp"]);
    // The recording itself is not replaced.
    for output in ["profile.otlp", "./profile.otlp"] {
        let mut refused = command(&["report", "profile.otlp", "-o", output]);
        refused.current_dir(scratch.folder());
        let answer = Answer::of(refused.output().unwrap()).expect(2);
        assert!(
            answer.stderr.contains("is the recording itself"),
            "{answer:?}"
        );
    }
    assert_eq!(
        fs::read(scratch.folder().join("profile.otlp")).unwrap(),
        otlp
    );
    let mut refused = command(&["report", "profile.otlp", "profile.otlp", "-o", "x.svg"]);
    refused.current_dir(scratch.folder());
    let answer = Answer::of(refused.output().unwrap()).expect(2);
    assert!(answer.stderr.contains("for one recording"), "{answer:?}");
}

#[test]
fn two_recordings_are_compared() {
    let scratch = Scratch::new("compared");
    write(&scratch.folder().join("a.otlp"), 200);
    write(&scratch.folder().join("b.otlp"), 400);
    let answer = ask(&scratch, &["report", "a.otlp", "b.otlp"]);
    // Each trace takes as long as before, and there are more of /report. The mailer's share is smaller
    // by more than two standard errors of 2.4 %.
    let expected = [
        "14.3 % 9.1 % -5.2 % (none)",
        "100.0 ms 100.0 ms none /cart",
        "100.0 ms 100.0 ms none /report",
    ];
    let rows = section(&answer, "By http.route");
    for row in expected {
        assert!(rows.iter().any(|it| it == row), "{row}: {rows:?}");
    }
    let answer = ask(
        &scratch,
        &["report", "a.otlp", "b.otlp", "--by", "service", "--json"],
    );
    let rows = answer.json();
    let mailer = rows
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["values"][0] == "mailer");
    let mailer = mailer.unwrap();
    assert_eq!(mailer["is_per_trace"], false);
    let round = |name: &str| (mailer["change"][name].as_f64().unwrap() * 10.0).round();
    assert_eq!((round("before"), round("after")), (143.0, 91.0));
    // 50 of 350, and 50 of 550: √50 / 350 and √50 / 550.
    assert_eq!(round("error"), 24.0);
    // Added up, they are one recording.
    let joined = ask(
        &scratch,
        &["report", "--join", "a.otlp", "b.otlp", "--json"],
    );
    assert_eq!(joined.json()["samples"], 900);
    let mut refused = command(&["report", "a.otlp", "b.otlp", "a.otlp"]);
    refused.current_dir(scratch.folder());
    let answer = Answer::of(refused.output().unwrap()).expect(2);
    assert!(answer.stderr.contains("with --join"), "{answer:?}");
}

/// Root has no browser started, and no other user can read or replace the page.
#[test]
fn view_prints_where_the_page_is_without_a_display() {
    let scratch = Scratch::new("view");
    write(&scratch.folder().join("shop.otlp"), 20);
    let mut view = command(&["view", "--filter", "http.route=/cart"]);
    view.current_dir(scratch.folder())
        .env("TMPDIR", scratch.folder());
    view.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    let answer = Answer::of(view.output().unwrap()).expect(0);
    let path = Path::new(answer.stdout.trim_end());
    assert_eq!(path.file_name().unwrap(), "shop.html");
    let directory = path.parent().unwrap();
    assert_eq!(directory.parent().unwrap(), scratch.folder());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(path), mode(directory)), (0o600, 0o700));
    let page = fs::read_to_string(path).unwrap();
    assert!(page.starts_with("<!doctype html>"));
    assert!(page.contains("100 samples"), "{}", &page[..4000]);
}

#[test]
fn a_recording_that_is_not_named_is_the_newest_here() {
    let scratch = Scratch::new("newest");
    let mut nothing = command(&["report"]);
    nothing.current_dir(scratch.folder());
    let answer = Answer::of(nothing.output().unwrap()).expect(2);
    assert!(answer.stderr.contains("no recording is here"), "{answer:?}");
    let samples = || ask(&scratch, &["report", "--json"]).json()["samples"].clone();
    let write_at = |name: &str, report: usize, seconds: u64| {
        let path = scratch.folder().join(name);
        write(&path, report);
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_modified(time)
            .unwrap();
    };
    write_at("old.otlp", 10, 1000);
    write_at("new.otlp", 20, 3000);
    fs::write(scratch.folder().join("newest.txt"), "no recording").unwrap();
    assert_eq!(samples(), 170);
    // A later part stands for the whole recording.
    write_at("old.2.otlp", 10, 5000);
    assert_eq!(samples(), 320);
    write_at("profile.otlp", 30, 2000);
    assert_eq!(samples(), 180);
}
