//! glibc: where its dynamic linker stores TLS blocks, by its table for debuggers ([`ThreadDb`]).

use super::thread_db::ThreadDb;
use crate::Memory;
use crate::machine::Machine;
use crate::memory::MemoryError;

/// The SONAME of glibc's libc.so.
pub(crate) const SONAME: &[u8] = b"libc.so.6";
/// The SONAME of its library of threads, which was merged into libc.so in 2.34.
pub(crate) const THREADS_SONAME: &[u8] = b"libpthread.so.0";
/// Prefix of the names of its dynamic linker, on every architecture.
pub(super) const LOADER_PREFIX: &[u8] = b"ld-linux";

/// Maximum number of slots of the slot-information list: modules with thread-local storage.
const MAX_MODULES: u64 = 64 * 1024;
/// Maximum number of nodes of that list, each of at least 62 modules (`TLS_SLOTINFO_SURPLUS`).
const MAX_NODES: usize = 1024;

/// Size of a `dtv_t`, in bytes: pointers to the block and to free (`sysdeps/generic/dl-dtv.h`).
const ENTRY: u64 = 16;
/// A block that the thread has not allocated (`TLS_DTV_UNALLOCATED`).
const UNALLOCATED: u64 = u64::MAX;

/// The result of `pthread_self`, as an offset from the thread pointer: `struct pthread` begins
/// there on x86-64, and ends there elsewhere. `None` if the table lacks its size.
pub(crate) fn pthread_self(table: &ThreadDb, machine: Machine) -> Option<i64> {
    match machine {
        Machine::X86_64 => Some(0),
        _ => Some(0_i64.wrapping_sub_unsigned(table.size_of("pthread")?)),
    }
}

/// Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The offset in `_rtld_global` of the pointer to the first `dtv_slotinfo_list`.
    list: u64,
    list_length: u64,
    list_next: u64,
    list_slots: u64,
    slot_size: u64,
    slot_generation: u64,
    slot_map: u64,
    /// In `link_map`.
    tls_offset: u64,
}

impl Layout {
    pub(super) const NAMES: [&str; 8] = [
        "rtld_global__dl_tls_dtv_slotinfo_list",
        "dtv_slotinfo_list_len",
        "dtv_slotinfo_list_next",
        "dtv_slotinfo_list_slotinfo",
        "sizeof_dtv_slotinfo",
        "dtv_slotinfo_gen",
        "dtv_slotinfo_map",
        "link_map_l_tls_offset",
    ];

    /// `None` if the table does not describe it.
    pub(super) fn of(table: &ThreadDb) -> Option<Self> {
        let size = table.size_of("dtv_slotinfo");
        Some(Self {
            list: table.offset("rtld_global__dl_tls_dtv_slotinfo_list")?,
            list_length: table.offset("dtv_slotinfo_list_len")?,
            list_next: table.offset("dtv_slotinfo_list_next")?,
            list_slots: table.offset("dtv_slotinfo_list_slotinfo")?,
            slot_size: size.filter(|size| (16..=256).contains(size))?,
            slot_generation: table.offset("dtv_slotinfo_gen")?,
            slot_map: table.offset("dtv_slotinfo_map")?,
            tls_offset: table.offset("link_map_l_tls_offset")?,
        })
    }
}

/// A loaded module with thread-local storage, according to the dynamic linker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TlsModule {
    /// Its index in a thread's vector.
    pub(crate) id: u64,
    /// The first generation of the vector that contains it.
    pub(crate) generation: u64,
    /// `l_addr`: the load bias.
    pub(crate) bias: u64,
    /// `l_tls_offset`, if the module has static storage.
    pub(crate) static_offset: Option<u64>,
    pub(crate) registration: Option<Registration>,
}

/// The entry of a module in glibc's list (`struct dtv_slotinfo`), which changes when it is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registration {
    /// Address of the two words.
    pub address: u64,
    /// Their values while the module is loaded: its generation, and the address of its link map.
    pub words: [u64; 2],
}

/// Reads `_dl_tls_dtv_slotinfo_list` (glibc `elf/dl-tls.c`).
pub(crate) fn tls_modules(
    memory: &dyn Memory,
    rtld_global: u64,
    layout: &Layout,
) -> Result<Vec<TlsModule>, MemoryError> {
    let mut modules = Vec::new();
    let mut first_id = 0;
    let mut node = memory.read_u64(rtld_global.wrapping_add(layout.list))?;
    let mut nodes = Vec::new();
    for _ in 0..MAX_NODES {
        // A node that leads back to itself adds nothing.
        if node == 0 || first_id >= MAX_MODULES || nodes.contains(&node) {
            break;
        }
        nodes.push(node);
        let length = memory.read_u64(node.wrapping_add(layout.list_length))?;
        let count = length.min(MAX_MODULES - first_id);
        for index in 0..count {
            let slot = node
                .wrapping_add(layout.list_slots)
                .wrapping_add(index.wrapping_mul(layout.slot_size));
            let map = memory.read_u64(slot.wrapping_add(layout.slot_map))?;
            // Module IDs start at 1, but glibc 2.36 also stores the executable's map in slot 0.
            if map == 0 || first_id + index == 0 {
                continue;
            }
            let tls_offset = memory.read_u64(map.wrapping_add(layout.tls_offset))?;
            let generation = memory.read_u64(slot.wrapping_add(layout.slot_generation))?;
            // Every glibc so far has these two words, in this order.
            let as_known = (layout.slot_generation, layout.slot_map) == (0, 8);
            modules.push(TlsModule {
                id: first_id + index,
                generation,
                registration: as_known.then_some(Registration {
                    address: slot,
                    words: [generation, map],
                }),
                // The first member of every `struct link_map` (<link.h>).
                bias: memory.read_u64(map)?,
                // NO_TLS_OFFSET and FORCED_DYNAMIC_TLS_OFFSET (include/link.h) are 0 and −1, or
                // −1 and −2 where 0 is a valid offset.
                static_offset: (tls_offset != 0 && tls_offset < u64::MAX - 1).then_some(tls_offset),
            });
        }
        first_id += count;
        node = memory.read_u64(node.wrapping_add(layout.list_next))?;
    }
    Ok(modules)
}

