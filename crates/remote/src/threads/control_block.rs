//! Where C libraries store their list of threads, and the layout of a thread's control block.

use crate::elf::{Elf, ElfError};
use crate::libc::CLibrary;
use crate::machine::Machine;
use crate::modules::{Loaded, c_library};

/// Prefix of glibc's descriptions of its own structures (`nptl_db/structs.def`).
const PREFIX: &[u8] = b"_thread_db_";
/// Maximum size of these names; the longest one in use has 36 bytes.
const MAX_NAME: usize = 64;
/// glibc's two lists of threads, by the symbols of a static program: threads with a stack from the
/// application (including the first thread), and threads with a stack from glibc.
const STATIC_LISTS: [&[u8]; 2] = [b"_dl_stack_user", b"_dl_stack_used"];

/// Offsets in glibc's `struct pthread`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadLayout {
    /// Offset of the node in the list of threads: next, previous.
    pub(super) list: u64,
    /// Offset of the thread's ID.
    pub(super) tid: u64,
    /// Size of the whole structure.
    pub(super) size: u64,
}

impl ThreadLayout {
    /// On x86-64 in every glibc since 2.10: a `tcbhead_t`, defined by the ABI, of 704 bytes, the
    /// node, the ID (nptl/descr.h). The size is irrelevant there.
    pub(super) const X86_64: Self = Self {
        list: 704,
        tid: 720,
        size: 0,
    };
}

/// A file's facts about the threads of its process; empty for most files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FileFacts {
    pub(super) layout: Option<ThreadLayout>,
    /// For glibc's libc.so: offsets of the lists in `_rtld_global`.
    pub(super) lists_in_rtld_global: [Option<u64>; 2],
    /// For a static program: addresses of the lists.
    pub(super) lists: [Option<u64>; 2],
}

impl FileFacts {
    /// Reads the facts from glibc's libc.so (2.34 and later), which exports its descriptions.
    pub(crate) fn of_glibc(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let address = |name: &str| {
            let symbol = elf.dynamic_symbol(&[PREFIX, name.as_bytes()].concat())?;
            Ok(symbol.map(|symbol| symbol.value))
        };
        let list = |name: &str| field(elf, address(name)?);
        Ok(Self {
            layout: layout(elf, &address)?,
            lists_in_rtld_global: [
                list("rtld_global__dl_stack_user")?,
                list("rtld_global__dl_stack_used")?,
            ],
            lists: [None; 2],
        })
    }

    /// Reads the facts from the `.symtab` of a static program.
    pub(crate) fn of_static_program(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let mut facts = Self::default();
        let lists = elf.static_objects(b"_dl_stack_us", MAX_NAME)?;
        for (name, list) in STATIC_LISTS.iter().zip(&mut facts.lists) {
            let named = |(it, _): &&(Vec<u8>, u64)| name.ends_with(it) && it.len() == 2;
            *list = lists.iter().find(named).map(|(_, value)| *value);
        }
        if facts.lists != [None; 2] {
            let symbols = elf.static_objects(PREFIX, MAX_NAME)?;
            facts.layout = layout(elf, &|name| {
                let named = |(it, _): &&(Vec<u8>, u64)| it == name.as_bytes();
                Ok(symbols.iter().find(named).map(|(_, value)| *value))
            })?;
        }
        Ok(facts)
    }
}

/// A field is described by three 32-bit numbers; the third is its offset in bytes
/// (DB_STRUCT_FIELD in nptl_db/db_info.c).
fn field(elf: &Elf<'_>, at: Option<u64>) -> Result<Option<u64>, ElfError> {
    at.map(|at| elf.read_u32(at.wrapping_add(8)).map(u64::from))
        .transpose()
}

fn layout(
    elf: &Elf<'_>,
    address: &dyn Fn(&str) -> Result<Option<u64>, ElfError>,
) -> Result<Option<ThreadLayout>, ElfError> {
    let list = field(elf, address("pthread_list")?)?;
    let tid = field(elf, address("pthread_tid")?)?;
    let size = address("sizeof_pthread")?
        .map(|at| elf.read_u32(at).map(u64::from))
        .transpose()?;
    let (Some(list), Some(tid), Some(size)) = (list, tid, size) else {
        return Ok(None);
    };
    let fits = list < size && tid < size && size <= 1 << 16;
    Ok(fits.then_some(ThreadLayout { list, tid, size }))
}

/// Where a process stores its list of threads, according to its files.
#[derive(Debug, Clone, Default)]
pub struct ThreadLists {
    pub(super) machine: Option<Machine>,
    pub(super) library: Option<CLibrary>,
    pub(super) layout: Option<ThreadLayout>,
    /// Addresses of the heads of glibc's lists.
    pub(super) heads: Vec<u64>,
    /// First address of the C library and the first address after it, where to scan for its data.
    pub(super) library_range: Option<(u64, u64)>,
}

impl ThreadLists {
    /// Combines the facts of the loaded modules.
    pub(crate) fn of(loaded: &[Loaded], machine: Machine) -> Self {
        let mut lists = Self {
            machine: Some(machine),
            library: c_library(loaded.iter().map(|loaded| &*loaded.module.file)),
            ..Self::default()
        };
        let rtld_global = loaded.iter().find_map(|loaded| {
            let global = loaded.module.glibc.rtld_global?;
            Some(loaded.bias.wrapping_add(global))
        });
        for loaded in loaded {
            let module = &loaded.module;
            if module.library.is_some()
                && module.library == lists.library
                && lists.library_range.is_none()
            {
                let start = loaded.bias.wrapping_add(module.first_load.address);
                lists.library_range = Some((start, loaded.bias.wrapping_add(module.end)));
            }
            let facts = &module.threads;
            if lists.layout.is_some() || facts.layout.is_none() {
                continue;
            }
            lists.layout = facts.layout;
            let in_global = facts.lists_in_rtld_global.iter().flatten();
            let in_global = in_global.filter_map(|at| Some(rtld_global?.wrapping_add(*at)));
            let own = facts.lists.iter().flatten();
            lists.heads = in_global
                .chain(own.map(|at| loaded.bias.wrapping_add(*at)))
                .collect();
        }
        lists
    }
}

/// musl's `struct pthread` on x86-64 (`src/internal/pthread_impl.h`): self, dtv, prev, next, sysinfo,
/// canary, tid. All threads form one ring.
pub(super) mod musl {
    use crate::Memory;

    /// Offset of the id, in bytes.
    pub(in crate::threads) const TID: u64 = 48;

    /// The fields of a control block that are used.
    pub(in crate::threads) struct Block {
        pub(in crate::threads) previous: u64,
        pub(in crate::threads) next: u64,
        pub(in crate::threads) tid: u32,
    }

    impl Block {
        /// `None` if it is not a control block, whose first word is its own address.
        pub(in crate::threads) fn read(memory: &dyn Memory, address: u64) -> Option<Self> {
            let mut bytes = [0; TID as usize + 4];
            memory.read(address, &mut bytes).ok()?;
            let word = |at: usize| Some(u64::from_ne_bytes(bytes[at..at + 8].try_into().ok()?));
            (word(0)? == address).then_some(())?;
            Some(Self {
                previous: word(16)?,
                next: word(24)?,
                tid: u32::from_ne_bytes(bytes[TID as usize..].try_into().ok()?),
            })
        }
    }
}
