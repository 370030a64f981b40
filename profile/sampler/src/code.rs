//! Determines which files the code of a process is mapped from, for the catalog.
//!
//! With eBPF, the kernel reports each new executable mapping with its time ([`Report`]). Mappings that
//! existed before, and with ptrace all mappings, are read from `/proc/PID/maps` when a sample lies in
//! none that is known.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use otelctx_reader::remote::{self, Device};
use otelctx_sample::{
    Catalog, Frame, FrameKind, Mapping, Module, ModuleFiles, NamedFrame, ProcessId,
};
use otelctx_track::schedule::Backoff;

use crate::monotonic;

/// Maximum number of executable mappings that are kept per process.
const MAX_MAPPINGS: usize = 16 * 1024;
/// Maximum number of programs that a process is known to execute next: between two drains, few execute more than two.
const MAX_NEXT: usize = 16;
/// Maximum number that is copied for a child that may never be sampled: of 4,096 children, 40 MB.
const MAX_COPIED: usize = 256;
/// How long to wait before mappings that newer ones have replaced are searched for again, among all of a process.
const REMOVAL_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of modules that are kept. A machine runs a few thousand files; one that builds
/// programs all day runs more.
const MAX_MODULES: usize = 16 * 1024;

/// What the kernel reports about a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    /// In nanoseconds of `CLOCK_MONOTONIC`.
    pub(crate) time: u64,
    pub(crate) pid: i32,
    pub(crate) change: MemoryChange,
}

/// How a process's executable memory changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum MemoryChange {
    /// A file, or anonymous memory, was mapped executable.
    Mapped(Region),
    /// The process executes another program: all earlier mappings are gone.
    Exec,
    /// The process started as a copy of this one.
    Forked { parent: i32 },
    /// Its first thread ended.
    Exit,
}

/// A region of memory, and what is mapped there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) file: FileId,
    /// As in `/proc/PID/maps`.
    pub(crate) path: String,
}

impl Region {
    fn of(mapping: &remote::Mapping<'_>) -> Self {
        Self {
            start: mapping.start,
            end: mapping.end,
            offset: mapping.offset,
            file: FileId::Inode(mapping.device, mapping.inode),
            path: String::from_utf8_lossy(mapping.name).into_owned(),
        }
    }
}

/// Identifies a mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileId {
    /// Its build ID, as the kernel read it from the file.
    BuildId(Vec<u8>),
    /// Its device and inode; zeroes for anonymous memory.
    Inode(Device, u64),
}

/// A mapping of a process.
#[derive(Clone, Debug)]
struct Mapped {
    start: u64,
    end: u64,
    offset: u64,
    module: Arc<Module>,
    /// Like [`Mapping::since`].
    since: u64,
}

impl Mapped {
    fn file_name(&self) -> &str {
        self.module.path.rsplit('/').next().unwrap_or_default()
    }
}

/// The executable memory of a process.
#[derive(Debug)]
pub(crate) struct CodeMappings {
    /// In the order in which they were found.
    mappings: Vec<Mapped>,
    /// How many of them the catalog has.
    in_catalog: usize,
    /// The memory that they cover.
    ranges: Ranges,
    /// Those of the programs that the process executes next, with the times of the reports: the kernel has reported them
    /// already, but samples of earlier programs may still come.
    next: VecDeque<(u64, Self)>,
    /// Whether there is memory in which a runtime may have generated code.
    has_generated: bool,
    /// Whether more of it, or a file that announces it, was mapped since this was last asked.
    has_new_generated: bool,
    /// The process that this one started as a copy of, and when, until it is needed.
    parent: Option<(i32, u64)>,
    /// When `/proc/PID/maps` was last read, in nanoseconds of `CLOCK_MONOTONIC`; 0 if never.
    last_read: u64,
    reads: Backoff,
    /// Before that, replaced mappings are not searched for again.
    next_removal: Instant,
}

/// Memory, as the ends of its parts by their starts. Adding to it takes little time, in whatever order.
#[derive(Clone, Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn contain(&self, start: u64, end: u64) -> bool {
        let before = self.0.range(..=start).next_back();
        before.is_some_and(|(_, known)| end <= *known)
    }

    fn add(&mut self, mut start: u64, mut end: u64) {
        // Parts that it touches become one with it, from the last one on.
        while let Some((&first, &last)) = self.0.range(..=end).next_back()
            && start <= last
        {
            start = start.min(first);
            end = end.max(last);
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }
}

