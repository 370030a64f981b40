//! Node.js with a tracer that others wrote.

use std::fs;
use std::process::Command;

use otelctx_fixtures::{Compiler, Node, Target};
use serde_json::Value;

use crate::check::check;
use crate::run::{Scratch, given_time, otelctx, top};
use crate::wall::can_sample_waits;

/// A process that works on a request, its trace and its span.
fn traced() -> Option<(Target, [String; 2])> {
    let target = Target::spawn(&mut Node::find()?.traced()?);
    let ids = ids(&target);
    Some((target, ids))
}

/// The trace and the span that a process says.
fn ids(target: &Target) -> [String; 2] {
    let ids = target.lines.iter().find_map(|it| it.strip_prefix("trace "));
    let (trace, span) = ids.unwrap().split_once(' ').unwrap();
    [trace.to_owned(), span.to_owned()]
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn dump_ps_and_check_show_the_trace_of_a_request() {
    let Some((target, [trace, span])) = traced() else {
        return;
    };
    let pid = target.pid().to_string();
    let dump = otelctx(&["dump", &pid, "--json"]).expect(0).json();
    let version = text(&dump["runtimes"]["nodejs"]["version"]);
    assert!(version.starts_with("24."), "{version}");
    let threads = dump["threads"].as_array().unwrap();
    let main = threads.iter().find(|it| it["tid"] == target.pid()).unwrap();
    assert_eq!(main["context"]["trace_id"], *trace, "{main:#}");
    assert_eq!(main["context"]["span_id"], *span, "{main:#}");
    let attached = threads.iter().filter(|it| it["context"].is_object());
    assert_eq!(attached.count(), 1, "{dump:#}");

    let answer = check(&pid);
    assert_eq!(answer.status, 0, "{}", answer.stdout);
    let findings = answer.json()["findings"].clone();
    let of = |id: &str| {
        let mut findings = findings.as_array().unwrap().iter();
        findings.find(|it| it["id"] == id).unwrap().clone()
    };
    assert_eq!(of("nodejs-schema")["level"], "ok");
    assert!(text(&of("threads")["text"]).ends_with("; 1 attached now"));

    let list = otelctx(&["ps", "--threads", "--json"]).expect(0).json();
    let mut rows = list["processes"].as_array().unwrap().iter();
    let row = rows.find(|it| it["pid"] == target.pid()).unwrap();
    assert_eq!(row["threads_with_trace"], 1, "{row:#}");
}

/// Single executable applications are such copies.
#[test]
fn a_copy_of_node_with_another_name_has_the_version() {
    let Some(traced) = Node::find().and_then(|node| node.traced()) else {
        return;
    };
    let scratch = Scratch::new("nodejs-copy");
    let copy = scratch.path("shop");
    fs::copy(traced.get_program(), &copy).unwrap();
    let mut command = Command::new(copy);
    command.args(traced.get_args());
    command.envs(
        traced
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    let target = Target::spawn(&mut command);
    let dump = otelctx(&["dump", &target.pid().to_string(), "--json"]);
    let dump = dump.expect(0).json();
    let version = text(&dump["runtimes"]["nodejs"]["version"]);
    assert!(version.starts_with("24."), "{version}");
}

#[test]
fn each_sample_of_a_request_has_its_trace() {
    let Some((target, [trace, _])) = traced() else {
        return;
    };
    let pid = target.pid().to_string();
    for method in [None, Some("--ptrace")] {
        let scratch = Scratch::new("record-nodejs");
        let path = scratch.path("a.otlp");
        let mut arguments = vec!["record", "-p", &pid, "--json", "-d", "2", "-o", &path];
        arguments.extend(method);
        let summary = otelctx(&arguments).expect(0).json();
        let counts = &summary["counts"];
        assert_eq!(counts["incomplete_steps"], 0, "{summary:#}");
        let report = otelctx(&["report", "--json", &path]).expect(0).json();
        let traces = report["by_trace"].as_array().unwrap();
        assert_eq!(traces.len(), 1, "{report:#}");
        assert_eq!(traces[0]["trace_id"], *trace, "{report:#}");
        // The process's other threads hardly run.
        let (attached, all) = (counts["attached"].as_u64(), summary["samples"].as_u64());
        let (attached, all) = (attached.unwrap(), all.unwrap());
        assert!(attached > 0 && attached * 10 >= all * 9, "{summary:#}");
    }
}

#[test]
fn the_wait_of_a_request_has_its_trace() {
    if !can_sample_waits("nodejs") {
        return;
    }
    let Some(mut command) = Node::find().and_then(|node| node.traced()) else {
        return;
    };
    let target = Target::spawn(command.arg("wait"));
    let [trace, _] = ids(&target);
    let pid = target.pid().to_string();
    let scratch = Scratch::new("wall-nodejs");
    let path = scratch.path("a.otlp");
    given_time(|seconds| {
        let usual = ["record", "-p", &pid, "--json", "--wall", "--wall-only"];
        let arguments = [&usual[..], &["-d", seconds, "-o", &path]].concat();
        let summary = otelctx(&arguments).expect(0).json();
        if summary["waits"]["with_context_ns"] == 0 {
            return Err(summary);
        }
        let report = otelctx(&["report", "--json", &path]).expect(0).json();
        let traces = report["by_trace"].as_array().unwrap();
        let known: Vec<_> = traces.iter().map(|it| text(&it["trace_id"])).collect();
        assert_eq!(known, [&*trace], "{report:#}");
        Ok(())
    });
}

#[test]
fn top_shows_the_trace_of_a_request() {
    let Some((target, [trace, span])) = traced() else {
        return;
    };
    let pid = target.pid().to_string();
    given_time(|seconds| {
        let picture = top(&pid, "thread", seconds);
        let rows = picture["rows"].as_array().unwrap();
        // It has not run.
        let Some(main) = rows.iter().find(|row| row["tid"] == target.pid()) else {
            return Err(picture);
        };
        assert_eq!(main["trace_id"], *trace, "{picture:#}");
        assert_eq!(main["span_id"], *span, "{picture:#}");
        assert_eq!(main["service"], "shop", "{picture:#}");
        let others = rows.iter().filter(|row| row["tid"] != target.pid());
        for row in others {
            assert_eq!(row["trace_id"], Value::Null, "{picture:#}");
        }
        Ok(())
    });
}

#[test]
fn compressed_pointers_are_the_reason_that_each_command_gives() {
    const REASON: &str = "V8 with compressed pointers is not supported";
    let flags = ["-O1", "-pthread", "-rdynamic", "-DWORD_SIZE=4"];
    let schema = "-DSCHEMA=\"nodejs_v1_dev\"";
    let flags = [&flags[..], &[schema]].concat();
    let Some(program) = Compiler::gcc().program(&["node_heap.c", "publish.c"], &flags) else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let pid = target.pid().to_string();

    let dump = otelctx(&["dump", &pid, "--json"]);
    let dump = dump.json();
    let threads = dump["threads"].as_array().unwrap();
    let errors: Vec<_> = threads.iter().map(|it| &it["nodejs"]["error"]).collect();
    assert!(errors.iter().any(|it| **it == REASON), "{dump:#}");
    let text = otelctx(&["dump", &pid]).stdout;
    assert!(text.contains(REASON), "{text}");

    let answer = check(&pid);
    assert!(answer.stdout.contains(REASON), "{}", answer.stdout);
    assert_ne!(answer.status, 0);

    for method in [None, Some("--ptrace")] {
        let scratch = Scratch::new("record-nodejs-compressed");
        let path = scratch.path("a.otlp");
        let mut arguments = vec!["record", "-p", &pid, "-d", "1", "-o", &path];
        arguments.extend(method);
        let run = otelctx(&arguments);
        let shown = format!("without the part of nodejs: {REASON}");
        assert!(
            run.stdout.contains(&shown) || run.stderr.contains(&shown),
            "{run:?}"
        );
    }
}

#[test]
fn check_knows_the_variable_of_an_addon() {
    let Some(node) = Node::find() else { return };
    let (Some(folder), Some(own)) = (node.addon("5.20"), node.addon("otelctx")) else {
        return;
    };
    let of_others =
        ["linux-x64", "linux-arm64"].map(|machine| folder.join("prebuilds").join(machine));
    let own = fs::read_dir(own.join("prebuilds")).unwrap();
    let own = own.map(|entry| entry.unwrap().path());
    for folder in of_others.into_iter().chain(own) {
        let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap();
        let answer = check(file.path());
        assert_eq!(answer.status, 0, "{}", answer.stdout);
        let findings = answer.json()["findings"].clone();
        let seen: Vec<_> = findings.as_array().unwrap().iter().collect();
        assert_eq!(seen[0]["id"], "exported", "{findings:#}");
        assert_eq!(
            seen[0]["text"], "otel_thread_ctx_nodejs_v1 is exported",
            "{findings:#}"
        );
        assert_eq!(seen[1]["access"], "tlsdesc", "{findings:#}");
        assert!(
            !answer.stdout.contains("otel_thread_ctx_v1"),
            "{findings:#}"
        );
    }
}

/// As with OpenTelemetry's SDK without an exporter, which creates no spans.
#[test]
fn a_program_without_any_context_has_a_hint() {
    const HINT: &str = "Node.js: no sample has a context; it had no request, or OpenTelemetry creates no spans because \
                        it has no exporter, as with OTEL_TRACES_EXPORTER=none\n";
    const CODE: &str = "const work = () => { const end = Date.now() + 50; while (Date.now() < end); setTimeout(work, 1) }; \
                        work(); console.log('ready')";
    let Some((node, package)) =
        Node::find().and_then(|it| it.addon("otelctx").map(|package| (it, package)))
    else {
        return;
    };
    let mut command = node.program();
    command.arg("--import").arg(package.join("lib/register.js"));
    let target = Target::spawn(command.args(["-e", CODE]));
    let pid = target.pid().to_string();
    let scratch = Scratch::new("node-without-context");
    for method in [None, Some("--ptrace")] {
        let path = scratch.path("a.folded");
        let mut arguments = vec!["record", "-p", &pid, "-d", "1", "-o", &path];
        arguments.extend(method);
        let summary = otelctx(&arguments).expect(0).stdout;
        assert!(summary.contains(&format!("\n  {HINT}")), "{summary}");
    }
    let shown = otelctx(&["top", "-p", &pid, "--batch", "--iterations", "1"]);
    let shown = shown.expect(0).stdout;
    assert!(shown.starts_with(HINT), "{shown}");
    let dump = otelctx(&["dump", &pid]).expect(0).stdout;
    let line = format!(
        "\n  thread {pid}  nodejs  state=no_frame  (its call has no asynchronous context)\n"
    );
    assert!(dump.contains(&line), "{dump}");
}
