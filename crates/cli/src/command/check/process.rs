//! A running process: what it publishes, and whether a reader can follow it to each thread.

use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use otelctx_reader::remote::inspect::{Contents, Inspection};
use otelctx_reader::remote::module::{Machine, Module, Symbol};
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::remote::{Access, AddressSpace, Storage};
use otelctx_reader::{
    Error as ReaderError, Options, Process, SYMBOL, ThreadSupport, ThreadVariables, Unreadable,
};

use super::finding::{Answer, Finding};
use super::looked_at::{self, LookedAt};
use super::variable;
use super::{access, context, file};
use crate::command::ids::process_of;
use crate::command::patience::{is_rewritten, patiently};
use crate::error::{Error, is_gone};
use crate::output::words::{self, count};

/// Files of a process that are looked into for the reason why none has the variable.
const MOST_FILES: usize = 256;

/// Files of a process that are looked into for what their linker did. There is one as a rule.
const MOST_INSPECTED: usize = 16;

/// Says whether readers can read what process `pid` publishes, by reading all of it.
///
/// `id` is the process's, or that of one of its threads.
pub(super) fn check(id: i32) -> Result<Answer, Error> {
    let mut options = Options::default();
    // The variable is of interest also where the process context does not lead to it.
    options.any_schema = true;
    let pid = process_of(id)?;
    let mut process = Process::with_options(pid, options)?;
    let status = process.target().status()?;
    let state = process.context()?;
    let mut findings = context::findings(&process, &state);
    let mut stopped = 0;
    if is_32_bit(&process) {
        findings.push(file::thirty_two_bits());
    } else {
        match process.thread_support()? {
            ThreadSupport::Readable(variables) => {
                findings.extend(found(&process, &variables));
                let troubled = !Finding::are_readable(&findings);
                let threads = threads(&mut process, troubled, &mut stopped)?;
                findings.extend(threads);
            }
            ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) => {
                let (why, told) = not_found(&process)?;
                findings.push(why);
                let mut others = unreadable;
                others.retain(|(module, _)| Some(module) != told.as_ref());
                findings.extend(modules(&others));
            }
            ThreadSupport::Unreadable(why) => {
                findings.push(Finding::problem("threads", why.to_string()));
            }
        }
    }
    let lossy = |text: &OsStr| text.to_string_lossy().into_owned();
    let target = process.target();
    let looked_at = LookedAt::Process {
        pid,
        comm: target
            .comm()
            .map_or_else(|_| String::new(), |it| lossy(&it)),
        asked_thread: (pid != id).then_some(id),
        executable: target.executable().ok().map(|it| lossy(it.as_os_str())),
        state: looked_at::state(status.state),
        threads_stopped: stopped,
    };
    Ok(Answer::new(id.to_string(), looked_at, findings))
}

/// Whether the program that runs is of 32 bits.
fn is_32_bit(process: &Process) -> bool {
    let program = std::fs::File::open(format!("/proc/{}/exe", process.target().pid()));
    program.is_ok_and(|program| Contents::is_32_bit(&program))
}

/// Every module that has the variable.
fn found(process: &Process, variables: &ThreadVariables) -> Vec<Finding> {
    let resolution = &variables.resolution;
    let definitions = resolution.variables.iter().enumerate();
    let mut findings: Vec<Finding> = definitions
        .flat_map(|(index, it)| {
            let inspection = match index < MOST_INSPECTED {
                true => inspect(process, &it.module),
                false => Err(format!("{MOST_INSPECTED} others were, before it")),
            };
            definition(it, inspection)
        })
        .collect();
    if resolution.variables.len() > 1 {
        findings.push(
            Finding::note(
                "several-variables",
                format!(
                    "{} modules use a {SYMBOL} of their own; readers look at each",
                    resolution.variables.len()
                ),
            )
            .mend("Export it from one module, so that the dynamic linker binds all to that."),
        );
    }
    for module in &resolution.bound_elsewhere {
        let module = module.to_string_lossy();
        findings.push(
            Finding::note(
                "bound-elsewhere",
                format!("{module} defines {SYMBOL}, too; the process uses the one above"),
            )
            .module(&module),
        );
    }
    findings.extend(modules(&resolution.unreadable));
    findings
}

