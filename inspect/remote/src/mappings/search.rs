//! Finds mappings by their names among millions of others.
//!
//! With `PROCMAP_QUERY`, the kernel skips mappings that cannot match. Without it, the whole text
//! must be read, but only lines that contain one of the names are parsed.

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::OnceLock;
use std::time::Instant;

use memchr::memmem::Finder;
use memchr::{memchr, memchr_iter, memrchr};
use nix::errno::Errno;
use nix::sys::stat::fstat;
use rustix::fs::{MemfdFlags, memfd_create};

use super::query::{Query, flags};
use super::{Mapping, Parser};
use crate::Device;

/// Selects mappings that are readable, not executable, and whose name the process chose: a memfd
/// (`/memfd:NAME`), named shared anonymous memory (`[anon_shmem:NAME]`), which lies in the same
/// file system, or named private anonymous memory (`[anon:NAME]`).
#[derive(Debug, Clone, Copy)]
pub struct NameFilter<'a> {
    /// Prefixes of the names.
    pub names: &'a [&'a [u8]],
    /// The maximum number of mappings returned; the rest are ignored.
    pub limit: usize,
    /// The limits of the scan.
    pub options: ScanOptions,
}

/// The limits of a scan of a process's mappings.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScanOptions {
    /// Abandon the scan of a process that has more mappings than this. The kernel does not say how
    /// many mappings a `PROCMAP_QUERY` skipped, so a limit makes the scan read the text.
    pub max_mappings: Option<u64>,
    /// The time at which to abandon the scan.
    pub deadline: Option<Instant>,
    /// Read the text of `/proc/PID/maps` even where the kernel supports `PROCMAP_QUERY`.
    pub text: bool,
}

/// The result of a scan of a process's mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scan<T> {
    /// Every mapping was scanned.
    Complete(T),
    /// The process has more mappings than [`ScanOptions::max_mappings`].
    TooMany,
    /// [`ScanOptions::deadline`] has passed.
    DeadlinePassed,
}

impl ScanOptions {
    pub(crate) fn reads_text(&self) -> bool {
        self.text || self.max_mappings.is_some()
    }

    pub(crate) fn is_past_deadline(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// A mapping that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedMapping {
    /// Its first address.
    pub start: u64,
    /// Its name.
    pub name: Vec<u8>,
}

/// A search in two steps, in address order: mappings that publishers normally use, all others.
#[derive(Debug)]
pub struct Search<'a> {
    filter: NameFilter<'a>,
    /// Writable mappings of files: where a publisher that could create a memfd puts its data.
    pub writable_files: Vec<NamedMapping>,
    rest: Rest,
}

#[derive(Debug)]
enum Rest {
    Found(Vec<NamedMapping>),
    /// An open `/proc/PID/maps` that remains to be scanned, except for the visited ranges.
    NotYet(File, Visited),
}

/// Maximum number of ranges remembered of a scan: 1 MiB of them. Mappings beyond are visited twice.
const MAX_RANGES: usize = 64 * 1024;

/// Address ranges whose mappings were visited, in address order. Adjacent ranges are merged.
#[derive(Debug, Default)]
struct Visited(Vec<(u64, u64)>);

impl Visited {
    fn add(&mut self, mapping: &Mapping<'_>) {
        let is_full = self.0.len() >= MAX_RANGES;
        match self.0.last_mut() {
            Some((_, end)) if *end == mapping.start => *end = mapping.end,
            _ if is_full => {}
            _ => self.0.push((mapping.start, mapping.end)),
        }
    }

    /// The first address from `address` on that was not visited, in ascending calls. `next` is the
    /// index of the first range that may contain it.
    fn skip(&self, address: u64, next: &mut usize) -> u64 {
        while let Some((start, end)) = self.0.get(*next) {
            if *end <= address {
                *next += 1;
            } else if *start <= address {
                return *end;
            } else {
                break;
            }
        }
        address
    }
}

