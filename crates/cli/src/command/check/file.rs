//! A program or library that need not run.

use std::path::Path;

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::Access;
use otelctx_reader::remote::module::{Machine, Module, Symbol};

use super::finding::{Answer, Finding};
use super::variable;
use crate::error::Error;

/// Says whether readers can find the variable that `path` defines.
pub(super) fn check(path: &Path) -> Result<Answer, Error> {
    let module = Module::open(path, SYMBOL)?;
    if !module.executable && !module.dynamic {
        return Err(Error::NotLinked(path.to_owned()));
    }
    let mut findings = Vec::new();
    if let Machine::Other(number) = module.machine {
        findings.push(
            Finding::problem(
                "machine",
                format!(
                    "it is built for a machine (ELF number {number}) that has no thread context"
                ),
            )
            .mend("OTEP 4947 is about x86-64 and aarch64."),
        );
    }
    findings.extend(symbol(&module));
    if module.symbol.definition().is_some() {
        findings.extend(accesses(&module));
    }
    Ok(Answer::new(path.to_string_lossy(), findings))
}

fn symbol(module: &Module) -> Vec<Finding> {
    match module.symbol {
        Symbol::Exported { size, .. } => {
            let exported = Finding::ok("exported", format!("{SYMBOL} is exported"));
            [exported]
                .into_iter()
                .chain(variable::wrong_size("", size))
                .collect()
        }
        Symbol::Local { size, .. } => {
            let local = variable::not_exported("", variable::Owner::of(module));
            [local]
                .into_iter()
                .chain(variable::wrong_size("", size))
                .collect()
        }
        Symbol::Undefined => vec![
            Finding::note(
                "defined-elsewhere",
                format!("it uses {SYMBOL}, which a library defines"),
            )
            .mend("Check that library, or the process that runs."),
        ],
        Symbol::NotThreadLocal => vec![
            Finding::problem(
                "not-thread-local",
                format!("{SYMBOL} is exported, but is no thread-local variable: readers ignore it"),
            )
            .mend(format!("Declare it as one:  __thread void *{SYMBOL};")),
        ],
        Symbol::Absent => vec![
            variable::absent(format!(
                "it has no {SYMBOL}: its threads publish no context"
            ))
            .mend("If one of its libraries has it, check that, or the process that runs."),
        ],
    }
}

/// The ways in which the module's own code reaches the variable, each once.
fn accesses(module: &Module) -> Vec<Finding> {
    if module.relocations.is_empty() {
        return if module.executable {
            vec![variable::access(Access::LocalExec, true)]
        } else {
            vec![Finding::note(
                "no-access",
                "this library does not use the variable itself: who does decides the access model",
            )]
        };
    }
    let mut accesses: Vec<Access> = Vec::new();
    for relocation in &module.relocations {
        if !accesses.contains(&relocation.access) {
            accesses.push(relocation.access);
        }
    }
    accesses
        .into_iter()
        .map(|access| variable::access(access, module.executable))
        .collect()
}