impl Default for CodeMappings {
    fn default() -> Self {
        let now = Instant::now();
        Self {
            mappings: Vec::new(),
            in_catalog: 0,
            ranges: Ranges::default(),
            next: VecDeque::new(),
            has_generated: false,
            has_new_generated: false,
            parent: None,
            last_read: 0,
            reads: Backoff::new(now),
            next_removal: now,
        }
    }
}

impl CodeMappings {
    /// Those of a process that starts as a copy of `parent`.
    pub(crate) fn forked(parent: i32, time: u64) -> Self {
        Self {
            parent: Some((parent, time)),
            ..Self::default()
        }
    }

    /// Whether they may be copied for each child, before any is sampled.
    pub(crate) fn is_small(&self) -> bool {
        self.mappings.len() <= MAX_COPIED
    }

    /// Those of a process that starts as a copy of this one, which may have ended before they are needed.
    pub(crate) fn fork(&self) -> Self {
        // The kernel's reports come in order: it has executed all programs that were reported.
        let forked = self.next.back().map_or(self, |(_, program)| program);
        Self {
            mappings: forked.mappings.clone(),
            ranges: forked.ranges.clone(),
            has_generated: forked.has_generated,
            parent: forked.parent,
            ..Self::default()
        }
    }

    fn contain(&self, address: u64) -> bool {
        let end = address.checked_add(1);
        end.is_some_and(|end| self.ranges.contain(address, end))
    }

    fn add(&mut self, new: Mapped) -> Added {
        if new.start >= new.end || self.knows(&new) {
            return Added::No;
        }
        if self.mappings.len() >= MAX_MAPPINGS {
            let now = Instant::now();
            if now < self.next_removal {
                return Added::TooMany;
            }
            self.next_removal = now + REMOVAL_INTERVAL;
            self.remove_replaced();
            if self.mappings.len() >= MAX_MAPPINGS {
                return Added::TooMany;
            }
        }
        self.ranges.add(new.start, new.end);
        let is_generated = is_generated(&new.module);
        self.has_generated |= is_generated;
        self.has_new_generated |= is_generated || is_jit_dump(&new.module);
        self.mappings.push(new);
        Added::Yes
    }

    /// Whether the newest mapping at these addresses has the same content.
    fn knows(&self, new: &Mapped) -> bool {
        if !self.ranges.contain(new.start, new.end) {
            return false;
        }
        let overlaps = |known: &&Mapped| known.start < new.end && new.start < known.end;
        self.mappings
            .iter()
            .rev()
            .find(overlaps)
            .is_some_and(|known| {
                let distance = new.start.wrapping_sub(known.start);
                let has_same_bytes = || new.offset.wrapping_sub(known.offset) == distance;
                known.start <= new.start
                    && new.end <= known.end
                    && known.module == new.module
                    && (!new.module.has_file() || has_same_bytes())
            })
    }

    /// Notes what the kernel has reported: `change` at `time`. Returns false if the mapping could not be
    /// kept.
    pub(crate) fn apply(
        &mut self,
        time: u64,
        change: MemoryChange,
        process: Option<&remote::Process>,
        modules: &mut Modules,
    ) -> bool {
        match change {
            MemoryChange::Mapped(region) => {
                let mapped = Mapped {
                    start: region.start,
                    end: region.end,
                    offset: region.offset,
                    module: modules.find(process, region),
                    since: time,
                };
                let added = match self.next.back_mut() {
                    Some((_, next)) => next.add(mapped),
                    None => self.add(mapped),
                };
                added != Added::TooMany
            }
            MemoryChange::Exec => {
                if self.next.len() == MAX_NEXT {
                    self.next.pop_front();
                }
                self.next.push_back((time, Self::default()));
                true
            }
            MemoryChange::Forked { .. } | MemoryChange::Exit => true,
        }
    }

