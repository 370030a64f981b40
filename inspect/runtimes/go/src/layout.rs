//! Where each version of Go keeps what is read.

/// Lines of `version,field,offset`, after a header: `cargo xtask go-offsets` writes them.
const OFFSETS: &str = include_str!("offsets.csv");

/// Offsets in Go's structures, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) goroutine: GoroutineLayout,
    pub(crate) thread: ThreadLayout,
    pub(crate) labels: LabelLayout,
}

/// `runtime.g`: a goroutine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GoroutineLayout {
    pub(crate) thread: u64,
    pub(crate) id: u64,
    pub(crate) labels: u64,
}

/// `runtime.m`: a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ThreadLayout {
    pub(crate) goroutine: u64,
    /// Its ID, in the process's own PID namespace.
    pub(crate) id: u64,
    /// The words that it uses for thread-local storage without the C library.
    pub(crate) storage: u64,
    /// The next one in the list of all threads.
    pub(crate) next: u64,
}

/// What `runtime.g.labels` points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelLayout {
    /// A variable with a map from string to string, up to Go 1.23.
    Map,
    /// A slice of pairs of strings, from Go 1.24 on (`runtime/pprof.labelMap`).
    Slice,
}

/// The first version whose labels are a slice.
const FIRST_SLICE: u32 = 24;

impl Layout {
    /// The layout of a version `1.minor`. `None` if it is not in the table.
    pub(crate) fn of_minor(minor: u32) -> Option<Self> {
        Self::of(minor, |field| in_table(minor, field))
    }

    /// The layout of a version, given the offsets of fields: `g.m`.
    pub(crate) fn of(minor: u32, offset: impl Fn(&str) -> Option<u64>) -> Option<Self> {
        Some(Self {
            goroutine: GoroutineLayout {
                thread: offset("g.m")?,
                id: offset("g.goid")?,
                labels: offset("g.labels")?,
            },
            thread: ThreadLayout {
                goroutine: offset("m.curg")?,
                id: offset("m.procid")?,
                storage: offset("m.tls")?,
                next: offset("m.alllink")?,
            },
            labels: match minor {
                ..FIRST_SLICE => LabelLayout::Map,
                _ => LabelLayout::Slice,
            },
        })
    }
}

/// The minor versions in the table: the first and the last.
pub(crate) fn versions() -> Option<(u32, u32)> {
    let mut minors = rows().map(|(minor, ..)| minor);
    let first = minors.next()?;
    Some((first, minors.last().unwrap_or(first)))
}

fn in_table(minor: u32, field: &str) -> Option<u64> {
    let found = rows().find(|row| row.0 == minor && row.1 == field);
    found.map(|(.., offset)| offset)
}

/// The lines of the table, in the order of versions.
fn rows() -> impl Iterator<Item = (u32, &'static str, u64)> {
    OFFSETS.lines().skip(1).filter_map(|line| {
        let mut cells = line.split(',');
        let minor = cells.next()?.split('.').nth(1)?.parse().ok()?;
        Some((minor, cells.next()?, cells.next()?.parse().ok()?))
    })
}
