//! Names of code that a just-in-time compiler has generated, from the files in which runtimes announce
//! them for perf(1): `/tmp/perf-PID.map` (tools/perf/Documentation/jit-interface.txt in Linux), and the
//! jitdump file that a runtime maps (jitdump-specification.txt there).
//!
//! A sample is named when it is taken from the kernel, at most some milliseconds after its time: later, the
//! same address may be another function.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use otelctx_reader::remote;
use otelctx_sample::{Frame, FrameKind, NamedFrame};
use otelctx_track::schedule::Backoff;

use crate::code::JitRuntime;
use crate::{INTERVAL, monotonic};

/// Maximum number of functions whose names are kept, of all processes.
const MAX_FUNCTIONS: usize = 256 * 1024;
/// Maximum number of bytes that are read of a file at a time.
const CHUNK: usize = 1 << 20;
/// Maximum number of such reads of the rest of a file when its process ends.
const MAX_LAST_READS: usize = 16;
/// Maximum length of a line or record that is read, in bytes. Of longer records, only the start is.
const MAX_ENTRY: usize = 8 << 10;
/// Maximum length of a name that is kept, in bytes.
const MAX_NAME: usize = 1 << 10;
/// How many of the last bytes of a file are compared to see whether it was written again: the end of a line has the
/// name, and the address of its code is before.
const MAX_LAST_BYTES: usize = 128;

/// How much earlier than its process's start a map may have been written, as far as times of files and of processes
/// tell: their clocks tick every 10 ms at worst, and a file system may round to seconds, or keep another machine's time.
const FILE_TIME_TOLERANCE: Duration = Duration::from_secs(5);

/// The generated code of a process.
#[derive(Debug)]
pub(crate) struct GeneratedCode {
    functions: BTreeMap<u64, Function>,
    map: Source<PerfMap>,
    dump: Source<JitDump>,
    /// Whether an earlier process has left a map.
    has_stale_map: bool,
    /// When the files were last read, in nanoseconds of `CLOCK_MONOTONIC`; 0 if never.
    last_read: u64,
    /// When to search for them next. Emulators and many runtimes announce nothing.
    searches: Backoff,
}

#[derive(Debug)]
struct Function {
    end: u64,
    /// When it was announced, or a time at which it was not yet.
    since: u64,
    frame: Frame,
    /// The function that was at the same address before, and the time until which it surely was.
    earlier: Option<Box<(Function, u64)>>,
}

/// A file that a runtime appends to. Some write a map again when they are asked to.
#[derive(Debug)]
struct Source<F> {
    file: Option<File>,
    format: F,
    /// How much of it was read, in bytes.
    position: u64,
    /// The last bytes before that.
    last_bytes: Vec<u8>,
    /// Whether what comes next cannot be decoded.
    is_damaged: bool,
}

/// What was not read of the files of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Names beyond the limit.
    pub(crate) names: u64,
    /// Jitdump files that turned out to be cut short or damaged.
    pub(crate) dumps: u64,
    /// Files of which there is more to read, once their process has ended.
    pub(crate) files: u64,
    /// Maps of an earlier process with the same ID.
    pub(crate) stale_files: u64,
}

/// Lines of start, size and name.
#[derive(Debug, Default)]
struct PerfMap;

/// Binary records.
#[derive(Debug, Default)]
struct JitDump {
    /// Whether the header was read.
    has_begun: bool,
}