    /// Takes over the mappings that the process had as a copy of its parent. `of` returns a process's
    /// mappings.
    pub(crate) fn inherit<'a>(&mut self, of: impl FnOnce(i32) -> Option<&'a Self>) {
        let Some((parent, time)) = self.parent.take() else {
            return;
        };
        let inherited = of(parent).map_or(&[][..], |parent| &parent.mappings);
        let inherited = inherited.iter().filter(|mapped| mapped.since <= time);
        let own = std::mem::take(&mut self.mappings);
        self.ranges = Ranges::default();
        for mapped in inherited.chain(&own) {
            self.add(mapped.clone());
        }
    }

    /// Notes that the process has executed another program, at `time` or before: the last one that the kernel had
    /// reported until that time.
    pub(crate) fn exec(&mut self, time: u64) {
        let mut next = std::mem::take(&mut self.next);
        *self = Self::default();
        let later = next.partition_point(|(reported, _)| *reported <= time);
        if let Some((_, program)) = next.drain(..later).next_back() {
            *self = program;
        }
        self.next = next;
    }

    /// Whether the kernel has reported an exec that was not noted yet.
    pub(crate) fn next_is_reported(&self) -> bool {
        !self.next.is_empty()
    }

    /// Notes that the next catalog is empty.
    pub(crate) fn reset_catalog(&mut self) {
        self.in_catalog = 0;
        self.remove_replaced();
    }

    /// Removes mappings that newer ones have replaced as a whole.
    fn remove_replaced(&mut self) {
        let mut newer = Ranges::default();
        let mut in_catalog = 0;
        let mut kept = Vec::new();
        for (index, mapped) in self.mappings.drain(..).enumerate().rev() {
            let is_replaced = newer.contain(mapped.start, mapped.end);
            // What the catalog does not have may belong to a sample that is yet to come.
            if !is_replaced || index >= self.in_catalog {
                newer.add(mapped.start, mapped.end);
                in_catalog += usize::from(index < self.in_catalog);
                kept.push(mapped);
            }
        }
        kept.reverse();
        (self.mappings, self.in_catalog) = (kept, in_catalog);
    }

    /// Whether a runtime may have generated the code at this address now.
    pub(crate) fn is_generated(&self, address: u64) -> bool {
        let contains = |mapped: &&Mapped| mapped.start <= address && address < mapped.end;
        self.has_generated
            && self
                .mappings
                .iter()
                .rev()
                .find(contains)
                .is_some_and(|mapped| is_generated(&mapped.module))
    }

    /// Where files are mapped whose paths match.
    pub(crate) fn mapped_files(&self, matches: impl Fn(&str) -> bool) -> Vec<Range<u64>> {
        let mapped = self.mappings.iter().filter(|it| matches(&it.module.path));
        mapped.map(|mapped| mapped.start..mapped.end).collect()
    }

    /// Whether memory in which a runtime may generate code was mapped since the last call: a runtime that
    /// begins to announce its code then does so.
    pub(crate) fn take_new_generated(&mut self) -> bool {
        std::mem::take(&mut self.has_new_generated)
    }

    /// Opens the jitdump file that the process has mapped to announce it.
    pub(crate) fn open_jit_dump(&self, process: &remote::Process) -> Option<File> {
        let mut mappings = self.mappings.iter().rev();
        let mapped = mappings.find(|mapped| is_jit_dump(&mapped.module))?;
        let module = &mapped.module;
        let device = Device {
            major: (module.device >> 32) as u32,
            minor: module.device as u32,
        };
        let range = (mapped.start, mapped.end);
        process.mapped_file(range, module.path.as_bytes(), device, module.inode)
    }

    /// The runtime whose library or program is mapped.
    pub(crate) fn runtime(&self) -> Option<JitRuntime<'_>> {
        let known = self.mappings.iter().find_map(|mapped| {
            let module = mapped.file_name();
            let (kind, label) = match module {
                "libjvm.so" => (FrameKind::JVM, "[Java]"),
                "libcoreclr.so" | "mono" | "mono-sgen" => (FrameKind::DOTNET, "[.NET]"),
                "node" | "nodejs" | "chromium" | "chrome" | "electron" | "deno" => {
                    (FrameKind::V8JS, JAVASCRIPT)
                }
                // Its engine is not V8.
                "bun" | "bun.exe" => (FrameKind::NATIVE, JAVASCRIPT),
                "beam.smp" => (FrameKind::BEAM, "[BEAM]"),
                name => {
                    let name = name.strip_prefix("lib").unwrap_or(name);
                    // Their versions follow.
                    let begins = |it: &&(&str, FrameKind, &str)| name.starts_with(it.0);
                    let (_, kind, label) = *VERSIONED.iter().find(begins)?;
                    (kind, label)
                }
            };
            Some(JitRuntime {
                kind,
                label,
                module,
            })
        });
        known.or_else(|| self.program_with_addons())
    }

    /// A copy of Node.js with another name, as single executable applications are: it has loaded an addon. The program is
    /// what is mapped at the lowest address.
    fn program_with_addons(&self) -> Option<JitRuntime<'_>> {
        let mut names = self.mappings.iter().map(Mapped::file_name);
        if !names.any(|name| name.ends_with(".node")) {
            return None;
        }
        let files = self.mappings.iter().filter(|it| !is_generated(&it.module));
        let program = files.min_by_key(|mapped| mapped.start)?;
        Some(JitRuntime {
            kind: FrameKind::V8JS,
            label: JAVASCRIPT,
            module: program.file_name(),
        })
    }

    /// Adds the mappings to the catalog. If one of these frames lies in none of them, reads the mappings
    /// that the process has now.
    pub(crate) fn explain(
        &mut self,
        id: ProcessId,
        process: Option<&remote::Process>,
        stack: &[Frame],
        modules: &mut Modules,
        catalog: &mut Catalog,
    ) {
        let mut addresses = stack.iter().filter_map(Frame::address);
        if let Some(process) = process
            && !addresses.all(|address| self.contain(address))
        {
            let start = Instant::now();
            if self.reads.is_due(start) {
                let new = self.read(process, modules);
                let took = start.elapsed();
                self.reads.done(start + took, took, new);
            }
        }
        for mapped in &self.mappings[self.in_catalog..] {
            modules.need(process, (mapped.start, mapped.end), &mapped.module);
            let mapping = Mapping {
                start: mapped.start,
                end: mapped.end,
                offset: mapped.offset,
                module: catalog.module(Module::clone(&mapped.module)),
                since: mapped.since,
            };
            catalog.process_mut(id).mappings.push(mapping);
        }
        self.in_catalog = self.mappings.len();
    }

    /// Reads the mappings, and adds the unknown ones. Returns whether there were any.
    pub(crate) fn read(&mut self, process: &remote::Process, modules: &mut Modules) -> bool {
        let since = std::mem::replace(&mut self.last_read, monotonic());
        let mut count = 0;
        let mut any = false;
        // A process that has ended has no mappings.
        let _ = process.executable_mappings(&mut |mapping| {
            let region = Region::of(mapping);
            let mapped = Mapped {
                start: mapping.start,
                end: mapping.end,
                offset: mapping.offset,
                module: modules.find(Some(process), region),
                since,
            };
            any |= self.add(mapped) == Added::Yes;
            count += 1;
            if count < MAX_MAPPINGS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        any
    }
}

/// Label of JavaScript's code. Its engines are part of many programs, so its frames name the program.
const JAVASCRIPT: &str = "[JavaScript]";

/// Runtimes whose program and library have a name that starts with this.
const VERSIONED: [(&str, FrameKind, &str); 5] = [
    ("python", FrameKind::CPYTHON, "[Python]"),
    ("ruby", FrameKind::RUBY, "[Ruby]"),
    ("php", FrameKind::PHP, "[PHP]"),
    ("luajit", FrameKind::NATIVE, "[Lua]"),
    ("monosgen", FrameKind::DOTNET, "[.NET]"),
];

/// A language runtime that generates code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JitRuntime<'m> {
    pub(crate) kind: FrameKind,
    /// Label of its code, such as `[Java]`.
    pub(crate) label: &'static str,
    /// The file name of its library or program.
    pub(crate) module: &'m str,
}

