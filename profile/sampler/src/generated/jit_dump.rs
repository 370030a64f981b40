//! The binary records of the jitdump file that a runtime maps.

use super::announcement::{Entry, Format, MAX_ENTRY, Next};

#[derive(Debug, Default)]
pub(super) struct JitDump {
    has_begun: bool,
}

impl JitDump {
    /// `JITHEADER_MAGIC`, as a machine of the same byte order writes it.
    pub(super) const MAGIC: u32 = 0x4A69_5444;
    /// Size of the header with the flags.
    const HEADER_SIZE: u32 = 40;
    /// `JITDUMP_FLAGS_ARCH_TIMESTAMP`: times are in the CPU's ticks, which cannot be converted.
    const ARCH_TIMESTAMP: u64 = 1;
    /// `JIT_CODE_LOAD` and `JIT_CODE_MOVE`.
    pub(super) const LOAD: u32 = 0;
    pub(super) const MOVE: u32 = 1;
    /// Size of a record's prefix: type, size, time.
    const PREFIX: usize = 16;
    /// Size of `JIT_CODE_LOAD` before the name: prefix, process, thread, addresses, size, index.
    pub(super) const LOAD_SIZE: usize = Self::PREFIX + 40;
    /// Size of `JIT_CODE_MOVE`: prefix, process, thread, address, old and new address, size, index.
    const MOVE_SIZE: usize = Self::PREFIX + 48;
}

impl Format for JitDump {
    const MAY_BE_REWRITTEN: bool = false;

    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Next<'a>, u64)> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if !self.has_begun {
            // Magic, version, size of the header, machine, padding, process, time, flags.
            let (magic, size) = (u32_at(0)?, u32_at(8)?);
            if magic != Self::MAGIC
                || size >= Self::HEADER_SIZE && u64_at(32)? & Self::ARCH_TIMESTAMP != 0
            {
                return Some((Next::Damaged, u64::MAX));
            }
            self.has_begun = true;
            return Some((Next::Other, size.max(12).into()));
        }
        let (kind, size, time) = (u32_at(0)?, u32_at(4)?, u64_at(8)?);
        let least = match kind {
            Self::LOAD => Self::LOAD_SIZE + 1,
            Self::MOVE => Self::MOVE_SIZE,
            _ => Self::PREFIX,
        };
        if (size as usize) < least {
            return Some((Next::Damaged, u64::MAX));
        }
        let next = match kind {
            Self::LOAD => {
                // The code behind the name may be missing.
                let end = bytes.len().min(size as usize);
                let name = bytes.get(Self::LOAD_SIZE..end)?;
                let length = name.iter().position(|byte| *byte == 0);
                if length.is_none() && name.len() < MAX_ENTRY && end < size as usize {
                    return None;
                }
                Next::Function(Entry {
                    start: u64_at(32)?,
                    size: u64_at(40)?,
                    time: Some(time),
                    name: &name[..length.unwrap_or(name.len())],
                })
            }
            Self::MOVE => Next::Moved {
                from: u64_at(32)?,
                to: u64_at(40)?,
                time,
            },
            _ => Next::Other,
        };
        Some((next, size.into()))
    }
}
