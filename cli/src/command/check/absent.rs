//! A process that publishes no process context: where to look instead, or what to add for its runtime.

mod python;

use std::time::Instant;

use otelctx_reader::format::process_context::Value;
use otelctx_reader::{ContextState, Options, Process};

use super::finding::Finding;
use super::go;
use super::halfway_to;
use crate::command::descendants;

/// Returns the finding about a process that publishes nothing, if it needs no further ones: a child
/// publishes, or its language runtime is known, so that the variable of a module says nothing.
pub(super) fn in_known_way(process: &mut Process, deadline: Instant) -> Option<Finding> {
    wrapper(process, deadline).or_else(|| {
        let present = process.runtimes().ok()?;
        let version = |name: &str| {
            let found = present.iter().find(|it| it.name == name)?;
            let facts = found.process.as_ref().ok()?.facts();
            match facts.into_iter().find(|(name, _)| *name == "version")?.1 {
                Value::String(version) => Some(version),
                _ => None,
            }
        };
        let (nodejs, cpython) = (version("nodejs"), version("cpython"));
        // Without an addon that publishes, Node.js is not among the runtimes.
        if let Some(version) = nodejs.or_else(|| node_without_addon(process)) {
            return Some(node(absence(process, deadline), &version));
        }
        match cpython {
            Some(version) => {
                let advice = absence(process, deadline);
                Some(python::advise(advice, process, &version))
            }
            None => go::version(process).map(|version| go::absent(&version)),
        }
    })
}

/// Returns the version of Node.js in a process without an addon that publishes.
fn node_without_addon(process: &mut Process) -> Option<String> {
    let files = process.files().clone();
    let target = process.target().ok()?;
    otelctx_node::version_in(&*target, &files)
}

/// Says that the children of a wrapper, such as a shell, publish.
fn wrapper(process: &Process, deadline: Instant) -> Option<Finding> {
    let pid = process.running().ok()?.pid();
    let publishing = descendants::publishing(pid, halfway_to(deadline));
    let (children, command) = descendants::sentences(&publishing, "check")?;
    let text = format!("it publishes no process context; {children}");
    Some(Finding::problem("no-process-context", text).hint(format!("Check that one:  {command}")))
}

/// The finding without hints. A forked child inherits nothing, which is often a mistake.
fn absence(process: &Process, deadline: Instant) -> Finding {
    let status = process.running().ok().and_then(|it| it.status().ok());
    let parent = status.map_or(0, |status| status.parent);
    let mut options = Options::default();
    options.deadline = Some(halfway_to(deadline));
    let publishes = Process::with_options(parent, options)
        .and_then(|mut parent| parent.context())
        .is_ok_and(|state| matches!(state, ContextState::Published(_)));
    if publishes {
        let text = format!(
            "it publishes no process context; its parent, process {parent}, does, but a forked \
             child does not inherit it"
        );
        Finding::problem("no-process-context", text)
            .hint("Publish in the child, too, after each fork.")
    } else {
        Finding::problem("no-process-context", "it publishes no process context")
    }
}

/// Says how a program in an unknown language publishes.
pub(super) fn in_any_way(process: &Process, deadline: Instant) -> Finding {
    absence(process, deadline)
        .hint("At start-up, a Rust program calls  otelctx::ProcessContext::detect().publish()")
        .hint(
            "A C program calls  otelctx_publish(process, &error), Python has  import otelctx, and \
            Node.js  --import otelctx/register",
        )
        .hint("If it does, check whether the call returned an error. A sandbox may deny memfd_create.")
}

/// Says how this version of Node.js publishes.
fn node(finding: Finding, version: &str) -> Finding {
    finding
        .hint("Start it with  node --import otelctx/register")
        .hint(format!(
            "That takes Node.js 24 or later, or 22.7 with  --experimental-async-context-frame: \
             this is {version}. Where it can't publish, it says so on standard error."
        ))
}