impl JitRuntime<'_> {
    /// The frame of a function without an announced name.
    pub(crate) fn unnamed(&self) -> NamedFrame {
        let function = match self.label {
            JAVASCRIPT => format!("[JavaScript in {}]", self.module),
            label => label.to_owned(),
        };
        NamedFrame {
            kind: self.kind,
            function,
            ..NamedFrame::default()
        }
    }
}

/// Whether a runtime may generate code in memory of this kind: without a file, or in a file without a path.
pub(crate) fn is_generated(module: &Module) -> bool {
    match &*module.path {
        "[vdso]" | "[vsyscall]" => false,
        // What processes share without a file (mm/shmem.c, shmem_zero_setup).
        "/dev/zero" | "/dev/zero (deleted)" => true,
        path => !module.has_file() || path.starts_with("/memfd:"),
    }
}

/// Whether this is the file in which a runtime announces its code.
fn is_jit_dump(module: &Module) -> bool {
    let name = module.path.rsplit('/').next().unwrap_or_default();
    name.starts_with("jit-") && name.ends_with(".dump")
}

/// What became of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Added {
    Yes,
    /// It is known, or empty.
    No,
    TooMany,
}

/// The modules of all processes, which share most files, and the files that are kept open.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    known: HashSet<Arc<Module>, RandomState>,
    /// Build IDs by device and inode. The inode of a file that is not kept open may be reused.
    build_ids: HashMap<(Device, u64), Vec<u8>, RandomState>,
    files: ModuleFiles,
}

