//! `otelctx record` and `otelctx report`.

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use otelctx_fixtures::Compiler;
use otelctx_fixtures::kernel::give_way_if_emulated;
use serde_json::Value;

use crate::otlp;
use crate::run::{Answer, Scratch, command, given_time, otelctx, under_strace_with};
use crate::target::{TRACE, Target};

fn report(path: &str) -> Value {
    otlp::read(path);
    otelctx(&["report", "--json", path]).expect(0).json()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// Records the busy target with these further arguments.
fn recorded(target: &Target, arguments: &[&str]) -> Answer {
    let pid = target.pid().to_string();
    let mut all = vec!["record", "-p", &pid];
    all.extend(arguments);
    otelctx(&all).expect(0)
}

/// Samples by eBPF where that is permitted, and by ptrace.
#[test]
fn each_sample_knows_its_trace_in_every_format() {
    let target = Target::start("busy");
    for method in [None, Some("--ptrace")] {
        let scratch = Scratch::new(&format!("record-by{}", method.unwrap_or_default()));
        let names = [
            "a.otlp",
            "a.pb.gz",
            "a.json.gz",
            "a.svg",
            "a.folded",
            "a.parquet",
            "hours/",
        ];
        let paths = names.map(|name| scratch.path(name));
        let mut arguments: Vec<&str> = paths.iter().flat_map(|it| ["-o", it]).collect();
        arguments.extend(method);
        // Of threads with a context and of others.
        let (answer, report) = given_time(|seconds| {
            let answer = recorded(&target, &[&["-d", seconds], &arguments[..]].concat());
            let report = report(&paths[0]);
            match (number(&report["with_trace"]), number(&report["samples"])) {
                (traced @ 1.., all) if traced < all => Ok((answer, report)),
                _ => Err(report),
            }
        });
        assert_eq!(
            answer.stderr.contains("ptrace was requested"),
            method.is_some(),
            "{answer:?}"
        );
        for path in &paths {
            assert!(answer.stdout.contains(path.as_str()), "{answer:?}");
        }
        let mut expected = names.map(|name| name.trim_end_matches('/').to_owned());
        expected.sort();
        assert_eq!(scratch.names(), expected);
        let traced = number(&report["with_trace"]);
        let traces = report["by_trace"].as_array().unwrap();
        assert_eq!(traces.len(), 1, "{report:#}");
        assert_eq!(traces[0]["trace_id"], TRACE);
        assert_eq!(number(&traces[0]["samples"]), traced);
        assert_eq!(
            report["by_process"][0]["name"],
            format!("busy shop {}", target.pid())
        );
        let routes = report["by_attribute"].as_array().unwrap();
        let cart = routes
            .iter()
            .find(|route| route["name"] == "/cart")
            .unwrap();
        assert_eq!(number(&cart["samples"]), traced);
        assert_eq!(routes.len(), 2, "{report:#}");
        let folded = fs::read_to_string(&paths[4]).unwrap();
        for line in folded.lines() {
            let (thread, route) = if line.contains(";at work;") || line.contains(";at work ") {
                ("at work", "/cart;")
            } else {
                ("another", "(none);")
            };
            assert!(line.starts_with(route), "{thread}: {line}");
        }
        assert!(
            fs::read_to_string(&paths[3])
                .unwrap()
                .contains("<title>/cart\n")
        );
    }
}

#[test]
fn json_accounts_for_every_sample() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-json");
    let path = scratch.path("a.otlp");
    for method in [None, Some("--ptrace")] {
        let (json, report) = given_time(|seconds| {
            let mut arguments = vec!["-d", seconds, "-o", &path, "-F", "250", "--json"];
            arguments.extend(method);
            let json = recorded(&target, &arguments).json();
            match number(&json["with_context"]) {
                0 => Err(json),
                _ => Ok((json, report(&path))),
            }
        });
        let counts = &json["counts"];
        let mut samples = 0;
        for name in ["attached", "detached", "not_published", "invalid"] {
            samples += number(&counts[name]);
        }
        let steps = counts["unreadable"].as_object().unwrap();
        samples += steps.values().map(number).sum::<u64>();
        assert_eq!(json["samples"], samples, "{json:#}");
        assert_eq!(json["samples"], report["samples"]);
        assert_eq!(json["with_context"], counts["attached"]);
        assert_eq!(json["duration_ns"], report["duration_ns"]);
        let fixed = (&json["processes"], &json["period_ns"], &json["sent"]);
        assert_eq!(fixed, (&1.into(), &4_000_000.into(), &Value::Null));
        if method.is_some() || geteuid().is_root() {
            assert_eq!(
                json["method"],
                ["ebpf", "ptrace"][usize::from(method.is_some())]
            );
        }
        let [file] = &json["files"].as_array().unwrap()[..] else {
            panic!("{json:#}")
        };
        assert_eq!(file["path"], path);
        assert!(
            file["open"]
                .as_str()
                .unwrap()
                .ends_with(&format!("report {path}"))
        );
    }
}

