//! Processes that do not run because they were stopped or frozen.

use std::fs;

use otelctx_reader::remote::Process;

/// Why a process does not run, and what ends that.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) message: String,
    pub(super) hint: String,
}

/// Returns the reason for the first of these processes that is stopped, or frozen with its control group.
pub(super) fn first_of(pids: &[i32]) -> Option<Held> {
    pids.iter().find_map(|pid| of(*pid))
}

fn of(pid: i32) -> Option<Held> {
    let process = Process::open(pid).ok()?;
    if let Some((group, file, value)) = frozen(&process.control_groups().ok()?) {
        return Some(Held {
            message: format!("process {pid} is frozen with its control group {group}"),
            hint: format!("echo {value} > {file}  resumes it"),
        });
    }
    let (message, hint) = match process.status().ok()?.state {
        'T' => (
            "stopped by a signal",
            format!("kill -CONT {pid}  resumes it"),
        ),
        't' => ("stopped by a debugger", "continue it there".to_owned()),
        _ => return None,
    };
    Some(Held {
        message: format!("process {pid} is {message}"),
        hint,
    })
}

/// Returns the control group of `/proc/PID/cgroup` that is frozen, and the file and the value that
/// resume it: in version 2 the group itself or one that it is in (cgroups(7)), in version 1 that of the
/// freezer.
fn frozen(groups: &str) -> Option<(String, String, &'static str)> {
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.split(',').any(|it| it == "freezer") {
            let file = format!("/sys/fs/cgroup/freezer{path}/freezer.state");
            let state = fs::read_to_string(&file).unwrap_or_default();
            if state.starts_with("FR") {
                return Some((path.to_owned(), file, "THAWED"));
            }
        } else if controllers.is_empty() {
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                let events = fs::read_to_string(format!("{root}{path}/cgroup.events"));
                if events
                    .unwrap_or_default()
                    .lines()
                    .any(|it| it == "frozen 1")
                {
                    let file = freezing(root, path);
                    return Some((path.to_owned(), file, "0"));
                }
            }
        }
    }
    None
}

/// Returns the file of the group that is to be resumed: the frozen one or the outermost around it.
fn freezing(root: &str, path: &str) -> String {
    let ends = path.match_indices('/').map(|(at, _)| at).skip(1);
    let mut groups = ends.chain([path.len()]).map(|end| &path[..end]);
    let is_frozen = |group: &&str| {
        let own = fs::read_to_string(format!("{root}{group}/cgroup.freeze"));
        own.is_ok_and(|it| it.trim() == "1")
    };
    let group = groups.find(is_frozen).unwrap_or(path);
    format!("{root}{group}/cgroup.freeze")
}