impl Modules {
    pub(crate) fn files(&self) -> &ModuleFiles {
        &self.files
    }

    /// Notes that the file of a module is needed: its process is sampled.
    fn need(&self, process: Option<&remote::Process>, range: (u64, u64), module: &Module) {
        let is_kept = self.files.need(module);
        if !is_kept && !module.build_id.is_empty() && !self.files.had_no_room(module) {
            self.keep(process, range, module);
            self.files.need(module);
        }
    }

    /// The module of a region of a process. Keeps its file open as a spare one.
    fn find(&mut self, process: Option<&remote::Process>, region: Region) -> Arc<Module> {
        let range = (region.start, region.end);
        let mut module = Module {
            path: region.path,
            ..Module::default()
        };
        match region.file {
            FileId::BuildId(build_id) => {
                module.build_id = build_id;
                if !self.files.contains(&module) {
                    self.keep(process, range, &module);
                }
            }
            FileId::Inode(_, 0) if module.path.is_empty() => "//anon".clone_into(&mut module.path),
            FileId::Inode(_, 0) => {}
            FileId::Inode(device, inode) => {
                self.identify(process, range, device, inode, &mut module);
            }
        }
        self.intern(module)
    }

    /// Opens the file of a module with a build ID, and keeps it open as a spare one.
    fn keep(&self, process: Option<&remote::Process>, range: (u64, u64), module: &Module) {
        let (path, build_id) = (&module.path, &module.build_id);
        let mapped = process
            .and_then(|process| process.mapped_file_by_build_id(range, path.as_bytes(), build_id));
        let at_path = || remote::module::open_by_build_id(Path::new(path), build_id);
        if let Some(file) = mapped.or_else(at_path) {
            self.files.keep_spare(module, file);
        }
    }

    /// Identifies the file of a module: by its build ID, otherwise by device and inode.
    fn identify(
        &mut self,
        process: Option<&remote::Process>,
        range: (u64, u64),
        device: Device,
        inode: u64,
        module: &mut Module,
    ) {
        if let Some(build_id) = self.build_ids.get(&(device, inode)) {
            module.build_id.clone_from(build_id);
            return;
        }
        let mapped = process
            .and_then(|process| process.mapped_file(range, module.path.as_bytes(), device, inode));
        let at_path = || remote::module::open_mapped(Path::new(&module.path), device, inode);
        let file = mapped.or_else(at_path);
        module.build_id = file
            .as_ref()
            .and_then(remote::module::build_id)
            .unwrap_or_default();
        // On a device of subvolumes or layers, several files can have the same inode number.
        let of_stat = file.as_ref().and_then(|it| Device::of_file(it).ok());
        let of_stat = of_stat.unwrap_or(device);
        if module.build_id.is_empty() {
            module.device = u64::from(of_stat.major) << 32 | u64::from(of_stat.minor);
            module.inode = inode;
        } else if of_stat == device {
            if self.build_ids.len() >= MAX_MODULES {
                self.build_ids.clear();
            }
            self.build_ids
                .insert((device, inode), module.build_id.clone());
        }
        if let Some(file) = file {
            self.files.keep_spare(module, file);
        }
    }

