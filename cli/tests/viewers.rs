//! Parquet files in the engines that people query them with: every statement of docs/sql.md.

use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use otelctx_profile::sample::format::process_context::Value;
use otelctx_profile::sample::format::record::DecodedContext;
use otelctx_profile::sample::format::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Event, Found, Frame, FrameKind, NamedFrame, ProcessFacts, Sample,
};
use otelctx_profile::{Clock, NoSymbols, Options, Profile, Recording};

#[path = "../../profile/write/tests/waiting/mod.rs"]
mod waiting;

/// 2023-11-14 22:13:20 UTC.
const START: u64 = 1_700_000_000_000_000_000;
const HOUR: u64 = 3_600_000_000_000;
/// A sample stands for 10 ms.
const PERIOD: u64 = 10_000_000;

/// Runs statements in both engines. The rows come back as lines, with ` | ` between their values.
const RUN: &str = "
import json, sys, duckdb, chdb
duckdb.sql(\"SET TimeZone = 'UTC'\")
answers = []
for engine, sql in json.load(sys.stdin):
    if engine == 'DuckDB':
        rows = duckdb.sql(sql).fetchall()
    else:
        rows = json.loads(str(chdb.query(sql, 'JSONCompact')))['data']
    text = lambda value: 'null' if value is None else str(value)
    answers.append([' | '.join(map(text, row)) for row in rows])
json.dump(answers, sys.stdout)
";

/// An engine, and what it is asked.
type Statement<'e> = (&'e str, String);

