//! Dumps a core file.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use otelctx_reader::remote::CoreFile;
use otelctx_reader::{Options, Process, Unreadable};

use super::inspection::Inspection;
use super::model::{CoreReport, Report, Support};
use super::stacks::StackOptions;
use crate::error::Error;

/// No timeout: a core file does not change.
const NO_TIMEOUT: Duration = Duration::from_secs(u32::MAX as u64);

pub(super) fn dump(
    path: &Path,
    sysroot: &Path,
    options: Options,
    stacks: Option<&StackOptions>,
) -> Result<Report, Error> {
    // Listed, because a file instead of a directory would be useless.
    std::fs::read_dir(sysroot).map_err(|why| Error::Sysroot {
        path: sysroot.to_owned(),
        why,
    })?;
    let core = CoreFile::open(path, sysroot)?;
    let crash = core.crash();
    let mut missing: Vec<String> = core.missing().iter().map(ToString::to_string).collect();
    let open = |options| Ok(Process::of_target(core, options));
    let inspection = Inspection::begin(options, NO_TIMEOUT, open)?;
    let mut report = inspection.with_stacks(stacks).finish()?;
    missing.extend(unreadable_modules(&report, &missing));
    report.core = Some(CoreReport {
        file: path.into(),
        signal: crash.map(|(signal, _)| signal_name(signal)),
        crashed_thread: crash.map(|(_, tid)| tid),
        missing,
    });
    Ok(report)
}

fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(
        |_| format!("signal {number}"),
        |signal| signal.as_str().to_owned(),
    )
}

/// The modules that could not be read, one sentence each.
fn unreadable_modules(report: &Report, missing: &[String]) -> Vec<String> {
    let modules = match report.support() {
        Support::Readable(variables) => &variables.resolution.unreadable[..],
        Support::Unreadable(Unreadable::NotFound { unreadable }) => unreadable,
        _ => &[],
    };
    // Parts that the core file lacks entirely also prevent the search for the variable.
    let modules = modules.iter().filter(|(_, why)| !missing.contains(why));
    let sentence = |(name, why): &(OsString, String)| format!("{}: {why}", name.to_string_lossy());
    modules.map(sentence).collect()
}
