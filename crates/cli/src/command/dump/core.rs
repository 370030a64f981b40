//! A process that is no more, by its core file.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::signal::Signal;
use otelctx_reader::remote::CoreFile;
use otelctx_reader::{Core, Error, Options, ThreadSupport, Unreadable};
use serde::Serialize;

use super::report::{Look, Report};

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

/// Looks at everything in the core file at `path`.
pub(super) fn gather(path: &Path, sysroot: &Path, options: Options) -> Result<Report, Error> {
    let forced = options.any_schema;
    let core = Core::with_options(CoreFile::open(path, sysroot)?, options);
    let support = core.thread_support()?;
    let target = core.target();
    let threads = target.threads().iter();
    let looks = threads.map(|thread| Look {
        tid: thread.tid,
        name: None,
        outcome: matches!(support, ThreadSupport::Readable(_))
            .then(|| core.thread_context(&support, thread)),
    });
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
        context: core.context()?,
        detected: None,
        looks: looks.collect(),
        support: Ok(Arc::new(support)),
        partial: None,
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
    let whole = core.missing().iter().map(ToString::to_string);
    let modules = match support {
        ThreadSupport::Readable(variables) => &variables.resolution.unreadable[..],
        ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) => unreadable,
        ThreadSupport::Unreadable(_) => &[],
    };
    let module = |name: &OsStr, why: &str| format!("{}: {why}", name.to_string_lossy());
    whole
        .chain(modules.iter().map(|(name, why)| module(name, why)))
        .collect()
}
