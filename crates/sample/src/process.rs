//! What is known of a sampled process, beside its samples.

use otelctx_format::process_context::Value;

use crate::ModuleId;

/// One process while it runs one program: an exec begins another.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProcessFacts {
    /// Its id, as the recorder sees it.
    pub pid: i32,
    /// When it started, in clock ticks after boot (`/proc/PID/stat`, field 22): with the pid, what
    /// tells it from a later process of the same id.
    pub start_ticks: u64,
    /// The kernel's name for it.
    pub comm: String,
    /// The path of its program, as the process sees it; empty if it can't be known.
    pub executable: String,
    /// The container it runs in, from its control group.
    pub container_id: Option<String>,
    /// The resource that it publishes, or what its environment tells where it publishes none.
    pub resource: Vec<(String, Value)>,
    /// Whether `resource` was published by the process itself.
    pub published: bool,
    /// What its code was mapped from, in the order in which it was seen. A later mapping hides
    /// what an earlier one says of the same addresses, from its `since` on.
    pub mappings: Vec<Mapping>,
}

impl ProcessFacts {
    /// The mapping that `address` lay in at `time` (nanoseconds, as [`Mapping::since`]).
    #[must_use]
    pub fn mapping_at(&self, address: u64, time: u64) -> Option<&Mapping> {
        let holds = |mapping: &&Mapping| mapping.start <= address && address < mapping.end;
        let mut holding = self.mappings.iter().rev().filter(holds);
        let newest = holding.clone().next();
        // A sample may be older than the look at the mappings that explains it.
        holding.find(|mapping| mapping.since <= time).or(newest)
    }
}

/// Executable memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Where in the file it starts, in bytes.
    pub offset: u64,
    /// What is mapped.
    pub module: ModuleId,
    /// When it was seen first, in nanoseconds of the recorder's `CLOCK_MONOTONIC`.
    pub since: u64,
}

/// A file that code comes from, or what stands in for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Module {
    /// Its path as the process sees it, or the kernel's name for it: `[vdso]`, `[kernel]`,
    /// `//anon`.
    pub path: String,
    /// Its GNU build id; empty if it has none.
    pub build_id: Vec<u8>,
    /// The file's device and inode, 0 where there is no file.
    pub device: u64,
    /// The file's inode.
    pub inode: u64,
}

/// How the kernel is named where modules are.
const KERNEL: &str = "[kernel]";

impl Module {
    /// The kernel.
    #[must_use]
    pub fn kernel() -> Self {
        Self {
            path: KERNEL.into(),
            ..Self::default()
        }
    }

    /// Whether it is the kernel.
    #[must_use]
    pub fn is_kernel(&self) -> bool {
        self.inode == 0 && self.path == KERNEL
    }

    /// Whether it is a file. What is not is the kernel, or memory that a process has filled
    /// itself or got from the kernel.
    #[must_use]
    pub fn has_file(&self) -> bool {
        self.inode != 0
    }

    /// Whether it holds the same code in every process: a file, or the kernel.
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
    fn an_address_is_explained_by_what_was_mapped_at_its_time() {
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
        assert_eq!(at(0x1000, 5), Some(new), "sampled before the first look");
        assert_eq!(at(0x2000, 15), None);
        assert_eq!(at(0xfff, 15), None);
    }
}
