//! A process that is no more, by its core file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::signal::Signal;
use otelctx_reader::remote::CoreFile;
use otelctx_reader::{Core, Options, ThreadSupport, Unreadable};
use serde::Serialize;

use super::report::{Look, MOST_CONTEXTS, Report};
use super::runtimes::{self, Runtimes};
use crate::command::partial::{Partial, PartialReason};
use crate::error::Error;

/// What is said of a core file, beside what is said of every process.
#[derive(Debug, Serialize)]
pub(super) struct CoreReport {
    pub(super) file: PathBuf,
    /// What ended the process, if a signal did.
    pub(super) signal: Option<String>,
    /// The thread that the signal hit.
    pub(super) crashed_thread: Option<i32>,
    /// What is missing, a sentence each.
    pub(super) missing: Vec<String>,
}

/// Reads everything in the core file at `path`.
pub(super) fn gather(path: &Path, sysroot: &Path, options: Options) -> Result<Report, Error> {
    // Listed, because a file in its place would do for nothing.
    std::fs::read_dir(sysroot).map_err(|why| Error::Sysroot {
        path: sysroot.to_owned(),
        why,
    })?;
    let forced = options.any_schema;
    let core = Core::with_options(CoreFile::open(path, sysroot)?, options);
    let support = core.thread_support()?;
    let target = core.target();
    let is_readable = matches!(support, ThreadSupport::Readable(_));
    let present = core.runtimes()?;
    let (mut looks, mut kept) = (Vec::new(), 0);
    for thread in target.threads() {
        if kept > MOST_CONTEXTS {
            break;
        }
        let look = if present.is_empty() {
            let outcome = is_readable.then(|| core.thread_context(&support, thread));
            Look::new(thread.tid, None, outcome)
        } else {
            let state = core.thread_state(&support, &present, thread);
            runtimes::look(thread.tid, None, state)
        };
        kept += look.size();
        looks.push(look);
    }
    let (read, of) = (looks.len(), target.threads().len());
    let partial = (read < of).then_some(Partial {
        read,
        of,
        why: PartialReason::Memory(MOST_CONTEXTS),
    });
    let tasks = core.tasks(&present);
    let runtimes = Runtimes::of(present, tasks, &looks);
    let crash = target.crash();
    Ok(Report {
        pid: target.pid(),
        comm: target.comm().unwrap_or_default(),
        asked_thread: None,
        shares_memory_with: None,
        core: Some(CoreReport {
            file: path.into(),
            signal: crash.map(|(signal, _)| signal_name(signal)),
            crashed_thread: crash.map(|(_, tid)| tid),
            missing: missing(target, &support),
        }),
        forced,
        running: false,
        context: core.context()?,
        detected: None,
        looks,
        runtimes,
        kernel_workers: 0,
        support: Ok(Arc::new(support)),
        partial,
    })
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(
        |_| format!("signal {number}"),
        |signal| signal.as_str().to_owned(),
    )
}

/// What the core lacks as a whole, and the modules that could not be looked into.
fn missing(core: &CoreFile, support: &ThreadSupport) -> Vec<String> {
    let mut missing: Vec<String> = core.missing().iter().map(ToString::to_string).collect();
    let modules = match support {
        ThreadSupport::Readable(variables) => &variables.resolution.unreadable[..],
        ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) => unreadable,
        ThreadSupport::Unreadable(_) => &[],
    };
    // What the whole lacks stands in the way of the search for the variable, too.
    let said = |why: &String| missing.contains(why);
    let modules = modules.iter().filter(|(_, why)| !said(why));
    let modules: Vec<String> = modules
        .map(|(name, why)| format!("{}: {why}", name.to_string_lossy()))
        .collect();
    missing.extend(modules);
    missing
}