#[test]
fn samples_can_be_chosen_by_resource_and_trace() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-chosen");
    let path = scratch.path("a.otlp");
    let samples = |seconds: &str, arguments: &[&str]| {
        let all = [&["-d", seconds, "-o", &path], arguments].concat();
        // An empty recording does not replace a file.
        let _ = fs::remove_file(&path);
        recorded(&target, &all);
        let report = report(&path);
        (number(&report["samples"]), number(&report["with_trace"]))
    };
    // Of all threads, and of one.
    given_time(
        |seconds| match samples(seconds, &["--filter", "service.name=busy shop"]) {
            (all, traced @ 1..) if all > traced => Ok(()),
            other => Err(other),
        },
    );
    // An attribute of contexts selects samples.
    for chosen in [["--trace", TRACE], ["--filter", "http.route=/cart"]] {
        given_time(|seconds| match samples(seconds, &chosen) {
            (0, _) => Err("no sample"),
            (all, traced) => {
                assert_eq!(all, traced);
                Ok(())
            }
        });
    }
    let none = (0, 0);
    assert_eq!(samples("0.5", &["--filter", "service.name=busy"]), none);
    assert_eq!(samples("0.5", &["--thread", "no such thread"]), none);
    let other = TRACE.replace(&TRACE[..1], "e");
    assert_eq!(samples("0.5", &["--trace", &other]), none);
    // What is dropped is counted.
    let (json, stdout) = given_time(|seconds| {
        let all = ["-d", seconds, "-o", &path, "--trace", &other];
        let json = recorded(&target, &[&all[..], &["--json"]].concat()).json();
        let answer = recorded(&target, &all);
        match number(&json["counts"]["attached"]) {
            0 => Err(json),
            _ if !answer.stdout.contains("not selected") => Err(json),
            _ => Ok((json, answer.stdout)),
        }
    });
    let counts = &json["counts"];
    let ends = counts["incomplete_stacks"].as_object().unwrap();
    let incomplete: u64 = ends.values().map(number).sum();
    let stacks = ["complete_stacks", "truncated_stacks", "missing_stacks"];
    let stacks: u64 = stacks.iter().map(|name| number(&counts[*name])).sum();
    assert_eq!(
        (number(&json["samples"]), number(&json["with_context"])),
        (0, 0)
    );
    assert!(
        stacks + incomplete >= number(&counts["attached"]),
        "{json:#}"
    );
    assert!(stdout.contains("  not selected: "), "{stdout}");
}

