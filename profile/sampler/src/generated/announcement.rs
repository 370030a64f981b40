//! The entries of files in which runtimes announce their code.

/// Maximum length of a line or record that is read, in bytes; of longer records, the start is read.
pub(super) const MAX_ENTRY: usize = 8 << 10;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) start: u64,
    pub(super) size: u64,
    /// In nanoseconds of `CLOCK_MONOTONIC`, if the entry has a time.
    pub(super) time: Option<u64>,
    pub(super) name: &'a [u8],
}

impl Entry<'_> {
    /// Returns true if any of these addresses, in ascending order, is in the function.
    pub(super) fn has_any(&self, addresses: &[u64]) -> bool {
        let next = addresses.partition_point(|address| *address < self.start);
        addresses
            .get(next)
            .is_some_and(|address| address - self.start < self.size)
    }
}

/// The content of the next bytes of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<'a> {
    Function(Entry<'a>),
    Moved {
        from: u64,
        to: u64,
        time: u64,
    },
    Other,
    /// Bytes that the format does not have: the start of the next entry is unknown.
    Damaged,
}

pub(super) trait Format: Default {
    /// A runtime may write the whole file again, as Java on each `jcmd PID Compiler.perfmap`.
    const MAY_BE_REWRITTEN: bool;

    /// Decodes the first entry, and returns its length. `None` if it is incomplete.
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Next<'a>, u64)>;
}

/// Decodes the complete entries, and returns their length, which may exceed that of `bytes`.
pub(super) fn decode(format: &mut impl Format, bytes: &[u8], mut add: impl FnMut(Next<'_>)) -> u64 {
    let (mut rest, mut read) = (bytes, 0_u64);
    while !rest.is_empty()
        && let Some((next, length)) = format.next(rest)
    {
        add(next);
        read = read.saturating_add(length);
        let length = usize::try_from(length).map_or(rest.len(), |it| it.min(rest.len()));
        rest = &rest[length..];
    }
    read
}
