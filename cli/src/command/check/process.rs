//! Checks what a running process publishes.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_reader::format::Schema;
use otelctx_reader::remote::inspect::{Contents, Inspection};
use otelctx_reader::remote::mappings::{Scan, ScanOptions};
use otelctx_reader::remote::module::{Machine, Module, Symbol};
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::remote::{Access, Storage};
use otelctx_reader::runtime::{Present, Runtimes};
use otelctx_reader::sweep::{Partial, PartialReason, Sweep};
use otelctx_reader::{
    ContextState, Error as ReaderError, Options, Process, SYMBOL, ThreadSupport, ThreadVariables,
    Unreadable,
};

use super::finding::{Answer, Finding};
use super::subject::{self, Subject};
use super::threads::{self, Checked};
use super::variable;
use super::{absent, access, addon, context, file, go};
use crate::command::ids::process_of;
use crate::command::runtimes::sentence;
use crate::error::{Error, MORE_TIME};
use crate::output::text::{self, grouped};

/// Maximum number of files to inspect for the reason why none has the variable.
const MAX_FILES: usize = 256;

/// Maximum number of files with the variable to inspect for what their linker did. Usually there
/// is one.
const MAX_INSPECTED: usize = 16;

/// Reads everything that a process publishes, to find out whether readers can. Takes at most
/// `timeout`. `id` is that of the process or of one of its threads.
pub(super) fn check(id: i32, timeout: Duration, runtimes: Runtimes) -> Result<Answer, Error> {
    let deadline = Instant::now() + timeout;
    let sweep = || Sweep::within(timeout).with_max_bytes(usize::MAX);
    let mut options = Options::default();
    options.deadline = Some(deadline);
    // The variable is of interest even if the process context does not announce it.
    options.any_schema = true;
    options.runtimes = runtimes;
    let pid = process_of(id)?;
    let mut process = Process::with_options(pid, options)?;
    let status = process.running()?.status()?;
    let state = process.context()?;
    let is_32_bit = is_32_bit(&process);
    let (findings, is_whole) = published(&mut process, &state, is_32_bit, deadline);
    let mut checked = Checked {
        findings,
        stopped: 0,
    };
    let schema = match &state {
        ContextState::Published(context) => context.schema.as_ref(),
        _ => None,
    };
    if is_32_bit {
        checked.findings.push(file::thirty_two_bits());
    } else if !is_whole {
        let result = match schema.filter(|schema| schema.is_nodejs()) {
            Some(schema) => addon::check_process(&mut process, schema, sweep(), &mut checked),
            None => {
                let announced = schema.is_some_and(Schema::is_thread_local_record);
                check_native(&mut process, announced, deadline, sweep(), &mut checked)
            }
        };
        late(result, &process, timeout, &mut checked)?;
    }
    if !is_32_bit && !schema.is_some_and(Schema::is_nodejs) && go::version(&mut process).is_some() {
        let result = go::check(&mut process, sweep(), &mut checked);
        late(result, &process, timeout, &mut checked)?;
    }
    checked.findings.extend(runtimes_of(process.runtimes())?);
    let lossy = |text: &OsStr| text.to_string_lossy().into_owned();
    let executable = process.running()?.executable().ok();
    let subject = Subject::Process {
        pid,
        comm: process.comm().map_or(String::new(), |it| lossy(&it)),
        asked_thread: (pid != id).then_some(id),
        executable: executable.map(|it| lossy(it.as_os_str())),
        state: subject::state(status.state),
        threads_stopped: checked.stopped,
    };
    Ok(Answer::new(id.to_string(), subject, checked.findings))
}

/// Says that the time was not enough, if that is the error.
fn late(
    result: Result<(), ReaderError>,
    process: &Process,
    timeout: Duration,
    checked: &mut Checked,
) -> Result<(), ReaderError> {
    match result {
        Err(ReaderError::Deadline { .. }) => {
            let why = PartialReason::Deadline(timeout);
            let partial = Partial::none_read(process, why);
            checked.findings.push(threads::partly_read(&partial));
            Ok(())
        }
        result => result,
    }
}

/// Returns findings about the process context, and whether they say all that there is to say: the
/// variable of threads does not matter.
fn published(
    process: &mut Process,
    state: &ContextState,
    is_32_bit: bool,
    deadline: Instant,
) -> (Vec<Finding>, bool) {
    let context = match state {
        ContextState::Published(context) => context,
        ContextState::Broken(why) => return (vec![context::broken(why)], false),
        ContextState::Absent => {
            let known = absent::in_known_way(process, deadline);
            let is_known = known.is_some();
            let finding = known.unwrap_or_else(|| absent::in_any_way(process, deadline));
            return (vec![finding], is_known);
        }
    };
    let has_none = |support| match support {
        ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) => unreadable.is_empty(),
        _ => false,
    };
    // If it is unknown, further findings say why.
    let has_variable = is_32_bit || !process.thread_support().is_ok_and(has_none);
    let findings = context::findings(process, context, has_variable, deadline);
    let is_whole = match &context.schema {
        Some(schema) => schema.is_go_labels(),
        None => !has_variable,
    };
    (findings, is_whole)
}