#[test]
fn samples_can_be_chosen_by_function_time_and_language() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-functions");
    let path = scratch.path("a.otlp");
    let record = |seconds: &str, arguments: &[&str]| {
        let all = [&["-d", seconds, "-o", &path, "--json"], arguments].concat();
        let _ = fs::remove_file(&path);
        let answer = recorded(&target, &all);
        let json = answer.json();
        let all = number(&json["samples"]) + number(&json["not_selected"]);
        let counts = &json["counts"];
        let outcomes = ["attached", "detached", "not_published", "invalid"];
        let outcomes = outcomes.iter().map(|name| number(&counts[*name]));
        let unreadable = counts["unreadable"].as_object().unwrap();
        let unreadable = unreadable.values().map(number);
        assert_eq!(all, outcomes.chain(unreadable).sum::<u64>(), "{json:#}");
        (number(&json["samples"]), all, json, answer.stderr)
    };
    // All samples are in it.
    given_time(
        |seconds| match record(seconds, &["--function", "BUSY", "--time", "+0s..+1h"]) {
            (kept @ 1.., all, json, _) => {
                assert!(kept <= all);
                let report = report(&path);
                assert_eq!(number(&report["samples"]), kept);
                let written = serde_json::json!([
                    {"option": "function", "value": "BUSY"},
                    {"option": "time", "value": "+0s..+3600s"},
                ]);
                assert_eq!(json["filter"], written);
                Ok(())
            }
            (_, _, json, _) => Err(json),
        },
    );
    for none in [["--function", "no_such_function"], ["--time", "+1h.."]] {
        given_time(|seconds| match record(seconds, &none) {
            (0, 0, json, _) => Err(json),
            (kept, _, _, said) => {
                assert_eq!(kept, 0);
                let matches = format!("was kept: none matches {} ", none[0]);
                assert!(said.contains(&matches), "{said}");
                Ok(())
            }
        });
    }
    given_time(|seconds| {
        let (kept, all, json, _) = record(seconds, &["--language", "native"]);
        if kept == 0 {
            return Err(json);
        }
        assert_eq!(kept, all);
        let report = report(&path);
        let functions = report["by_function"].as_array().unwrap();
        assert!(!functions.is_empty());
        for function in functions {
            assert_eq!(function["kind"], "native", "{function}");
        }
        Ok(())
    });
}

#[test]
fn an_attribute_that_no_sample_has_is_said_and_none_can_be_asked_for() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-lacking");
    let path = scratch.path("a.folded");
    let file = scratch.path("a.otlp");
    given_time(|seconds| {
        let by = |name| {
            let all = ["-d", seconds, "-o", &path, "-o", &file, "--by", name];
            let answer = recorded(&target, &all);
            (answer.stderr, fs::read_to_string(&path).unwrap())
        };
        let (said, folded) = by("tenant");
        if !said.contains("no sample has the attribute tenant") {
            return Err(said);
        }
        assert!(said.contains("recorded attributes: http.route\n"), "{said}");
        assert!(!folded.is_empty() && !folded.contains("(none)"), "{folded}");
        let answer = otelctx(&["report", &file, "--by", "none"]).expect(0);
        // Traces of one or two samples each are not listed.
        if answer.stdout.contains("none with more than ") {
            return Err(answer.stdout);
        }
        assert!(answer.stdout.contains("By trace"), "{answer:?}");
        assert!(!answer.stdout.contains("By none"), "{answer:?}");
        assert_eq!(answer.stderr, "");
        let answer = otelctx(&["report", &file, "--by", "http.rout"]).expect(0);
        assert!(answer.stdout.contains("By http.rout"), "{answer:?}");
        let lacking = "otelctx: no sample has the attribute http.rout\n  \
            recorded attributes: http.route, thread.name\n";
        assert_eq!(answer.stderr, lacking);
        for by in ["http.route", "thread.name"] {
            let answer = otelctx(&["report", "--json", &file, "--by", by]).expect(0);
            assert_eq!(answer.stderr, "");
        }
        let json = otelctx(&["report", "--json", &file, "--by", "none"]).expect(0);
        assert_eq!(json.json()["by_attribute"], Value::Array(Vec::new()));
        let (said, folded) = by("none");
        if folded.is_empty() {
            return Err(said);
        }
        assert!(!said.contains("no sample has the attribute"), "{said}");
        assert!(
            !folded.contains("(none)") && !folded.contains("/cart"),
            "{folded}"
        );
        Ok(())
    });
}

