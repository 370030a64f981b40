//! The functions at an address of a Go program, inlined ones included, with their files and lines.

use std::borrow::Cow;

use super::{GoFunction, MAX_NAME, u32_at};

/// Offsets in `_func`, in bytes: `pcfile`, `pcln`, `npcdata` and `cuOffset`; behind the structure, offsets of `npcdata`
/// other values.
const FILES: usize = 20;
const LINES: usize = 24;
const COUNT: usize = 28;
const UNIT: usize = 32;
const OTHERS: [usize; 2] = [40, 44];
/// `nfuncdata`, since Go 1.20: the number of offsets behind those, of what the function refers to.
const REFERRED_COUNT: usize = 43;
/// `abi.PCDATA_InlTreeIndex`: which inlined call an address belongs to; -1 for none.
const INLINED: usize = 2;
/// `abi.FUNCDATA_InlTree`: the inlined calls.
const TREE: usize = 3;
/// Size of an inlined call, in bytes (`inlinedCall` in Go's src/runtime/symtabinl.go, since Go 1.21), and the offsets of its
/// function's name and of an address where its caller calls it, from the outer function's start on.
const CALL: u64 = 16;
const CALL_NAME: usize = 4;
const CALL_PARENT: usize = 8;
/// Maximum number of inlined calls at an address; Go's compiler stops long before.
const MAX_INLINED: usize = 64;
/// Maximum number of values that are read for the calls at an address: 262,144. Large functions have some thousands.
const MAX_VALUES: u32 = 1 << 18;

/// A function at an address of a Go program, and the place in its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GoCall<'a> {
    /// Its name, as [`GoFunction::name`] returns it.
    pub name: Cow<'a, str>,
    /// The file's path; empty if it is not known.
    pub file: String,
    /// The line; 0 if it is not known.
    pub line: u32,
}

impl<'a> GoFunction<'a> {
    /// The functions at an address in its code, innermost first: inlined ones, and itself. `read` fills a buffer from an
    /// address of the program's headers, and returns false if it cannot. Where inlined calls cannot be read, as before Go
    /// 1.21, it is the function alone, without a line.
    pub fn calls(
        &self,
        address: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Vec<GoCall<'a>> {
        self.try_calls(address, read).unwrap_or_else(|| {
            vec![GoCall {
                name: self.name(),
                file: String::new(),
                line: 0,
            }]
        })
    }

    fn try_calls(
        &self,
        mut address: u64,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Vec<GoCall<'a>>> {
        let mut calls = Vec::new();
        let mut left = MAX_VALUES;
        loop {
            let inlined = self.inlined(address, &mut left)?;
            let (file, line) = self.line(address, &mut left).unwrap_or_default();
            let Some(index) = inlined else {
                let name = self.name();
                calls.push(GoCall { name, file, line });
                return Some(calls);
            };
            let mut call = [0; CALL as usize];
            let place = CALL.checked_mul(index.into())?.checked_add(self.tree()?)?;
            if calls.len() == MAX_INLINED || !read(place, &mut call) {
                return None;
            }
            let name = self.table.name_at(u32_at(&call, CALL_NAME)?);
            calls.push(GoCall { name, file, line });
            address = self.start.checked_add(u32_at(&call, CALL_PARENT)?.into())?;
        }
    }

    /// The number of the inlined call that an address belongs to; `Some(None)` if it is the function's own code, `None` if
    /// that is not known.
    fn inlined(&self, address: u64, left: &mut u32) -> Option<Option<u32>> {
        if !(self.start..self.end).contains(&address) {
            return None;
        }
        if self.word(COUNT)? as usize <= INLINED {
            return Some(None);
        }
        let others = OTHERS[usize::from(self.table.header.is_new)];
        match self.word(others + 4 * INLINED)? {
            0 => Some(None),
            values => Some(u32::try_from(self.value(values, address, left)?).ok()),
        }
    }

    /// The address of its inlined calls. `None` if it has none, or they cannot be read.
    fn tree(&self) -> Option<u64> {
        let table = self.table;
        let referred = table.referred?;
        let count = self.place.checked_add(REFERRED_COUNT)?;
        if usize::from(*table.bytes.get(count)?) <= TREE {
            return None;
        }
        let behind_values = (self.word(COUNT)? as usize).checked_add(TREE)?;
        let offset = self.word(OTHERS[1].checked_add(behind_values.checked_mul(4)?)?)?;
        (offset != u32::MAX).then(|| referred.checked_add(offset.into()))?
    }

    /// The file and the line of an address, of the innermost function there. `None` if they are not known.
    fn line(&self, address: u64, left: &mut u32) -> Option<(String, u32)> {
        let file = u32::try_from(self.value(self.word(FILES)?, address, left)?).ok()?;
        let line = u32::try_from(self.value(self.word(LINES)?, address, left)?).ok()?;
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

    /// The value at an address, of the values at this offset. `None` if there are none, they are damaged, or more are read
    /// than are left to read.
    fn value(&self, offset: u32, address: u64, left: &mut u32) -> Option<i32> {
        let mut found = None;
        self.values(offset, &mut |from, value| {
            *left = left.checked_sub(1)?;
            let is_behind = from > address;
            if !is_behind {
                found = Some(value);
            }
            Some(!is_behind)
        })?;
        found
    }
}
