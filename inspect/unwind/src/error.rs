use otelctx_remote::elf::ElfError;

/// The reason why a file has no rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file could not be read.
    #[error("reading its unwind tables: {0}")]
    Elf(#[from] ElfError),
    /// The file could not be opened, or its tables take more bytes than may be read.
    #[error("{0}")]
    Unreadable(String),
    /// It is for another architecture.
    #[error("its architecture is not one of those whose stacks are unwound: x86-64, aarch64")]
    Architecture,
    /// It has more functions, code or unwind tables than a limit allows.
    #[error("its {what} exceed the limit of {limit}")]
    Limit {
        /// The name of the limited items, in the plural: `rows`.
        what: &'static str,
        /// The maximum number.
        limit: u64,
    },
    /// Its tables are all damaged or of unknown kinds.
    #[error("none of its {entries} unwind entries can be used")]
    Damaged {
        /// Entries in the tables.
        entries: u64,
    },
    /// The file has no unwind tables.
    #[error("it has no unwind tables")]
    NoTables,
}
