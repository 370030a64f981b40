//! glibc's lists of threads, and the layout of a thread's control block.

use super::thread_db::{MAX_NAME, ThreadDb};
use crate::elf::{Elf, ElfError};

/// glibc's two lists of threads in a static program: with a stack from the application (including
/// the first thread), and with a stack from glibc.
const STATIC_LISTS: [&[u8]; 2] = [b"_dl_stack_user", b"_dl_stack_used"];

/// Offsets in glibc's `struct pthread`, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ThreadLayout {
    /// The node in the list of threads: next, previous.
    pub(crate) list: u64,
    pub(crate) tid: u64,
    pub(crate) size: u64,
}

impl ThreadLayout {
    pub(super) const NAMES: [&str; 3] = ["pthread_list", "pthread_tid", "sizeof_pthread"];

    /// On x86-64 in every glibc since 2.10: a `tcbhead_t` of 704 bytes, the node, the ID
    /// (nptl/descr.h). The size is irrelevant there.
    pub(crate) const X86_64: Self = Self {
        list: 704,
        tid: 720,
        size: 0,
    };

    fn of(table: &ThreadDb) -> Option<Self> {
        let list = table.offset("pthread_list")?;
        let tid = table.offset("pthread_tid")?;
        let size = table.size_of("pthread")?;
        let fits = list < size && tid < size && size <= 1 << 16;
        fits.then_some(Self { list, tid, size })
    }
}

/// A file's facts about the threads of its process; empty for most files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ThreadFacts {
    pub(crate) layout: Option<ThreadLayout>,
    /// For glibc's libc.so: offsets of the lists in `_rtld_global`.
    pub(crate) lists_in_rtld_global: [Option<u64>; 2],
    /// For a static program: addresses of the lists.
    pub(crate) lists: [Option<u64>; 2],
}

impl ThreadFacts {
    pub(super) const NAMES: [&str; 2] =
        ["rtld_global__dl_stack_user", "rtld_global__dl_stack_used"];

    /// The facts of glibc's libc.so (2.34 and later), from its table.
    pub(super) fn of_glibc(table: &ThreadDb) -> Self {
        Self {
            layout: ThreadLayout::of(table),
            lists_in_rtld_global: Self::NAMES.map(|name| table.offset(name)),
            lists: [None; 2],
        }
    }

    /// Reads the facts from the `.symtab` of a static program.
    pub(super) fn of_static_program(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let mut facts = Self::default();
        let lists = elf.static_objects(b"_dl_stack_us", MAX_NAME)?;
        for (name, list) in STATIC_LISTS.iter().zip(&mut facts.lists) {
            let named = |(it, _): &&(Vec<u8>, u64)| name.ends_with(it) && it.len() == 2;
            *list = lists.iter().find(named).map(|(_, value)| *value);
        }
        if facts.lists != [None; 2] {
            facts.layout = ThreadLayout::of(&ThreadDb::read(elf, &ThreadLayout::NAMES)?);
        }
        Ok(facts)
    }
}
