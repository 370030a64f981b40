//! What `report` shows of time off the CPU, in a recording of which every number is known.

use std::fs;

use otelctx_profile::sample::Event;
use otelctx_profile::{NoSymbols, Options, Profile};

use crate::questions::{ask, section};
use crate::run::{Scratch, command};

#[path = "../../../profile/write/tests/waiting/mod.rs"]
mod waiting;

/// A folder with `profile.otlp`, and with `waits.otlp`, which has no CPU time.
fn scratch(name: &str) -> Scratch {
    let scratch = Scratch::new(name);
    let write = |profile: Profile, name: &str| {
        let path = scratch.folder().join(name);
        profile.write_file(&path, &Options::default()).unwrap();
    };
    write(waiting::profile(), "profile.otlp");
    write(waiting::waits_only(), "waits.otlp");
    scratch
}

#[test]
fn report_shows_time_off_the_cpu_beside_cpu_time() {
    let scratch = scratch("waits-report");
    let ask = |arguments: &[&str]| ask(&scratch, arguments);
    let answer = ask(&["report", "profile.otlp"]);
    let lines: Vec<&str> = answer.stdout.lines().take(3).collect();
    let expected = [
        "5 samples in 1.0 s from 22:13:20 +00:00, 50 ms of CPU time, 100.0 % with a trace",
        "off the CPU: 7 ms queued and 88 ms waiting, of 7 samples; --kind waiting shows where",
        "idle: 300 ms of waiting threads without a context is hidden; --idle shows it",
    ];
    assert_eq!(lines, expected);
    assert!(
        answer
            .stdout
            .contains("\n    CPU   SHARE  QUEUED  WAITING  VALUE\n")
    );
    let expected = [
        "40 ms 80.0 % 5 ms 61 ms /cart",
        "40 ms 80.0 % cart shop.py:1",
        "10 ms 20.0 % 7 ms /report",
        "10 ms 20.0 % report shop.py:1",
        "0 0.0 % 20 ms /wait",
        "0 0.0 % 2 ms (none)",
    ];
    assert_eq!(section(&answer, "By http.route"), expected);
    let ids = ["01", "02", "03"].map(|it| it.repeat(16));
    let [cart, report, wait] = &ids;
    let expected = [
        format!("40 ms 80.0 % 5 ms 61 ms {cart} /cart"),
        format!("10 ms 20.0 % 7 ms {report} /report"),
        format!("0 0.0 % 20 ms {wait} /wait"),
    ];
    assert_eq!(section(&answer, "By trace"), expected);
    // Of one kind, it is in the first column.
    let answer = ask(&["report", "profile.otlp", "--kind", "waiting"]);
    let expected = [
        "61 ms 69.3 % /cart",
        "60 ms 68.2 % [poll for 127.0.0.1:5432 (postgres)]",
        "1 ms 1.1 % [stopped]",
        "20 ms 22.7 % /wait",
        "20 ms 22.7 % [lock held by thread 71, /cart]",
        "7 ms 8.0 % /report",
        "7 ms 8.0 % [read /var/log/x]",
    ];
    assert_eq!(section(&answer, "By http.route"), expected);
    assert!(answer.stdout.contains("\n  WAITING   SHARE  VALUE\n"));
    assert!(answer.stdout.contains("88 ms of waiting time"));
    // What threads waited for, and where: the attribute is that of waits.
    let answer = ask(&["report", "profile.otlp", "--by", "wait.reason", "--idle"]);
    let expected = [
        "300 ms 77.3 % epoll_wait",
        "300 ms 77.3 % serve shop.py:1",
        "60 ms 15.5 % poll for 127.0.0.1:5432 (postgres)",
        "60 ms 15.5 % poll",
        "20 ms 5.2 % lock held by thread 71, /cart",
        "20 ms 5.2 % wait shop.py:1",
        "7 ms 1.8 % read /var/log/x",
        "7 ms 1.8 % report shop.py:1",
        "1 ms 0.3 % (none)",
        "1 ms 0.3 % cart shop.py:1",
    ];
    assert_eq!(section(&answer, "By wait.reason"), expected);
    assert!(!answer.stdout.contains("--idle"));
    // A recording without CPU time shows what it has.
    let answer = ask(&["report", "waits.otlp"]);
    let values = section(&answer, "By http.route");
    assert_eq!(values[0], "66 ms 69.5 % 5 ms 61 ms /cart");
    assert!(
        answer
            .stdout
            .contains("\n  OFF CPU   SHARE  QUEUED  WAITING  VALUE\n")
    );
    let mut asked = command(&["report", "waits.otlp", "--kind", "running"]);
    let answer = asked.current_dir(scratch.folder()).output().unwrap();
    let hints = String::from_utf8(answer.stderr).unwrap();
    assert!(
        hints.contains("0 running, 7 ms queued and 388 ms waiting"),
        "{hints}"
    );
    assert_eq!(answer.status.code(), Some(1));
    let mut asked = command(&[
        "report",
        "profile.otlp",
        "--thread",
        "idle",
        "--kind",
        "waiting",
    ]);
    let answer = asked.current_dir(scratch.folder()).output().unwrap();
    let hints = String::from_utf8(answer.stderr).unwrap();
    assert!(
        hints.contains("300 ms of waiting threads without a context"),
        "{hints}"
    );
}

