//! Structures of the target, read in one piece.

use otelctx_reader::remote::{Memory, MemoryError};

/// The first bytes of a structure, up to the end of the last field that is needed.
pub(crate) struct Structure {
    bytes: Vec<u8>,
}

impl Structure {
    /// Reads a structure up to the ends of fields of eight bytes at these offsets.
    pub(crate) fn read(
        memory: &dyn Memory,
        address: u64,
        fields: &[u64],
    ) -> Result<Self, MemoryError> {
        let size = fields.iter().max().map_or(0, |last| last + 8);
        let bytes = memory.read_vec(address, size, MAX_SIZE)?;
        Ok(Self { bytes })
    }

    /// The pointer at an offset that was given to [`Self::read`].
    pub(crate) fn pointer(&self, offset: u64) -> u64 {
        u64::from_ne_bytes(self.array(offset))
    }

    pub(crate) fn int(&self, offset: u64) -> i32 {
        i32::from_ne_bytes(self.array(offset))
    }

    pub(crate) fn byte(&self, offset: u64) -> u8 {
        let [byte] = self.array(offset);
        byte
    }

    fn array<const N: usize>(&self, offset: u64) -> [u8; N] {
        let mut array = [0; N];
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        if let Some(bytes) = self.bytes.get(start..start.saturating_add(N)) {
            array.copy_from_slice(bytes);
        }
        array
    }
}

/// Maximum number of bytes that are read of one structure: fields with larger offsets are read alone.
const MAX_SIZE: usize = 4096;
