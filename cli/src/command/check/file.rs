//! Checks a file.

use std::path::Path;

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::inspect::{Contents, Inspection, Kind};
use otelctx_reader::remote::module::{Machine, Symbol};

use super::finding::{Answer, Finding};
use super::subject::{self, Subject};
use super::{access, addon, fix, interpreter, unlinked, variable};
use crate::command::needed::Libraries;
use crate::error::{Error, NotLinked};

/// Says whether readers can find the variable that `path` defines.
pub(super) fn check(path: &Path) -> Result<Answer, Error> {
    let not_linked = |what| Error::NotLinked {
        path: path.to_owned(),
        what,
    };
    let (subject, findings) = match Contents::open(path, SYMBOL)? {
        Contents::Elf(inspection) => match inspection.kind {
            Kind::Core => return Err(not_linked(NotLinked::Core)),
            Kind::DebugInformation => return Err(not_linked(NotLinked::DebugInformation)),
            Kind::Unknown => return Err(not_linked(NotLinked::Unknown)),
            Kind::Object => (Subject::file(&inspection), unlinked::object(&inspection)),
            _ => {
                let findings = match addon::of_file(path, &inspection) {
                    Some(findings) => findings,
                    None => with_libraries(&inspection, path),
                };
                (Subject::file(&inspection), findings)
            }
        },
        Contents::Foreign { bits, machine, .. } => foreign(bits, machine),
        Contents::Archive { count, members } => {
            let subject = Subject::Archive {
                members: count,
                concerned: members.len(),
            };
            (subject, unlinked::archive(&members))
        }
        Contents::Other(other) => return Err(not_linked(NotLinked::Other(other))),
    };
    Ok(Answer::new(path.to_string_lossy(), subject, findings))
}

/// Findings about a program or shared library, or about the library that defines the variable for
/// it.
fn with_libraries(inspection: &Inspection, path: &Path) -> Vec<Finding> {
    let Some(module) = &inspection.module else {
        return Vec::new();
    };
    let is_elsewhere = match module.symbol {
        Symbol::Undefined => true,
        Symbol::Absent => !inspection.local.iter().any(|it| it.defined),
        _ => false,
    };
    let is_absent = is_elsewhere && module.symbol == Symbol::Absent;
    if is_elsewhere && inspection.needed.is_empty() {
        let interpreter = interpreter::of_file(path, inspection).filter(|_| is_absent);
        return interpreter.map_or_else(|| linked(inspection, "", path), |finding| vec![finding]);
    }
    if !is_elsewhere {
        return linked(inspection, "", path);
    }
    let libraries = Libraries::of(path, inspection);
    if is_absent
        && libraries.defining.is_none()
        && let Some(finding) = interpreter::of_file(path, inspection)
    {
        return vec![finding];
    }
    let mut findings = linked(inspection, "", path);
    findings.retain(|it| !["absent", "defined-elsewhere"].contains(&it.id));
    let uses = module.symbol == Symbol::Undefined;
    let finding = variable::elsewhere(uses, inspection.stripped, &libraries);
    findings.insert(0, finding);
    if let Some((path, found)) = &libraries.defining {
        let name = path.to_string_lossy();
        let of_library = linked(found, &format!(" in {name}"), path);
        findings.extend(of_library.into_iter().map(|it| it.module(&name)));
    }
    findings
}

/// Returns findings about a program or shared library. `place` follows a noun.
pub(super) fn linked(inspection: &Inspection, place: &str, path: &Path) -> Vec<Finding> {
    let Some(module) = &inspection.module else {
        return Vec::new();
    };
    let target = fix::target_name(path);
    let mut findings = variable::of_file(inspection, module, place, &target);
    if module.symbol.definition().is_some() || !module.relocations.is_empty() {
        findings.extend(access::of_file(inspection, module, &target));
    }
    findings
}

/// Says that the file has another word size or byte order.
fn foreign(bits: u8, machine: u16) -> (Subject, Vec<Finding>) {
    let (kind, finding) = if bits == 32 {
        ("32-bit", thirty_two_bits())
    } else {
        ("big-endian", variable::unsupported("a big-endian machine"))
    };
    let subject = Subject::File {
        kind,
        machine: subject::machine(Machine::Other(machine)),
        stripped: false,
    };
    (subject, vec![finding])
}

/// Says that OTEP 4947 does not cover 32-bit targets.
pub(super) fn thirty_two_bits() -> Finding {
    Finding::problem(
        "32-bit",
        "it is 32-bit: it can publish a process context, but no thread context",
    )
    .hint("Build it for a 64-bit machine; on x86, with  -m64")
}

/// Inspects the file of a module of a process.
pub(super) fn inspect(file: &std::fs::File) -> Result<Inspection, String> {
    match Contents::of(file, SYMBOL)? {
        Contents::Elf(inspection) => Ok(*inspection),
        _ => Err("it is not a 64-bit ELF module".to_owned()),
    }
}