    fn intern(&mut self, module: Module) -> Arc<Module> {
        if let Some(known) = self.known.get(&module) {
            return Arc::clone(known);
        }
        if self.known.len() >= MAX_MODULES {
            self.known.clear();
        }
        let module = Arc::new(module);
        self.known.insert(Arc::clone(&module));
        module
    }

    /// Clears what was remembered, for a new catalog. Files stay open.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
        self.build_ids.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use otelctx_fixtures::python::Interpreter;
    use otelctx_fixtures::{Compiler, Node, Target, program_source};

    use super::*;

    fn region(start: u64, end: u64, path: &str) -> Region {
        let build_id = match path {
            "" => FileId::Inode(Device { major: 0, minor: 0 }, 0),
            path => FileId::BuildId(path.as_bytes().to_vec()),
        };
        Region {
            start,
            end,
            offset: 0x1000,
            file: build_id,
            path: path.to_owned(),
        }
    }

    struct Reported {
        code: CodeMappings,
        modules: Modules,
        time: u64,
    }

    impl Reported {
        fn new() -> Self {
            Self {
                code: CodeMappings::default(),
                modules: Modules::default(),
                time: 0,
            }
        }

        fn change(&mut self, change: MemoryChange) -> bool {
            self.time += 10;
            self.code.apply(self.time, change, None, &mut self.modules)
        }

        fn map(&mut self, start: u64, end: u64, path: &str) -> bool {
            self.change(MemoryChange::Mapped(region(start, end, path)))
        }

        /// Path and time of each mapping.
        fn all(&self) -> Vec<(&str, u64)> {
            let all = self.code.mappings.iter();
            all.map(|it| (&*it.module.path, it.since)).collect()
        }
    }

    #[test]
    fn code_that_is_mapped_again_is_one_mapping_and_other_code_is_another() {
        let mut reported = Reported::new();
        for path in ["a", "a", "b", "a"] {
            assert!(reported.map(0x1000, 0x3000, path));
        }
        assert_eq!(reported.all(), [("a", 10), ("b", 30), ("a", 40)]);
        // A part of it, as after mprotect(2), but with the offset of its beginning.
        assert!(reported.map(0x2000, 0x3000, "a"));
        assert_eq!(reported.all().len(), 4);
        // Memory without a file has no offset that counts.
        reported.map(0x8000, 0xa000, "");
        reported.map(0x9000, 0xa000, "");
        assert_eq!(reported.all()[4..], [("//anon", 60)]);
        assert!(reported.code.contain(0x2fff) && !reported.code.contain(0x3000));
    }

    /// The runtime that the mappings of a process show: its kind, its name, and that of a function without one.
    fn runtime(target: &Target) -> Option<(FrameKind, &'static str, String)> {
        let process = remote::Process::open(target.pid()).unwrap();
        let mut code = CodeMappings::default();
        assert!(code.read(&process, &mut Modules::default()));
        let runtime = code.runtime()?;
        let frame = runtime.unnamed();
        assert!(
            frame.is_unnamed() && frame.kind == runtime.kind,
            "{frame:?}"
        );
        Some((runtime.kind, runtime.label, frame.function))
    }

    #[test]
    fn runtimes_are_known_by_what_is_mapped() {
        if let Some(node) = Node::find() {
            let target = Target::spawn(node.command(&[], "spinning.js").arg("600000"));
            let function = "[JavaScript in node]".to_owned();
            let expected = Some((FrameKind::V8JS, "[JavaScript]", function));
            assert_eq!(runtime(&target), expected);
        }
        for interpreter in Interpreter::with_version("3.12") {
            let target = Target::spawn(interpreter.command("spinning.py").arg("600000"));
            let expected = Some((FrameKind::CPYTHON, "[Python]", "[Python]".to_owned()));
            assert_eq!(runtime(&target), expected, "{interpreter}");
        }
        // Its compiler of source files is not in every package.
        let has_java = Command::new("javac").arg("-version").output();
        if has_java.is_ok_and(|it| it.status.success()) {
            let mut command = Command::new("java");
            command.arg(program_source("spinning.java")).arg("600000");
            let target = Target::spawn(&mut command);
            let expected = Some((FrameKind::JVM, "[Java]", "[Java]".to_owned()));
            assert_eq!(runtime(&target), expected);
        } else {
            eprintln!("skipped: there is no Java");
        }
        let sources = ["threads.c", "variable.c"];
        if let Some(program) = Compiler::gcc().program(&sources, &["-DLINKED", "-rdynamic"]) {
            let target = Target::spawn(Command::new(program).arg("workers=1"));
            assert_eq!(runtime(&target), None);
        }
    }

