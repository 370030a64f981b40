//! Finds the modules among the mappings of a process.

use std::ffi::OsString;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Instant;

use super::LoadedModule;
use super::open::{OpenFile, OpenFiles};
use crate::elf::{self, Source};
use crate::file_cache::{Fact, FileCache, FileFacts, FileKey};
use crate::mappings::Mapping;
use crate::mappings::moved::may_have_moved_code;
use crate::module::ModuleFile;
use crate::target::{CodeLayout, CodeLayoutBuilder, Target};
use crate::{Device, Error};

/// Maximum number of modules read of one process; browsers load a few hundred.
const MAX_MODULES: usize = 16 * 1024;

/// Maximum number of files without code that may be modules whose code was moved.
const MAX_WITHOUT_CODE: usize = 256;

/// Maximum size of the names of these modules, in bytes.
const MAX_NAMES: usize = 8 << 20;

/// Maximum number of bytes read of the modules of one process: about half a second of work.
pub(crate) const MAX_COST: u64 = 1 << 30;

/// The mappings of a module, and its file's facts.
pub(crate) struct Place {
    run: Run,
    pub(crate) bias: u64,
    facts: FileFacts,
    key: Option<FileKey>,
}

impl Place {
    pub(crate) fn name(&self) -> OsString {
        OsString::from_vec(self.run.name.clone())
    }

    pub(super) fn at(self, file: Arc<ModuleFile>, open: Arc<OpenFiles>) -> LoadedModule {
        LoadedModule {
            file,
            bias: self.bias,
            name: OsString::from_vec(self.run.name),
            start: self.run.start,
            end: self.run.end,
            device: self.run.device,
            inode: self.run.inode,
            facts: self.facts,
            key: self.key,
            open,
        }
    }
}

/// Consecutive mappings of one file, as a dynamic linker creates them for a module.
#[derive(Debug)]
struct Run {
    start: u64,
    end: u64,
    /// File offset of the first mapping.
    first_offset: u64,
    /// File offset of the last mapping, and where it ends.
    last_offset: u64,
    last_end: u64,
    device: Device,
    inode: u64,
    /// The name of the first executable mapping.
    name: Vec<u8>,
    /// Address and file offset of the first executable mapping; earlier ones may be a symbolizer's.
    code: Option<(u64, u64)>,
}

impl Run {
    fn new(mapping: &Mapping<'_>) -> Self {
        Run {
            start: mapping.start,
            end: mapping.end,
            first_offset: mapping.offset,
            last_offset: mapping.offset,
            last_end: mapping.end,
            device: mapping.device,
            inode: mapping.inode,
            name: name(mapping),
            code: code(mapping),
        }
    }

    fn extend(&mut self, mapping: &Mapping<'_>) {
        self.last_offset = mapping.offset;
        self.last_end = mapping.end;
        if self.code.is_none() {
            self.name = name(mapping);
            self.code = code(mapping);
        }
    }

    /// Returns whether it may be a module whose code was moved to other memory: its header and a later part are mapped.
    fn may_lack_its_code(&self) -> bool {
        self.first_offset == 0 && self.last_offset > 0
    }

    /// Returns whether the mapping belongs to the same module: the same file, at a later offset, or
    /// the same one, because small segments share a page.
    fn takes(&self, mapping: &Mapping<'_>) -> bool {
        self.inode == mapping.inode
            && self.device == mapping.device
            && mapping.offset >= self.last_offset
    }
}

/// The name of an executable mapping; others may have no name.
fn name(mapping: &Mapping<'_>) -> Vec<u8> {
    if mapping.permissions.execute {
        mapping.name.to_vec()
    } else {
        Vec::new()
    }
}

fn code(mapping: &Mapping<'_>) -> Option<(u64, u64)> {
    let executable = mapping.permissions.execute;
    executable.then_some((mapping.start, mapping.offset))
}

/// Finds the modules: runs of mappings of one file with an executable one, and the number skipped.
fn runs(target: &dyn Target) -> Result<(Vec<Run>, u64, CodeLayout), Error> {
    let mut runs = Vec::new();
    let mut skipped = 0;
    let mut names = 0;
    let mut current: Option<Run> = None;
    // A run that goes on behind code that was moved to a memfd or a huge page's file.
    let mut interrupted: Option<Run> = None;
    let mut layout = CodeLayoutBuilder::default();
    let mut without_code = Vec::new();
    let mut keep = |run: Option<Run>| {
        let Some(run) = run else {
            return;
        };
        if run.code.is_none() {
            if run.may_lack_its_code() && without_code.len() < MAX_WITHOUT_CODE {
                without_code.push(run);
            }
        } else {
            names += run.name.len();
            if runs.len() < MAX_MODULES && names <= MAX_NAMES {
                runs.push(run)
            } else {
                skipped += 1
            }
        }
    };
    target.file_mappings(&mut |mapping| {
        layout.add(mapping);
        if let Some(run) = current.as_mut().filter(|run| run.takes(mapping)) {
            run.extend(mapping);
        } else if let Some(run) = interrupted.as_mut().filter(|run| run.takes(mapping)) {
            run.extend(mapping);
            keep(current.take());
            current = interrupted.take();
        } else {
            let is_memory = mapping.permissions.execute && may_have_moved_code(mapping);
            let before = current.replace(Run::new(mapping));
            if is_memory && interrupted.is_none() {
                interrupted = before;
            } else {
                if !is_memory {
                    keep(interrupted.take());
                }
                keep(before);
            }
        }
    })?;
    keep(interrupted);
    keep(current);
    if !without_code.is_empty() {
        find_moved_code(target, &mut without_code);
        runs.append(&mut without_code);
    }
    runs.sort_by_key(|run| run.start);
    Ok((runs, skipped, layout.finish()))
}