impl<'a> Search<'a> {
    /// Finds writable mappings of files in an open `/proc/PID/maps`. ESRCH if there is no memory.
    pub(crate) fn begin(maps: File, filter: NameFilter<'a>) -> io::Result<Scan<Self>> {
        if filter.options.reads_text() {
            return Self::in_text(maps, filter);
        }
        // If anonymous memory cannot have names, one walk finds everything; a second one would make
        // the kernel visit every mapping again.
        let in_one_walk = !anonymous_memory_has_names();
        let mut only = flags::FILE_BACKED | flags::READABLE;
        if !in_one_walk {
            only |= flags::WRITABLE;
        }
        let mut query = Query::new(&maps);
        let (mut found, mut others) = (Vec::new(), Vec::new());
        let mut visited = Visited::default();
        let (mut address, mut seen) = (0, 0);
        loop {
            if is_clock_check_due(&mut seen) && filter.options.is_past_deadline() {
                return Ok(Scan::DeadlinePassed);
            }
            match query.next(address, only) {
                Ok(Some(mapping)) if mapping.end > address => {
                    if filter.is_possible(&mapping)
                        && let Some(named) = query.next_named(mapping.start, only)?
                    {
                        let is_first = is_writable_file(&named);
                        filter.keep(&named, if is_first { &mut found } else { &mut others });
                    }
                    address = mapping.end;
                    if !in_one_walk {
                        visited.add(&mapping);
                    }
                }
                Ok(_) => break,
                // The kernel is older, or denies it.
                Err(error) if address == 0 && error != Errno::ESRCH => {
                    return Self::in_text(maps, filter);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Scan::Complete(Self {
            filter,
            writable_files: found,
            rest: if in_one_walk {
                Rest::Found(others)
            } else {
                Rest::NotYet(maps, visited)
            },
        }))
    }

    fn in_text(maps: File, filter: NameFilter<'a>) -> io::Result<Scan<Self>> {
        let (mut writable_files, mut rest) = (Vec::new(), Vec::new());
        let mut lines = NamedLines::new(filter.names);
        let scan = lines.read(maps, &filter.options, &mut |mapping| {
            let found = if is_writable_file(mapping) {
                &mut writable_files
            } else {
                &mut rest
            };
            filter.keep(mapping, found);
        })?;
        Ok(match scan {
            // The thread has exited.
            Scan::Complete(0) => return Err(Errno::ESRCH.into()),
            Scan::Complete(_) => Scan::Complete(Self {
                filter,
                writable_files,
                rest: Rest::Found(rest),
            }),
            Scan::TooMany => Scan::TooMany,
            Scan::DeadlinePassed => Scan::DeadlinePassed,
        })
    }

    /// Finds the others: mappings without a file, or not writable. Ranges that were visited first
    /// are skipped, so that no mapping is visited twice.
    pub(crate) fn others(self) -> io::Result<Scan<Vec<NamedMapping>>> {
        let (maps, visited) = match self.rest {
            Rest::Found(found) => return Ok(Scan::Complete(found)),
            Rest::NotYet(maps, visited) => (maps, visited),
        };
        let only = flags::READABLE;
        let mut query = Query::new(&maps);
        let mut found = Vec::new();
        let (mut address, mut seen, mut range) = (0, 0, 0);
        // A name is expensive for a file, a second query for anonymous memory: guess by the last
        // one.
        let mut with_name = false;
        loop {
            if is_clock_check_due(&mut seen) && self.filter.options.is_past_deadline() {
                return Ok(Scan::DeadlinePassed);
            }
            address = visited.skip(address, &mut range);
            let next = if with_name {
                query.next_named(address, only)?
            } else {
                query.next(address, only)?
            };
            let Some(mapping) = next.filter(|mapping| mapping.end > address) else {
                return Ok(Scan::Complete(found));
            };
            address = mapping.end;
            let (start, is_anonymous) = (mapping.start, mapping.inode == 0);
            if self.filter.is_possible(&mapping) && !is_writable_file(&mapping) {
                if with_name {
                    self.filter.keep(&mapping, &mut found);
                } else if let Some(named) = query.next_named(start, only)? {
                    self.filter.keep(&named, &mut found);
                }
            }
            with_name = is_anonymous;
        }
    }
}

/// Returns whether to check the clock now: at the first item, and at every 1,024th after it.
pub(crate) fn is_clock_check_due(seen: &mut u64) -> bool {
    *seen += 1;
    *seen % 1024 == 1
}

impl NameFilter<'_> {
    /// Returns whether a mapping is a candidate, regardless of its name.
    fn is_possible(&self, mapping: &Mapping<'_>) -> bool {
        let is_data = mapping.permissions.read && !mapping.permissions.execute;
        let in_memory = || memfd_device().is_none_or(|device| mapping.device == device);
        is_data && (mapping.inode == 0 || in_memory())
    }

    fn keep(&self, mapping: &Mapping<'_>, found: &mut Vec<NamedMapping>) {
        // Not what the kernel calls `[heap]` or `[stack]`.
        let was_named = mapping.inode != 0 || mapping.name.starts_with(b"[anon:");
        let is_named = || self.names.iter().any(|name| mapping.name.starts_with(name));
        if self.is_possible(mapping) && was_named && is_named() && found.len() < self.limit {
            found.push(NamedMapping {
                start: mapping.start,
                name: mapping.name.to_vec(),
            });
        }
    }
}

fn is_writable_file(mapping: &Mapping<'_>) -> bool {
    mapping.permissions.write && mapping.inode != 0
}

/// The device of memfds and shared anonymous memory, if this process can create one.
fn memfd_device() -> Option<Device> {
    static DEVICE: OnceLock<Option<Device>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let own = memfd_create(c"otelctx-device", MemfdFlags::CLOEXEC).ok()?;
        Some(Device::from_stat(fstat(own).ok()?.st_dev))
    })
}