/// Adds findings about the threads' native contexts, which the process context has `announced` or
/// not.
fn check_native(
    process: &mut Process,
    announced: bool,
    deadline: Instant,
    sweep: Sweep<'_>,
    checked: &mut Checked,
) -> Result<(), ReaderError> {
    match process.thread_support()? {
        ThreadSupport::Readable(variables) => {
            let findings = found(process, &variables, deadline);
            checked.findings.extend(findings);
            threads::check(process, sweep.native_only(), checked)?;
        }
        ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) => {
            let (other, mut skipped) = (other_symbol(process, deadline)?, unreadable);
            skipped.retain(|(module, _)| Some(module) != other.as_ref());
            let not_found = not_found(other.as_deref(), skipped.is_empty(), announced);
            checked.findings.push(not_found);
            checked.findings.extend(modules(&skipped));
        }
        ThreadSupport::Unreadable(why) => {
            let finding = Finding::problem("threads", why.to_string());
            checked.findings.push(finding);
        }
    }
    Ok(())
}

fn runtimes_of(present: Result<Arc<[Present]>, ReaderError>) -> Result<Vec<Finding>, ReaderError> {
    match present {
        Ok(present) => Ok(present.iter().map(runtime).collect()),
        Err(error @ ReaderError::Deadline { .. }) => Ok(vec![
            Finding::note("runtime", error.to_string()).hint(MORE_TIME),
        ]),
        Err(error) => Err(error),
    }
}

/// A language runtime, whose threads and tasks `dump` shows beside what is published.
fn runtime(present: &Present) -> Finding {
    let text = format!("runtime {}", sentence(present));
    match present.process {
        Ok(_) => Finding::ok("runtime", text),
        Err(_) => Finding::note("runtime", text),
    }
}

fn is_32_bit(process: &Process) -> bool {
    let program = process.running().and_then(|it| Ok(it.open_executable()?));
    program.is_ok_and(|program| Contents::is_32_bit(&program))
}

/// Returns findings about every module that has the variable.
fn found(process: &Process, variables: &ThreadVariables, deadline: Instant) -> Vec<Finding> {
    let resolution = &variables.resolution;
    let definitions = resolution.variables.iter().enumerate();
    let mut findings: Vec<Finding> = definitions
        .flat_map(|(index, it)| {
            let inspection = if index < MAX_INSPECTED {
                inspect(process, &it.module, deadline)
            } else {
                Err(format!("{MAX_INSPECTED} others were inspected before it"))
            };
            definition(it, inspection)
        })
        .collect();
    if resolution.variables.len() > 1 {
        let text = format!(
            "{} modules have a {SYMBOL} of their own; readers read all of them",
            grouped(resolution.variables.len())
        );
        findings.push(Finding::note("several-variables", text).hint(
            "Export it from one module, so that the dynamic linker binds all references to it.",
        ));
    }
    for module in &resolution.bound_elsewhere {
        let module = module.to_string_lossy();
        let text = format!("{module} defines {SYMBOL}, too; the process uses the one above");
        findings.push(Finding::note("bound-elsewhere", text).module(&module));
    }
    findings.extend(modules(&resolution.unreadable));
    findings
}

/// Returns findings about a variable: what its file shows, and what only the process can show.
fn definition(variable: &TlsVariable, inspection: Result<Inspection, String>) -> Vec<Finding> {
    let module = variable.module.to_string_lossy();
    let place = format!(" in {module}");
    let path = Path::new(&variable.module);
    let mut findings = match inspection {
        Ok(inspection) => file::linked(&inspection, &place, path),
        // The process itself shows less, but enough for the main finding.
        Err(why) => vec![
            unreadable_module(&module, &why),
            if variable.exported {
                Finding::ok("exported", format!("{SYMBOL} is exported{place}"))
            } else {
                variable::exportable(&place, "app")
            },
            access::of_model(
                variable.access,
                variable.access == Access::LocalExec,
                Machine::own(),
            ),
        ],
    };
    let storage = variable.storage();
    let text = match storage {
        Storage::Static => {
            format!("its storage is static{place}: at a fixed offset from the thread pointer")
        }
        Storage::Dynamic => format!(
            "its storage is dynamic{place}: a thread that has not used the variable has none"
        ),
    };
    findings.push(Finding::ok("storage", text).storage(text::storage(storage)));
    findings.into_iter().map(|it| it.module(&module)).collect()
}

