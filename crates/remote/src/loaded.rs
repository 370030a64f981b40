//! The ELF modules that a process has loaded, alive or in a core file.

use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Instant;

use crate::arch::Machine;
use crate::elf::{self, Source};
use crate::mappings::{Mapping, Scan, ScanOptions, Walk};
use crate::module::{Module, ModuleCache};
use crate::{Device, Error, Memory, Process};

/// Modules that are looked at in one process; browsers load a few hundred.
const MAX_MODULES: usize = 16 * 1024;

/// Bytes of the names of these modules; a path has at most 4096, each at most four when escaped.
const MAX_NAMES: usize = 8 << 20;

/// Bytes that are read of the modules of one process, some hundred times what the tables of a
/// large browser have: about half a second's work. What is known of a file costs nothing.
const MAX_COST: u64 = 1 << 30;

/// What a process has mapped: it is alive, or this is its core file.
pub trait AddressSpace {
    /// Calls `visit` for each mapping until it breaks, in the order of their addresses.
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error>;

    /// Calls `visit` for each mapping of a file, in the order of their addresses. One that is not
    /// executable need not have its name.
    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        let walk = self.mappings(&mut |mapping| {
            if mapping.inode != 0 {
                visit(mapping);
            }
            ControlFlow::Continue(())
        });
        walk.map(drop)
    }

    /// When to give up looking through its modules: [`Error::Deadline`]. Never, if it does not say.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Opens the very file that a mapping shows, by the mapping's range, name, device and inode.
    /// If it cannot be had what is loaded must do; the reason is told where that does not do
    /// either.
    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>>;

    /// The architecture that it runs on.
    fn machine(&self) -> Machine;

    /// What to call it in a message.
    fn name(&self) -> OsString;
}

impl AddressSpace for Process {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        Process::mappings(self, visit)
    }

    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        // Without limits it comes to their end.
        Process::file_mappings(self, ScanOptions::default(), visit).map(drop)
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.open_mapped_file(range, name, device, inode)
            .ok_or(None)
    }

    fn machine(&self) -> Machine {
        Machine::own()
    }

    fn name(&self) -> OsString {
        OsString::from(format!("process {}", self.pid()))
    }
}

/// A process that is looked at for a limited time.
#[derive(Debug, Clone, Copy)]
pub struct Within<'p> {
    /// The process.
    pub process: &'p Process,
    /// When to give up.
    pub deadline: Option<Instant>,
    /// See [`ScanOptions::text`].
    pub text: bool,
}

impl AddressSpace for Within<'_> {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        self.process.mappings(visit)
    }

    fn file_mappings(&self, visit: &mut dyn FnMut(&Mapping<'_>)) -> Result<(), Error> {
        let reading = ScanOptions {
            max_mappings: None,
            deadline: self.deadline,
            text: self.text,
        };
        match self.process.file_mappings(reading, visit)? {
            Scan::Complete(()) => Ok(()),
            Scan::DeadlinePassed | Scan::TooMany => Err(late(self)),
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.process.mapped_file(range, name, device, inode)
    }

    fn machine(&self) -> Machine {
        AddressSpace::machine(self.process)
    }

    fn name(&self) -> OsString {
        AddressSpace::name(self.process)
    }
}

fn late(space: &dyn AddressSpace) -> Error {
    let name = space.name().to_string_lossy().into_owned();
    Error::Deadline { name }
}

/// A module and where it is.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) module: Arc<Module>,
    /// What is added to the module's addresses.
    pub(crate) bias: u64,
    /// The name of its mapping.
    pub(crate) name: OsString,
}

impl Loaded {
    /// Whether an address of the process lies inside of the module.
    pub(crate) fn contains(&self, address: u64) -> bool {
        let start = self.bias.wrapping_add(self.module.first_load.address);
        let end = self.bias.wrapping_add(self.module.end);
        (start..end).contains(&address)
    }
}

/// What the mappings show: the modules, and those that could not be read with the reason.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) loaded: Vec<Loaded>,
    pub(crate) unreadable: Vec<(OsString, String)>,
}

/// Mappings of one file that follow one another: what a dynamic linker makes of a module. Memory
/// without a file (zeroed data) may lie between them.
#[derive(Debug)]
struct Run {
    start: u64,
    end: u64,
    /// File offset of the last mapping.
    last_offset: u64,
    device: Device,
    inode: u64,
    /// That of the first executable mapping.
    name: Vec<u8>,
    /// Address and file offset of the first executable mapping. Unlike those in front of it, which
    /// a symbolizer may have put there, it is the module's for sure.
    code: Option<(u64, u64)>,
}

impl Run {
    fn new(mapping: &Mapping<'_>) -> Self {
        Run {
            start: mapping.start,
            end: mapping.end,
            last_offset: mapping.offset,
            device: mapping.device,
            inode: mapping.inode,
            name: name(mapping),
            code: code(mapping),
        }
    }

    /// Whether the mapping belongs to the same loaded module: the same file, further on in it.
    /// Small segments share a page of the file, which is mapped for each of them.
    fn takes(&self, mapping: &Mapping<'_>) -> bool {
        self.inode == mapping.inode
            && self.device == mapping.device
            && mapping.offset >= self.last_offset
    }
}

/// That of an executable mapping: others need not have theirs.
fn name(mapping: &Mapping<'_>) -> Vec<u8> {
    match mapping.permissions.execute {
        true => mapping.name.to_vec(),
        false => Vec::new(),
    }
}