/// Each file is divided by what its format can be divided by, as those of a report.
#[test]
fn files_are_divided_as_those_of_a_report() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-divided");
    let path = |name: &str| scratch.path(name);
    let recording = path("a.otlp");
    let by = ["--by", "service,thread.name,tenant,http.route"];
    let names = ["svg", "html", "folded"];
    let files = |start: &str| names.map(|name| format!("-o{}", path(&format!("{start}.{name}"))));
    let complaints: String = names[..2]
        .iter()
        .map(|name| {
            format!(
                "otelctx: a .{name} file is not divided by service, which it shows in any case\n"
            )
        })
        .collect();
    given_time(|seconds| {
        let files = files("a");
        let files = files.each_ref().map(String::as_str);
        let start = ["-d", seconds, "-o", &recording];
        let answer = recorded(&target, &[&start[..], &files, &by].concat());
        let folded = fs::read_to_string(path("a.folded")).unwrap_or_default();
        match folded.is_empty() {
            true => Err(answer),
            false => {
                assert!(answer.stderr.starts_with(&complaints), "{answer:?}");
                Ok(())
            }
        }
    });
    let files = files("b");
    let files = files.each_ref().map(String::as_str);
    let answer = otelctx(&[&["report", &recording], &files[..], &by].concat()).expect(0);
    assert_eq!(answer.stderr, complaints);
    let content = |name: &str| fs::read_to_string(path(name)).unwrap();
    assert_eq!(content("a.folded"), content("b.folded"));
    let title = |name: &str| {
        let content = content(name);
        let line = content.lines().find(|it| it.contains("class=\"title\""));
        line.unwrap().to_owned()
    };
    assert_eq!(title("a.svg"), title("b.svg"));
    assert!(title("a.svg").contains(": CPU by thread.name, http.route<"));
    let by = |name: &str| content(name).contains(r#""by":"thread.name, tenant, http.route""#);
    assert!(by("a.html") && by("b.html"));
}

/// The beginning of a line of strace's `-f -ttt`: the thread, and the time (Unix time, nanoseconds).
fn thread_and_time(line: &str) -> (&str, u64) {
    let [thread, time] = line.split_whitespace().take(2).collect::<Vec<_>>()[..] else {
        panic!("{line}")
    };
    let (seconds, microseconds) = time.split_once('.').unwrap();
    let number = |text: &str| text.parse::<u64>().unwrap();
    let time = 1_000_000 * number(seconds) + number(microseconds);
    (thread, 1000 * time)
}

/// The duration is that of sampling, without the time that loading the kernel's programs takes: it starts
/// after the last system call before the one that starts the first clock.
#[test]
fn a_recording_starts_when_sampling_does() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let target = Target::start("busy");
    let scratch = Scratch::new("record-start");
    let (path, log) = (scratch.path("a.otlp"), scratch.path("calls"));
    let pid = target.pid().to_string();
    given_time(|seconds| {
        let arguments = ["record", "-p", &pid, "-d", seconds, "-o", &path, "--json"];
        let calls = "trace=bpf,ioctl,perf_event_open";
        let record = command(&arguments);
        let Some(mut strace) = under_strace_with(&["-ttt"], &record, calls, log.as_ref()) else {
            return Ok(());
        };
        let answer = Answer::of(strace.output().unwrap()).expect(0);
        let end = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let json = answer.json();
        if json["method"] != "ebpf" {
            eprintln!("skipped: {}", answer.stderr);
            return Ok(());
        }
        if number(&json["samples"]) == 0 {
            return Err(json);
        }
        let log = fs::read_to_string(&log).unwrap();
        let lines: Vec<_> = log.lines().collect();
        // Only clocks are stopped, not the events that report mappings.
        let stop = lines
            .iter()
            .position(|it| it.contains("PERF_EVENT_IOC_DISABLE"));
        let stop = stop.unwrap();
        let clock = lines[stop].split("ioctl(").nth(1).unwrap();
        let clock = clock.split('<').next().unwrap();
        let call = format!(" ioctl({clock}<anon_inode:[perf_event]>, PERF_EVENT_IOC_ENABLE");
        let enabled = lines[..stop].iter().rposition(|it| it.contains(&call));
        let enabled = enabled.unwrap();
        let (thread, _) = thread_and_time(lines[enabled]);
        let earlier = lines[..enabled]
            .iter()
            .rev()
            .map(|line| thread_and_time(line));
        let before = earlier.filter(|it| it.0 == thread).map(|it| it.1).next();
        let before = before.unwrap();
        // This also checks that no sample is earlier or later.
        let data = otlp::read(&path);
        let scopes = data
            .resource_profiles
            .iter()
            .flat_map(|it| &it.scope_profiles);
        for profile in scopes.flat_map(|it| &it.profiles) {
            let (start, duration) = (profile.time_unix_nano, profile.duration_nano);
            assert_eq!(json["duration_ns"], duration);
            assert!(start >= before, "{start}, {before}\n{}", lines[enabled]);
            let wanted = 1e9 * seconds.parse::<f64>().unwrap();
            assert!(duration as f64 >= wanted, "{duration}");
            assert!(u128::from(duration + before) <= end.as_nanos());
        }
        Ok(())
    });
}

