//! A file, which need not run.

use std::path::Path;

use otelctx_reader::SYMBOL;
use otelctx_reader::remote::inspect::{Contents, Inspection, Kind};
use otelctx_reader::remote::module::Machine;

use super::finding::{Answer, Finding};
use super::looked_at::{self, LookedAt};
use super::{access, mend, unlinked, variable};
use crate::error::{Error, NotLinked};

/// Says whether readers can find the variable that `path` defines.
pub(super) fn check(path: &Path) -> Result<Answer, Error> {
    let not_linked = |what| Error::NotLinked {
        path: path.to_owned(),
        what,
    };
    let (looked_at, findings) = match Contents::open(path, SYMBOL)? {
        Contents::Elf(inspection) => match inspection.kind {
            Kind::Core => return Err(not_linked(NotLinked::Core)),
            Kind::DebugInformation => return Err(not_linked(NotLinked::DebugInformation)),
            Kind::Unknown => return Err(not_linked(NotLinked::Unknown)),
            Kind::Object => (LookedAt::file(&inspection), unlinked::object(&inspection)),
            _ => {
                let findings = linked(&inspection, "", path);
                (LookedAt::file(&inspection), findings)
            }
        },
        Contents::Foreign {
            bits,
            big_endian,
            machine,
        } => foreign(bits, big_endian, machine),
        Contents::Archive { count, members } => {
            let looked_at = LookedAt::Archive {
                members: count,
                concerned: members.len(),
            };
            (looked_at, unlinked::archive(&members))
        }
        Contents::Other(other) => return Err(not_linked(NotLinked::Other(other))),
    };
    Ok(Answer::new(path.to_string_lossy(), looked_at, findings))
}

/// What a program or shared library says. `place` follows a noun.
pub(super) fn linked(inspection: &Inspection, place: &str, path: &Path) -> Vec<Finding> {
    let Some(module) = &inspection.module else {
        return Vec::new();
    };
    let target = mend::target_name(path);
    let mut findings = variable::of_file(inspection, module, place, &target);
    if module.symbol.definition().is_some() || !module.relocations.is_empty() {
        findings.extend(access::of_file(inspection, module, &target));
    }
    findings
}

/// Another word size or byte order.
fn foreign(bits: u8, big_endian: bool, machine: u16) -> (LookedAt, Vec<Finding>) {
    let finding = match (bits, big_endian) {
        (32, _) => thirty_two_bits(),
        _ => Finding::problem(
            "machine",
            "it is built for a big-endian machine, which has no thread context",
        )
        .mend("OTEP 4947 is about x86-64 and aarch64. A process context it can publish."),
    };
    let looked_at = LookedAt::File {
        kind: match bits {
            32 => "32-bit",
            _ => "big-endian",
        },
        machine: looked_at::machine(Machine::Other(machine)),
        stripped: false,
    };
    (looked_at, vec![finding])
}

/// OTEP 4947 leaves 32-bit targets out.
pub(super) fn thirty_two_bits() -> Finding {
    Finding::problem(
        "32-bit",
        "it is 32-bit: process context yes, thread context unsupported",
    )
    .mend("Build it for a 64-bit machine, as  -m64  does on x86.")
}

/// What stands in the way of looking into a module of a process.
pub(super) fn inspect(file: &std::fs::File) -> Result<Inspection, String> {
    match Contents::of(file, SYMBOL)? {
        Contents::Elf(inspection) => Ok(*inspection),
        _ => Err("it is no ELF module of 64 bits".to_owned()),
    }
}
