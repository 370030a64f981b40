//! The tables in which HotSpot describes its own structures (`src/hotspot/share/runtime/vmStructs.hpp`), which it exports
//! for debuggers.

use std::collections::HashMap;

use otelctx_reader::remote::threads::{PagedMemory, Pages};
use otelctx_reader::remote::{LoadedModule, Memory, MemoryError, Target};
use otelctx_reader::runtime::RuntimeError;

/// Maximum number of entries of a table. JDK 25 has 1,100 fields and 900 types.
const MAX_ENTRIES: usize = 16 * 1024;
/// Maximum size of an entry, in bytes. They have up to 48.
const MAX_ENTRY: u64 = 256;
/// Maximum length of a name that is read, in bytes.
const MAX_NAME: usize = 128;

/// A field of a structure, or a static one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Field {
    /// Its offset, in bytes; of a static field, its address.
    pub(crate) at: u64,
    pub(crate) is_static: bool,
    /// Its size, in bytes, where it is an integer.
    pub(crate) size: u8,
}

/// Fields by type and name, and the sizes of types.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) fields: HashMap<(String, String), Field>,
    pub(crate) sizes: HashMap<String, u64>,
}

impl Tables {
    /// Reads the tables of a loaded library.
    ///
    /// # Errors
    /// If it does not export them all, or they are inconsistent.
    pub(crate) fn read(target: &dyn Target, module: &LoadedModule) -> Result<Self, RuntimeError> {
        let mut pages = Pages::default();
        let memory = PagedMemory::new(&target, &mut pages);
        let word = |name: &str| -> Result<u64, RuntimeError> {
            let symbol = module.exported(target, name)?;
            let missing = || RuntimeError::new(format!("libjvm.so does not export {name}"));
            let symbol = symbol.ok_or_else(missing)?;
            Ok(memory.read_u64(module.bias.wrapping_add(symbol.value))?)
        };
        let mut tables = Self::default();
        let entry = |name: &str| word(&format!("gHotSpotVMStructEntry{name}"));
        let layout = [
            entry("TypeNameOffset")?,
            entry("FieldNameOffset")?,
            entry("TypeStringOffset")?,
            entry("IsStaticOffset")?,
            entry("OffsetOffset")?,
            entry("AddressOffset")?,
        ];
        let (start, stride) = (word("gHotSpotVMStructs")?, entry("ArrayStride")?);
        each_entry(&memory, start, stride, layout[0], |entry| {
            let [
                type_name,
                field_name,
                type_string,
                is_static,
                offset,
                address,
            ] = layout;
            let names = [type_name, field_name, type_string];
            let [of, field, kind] = names.map(|at| name_at(&memory, entry.word(at)));
            let is_static = entry.word(is_static) as u32 != 0;
            let at = entry.word(if is_static { address } else { offset });
            let size = integer_size(&kind);
            tables.fields.insert(
                (of, field),
                Field {
                    at,
                    is_static,
                    size,
                },
            );
        })?;
        let entry = |name: &str| word(&format!("gHotSpotVMTypeEntry{name}"));
        let (name, size) = (entry("TypeNameOffset")?, entry("SizeOffset")?);
        let (start, stride) = (word("gHotSpotVMTypes")?, entry("ArrayStride")?);
        each_entry(&memory, start, stride, name, |entry| {
            let name = name_at(&memory, entry.word(name));
            tables.sizes.insert(name, entry.word(size));
        })?;
        Ok(tables)
    }

    pub(crate) fn field(&self, of: &str, name: &str) -> Option<Field> {
        // Without a copy of the names it would need a type for the key.
        self.fields.get(&(of.to_owned(), name.to_owned())).copied()
    }
}

/// The bytes of an entry.
struct Entry(Vec<u8>);

impl Entry {
    /// The word at an offset; 0 beyond the entry.
    fn word(&self, offset: u64) -> u64 {
        let bytes = usize::try_from(offset).ok().and_then(|it| self.0.get(it..));
        let word = bytes.unwrap_or_default().first_chunk();
        word.map_or_else(
            // The last member may be shorter than a word.
            || {
                bytes.map_or(0, |rest| {
                    rest.iter()
                        .rev()
                        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
                })
            },
            |word| u64::from_ne_bytes(*word),
        )
    }
}

/// Calls `visit` with each entry of a table, which ends with one without a name.
fn each_entry(
    memory: &dyn Memory,
    start: u64,
    stride: u64,
    name: u64,
    mut visit: impl FnMut(&Entry),
) -> Result<(), RuntimeError> {
    if stride == 0 || stride > MAX_ENTRY || name >= stride {
        return Err(RuntimeError::new(format!(
            "an entry of HotSpot's tables has {stride} bytes"
        )));
    }
    let mut at = start;
    for _ in 0..MAX_ENTRIES {
        let entry = Entry(memory.read_vec(at, stride, MAX_ENTRY as usize)?);
        if entry.word(name) == 0 {
            return Ok(());
        }
        visit(&entry);
        at = at.wrapping_add(stride);
    }
    Err(RuntimeError::new(format!(
        "a table of HotSpot has more than {MAX_ENTRIES} entries"
    )))
}

/// Reads a name, at most [`MAX_NAME`] bytes of it; empty if it is null or not readable.
fn name_at(memory: &dyn Memory, address: u64) -> String {
    c_string(memory, address).unwrap_or_default()
}

/// Reads a string, at most [`MAX_NAME`] bytes of it.
pub(crate) fn c_string(memory: &dyn Memory, address: u64) -> Result<String, MemoryError> {
    let bytes = memory.read_c_string(address, MAX_NAME)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The size of a member of this type, as HotSpot writes it; that of a pointer for others.
fn integer_size(kind: &str) -> u8 {
    match kind {
        "bool" | "u1" | "jbyte" | "char" | "uint8_t" | "int8_t" => 1,
        // Of flags, the lower half is that of the class file.
        "AccessFlags" | "u2" | "jushort" | "short" | "unsigned short" | "uint16_t" | "int16_t" => 2,
        "int" | "u4" | "jint" | "unsigned int" | "uint" | "uint32_t" | "int32_t" | "juint" => 4,
        _ => 8,
    }
}