/// Where eBPF has no `bpf_loop` (x86-64: Linux 5.17), programs that call each other walk stacks.
#[test]
#[cfg(target_arch = "x86_64")]
fn kernel_limits_of_stacks_are_one_line() {
    if !geteuid().is_root() {
        return eprintln!("skipped: needs root");
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
    let has_loops = (number(), number()) >= (5, 17);
    let target = Target::start_with("busy", give_way_if_emulated);
    let scratch = Scratch::new("limits");
    let answer = recorded(&target, &["-d", "0.5", "-o", &scratch.path("a.otlp")]);
    let said = answer
        .stderr
        .lines()
        .filter(|line| line.contains("stacks have at most"));
    let said: Vec<&str> = said.collect();
    if has_loops {
        assert_eq!(said, [""; 0]);
    } else {
        let [line] = said[..] else {
            panic!("{answer:?}")
        };
        let start = "otelctx: stacks have at most 144 frames: ";
        assert!(
            line.starts_with(start) && line.contains("Linux 5.17"),
            "{line}"
        );
    }
}

#[test]
fn a_service_that_only_the_environment_names_is_in_parentheses() {
    let scratch = Scratch::new("record-detected");
    let (path, folded) = (scratch.path("a.otlp"), scratch.path("a.folded"));
    let loops = "i=0; while [ $i -lt 900000 ]; do i=$((i+1)); done";
    let record = ["record", "-o", &path, "-o", &folded, "-F", "999", "--"];
    let mut record = command(&[&record[..], &["sh", "-c", loops]].concat());
    // Which the program inherits: one that env(1) starts would be sampled without it for a moment.
    record.env("OTEL_SERVICE_NAME", "shop");
    Answer::of(record.output().unwrap()).expect(0);
    let folded = fs::read_to_string(&folded).unwrap();
    assert!(
        folded.lines().all(|it| it.starts_with("(shop);")),
        "{folded}"
    );
    let report = report(&path);
    let name = report["by_process"][0]["name"].as_str().unwrap();
    assert!(name.starts_with("(shop) "), "{name}");
}

/// Linux 6.16 and later report that a process exits before they free its memory, which is sampled, too.
#[test]
fn samples_of_a_process_that_frees_its_memory_at_its_end_are_its_own() {
    let scratch = Scratch::new("record-end");
    let (path, folded) = (scratch.path("a.otlp"), scratch.path("a.folded"));
    let options = ["record", "-o", &path, "-o", &folded, "-F", "999", "--"];
    let copy = ["dd", "if=/dev/zero", "of=/dev/null", "bs=512M", "count=1"];
    let mut record = command(&[&options[..], &copy].concat());
    // The name of an entry of its own would be another one.
    record.env("OTEL_SERVICE_NAME", "copies");
    let mut stacks = String::new();
    // If the recorder reads the memory in that moment, the kernel frees it when the recorder has done so.
    let is_seen = (0..20).any(|_| {
        Answer::of(record.output().unwrap()).expect(0);
        let report = report(&path);
        let processes = report["by_process"].as_array().unwrap();
        assert_eq!(processes.len(), 1, "{report:#}");
        stacks = fs::read_to_string(&folded).unwrap();
        stacks.contains(";exit_mmap") || !geteuid().is_root()
    });
    assert!(is_seen, "{stacks}");
}

#[test]
fn a_command_is_recorded_from_its_first_instruction_to_its_end() {
    let scratch = Scratch::new("record-command");
    let (path, folded) = (scratch.path("a.otlp"), scratch.path("a.folded"));
    let loops = "i=0; while [ $i -lt 600000 ]; do i=$((i+1)); done; echo said";
    let answer = otelctx(&[
        "record", "-o", &path, "-o", &folded, "-F", "999", "--", "sh", "-c", loops,
    ])
    .expect(0);
    assert!(answer.stdout.starts_with("said\n"), "{answer:?}");
    let report = report(&path);
    assert!(number(&report["samples"]) > 0, "{report:#}");
    let processes = report["by_process"].as_array().unwrap();
    let name = processes[0]["name"].as_str().unwrap();
    // The command name, as in folded stacks.
    assert!(name.starts_with("sh "), "{name}");
    let folded = fs::read_to_string(&folded).unwrap();
    assert!(folded.lines().all(|it| it.starts_with("sh;")), "{folded}");
    // One that ends at once, one that fails, one that is not there.
    otelctx(&["record", "-o", &path, "--", "true"]).expect(0);
    otelctx(&["record", "-o", &path, "--", "false"]).expect(1);
    let answer = otelctx(&["record", "-o", &path, "--", "/no/such/program"]).expect(2);
    assert!(
        answer.stderr.contains("cannot start /no/such/program: "),
        "{answer:?}"
    );
}

/// The program spends as long in its first function as in the rest: a sampler that started a moment late
/// would have fewer samples of the first. The tests of `otelctx-sampler` have the same with ptrace.
#[test]
fn a_command_is_sampled_from_its_first_instruction() {
    if !geteuid().is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let flags = ["-O1", "-fno-omit-frame-pointer", "-static", "-nostdlib"];
    let Some(program) = Compiler::gcc().program(&["first.c"], &flags) else {
        return;
    };
    let program = program.to_str().unwrap();
    let scratch = Scratch::new("record-first");
    let path = scratch.path("a.otlp");
    let answer = otelctx(&["record", "-o", &path, "-F", "999", "--", program]).expect(0);
    assert!(!answer.stderr.contains("threads are stopped"), "{answer:?}");
    let report = report(&path);
    let functions = report["by_function"].as_array().unwrap();
    let time = |name: &str| {
        let found = functions.iter().find(|it| it["name"] == name);
        found.map_or(0, |it| number(&it["self_ns"]))
    };
    let (first, rest) = (time("first"), time("rest"));
    assert!(rest > 0 && first >= rest / 2, "{report:#}");
}

#[test]
fn what_cannot_be_recorded_or_written_is_said_at_once() {
    let scratch = Scratch::new("record-refused");
    let good = scratch.path("a.otlp");
    let refused = |arguments: &[&str], why: &str| {
        let all = [&["record", "-d", "60"], arguments].concat();
        let answer = otelctx(&all).expect(2);
        assert!(answer.stderr.contains(why), "{why}: {answer:?}");
        assert_eq!(answer.stdout, "");
    };
    let own = std::process::id().to_string();
    refused(&["-o", &good], "required arguments were not provided");
    refused(&["-o", &good, "-p", "0"], "from 1 to 2147483647");
    refused(&["-o", &good, "-p", "2147483647"], "does not exist");
    // kthreadd
    refused(&["-o", &good, "-p", "2"], "kernel");
    refused(
        &["-p", &own, "-o", &scratch.path("a.txt")],
        "unknown file extension",
    );
    refused(
        &["-p", &own, "-o", &scratch.path("none/a.svg")],
        "No such file or directory",
    );
    refused(
        &["-p", &own, "-o", &good, "--trace", "xyz"],
        "32 hexadecimal digits",
    );
    refused(
        &["-p", &own, "-o", &good, "--filter", "=shop"],
        "http.route=/cart",
    );
    refused(
        &["-p", &own, "-o", &good, "-F", "0"],
        "0 is not in 1..=20000",
    );
    let directory = scratch.path("directory.svg");
    fs::create_dir(&directory).unwrap();
    refused(&["-p", &own, "-o", &directory], "directory");
    assert_eq!(scratch.names(), ["directory.svg"]);
}

#[test]
fn a_full_disk_leaves_the_old_file() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-full");
    let full = scratch.path("full.otlp");
    symlink("/dev/full", &full).unwrap();
    let pid = target.pid().to_string();
    let answer = otelctx(&["record", "-p", &pid, "-d", "0.3", "-o", &full]).expect(2);
    assert!(
        answer.stderr.contains("No space left on device"),
        "{answer:?}"
    );
    assert_eq!(scratch.names(), ["full.otlp"]);
}

