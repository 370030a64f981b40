//! Object files and static libraries: input for a linker.

use std::iter;

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::Access;
use otelctx_reader::remote::inspect::{Entry, Inspection, Member};

use super::access;
use super::finding::Finding;
use super::fix;
use super::variable::{absent, hidden, not_thread_local, wrong_size};
use crate::output::text;

pub(super) fn object(inspection: &Inspection) -> Vec<Finding> {
    let mut findings = vec![not_linked("an object file")];
    findings.extend(of_member(inspection, ""));
    findings
}

fn not_linked(what: &str) -> Finding {
    let text = format!("{what} is not linked yet: the linker decides what is exported");
    Finding::note("not-linked", text).hint("Check the program or library linked from it, too.")
}

/// Returns findings about an object file, alone or in a library. `place` follows a noun.
fn of_member(inspection: &Inspection, place: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if inspection.intermediate {
        let text =
            format!("it was compiled with -flto{place}: gcc generates its code only at link time");
        let finding = Finding::note("intermediate", text);
        findings.push(finding.hint("Check the program or library linked from it."));
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
        None => {
            let text = format!("it uses {SYMBOL}{place}, which another file defines");
            let hint = "Check that file, or the program or library linked from both.";
            findings.push(Finding::note("defined-elsewhere", text).hint(hint));
        }
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
        hidden(place, "no linker exports it", "app")
    } else {
        let text = format!("{SYMBOL} is defined{place}, and a linker can export it");
        Finding::ok("defined", text)
    };
    let wrong_size = wrong_size(place, entry.size);
    iter::once(finding).chain(wrong_size).collect()
}

/// Describes the compiler's access model.
fn as_compiled(access: Access, executable: bool, inspection: &Inspection) -> Finding {
    let name = text::access(access);
    let suitable = match access {
        Access::Tlsdesc => " (preferred by OTEP 4947; linkers relax it in programs)",
        Access::LocalExec => ": suitable for programs, not for shared libraries",
        access => return access::of_model(access, executable, inspection.machine),
    };
    let text = format!("access is {name} as compiled{suitable}");
    Finding::ok("access", text).access(name, None)
}

pub(super) fn archive(members: &[Member]) -> Vec<Finding> {
    if members.is_empty() {
        return vec![absent(format!("none of its members has {SYMBOL}"))];
    }
    let mut findings = vec![not_linked("a static library")];
    for member in members {
        let found = match &member.contents {
            Ok(inspection) => of_member(inspection, &format!(" in {}", member.name)),
            Err(why) => {
                let text = format!("{} could not be inspected: {why}", member.name);
                vec![Finding::note("unreadable-module", text)]
            }
        };
        findings.extend(found.into_iter().map(|it| it.module(&member.name)));
    }
    findings
}