    #[test]
    fn runtimes_are_known_by_the_names_of_their_files() {
        for (path, kind, function) in [
            ("/usr/bin/mono-sgen", "dotnet", "[.NET]"),
            ("/usr/lib/libmonosgen-2.0.so.1.0.0", "dotnet", "[.NET]"),
            ("/usr/share/dotnet/libcoreclr.so", "dotnet", "[.NET]"),
            ("/opt/deno", "v8js", "[JavaScript in deno]"),
            ("/opt/bun.exe", "native", "[JavaScript in bun.exe]"),
            ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", "beam", "[BEAM]"),
            ("/usr/lib/libruby-3.1.so.3.1.2", "ruby", "[Ruby]"),
            ("/usr/bin/php8.2", "php", "[PHP]"),
            ("/usr/lib/libluajit-5.1.so.2.1.0", "native", "[Lua]"),
            ("/usr/lib/libpython3.14.so.1.0", "cpython", "[Python]"),
        ] {
            let mut reported = Reported::new();
            reported.map(0x1000, 0x2000, "/usr/lib/libc.so.6");
            reported.map(0x8000, 0x9000, path);
            let runtime = reported.code.runtime().unwrap();
            assert_eq!(runtime.kind.name(), kind, "{path}");
            assert_eq!(runtime.unnamed().function, function, "{path}");
        }
    }

    #[test]
    fn a_program_that_has_loaded_an_addon_is_a_copy_of_node() {
        let function = |paths: [&str; 3]| {
            let mut reported = Reported::new();
            for (start, path) in (1..).zip(paths) {
                reported.map(start * 0x1000, (start + 1) * 0x1000, path);
            }
            let runtime = reported.code.runtime()?;
            Some((runtime.kind.name(), runtime.unnamed().function))
        };
        let addon = "/lib/otelctx.node";
        let node = |program: &str| Some(("v8js", format!("[JavaScript in {program}]")));
        assert_eq!(function(["", "/opt/shop", addon]), node("shop"));
        assert_eq!(function([addon, "/opt/shop", "/opt/node"]), node("node"));
        assert_eq!(function(["", "/opt/shop", "/lib/libc.so.6"]), None);
    }

    #[test]
    fn code_that_a_runtime_may_have_generated_is_new_once() {
        let mut reported = Reported::new();
        let mut is_new = |start: u64, path: &str| {
            reported.map(start, start + 0x1000, path);
            reported.code.take_new_generated()
        };
        assert!(!is_new(0x1000, "/lib/a.so"));
        assert!(is_new(0x8000, ""));
        assert!(!is_new(0x8000, ""));
        assert!(is_new(0x9000, ""));
        assert!(is_new(0xf000, "/tmp/jit-7.dump"));
        assert!(is_new(0x1_3000, "/dev/zero (deleted)"));
        assert!(!is_new(0x1_1000, "/lib/b.so"));
    }

    #[test]
    fn a_program_keeps_its_mappings_until_the_sampler_comes_to_the_exec() {
        let mut reported = Reported::new();
        reported.map(0x1000, 0x3000, "old");
        reported.change(MemoryChange::Exec);
        reported.map(0x1000, 0x3000, "new");
        assert_eq!(reported.all(), [("old", 10)]);
        assert!(reported.code.next_is_reported());
        reported.code.exec(35);
        assert_eq!(reported.all(), [("new", 30)]);
        // Without a report, nothing is known of the next program.
        reported.code.exec(40);
        assert_eq!(reported.all(), []);
    }

