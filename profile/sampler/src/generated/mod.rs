//! Names of generated (JIT) code, from the files in which runtimes announce them for perf(1):
//! `/tmp/perf-PID.map` (tools/perf/Documentation/jit-interface.txt in Linux), and the jitdump file
//! that a runtime maps (jitdump-specification.txt there).
//!
//! A sample is named at most some milliseconds after its time: later, the same address may be
//! another function.

mod announcement;
mod frame;
mod functions;
mod jit_dump;
mod names;
mod perf_map;
mod source;

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use otelctx_reader::remote;
use otelctx_sample::Frame;
use otelctx_track::schedule::Backoff;

use crate::code::JitRuntime;
use crate::{INTERVAL, monotonic};
use announcement::{Next, decode};
use functions::{Functions, TimeBounds};
use jit_dump::JitDump;
pub use names::GeneratedNames;
use perf_map::PerfMap;
use source::{CHUNK, Source};

/// Maximum number of functions whose names are kept, of all processes.
const MAX_FUNCTIONS: usize = 256 * 1024;
/// Maximum number of reads of the rest of a file when its process ends.
const MAX_LAST_READS: usize = 16;

/// Maximum time between the last write to a map and its process's apparent start: clocks tick every
/// 10 ms at worst, and a file system may round to seconds, or have another machine's time.
const FILE_TIME_TOLERANCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct GeneratedCode {
    functions: Functions,
    map: Source<PerfMap>,
    dump: Source<JitDump>,
    /// An earlier process has left a map.
    has_stale_map: bool,
    /// The code is in memory that other processes share: the one that has forked them may have opened the map for all.
    pub(crate) is_shared: bool,
    /// Time of the last read, in nanoseconds of `CLOCK_MONOTONIC`; 0 if there was none.
    last_read: u64,
    /// Times of searches for them. Emulators and many runtimes announce nothing.
    pub(crate) searches: Backoff,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Names beyond the limit.
    pub(crate) names: u64,
    /// Truncated or damaged jitdump files.
    pub(crate) dumps: u64,
    /// Files that were not read to their end before their process ended.
    pub(crate) files: u64,
    /// Maps of an earlier process with the same ID.
    pub(crate) stale_files: u64,
}

struct FilesRead {
    unread: Unread,
    map_may_have_more: bool,
    dump_may_have_more: bool,
}

/// Returns addresses, ends and frames of the functions that a perf map or a jitdump file announces,
/// read in two pieces, of which the first has `cut` bytes: for the fuzz target.
#[doc(hidden)]
pub fn announced_functions(
    bytes: &[u8],
    is_dump: bool,
    cut: usize,
    limit: usize,
) -> Vec<(u64, u64, Frame)> {
    let mut functions = Functions::default();
    let (mut map, mut dump) = (PerfMap, JitDump::default());
    let mut position = 0;
    let announced = TimeBounds {
        earliest: 0,
        latest: 1,
    };
    for end in [cut.min(bytes.len()), bytes.len()] {
        let new = bytes.get(position..end).unwrap_or_default();
        let mut add = |next: Next<'_>| {
            functions.apply(next, announced, limit);
        };
        let read = if is_dump {
            decode(&mut dump, new, &mut add)
        } else {
            decode(&mut map, new, &mut add)
        };
        position = position.saturating_add(usize::try_from(read).unwrap_or(usize::MAX));
    }
    let functions = functions.0.into_iter();
    let functions = functions.map(|(start, function)| (start, function.end, function.frame));
    functions.collect()
}

impl Default for GeneratedCode {
    fn default() -> Self {
        Self {
            functions: Functions::default(),
            map: Source::default(),
            dump: Source::default(),
            has_stale_map: false,
            is_shared: false,
            last_read: 0,
            searches: Backoff::new(Instant::now()),
        }
    }
}

/// Returns the maximum number of functions of a process: half of the room that all others leave, so
/// that there is room for later ones.
pub(crate) fn max_functions(others: usize) -> usize {
    MAX_FUNCTIONS.saturating_sub(others) / 2
}

impl GeneratedCode {
    pub(crate) fn len(&self) -> usize {
        self.functions.0.len()
    }

    /// Returns the frame for an address at a time: with the function's name, or with the runtime's.
    pub(crate) fn name(
        &self,
        address: u64,
        time: u64,
        runtime: Option<JitRuntime<'_>>,
    ) -> Option<Frame> {
        let announced = self.functions.at(address, time).cloned();
        announced.or_else(|| runtime.map(|runtime| Frame::from(runtime.unnamed())))
    }

    /// Returns true if the files were not read since the last drain.
    pub(crate) fn is_due(&self) -> bool {
        monotonic() - self.last_read >= INTERVAL.as_nanos() as u64
    }

    /// Returns true if there is a file that announces functions.
    pub(crate) fn has_files(&self) -> bool {
        self.map.file.is_some() || self.dump.file.is_some()
    }

