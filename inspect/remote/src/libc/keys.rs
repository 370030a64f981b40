//! Thread-specific data: what `pthread_getspecific` would return in another process's thread.

use super::thread_db::ThreadDb;
use super::{glibc, musl};
use crate::machine::Machine;
use crate::memory::{Memory, MemoryError};

/// Number of keys in a block of glibc (PTHREAD_KEY_2NDLEVEL_SIZE in nptl/descr.h).
const KEYS_PER_BLOCK: u64 = 32;
/// PTHREAD_KEYS_MAX of glibc, 1,024, and of musl, 128 (<limits.h>).
const GLIBC_KEYS: u32 = 1024;
const MUSL_KEYS: u32 = 128;

/// The location of the values of `pthread_setspecific` in a process's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PthreadKeys(KeyLayout);

/// The layout of these values in each C library, for code that cannot call [`PthreadKeys::get`],
/// such as eBPF programs. All sizes and offsets are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyLayout {
    /// glibc stores them in blocks of 32 keys (nptl/pthread_getspecific.c).
    #[non_exhaustive]
    Glibc {
        /// Offset from the thread pointer of the pointers to blocks of keys.
        blocks: i64,
        /// Offset in such a block of its entries.
        entries: u64,
        /// Size of an entry.
        entry_size: u64,
        /// Offset in an entry of its sequence number. One that differs from the key's means a
        /// deleted key.
        entry_sequence: u64,
        /// Offset in an entry of the value.
        entry_data: u64,
        /// Address of the process's `__pthread_keys`.
        keys: u64,
        /// Size of its elements.
        key_size: u64,
        /// Offset in such an element of the key's sequence number.
        key_sequence: u64,
    },
    /// musl stores them in an array (src/thread/pthread_getspecific.c).
    #[non_exhaustive]
    Musl {
        /// Offset from the thread pointer of the pointer to the values.
        values: i64,
    },
}

impl PthreadKeys {
    /// The layout in musl's `struct pthread`; `None` on an unknown architecture.
    pub(crate) fn of_musl(machine: Machine) -> Option<Self> {
        // `tsd` (src/internal/pthread_impl.h).
        let values = match machine {
            Machine::X86_64 => 0x80,
            _ => 112,
        };
        let values = musl::pthread_self(machine)? + values;
        Some(Self(KeyLayout::Musl { values }))
    }

    /// The layout that a glibc describes in its table; `keys` is the address of `__pthread_keys`.
    /// `None` if the table lacks an entry.
    pub(crate) fn of_glibc(table: &ThreadDb, machine: Machine, keys: u64) -> Option<Self> {
        let specific = table.offset("pthread_specific")?;
        Some(Self(KeyLayout::Glibc {
            blocks: glibc::pthread_self(table, machine)?.wrapping_add_unsigned(specific),
            entries: table.offset("pthread_key_data_level2_data")?,
            entry_size: table.size_of("pthread_key_data")?,
            entry_sequence: table.offset("pthread_key_data_seq")?,
            entry_data: table.offset("pthread_key_data_data")?,
            keys,
            key_size: table.size_of("pthread_key_struct")?,
            key_sequence: table.offset("pthread_key_struct_seq")?,
        }))
    }

    /// The layout, for code that cannot call [`Self::get`].
    #[must_use]
    pub const fn layout(&self) -> KeyLayout {
        self.0
    }

    /// The value of a thread for `key`, given its thread pointer. `None` if `pthread_getspecific`
    /// returns null, as it does for a deleted key.
    #[doc(alias = "pthread_getspecific")]
    pub fn get(
        &self,
        memory: &dyn Memory,
        thread_pointer: u64,
        key: u32,
    ) -> Result<Option<u64>, MemoryError> {
        let not_null = |value: u64| (value != 0).then_some(value);
        let number = u64::from(key);
        match self.0 {
            KeyLayout::Musl { values } => {
                if key >= MUSL_KEYS {
                    return Ok(None);
                }
                match memory.read_u64(thread_pointer.wrapping_add_signed(values))? {
                    0 => Ok(None),
                    values => Ok(not_null(memory.read_u64(values.wrapping_add(8 * number))?)),
                }
            }
            KeyLayout::Glibc {
                blocks,
                entries,
                entry_size,
                entry_sequence,
                entry_data,
                keys,
                key_size,
                key_sequence,
            } => {
                if key >= GLIBC_KEYS {
                    return Ok(None);
                }
                let pointers = thread_pointer.wrapping_add_signed(blocks);
                let block = pointers.wrapping_add(8 * (number / KEYS_PER_BLOCK));
                let block = memory.read_u64(block)?;
                if block == 0 {
                    return Ok(None);
                }
                let entry = block
                    .wrapping_add(entries)
                    .wrapping_add((number % KEYS_PER_BLOCK).wrapping_mul(entry_size));
                let key = keys.wrapping_add(number.wrapping_mul(key_size));
                // A key that was deleted and created again has another sequence number.
                let current = memory.read_u64(key.wrapping_add(key_sequence))?;
                let sequence = memory.read_u64(entry.wrapping_add(entry_sequence))?;
                if current != sequence {
                    return Ok(None);
                }
                Ok(not_null(memory.read_u64(entry.wrapping_add(entry_data))?))
            }
        }
    }
}
