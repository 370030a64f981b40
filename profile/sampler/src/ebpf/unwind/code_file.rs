//! Identifies what a mapping has its code from.

use otelctx_reader::remote::{Device, Mapping};

/// A file with code, or the vDSO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CodeFile {
    /// The device is that of stat(2) where several files have the mapping's device and inode.
    File {
        device: Device,
        inode: u64,
    },
    Vdso,
}

impl CodeFile {
    /// Identifies the file by the mapping's facts alone. `None` for memory.
    pub(super) fn of(mapping: &Mapping<'_>) -> Option<Self> {
        let (device, inode) = (mapping.device, mapping.inode);
        match mapping.name {
            b"[vdso]" => Some(Self::Vdso),
            _ if inode == 0 => None,
            _ => Some(Self::File { device, inode }),
        }
    }
}
