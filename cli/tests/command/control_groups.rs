//! `otelctx record` of the processes of a control group, and of a container by its group.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_fixtures::kernel::give_way;

use crate::otlp;
use crate::run::{Scratch, given_time, otelctx};
use crate::target::Target;

/// Control groups, which are removed when dropped.
struct ControlGroups {
    root: PathBuf,
    /// Control groups in the order in which they were created.
    created: Vec<PathBuf>,
}

impl ControlGroups {
    /// A group for this test in each place where one can be created. None, with a line, if that is nowhere.
    fn create(name: &str) -> Vec<Self> {
        let name = format!("otelctx-{name}-{}", std::process::id());
        // Version 2, version 2 beside version 1, and a controller of version 1.
        let directories = ["", "unified", "pids"].map(|it| Path::new("/sys/fs/cgroup").join(it));
        let mut groups = Vec::new();
        for directory in directories {
            let root = directory.join(&name);
            if !directory.join("cgroup.procs").exists() {
                continue;
            }
            match fs::create_dir(&root) {
                Ok(()) => groups.push(Self {
                    created: vec![root.clone()],
                    root,
                }),
                Err(error) => eprintln!("{}: {error}", root.display()),
            }
        }
        if groups.is_empty() {
            eprintln!("skipped: no control group can be created");
        }
        groups
    }

    /// Moves a process into the group with this path below the test's own, and creates the group. `None`, with a line,
    /// if that is not permitted.
    fn hold(&mut self, target: &Target, path: &str) -> Option<()> {
        let mut group = self.root.clone();
        for name in path.split_terminator('/') {
            group.push(name);
            if !group.exists() {
                fs::create_dir(&group).unwrap();
                self.created.push(group.clone());
            }
        }
        let moved = fs::write(group.join("cgroup.procs"), target.pid().to_string());
        let groups = fs::read_to_string(format!("/proc/{}/cgroup", target.pid())).unwrap();
        // In a container, the groups of the machine may be mounted from one of them on.
        let own = self.root.file_name().unwrap().to_str().unwrap();
        let path = format!("{own}/{path}");
        let expected = format!(":/{}", path.trim_end_matches('/'));
        let is_there = moved.is_ok() && groups.lines().any(|it| it.ends_with(&expected));
        if !is_there {
            eprintln!("skipped: {moved:?}, {groups}");
        }
        is_there.then_some(())
    }
}

impl Drop for ControlGroups {
    fn drop(&mut self) {
        for group in self.created.iter().rev() {
            // It fails if a process is still in it.
            let _ = fs::remove_dir(group);
        }
    }
}

#[test]
fn processes_are_recorded_by_control_group() {
    for groups in ControlGroups::create("record") {
        are_recorded_by_control_group(groups);
    }
}

fn are_recorded_by_control_group(mut groups: ControlGroups) {
    let scratch = Scratch::new("record-cgroup");
    let output = scratch.path("a.folded");
    let inside = Target::start("busy");
    let _outside = Target::start("busy");
    if groups.hold(&inside, "").is_none() {
        return;
    }
    let directory = groups.root.to_str().unwrap();
    given_time(|seconds| {
        let arguments = [
            "record", "--cgroup", directory, "-d", seconds, "-o", &output, "--json",
        ];
        let answer = otelctx(&arguments).expect(0).json();
        (answer["processes"] == 1).then_some(()).ok_or(answer)
    });
}

/// The container of each process that a file has samples of, by process ID.
fn containers(data: &ProfilesData) -> BTreeMap<i32, Option<String>> {
    let processes = data.resource_profiles.iter().map(|profiles| {
        let attributes = &profiles.resource.as_ref().unwrap().attributes;
        let value = |key| {
            let mut attributes = attributes.iter();
            let found = attributes.find(|attribute| attribute.key == key)?;
            found.value.clone()?.value
        };
        let Some(Value::IntValue(pid)) = value("process.pid") else {
            panic!("{attributes:?}");
        };
        let container = value("container.id").map(|value| match value {
            Value::StringValue(id) => id,
            other => panic!("{other:?}"),
        });
        (pid as i32, container)
    });
    processes.collect()
}

/// The groups are named as each runtime names those of its containers.
#[test]
fn processes_are_recorded_by_container() {
    for groups in ControlGroups::create("container") {
        are_recorded_by_container(groups);
    }
}