    #[test]
    fn programs_that_execute_each_other_between_two_drains_have_their_own_mappings() {
        let reported = || {
            let mut reported = Reported::new();
            for path in ["first", "second", "third"] {
                reported.change(MemoryChange::Exec);
                reported.map(0x1000, 0x3000, path);
            }
            reported
        };
        let mut code = reported();
        for (time, expected) in [
            (15, ("first", 20)),
            (35, ("second", 40)),
            (55, ("third", 60)),
        ] {
            code.code.exec(time);
            assert_eq!(code.all(), [expected]);
        }
        assert!(!code.code.next_is_reported());
        // The event of the second one was lost.
        let mut code = reported();
        code.code.exec(15);
        code.code.exec(55);
        assert_eq!(code.all(), [("third", 60)]);
        for _ in 0..2 * MAX_NEXT {
            code.change(MemoryChange::Exec);
        }
        assert_eq!(code.code.next.len(), MAX_NEXT);
    }

    #[test]
    fn a_copy_has_what_its_parent_had_at_that_time() {
        let mut parent = Reported::new();
        parent.map(0x1000, 0x3000, "before");
        let mut child = Reported::new();
        child.code = CodeMappings::forked(7, 15);
        parent.map(0x5000, 0x6000, "after");
        child.map(0x8000, 0x9000, "own");
        child.code.inherit(|pid| (pid == 7).then_some(&parent.code));
        assert_eq!(child.all(), [("before", 10), ("own", 10)]);
        assert!(child.code.contain(0x1000) && child.code.contain(0x8000));
        assert!(!child.code.contain(0x5000));
    }

    /// A process may have ended before its child is sampled, and was not sampled itself.
    #[test]
    fn a_copy_of_a_copy_has_what_both_had() {
        let mut first = Reported::new();
        first.map(0x1000, 0x3000, "first");
        let mut second = Reported::new();
        second.code = CodeMappings::forked(7, 15);
        second.map(0x8000, 0x9000, "second");
        let mut third = Reported::new();
        third.code = second.code.fork();
        second.map(0xa000, 0xb000, "after");
        third.code.inherit(|pid| (pid == 7).then_some(&first.code));
        assert_eq!(third.all(), [("first", 10), ("second", 10)]);
        assert!(third.code.contain(0x1000) && third.code.contain(0x8000));

        // Of what it executed, nothing is the first one's.
        second.change(MemoryChange::Exec);
        second.map(0x1000, 0x2000, "program");
        third.code = second.code.fork();
        third.code.inherit(|_| unreachable!());
        let [("program", _)] = third.all()[..] else {
            panic!("{:?}", third.all())
        };
    }

    #[test]
    fn ranges_are_what_was_added() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (40, 50), (20, 25), (5, 8), (24, 41), (60, 70)] {
            ranges.add(start, end);
        }
        let all: Vec<_> = ranges.0.clone().into_iter().collect();
        assert_eq!(all, [(5, 8), (10, 50), (60, 70)]);
        assert!(ranges.contain(10, 50) && ranges.contain(5, 8) && ranges.contain(61, 62));
        assert!(!ranges.contain(7, 9) && !ranges.contain(49, 51) && !ranges.contain(0, 1));
    }

    #[test]
    fn mappings_are_bounded_and_replaced_ones_make_room() {
        let mut reported = Reported::new();
        for number in 0..MAX_MAPPINGS as u64 {
            assert!(reported.map(number << 16, (number << 16) + 0x1000, "a"));
        }
        assert!(!reported.map(1 << 40, (1 << 40) + 0x1000, "a"));
        // Other code at known addresses replaces what was there.
        reported.code.mappings.pop();
        reported.code.in_catalog = MAX_MAPPINGS - 1;
        assert!(reported.map(0, 0x1000, "b"));
        // It is not searched for at each report.
        reported.code.next_removal = Instant::now() + Duration::from_secs(3600);
        assert!(!reported.map(1 << 40, (1 << 40) + 0x1000, "a"));
        reported.code.next_removal = Instant::now();
        assert!(reported.map(1 << 40, (1 << 40) + 0x1000, "a"));
        assert_eq!(reported.code.mappings.len(), MAX_MAPPINGS);
        assert_eq!(reported.code.in_catalog, MAX_MAPPINGS - 2);
    }
}
