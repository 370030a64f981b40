//! The running processes that others have started, directly or through others.

use std::collections::BTreeSet;
use std::time::Instant;

use otelctx_reader::remote::Process;
use otelctx_reader::{ContextState, Options, Process as Publisher};

use crate::output::terminal;
use crate::output::text::{count, own_name};

/// Maximum number of process IDs to list in a sentence.
const MAX_LISTED: usize = 5;
/// Maximum number of descendants that are inspected for what they publish.
const MAX_INSPECTED: usize = 64;

/// Returns the running processes that descend from these and are none of them, in the order of their
/// IDs. This command and what it has started are not among them.
pub(super) fn of(pids: &[i32]) -> Vec<i32> {
    let own = std::process::id() as i32;
    let children_of = |pid| Process::open(pid).map_or_else(|_| Vec::new(), |it| it.children());
    let others_of = |pid| {
        let mut children = children_of(pid);
        children.retain(|child| *child != own);
        children
    };
    let mut found = below(pids, others_of);
    found.retain(|pid| Process::open(*pid).is_ok_and(|it| !it.has_ended()));
    found
}

/// Adds these descendants of the processes if they can be inspected, and says how many cannot.
pub(super) fn add_to(pids: &mut Vec<i32>, descendants: &[i32]) {
    let is_permitted = |pid: &i32| Process::open(*pid).is_ok_and(|it| it.memory().is_ok());
    let descendants = descendants.iter();
    let (added, denied): (Vec<i32>, Vec<i32>) = descendants.partition(|pid| is_permitted(pid));
    // A process that has ended since needs no word.
    let denied = denied.into_iter().filter(|pid| Process::open(*pid).is_ok());
    let denied = denied.count();
    if denied > 0 {
        let processes = count(denied, "child process", "child processes");
        let message = format!("{processes} could not be inspected: permission denied");
        terminal::complain(&message, None);
    }
    pids.extend(added);
}

/// Returns the descendants of a process that publish a process context.
pub(super) fn publishing(pid: i32, deadline: Instant) -> Vec<i32> {
    let mut options = Options::default();
    options.deadline = Some(deadline);
    let publishes = |pid: &i32| {
        let context =
            Publisher::with_options(*pid, options.clone()).and_then(|mut it| it.context());
        matches!(context, Ok(ContextState::Published(_)))
    };
    let mut found = of(&[pid]);
    found.truncate(MAX_INSPECTED);
    found.retain(publishes);
    found
}

/// Says that these descendants of a process publish, which publishes nothing itself, and which command
/// shows one. Returns `None` if there are none.
pub(super) fn sentences(publishing: &[i32], command: &str) -> Option<(String, String)> {
    let first = publishing.first()?;
    let message = match publishing {
        [pid] => format!("its child process {pid} publishes one"),
        pids => {
            let processes = count(
                pids.len(),
                "child process publishes one",
                "child processes publish one each",
            );
            format!("its {processes}: {}", list(pids))
        }
    };
    Some((message, format!("`{} {command} {first}`", own_name())))
}

/// Lists the first process IDs.
pub(super) fn list(pids: &[i32]) -> String {
    let listed = pids.iter().take(MAX_LISTED).map(i32::to_string);
    let listed = listed.collect::<Vec<_>>().join(", ");
    let more = if pids.len() > MAX_LISTED { ", …" } else { "" };
    listed + more
}

/// Returns the processes that descend from `pids` and are none of them, in the order of their IDs.
fn below(pids: &[i32], children_of: impl Fn(i32) -> Vec<i32>) -> Vec<i32> {
    let mut found = BTreeSet::new();
    let mut parents = pids.to_vec();
    while let Some(parent) = parents.pop() {
        let children = children_of(parent).into_iter();
        parents.extend(children.filter(|pid| !pids.contains(pid) && found.insert(*pid)));
    }
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grandchildren_are_found_and_the_processes_themselves_are_not() {
        let parents = [(1, 0), (9, 7), (7, 1), (8, 7), (5, 9), (6, 1), (3, 3)];
        let children_of = |pid| {
            let children = parents.iter().filter(|(_, parent)| *parent == pid);
            children.map(|(child, _)| *child).collect()
        };
        assert_eq!(below(&[7], children_of), [5, 8, 9]);
        assert_eq!(below(&[7, 9], children_of), [5, 8]);
        assert_eq!(below(&[6], children_of), [0; 0]);
    }

    #[test]
    fn no_more_than_a_few_processes_are_listed() {
        assert_eq!(list(&[1, 2]), "1, 2");
        assert_eq!(list(&[1, 2, 3, 4, 5, 6]), "1, 2, 3, 4, 5, …");
        assert_eq!(sentences(&[], "dump"), None);
        assert_eq!(
            sentences(&[7], "dump").unwrap().0,
            "its child process 7 publishes one"
        );
        let several = sentences(&[7, 8], "dump").unwrap();
        assert_eq!(several.0, "its 2 child processes publish one each: 7, 8");
        assert!(several.1.ends_with(" dump 7`"), "{several:?}");
    }
}
