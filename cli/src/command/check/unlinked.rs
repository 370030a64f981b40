//! Object files and static libraries: input for a linker.

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::Access;
use otelctx_reader::remote::inspect::{Entry, Inspection, Member};

use super::access;
use super::finding::Finding;
use super::fix;
use super::variable::{absent, not_thread_local, wrong_size};
use crate::output::text;

/// Findings about an object file.
pub(super) fn object(inspection: &Inspection) -> Vec<Finding> {
    let mut findings = vec![not_linked("an object file")];
    findings.extend(of_member(inspection, ""));
    findings
}

fn not_linked(what: &str) -> Finding {
    Finding::note(
        "not-linked",
        format!("{what} is not linked yet: the linker decides what is exported"),
    )
    .hint("Check the program or library linked from it, too.")
}

/// Findings about an object file, alone or in a library. `place` follows a noun.
fn of_member(inspection: &Inspection, place: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if inspection.intermediate {
        findings.push(
            Finding::note(
                "intermediate",
                format!(
                    "it was compiled with -flto{place}: gcc generates its code only at link time"
                ),
            )
            .hint("Check the program or library linked from it."),
        );
    }
    let defined = inspection.local.iter().find(|it| it.defined);
    match defined {
        // The linker will generate the code.
        None if inspection.local.is_empty() && inspection.intermediate => findings.push(
            Finding::note("absent", format!("it has no {SYMBOL} yet{place}"))
                .hint("If its source defines it, check the program or library linked from it."),
        ),
        None if inspection.local.is_empty() => {
            findings.push(absent(format!("it has no {SYMBOL}{place}")));
        }
        None => findings.push(
            Finding::note(
                "defined-elsewhere",
                format!("it uses {SYMBOL}{place}, which another file defines"),
            )
            .hint("Check that file, or the program or library linked from both."),
        ),
        Some(entry) => findings.extend(definition(entry, place)),
    }
    let executable = inspection.code.contains(&Access::LocalExec);
    let accesses = inspection.code.iter().copied();
    findings.extend(accesses.map(|it| as_compiled(it, executable, inspection)));
    findings
}

fn definition(entry: &Entry, place: &str) -> Vec<Finding> {
    if !entry.thread_local {
        return vec![not_thread_local(false, place)];
    }
    let finding = if entry.local {
        Finding::problem(
            "static-variable",
            format!("{SYMBOL} is static{place}: no linker exports it, and readers can't find it"),
        )
        .hint("Declare it without  static:")
        .fix(fix::declare())
    } else if entry.hidden {
        Finding::problem(
            "hidden",
            format!("{SYMBOL} is defined{place} but hidden: no linker exports it"),
        )
        .hint(
            "It was compiled with hidden visibility. Change that in its source, or for the \
            whole program:",
        )
        .fix(fix::make_visible("app"))
    } else {
        Finding::ok(
            "defined",
            format!("{SYMBOL} is defined{place}, and a linker can export it"),
        )
    };
    let wrong_size = wrong_size(place, entry.size);
    [finding].into_iter().chain(wrong_size).collect()
}

/// The compiler's access model.
fn as_compiled(access: Access, executable: bool, inspection: &Inspection) -> Finding {
    let name = text::access(access);
    match access {
        Access::Tlsdesc => Finding::ok(
            "access",
            format!(
                "access is {name} as compiled (required by OTEP 4947; linkers relax it in programs)"
            ),
        )
        .access(name, None),
        Access::LocalExec => Finding::ok(
            "access",
            format!(
                "access is {name} as compiled: suitable for programs, not for shared \
                libraries"
            ),
        )
        .access(name, None),
        access => access::of_model(access, executable, inspection.machine),
    }
}

/// Findings about a static library's members.
pub(super) fn archive(members: &[Member]) -> Vec<Finding> {
    if members.is_empty() {
        return vec![absent(format!("none of its members has {SYMBOL}"))];
    }
    let mut findings = vec![not_linked("a static library")];
    for member in members {
        let found = match &member.contents {
            Ok(inspection) => of_member(inspection, &format!(" in {}", member.name)),
            Err(why) => vec![Finding::note(
                "unreadable-module",
                format!("{} could not be inspected: {why}", member.name),
            )],
        };
        findings.extend(found.into_iter().map(|it| it.module(&member.name)));
    }
    findings
}
