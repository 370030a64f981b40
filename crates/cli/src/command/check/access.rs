//! How code reaches the variable, and what the linker has to do with it.

use otelctx_reader::remote::Access;
use otelctx_reader::remote::inspect::Inspection;
use otelctx_reader::remote::module::{Machine, Module, Symbol};

use super::finding::Finding;
use super::fix;
use crate::output::text::{self, count};

/// A finding for each way in which a linked file's own code reaches the variable.
pub(super) fn of_file(inspection: &Inspection, module: &Module, target: &str) -> Vec<Finding> {
    if module.relocations.is_empty() {
        return if module.executable {
            vec![local_exec(inspection)]
        } else {
            vec![Finding::note(
                "no-access",
                "this library does not use the variable itself: who does decides the access model",
            )]
        };
    }
    let mut findings: Vec<Finding> = Vec::new();
    let mut accesses: Vec<Access> = Vec::new();
    for relocation in &module.relocations {
        if !accesses.contains(&relocation.access) {
            accesses.push(relocation.access);
            let name = module.machine.relocation_name(relocation.access);
            let evidence = name.map(|name| format!("{name} at {:#x}", relocation.slot));
            findings.push(match relocation.access {
                Access::InitialExec if module.executable => initial_exec(inspection, evidence),
                access => in_library(access, module.machine, target, evidence),
            });
        }
    }
    findings.extend(bound_here(inspection, module));
    findings
}

/// A finding for an access of which nothing but the model is known.
pub(super) fn of_model(access: Access, executable: bool, machine: Machine) -> Finding {
    match access {
        Access::LocalExec | Access::InitialExec if executable => {
            let name = text::access(access);
            Finding::ok("access", format!("access is {name} ({FASTEST})")).access(name, None)
        }
        access => in_library(access, machine, "app", None),
    }
}

const FASTEST: &str = "fastest; every reader supports it";

/// The program's code has the offset itself: no relocation is left.
fn local_exec(inspection: &Inspection) -> Finding {
    let name = text::access(Access::LocalExec);
    match inspection.relaxed.to_local_exec {
        0 => Finding::ok(
            "access",
            format!(
                "access is {name}: the compiler wrote it, or the linker relaxed another model to \
                 it, and left no trace of that ({FASTEST})"
            ),
        )
        .access(name, None),
        places => Finding::ok(
            "access",
            format!(
                "access is {name} after relaxation: the linker replaced {} by the offset \
                 ({FASTEST})",
                count(places, "TLS descriptor", "TLS descriptors")
            ),
        )
        .access(name, Some(text::access(Access::Tlsdesc))),
    }
}

/// The program's code loads the offset, which the dynamic linker fills in.
fn initial_exec(inspection: &Inspection, evidence: Option<String>) -> Finding {
    let name = text::access(Access::InitialExec);
    let evidence = evidence.map_or(String::new(), |evidence| format!(", {evidence}"));
    match inspection.relaxed.to_initial_exec {
        0 => Finding::ok(
            "access",
            format!("access is {name}{evidence} (fast; every reader supports it)"),
        )
        .access(name, None),
        places => Finding::ok(
            "access",
            format!(
                "access is {name} after relaxation: the linker replaced {} by a load of the \
                 offset{evidence} (fast; every reader supports it)",
                count(places, "TLS descriptor", "TLS descriptors")
            ),
        )
        .access(name, Some(text::access(Access::Tlsdesc))),
    }
}

/// What libraries have, and programs whose linker was told not to relax.
fn in_library(access: Access, machine: Machine, target: &str, evidence: Option<String>) -> Finding {
    let name = text::access(access);
    let evidence = evidence.map_or(String::new(), |evidence| format!(", {evidence}"));
    let finding = match access {
        Access::Tlsdesc => Finding::ok(
            "access",
            format!(
                "access is {name}, not relaxed{evidence} (what OTEP 4947 asks for; every reader \
                 supports it)"
            ),
        ),
        Access::LocalExec => Finding::ok("access", format!("access is {name}{evidence}")),
        Access::GeneralDynamic => Finding::note(
            "access",
            format!(
                "access is {name}, not relaxed{evidence}: not every reader supports it, and once \
                 dlopen has loaded the library a thread has no storage before it first uses the \
                 variable"
            ),
        )
        .hint("TLSDESC is what OTEP 4947 asks for, and quicker. clang has it since 19:")
        .fix(fix::descriptors(machine, target, false)),
        Access::InitialExec => Finding::note(
            "access",
            format!(
                "access is {name}{evidence}: readers support it, but dlopen refuses the library \
                 once the static storage set aside for such is used up"
            ),
        )
        .hint("For a library that is loaded late, unless the source names the model. clang 19:")
        .fix(fix::descriptors(machine, target, true)),
        Access::LocalDynamic => Finding::note(
            "access",
            format!(
                "access is {name}{evidence}, which is not in OTEP 4947: readable by otelctx, \
                 others will not find it"
            ),
        )
        .hint("Export the variable, or the linker keeps it so. And compile (clang 19) with:")
        .fix(fix::descriptors(machine, target, true)),
    };
    finding.access(name, None)
}

/// A library whose own code can't be led to another module's definition.
fn bound_here(inspection: &Inspection, module: &Module) -> Option<Finding> {
    if module.executable || !matches!(module.symbol, Symbol::Exported { .. }) {
        return None;
    }
    let mut relocations = module.relocations.iter();
    let in_next_word =
        relocations.any(|it| it.access == Access::GeneralDynamic) && !inspection.block_offset;
    // Local dynamic code is bound so by its nature.
    let mut relocations = module.relocations.iter();
    let led_elsewhere = relocations.all(|it| it.named || it.access == Access::LocalDynamic);
    if !in_next_word && led_elsewhere {
        return None;
    }
    let names = match module.machine {
        Machine::Aarch64 => "R_AARCH64_TLS_DTPMOD64 comes without R_AARCH64_TLS_DTPREL64",
        _ => "R_X86_64_DTPMOD64 comes without R_X86_64_DTPOFF64",
    };
    let text = match in_next_word {
        true => format!(
            "the linker bound the library to its own variable: {names}, and the offset is in the \
             next word, where not every reader looks"
        ),
        false => {
            "the linker bound the library to its own variable: its relocation names no symbol, \
                  so that a program's variable of that name is another one"
                .to_owned()
        }
    };
    Some(
        Finding::note("bound-here", text)
            .hint("Link it without -Bsymbolic, and compile without -fvisibility=protected."),
    )
}
