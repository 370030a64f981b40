//! The functions of glibc that take a mutex or a read-write lock.
//!
//! A stripped library has no symbols for its local functions. Two kinds matter: helpers that a lock function calls, whose
//! caller is on the stack, and functions that it ends with, as `pthread_mutex_timedlock` and the robust mutexes of
//! `pthread_mutex_lock` do: these are found by the jump, and end where the unwind tables' next function starts.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl};
use otelctx_reader::remote::Machine;
use otelctx_reader::remote::a64::Instruction;
use otelctx_reader::remote::elf::{Elf, ElfError};

/// Maximum size of a lock function that is decoded, in bytes; glibc's have 10 to 1,500.
const MAX_FUNCTION: u64 = 16 * 1024;
/// Maximum number of entries read of the search table of unwind tables: 16 times glibc's.
const MAX_ENTRIES: u64 = 64 * 1024;
/// The search table is a sequence of pairs of 32-bit numbers, relative to the start of its section (Linux Standard Base,
/// "Eh Frame Header": DW_EH_PE_datarel | DW_EH_PE_sdata4).
const TABLE_ENCODING: u8 = 0x3b;
/// DW_EH_PE_udata4, of the number of entries.
const COUNT_ENCODING: u8 = 0x03;
/// Size of the header before the table: version, encodings, a 32-bit pointer and the number of entries.
const HEADER_SIZE: u64 = 12;

/// The kind of lock that a function takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lock {
    Mutex,
    ReadWrite,
}

const FUNCTIONS: [(&str, Lock); 9] = [
    ("pthread_mutex_lock", Lock::Mutex),
    ("pthread_mutex_timedlock", Lock::Mutex),
    ("pthread_mutex_clocklock", Lock::Mutex),
    ("pthread_rwlock_rdlock", Lock::ReadWrite),
    ("pthread_rwlock_wrlock", Lock::ReadWrite),
    ("pthread_rwlock_timedrdlock", Lock::ReadWrite),
    ("pthread_rwlock_timedwrlock", Lock::ReadWrite),
    ("pthread_rwlock_clockrdlock", Lock::ReadWrite),
    ("pthread_rwlock_clockwrlock", Lock::ReadWrite),
];

/// The addresses of lock functions in a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LockCode(pub(crate) Vec<(Range<u64>, Lock)>);

impl LockCode {
    /// Finds the functions of glibc's libc.so, or of its libpthread.so before 2.34.
    pub(crate) fn read(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let starts = function_starts(elf)?;
        let mut code = Vec::new();
        for (name, lock) in FUNCTIONS {
            let Some(symbol) = elf.exported_symbol(name.as_bytes())? else {
                continue;
            };
            let own = symbol.value..symbol.value.saturating_add(symbol.size.min(MAX_FUNCTION));
            let mut bytes = vec![0; (own.end - own.start) as usize];
            elf.read_at(own.start, &mut bytes)?;
            for target in jumps(elf.machine(), &bytes, own.start) {
                if own.contains(&target) {
                    continue;
                }
                let found = starts.binary_search(&target);
                if let Ok(index) = found
                    && let Some(end) = starts.get(index + 1)
                {
                    code.push((target..*end, lock));
                }
            }
            code.push((own, lock));
        }
        Ok(Self(code))
    }

    /// The kind of lock that the function at an address of the file takes.
    pub(crate) fn at(&self, address: u64) -> Option<Lock> {
        let found = self.0.iter().find(|(range, _)| range.contains(&address));
        found.map(|(_, lock)| *lock)
    }
}

/// The targets of direct jumps, not of calls.
fn jumps(machine: Machine, code: &[u8], address: u64) -> Vec<u64> {
    match machine {
        Machine::X86_64 => {
            let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
            let jumps = decoder.into_iter().filter(|instruction| {
                let flow = instruction.flow_control();
                matches!(
                    flow,
                    FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
                )
            });
            jumps.map(|jump| jump.near_branch_target()).collect()
        }
        Machine::Aarch64 => {
            let jumps =
                Instruction::all(code, address).filter_map(|instruction| match instruction {
                    Instruction::Jump { target } | Instruction::ConditionalJump { target } => {
                        Some(target)
                    }
                    _ => None,
                });
            jumps.collect()
        }
        Machine::Other(_) => Vec::new(),
    }
}

