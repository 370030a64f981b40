//! The symbol in a linked file: defined or not, exported or not, and why.

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::Access;
use otelctx_reader::remote::inspect::{Entry, Inspection, Kind};
use otelctx_reader::remote::module::{Machine, Module, Symbol};

use super::finding::Finding;
use super::fix;
use super::needed::{Libraries, MAX_LIBRARIES};
use super::subject;
use crate::output::text::count;

/// Maximum number of libraries to name in one sentence.
const MAX_NAMED: usize = 6;

/// The size of the variable: a pointer of a 64-bit process.
const SIZE: u64 = 8;

/// Findings about the variable in a linked file. `place` follows a noun: empty, or ` in FILE`;
/// `target` is the likely name of its build target.
pub(super) fn of_file(
    inspection: &Inspection,
    module: &Module,
    place: &str,
    target: &str,
) -> Vec<Finding> {
    let mut findings: Vec<Finding> = unsupported(module.machine).into_iter().collect();
    match module.symbol {
        Symbol::Exported { size, .. } => {
            findings.push(Finding::ok(
                "exported",
                format!("{SYMBOL} is exported{place}"),
            ));
            findings.extend(wrong_size(place, size));
            findings.extend(crashes(inspection, module, target));
            findings.extend(version(inspection, place));
        }
        Symbol::Local { size, .. } => {
            findings.push(not_exported(inspection, place, target));
            findings.extend(wrong_size(place, size));
        }
        Symbol::Undefined => findings.push(Finding::note(
            "defined-elsewhere",
            format!("it uses {SYMBOL}, which a library defines"),
        )),
        Symbol::NotThreadLocal => findings.push(not_thread_local(true, place)),
        Symbol::Absent if inspection.local.iter().any(|it| it.defined) => {
            findings.push(not_thread_local(false, place));
        }
        Symbol::Absent => findings.push(absent_from(inspection)),
    }
    let own = |entry: &&Entry| entry.defined && entry.thread_local;
    let definitions = inspection.local.iter().filter(own).count();
    if definitions > 1 {
        findings.push(
            Finding::note(
                "several-definitions",
                format!("it has {definitions} variables of that name, static ones among them"),
            )
            .hint("Declare it in one source file, without  static  and in no header."),
        );
    }
    findings
}

/// Says that OTEP 4947 does not cover this architecture, or that it is not this machine's.
fn unsupported(machine: Machine) -> Option<Finding> {
    match machine {
        Machine::Other(_) => Some(
            Finding::problem(
                "machine",
                format!(
                    "it is built for {}, for which OTEP 4947 defines no thread context",
                    subject::machine(machine)
                ),
            )
            .hint(
                "OTEP 4947 covers x86-64 and aarch64. The program can publish a process \
                context.",
            ),
        ),
        machine if machine != Machine::own() => Some(
            Finding::note(
                "other-machine",
                format!(
                    "it is built for {}, and this machine is {}: the findings below are about \
                     readers on the former",
                    subject::machine(machine),
                    subject::machine(Machine::own())
                ),
            )
            .hint("On this machine, only its core files can be read."),
        ),
        _ => None,
    }
}

/// The variable is defined, but not in the dynamic symbol table.
fn not_exported(inspection: &Inspection, place: &str, target: &str) -> Finding {
    let own = |entry: &&Entry| entry.thread_local && entry.defined;
    let mut all = inspection.local.iter().chain(&inspection.dynamic);
    let hidden = all.any(|it| own(&it) && it.hidden);
    match inspection.kind {
        Kind::Static => static_program(place, target),
        Kind::StaticPie => Finding::problem(
            "static-pie",
            format!(
                "{SYMBOL} is not exported from this static program{place}: only readers that \
                 search .symtab find it, and none once it is stripped"
            ),
        )
        .hint(
            "Use lld or mold. If GNU ld exports it, the program may crash before main, unless all \
             code that uses it is local-exec:",
        )
        .fix(fix::export_static_pie(target)),
        _ if hidden => Finding::problem(
            "hidden",
            format!("{SYMBOL} is defined{place} but hidden: readers can't find it"),
        )
        .hint(
            "It was compiled with hidden visibility. Change that in its source, or for the \
            whole program:",
        )
        .fix(fix::make_visible(target)),
        Kind::Library => defined_only(place)
            .hint("It is hidden, static, or local in a version script. For these:")
            .fix(fix::make_visible(target))
            .fix(fix::list()),
        // mold makes all symbols local that it does not export.
        _ if inspection.is_made_by("mold ") => defined_only(place)
            .hint(
                "The linker kept it local. Any one of these exports it, unless it is static or \
                 hidden in its source; then declare it as in the line for C.",
            )
            .fix(fix::export(target))
            .fix(fix::declare_visible()),
        // GNU ld makes only static and hidden symbols local, and what a version script names as local.
        _ if inspection.local.iter().filter(own).all(|it| it.local) => Finding::problem(
            "static-variable",
            format!(
                "{SYMBOL} is static or hidden{place}: no linker exports it, and readers can't \
                 find it"
            ),
        )
        .hint(
            "Declare it without  static  and not hidden, or export it in the version script. For \
             these:",
        )
        .fix(fix::make_visible(target)),
        _ => exportable(place, target),
    }
}