/// Finds the code of modules that was moved to other memory, as for huge pages. Removes the runs that have none.
fn find_moved_code(target: &dyn Target, runs: &mut Vec<Run>) {
    let is_past = |deadline| Instant::now() >= deadline;
    // After an error or the deadline, there are still the other modules.
    let _ = target.executable_mappings(&mut |found| {
        if target.deadline().is_some_and(is_past) {
            return ControlFlow::Break(());
        }
        let mapping = &found.mapping;
        if let Some((start, _)) = found.moved_from {
            let file = (mapping.device, mapping.inode);
            let run = runs.iter_mut().find(|run| {
                (run.device, run.inode) == file && run.start <= start && start < run.last_end
            });
            if let Some(run) = run.filter(|run| run.code.is_none()) {
                run.name = name(mapping);
                run.code = code(mapping);
            }
        }
        ControlFlow::Continue(())
    });
    runs.retain(|run| run.code.is_some());
}

struct Read<T> {
    facts: FileFacts,
    key: Option<FileKey>,
    fact: Fact<T>,
    cost: u64,
}

/// Reads a fact from the module's file, or from the loaded memory if the file cannot be opened.
fn read_fact<T>(
    target: &dyn Target,
    run: &Run,
    cache: &FileCache,
    open: &OpenFiles,
    read: &impl Fn(&FileFacts, Source<'_>) -> (Fact<T>, u64),
) -> Read<T> {
    let range = (run.start, run.end);
    let file = target.mapped_file(range, &run.name, run.device, run.inode);
    let mut facts = FileFacts::default();
    let mut key = None;
    let (fact, cost) = match file.map(OpenFile::of) {
        Ok(Ok(mut file)) => {
            key = Some(file.key);
            facts = cache.facts(file.key);
            let fact = file.read(|bytes| read(&facts, Source::File(bytes)));
            open.keep(file);
            fact
        }
        Ok(Err(error)) => (Err(error.to_string()), 0),
        // Deleted or replaced, and no permission for map_files: the loaded memory lacks only
        // .symtab.
        Err(why) => {
            let (fact, cost) = read(&facts, Source::Loaded(target, run.start));
            let fact = fact.map_err(|error| match why {
                Some(why) => format!("{why}, and {error}"),
                None => error,
            });
            (fact, cost)
        }
    };
    Read {
        facts,
        key,
        fact,
        cost,
    }
}

/// Calls `keep` with each module for whose name and size of mappings `wanted` returns true, and the
/// fact that `read` finds, with its cost. The files read last stay in `open`. Returns the modules
/// that could not be read, with the reason, and the layout.
pub(crate) fn visit<T: AsRef<ModuleFile>>(
    limit: u64,
    target: &dyn Target,
    cache: &FileCache,
    open: &OpenFiles,
    wanted: &dyn Fn(&[u8], u64) -> bool,
    read: impl Fn(&FileFacts, Source<'_>) -> (Fact<T>, u64),
    mut keep: impl FnMut(Place, Arc<T>),
) -> Result<(Vec<(OsString, String)>, CodeLayout), Error> {
    let (runs, mut skipped, layout) = runs(target)?;
    let unlisted = target.unlisted().map(|why| (target.name(), why));
    let mut unreadable = Vec::from_iter(unlisted);
    let mut total_cost = 0_u64;
    for run in runs {
        if !wanted(&run.name, run.last_end.saturating_sub(run.start)) {
            continue;
        }
        let is_past = |deadline| Instant::now() >= deadline;
        if target.deadline().is_some_and(is_past) {
            let name = target.name().to_string_lossy().into_owned();
            let action = "all of its modules were read";
            return Err(Error::Deadline { name, action });
        }
        if total_cost > limit {
            skipped += 1;
            continue;
        }
        let found = read_fact(target, &run, cache, open, &read);
        total_cost = total_cost.saturating_add(found.cost);
        match found.fact {
            Ok(Some(fact)) => {
                let module: &ModuleFile = (*fact).as_ref();
                let Some((start, offset)) = run.code else {
                    continue;
                };
                let code = module.first_code;
                // The page of the file in which the segment starts is mapped with it.
                let before = code.offset.saturating_sub(offset);
                if before >= code.alignment.max(0x1000) || offset >= code.file_end() {
                    continue;
                }
                let bias = elf::bias(start, offset, &code);
                let place = Place {
                    run,
                    bias,
                    facts: found.facts,
                    key: found.key,
                };
                keep(place, fact);
            }
            Ok(None) => {}
            Err(reason) => unreadable.push((OsString::from_vec(run.name), reason)),
        }
    }
    if skipped > 0 {
        let reason = format!(
            "{skipped} modules skipped, above the limit of {MAX_MODULES} modules, {} MiB of \
             names or {} MiB read",
            MAX_NAMES >> 20,
            limit >> 20
        );
        unreadable.push((target.name(), reason));
    }
    Ok((unreadable, layout))
}
