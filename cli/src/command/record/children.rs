//! Child processes of the targets that ran before the recording started, and so are not recorded.

use std::collections::BTreeSet;

use otelctx_reader::remote::Process;
use otelctx_track::Facts;

use crate::command::filter;
use crate::command::ids::process_of;
use crate::output::text::{argument, count};

/// Maximum number of process IDs to list.
const MAX_LISTED: usize = 5;

/// A running child process that is not recorded.
#[derive(Debug, PartialEq, Eq)]
struct Child {
    pid: i32,
    /// The names that `--name` selects it by.
    names: Vec<String>,
}

/// Returns a hint about the children of these processes that are not recorded, if there are any.
/// Children that started later than this command are recorded.
pub(super) fn hint(targets: &[i32]) -> Option<String> {
    let targets = targets.iter().filter_map(|id| process_of(*id).ok());
    let targets: Vec<i32> = targets.collect();
    let own = Process::open(std::process::id() as i32).ok()?;
    let start = Facts::of(&own).start_ticks;
    let children_of = |pid| Process::open(pid).map_or_else(|_| Vec::new(), |it| it.children());
    let mut children = Vec::new();
    for pid in below(&targets, children_of) {
        // It may have ended since.
        let Ok(process) = Process::open(pid) else {
            continue;
        };
        let is_there = process.status().is_ok_and(|it| it.state != 'Z');
        let facts = Facts::of(&process);
        if is_there && facts.start_ticks <= start {
            let names = filter::names(&facts).map(str::to_owned).collect();
            children.push(Child { pid, names });
        }
    }
    hint_for(targets.len(), &children)
}

/// Returns the processes that descend from the targets and are none of them, in the order of their
/// IDs.
fn below(targets: &[i32], children_of: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let mut found = BTreeSet::new();
    let mut parents = targets.to_vec();
    while let Some(parent) = parents.pop() {
        let children = children_of(parent).into_iter();
        parents.extend(children.filter(|pid| !targets.contains(pid) && found.insert(*pid)));
    }
    found.into_iter().collect()
}

fn hint_for(targets: usize, children: &[Child]) -> Option<String> {
    let first = children.first()?;
    let of_all = |name: &&String| children.iter().all(|child| child.names.contains(name));
    let listed = children.iter().take(MAX_LISTED);
    let pids: Vec<String> = listed.map(|child| child.pid.to_string()).collect();
    let pids = pids.join(", ");
    let more = if children.len() > MAX_LISTED {
        ", …"
    } else {
        ""
    };
    let whose = if targets == 1 { "its" } else { "their" };
    let (are, them, all) = match children.len() {
        1 => ("is", "it", "it"),
        _ => ("are", "them", "all"),
    };
    let by_name = match first.names.iter().find(of_all) {
        Some(name) => format!(", or select {all} by name with --name {}", argument(name)),
        None => String::new(),
    };
    let number = count(children.len(), "child process", "child processes");
    Some(format!(
        "{whose} {number} ({pids}{more}) {are} not recorded: add {them} with -p{by_name}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn child(pid: i32, names: &[&str]) -> Child {
        Child {
            pid,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    #[test]
    fn children_are_named_by_what_all_of_them_are_called() {
        let hint = |targets, names: [&[&str]; 2]| {
            let children = [child(12, names[0]), child(7, names[1])];
            hint_for(targets, &children).unwrap()
        };
        assert_eq!(
            hint(
                1,
                [&["gunicorn", "python3.11"], &["gunicorn", "python3.11"]]
            ),
            "its 2 child processes (12, 7) are not recorded: add them with -p, or select all by name \
             with --name gunicorn"
        );
        assert!(hint(1, [&["a", "node"], &["node"]]).ends_with(" --name node"));
        assert_eq!(
            hint(2, [&["a"], &["b"]]),
            "their 2 child processes (12, 7) are not recorded: add them with -p"
        );
        assert_eq!(
            hint_for(1, &[child(3, &["a b"])]).unwrap(),
            "its 1 child process (3) is not recorded: add it with -p, or select it by name with \
             --name 'a b'"
        );
        assert_eq!(hint_for(1, &[]), None);
        let many: Vec<Child> = (1..=6).map(|pid| child(pid, &[])).collect();
        let hint = hint_for(1, &many).unwrap();
        assert!(
            hint.starts_with("its 6 child processes (1, 2, 3, 4, 5, …) are"),
            "{hint}"
        );
    }

    #[test]
    fn grandchildren_are_found_and_targets_are_not() {
        let parents = [(1, 0), (9, 7), (7, 1), (8, 7), (5, 9), (6, 1), (3, 3)];
        let children_of = |pid| {
            let children = parents.iter().filter(|(_, parent)| *parent == pid);
            children.map(|(child, _)| *child).collect()
        };
        assert_eq!(below(&[7], children_of), [5, 8, 9]);
        assert_eq!(below(&[7, 9], children_of), [5, 8]);
        assert_eq!(below(&[6], children_of), [0; 0]);
    }
}