/// What the file says, and what only the process can.
fn definition(variable: &TlsVariable, inspection: Result<Inspection, String>) -> Vec<Finding> {
    let module = variable.module.to_string_lossy();
    let place = format!(" in {module}");
    let path = Path::new(&variable.module);
    let mut findings = match inspection {
        Ok(inspection) => file::linked(&inspection, &place, path),
        // The process itself tells less, and enough for the main thing.
        Err(why) => vec![
            unreadable_module(&module, &why),
            match variable.exported {
                true => Finding::ok("exported", format!("{SYMBOL} is exported{place}")),
                false => variable::exportable(&place, "app"),
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
            format!("its storage is static{place}: at one distance from each thread's pointer")
        }
        Storage::Dynamic => format!(
            "its storage is dynamic{place}: a thread that has not used the variable has none"
        ),
    };
    findings.push(Finding::ok("storage", text).storage(words::storage(storage)));
    findings.into_iter().map(|it| it.module(&module)).collect()
}

/// Looks into the very file that the process has mapped under this name.
fn inspect(process: &Process, name: &OsStr) -> Result<Inspection, String> {
    let target = process.target();
    let mut found = None;
    let walk = target.mappings(&mut |mapping| {
        if mapping.name != name.as_bytes() {
            return ControlFlow::Continue(());
        }
        let range = (mapping.start, mapping.end);
        found = Some(target.mapped_file(range, mapping.name, mapping.device, mapping.inode));
        ControlFlow::Break(())
    });
    walk.map_err(|error| error.to_string())?;
    match found {
        Some(Ok(file)) => file::inspect(&file),
        Some(Err(Some(why))) => Err(why),
        _ => Err("its file was removed or replaced, and is out of reach".to_owned()),
    }
}

/// Nothing exports the variable; perhaps a module, which is named, defines another thing by that
/// name.
fn not_found(process: &Process) -> Result<(Finding, Option<OsString>), ReaderError> {
    let target = process.target();
    let mut files: Vec<Vec<u8>> = Vec::new();
    let mut other = None;
    target.mappings(&mut |mapping| {
        let new = mapping.permissions.execute
            && mapping.inode != 0
            && files.len() < MOST_FILES
            && !files.iter().any(|name| name == mapping.name);
        if new {
            files.push(mapping.name.to_vec());
            let range = (mapping.start, mapping.end);
            let file = target.mapped_file(range, mapping.name, mapping.device, mapping.inode);
            let module = file.ok().and_then(|file| Module::of_file(&file, SYMBOL));
            if module.is_some_and(|module| module.symbol == Symbol::NotThreadLocal) {
                other = Some(OsStr::from_bytes(mapping.name).to_owned());
                return ControlFlow::Break(());
            }
        }
        ControlFlow::Continue(())
    })?;
    let finding = match &other {
        Some(module) => {
            let module = module.to_string_lossy();
            variable::not_thread_local(true, &format!(" in {module}")).module(&module)
        }
        None => variable::absent(format!("no module of the process exports {SYMBOL}"))
            .mend("Stripping removes one that is not exported: check the file from before that."),
    };
    Ok((finding, other))
}

/// Modules that were left out.
fn modules(unreadable: &[(OsString, String)]) -> Vec<Finding> {
    unreadable
        .iter()
        .map(|(module, why)| unreadable_module(&module.to_string_lossy(), why))
        .collect()
}

fn unreadable_module(module: &str, why: &str) -> Finding {
    Finding::note(
        "unreadable-module",
        format!("{module} could not be looked into: {why}"),
    )
    .module(module)
}

/// Reads the context of every thread. `troubled`: readers fail before they come that far.
fn threads(
    process: &mut Process,
    troubled: bool,
    stopped: &mut usize,
) -> Result<Vec<Finding>, ReaderError> {
    let mut attached = 0;
    let mut failed = Vec::new();
    for thread in process.threads()? {
        match patiently(|| thread.context(), is_rewritten) {
            Ok(outcome) => {
                *stopped += 1;
                attached += usize::from(outcome.attached().is_some());
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => failed.push(error),
        }
    }
    if let Some(error) = failed.first() {
        return Ok(vec![Finding::problem(
            "threads",
            format!(
                "{} can't be read: {error}",
                count(failed.len(), "thread", "threads")
            ),
        )]);
    }
    let mut findings = vec![Finding::ok(
        "threads",
        format!(
            "{} the {}; {attached} attached now",
            match troubled {
                true => "but for that, a reader would find",
                false => "a reader finds",
            },
            match *stopped {
                1 => "context of its only thread".to_owned(),
                several => format!("contexts of its {several} threads"),
            }
        ),
    )];
    if attached == 0 {
        findings.push(
            Finding::note(
                "none-attached",
                "no thread has a record attached: between requests, or its publisher attaches none",
            )
            .mend("Check again while it works. A Rust program calls  record.attach()"),
        );
    }
    Ok(findings)
}
