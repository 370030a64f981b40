//! The files in `deploy/`: settings that the agent takes, and capabilities that it keeps.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::{Answer, Scratch, command};

/// The capabilities that the agent keeps; `SYS_ADMIN` only where the kernel asks for it (`cli/src/command/agent/privileges.rs`).
const CAPABILITIES: [&str; 9] = [
    "BPF",
    "CHECKPOINT_RESTORE",
    "DAC_READ_SEARCH",
    "PERFMON",
    "SYSLOG",
    "SYS_ADMIN",
    "SYS_NICE",
    "SYS_PTRACE",
    "SYS_RESOURCE",
];

fn deploy(path: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    root.join("deploy").join(path)
}

fn read(path: &str) -> String {
    let path = deploy(path);
    fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The summary of settings in a file with this content, with more arguments.
fn checked(content: &str, more: &[&str]) -> String {
    let scratch = Scratch::new("deploy");
    let path = scratch.path("agent.toml");
    fs::write(&path, content).unwrap();
    let arguments = [&["agent", "--config", &path], more, &["--check-config"]].concat();
    let answer = Answer::of(command(&arguments).output().unwrap());
    answer.expect(0).stdout
}

/// The lines of a block below this line, without their indentation.
fn block(text: &str, head: &str) -> String {
    let lines = text
        .lines()
        .skip_while(|line| line.trim_end() != head)
        .skip(1);
    let indentation = head.len() - head.trim_start().len() + 2;
    let lines = lines.take_while(|line| {
        line.trim().is_empty() || line.len() - line.trim_start().len() >= indentation
    });
    let lines: Vec<&str> = lines
        .map(|line| line.get(indentation..).unwrap_or(""))
        .collect();
    assert!(lines.iter().any(|line| !line.is_empty()), "{head}");
    lines.join("\n")
}

#[test]
fn the_unit_starts_the_agent_with_its_settings() {
    let unit = read("systemd/otelctx-agent.service");
    let settings = read("systemd/agent.toml");
    let mut commands = 0;
    for line in unit.lines() {
        let line = line
            .strip_prefix("ExecStart=")
            .or(line.strip_prefix("ExecStartPre="));
        let Some(line) = line else {
            continue;
        };
        let start = "/usr/bin/otelctx agent --config /etc/otelctx/agent.toml";
        let more = line.strip_prefix(start).unwrap_or_else(|| panic!("{line}"));
        let more = more.replace("${STATE_DIRECTORY}", "/var/lib/otelctx");
        let more = more.split_whitespace().filter(|it| *it != "--check-config");
        let more: Vec<&str> = more.collect();
        let summary = checked(&settings, &more);
        assert!(summary.starts_with("collector    http://localhost:4317 over grpc"));
        assert_eq!(summary.contains("in /var/lib/otelctx\n"), !more.is_empty());
        commands += 1;
    }
    assert_eq!(commands, 2);
}

#[test]
fn settings_for_kubernetes_are_those_of_the_agent() {
    let manifests = read("kubernetes/daemonset.yaml");
    let plain = checked(&block(&manifests, "  agent.toml: |"), &[]);
    assert!(plain.contains("in /var/lib/otelctx\n"), "{plain}");
    // The chart writes each value of `config` as TOML.
    let values = block(&read("helm/otelctx-agent/values.yaml"), "config:");
    let settings = values.lines().filter(|line| !line.is_empty()).map(|line| {
        let (key, value) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        match value.parse::<f64>() {
            Ok(number) => format!("{key} = {number:?}\n"),
            Err(_) => format!("{key} = {value:?}\n"),
        }
    });
    let of_chart = checked(&settings.collect::<String>(), &[]);
    assert_eq!(of_chart, plain);
}

#[test]
fn each_way_of_deploying_grants_what_the_agent_keeps() {
    let expected: BTreeSet<String> = CAPABILITIES.iter().map(|it| (*it).to_owned()).collect();
    let unit = read("systemd/otelctx-agent.service");
    let line = unit
        .lines()
        .find_map(|it| it.strip_prefix("CapabilityBoundingSet="));
    let names = line
        .unwrap()
        .split(' ')
        .map(|it| it.strip_prefix("CAP_").unwrap().to_owned());
    assert_eq!(names.collect::<BTreeSet<_>>(), expected);
    for path in [
        "kubernetes/daemonset.yaml",
        "helm/otelctx-agent/templates/daemonset.yaml",
    ] {
        let text = read(path);
        let line = text.lines().find_map(|it| it.trim().strip_prefix("add: ["));
        let names = line
            .unwrap()
            .trim_end_matches(']')
            .split(", ")
            .map(str::to_owned);
        assert_eq!(names.collect::<BTreeSet<_>>(), expected, "{path}");
    }
    // The table has a row for each.
    let table = read("README.md");
    for name in CAPABILITIES {
        assert!(table.contains(&format!("`CAP_{name}`")), "{name}");
    }
}

#[test]
fn a_collector_takes_the_configuration_of_a_gateway() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let collector = root.join("target/setup/otelcol/otelcol");
    if !collector.is_file() {
        println!("skipped: no Collector at {}", collector.display());
        return;
    }
    // The one for nodes needs an exporter that this Collector was built without.
    let mut validate = Command::new(collector);
    validate
        .arg("validate")
        .arg("--config")
        .arg(deploy("collector/gateway.yaml"));
    let answer = validate
        .arg("--feature-gates=service.profilesSupport")
        .output();
    let answer = answer.unwrap();
    assert!(answer.status.success(), "{answer:?}");
}
