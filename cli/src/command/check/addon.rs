//! Checks an addon of Node.js, and a process that announces the contexts of one.

use std::path::Path;

use otelctx_reader::format::{NODEJS_SYMBOL, Schema};
use otelctx_reader::remote::inspect::{Contents, Inspection};
use otelctx_reader::remote::module::{Module, Symbol};
use otelctx_reader::sweep::Sweep;
use otelctx_reader::{Error, Process};

use super::finding::Finding;
use super::threads::{self, Checked};
use super::{access, fix};

/// Size of the structure that an addon keeps for each thread, in bytes.
const SIZE: u64 = 32;

/// Returns findings about a file that has the variable of addons. OTEP 4947's variable does not
/// count there: the addon of the package `otelctx` has both, and publishes by this one.
pub(super) fn of_file(path: &Path, inspection: &Inspection) -> Option<Vec<Finding>> {
    let other = inspection.module.as_ref().map(|it| &it.symbol);
    let has_other = other.is_some_and(|it| *it != Symbol::Absent) || !inspection.local.is_empty();
    let Ok(Contents::Elf(inspection)) = Contents::open(path, NODEJS_SYMBOL) else {
        return None;
    };
    let module = inspection.module.as_ref()?;
    let is_exported = matches!(module.symbol, Symbol::Exported { .. });
    if has_other && !is_exported {
        return None;
    }
    let mut findings = vec![symbol(module)?];
    if is_exported {
        let target = fix::target_name(path);
        findings.extend(access::of_file(&inspection, module, &target));
    }
    Some(findings)
}

fn symbol(module: &Module) -> Option<Finding> {
    Some(match module.symbol {
        Symbol::Exported { size: SIZE, .. } => {
            Finding::ok("exported", format!("{NODEJS_SYMBOL} is exported"))
        }
        Symbol::Exported { size, .. } => Finding::problem(
            "wrong-size",
            format!("{NODEJS_SYMBOL} has {size} bytes: readers expect {SIZE}"),
        ),
        Symbol::Local { .. } => Finding::problem(
            "not-exported",
            format!("{NODEJS_SYMBOL} is not exported: readers can't find it"),
        )
        .hint("Give it default visibility, and keep the linker from making it local."),
        Symbol::NotThreadLocal => Finding::problem(
            "not-thread-local",
            format!("{NODEJS_SYMBOL} is not a thread-local variable: readers can't find it"),
        ),
        _ => return None,
    })
}

/// Adds findings about the threads of a process with Node.js's schema.
pub(super) fn check_process(
    process: &mut Process,
    schema: &Schema,
    sweep: Sweep<'_>,
    checked: &mut Checked,
) -> Result<(), Error> {
    if !process.runtimes()?.iter().any(|it| it.reads_schema(schema)) {
        let absent = format!("no addon of the process exports {NODEJS_SYMBOL}");
        let finding = Finding::problem("absent", absent)
            .hint("Load the addon that publishes the contexts, or announce no schema.");
        checked.findings.push(finding);
        return Ok(());
    }
    // Does not search for OTEP 4947's variable, unlike in every other process.
    let mut options = process.options().clone();
    options.any_schema = false;
    let pid = process.running()?.pid();
    let mut process = Process::with_files(pid, options, process.files().clone())?;
    threads::check(&mut process, sweep, checked)
}
