//! The code that V8 has in its file: builtin functions, and the interpreter's code for each bytecode.

use std::ops::Range;

use otelctx_reader::remote::elf::{Elf, ElfError};

use crate::code::BytecodeSizes;

/// What the names of builtins begin with in the symbol table.
const PREFIX: &[u8] = b"Builtins_";
/// The table of sizes of bytecodes.
const SIZES: &[u8] = b"_ZN2v88internal11interpreter9Bytecodes14kBytecodeSizesE";
/// Maximum size of that table, in bytes: of 256 bytecodes with operands of three sizes.
const MAX_SIZES: u64 = 768;

/// Facts about the builtins of a file. Addresses are those of the module.
#[derive(Debug, Default)]
pub(crate) struct Builtins {
    /// The addresses of all of them. Empty if the file has no symbol table.
    pub(crate) range: Range<u64>,
    /// That range in the file, as offsets.
    pub(crate) offset: u64,
    /// The code that executes in the frame of an interpreted function, in ascending order.
    pub(crate) interpreter: Vec<Range<u64>>,
    pub(crate) sizes: Option<BytecodeSizes>,
}

impl Builtins {
    /// Finds the builtins in the symbol table of a file.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn read(elf: &Elf<'_>) -> Result<Self, ElfError> {
        let functions = elf.functions_with_prefix(PREFIX)?;
        let start = functions.iter().map(|it| it.address).min();
        let end = functions
            .iter()
            .map(|it| it.address.saturating_add(it.size));
        let (Some(start), Some(end)) = (start, end.max()) else {
            return Ok(Self::default());
        };
        let is_code = |load: &&otelctx_reader::remote::elf::Segment| {
            let file_end = load.address.saturating_add(load.file_size);
            load.executable && load.address <= start && end <= file_end
        };
        let segment = elf.loads().iter().find(is_code);
        let offset = segment.and_then(|it| it.offset.checked_add(start - it.address));
        let Some(offset) = offset else {
            return Ok(Self::default());
        };
        let is_interpreter = |name: &[u8]| {
            let name = name.strip_prefix(PREFIX).unwrap_or_default();
            name.ends_with(b"Handler") || name.starts_with(b"InterpreterEnt")
        };
        let interpreter = functions.iter().filter(|it| is_interpreter(&it.name));
        let mut interpreter: Vec<Range<u64>> = interpreter
            .map(|it| it.address..it.address.saturating_add(it.size))
            .collect();
        interpreter.sort_unstable_by_key(|it| it.start);
        Ok(Self {
            range: start..end,
            offset,
            interpreter,
            sizes: sizes(elf)?,
        })
    }

    /// Returns whether code at an address of the module executes in the frame of an interpreted function.
    pub(crate) fn is_interpreter(&self, address: u64) -> bool {
        let behind = self.interpreter.partition_point(|it| it.start <= address);
        let before = behind.checked_sub(1).map(|at| &self.interpreter[at]);
        before.is_some_and(|range| range.contains(&address))
    }
}

/// Reads the sizes of bytecodes. `None` if their symbol was removed.
fn sizes(elf: &Elf<'_>) -> Result<Option<BytecodeSizes>, ElfError> {
    let Some(symbol) = elf.symbol(SIZES)? else {
        return Ok(None);
    };
    if symbol.size > MAX_SIZES {
        return Ok(None);
    }
    let mut table = vec![0; symbol.size as usize];
    elf.read_at(symbol.value, &mut table)?;
    Ok(BytecodeSizes::new(table))
}
