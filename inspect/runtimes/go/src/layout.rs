//! Where each version of Go keeps what is read.

/// Lines of `version,field,offset`, after a header, by the debug information of programs of each version: `cargo xtask
/// go-offsets` writes them. They are the same on x86-64 and aarch64, and have not changed within a version.
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
    pub(crate) status: u64,
    /// Where it goes on when a thread runs it again: the stack pointer, and the address in its code behind that
    /// (`runtime.gobuf`).
    pub(crate) stack_pointer: u64,
    pub(crate) pc: u64,
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
                status: offset("g.atomicstatus")?,
                stack_pointer: offset("g.sched")?.checked_add(offset("gobuf.sp")?)?,
                pc: offset("g.sched")?.checked_add(offset("gobuf.pc")?)?,
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

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::fs::File;

    use otelctx_fixtures::{GO_VERSIONS, GoBuild};
    use otelctx_reader::remote::FileBytes;
    use otelctx_reader::remote::elf::{Elf, Source};

    use super::*;
    use crate::dwarf::{self, Offsets};

    /// If it is set, the table is written instead of compared.
    const WRITES: &str = "OTELCTX_WRITE_GO_OFFSETS";
    /// What is read.
    const FIELDS: [&str; 11] = [
        "g.m",
        "g.sched",
        "g.atomicstatus",
        "g.goid",
        "g.labels",
        "gobuf.sp",
        "gobuf.pc",
        "m.procid",
        "m.tls",
        "m.curg",
        "m.alllink",
    ];

    /// The offsets in the debug information of a program. `None` if its compiler is not installed.
    fn of_program(version: &str, architecture: &str, flags: &[&str]) -> Option<Offsets> {
        let build = GoBuild {
            version,
            architecture,
            cgo: false,
            flags,
        };
        let file = File::open(build.build("labels.go")?).unwrap();
        let bytes = FileBytes(&file);
        let elf = Elf::read(Source::File(&bytes)).unwrap().unwrap();
        Some(dwarf::offsets(&elf).unwrap().unwrap_or_default())
    }

    #[test]
    fn the_table_has_the_offsets_of_each_version() {
        let mut table = "version,field,offset\n".to_owned();
        for version in GO_VERSIONS {
            let Some(offsets) = of_program(version, "amd64", &[]) else {
                return;
            };
            for field in FIELDS {
                writeln!(table, "{version},{field},{}", offsets[field]).unwrap();
            }
            // Not compressed, for the other architecture, and without debug information.
            let plain = of_program(version, "amd64", &["-ldflags=-compressdwarf=false"]);
            assert_eq!(plain.unwrap(), offsets, "{version}");
            let other = of_program(version, "arm64", &[]).unwrap();
            for field in FIELDS {
                assert_eq!(other[field], offsets[field], "{version}, {field}");
            }
            let none = of_program(version, "amd64", &["-ldflags=-w"]).unwrap();
            assert!(none.is_empty(), "{version}");
        }
        if std::env::var_os(WRITES).is_some() {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/offsets.csv");
            std::fs::write(path, table).unwrap();
        } else {
            assert_eq!(table, OFFSETS, "cargo xtask go-offsets");
        }
    }

    #[test]
    fn versions_that_are_not_in_the_table_have_no_layout() {
        assert_eq!(versions(), Some((21, 26)));
        for minor in 21..=26 {
            assert!(Layout::of_minor(minor).is_some(), "{minor}");
        }
        for minor in [0, 20, 27] {
            assert_eq!(Layout::of_minor(minor), None, "{minor}");
        }
    }
}