/// Inspects the file that the process has mapped under this name.
fn inspect(process: &Process, name: &OsStr, deadline: Instant) -> Result<Inspection, String> {
    let target = process.running().map_err(|error| error.to_string())?;
    let mut found = None;
    let scan = target.file_mappings(scan_options(deadline), &mut |mapping| {
        let is_it = mapping.permissions.execute && mapping.name == name.as_bytes();
        if is_it && found.is_none() {
            let range = (mapping.start, mapping.end);
            found = Some(target.mapped_file(range, mapping.name, mapping.device, mapping.inode));
        }
    });
    let scan = scan.map_err(|error| error.to_string())?;
    if scan != Scan::Complete(()) || Instant::now() >= deadline {
        return Err("the deadline passed before".to_owned());
    }
    match found {
        Some(Some(file)) => file::inspect(&file),
        _ => Err("its file was removed or replaced, and cannot be opened".to_owned()),
    }
}

fn scan_options(deadline: Instant) -> ScanOptions {
    ScanOptions {
        deadline: Some(deadline),
        ..ScanOptions::default()
    }
}

/// Finds a module that defines something else under the variable's name.
fn other_symbol(process: &Process, deadline: Instant) -> Result<Option<OsString>, ReaderError> {
    let target = process.running()?;
    let late = || ReaderError::Deadline {
        pid: target.pid(),
        action: "inspect its files",
    };
    let mut files: Vec<(Vec<u8>, Option<File>)> = Vec::new();
    let scan = target.file_mappings(scan_options(deadline), &mut |mapping| {
        let new = mapping.permissions.execute
            && files.len() < MAX_FILES
            && !files.iter().any(|(name, _)| name == mapping.name);
        if new {
            let range = (mapping.start, mapping.end);
            let file = target.mapped_file(range, mapping.name, mapping.device, mapping.inode);
            files.push((mapping.name.to_vec(), file));
        }
    })?;
    if scan != Scan::Complete(()) {
        return Err(late());
    }
    for (name, file) in files {
        if Instant::now() >= deadline {
            return Err(late());
        }
        let module = file.and_then(|file| Module::of_file(&file, SYMBOL));
        if module.is_some_and(|module| module.symbol == Symbol::NotThreadLocal) {
            return Ok(Some(OsString::from_vec(name)));
        }
    }
    Ok(None)
}

/// Says that no module has the variable. `other` defines something else under that name;
/// `all_read`: every module could be inspected.
fn not_found(other: Option<&OsStr>, all_read: bool, announced: bool) -> Finding {
    if let Some(module) = other {
        let module = module.to_string_lossy();
        return variable::not_thread_local(true, &format!(" in {module}")).module(&module);
    }
    if !all_read {
        // One of the others may have it.
        let text = format!("no module that could be inspected exports {SYMBOL}");
        return Finding::problem("absent", text)
            .hint("The findings below list the modules that could not be inspected, and why.");
    }
    if announced {
        // Publishers may announce the schema before they load the library that has the variable.
        let text = format!(
            "no module of the process exports {SYMBOL} yet: its threads have no context until one is \
             loaded"
        );
        return Finding::note("not-loaded", text).hint(
            "If it is loaded already, stripping may have removed a variable that is not exported: \
             check the unstripped file.",
        );
    }
    variable::absent(format!("no module of the process exports {SYMBOL}"))
        .hint("Stripping removes a variable that is not exported: check the unstripped file.")
}

/// Returns findings about modules that could not be inspected.
fn modules(unreadable: &[(OsString, String)]) -> Vec<Finding> {
    let finding =
        |(module, why): &(OsString, String)| unreadable_module(&module.to_string_lossy(), why);
    unreadable.iter().map(finding).collect()
}

fn unreadable_module(module: &str, why: &str) -> Finding {
    let text = format!("{module} could not be inspected: {why}");
    Finding::note("unreadable-module", text).module(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_that_passes_before_runtimes_are_known_is_a_finding() {
        let late = ReaderError::Deadline {
            pid: 7,
            action: "probe for runtimes",
        };
        let findings = serde_json::to_value(runtimes_of(Err(late)).unwrap()).unwrap();
        assert_eq!(findings.as_array().unwrap().len(), 1);
        assert_eq!(
            (&findings[0]["id"], &findings[0]["level"]),
            (&"runtime".into(), &"note".into())
        );
        assert_eq!(findings[0]["hint"], MORE_TIME);
        assert_eq!(runtimes_of(Ok(Arc::default())).unwrap().len(), 0);
    }
}
