//! Facts about a sampled process.

use otelctx_format::process_context::Value;

use crate::id::ModuleId;

/// Estimated memory of a value, in bytes.
fn value_memory(value: &Value) -> usize {
    let beside = match value {
        Value::String(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::Array(values) => values.iter().map(value_memory).sum(),
        Value::Map(entries) => attributes_memory(entries),
        _ => 0,
    };
    2 * size_of::<Value>() + beside
}

fn attributes_memory(attributes: &[(String, Value)]) -> usize {
    let attributes = attributes.iter();
    attributes
        .map(|(name, value)| name.len() + value_memory(value))
        .sum()
}

/// A process running one program: after an exec it is a new entry.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessFacts {
    /// Its ID in the recorder's PID namespace.
    pub pid: i32,
    /// Its start time, in clock ticks after boot (`/proc/PID/stat`, field 22). Together with the
    /// PID, this identifies it even if the PID is reused.
    pub start_ticks: u64,
    /// Its command name (`/proc/PID/comm`), at most 15 bytes.
    pub comm: String,
    /// The path of its executable in the process's own file system; empty if unknown.
    pub executable: String,
    /// The ID of its container, from its control group.
    pub container_id: Option<String>,
    /// The UID of its Kubernetes pod, from its control group.
    pub pod_uid: Option<String>,
    /// True if it was started with `OTELCTX_PROFILE=off`: it asks agents not to record it.
    pub opted_out: bool,
    /// The resource that it publishes; if it publishes none, the one detected from its environment.
    pub resource: Vec<(String, Value)>,
    /// True if the process itself has published `resource`.
    pub published: bool,
    /// Its executable mappings, in the order in which they were found. A later mapping replaces
    /// earlier ones at the same addresses, from its `since` on.
    pub mappings: Vec<Mapping>,
}

impl ProcessFacts {
    /// Estimated memory of these facts, in bytes.
    pub(crate) fn memory(&self) -> usize {
        let texts = self.comm.len() + self.executable.len();
        let lists = size_of_val(&self.mappings[..]) + attributes_memory(&self.resource);
        size_of::<Self>() + texts + lists
    }

    /// The file name of its executable; empty if unknown.
    #[must_use]
    pub fn executable_name(&self) -> &str {
        // The kernel appends this to the path of a file that was deleted or replaced.
        let path = self.executable.strip_suffix(" (deleted)");
        let path = path.unwrap_or(&self.executable);
        path.rsplit('/').next().unwrap_or_default()
    }

    /// The mapping that contained `address` at `time` (in nanoseconds, like [`Mapping::since`]).
    #[must_use]
    pub fn mapping_at(&self, address: u64, time: u64) -> Option<&Mapping> {
        let mut mappings = self.mappings.iter().rev();
        mappings.find(|mapping| {
            mapping.since <= time && mapping.start <= address && address < mapping.end
        })
    }
}

/// An executable mapping of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file.
    pub module: ModuleId,
    /// Its creation time, in nanoseconds of the recorder's `CLOCK_MONOTONIC`; if that is unknown, a
    /// time at which it did not exist yet, or 0 if it existed when the process was first seen.
    pub since: u64,
}

/// A file that code is mapped from, or the kernel's name for memory without a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Module {
    /// Its path in the process's own file system, or the kernel's name for it: `[vdso]`, `[kernel]`,
    /// `//anon`.
    pub path: String,
    /// Its GNU build ID; empty if it has none.
    pub build_id: Vec<u8>,
    /// The file's device; 0 if there is no file, or the build ID identifies it.
    pub device: u64,
    /// The file's inode; 0 if there is no file, or the build ID identifies it.
    pub inode: u64,
}

const KERNEL: &str = "[kernel]";

impl Module {
    /// The module that represents the kernel.
    #[must_use]
    pub fn kernel() -> Self {
        Self {
            path: KERNEL.into(),
            ..Self::default()
        }
    }

    /// Returns true for the kernel.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        !self.has_file() && self.path == KERNEL
    }

    /// Returns true for a file, false for the kernel, the vDSO, and anonymous memory.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.inode != 0 || !self.build_id.is_empty()
    }

    /// Returns true if it contains the same code in every process: a file, or the kernel.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.has_file() || self.is_kernel()
    }
}

#[cfg(test)]
mod tests {
    use crate::Catalog;

    use super::*;

    #[test]
    fn an_address_belongs_to_the_mapping_of_its_time() {
        let mut catalog = Catalog::new();
        let module = |path: &str| Module {
            path: path.into(),
            ..Module::default()
        };
        let (old, new) = (catalog.module(module("old")), catalog.module(module("new")));
        let mapping = |module, since| Mapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            module,
            since,
        };
        let process = ProcessFacts {
            mappings: vec![mapping(old, 10), mapping(new, 20)],
            ..ProcessFacts::default()
        };
        let at = |address, time| process.mapping_at(address, time).map(|found| found.module);
        assert_eq!(at(0x1000, 15), Some(old));
        assert_eq!(at(0x1fff, 20), Some(new));
        assert_eq!(at(0x1000, 5), None);
        assert_eq!(at(0x2000, 15), None);
        assert_eq!(at(0xfff, 15), None);
    }
}