/// The offset of the vector in the thread control block: the second word of `tcbhead_t` on x86-64,
/// the first on aarch64 (`sysdeps/{x86_64/nptl,aarch64/nptl}/tls.h`).
fn vector_offset(machine: Machine) -> u64 {
    match machine {
        Machine::Aarch64 => 0,
        _ => 8,
    }
}

/// The block of a module in a thread's dynamic thread vector, as `__tls_get_addr` finds it.
pub(crate) fn block(
    memory: &dyn Memory,
    machine: Machine,
    thread_pointer: u64,
    module: u64,
    generation: Option<u64>,
) -> Result<Option<u64>, MemoryError> {
    let vector = memory.read_u64(thread_pointer.wrapping_add(vector_offset(machine)))?;
    if vector == 0 || module == 0 {
        return Ok(None);
    }
    // dtv[-1] is the number of entries, dtv[0] the generation that the thread has updated to.
    let mut head = [0; 24];
    memory.read(vector.wrapping_sub(ENTRY), &mut head)?;
    let [length, _, seen] = [0, 1, 2].map(|word| u64::from_le_bytes(head.as_chunks().0[word]));
    // A thread that has not updated may still have the block of a closed module with the same ID.
    if module > length || generation.is_some_and(|generation| seen < generation) {
        return Ok(None);
    }
    let block = memory.read_u64(vector.wrapping_add(module.wrapping_mul(ENTRY)))?;
    Ok((block != UNALLOCATED && block != 0).then_some(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{CountedMemory, Image};

    /// Numbers of this test; glibc's come from a libc.so.
    const LAYOUT: Layout = Layout {
        list: 0x20,
        list_length: 0,
        list_next: 8,
        list_slots: 16,
        slot_size: 16,
        slot_generation: 0,
        slot_map: 8,
        tls_offset: 0x40,
    };
    const GLOBAL: u64 = 0x1000;
    const NODE: u64 = 0x2000;

    /// Returns the modules and the number of reads.
    fn modules(memory: Image) -> (Result<Vec<TlsModule>, MemoryError>, usize) {
        let memory = CountedMemory::new(memory);
        let modules = tls_modules(&memory, GLOBAL, &LAYOUT);
        (modules, memory.take_reads())
    }

    /// A map with this `l_addr` and `l_tls_offset`.
    fn map(memory: &mut Image, at: u64, bias: u64, tls_offset: u64) -> u64 {
        memory
            .map_u64(at, &[bias])
            .map_u64(at + 0x40, &[tls_offset]);
        at
    }

    #[test]
    fn ids_generations_and_static_offsets_in_two_nodes() {
        let mut memory = Image::new();
        memory.map_u64(GLOBAL + 0x20, &[NODE]);
        let program = map(&mut memory, 0x8000, 0x5500, 0x40);
        let none = map(&mut memory, 0x8100, 0x7f00, 0);
        let forced = map(&mut memory, 0x8200, 0x7f10, u64::MAX);
        let forced_too = map(&mut memory, 0x8300, 0x7f20, u64::MAX - 1);
        // Slot 0 belongs to no module, even if it is not empty.
        memory.map_u64(NODE, &[3, 0x3000, 0, program, 1, program, 0, 0]);
        memory.map_u64(0x3000, &[4, 0, 2, none, 5, forced, 6, forced_too, 7, 0]);
        let expected = [
            (1, [1, program], 0x5500, Some(0x40), NODE + 32),
            (3, [2, none], 0x7f00, None, 0x3010),
            (4, [5, forced], 0x7f10, None, 0x3020),
            (5, [6, forced_too], 0x7f20, None, 0x3030),
        ];
        let expected = expected.map(|(id, words, bias, static_offset, address)| TlsModule {
            id,
            generation: words[0],
            bias,
            static_offset,
            registration: Some(Registration { address, words }),
        });
        assert_eq!(modules(memory).0.unwrap(), expected);
    }

    /// A cyclic list, with and without slots.
    #[test]
    fn a_list_without_end() {
        for (length, most) in [(0, 2 * 1024 + 1), (2, 3 * 65_536), (u64::MAX, 2 * 65_536)] {
            let mut memory = Image::new();
            memory.map_u64(GLOBAL + 0x20, &[NODE]);
            memory.map_u64(NODE, &[length, NODE]);
            memory.map(NODE + 16, vec![0; 2 << 20]);
            let (modules, reads) = modules(memory);
            assert_eq!(modules, Ok(Vec::new()));
            assert!(reads <= most, "{length}: {reads}");
        }
    }

    #[test]
    fn a_list_that_leads_nowhere_is_an_error_and_an_empty_one_is_none() {
        let mut memory = Image::new();
        assert!(modules(memory.clone()).0.is_err());
        memory.map_u64(GLOBAL + 0x20, &[0]);
        assert_eq!(modules(memory.clone()).0, Ok(Vec::new()));
        memory.map_u64(GLOBAL + 0x20, &[0xdead_0000]);
        assert!(modules(memory).0.is_err());
    }
}