/// The addresses at which functions start, in order, by the search table of the unwind tables. Empty if there is none in the
/// form that linkers write.
fn function_starts(elf: &Elf<'_>) -> Result<Vec<u64>, ElfError> {
    let Some(section) = elf.eh_frame_header() else {
        return Ok(Vec::new());
    };
    let mut header = [0; HEADER_SIZE as usize];
    if section.memory_size < HEADER_SIZE {
        return Ok(Vec::new());
    }
    elf.read_at(section.address, &mut header)?;
    let [
        version,
        _,
        count_encoding,
        table_encoding,
        _,
        _,
        _,
        _,
        count @ ..,
    ] = header;
    let count = u64::from(u32::from_le_bytes(count));
    let size = count.saturating_mul(8);
    let is_known = version == 1
        && count_encoding == COUNT_ENCODING
        && table_encoding == TABLE_ENCODING
        && count <= MAX_ENTRIES
        && size <= section.memory_size - HEADER_SIZE;
    if !is_known {
        return Ok(Vec::new());
    }
    let mut table = vec![0; size as usize];
    elf.read_at(section.address.wrapping_add(HEADER_SIZE), &mut table)?;
    let starts = table.chunks_exact(8).map(|entry| {
        let offset = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
        section.address.wrapping_add_signed(offset.into())
    });
    let mut starts: Vec<u64> = starts.collect();
    starts.sort_unstable();
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use otelctx_reader::remote::FileBytes;
    use otelctx_reader::remote::elf::Source;

    use super::*;

    /// glibc on this machine, and for the other architecture where its cross-compiler is installed.
    const LIBRARIES: [&str; 3] = [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/lib/aarch64-linux-gnu/libc.so.6",
        "/usr/aarch64-linux-gnu/lib/libc.so.6",
    ];

    #[test]
    fn lock_functions_and_the_functions_at_their_ends() {
        let mut found = 0;
        for path in LIBRARIES {
            let Ok(file) = File::open(path) else {
                continue;
            };
            found += 1;
            let bytes = FileBytes(&file);
            let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
            let code = LockCode::read(&elf).unwrap();
            for (name, lock) in FUNCTIONS {
                let symbol = elf.exported_symbol(name.as_bytes()).unwrap().unwrap();
                assert_eq!(code.at(symbol.value), Some(lock), "{path}: {name}");
                let last = symbol.value + symbol.size - 1;
                assert_eq!(code.at(last), Some(lock), "{path}: {name}");
            }
            // `__pthread_mutex_lock_full` and `__pthread_mutex_clocklock_common`, at least, which have no symbols.
            let is_exported = |start: u64| {
                let symbols = FUNCTIONS
                    .iter()
                    .map(|(name, _)| elf.exported_symbol(name.as_bytes()));
                symbols
                    .flatten()
                    .flatten()
                    .any(|symbol| symbol.value == start)
            };
            let others = code.0.iter().filter(|(range, _)| !is_exported(range.start));
            let large = others.filter(|(range, _)| range.end - range.start > 1000);
            let mut starts: Vec<u64> = large.map(|(range, _)| range.start).collect();
            starts.sort_unstable();
            starts.dedup();
            assert_eq!(starts.len(), 2, "{path}: {starts:x?}");
            // No function of another kind.
            let others = [
                "pthread_cond_wait",
                "pthread_cond_timedwait",
                "sem_wait",
                "pthread_barrier_wait",
                "pthread_join",
                "pthread_mutex_unlock",
                "pthread_once",
                "flockfile",
                "syscall",
                "__lll_lock_wait_private",
            ];
            for name in others {
                let symbol = elf.exported_symbol(name.as_bytes()).unwrap().unwrap();
                for address in symbol.value..symbol.value + symbol.size {
                    assert_eq!(code.at(address), None, "{path}: {name}");
                }
            }
        }
        if found == 0 {
            eprintln!("skipped: no glibc where Debian has it");
        }
    }
}