/// Starts a recording that would not end, lets it record for a while, and interrupts it.
fn interrupted(target: &Target, path: &str, seconds: &str) -> Answer {
    let pid = target.pid().to_string();
    let mut recording = command(&["record", "-p", &pid, "-o", path]);
    let child = recording
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    await_catching(child.id());
    std::thread::sleep(Duration::from_secs_f64(seconds.parse().unwrap()));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    Answer::of(child.wait_with_output().unwrap())
}

/// Waits until a process catches interrupts: before that, one would end it.
fn await_catching(pid: u32) {
    let end = Instant::now() + otelctx_fixtures::HANG_TIMEOUT;
    let catches = || {
        // proc_pid_status(5): a bit for each signal, from 1 on.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let bits = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
        bits.is_some_and(|bits| bits >> (Signal::SIGINT as u32 - 1) & 1 == 1)
    };
    while !catches() {
        assert!(Instant::now() < end, "interrupts are not caught");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupt_ends_a_recording_which_is_written() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-interrupt");
    let path = scratch.path("a.otlp");
    given_time(|seconds| {
        let answer = interrupted(&target, &path, seconds).expect(0);
        // Without samples, it keeps the file of the run before.
        if answer.stderr.contains("former content") {
            return Err(answer);
        }
        assert!(answer.stdout.contains("otelctx report "), "{answer:?}");
        match number(&report(&path)["with_trace"]) {
            0 => Err(answer),
            _ => Ok(()),
        }
    });
}

#[test]
fn a_second_interrupt_says_that_nothing_was_written() {
    let target = Target::start("busy");
    let scratch = Scratch::new("record-twice");
    let path = scratch.path("a.otlp");
    let pid = target.pid().to_string();
    given_time(|_| {
        let _ = fs::remove_file(&path);
        let mut recording = command(&["record", "-p", &pid, "-o", &path]);
        let recording = recording.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = recording.spawn().unwrap();
        await_catching(child.id());
        while child.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr.clone()).unwrap();
        if output.status.success() {
            // Written before the second one arrived.
            return Err(said);
        }
        assert_eq!(output.status.signal(), Some(libc::SIGINT), "{output:?}");
        let line = "otelctx: interrupted twice: the recording was not written\n";
        assert_eq!(said.matches(line).count(), 1, "{said}");
        assert_eq!(scratch.names(), [""; 0]);
        Ok(())
    });
}