    /// Reads the new entries. `dump` opens the jitdump file. Keeps at most `limit` functions, three
    /// quarters of them from a map, to leave room for the jitdump file, which has times.
    pub(crate) fn update(
        &mut self,
        process: &remote::Process,
        dump: impl FnOnce() -> Option<File>,
        limit: usize,
    ) -> Unread {
        let start = Instant::now();
        let had_stale_map = self.has_stale_map;
        if self.searches.is_due(start) {
            let found = self.find_map(process) | self.dump.find(dump);
            self.searches.done(Instant::now(), start.elapsed(), found);
        }
        let mut unread = self.read(limit, 1).unread;
        unread.stale_files = u64::from(self.has_stale_map && !had_stale_map);
        unread
    }

    /// Opens the map, unless an earlier process has left it. Returns true if it was not open yet.
    fn find_map(&mut self, process: &remote::Process) -> bool {
        let (has_stale_map, is_shared) = (&mut self.has_stale_map, self.is_shared);
        self.map.find(|| {
            let map = perf_map(process);
            let own = map.filter(|map| {
                let is_own = may_have_written(process, map);
                *has_stale_map |= !is_own;
                is_own
            });
            own.or_else(|| is_shared.then(|| inherited_map(process))?)
        })
    }

    /// Reads the rest when the process has ended, or executes another program.
    pub(crate) fn finish(&mut self, limit: usize) -> Unread {
        let read = self.read(limit, MAX_LAST_READS);
        let mut unread = read.unread;
        if !read.dump_may_have_more && self.dump.is_cut() {
            unread.dumps += 1;
            // So that it counts once.
            self.dump.is_damaged = true;
        }
        unread.files += u64::from(read.map_may_have_more && self.map.rest() > 0);
        unread.files += u64::from(read.dump_may_have_more && self.dump.rest() > 0);
        unread
    }

    /// Returns the number of files that have more to read than a read takes.
    pub(crate) fn files_behind(&self) -> u64 {
        let rests = [self.map.rest(), self.dump.rest()].into_iter();
        rests.filter(|rest| *rest >= CHUNK as u64).count() as u64
    }

    fn read(&mut self, limit: usize, times: usize) -> FilesRead {
        let now = monotonic();
        let announced = TimeBounds {
            earliest: std::mem::replace(&mut self.last_read, now),
            latest: now,
        };
        let functions = &mut self.functions;
        let mut unread = Unread::default();
        let mut add = |next: Next<'_>, limit| {
            unread.dumps += u64::from(next == Next::Damaged);
            let is_kept = functions.apply(next, announced, limit);
            unread.names += u64::from(!is_kept);
        };
        let (mut map_may_have_more, mut dump_may_have_more) = (false, false);
        for _ in 0..times {
            map_may_have_more = self.map.read(|next| add(next, limit - limit / 4));
            dump_may_have_more = self.dump.read(|next| add(next, limit));
            if !map_may_have_more && !dump_may_have_more {
                break;
            }
        }
        FilesRead {
            unread,
            map_may_have_more,
            dump_may_have_more,
        }
    }

    /// Reads all entries until the deadline, and keeps the functions at these addresses, which are
    /// in ascending order.
    pub(crate) fn read_at(
        &mut self,
        process: &remote::Process,
        dump: impl FnOnce() -> Option<File>,
        addresses: &[u64],
        deadline: Instant,
    ) {
        self.find_map(process);
        self.dump.find(dump);
        let functions = &mut self.functions;
        let mut add = |next: Next<'_>| match next {
            Next::Function(entry) if !entry.has_any(addresses) => {
                if let Some(end) = entry.start.checked_add(entry.size)
                    && entry.size > 0
                {
                    functions.remove_overlapping(entry.start, end);
                }
            }
            next => {
                functions.apply(next, TimeBounds::exactly(0), usize::MAX);
            }
        };
        while Instant::now() < deadline && (self.map.read(&mut add) | self.dump.read(&mut add)) {}
    }
}

/// Opens the map of a process, which has its ID in its own namespace in its name.
fn perf_map(process: &remote::Process) -> Option<File> {
    let pids = process.status().ok()?.namespace_pids;
    let pid = pids.last().copied().unwrap_or(process.pid());
    process.open_own_file(&PathBuf::from(format!("tmp/perf-{pid}.map")))
}

/// Opens the map that a process has inherited: PHP's workers write the names of the code that they share to the map of the
/// process that has started them, which may have ended since.
fn inherited_map(process: &remote::Process) -> Option<File> {
    process.reopen_file(|path| {
        let name = path.to_str().and_then(|it| it.strip_prefix("/tmp/perf-"));
        let pid = name.and_then(|it| it.strip_suffix(".map"));
        pid.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|it| it.is_ascii_digit()))
    })
}

/// Returns false if a file is known to be older than a process. Compares ages, not times: the clock
/// may have been set since the process started.
fn may_have_written(process: &remote::Process, file: &File) -> bool {
    let written = file.metadata().and_then(|it| it.modified());
    let unwritten_for = written.ok().and_then(|it| it.elapsed().ok());
    let age = process.stat().ok().and_then(|it| it.age());
    let ages = unwritten_for.zip(age);
    ages.is_none_or(|(unwritten_for, age)| unwritten_for <= age + FILE_TIME_TOLERANCE)
}

#[cfg(test)]
mod tests;
