//! Profiles that Go's own runtime writes, as `go tool pprof` reads them.

use std::collections::BTreeMap;
use std::process::Command;

use otelctx_fixtures::go_program;

use crate::run::{Scratch, otelctx};

/// What pprof's own code says of a profile, with times in nanoseconds.
fn pprof(view: &str, file: &str) -> String {
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-unit=ns", view, file]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn nanoseconds(text: &str) -> u64 {
    text.strip_suffix("ns").unwrap().parse().unwrap()
}

/// Regression: Go writes the time before all else, and such files were taken for OTLP.
#[test]
fn reports_of_gos_profiles_have_the_numbers_of_pprof() {
    let Some(program) = go_program("profiles.go", &[]) else {
        return;
    };
    let scratch = Scratch::new("go-profiles");
    let written = Command::new(program).arg(scratch.path("")).status();
    assert!(written.unwrap().success());
    let report = |name: &str| {
        let file = scratch.path(name);
        let json = otelctx(&["report", &file, "--by", "http.route", "--json"])
            .expect(0)
            .json();
        (file, json)
    };

    let (file, cpu) = report("cpu.pb.gz");
    // `        90000000ns (32.14%): /cart`, below the line of the label.
    let text = pprof("-tags", &file);
    let of_routes = text.split("http.route: ").nth(1).unwrap().lines().skip(1);
    let of_routes = of_routes.take_while(|line| !line.trim().is_empty());
    let of_routes = of_routes.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words[words.len() - 1].to_owned(), nanoseconds(words[0]))
    });
    let expected: BTreeMap<String, u64> = of_routes.collect();
    assert_eq!(expected.len(), 3, "{text}");
    let found = cpu["by_attribute"].as_array().unwrap().iter();
    let found = found.filter(|it| !it["name"].is_null() && it["name"] != "(none)");
    let found = found.map(|it| {
        let name = it["name"].as_str().unwrap().to_owned();
        (name, it["running_ns"].as_u64().unwrap())
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), expected);

    for name in ["block.pb.gz", "mutex.pb.gz"] {
        let (file, waits) = report(name);
        // `Showing nodes accounting for 6700883963ns, 100% of 6701343153ns total`, or `… 100% of … total`.
        let text = pprof("-top", &file);
        let total = text.split(" of ").nth(1).unwrap();
        let total = nanoseconds(total.split(' ').next().unwrap());
        assert_eq!(waits["waiting_ns"], total, "{name}: {text}");
        assert_eq!(waits["running_ns"], 0, "{name}");
        assert!(total > 0);
    }
}