fn code(mapping: &Mapping<'_>) -> Option<(u64, u64)> {
    let executable = mapping.permissions.execute;
    executable.then_some((mapping.start, mapping.offset))
}

/// Finds the modules: runs of mappings of one file of which one is executable.
fn runs(space: &dyn AddressSpace) -> Result<(Vec<Run>, u64), Error> {
    let mut runs = Vec::new();
    let mut left_out = 0;
    let mut names = 0;
    let mut current: Option<Run> = None;
    let mut keep = |run: Option<Run>| {
        if let Some(run) = run.filter(|run| run.code.is_some()) {
            names += run.name.len();
            if runs.len() < MAX_MODULES && names <= MAX_NAMES {
                runs.push(run)
            } else {
                left_out += 1
            }
        }
    };
    space.file_mappings(&mut |mapping| match &mut current {
        Some(run) if run.takes(mapping) => {
            run.last_offset = mapping.offset;
            if run.code.is_none() {
                run.name = name(mapping);
                run.code = code(mapping);
            }
        }
        current => keep(current.replace(Run::new(mapping))),
    })?;
    keep(current);
    Ok((runs, left_out))
}

/// Reads what every module of the process says about the thread-local variable `name`.
pub(crate) fn modules(
    space: &dyn AddressSpace,
    memory: &dyn Memory,
    cache: &mut ModuleCache,
    name: &str,
) -> Result<Modules, Error> {
    modules_within(MAX_COST, space, memory, cache, name)
}

fn modules_within(
    limit: u64,
    space: &dyn AddressSpace,
    memory: &dyn Memory,
    cache: &mut ModuleCache,
    name: &str,
) -> Result<Modules, Error> {
    let (runs, mut left_out) = runs(space)?;
    let mut modules = Modules::default();
    let before = cache.cost;
    let mut loaded_cost = 0_u64;
    let is_late = || {
        let deadline = space.deadline();
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    };
    for run in runs {
        if is_late() {
            return Err(late(space));
        }
        if (cache.cost - before).saturating_add(loaded_cost) > limit {
            left_out += 1;
            continue;
        }
        let facts = match space.mapped_file((run.start, run.end), &run.name, run.device, run.inode)
        {
            Ok(file) => cache.module(&file, name),
            // Deleted or replaced, and no right to map_files: what is loaded tells the same,
            // except for .symtab.
            Err(why) => {
                let source = Source::Loaded(memory, run.start);
                let (facts, cost) = Module::read_counted(source, name);
                loaded_cost = loaded_cost.saturating_add(cost);
                facts.map_err(|error| match why {
                    Some(why) => format!("{why}, and {error}"),
                    None => error,
                })
            }
        };
        match facts {
            Ok(Some(module)) => {
                let (Some((start, offset)), code) = (run.code, module.first_code) else {
                    continue;
                };
                // The page of the file that the segment starts in is mapped with it.
                let before = code.offset.saturating_sub(offset);
                if before >= code.alignment.max(0x1000) || offset >= code.file_end() {
                    continue;
                }
                let bias = elf::bias(start, offset, &code);
                modules.loaded.push(Loaded {
                    module,
                    bias,
                    name: OsString::from_vec(run.name),
                });
            }
            Ok(None) => {}
            Err(reason) => modules
                .unreadable
                .push((OsString::from_vec(run.name), reason)),
        }
    }
    if left_out > 0 {
        let reason = format!(
            "{left_out} modules left out, above the limit of {MAX_MODULES} modules, of {} MiB of \
             names or of {} MiB read of them",
            MAX_NAMES >> 20,
            limit >> 20
        );
        modules.unreadable.push((space.name(), reason));
    }
    Ok(modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_that_cost_too_much_are_left_out_and_counted() {
        let own = i32::try_from(std::process::id()).unwrap();
        let process = Process::open(own).unwrap();
        let memory = process.memory().unwrap();
        let look = |limit, cache: &mut ModuleCache| {
            modules_within(limit, &process, &memory, cache, "otel_thread_ctx_v1").unwrap()
        };
        let mut cache = ModuleCache::new();
        let one = look(0, &mut cache);
        assert_eq!((one.loaded.len(), one.unreadable.len()), (1, 1));
        assert!(one.unreadable[0].1.contains("left out"));
        let all = look(MAX_COST, &mut cache);
        assert!(all.loaded.len() > 1);
        assert_eq!(all.unreadable, []);
        // What is known costs nothing.
        assert_eq!(look(0, &mut cache).loaded.len(), all.loaded.len());
    }

    /// Reading files takes its time, too.
    #[test]
    fn a_deadline_ends_a_look_before_the_next_module() {
        struct Late(Process);
        impl AddressSpace for Late {
            fn mappings(
                &self,
                visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
            ) -> Result<Walk, Error> {
                self.0.mappings(visit)
            }
            fn deadline(&self) -> Option<Instant> {
                Some(Instant::now())
            }
            fn mapped_file(
                &self,
                _: (u64, u64),
                _: &[u8],
                _: Device,
                _: u64,
            ) -> Result<File, Option<String>> {
                panic!("there is no time for it")
            }
            fn machine(&self) -> Machine {
                Machine::own()
            }
            fn name(&self) -> OsString {
                "late".into()
            }
        }
        let process = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let memory = process.memory().unwrap();
        let space = Late(process);
        let found = modules(
            &space,
            &memory,
            &mut ModuleCache::new(),
            "otel_thread_ctx_v1",
        );
        assert!(matches!(found, Err(Error::Deadline { name }) if name == "late"));
    }
}