/// They would be read as parts of the new one.
#[test]
fn further_parts_of_an_earlier_recording_are_removed() {
    let scratch = Scratch::new("record-parts");
    let target = Target::start("busy");
    let path = scratch.path("a.otlp");
    given_time(|seconds| {
        for name in ["a.2.otlp", "a.3.otlp", "a.5.otlp", "b.2.otlp"] {
            fs::write(scratch.path(name), "earlier").unwrap();
        }
        let answer = recorded(&target, &["-d", seconds, "-o", &path]);
        let has_samples = !fs::read(&path).unwrap_or_default().is_empty();
        if has_samples {
            Ok(())
        } else {
            Err(answer.stderr)
        }
    });
    // Others stay: they are no parts of it.
    assert_eq!(scratch.names(), ["a.5.otlp", "a.otlp", "b.2.otlp"]);
    otelctx(&["report", &path, "-o", &scratch.path("b.otlp")]).expect(0);
    assert_eq!(scratch.names(), ["a.5.otlp", "a.otlp", "b.otlp"]);
}

#[test]
fn a_report_says_what_is_wrong_with_its_file() {
    let scratch = Scratch::new("record-report");
    let target = Target::start("busy");
    let path = scratch.path("a.otlp");
    given_time(|seconds| {
        recorded(&target, &["-d", seconds, "-o", &path]);
        let text = otelctx(&["report", &path]).expect(0).stdout;
        let parts = ["By http.route", "By trace", "By function", TRACE];
        match parts.iter().all(|part| text.contains(part)) {
            true => Ok(()),
            false => Err(text),
        }
    });
    let whole = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let answer = otelctx(&["report", &path]).expect(2);
        assert!(
            answer.stderr.contains("not a complete OTLP profile"),
            "{answer:?}"
        );
    };
    refused(&whole[..whole.len() / 2]);
    refused(&[]);
    fs::write(&path, "#!/bin/sh\n").unwrap();
    let answer = otelctx(&["report", &path]).expect(2);
    let text = "not a profile that can be read: it is a text";
    assert!(answer.stderr.contains(text), "{answer:?}");
    let answer = otelctx(&["report", &scratch.path("none.otlp")]).expect(2);
    assert!(
        answer.stderr.contains("No such file or directory"),
        "{answer:?}"
    );
}