fn are_recorded_by_container(mut groups: ControlGroups) {
    let id = |number: u8| format!("{number:x}{:07x}", std::process::id()).repeat(8);
    let pod = "pod0b8f2e64_5c1d_4b7e_9a51_7d1f0c2f9f33";
    let kubernetes =
        format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{pod}.slice");
    let inside = [
        // Docker, with systemd and without.
        (1, format!("system.slice/docker-{}.scope", id(1))),
        (2, format!("docker/{}", id(2))),
        // containerd and CRI-O below Kubernetes.
        (3, format!("{kubernetes}/cri-containerd-{}.scope", id(3))),
        (4, format!("kubepods/burstable/{pod}/{}", id(4))),
        (5, format!("{kubernetes}/crio-{}.scope", id(5))),
        (6, format!("machine.slice/libpod-{}.scope/container", id(6))),
        // A container in one, as kind has them.
        (7, format!("docker/{}/kubelet/kubepods/{}", id(2), id(7))),
    ];
    // Processes that monitor a container, and one of the machine.
    let outside = [
        format!("{kubernetes}/crio-conmon-{}.scope", id(5)),
        format!("machine.slice/libpod-conmon-{}.scope", id(6)),
        "system.slice/shop.service".to_owned(),
    ];
    let mut running = Vec::new();
    for (number, path) in &inside {
        running.push((Target::start_with("busy", give_way), Some(id(*number))));
        if groups.hold(&running[running.len() - 1].0, path).is_none() {
            return;
        }
    }
    for path in &outside {
        running.push((Target::start_with("busy", give_way), None));
        if groups.hold(&running[running.len() - 1].0, path).is_none() {
            return;
        }
    }
    let scratch = Scratch::new("record-container");
    let output = scratch.path("a.otlp");
    let record = |ids: &[&str], expected: &BTreeMap<i32, Option<String>>| {
        given_time(|seconds| {
            let mut arguments = vec!["record", "-d", seconds, "-o", &output];
            arguments.extend(ids.iter().flat_map(|id| ["--container", id]));
            // A recording without samples leaves the file as it was.
            let _ = fs::remove_file(&output);
            otelctx(&arguments).expect(0);
            if !Path::new(&output).exists() {
                return Err(BTreeMap::new());
            }
            let found = containers(&otlp::read(&output));
            let is_subset = found.iter().all(|(pid, id)| expected.get(pid) == Some(id));
            assert!(is_subset, "{found:?}, not in {expected:?}");
            // On a busy machine, some may have had no CPU time.
            (found == *expected).then_some(()).ok_or(found)
        });
    };
    let pairs = running
        .iter()
        .map(|(target, id)| (target.pid(), id.clone()));
    let expected: BTreeMap<_, _> = pairs.filter(|(_, id)| id.is_some()).collect();
    let ids = inside.each_ref().map(|(number, _)| id(*number));
    record(&ids.each_ref().map(|id| &id[..]), &expected);
    record(&ids.each_ref().map(|id| &id[..12]), &expected);
    let first = BTreeMap::from([(running[0].0.pid(), Some(id(1)))]);
    record(&[&id(1)], &first);
    record(&[&id(1)[..12]], &first);
}

#[test]
fn a_frozen_control_group_is_the_reason_for_an_empty_recording() {
    for mut groups in ControlGroups::create("frozen") {
        let freeze = groups.root.join("cgroup.freeze");
        if !freeze.exists() {
            eprintln!("skipped: {} cannot be frozen", groups.root.display());
            continue;
        }
        let target = Target::start("busy");
        let pid = target.pid().to_string();
        // The group of the process itself is not the one that was frozen.
        if groups.hold(&target, "inner").is_none() {
            continue;
        }
        fs::write(&freeze, "1").unwrap();
        let events = groups.root.join("cgroup.events");
        while !fs::read_to_string(&events).unwrap().contains("frozen 1") {
            std::thread::yield_now();
        }
        let scratch = Scratch::new("record-frozen");
        let path = scratch.path("a.folded");
        let name = groups
            .root
            .file_name()
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned();
        for selector in [["-p", &pid], ["--cgroup", &name]] {
            let record = ["record", "-d", "0.3", "-o", &path];
            let answer = otelctx(&[&record[..], &selector].concat());
            let said = format!("no samples: process {pid} is frozen with its control group /");
            assert!(answer.stderr.contains(&said), "{answer:?}");
            let hint = format!("echo 0 > {}  resumes it\n", freeze.display());
            assert!(answer.stderr.ends_with(&hint), "{answer:?}");
        }
        fs::write(&freeze, "0").unwrap();
    }
}
