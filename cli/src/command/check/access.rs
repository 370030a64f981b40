//! Checks how code reaches the variable, and how the linker changed that.

use otelctx_reader::remote::Access;
use otelctx_reader::remote::inspect::Inspection;
use otelctx_reader::remote::module::{Machine, Module, Symbol};

use super::finding::Finding;
use super::fix;
use crate::output::text::{self, count};

/// Returns one finding for each access model in a linked file's own code.
pub(super) fn of_file(inspection: &Inspection, module: &Module, target: &str) -> Vec<Finding> {
    if module.relocations.is_empty() {
        return if module.executable {
            vec![local_exec(inspection)]
        } else {
            vec![Finding::note(
                "no-access",
                "this library does not use the variable itself: the code that uses it decides the \
                 access model",
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

/// The finding for an access if only the model is known.
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

/// The code contains the offset itself: no relocation is left.
fn local_exec(inspection: &Inspection) -> Finding {
    let name = text::access(Access::LocalExec);
    let places = inspection.relaxed.to_local_exec;
    let text = match places {
        0 => format!(
            "access is {name}: it is the compiler's, or the linker relaxed another model to it \
             and left no trace ({FASTEST})"
        ),
        _ => format!(
            "access is {name} after relaxation: the linker replaced {} with the offset ({FASTEST})",
            count(places, "TLS descriptor", "TLS descriptors")
        ),
    };
    let from = (places > 0).then(|| text::access(Access::Tlsdesc));
    Finding::ok("access", text).access(name, from)
}

/// The program's code loads the offset, which the dynamic linker fills in.
fn initial_exec(inspection: &Inspection, evidence: Option<String>) -> Finding {
    let name = text::access(Access::InitialExec);
    let evidence = evidence.map_or(String::new(), |evidence| format!(", {evidence}"));
    let places = inspection.relaxed.to_initial_exec;
    let relaxed = match places {
        0 => String::new(),
        _ => format!(
            " after relaxation: the linker replaced {} with a load of the offset",
            count(places, "TLS descriptor", "TLS descriptors")
        ),
    };
    let text = format!("access is {name}{relaxed}{evidence} (fast; every reader supports it)");
    let from = (places > 0).then(|| text::access(Access::Tlsdesc));
    Finding::ok("access", text).access(name, from)
}

/// Finding for libraries, and for programs linked without relaxation.
fn in_library(access: Access, machine: Machine, target: &str, evidence: Option<String>) -> Finding {
    let name = text::access(access);
    let evidence = evidence.map_or(String::new(), |evidence| format!(", {evidence}"));
    let finding = match access {
        Access::Tlsdesc => Finding::ok(
            "access",
            format!(
                "access is {name}, not relaxed{evidence} (preferred by OTEP 4947; every reader \
                 supports it)"
            ),
        ),
        Access::LocalExec => Finding::ok("access", format!("access is {name}{evidence}")),
        Access::GeneralDynamic => Finding::note(
            "access",
            format!(
                "access is {name}, not relaxed{evidence}: OTEP 4947 supports it, but prefers \
                 tlsdesc; once dlopen has loaded the library a thread has no storage before it \
                 first uses the variable"
            ),
        )
        .hint("Readers support both; with tlsdesc the publisher is faster. clang has it since 19; with -flto, \
             give the flags to the link as well:")
        .fix(fix::descriptors(machine, target, false)),
        Access::InitialExec => Finding::note(
            "access",
            format!(
                "access is {name}{evidence}: readers support it, but dlopen refuses the library \
                 once glibc's reserve of static storage is used up"
            ),
        )
        .hint(
            "For a library that is loaded late, unless the source selects the model (clang \
            since 19; with -flto, at the link as well):",
        )
        .fix(fix::descriptors(machine, target, true)),
        Access::LocalDynamic => Finding::note(
            "access",
            format!(
                "access is {name}{evidence}, which OTEP 4947 does not support: otelctx can read it, \
                 other readers need not"
            ),
        )
        .hint("Export the variable, and compile (clang since 19; with -flto, also link) with:")
        .fix(fix::descriptors(machine, target, true)),
    };
    finding.access(name, None)
}

/// Says that code in a library cannot be bound to another module's definition.
fn bound_here(inspection: &Inspection, module: &Module) -> Option<Finding> {
    if module.executable || !matches!(module.symbol, Symbol::Exported { .. }) {
        return None;
    }
    let mut relocations = module.relocations.iter();
    let in_next_word =
        relocations.any(|it| it.access == Access::GeneralDynamic) && !inspection.block_offset;
    // Local dynamic code is always bound in this way.
    let mut relocations = module.relocations.iter();
    let led_elsewhere = relocations.all(|it| it.named || it.access == Access::LocalDynamic);
    if !in_next_word && led_elsewhere {
        return None;
    }
    let names = match module.machine {
        Machine::Aarch64 => "R_AARCH64_TLS_DTPMOD64 comes without R_AARCH64_TLS_DTPREL64",
        _ => "R_X86_64_DTPMOD64 comes without R_X86_64_DTPOFF64",
    };
    let text = if in_next_word {
        format!(
            "the linker bound the library to its own variable: {names}, and the offset is in the \
             next word, which not every reader checks"
        )
    } else {
        "the linker bound the library to its own variable: its relocation names no symbol, so \
         a variable of that name in the program is a different one"
            .to_owned()
    };
    Some(
        Finding::note("bound-here", text)
            .hint("Link it without -Bsymbolic, and compile without -fvisibility=protected."),
    )
}