/// One function, as announced.
#[derive(Debug, PartialEq, Eq)]
struct Entry<'a> {
    start: u64,
    size: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`, if the entry has a time.
    time: Option<u64>,
    name: &'a [u8],
}

/// What the next bytes of a file are.
#[derive(Debug, PartialEq, Eq)]
enum Next<'a> {
    Function(Entry<'a>),
    /// Code was moved from one address to another.
    Moved {
        from: u64,
        to: u64,
        time: u64,
    },
    /// Something without a name.
    Other,
    /// Something that the format does not have: where the next entry begins is unknown.
    Damaged,
}

trait Format {
    /// Whether a runtime may write the whole file again. Java does when `jcmd PID Compiler.perfmap` is repeated.
    const MAY_BE_REWRITTEN: bool;

    /// Decodes the first entry, and returns its length. `None` if the bytes end before it does.
    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Next<'a>, u64)>;
}

impl Format for PerfMap {
    const MAY_BE_REWRITTEN: bool = true;

    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Next<'a>, u64)> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            // A line that is too long has no name worth reading.
            return (bytes.len() > MAX_ENTRY).then_some((Next::Other, bytes.len() as u64));
        };
        let entry = entry_of_line(&bytes[..end]).map_or(Next::Other, Next::Function);
        Some((entry, end as u64 + 1))
    }
}

/// `START SIZE NAME`, with numbers in hexadecimal digits.
fn entry_of_line(line: &[u8]) -> Option<Entry<'_>> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(parts.next()?).ok()?;
        let digits = digits.strip_prefix("0x").unwrap_or(digits);
        u64::from_str_radix(digits, 16).ok()
    };
    let (start, size) = (number()?, number()?);
    Some(Entry {
        start,
        size,
        time: None,
        name: parts.next()?,
    })
}

impl Entry<'_> {
    /// Whether any of these addresses, in ascending order, is in it.
    fn has_any(&self, addresses: &[u64]) -> bool {
        let next = addresses.partition_point(|address| *address < self.start);
        addresses
            .get(next)
            .is_some_and(|address| address - self.start < self.size)
    }
}

impl JitDump {
    /// `JITHEADER_MAGIC`, as a machine of the same byte order writes it.
    const MAGIC: u32 = 0x4A69_5444;
    /// Size of the header with the flags.
    const HEADER_SIZE: u32 = 40;
    /// `JITDUMP_FLAGS_ARCH_TIMESTAMP`: times are the processor's, not nanoseconds. When they were is unknown.
    const ARCH_TIMESTAMP: u64 = 1;
    /// `JIT_CODE_LOAD` and `JIT_CODE_MOVE`.
    const LOAD: u32 = 0;
    const MOVE: u32 = 1;
    /// Size of a record's prefix: type, size, time.
    const PREFIX: usize = 16;
    /// Size of `JIT_CODE_LOAD` before the name: the prefix, process and thread, address, address again,
    /// size, index.
    const LOAD_SIZE: usize = Self::PREFIX + 40;
    /// Size of `JIT_CODE_MOVE`: the prefix, process and thread, address, address before, address now, size,
    /// index.
    const MOVE_SIZE: usize = Self::PREFIX + 48;
}

impl Format for JitDump {
    const MAY_BE_REWRITTEN: bool = false;

    fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<(Next<'a>, u64)> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if !self.has_begun {
            // Magic, version, size of the header, machine, padding, process, time, flags.
            let (magic, size) = (u32_at(0)?, u32_at(8)?);
            if magic != Self::MAGIC {
                return Some((Next::Damaged, u64::MAX));
            }
            if size >= Self::HEADER_SIZE && u64_at(32)? & Self::ARCH_TIMESTAMP != 0 {
                return Some((Next::Damaged, u64::MAX));
            }
            self.has_begun = true;
            return Some((Next::Other, size.max(12).into()));
        }
        let (kind, size, time) = (u32_at(0)?, u32_at(4)?, u64_at(8)?);
        let least = match kind {
            Self::LOAD => Self::LOAD_SIZE + 1,
            Self::MOVE => Self::MOVE_SIZE,
            _ => Self::PREFIX,
        };
        if (size as usize) < least {
            return Some((Next::Damaged, u64::MAX));
        }
        let next = match kind {
            Self::LOAD => {
                // The code behind the name need not be there.
                let end = bytes.len().min(size as usize);
                let name = bytes.get(Self::LOAD_SIZE..end)?;
                let length = name.iter().position(|byte| *byte == 0);
                if length.is_none() && name.len() < MAX_ENTRY && end < size as usize {
                    return None;
                }
                Next::Function(Entry {
                    start: u64_at(32)?,
                    size: u64_at(40)?,
                    time: Some(time),
                    name: &name[..length.unwrap_or(name.len())],
                })
            }
            Self::MOVE => Next::Moved {
                from: u64_at(32)?,
                to: u64_at(40)?,
                time,
            },
            _ => Next::Other,
        };
        Some((next, size.into()))
    }
}

impl<F: Format + Default> Source<F> {
    fn new() -> Self {
        Self {
            file: None,
            format: F::default(),
            position: 0,
            last_bytes: Vec::new(),
            is_damaged: false,
        }
    }

    /// Opens the file, unless it is open. Returns whether it is new.
    fn find(&mut self, open: impl FnOnce() -> Option<File>) -> bool {
        if self.file.is_none() {
            self.file = open();
            return self.file.is_some();
        }
        false
    }

    /// Whether what was read before is no longer there.
    fn was_rewritten(&self) -> bool {
        let Some(file) = self.file.as_ref().filter(|_| F::MAY_BE_REWRITTEN) else {
            return false;
        };
        let mut bytes = [0; MAX_LAST_BYTES];
        let bytes = &mut bytes[..self.last_bytes.len()];
        let start = self.position.saturating_sub(bytes.len() as u64);
        file.read_exact_at(bytes, start).is_err() || *bytes != self.last_bytes[..]
    }

    /// Reads what was appended, at most [`CHUNK`] bytes of it, or the start of a file that was written again. Returns
    /// whether there was anything.
    fn read(&mut self, mut add: impl FnMut(Next<'_>)) -> bool {
        if self.was_rewritten() {
            self.position = 0;
            self.last_bytes.clear();
        }
        let Some(file) = self.file.as_ref().filter(|_| !self.is_damaged) else {
            return false;
        };
        let mut bytes = vec![0; CHUNK];
        let size = file.read_at(&mut bytes, self.position).unwrap_or(0);
        let read = decode(&mut self.format, &bytes[..size], |next| {
            self.is_damaged |= next == Next::Damaged;
            add(next);
        });
        self.position = self.position.saturating_add(read);
        if F::MAY_BE_REWRITTEN {
            let read = usize::try_from(read).map_or(size, |read| read.min(size));
            let start = read.saturating_sub(MAX_LAST_BYTES);
            self.last_bytes.extend_from_slice(&bytes[start..read]);
            let excess = self.last_bytes.len().saturating_sub(MAX_LAST_BYTES);
            self.last_bytes.drain(..excess);
        }
        read > 0
    }

    /// The size of the file, in bytes; `None` if there is none.
    fn size(&self) -> Option<u64> {
        Some(self.file.as_ref()?.metadata().ok()?.len())
    }

    /// Whether the file ends within an entry, once all of it was read.
    fn is_cut(&self) -> bool {
        let size = self.size();
        !self.is_damaged && size.is_some_and(|size| size > 0 && size != self.position)
    }

    /// How many bytes of the file are left.
    fn rest(&self) -> u64 {
        let size = self.size().filter(|_| !self.is_damaged);
        size.unwrap_or(0).saturating_sub(self.position)
    }
}

/// Decodes the entries that are complete, and returns their length, which may exceed that of `bytes`.
fn decode(format: &mut impl Format, bytes: &[u8], mut add: impl FnMut(Next<'_>)) -> u64 {
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

/// Adds what a file announces.
fn apply(
    functions: &mut BTreeMap<u64, Function>,
    next: Next<'_>,
    times: (u64, u64),
    limit: usize,
) -> bool {
    match next {
        Next::Function(entry) => return insert(functions, &entry, times, limit),
        Next::Moved { from, to, time } => {
            if let Some(function) = functions.remove(&from)
                && let Some(end) = to.checked_add(function.end - from)
            {
                place(functions, to, end, function.frame, (time, time));
            }
        }
        Next::Other | Next::Damaged => {}
    }
    true
}

/// The functions that a file announces, for the fuzz target: their addresses, ends and frames. The file
/// is a perf map or a jitdump file, and is read in two pieces, of which the first has `cut` bytes.
#[doc(hidden)]
pub fn announced_functions(
    bytes: &[u8],
    is_dump: bool,
    cut: usize,
    limit: usize,
) -> Vec<(u64, u64, Frame)> {
    let mut functions = BTreeMap::new();
    let (mut map, mut dump) = (PerfMap, JitDump::default());
    let mut position = 0;
    for end in [cut.min(bytes.len()), bytes.len()] {
        let new = bytes.get(position..end).unwrap_or_default();
        let mut add = |next: Next<'_>| {
            apply(&mut functions, next, (0, 1), limit);
        };
        let read = match is_dump {
            true => decode(&mut dump, new, &mut add),
            false => decode(&mut map, new, &mut add),
        };
        position = position.saturating_add(usize::try_from(read).unwrap_or(usize::MAX));
    }
    let function = |(start, function): (u64, Function)| (start, function.end, function.frame);
    functions.into_iter().map(function).collect()
}

impl Default for GeneratedCode {
    fn default() -> Self {
        Self {
            functions: BTreeMap::new(),
            map: Source::new(),
            dump: Source::new(),
            has_stale_map: false,
            last_read: 0,
            searches: Backoff::new(Instant::now()),
        }
    }
}

/// Maximum number of functions of a process, given how many all others have: half of the room that they
/// leave, so that no process takes the room of later ones.
pub(crate) fn max_functions(others: usize) -> usize {
    MAX_FUNCTIONS.saturating_sub(others) / 2
}

impl GeneratedCode {
    /// Number of functions.
    pub(crate) fn len(&self) -> usize {
        self.functions.len()
    }

    /// The frame for an address of generated code at a time: with the function's name, or with the
    /// runtime's.
    pub(crate) fn name(
        &self,
        address: u64,
        time: u64,
        runtime: Option<JitRuntime<'_>>,
    ) -> Option<Frame> {
        let mut found = self.functions.range(..=address).next_back().map(|it| it.1);
        while let Some(function) = found {
            if address < function.end && function.since <= time {
                return Some(function.frame.clone());
            }
            let earlier = function.earlier.as_deref();
            found = earlier.filter(|(_, until)| time < *until).map(|it| &it.0);
        }
        runtime.map(|runtime| Frame::from(runtime.unnamed()))
    }

    /// Whether to read what the runtime has announced: once in each drain.
    pub(crate) fn is_due(&self) -> bool {
        monotonic() - self.last_read >= INTERVAL.as_nanos() as u64
    }

    /// Whether there are files that announce it.
    pub(crate) fn is_read(&self) -> bool {
        self.map.file.is_some() || self.dump.file.is_some()
    }

    /// Searches for the files the next time: the runtime has made memory for more code.
    pub(crate) fn search(&mut self) {
        self.searches.restart();
    }

    /// Puts the next search off as far as it can be.
    #[cfg(test)]
    pub(crate) fn put_off_search(&mut self) {
        for _ in 0..10 {
            self.searches.done(Instant::now(), Duration::ZERO, false);
        }
    }

    /// Reads what the runtime has announced since the last time. `dump` opens the jitdump
    /// file. Keeps at most `limit` functions, three quarters of them from a map: it must leave room for the
    /// jitdump file, which has the times of its functions.
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
        let mut unread = self.read(limit, 1).0;
        unread.stale_files = u64::from(self.has_stale_map && !had_stale_map);
        unread
    }

    /// Opens the map, unless an earlier process has left it. Returns whether it is new.
    fn find_map(&mut self, process: &remote::Process) -> bool {
        let has_stale_map = &mut self.has_stale_map;
        self.map.find(|| {
            let map = perf_map(process)?;
            let is_own = may_have_written(process, &map);
            *has_stale_map |= !is_own;
            is_own.then_some(map)
        })
    }

    /// Reads what the runtime has announced when its process has ended, or executes another program: a jitdump
    /// file whose last record is incomplete stays so.
    pub(crate) fn finish(&mut self, limit: usize) -> Unread {
        let (mut unread, [map_has_more, dump_has_more]) = self.read(limit, MAX_LAST_READS);
        if !dump_has_more && self.dump.is_cut() {
            unread.dumps += 1;
            // It was counted.
            self.dump.is_damaged = true;
        }
        unread.files += u64::from(map_has_more && self.map.rest() > 0);
        unread.files += u64::from(dump_has_more && self.dump.rest() > 0);
        unread
    }

    /// Of how many files at least as much is left as is read at a time: a runtime that announces more than that
    /// between two reads, or one that had announced much before.
    pub(crate) fn files_behind(&self) -> u64 {
        let is_behind = [self.map.rest(), self.dump.rest()].map(|rest| rest >= CHUNK as u64);
        is_behind.into_iter().map(u64::from).sum()
    }

    /// Reads each file at most `times` times. Returns whether the last time had anything, of the map and of the
    /// jitdump file.
    fn read(&mut self, limit: usize, times: usize) -> (Unread, [bool; 2]) {
        let now = monotonic();
        let since = std::mem::replace(&mut self.last_read, now);
        let functions = &mut self.functions;
        let mut unread = Unread::default();
        let mut add = |next: Next<'_>, limit| {
            unread.dumps += u64::from(next == Next::Damaged);
            let is_kept = apply(functions, next, (since, now), limit);
            unread.names += u64::from(!is_kept);
        };
        let mut has_more = [false; 2];
        for _ in 0..times {
            has_more = [
                self.map.read(|next| add(next, limit - limit / 4)),
                self.dump.read(|next| add(next, limit)),
            ];
            if has_more == [false; 2] {
                break;
            }
        }
        (unread, has_more)
    }

    /// Reads all that the runtime has announced, and keeps the functions at these addresses, which are in
    /// ascending order. Ends at the deadline.
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
                // Its code has taken the place of the other function's.
                if let Some(end) = entry.start.checked_add(entry.size)
                    && entry.size > 0
                {
                    remove_overlapping(functions, entry.start, end);
                }
            }
            next => {
                apply(functions, next, (0, 0), usize::MAX);
            }
        };
        while Instant::now() < deadline && (self.map.read(&mut add) | self.dump.read(&mut add)) {}
    }
}

/// The map of a process: runtimes name it by their ID in their own namespace.
fn perf_map(process: &remote::Process) -> Option<File> {
    let pids = process.status().ok()?.namespace_pids;
    let pid = pids.last().copied().unwrap_or(process.pid());
    process.open_own_file(&PathBuf::from(format!("tmp/perf-{pid}.map")))
}

/// Whether a file was last written after a process had started, as far as that is known. Both are ages, so that a
/// clock that was set meanwhile makes no difference to the process's.
fn may_have_written(process: &remote::Process, file: &File) -> bool {
    let written = file.metadata().and_then(|it| it.modified());
    let unwritten_for = written.ok().and_then(|it| it.elapsed().ok());
    let age = process.stat().ok().and_then(|it| it.age());
    match (unwritten_for, age) {
        (Some(unwritten_for), Some(age)) => unwritten_for <= age + FILE_TIME_TOLERANCE,
        _ => true,
    }
}

/// Adds a function. Returns false if there are too many, unless it takes the place of another one.
fn insert(
    functions: &mut BTreeMap<u64, Function>,
    entry: &Entry<'_>,
    (last_read, now): (u64, u64),
    limit: usize,
) -> bool {
    let Some(end) = entry.start.checked_add(entry.size) else {
        return true;
    };
    if entry.size == 0 {
        return true;
    }
    let overlaps = overlaps(functions, entry.start, end);
    if functions.len() >= limit && !overlaps {
        return false;
    }
    let name = &entry.name[..entry.name.len().min(MAX_NAME)];
    let frame = Frame::from(frame(&String::from_utf8_lossy(name)));
    // Without a time, it was announced between the two reads. If other code was there before, it is
    // unknown which of the two a sample from that time is in.
    let since = match entry.time {
        Some(time) => (time, time),
        None if overlaps => (last_read, now),
        None => (last_read, last_read),
    };
    place(functions, entry.start, end, frame, since);
    true
}

fn overlaps(functions: &BTreeMap<u64, Function>, start: u64, end: u64) -> bool {
    let last = functions.range(..end).next_back();
    last.is_some_and(|(_, known)| known.end > start)
}

/// Adds a function in the place of the functions that it overlaps. They were there until the first of the
/// times, and it is since the second.
fn place(
    functions: &mut BTreeMap<u64, Function>,
    start: u64,
    end: u64,
    frame: Frame,
    (until, since): (u64, u64),
) {
    let earlier = remove_overlapping(functions, start, end);
    // Samples come within milliseconds: one is enough.
    let earlier = earlier.map(|mut it: Function| {
        it.earlier = None;
        Box::new((it, until))
    });
    let function = Function {
        end,
        since,
        frame,
        earlier,
    };
    functions.insert(start, function);
}

/// Removes the functions that overlap these addresses, and returns the one that begins at the first.
fn remove_overlapping(
    functions: &mut BTreeMap<u64, Function>,
    start: u64,
    end: u64,
) -> Option<Function> {
    let mut first = None;
    while let Some((&other, known)) = functions.range(..end).next_back() {
        if known.end <= start {
            break;
        }
        let removed = functions.remove(&other);
        if other == start {
            first = removed;
        }
    }
    first
}

/// What a runtime's name for its code says.
fn frame(name: &str) -> NamedFrame {
    python(name)
        .or_else(|| v8(name))
        .unwrap_or_else(|| NamedFrame {
            function: name.trim_end().to_owned(),
            ..NamedFrame::default()
        })
}

/// `py::QUALIFIED:FILE`, as CPython writes it with `-X perf` (Objects/perf_trampoline.c).
fn python(name: &str) -> Option<NamedFrame> {
    let (qualified, file) = name.strip_prefix("py::")?.split_once(':')?;
    let function = qualified.rsplit('.').next().unwrap_or(qualified);
    Some(NamedFrame {
        kind: FrameKind::CPYTHON,
        function: function.to_owned(),
        qualified_name: qualified.to_owned(),
        file: file.to_owned(),
        line: 0,
    })
}

/// `JS:*FUNCTION FILE:LINE:COLUMN`, or another kind of code instead of `JS` (V8, src/logging/log.cc: the mark
/// before the function is the tier that compiled it, preceded by `o` for on-stack replacement (OSR), from
/// Node.js 26 on).
fn v8(name: &str) -> Option<NamedFrame> {
    const CODE: [&str; 6] = [
        "JS",
        "LazyCompile",
        "Function",
        "Script",
        "Eval",
        "InterpretedFunction",
    ];
    const GENERATED: [&str; 5] = ["Builtin", "BytecodeHandler", "Stub", "RegExp", "Wasm"];
    let (kind, rest) = name.trim_end().split_once(':')?;
    let mut frame = NamedFrame {
        kind: FrameKind::V8JS,
        ..NamedFrame::default()
    };
    if GENERATED.contains(&kind) {
        frame.function = rest.to_owned();
        return Some(frame);
    }
    if !CODE.contains(&kind) {
        return None;
    }
    const TIERS: [char; 5] = ['*', '~', '^', '+', '\''];
    let replaced = rest.strip_prefix('o').filter(|it| it.starts_with(TIERS));
    let rest = replaced.unwrap_or(rest).trim_start_matches(TIERS);
    let (function, place) = rest.split_once(' ').unwrap_or((rest, ""));
    let mut place = place.rsplitn(3, ':');
    if let (Some(_), Some(line), Some(file)) = (place.next(), place.next(), place.next()) {
        frame.line = line.parse().unwrap_or(0);
        frame.file = file.to_owned();
    }
    // A program has many, so that each has its place in its name.
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    frame.function = match (function, file) {
        ("", "") => "(anonymous)".to_owned(),
        ("", file) => format!("(anonymous {file}:{})", frame.line),
        (function, _) => function.to_owned(),
    };
    Some(frame)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::io::Write as _;

    use super::*;

    fn named(name: &str) -> (FrameKind, String, String, u32) {
        let NamedFrame {
            kind, file, line, ..
        } = frame(name);
        (kind, frame(name).name().to_owned(), file, line)
    }

    #[test]
    fn names_are_split_as_their_runtimes_write_them() {
        let python = named("py::Shop.checkout:/srv/shop.py");
        let expected = (
            FrameKind::CPYTHON,
            "Shop.checkout".into(),
            "/srv/shop.py".into(),
            0,
        );
        assert_eq!(python, expected);
        assert_eq!(frame("py::Shop.checkout:/srv/shop.py").function, "checkout");
        let node = named("JS:*checkout file:///srv/shop.js:12:5");
        let expected = (
            FrameKind::V8JS,
            "checkout".into(),
            "file:///srv/shop.js".into(),
            12,
        );
        assert_eq!(node, expected);
        let anonymous = named("JS:~ /srv/shop.js:1:1");
        let expected = (
            FrameKind::V8JS,
            "(anonymous shop.js:1)".into(),
            "/srv/shop.js".into(),
            1,
        );
        assert_eq!(anonymous, expected);
        assert_eq!(named("JS:~").1, "(anonymous)");
        for tier in ["o*", "o+", "*'", "^", ""] {
            let name = format!("JS:{tier}open shop.js:1:2");
            assert_eq!(named(&name).1, "open", "{tier}");
        }
        assert_eq!(named("JS:*o shop.js:1:2").1, "o");
        assert_eq!(named("BytecodeHandler:Ldar").1, "Ldar");
        let java = "Lshop/Shop;::checkout";
        assert_eq!(
            named(java),
            (FrameKind::NATIVE, java.into(), String::new(), 0)
        );
    }

    /// Names with their times, of everything in a file.
    fn read(format: &mut impl Format, mut bytes: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some((next, length)) = format.next(bytes) {
            if let Next::Function(entry) = next {
                found.push((entry.start, entry.size, entry.name.to_vec()));
            }
            let length = usize::try_from(length).map_or(bytes.len(), |it| it.min(bytes.len()));
            assert!(length > 0);
            bytes = &bytes[length..];
            if bytes.is_empty() {
                break;
            }
        }
        found
    }

    #[test]
    fn lines_that_are_not_entries_are_skipped_and_the_last_one_may_come_later() {
        let text = b"1000 20 a b\nhello\n\n0x2000 0x10 c\n3000 ffffffffffffffffff d\n4000 10 e";
        let found = read(&mut PerfMap, text);
        let expected = [
            (0x1000, 0x20, b"a b".to_vec()),
            (0x2000, 0x10, b"c".to_vec()),
        ];
        assert_eq!(found, expected);
        assert_eq!(PerfMap.next(&[b'x'; MAX_ENTRY]), None);
        assert!(PerfMap.next(&[b'x'; MAX_ENTRY + 1]).is_some());
    }

    fn jit_dump() -> Vec<u8> {
        let mut bytes = JitDump::MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1_u32, 40].map(u32::to_ne_bytes).concat());
        bytes.resize(40, 0);
        for (kind, words, tail) in [
            (
                JitDump::LOAD,
                [0x1000_u64, 0x1000, 0x20, 1],
                &b"a\0\x90\x90"[..],
            ),
            // JIT_CODE_DEBUG_INFO
            (2, [0; 4], b""),
            (JitDump::LOAD, [0x2000, 0x2000, 0x10, 2], b"b\0\x90\x90"),
        ] {
            let size = (JitDump::LOAD_SIZE + tail.len()) as u32;
            bytes.extend([kind, size].map(u32::to_ne_bytes).concat());
            bytes.extend(9_u64.to_ne_bytes());
            bytes.extend([7_u32, 7].map(u32::to_ne_bytes).concat());
            bytes.extend(words.map(u64::to_ne_bytes).concat());
            bytes.extend(tail);
        }
        bytes
    }

    /// Where the records of [`jit_dump`] end, and where the names of its two functions do.
    const RECORD_ENDS: [usize; 4] = [40, 100, 156, 216];
    const NAME_ENDS: [usize; 2] = [98, 214];

    #[test]
    fn a_jit_dump_cut_anywhere_has_the_functions_before_and_is_counted() {
        let bytes = jit_dump();
        assert_eq!(bytes.len(), RECORD_ENDS[3]);
        let all = [(0x1000, 0x20, b"a".to_vec()), (0x2000, 0x10, b"b".to_vec())];
        let own = remote::Process::open(std::process::id() as i32).unwrap();
        for length in 0..=bytes.len() {
            let count = NAME_ENDS.iter().filter(|end| **end <= length).count();
            let found = read(&mut JitDump::default(), &bytes[..length]);
            assert_eq!(found, all[..count], "{length}");
            let mut code = GeneratedCode::default();
            let file = tempfile("cut");
            file.write_all_at(&bytes[..length], 0).unwrap();
            code.dump.file = Some(file);
            // The rest may still come.
            let none = Unread::default();
            assert_eq!(code.update(&own, || None, 2), none, "{length}");
            let dumps = u64::from(length > 0 && !RECORD_ENDS.contains(&length));
            let unread = Unread { dumps, ..none };
            assert_eq!(code.finish(2), unread, "{length}");
            assert_eq!(code.len(), count, "{length}");
            assert_eq!(code.finish(2), none, "{length}");
        }
    }

    #[test]
    fn the_rest_of_a_jit_dump_is_read_when_its_process_ends() {
        let mut code = GeneratedCode::default();
        let (file, mut bytes) = (tempfile("rest"), jit_dump());
        let last = bytes.split_off(RECORD_ENDS[2]);
        // JIT_CODE_DEBUG_INFO, longer than what is read at a time.
        let size = 3 * CHUNK;
        bytes.extend([2, size as u32].map(u32::to_ne_bytes).concat());
        bytes.resize(RECORD_ENDS[2] + size, 0);
        bytes.extend(last);
        file.write_all_at(&bytes, 0).unwrap();
        code.dump.file = Some(file);
        assert_eq!(code.finish(2), Unread::default());
        assert_eq!(code.len(), 2);
    }

    #[test]
    fn files_that_are_not_read_to_their_end_are_counted() {
        let own = remote::Process::open(std::process::id() as i32).unwrap();
        let mut code = GeneratedCode::default();
        // Two reads more than there are when the process ends.
        let line = b"1000 10 same\n";
        let lines = (MAX_LAST_READS + 2) * CHUNK / line.len();
        let (map, dump) = (tempfile("rest-of-map"), tempfile("rest-of-dump"));
        map.write_all_at(&line.repeat(lines), 0).unwrap();
        // JIT_CODE_DEBUG_INFO
        let (mut record, mut header) = (vec![0; 1 << 16], jit_dump());
        record[..8].copy_from_slice(&[2, 1 << 16].map(u32::to_ne_bytes).concat());
        header.truncate(RECORD_ENDS[0]);
        let records = (MAX_LAST_READS + 2) * CHUNK / record.len();
        let bytes = [header, record.repeat(records)].concat();
        dump.write_all_at(&bytes, 0).unwrap();
        (code.map.file, code.dump.file) = (Some(map), Some(dump));
        let none = Unread::default();
        assert_eq!(code.update(&own, || None, 2), none);
        assert_eq!(code.files_behind(), 2);
        assert_eq!(code.finish(2), Unread { files: 2, ..none });
        // A file that grows meanwhile is not behind, and one that was read to its end has no rest.
        code.update(&own, || None, 2);
        assert_eq!(code.files_behind(), 0);
        assert_eq!(code.finish(2), none);
    }

    #[test]
    fn a_jit_dump_with_the_processor_s_times_has_no_names() {
        let mut bytes = jit_dump();
        bytes[32] = 1;
        assert!(read(&mut JitDump::default(), &bytes).is_empty());
        // Other flags have no meaning yet.
        bytes[32] = 2;
        assert_eq!(read(&mut JitDump::default(), &bytes).len(), 2);
    }

    #[test]
    fn of_functions_that_nobody_asks_for_only_the_place_is_kept_free() {
        let mut file = tempfile("wanted");
        let mut text = String::new();
        for number in 0_u64..100_000 {
            writeln!(text, "{:x} 10 other_{number}", 0x10_0000 + 0x10 * number).unwrap();
        }
        // The second of each pair takes the place of the first, or of a part of it; of the last nothing.
        text += "1000 20 a\n1000 8 b\n2000 20 c\n2018 8 d\n3000 20 e\n3008 0 f\n";
        file.write_all(text.as_bytes()).unwrap();
        let own = remote::Process::open(std::process::id() as i32).unwrap();
        let mut code = GeneratedCode::default();
        code.map.file = Some(file);
        let later = Instant::now() + std::time::Duration::from_secs(60);
        let wanted = [0x1004, 0x1010, 0x2010, 0x3010, 0x10_0005];
        code.read_at(&own, || None, &wanted, later);
        let found = wanted.map(|address| {
            let frame = code.name(address, 1, None)?;
            let Frame::Named(named) = frame else {
                return None;
            };
            Some(named.function.clone())
        });
        let expected = [Some("b"), None, None, Some("e"), Some("other_0")];
        assert_eq!(found.each_ref().map(Option::as_deref), expected);
        assert_eq!(code.len(), 3);
    }

    #[test]
    fn a_map_of_a_gibibyte_is_read_piece_by_piece_and_leaves_room_for_other_names() {
        const LINES: u64 = 100_000;
        const LIMIT: usize = 1000;
        let (mut file, mut text) = (tempfile("large"), String::new());
        for number in 0..LINES {
            writeln!(text, "{:x} 10 function_{number}", 0x10_0000 + 0x10 * number).unwrap();
        }
        file.write_all(text.as_bytes()).unwrap();
        // What is between them has no lines.
        let size = 1 << 30;
        file.write_all_at(b"\n100000 10 other\n2000 10 last\n", size)
            .unwrap();
        let own = remote::Process::open(std::process::id() as i32).unwrap();
        let mut code = GeneratedCode::default();
        code.map.file = Some(file);
        let (mut skipped, mut pieces) = (0, 0);
        while code.map.position < text.len() as u64 {
            let unread = code.update(&own, || None, LIMIT);
            skipped += unread.names;
            pieces += 1;
            assert!(code.map.position <= pieces * CHUNK as u64);
            assert_eq!(code.len(), 750);
        }
        assert!(pieces > 2, "{pieces}");
        assert_eq!(skipped, LINES - 750);
        code.map.position = size - CHUNK as u64;
        let unread = [0, 1].map(|_| code.update(&own, || None, LIMIT).names);
        assert_eq!(unread, [0, 1]);
        // Beyond the limit, code in the place of a known function still has its name.
        let name = |code: &GeneratedCode, address| {
            let Some(Frame::Named(named)) = code.name(address, monotonic(), None) else {
                return None;
            };
            Some(named.function.clone())
        };
        assert_eq!(name(&code, 0x10_0000).as_deref(), Some("other"));
        assert_eq!(name(&code, 0x10_0010).as_deref(), Some("function_1"));
        assert_eq!(name(&code, 0x2000), None);
        let dump = tempfile("beside");
        dump.write_all_at(&jit_dump(), 0).unwrap();
        code.dump.file = Some(dump);
        assert_eq!(code.update(&own, || None, LIMIT), Unread::default());
        assert_eq!(code.len(), 752);
        assert_eq!(name(&code, 0x2000).as_deref(), Some("b"));
    }

    #[test]
    fn there_is_room_for_each_of_many_processes() {
        let mut all = 0;
        for number in 1..=10 {
            let limit = max_functions(all);
            assert_eq!(limit, MAX_FUNCTIONS >> number);
            all += limit;
        }
        assert_eq!(max_functions(MAX_FUNCTIONS + 1), 0);
    }

    #[test]
    fn a_map_that_is_written_again_is_read_from_its_start() {
        let own = remote::Process::open(std::process::id() as i32).unwrap();
        let mut code = GeneratedCode::default();
        let map = tempfile("again");
        code.map.file = Some(map.try_clone().unwrap());
        let name = |code: &GeneratedCode, address| {
            let Some(Frame::Named(named)) = code.name(address, monotonic(), None) else {
                return None;
            };
            Some(named.function.clone())
        };
        let write = |text: &str, is_again: bool, code: &mut GeneratedCode| {
            if is_again {
                map.set_len(0).unwrap();
            }
            let end = map.metadata().unwrap().len();
            map.write_all_at(text.as_bytes(), end).unwrap();
            code.update(&own, || None, 2000);
            assert_eq!(code.map.position, map.metadata().unwrap().len());
        };
        write("1000 10 first\n3000 10 third\n", false, &mut code);
        write("4000 10 fourth\n", false, &mut code);
        assert_eq!(name(&code, 0x4000).as_deref(), Some("fourth"));
        // Longer than before, with a function before others, and other code in the place of one.
        let text = "1000 10 other\n2000 10 second\n3000 10 third\n4000 10 fourth\n5000 10 fifth\n";
        write(text, true, &mut code);
        for (address, expected) in [(0x1000, "other"), (0x2000, "second"), (0x5000, "fifth")] {
            assert_eq!(name(&code, address).as_deref(), Some(expected));
        }
        // Shorter.
        write("6000 10 sixth\n", true, &mut code);
        assert_eq!(name(&code, 0x6000).as_deref(), Some("sixth"));
        // A file that is only appended to is not read again.
        let lines: String = (0..1000)
            .map(|it| format!("{:x} 1 x\n", 0x10000 + it))
            .collect();
        write(&lines, false, &mut code);
        assert!(!code.map.was_rewritten());
        assert_eq!(code.map.last_bytes.len(), MAX_LAST_BYTES);
    }

    /// A file without a name.
    fn tempfile(name: &str) -> File {
        let name = format!("otelctx-perf-map-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut options = File::options();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .unwrap();
        std::fs::remove_file(path).unwrap();
        file
    }

    #[test]
    fn damaged_jit_dumps_end_there_and_are_counted_once() {
        // The magic, and the sizes of the records: none, and those of other records.
        for (damaged, value, functions) in [
            (0, 0, 0),
            (32, 1, 0),
            (44, 0, 0),
            (44, 56, 0),
            (104, 15, 1),
            (160, 0, 1),
        ] {
            let mut bytes = jit_dump();
            bytes[damaged..damaged + 4].copy_from_slice(&u32::to_ne_bytes(value));
            assert_eq!(read(&mut JitDump::default(), &bytes).len(), functions);
            let own = remote::Process::open(std::process::id() as i32).unwrap();
            let mut code = GeneratedCode::default();
            let file = tempfile("damaged");
            file.write_all_at(&bytes, 0).unwrap();
            code.dump.file = Some(file);
            let counted = [0, 1, 2].map(|_| code.update(&own, || None, 2).dumps);
            assert_eq!(counted, [1, 0, 0], "{damaged}");
            assert_eq!(code.finish(2), Unread::default(), "{damaged}");
            assert_eq!(code.len(), functions, "{damaged}");
        }
        // A record of code that was moved, without the addresses.
        let mut bytes = jit_dump();
        bytes[100..104].copy_from_slice(&u32::to_ne_bytes(JitDump::MOVE));
        assert_eq!(read(&mut JitDump::default(), &bytes).len(), 1);
    }

    #[test]
    fn code_that_is_moved_past_the_last_address_is_nowhere() {
        for (to, ends) in [(u64::MAX - 4, vec![u64::MAX]), (u64::MAX - 3, Vec::new())] {
            let mut functions = BTreeMap::new();
            announce(&mut functions, (0x1000, 4), (0, 10), "a");
            let (from, time) = (0x1000, 20);
            let moved = Next::Moved { from, to, time };
            assert!(apply(&mut functions, moved, (10, 30), 3));
            let found: Vec<_> = functions.values().map(|function| function.end).collect();
            assert_eq!(found, ends, "{to:#x}");
        }
    }

    fn announce(
        code: &mut BTreeMap<u64, Function>,
        range: (u64, u64),
        read: (u64, u64),
        name: &str,
    ) {
        let entry = Entry {
            start: range.0,
            size: range.1,
            time: None,
            name: name.as_bytes(),
        };
        assert!(insert(code, &entry, read, 3));
    }

    #[test]
    fn code_in_the_place_of_other_code_has_its_name_from_the_read_on() {
        let mut code = GeneratedCode::default();
        announce(&mut code.functions, (0x1000, 0x100), (0, 10), "a");
        announce(&mut code.functions, (0x1100, 0x100), (0, 10), "b");
        announce(&mut code.functions, (0x1080, 0x10), (10, 20), "c");
        let name = |address, time| {
            let frame = code.name(address, time, None)?;
            let Frame::Named(named) = frame else {
                return None;
            };
            Some(named.function.clone())
        };
        assert_eq!(name(0x1080, 15), None);
        assert_eq!(name(0x1080, 20).as_deref(), Some("c"));
        // What it overlaps is gone.
        assert_eq!(name(0x1000, 20), None);
        assert_eq!(name(0x11ff, 5).as_deref(), Some("b"));
        assert_eq!(name(0x1200, 5), None);
        let java = JitRuntime {
            kind: FrameKind::JVM,
            label: "[Java]",
            module: "libjvm.so",
        };
        let java = code.name(0x1200, 5, Some(java));
        assert!(matches!(java, Some(Frame::Named(it)) if it.function == "[Java]"));
    }

    #[test]
    fn files_that_do_not_exist_are_searched_for_less_and_less_often() {
        let process = remote::Process::open(std::process::id() as i32).unwrap();
        let mut code = GeneratedCode::default();
        let begin = Instant::now();
        let mut searches = 0;
        for _ in 0..1000 {
            let dump = || {
                searches += 1;
                None
            };
            code.update(&process, dump, 1);
        }
        // After 40 ms, 80, and so on, up to 2 s.
        assert!(
            (1..=8 + begin.elapsed().as_secs()).contains(&searches),
            "{searches}"
        );
    }

    #[test]
    fn names_are_bounded() {
        let mut functions = BTreeMap::new();
        let mut add = |start, size, name: &[u8]| {
            let entry = Entry {
                start,
                size,
                time: None,
                name,
            };
            insert(&mut functions, &entry, (0, 0), 1)
        };
        assert!(add(0x1000, 0, b"empty"));
        assert!(add(u64::MAX, 2, b"beyond"));
        assert!(add(0x1000, 0x10, &[b'x'; MAX_NAME + 1]));
        assert!(!add(0x2000, 0x10, b"too many"));
        let Frame::Named(named) = &functions[&0x1000].frame else {
            panic!()
        };
        assert_eq!(named.function.len(), MAX_NAME);
    }
}