/// The linker could have exported the program's variable.
pub(super) fn exportable(place: &str, target: &str) -> Finding {
    defined_only(place)
        .hint("The linker kept it local. Any one of these exports it:")
        .fix(fix::export(target))
}

fn defined_only(place: &str) -> Finding {
    let text = format!("{SYMBOL} is defined{place} but not exported: readers can't find it");
    Finding::problem("not-exported", text)
}

/// The program has no dynamic symbol table.
fn static_program(place: &str, target: &str) -> Finding {
    Finding::problem(
        "static",
        format!(
            "nothing exports {SYMBOL}{place}: the program is static, so only readers that \
             search .symtab find it, and none once it is stripped"
        ),
    )
    .hint("Link it dynamically, or with these instead of -static (in Rust, +crt-static):")
    .fix(fix::static_pie(target))
}

/// GNU ld leaves a relocation that glibc cannot resolve before it has set up thread-local storage
/// (`_dl_relocate_static_pie`).
fn crashes(inspection: &Inspection, module: &Module, target: &str) -> Option<Finding> {
    let left = inspection.kind == Kind::StaticPie
        && module
            .relocations
            .iter()
            .any(|it| it.access == Access::InitialExec);
    left.then(|| {
        let name = module.machine.relocation_name(Access::InitialExec);
        Finding::problem(
            "static-pie-crash",
            format!(
                "this static program crashes before main: the linker left {} for {SYMBOL}, and \
                 there is no dynamic linker to resolve it",
                name.unwrap_or("a relocation")
            ),
        )
        .hint("GNU ld does this. Link with lld or mold, or dynamically:")
        .fix(fix::use_lld(target))
    })
}

fn version(inspection: &Inspection, place: &str) -> Option<Finding> {
    let version = inspection.version.as_ref()?;
    Some(
        Finding::note(
            "versioned",
            format!(
                "{SYMBOL}{place} has the version {version}: readers search by name and find it"
            ),
        )
        .hint("Programs that link to it bind to that version: keep it in later releases."),
    )
}

/// Something else has the variable's name.
pub(super) fn not_thread_local(exported: bool, place: &str) -> Finding {
    let how = if exported { "exported" } else { "defined" };
    Finding::problem(
        "not-thread-local",
        format!("{SYMBOL} is {how}{place}, but is not a thread-local variable: readers ignore it"),
    )
    .hint("Declare it as thread-local:")
    .fix(fix::declare())
}

/// A file without the variable.
fn absent_from(inspection: &Inspection) -> Finding {
    let lacks = if inspection.stripped {
        format!("it exports no {SYMBOL}, and is stripped")
    } else {
        format!("it has no {SYMBOL}")
    };
    absent(format!("{lacks}: its threads publish no context"))
}

/// A file without a definition of its own, whose libraries may have it. `uses`: its own code
/// refers to the variable.
pub(super) fn elsewhere(uses: bool, stripped: bool, libraries: &Libraries) -> Finding {
    let own = if uses {
        format!("it uses {SYMBOL} and does not define it")
    } else if stripped {
        format!("it exports no {SYMBOL}, and is stripped")
    } else {
        format!("it has no {SYMBOL}")
    };
    if let Some((path, _)) = &libraries.defining {
        let text = format!("{own}: the definition is in {}", path.display());
        return Finding::note("defined-elsewhere", text);
    }
    let inspected = match libraries.inspected {
        0 => String::new(),
        number => format!(
            ", and {} that it needs {}",
            count(number, "library", "libraries"),
            match number {
                1 => "does not have it either",
                _ => "do not have it either",
            }
        ),
    };
    if libraries.missing.is_empty() && libraries.skipped.is_empty() {
        return absent(format!("{own}{inspected}: its threads publish no context"));
    }
    let mut finding = if uses {
        // Else it would not start.
        Finding::note("defined-elsewhere", format!("{own}{inspected}"))
    } else {
        absent(format!("{own}{inspected}"))
    };
    let limit = format!("Not inspected, because the limit is {MAX_LIBRARIES} libraries");
    for (why, names) in [
        ("Not found here, so not inspected", &libraries.missing),
        (&limit, &libraries.skipped),
    ] {
        if !names.is_empty() {
            finding = finding.hint(format!(
                "{why}: {}. If one of these defines it, check that file, or the running process.",
                first_of(names)
            ));
        }
    }
    finding
}

/// The first names, and the number of others.
fn first_of(names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {}", count(more, "other", "others")),
    };
    names[..names.len().min(MAX_NAMED)].join(", ") + &more
}

/// The file defines nothing of that name.
pub(super) fn absent(text: String) -> Finding {
    Finding::problem("absent", text).hint(
        "Rust programs get it from the crate otelctx, others from a publisher for their language.",
    )
}

/// The variable has another size than a pointer.
pub(super) fn wrong_size(place: &str, size: u64) -> Option<Finding> {
    (size != SIZE).then(|| {
        Finding::problem(
            "wrong-size",
            format!(
                "{SYMBOL}{place} has {} instead of {SIZE}: readers ignore it",
                count(size as usize, "byte", "bytes")
            ),
        )
        .hint("Declare it as one pointer:")
        .fix(fix::declare())
    })
}