#[test]
fn json_has_the_time_by_kind() {
    let scratch = scratch("waits-json");
    let json = ask(&scratch, &["report", "profile.otlp", "--json"]).json();
    let ms = |value: &serde_json::Value| {
        ["cpu_ns", "running_ns", "queued_ns", "waiting_ns"]
            .map(|name| value[name].as_u64().unwrap() / 1_000_000)
    };
    assert_eq!(ms(&json), [50, 50, 7, 88]);
    assert_eq!(json["idle_ns"], 300_000_000);
    assert_eq!(json["idle_samples"], 3);
    assert_eq!(ms(&json["by_attribute"][0]), [40, 40, 5, 61]);
    assert_eq!(ms(&json["by_trace"][2]), [0, 0, 0, 20]);
    let json = ask(
        &scratch,
        &["report", "profile.otlp", "--json", "--kind", "queued"],
    )
    .json();
    assert_eq!(ms(&json), [7, 0, 7, 0]);
}

/// Of a span's time, what is neither running, queued nor waiting is awaited.
#[test]
fn spans_show_the_time_in_which_no_thread_worked_on_them() {
    let scratch = scratch("waits-spans");
    let span = |trace: u8, milliseconds: u64| {
        let id = format!("{trace:02x}");
        let end = waiting::START_UNIX + milliseconds * waiting::MS;
        serde_json::json!({
            "traceId": id.repeat(16), "spanId": id.repeat(8), "name": format!("GET {trace}"),
            "startTimeUnixNano": waiting::START_UNIX.to_string(), "endTimeUnixNano": end.to_string(),
        })
    };
    let spans = serde_json::json!({"resourceSpans": [
        {"scopeSpans": [{"spans": [span(1, 250), span(2, 12), span(3, 20)]}]},
    ]});
    fs::write(scratch.folder().join("spans.json"), spans.to_string()).unwrap();
    let answer = ask(
        &scratch,
        &["report", "profile.otlp", "--spans", "spans.json"],
    );
    let ids = ["01", "02", "03"].map(|it| it.repeat(16));
    let [cart, report, wait] = &ids;
    let expected = [
        format!("250.0 ms 40 ms 16.0 % 5 ms 61 ms 144.0 ms 22:13:20 {cart} GET 1"),
        format!("20.0 ms 0 20 ms 0.0 ms 22:13:20 {wait} GET 3"),
        // More than it took: samples have an error.
        format!("12.0 ms 10 ms 83.3 % 7 ms 0.0 ms 22:13:20 {report} GET 2"),
        "awaited: no thread worked on it; the least, if several did at once".to_owned(),
    ];
    assert_eq!(section(&answer, "By trace, the slowest first"), expected);
    let arguments = ["report", "profile.otlp", "--spans", "spans.json", "--json"];
    let json = ask(&scratch, &arguments).json();
    assert_eq!(json["spans"]["traces"][0]["awaited_ns"], 144_000_000);
    assert_eq!(json["spans"]["spans"][0]["waiting_ns"], 61_000_000);
    // Of one kind, the rest is unknown.
    let arguments = [&arguments[..], &["--kind", "running"]].concat();
    let json = ask(&scratch, &arguments).json();
    assert!(json["spans"]["traces"][0].get("awaited_ns").is_none());
}

#[test]
fn recordings_are_compared_by_kind() {
    let scratch = scratch("waits-compare");
    let mut recording = waiting::recording();
    // Eighteen further waits of /cart for the database.
    let is_poll =
        |event: &Event| matches!(event, Event::OffCpu(off) if off.nanoseconds == 30 * waiting::MS);
    let wait = recording.samples.iter().find(|it| is_poll(&it.event));
    let wait = *wait.unwrap();
    recording.samples.extend([wait; 18]);
    let slower = Profile::new(recording, &mut NoSymbols);
    let path = scratch.folder().join("slower.otlp");
    slower.write_file(&path, &Options::default()).unwrap();
    let answer = ask(&scratch, &["report", "profile.otlp", "slower.otlp"]);
    let heads = ["", ": time in the queue for a CPU", ": waiting time"];
    let heads = heads.map(|it| format!("By http.route{it}"));
    let heads = heads.each_ref().map(|head| section(&answer, head));
    let first = heads.each_ref().map(|rows| &rows[0][..]);
    let expected = [
        "40.0 ms 40.0 ms none /cart",
        "28.6 % 28.6 % none (none)",
        "61.0 ms 601.0 ms +540.0 ms /cart",
    ];
    assert_eq!(first, expected);
    let json = ask(
        &scratch,
        &["report", "profile.otlp", "slower.otlp", "--json"],
    )
    .json();
    let kinds = json.as_array().unwrap().iter();
    let kinds: Vec<&str> = kinds.map(|row| row["kind"].as_str().unwrap()).collect();
    let count = |kind| kinds.iter().filter(|it| **it == kind).count();
    assert_eq!(["running", "queued", "waiting"].map(count), [2, 2, 3]);
}
