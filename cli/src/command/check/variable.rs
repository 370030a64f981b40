//! The symbol in a linked file: defined or not, exported or not, and why.

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::Access;
use otelctx_reader::remote::inspect::{Entry, Inspection, Kind};
use otelctx_reader::remote::module::{Machine, Module, Symbol};

use super::finding::Finding;
use super::fix;
use super::subject;
use crate::command::needed::{Libraries, MAX_LIBRARIES};
use crate::output::text::count;

/// Maximum number of libraries to name in one sentence.
const MAX_NAMED: usize = 6;

/// The size of the variable: a pointer of a 64-bit process.
const SIZE: u64 = 8;

/// Returns findings about the variable in a linked file. `place` follows a noun: empty, or
/// ` in FILE`; `target` is the likely name of its build target.
pub(super) fn of_file(
    inspection: &Inspection,
    module: &Module,
    place: &str,
    target: &str,
) -> Vec<Finding> {
    let mut findings: Vec<Finding> = foreign(module.machine).into_iter().collect();
    match module.symbol {
        Symbol::Exported { size, .. } => {
            let text = format!("{SYMBOL} is exported{place}");
            findings.push(Finding::ok("exported", text));
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
        let text = format!("it has {definitions} variables of that name, static ones among them");
        let hint = "Declare it in one source file, without  static  and in no header.";
        findings.push(Finding::note("several-definitions", text).hint(hint));
    }
    findings
}

/// Says that this architecture is not this machine's.
fn foreign(machine: Machine) -> Option<Finding> {
    let name = subject::machine(machine);
    if let Machine::Other(_) = machine {
        return Some(unsupported(&name));
    }
    (machine != Machine::own()).then(|| {
        let text = format!(
            "it is built for {name}, and this machine is {}: the findings below are about readers \
             on the former",
            subject::machine(Machine::own())
        );
        Finding::note("other-machine", text)
            .hint("On this machine, only its core files can be read.")
    })
}

/// Says that OTEP 4947 does not cover this architecture.
pub(super) fn unsupported(machine: &str) -> Finding {
    let text = format!("it is built for {machine}, for which OTEP 4947 defines no thread context");
    Finding::problem("machine", text)
        .hint("OTEP 4947 covers x86-64 and aarch64. The program can publish a process context.")
}

/// Says why the variable is not in the dynamic symbol table.
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
        _ if hidden => self::hidden(place, "readers can't find it", target),
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
        // GNU ld makes only static and hidden symbols local, and what a version script names.
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

pub(super) fn hidden(place: &str, effect: &str, target: &str) -> Finding {
    let text = format!("{SYMBOL} is defined{place} but hidden: {effect}");
    Finding::problem("hidden", text)
        .hint(
            "It was compiled with hidden visibility. Change that in its source, or for the \
            whole program:",
        )
        .fix(fix::make_visible(target))
}

/// Says that the linker could have exported the program's variable.
pub(super) fn exportable(place: &str, target: &str) -> Finding {
    defined_only(place)
        .hint("The linker kept it local. Any one of these exports it:")
        .fix(fix::export(target))
}

fn defined_only(place: &str) -> Finding {
    let text = format!("{SYMBOL} is defined{place} but not exported: readers can't find it");
    Finding::problem("not-exported", text)
}

fn static_program(place: &str, target: &str) -> Finding {
    let text = format!(
        "nothing exports {SYMBOL}{place}: the program is static, so only readers that search \
         .symtab find it, and none once it is stripped"
    );
    Finding::problem("static", text)
        .hint("Link it dynamically, or with these instead of -static (in Rust, +crt-static):")
        .fix(fix::static_pie(target))
}

/// GNU ld leaves a relocation that glibc cannot resolve before it has set up thread-local storage
/// (`_dl_relocate_static_pie`).
fn crashes(inspection: &Inspection, module: &Module, target: &str) -> Option<Finding> {
    let mut relocations = module.relocations.iter();
    let left = relocations.any(|it| it.access == Access::InitialExec);
    (inspection.kind == Kind::StaticPie && left).then(|| {
        let name = module.machine.relocation_name(Access::InitialExec);
        let text = format!(
            "this static program crashes before main: the linker left {} for {SYMBOL}, and there \
             is no dynamic linker to resolve it",
            name.unwrap_or("a relocation")
        );
        Finding::problem("static-pie-crash", text)
            .hint("GNU ld does this. Link with lld or mold, or dynamically:")
            .fix(fix::use_lld(target))
    })
}

fn version(inspection: &Inspection, place: &str) -> Option<Finding> {
    let version = inspection.version.as_ref()?;
    let text =
        format!("{SYMBOL}{place} has the version {version}: readers search by name and find it");
    let hint = "Programs that link to it bind to that version: keep it in later releases.";
    Some(Finding::note("versioned", text).hint(hint))
}

/// Says that something else has the variable's name.
pub(super) fn not_thread_local(exported: bool, place: &str) -> Finding {
    let how = if exported { "exported" } else { "defined" };
    let text =
        format!("{SYMBOL} is {how}{place}, but is not a thread-local variable: readers ignore it");
    Finding::problem("not-thread-local", text)
        .hint("Declare it as thread-local:")
        .fix(fix::declare())
}

fn absent_from(inspection: &Inspection) -> Finding {
    let lacks = lacks(inspection.stripped);
    absent(format!("{lacks}: its threads publish no context"))
}

fn lacks(stripped: bool) -> String {
    if stripped {
        format!("it exports no {SYMBOL}, and is stripped")
    } else {
        format!("it has no {SYMBOL}")
    }
}

/// Describes a file without a definition of its own, whose libraries may have it. `uses`: its own
/// code refers to the variable.
pub(super) fn elsewhere(uses: bool, stripped: bool, libraries: &Libraries) -> Finding {
    let own = if uses {
        format!("it uses {SYMBOL} and does not define it")
    } else {
        lacks(stripped)
    };
    if let Some((path, _)) = &libraries.defining {
        let text = format!("{own}: the definition is in {}", path.display());
        return Finding::note("defined-elsewhere", text);
    }
    let inspected = match libraries.inspected {
        0 => String::new(),
        number => format!(
            ", and {} that it needs {} not have it either",
            count(number, "library", "libraries"),
            if number == 1 { "does" } else { "do" }
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

/// Lists the first names, and the number of others.
fn first_of(names: &[String]) -> String {
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {}", count(more, "other", "others")),
    };
    names[..names.len().min(MAX_NAMED)].join(", ") + &more
}

pub(super) fn absent(text: String) -> Finding {
    Finding::problem("absent", text).hint(
        "Rust programs get it from the crate otelctx, others from a publisher for their language.",
    )
}

/// Says that the variable has another size than a pointer.
pub(super) fn wrong_size(place: &str, size: u64) -> Option<Finding> {
    (size != SIZE).then(|| {
        let bytes = count(size as usize, "byte", "bytes");
        let text = format!("{SYMBOL}{place} has {bytes} instead of {SIZE}: readers ignore it");
        Finding::problem("wrong-size", text)
            .hint("Declare it as one pointer:")
            .fix(fix::declare())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_beyond_the_limit_are_named() {
        let libraries = Libraries {
            skipped: vec!["libone.so".into(), "libother.so".into()],
            ..Libraries::default()
        };
        let finding = serde_json::to_value(elsewhere(false, false, &libraries)).unwrap();
        let hint = finding["hint"].as_str().unwrap();
        let expected = "Not inspected, because the limit is 512 libraries: libone.so, libother.so. If one of these";
        assert!(hint.contains(expected), "{hint}");
    }
}