#[test]
fn processes_are_recorded_by_name() {
    let scratch = Scratch::new("record-name");
    let flags = ["-DPROGRAM", "-DNAME=work", "-DMILLISECONDS=600000"];
    let Some(program) = Compiler::gcc().program(&["work.c"], &flags) else {
        return;
    };
    let name = format!("otelctx-{}", std::process::id());
    let path = scratch.path(&name);
    otelctx_fixtures::copy_program(program, &path);
    let mut working = [(); 2].map(|()| std::process::Command::new(&path).spawn().unwrap());
    let output = scratch.path("a.folded");
    given_time(|seconds| {
        let arguments = [
            "record", "--name", &name, "-d", seconds, "-o", &output, "--json",
        ];
        let answer = otelctx(&arguments).expect(0).json();
        (answer["processes"] == 2).then_some(()).ok_or(answer)
    });
    for child in &mut working {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let answer = otelctx(&["record", "--name", &name, "-o", &output]);
    assert_eq!(answer.status, 2);
    let expected = format!("otelctx: no process is named {name}\n");
    assert_eq!(answer.stderr, expected);
    let answer = otelctx(&["record", "--cgroup", "otelctx/none", "-o", &output]);
    let expected = "otelctx: no process is in control group /otelctx/none\n";
    assert_eq!((answer.status, &answer.stderr[..]), (2, expected));
    let container = "0".repeat(64);
    let answer = otelctx(&["record", "--container", &container, "-o", &output]);
    let expected = format!("otelctx: no process is in container {container}\n");
    assert_eq!((answer.status, answer.stderr), (2, expected));
    let both = otelctx(&["record", "--name", &name, "--all", "-o", &output]);
    assert!(
        both.stderr.contains("cannot be used with"),
        "{}",
        both.stderr
    );
}

#[test]
fn processes_that_were_selected_by_name_may_end_before_sampling_starts() {
    let scratch = Scratch::new("record-name-ended");
    let compile = |milliseconds: &str| {
        let flags = ["-DPROGRAM", "-DNAME=work", milliseconds];
        Compiler::gcc().program(&["work.c"], &flags)
    };
    let (Some(long), Some(short)) = (
        compile("-DMILLISECONDS=600000"),
        compile("-DMILLISECONDS=20"),
    ) else {
        return;
    };
    let name = format!("otelctx-ended-{}", std::process::id());
    let [path, short_path] = ["long", "short"].map(|folder| {
        std::fs::create_dir(scratch.path(folder)).unwrap();
        scratch.path(&format!("{folder}/{name}"))
    });
    otelctx_fixtures::copy_program(long, &path);
    otelctx_fixtures::copy_program(short, &short_path);
    let mut working = std::process::Command::new(&path).spawn().unwrap();
    let script = "while kill -0 $2; do $1; done 2> /dev/null";
    let mut ending = [(); 3].map(|()| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script, "sh", &short_path, &working.id().to_string()]);
        shell.spawn().unwrap()
    });
    let output = scratch.path("a.folded");
    let answers = [(); 3].map(|()| {
        otelctx(&[
            "record", "--name", &name, "-d", "0.5", "-o", &output, "--json",
        ])
    });
    working.kill().unwrap();
    working.wait().unwrap();
    for shell in &mut ending {
        shell.wait().unwrap();
    }
    for answer in answers {
        assert_eq!(answer.status, 0, "{answer:?}");
    }
}

#[test]
fn a_program_that_publishes_nothing_is_not_unreadable() {
    let scratch = Scratch::new("record-silent");
    let path = scratch.path("a.otlp");
    for method in [&[][..], &["--ptrace"]] {
        let loops = ["--", "sh", "-c", "while :; do :; done"];
        let counts = given_time(|seconds| {
            let options = ["record", "--json", "-d", seconds, "-o", &path];
            let json = otelctx(&[&options, method, &loops].concat())
                .expect(143)
                .json();
            match number(&json["samples"]) {
                0 => Err(json),
                _ => Ok(json["counts"].clone()),
            }
        });
        let unreadable = counts["unreadable"].as_object().unwrap().values();
        assert_eq!(unreadable.map(number).sum::<u64>(), 0, "{counts:#}");
        assert!(number(&counts["not_published"]) > 0, "{counts:#}");
    }
}