/// A directory that goes away with this value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("otelctx-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Runs the command here.
    fn otelctx(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_otelctx"));
        let output = command.args(arguments).current_dir(&self.0).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        output.stdout
    }

    /// Runs statements of these engines here; `None` where they are not installed.
    fn query(&self, statements: &[Statement<'_>]) -> Option<Vec<Vec<String>>> {
        let setup = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/setup");
        let folders = ["duckdb", "chdb"].map(|name| setup.join(name));
        if let Some(absent) = folders.iter().find(|it| !it.join(".installed").exists()) {
            println!(
                "skipped: there is no {}: cargo xtask setup --all",
                absent.display()
            );
            return None;
        }
        let mut python = Command::new("/usr/bin/python3");
        python.args(["-c", RUN]).current_dir(&self.0);
        python.env("PYTHONPATH", std::env::join_paths(&folders).unwrap());
        python.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut python = python.stderr(Stdio::piped()).spawn().unwrap();
        let mut input = python.stdin.take().unwrap();
        serde_json::to_writer(&mut input, statements).unwrap();
        drop(input);
        let output = python.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        Some(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// Runs a statement in both engines, of which ClickHouse's reads files by a function.
    fn query_both(&self, sql: &str) -> Option<[Vec<String>; 2]> {
        let mut parts = sql.split('\'');
        let mut of_clickhouse = parts.next().unwrap().to_owned();
        for (index, part) in parts.enumerate() {
            of_clickhouse += match (index % 2, part.ends_with(".parquet")) {
                (0, true) => format!("file('{part}')"),
                (0, false) => format!("'{part}'"),
                _ => part.to_owned(),
            }
            .as_str();
        }
        let answers = self.query(&[("DuckDB", sql.to_owned()), ("ClickHouse", of_clickhouse)])?;
        Some(answers.try_into().unwrap())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn frame(kind: FrameKind, function: &str, file: &str, line: u32) -> Frame {
    Frame::from(NamedFrame {
        kind,
        function: function.into(),
        file: file.into(),
        line,
        ..NamedFrame::default()
    })
}

fn context(trace: u64, attributes: &[(&str, &str)]) -> DecodedContext {
    let mut context = DecodedContext::default();
    context.trace_id = TraceId::from_bytes(u128::from(trace).to_be_bytes());
    context.span_id = SpanId::from_bytes(trace.to_be_bytes());
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    context.attributes = attributes.iter().map(text).collect();
    context
}

/// Samples every 10 ms.
#[derive(Default)]
struct Samples {
    catalog: Catalog,
    samples: Vec<Sample>,
}

impl Samples {
    fn add(&mut self, thread: otelctx_profile::sample::ThreadId, found: Found, stack: &[Frame]) {
        let user_stack = self.catalog.stack(stack);
        let empty = self.catalog.stack(&[]);
        self.samples.push(Sample {
            time: self.samples.len() as u64 * PERIOD,
            cpu: 0,
            thread,
            event: Event::OnCpu,
            found,
            gil: None,
            user_stack,
            stack_end: None,
            kernel_stack: empty,
        });
    }

    fn process(
        &mut self,
        pid: i32,
        resource: Vec<(String, Value)>,
    ) -> otelctx_profile::sample::ProcessId {
        self.catalog.add_process(ProcessFacts {
            pid,
            comm: "program".into(),
            resource,
            published: true,
            ..ProcessFacts::default()
        })
    }

    fn profile(self, start_unix: u64) -> Profile {
        let recording = Recording {
            clock: Clock {
                start: 0,
                end: self.samples.len() as u64 * PERIOD,
                start_unix,
            },
            catalog: self.catalog,
            samples: self.samples,
            period: NonZeroU64::new(PERIOD).unwrap(),
            counts: Counts::default(),
        };
        Profile::new(recording, &mut NoSymbols)
    }
}

fn named(name: &str) -> (String, Value) {
    ("service.name".into(), Value::from(name))
}

/// Returns a recording of a shop, whose handler for /cart takes 100 samples, and that for /report
/// `report` samples, of which half are in md5; and of a mailer without a trace, which takes 50. A
/// trace of /cart has five samples, of /report ten.
fn shop(start_unix: u64, report: usize) -> Profile {
    let mut all = Samples::default();
    let host = ("host.name".into(), Value::from("web-1"));
    let shop = all.process(7, vec![named("shop"), host]);
    let mailer = all.process(8, vec![named("mailer")]);
    let workers = [71, 72].map(|tid| all.catalog.thread(shop, tid, "worker"));
    let main = all.catalog.thread(mailer, 8, "main");
    let python = |function, line| frame(FrameKind::CPYTHON, function, "shop/app.py", line);
    let native = |function| frame(FrameKind::NATIVE, function, "", 0);
    let serve = [
        native("_PyEval_Vector"),
        python("serve", 10),
        native("_start"),
    ];
    let cart = [&[python("cart", 20)], &serve[..]].concat();
    let totals = [&[python("totals", 40), python("report", 30)], &serve[..]].concat();
    let md5 = [&[native("md5"), python("report", 33)], &serve[..]].concat();
    for index in 0..100 {
        let tags = [("http.route", "/cart"), ("tenant.id", "acme")];
        let found = all.catalog.context(&context(1 + index / 5, &tags));
        all.add(workers[0], Found::Attached(found), &cart);
    }
    for index in 0..report {
        let trace = 101 + index as u64 / 10;
        let tenant = ["acme", "umbrella"][trace as usize % 2];
        let tags = [("http.route", "/report"), ("tenant.id", tenant)];
        let found = Found::Attached(all.catalog.context(&context(trace, &tags)));
        let stack = if index % 2 == 0 { &totals } else { &md5 };
        all.add(workers[index % 10 / 5], found, stack);
    }
    for _ in 0..50 {
        let stack = [frame(FrameKind::GO, "main.send", "mail.go", 5)];
        all.add(main, Found::Detached, &stack);
    }
    all.profile(start_unix)
}

/// A span as the Collector's file exporter writes it.
fn span(trace: u64, id: u64, name: &str, ms: u64) -> String {
    let end = START + ms * 1_000_000;
    format!(
        r#"{{"resourceSpans":[{{"resource":{{}},"scopeSpans":[{{"scope":{{}},"spans":[{{"traceId":"{trace:032x}","spanId":"{id:016x}","name":"{name}","kind":2,"startTimeUnixNano":"{START}","endTimeUnixNano":"{end}","status":{{}}}}]}}]}}]}}"#
    )
}

/// The answers to the questions of docs/sql.md, in their order.
fn answers() -> [Vec<String>; 10] {
    let trace = |number: u64| format!("{number:032x}");
    let at_time = trace(111);
    let most = |number: u64, time: &str| format!("{} | 100 | {time} | 90 | 2", trace(number));
    [
        vec![
            "/report | 2000".into(),
            "/cart | 1000".into(),
            "null | 500".into(),
        ],
        vec!["md5 | 1000".into(), "totals | 1000".into()],
        [
            "_PyEval_Vector | 2000",
            "_start | 2000",
            "report | 2000",
            "serve | 2000",
            "md5 | 1000",
        ]
        .map(str::to_owned)
        .into(),
        vec![
            most(101, "22:13:21"),
            most(102, "22:13:21"),
            most(103, "22:13:21"),
        ],
        vec![
            format!("{at_time} | md5 |  | 0 | 50"),
            format!("{at_time} | totals | shop/app.py | 40 | 50"),
        ],
        vec!["report | 1000".into()],
        vec!["web-1 | shop | 3000".into(), "null | mailer | 500".into()],
        vec![
            "acme | shop/app.py:20 | 1000".into(),
            "acme | shop/app.py:40 | 500".into(),
            "umbrella | shop/app.py:40 | 500".into(),
        ],
        vec![
            "GET /report | 400 | 100".into(),
            "SELECT carts | 300 | 0".into(),
            "GET /cart | 120 | 50".into(),
        ],
        vec![
            "2023-11-14T22 | mailer | 500".into(),
            "2023-11-14T22 | shop | 3000".into(),
            "2023-11-14T23 | mailer | 500".into(),
            "2023-11-14T23 | shop | 5000".into(),
        ],
    ]
}

/// Each question's statements, with their engines, and the answer that is written there.
fn questions(page: &str) -> Vec<(Vec<Statement<'_>>, Vec<String>)> {
    let sections = page.split("\n### ").skip(1);
    sections
        .map(|section| {
            let section = section.split("\n## ").next().unwrap();
            let statements = section.split("```sql\n-- ").skip(1).map(|block| {
                let (engine, sql) = block.split_once('\n').unwrap();
                (engine, sql.split_once("\n```").unwrap().0.to_owned())
            });
            let answer = section.split_once("```text\n").unwrap().1;
            let answer = answer.split_once("\n```").unwrap().0;
            (
                statements.collect(),
                answer.lines().map(str::to_owned).collect(),
            )
        })
        .collect()
}

/// The statements of a Grafana dashboard, for the file instead of the table, with Grafana's macros replaced as it does.
fn statements_of_dashboard(text: &str) -> Vec<Statement<'static>> {
    let dashboard: serde_json::Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let variables = dashboard["templating"]["list"].as_array().unwrap().iter();
    let of_panels = panels.map(|it| it["targets"][0]["rawSql"].as_str().unwrap());
    let of_variables = variables.filter(|it| it["type"] == "query");
    let all = of_panels.chain(of_variables.map(|it| it["query"].as_str().unwrap()));
    let statements = all.map(|sql| {
        assert!(sql.contains("otelctx.samples"), "{sql}");
        let sql = sql
            .replace("otelctx.samples", "file('profile.parquet')")
            .replace(
                "$__timeFilter(time)",
                "time >= toDateTime(1699999999) AND time <= toDateTime(1700000100)",
            )
            .replace("${service:singlequote}", "'shop','mailer'")
            .replace("now()", "toDateTime(1700000100)");
        assert!(!sql.contains('$'), "{sql}");
        ("ClickHouse", sql)
    });
    statements.collect()
}

#[test]
fn the_dashboard_for_clickhouse_shows_a_recording() {
    let folder = Directory::new("dashboard");
    let profile = shop(START, 200);
    profile
        .write_file(&folder.0.join("profile.otlp"), &Options::default())
        .unwrap();
    folder.otelctx(&["report", "profile.otlp", "-o", "profile.parquet"]);
    let statements = statements_of_dashboard(include_str!("../../deploy/grafana/clickhouse.json"));
    let Some(given) = folder.query(&statements) else {
        return;
    };
    let traces = (101..121).map(|it: u64| format!("{it:032x} | /report | 0.1"));
    let traces: Vec<String> = traces.collect();
    let lines = |lines: &[&str]| lines.iter().map(|it| (*it).to_owned()).collect();
    let expected: [Vec<String>; 8] = [
        lines(&[
            "2023-11-14 22:13:00 | mailer | 0.008333333333333333",
            "2023-11-14 22:13:00 | shop | 0.05",
        ]),
        lines(&[
            "2023-11-14 22:13:00 |  | 0.008333333333333333",
            "2023-11-14 22:13:00 | web-1 | 0.05",
        ]),
        lines(&[
            "/report | 2 | 0 | 20",
            "/cart | 1 | 0 | 20",
            " | 0.5 | 0 | 0",
        ]),
        traces,
        lines(&["cart | 1", "md5 | 1", "totals | 1", "main.send | 0.5"]),
        lines(&[
            "_PyEval_Vector | 3",
            "_start | 3",
            "serve | 3",
            "report | 2",
            "cart | 1",
            "md5 | 1",
            "totals | 1",
            "main.send | 0.5",
        ]),
        Vec::new(),
        lines(&["mailer", "shop"]),
    ];
    assert_eq!(given.len(), expected.len());
    for (((_, sql), given), expected) in statements.iter().zip(given).zip(expected) {
        assert_eq!(given, expected, "{sql}");
    }
}

#[test]
fn engines_answer_what_docs_sql_asks() {
    let folder = Directory::new("sql");
    let options = Options::default();
    let write = |name: &str, profile: Profile| {
        profile.write_file(&folder.0.join(name), &options).unwrap();
    };
    write("profile.otlp", shop(START, 200));
    write("later.otlp", shop(START + HOUR, 400));
    let spans = [
        span(101, 101, "GET /report", 400),
        span(1, 1, "GET /cart", 120),
        span(1, 7, "SELECT carts", 300),
    ];
    fs::write(folder.0.join("spans.json"), spans.join("\n") + "\n").unwrap();
    folder.otelctx(&["report", "profile.otlp", "-o", "profile.parquet"]);
    folder.otelctx(&["report", "profile.otlp", "-o", "fleet/"]);
    folder.otelctx(&["report", "later.otlp", "-o", "fleet/"]);
    let page = include_str!("../../docs/sql.md");
    let asked = questions(page);
    assert_eq!(asked.len(), answers().len());
    let statements: Vec<_> = asked.iter().flat_map(|(all, _)| all.clone()).collect();
    let engines: BTreeSet<_> = statements.iter().map(|(engine, _)| *engine).collect();
    assert_eq!((statements.len(), engines.len()), (20, 2));
    for ((_, written), answer) in asked.iter().zip(answers()) {
        assert_eq!(*written, answer, "in docs/sql.md");
    }
    let Some(given) = folder.query(&statements) else {
        return;
    };
    for (((engine, sql), given), question) in statements.iter().zip(given).zip(0..) {
        assert_eq!(given, answers()[question / 2], "{engine}: {sql}");
    }
    // The numbers are the report's, also of a selection.
    for selection in [
        &[][..],
        &["--filter", "http.route=/report", "--time", "+1.5s.."],
    ] {
        let json = folder.otelctx(&[&["report", "profile.otlp", "--json"], selection].concat());
        let report: serde_json::Value = serde_json::from_slice(&json).unwrap();
        folder.otelctx(&[&["report", "profile.otlp", "-o", "some.parquet"], selection].concat());
        let sums = folder.query_both("SELECT sum(samples), sum(weight) FROM 'some.parquet'");
        let (samples, time) = (&report["samples"], &report["cpu_ns"]);
        let expected = vec![format!("{samples} | {time}")];
        assert_eq!(sums.unwrap(), [expected.clone(), expected], "{report}");
        let own =
            "SELECT functions[1], sum(weight) FROM 'some.parquet' GROUP BY functions[1] ORDER BY 1";
        let functions = report["by_function"].as_array().unwrap().iter();
        let functions = functions.filter(|row| row["self_ns"] != 0);
        let mut expected: Vec<_> = functions
            .map(|row| format!("{} | {}", row["name"].as_str().unwrap(), row["self_ns"]))
            .collect();
        expected.sort();
        assert!(expected.len() > 1);
        assert_eq!(
            folder.query_both(own).unwrap(),
            [expected.clone(), expected]
        );
    }
}

#[test]
fn a_recording_in_parquet_is_the_one_in_otlp() {
    let folder = Directory::new("recorded");
    let outputs = ["-o", "a.otlp", "-o", "a.parquet", "-o", "hours/"];
    let busy = ["--", "/usr/bin/python3", "-c", "sum(range(20000000))"];
    folder.otelctx(&[&["record"], &outputs[..], &busy].concat());
    let json = folder.otelctx(&["report", "a.otlp", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_ne!(report["samples"], 0);
    let host = nix::sys::utsname::uname().unwrap();
    let host = host.nodename().to_str().unwrap();
    for file in ["a.parquet", "hours/*/*/part.parquet"] {
        let sums = format!("SELECT sum(samples), sum(weight), min(host), max(host) FROM '{file}'");
        let expected = format!(
            "{} | {} | {host} | {host}",
            report["samples"], report["cpu_ns"]
        );
        if let Some(given) = folder.query_both(&sums) {
            assert_eq!(given, [[expected.clone()], [expected]]);
        }
    }
}

/// Time off the CPU, by what kept threads from running and why, in both engines and in the report.
#[test]
fn waits_are_those_of_the_report() {
    let folder = Directory::new("waits");
    let options = Options::default();
    let path = folder.0.join("profile.otlp");
    waiting::profile().write_file(&path, &options).unwrap();
    let all = ["--kind", "running", "--kind", "queued", "--kind", "waiting"];
    for selection in [
        &["--idle"][..],
        &["--idle", "--filter", "http.route=/cart"],
        &["--idle", "--function", "postgres"],
    ] {
        let by = ["--json", "--by", "thread.state,wait.reason"];
        let report = [&["report", "profile.otlp"], &by[..], &all, selection].concat();
        let report: serde_json::Value = serde_json::from_slice(&folder.otelctx(&report)).unwrap();
        let rows = report["by_attribute"].as_array().unwrap().iter();
        let mut expected: Vec<String> = rows
            .map(|row| {
                let value = |index: usize| row["values"][index].as_str().unwrap();
                let times = ["running_ns", "queued_ns", "waiting_ns"];
                let times: u64 = times.map(|it| row[it].as_u64().unwrap()).iter().sum();
                format!("{} | {} | {} | {times}", value(0), value(1), row["samples"])
            })
            .collect();
        expected.sort();
        assert!(!expected.is_empty(), "{report:#}");
        folder.otelctx(&[&["report", "profile.otlp", "-o", "a.parquet"], selection].concat());
        let waits = "SELECT CASE WHEN kind = 'running' THEN kind ELSE coalesce(state, '(none)') END AS state_or_kind, \
            coalesce(reason, '(none)') AS why, sum(samples), sum(weight) \
            FROM 'a.parquet' GROUP BY state_or_kind, why";
        let Some(given) = folder.query_both(waits) else {
            return;
        };
        for mut given in given {
            given.sort();
            assert_eq!(given, expected, "{selection:?}");
        }
        let kinds = "SELECT kind, sum(weight) FROM 'a.parquet' GROUP BY kind";
        for given in folder.query_both(kinds).unwrap() {
            let mut sums: Vec<String> = ["running", "queued", "waiting"]
                .iter()
                .map(|kind| format!("{kind} | {}", report[format!("{kind}_ns")]))
                .filter(|sum| !sum.ends_with(" | 0"))
                .collect();
            sums.sort();
            let mut given = given;
            given.sort();
            assert_eq!(given, sums, "{selection:?}");
        }
    }
}

/// Hostile names are values like others, in a folder of their own.
#[test]
fn any_name_is_read_as_it_was_and_every_file_has_the_same_columns() {
    let folder = Directory::new("names");
    let long = "é".repeat(32 << 10);
    let names = [
        "..",
        "a/b",
        "a=b",
        "\u{1}\n\t\0'\"\\%",
        "\u{202e}x",
        "null",
        "7",
        &long,
    ];
    let mut all = Samples::default();
    for (pid, name) in (1_i32..).zip(names) {
        let process = all.process(pid, vec![named(name), (name.to_owned(), Value::from(name))]);
        let thread = all.catalog.thread(process, pid, name);
        let found = all
            .catalog
            .context(&context(pid as u64, &[(name, name), ("http.route", name)]));
        all.add(
            thread,
            Found::Attached(found),
            &[frame(FrameKind::CPYTHON, name, name, u32::MAX)],
        );
    }
    // Without anything.
    let process = all.process(0, Vec::new());
    let thread = all.catalog.thread(process, 0, "");
    all.add(thread, Found::Detached, &[]);
    let profile = all.profile(START);
    let options = Options::default();
    for name in ["a.otlp", "a.parquet"] {
        profile.write_file(&folder.0.join(name), &options).unwrap();
    }
    let empty = Samples::default().profile(START);
    empty
        .write_file(&folder.0.join("empty.parquet"), &options)
        .unwrap();
    fs::write(folder.0.join("plain.folded"), "main;work 300\n").unwrap();
    folder.otelctx(&["report", "plain.folded", "-o", "plain.parquet"]);
    folder.otelctx(&["report", "a.otlp", "-o", "b.parquet"]);
    folder.otelctx(&["report", "a.otlp", "-o", "all/"]);
    assert_eq!(
        fs::read_dir(folder.0.join("all/hour=2023-11-14T22"))
            .unwrap()
            .count(),
        9
    );
    let mut statements = Vec::new();
    for file in ["a.parquet", "b.parquet", "all/*/*/part.parquet"] {
        for pid in 1..=names.len() {
            let columns = "service, thread, route, functions[1], files[1], hex(service), lines[1]";
            let sql = |file: String| format!("SELECT {columns} FROM {file} WHERE pid = {pid}");
            let in_file = format!("read_parquet('{file}', hive_partitioning = false)");
            statements.push(("DuckDB", sql(in_file)));
            let setting = "SETTINGS use_hive_partitioning = 0";
            let of_clickhouse = format!("{} {setting}", sql(format!("file('{file}')")));
            statements.push(("ClickHouse", of_clickhouse));
        }
    }
    let of_names = statements.len();
    for file in ["a.parquet", "b.parquet", "empty.parquet", "plain.parquet"] {
        let schema = "name, type, repetition_type, num_children, logical_type";
        let schema = format!("string_agg(concat_ws(' ', {schema}), ',')");
        let sql = format!("SELECT {schema} FROM parquet_schema('{file}')");
        statements.push(("DuckDB", sql));
    }
    for (file, columns) in [
        ("all/*/*/part.parquet", "count(DISTINCT service)"),
        (
            "plain.parquet",
            "sum(samples), sum(weight), sum(length(functions))",
        ),
        ("empty.parquet", "count(*)"),
        (
            "a.parquet",
            "sum(CASE WHEN trace_id IS NULL AND route IS NULL AND length(functions) = 0 THEN 1 END)",
        ),
    ] {
        statements.push(("DuckDB", format!("SELECT {columns} FROM '{file}'")));
        statements.push((
            "ClickHouse",
            format!("SELECT {columns} FROM file('{file}')"),
        ));
    }
    let Some(given) = folder.query(&statements) else {
        return;
    };
    let (rows, others) = given.split_at(of_names);
    let expected = names.iter().flat_map(|name| [name, name]).cycle();
    for ((row, name), (engine, sql)) in rows.iter().zip(expected).zip(&statements) {
        let hex: String = name.bytes().map(|byte| format!("{byte:02X}")).collect();
        let line = i32::MAX.to_string();
        let expected = [*name, name, name, name, name, &hex, &line].join(" | ");
        assert_eq!(*row, [expected], "{engine}: {sql}");
    }
    let (schemas, others) = others.split_at(4);
    assert!(schemas[0][0].contains("Timestamp"), "{schemas:?}");
    assert!(schemas.iter().all(|it| *it == schemas[0]), "{schemas:?}");
    let counts = ["9", "300 | 0 | 2", "0", "1"].into_iter();
    let expected: Vec<_> = counts.flat_map(|it| [[it], [it]]).collect();
    assert_eq!(others, expected);
}

/// They are more than a row group has, and more than a dictionary is good for.
#[test]
fn more_than_a_million_span_ids_are_all_there() {
    let folder = Directory::new("spans");
    let mut all = Samples::default();
    let process = all.process(7, vec![named("shop")]);
    let thread = all.catalog.thread(process, 7, "main");
    let stack = [frame(FrameKind::CPYTHON, "main", "main.py", 1)];
    for span in 1..=1_100_000 {
        let mut context = context(1 + span % 2_000, &[("http.route", "/cart")]);
        context.span_id =
            SpanId::from_bytes((0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(span)).to_be_bytes());
        let found = all.catalog.context(&context);
        all.add(thread, Found::Attached(found), &stack);
    }
    let profile = all.profile(START);
    let path = folder.0.join("a.parquet");
    profile.write_file(&path, &Options::default()).unwrap();
    drop(profile);
    let size = fs::metadata(&path).unwrap().len();
    assert!(size <= 1_100_000 * 40, "{size}");
    let counts = "SELECT count(*), count(DISTINCT span_id), count(DISTINCT trace_id), sum(weight), max(length(span_id)) \
        FROM 'a.parquet'";
    if let Some(given) = folder.query_both(counts) {
        let expected = vec!["1100000 | 1100000 | 2000 | 11000000000000 | 16".to_owned()];
        assert_eq!(given, [expected.clone(), expected]);
    }
}