/// Returns whether this kernel supports names for anonymous memory (CONFIG_ANON_VMA_NAME).
pub(crate) fn anonymous_memory_has_names() -> bool {
    const PR_SET_VMA: i32 = 0x5356_4d41;
    const PR_SET_VMA_ANON_NAME: u64 = 0;
    static HAS_NAMES: OnceLock<bool> = OnceLock::new();
    *HAS_NAMES.get_or_init(|| {
        // SAFETY: the address range is empty and the name is null: no memory is accessed or named.
        let answer =
            unsafe { nix::libc::prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, 0_u64, 0_u64, 0_u64) };
        // Errors other than EINVAL (kernel/sys.c, prctl_set_vma) are inconclusive.
        answer == 0 || Errno::last() != Errno::EINVAL
    })
}

/// Parses only lines that contain one of several names, anywhere.
struct NamedLines<'n> {
    names: Vec<Finder<'n>>,
    /// The start of a line whose end has not arrived yet.
    cut: Parser,
    seen: u64,
}

impl<'n> NamedLines<'n> {
    fn new(names: &[&'n [u8]]) -> Self {
        Self {
            names: names.iter().map(|name| Finder::new(*name)).collect(),
            cut: Parser::new(),
            seen: 0,
        }
    }

    /// Reads `maps` to its end, and returns its size in bytes.
    fn read(
        &mut self,
        mut maps: impl Read,
        options: &ScanOptions,
        visit: &mut dyn FnMut(&Mapping<'_>),
    ) -> io::Result<Scan<u64>> {
        let limit = options.max_mappings.unwrap_or(u64::MAX);
        let mut buffer = [0; 4096];
        let mut size = 0;
        loop {
            if options.is_past_deadline() {
                return Ok(Scan::DeadlinePassed);
            }
            match maps.read(&mut buffer) {
                Ok(0) => return Ok(Scan::Complete(size)),
                Ok(length) => {
                    size += length as u64;
                    self.feed(&buffer[..length], visit);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.seen > limit {
                return Ok(Scan::TooMany);
            }
        }
    }

    fn feed(&mut self, mut piece: &[u8], visit: &mut dyn FnMut(&Mapping<'_>)) {
        let mut visit_cut = |mapping: &Mapping<'_>| {
            visit(mapping);
            ControlFlow::Continue(())
        };
        self.seen += memchr_iter(b'\n', piece).count() as u64;
        if self.cut.is_inside_line() {
            let end = memchr(b'\n', piece).map_or(piece.len(), |newline| newline + 1);
            // The visitor never breaks.
            let _ = self.cut.feed(&piece[..end], &mut visit_cut);
            piece = &piece[end..];
        }
        let end = memrchr(b'\n', piece).map_or(0, |newline| newline + 1);
        let _ = self.cut.feed(&piece[end..], &mut visit_cut);
        let lines = &piece[..end];
        let mut hits = Vec::new();
        for name in &self.names {
            let mut from = 0;
            while let Some(at) = name.find(&lines[from..]) {
                let at = from + at;
                let start = memrchr(b'\n', &lines[..at]).map_or(0, |newline| newline + 1);
                from = memchr(b'\n', &lines[at..]).map_or(lines.len(), |newline| at + newline);
                hits.push((start, from));
            }
        }
        // In address order, and each line once, however many names it contains.
        hits.sort_unstable();
        hits.dedup();
        for (start, end) in hits {
            if let Some(mapping) = Mapping::parse(&lines[start..end]) {
                visit(&mapping);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
1000-2000 rw-p 00000000 00:01 7                    /memfd:B [anon:A] (deleted)
2000-3000 r-xp 00001000 fd:10 1835301              /usr/bin/[anon:A]/x
3000-4000 rw-p 00000000 00:00 0 
/memfd:B is no mapping
4000-5000 rw-p 00000000 00:00 0                    [anon:A]
5000-6000 rw-p 00000000 00:01 8                    /memfd:B
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    fn lines(cut: usize) -> (Vec<u64>, u64) {
        let mut starts = Vec::new();
        let mut lines = NamedLines::new(&[b"/memfd:B", b"[anon:A]"]);
        for piece in TEXT.chunks(cut) {
            lines.feed(piece, &mut |mapping| {
                if mapping.name.contains(&b':') {
                    starts.push(mapping.start);
                }
            });
        }
        (starts, lines.seen)
    }

    #[test]
    fn what_was_visited_is_skipped() {
        let mut visited = Visited::default();
        for (start, end) in [(0x1000, 0x2000), (0x2000, 0x3000), (0x5000, 0x6000)] {
            let line = format!("{start:x}-{end:x} rw-p 0 00:01 7 /memfd:B");
            visited.add(&Mapping::parse(line.as_bytes()).unwrap());
        }
        assert_eq!(visited.0, [(0x1000, 0x3000), (0x5000, 0x6000)]);
        let mut range = 0;
        let skipped = [0, 0x1000, 0x3000, 0x4000, 0x5800, 0x7000]
            .map(|address| visited.skip(address, &mut range));
        assert_eq!(skipped, [0, 0x3000, 0x3000, 0x4000, 0x6000, 0x7000]);
    }

    /// A line that was split is visited whatever it contains.
    #[test]
    fn lines_with_a_name_are_visited_once_and_in_order_wherever_the_text_is_cut() {
        for cut in 1..=TEXT.len() {
            let expected = (vec![0x1000, 0x2000, 0x4000, 0x5000], 7);
            assert_eq!(lines(cut), expected, "cut every {cut} bytes");
        }
    }

    #[test]
    fn of_lines_with_a_name_only_mappings_of_that_name_count() {
        let filter = NameFilter {
            names: &[b"/memfd:B", b"[anon:A]"],
            limit: 3,
            options: ScanOptions::default(),
        };
        let mut found = Vec::new();
        for line in TEXT.split(|byte| *byte == b'\n') {
            let Some(mut mapping) = Mapping::parse(line) else {
                continue;
            };
            if mapping.inode != 0 {
                // With and without the assumption that this machine's memfds are on this device.
                let own = memfd_device().unwrap_or_default();
                let elsewhere = Device {
                    major: own.major + 1,
                    ..own
                };
                mapping.device = if mapping.inode == 8 { elsewhere } else { own };
            }
            filter.keep(&mapping, &mut found);
        }
        let starts: Vec<_> = found.iter().map(|named| named.start).collect();
        assert_eq!(starts, [0x1000, 0x4000]);
    }
}
