//! Files and lines of Go's functions.

use super::{GoFunction, MAX_NAME, u32_at};

/// Offsets in `_func`, in bytes: `pcfile`, `pcln`, `npcdata` and `cuOffset`; behind the structure, offsets of `npcdata`
/// other values.
const FILES: usize = 20;
const LINES: usize = 24;
const COUNT: usize = 28;
const UNIT: usize = 32;
const OTHERS: [usize; 2] = [40, 44];
/// `abi.PCDATA_InlTreeIndex`: which inlined call an address belongs to; -1 for none.
const INLINED: usize = 2;

impl GoFunction<'_> {
    /// The file and the line of an address in its own code. `None` if they are not known, or the address is in the code of
    /// another function that was inlined.
    pub fn line(&self, address: u64) -> Option<(String, u32)> {
        if !(self.start..self.end).contains(&address) {
            return None;
        }
        let count = self.word(COUNT)? as usize;
        if count > INLINED {
            let others = OTHERS[usize::from(self.table.header.is_new)];
            let values = self.word(others + 4 * INLINED)?;
            if values != 0 && self.value(values, address)? >= 0 {
                return None;
            }
        }
        let file = u32::try_from(self.value(self.word(FILES)?, address)?).ok()?;
        let line = u32::try_from(self.value(self.word(LINES)?, address)?).ok()?;
        let index = self.word(UNIT)?.checked_add(file)? as usize;
        let table = self.table;
        let entry = table.header.units.checked_add(index.checked_mul(4)?)?;
        let name = u32_at(&table.bytes, entry)? as usize;
        let name = table.bytes.get(table.header.files.checked_add(name)?..)?;
        let name = &name[..name.len().min(MAX_NAME)];
        let end = name.iter().position(|byte| *byte == 0)?;
        Some((String::from_utf8_lossy(&name[..end]).into_owned(), line))
    }

    /// A word of the function's structure.
    fn word(&self, offset: usize) -> Option<u32> {
        u32_at(&self.table.bytes, self.place.checked_add(offset)?)
    }

    /// The value at an address, of the values at this offset. `None` if there are none, or they are damaged.
    fn value(&self, offset: u32, address: u64) -> Option<i32> {
        let mut found = None;
        self.values(offset, &mut |from, value| {
            let is_behind = from > address;
            if !is_behind {
                found = Some(value);
            }
            Some(!is_behind)
        })?;
        found
    }
}
