//! glibc's description of its own structures for debuggers: the `_thread_db_*` table
//! (`nptl_db/structs.def`, `nptl/libpthread_db.h`).
//!
//! libc.so exports it since 2.34; before, and in a static program, it is in `.symtab`.

use std::collections::BTreeMap;

use crate::elf::{Elf, ElfError};

const PREFIX: &str = "_thread_db_";
/// Maximum size of a name without the prefix; the longest one in use has 48 bytes.
pub(super) const MAX_NAME: usize = 64;
/// Prefix of the names of sizes, after [`PREFIX`].
const SIZE_OF: &str = "sizeof_";

/// All names, which are looked up in libc.so, whose symbols cannot be listed.
const NAMES: [&str; 32] = [
    "dtv_dtv",
    "dtv_slotinfo_gen",
    "dtv_slotinfo_list_len",
    "dtv_slotinfo_list_next",
    "dtv_slotinfo_list_slotinfo",
    "dtv_slotinfo_map",
    "dtv_t_counter",
    "dtv_t_pointer_val",
    "link_map_l_tls_modid",
    "link_map_l_tls_offset",
    "list_t_next",
    "list_t_prev",
    "pthread_dtvp",
    "pthread_key_data_data",
    "pthread_key_data_level2_data",
    "pthread_key_data_seq",
    "pthread_key_struct_destr",
    "pthread_key_struct_seq",
    "pthread_list",
    "pthread_specific",
    "pthread_start_routine",
    "pthread_tid",
    "rtld_global__dl_stack_used",
    "rtld_global__dl_stack_user",
    "rtld_global__dl_tls_dtv_slotinfo_list",
    "sizeof_dtv_slotinfo",
    "sizeof_dtv_slotinfo_list",
    "sizeof_list_t",
    "sizeof_pthread",
    "sizeof_pthread_key_data",
    "sizeof_pthread_key_data_level2",
    "sizeof_pthread_key_struct",
];

/// A field of a structure (DB_STRUCT_FIELD in `nptl_db/db_info.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its size, or the size of an array's element, in bits.
    pub bits: u32,
    /// Number of elements of an array; 1 for anything else, 0 for an array without a fixed length.
    pub count: u32,
    /// Its offset in the structure, in bytes.
    pub offset: u32,
}

/// The `_thread_db_*` table of a glibc.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ThreadDb {
    fields: BTreeMap<String, Field>,
    sizes: BTreeMap<String, u32>,
}

impl ThreadDb {
    /// A field, by its structure's and its own name, as in the table: `pthread_tid`, `list_t_next`.
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.get(name).copied()
    }

    /// The offset of a field in bytes, see [`Self::field`].
    pub fn offset(&self, name: &str) -> Option<u64> {
        self.field(name).map(|field| field.offset.into())
    }

    /// The size of a structure in bytes: `pthread`, `pthread_key_data`.
    pub fn size_of(&self, name: &str) -> Option<u64> {
        self.sizes.get(name).copied().map(u64::from)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// Reads the whole table of a file.
    pub(crate) fn of(elf: &Elf<'_>) -> Result<Self, ElfError> {
        Self::read(elf, &NAMES)
    }

    /// Reads these entries of the table of a file.
    pub(super) fn read(elf: &Elf<'_>, names: &[&str]) -> Result<Self, ElfError> {
        let mut found = Vec::new();
        for name in names {
            let symbol = elf.dynamic_symbol([PREFIX, *name].concat().as_bytes())?;
            if let Some(symbol) = symbol.filter(|symbol| symbol.defined) {
                found.push(((*name).to_owned(), symbol.value));
            }
        }
        if found.is_empty() {
            let named =
                |(name, value): (Vec<u8>, u64)| Some((String::from_utf8(name).ok()?, value));
            let all = elf.static_objects(PREFIX.as_bytes(), MAX_NAME)?;
            found = all.into_iter().filter_map(named).collect();
        }
        let mut table = Self::default();
        for (name, at) in found {
            if !names.contains(&name.as_str()) {
                continue;
            }
            let word = |index: u64| elf.read_u32(at.wrapping_add(4 * index));
            if let Some(structure) = name.strip_prefix(SIZE_OF) {
                table.sizes.insert(structure.to_owned(), word(0)?);
            } else {
                let field = Field {
                    bits: word(0)?,
                    count: word(1)?,
                    offset: word(2)?,
                };
                table.fields.insert(name, field);
            }
        }
        Ok(table)
    }
}
