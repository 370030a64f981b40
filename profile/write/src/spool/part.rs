//! A part of a recording, combined from segments of the spool.

use std::collections::{HashMap, HashSet};
use std::io;

use foldhash::fast::RandomState;
use otelctx_sample::{
    Catalog, ContextId, Found, Frame, FrameKind, Mapping, ModuleId, ProcessFacts, ProcessId,
    Sample, StackId, ThreadId,
};

use super::codec::{
    Entry, MappingEntry, damaged, read_context, read_frame, read_module, read_process, read_sample,
    read_thread, take_list, take_number,
};

/// Identifies a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProcessKey {
    pid: i32,
    start_ticks: u64,
    executable: String,
}

/// A catalog to which others are added.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) catalog: Catalog,
    pub(super) samples: Vec<Sample>,
    /// The newest entry of each process.
    processes: HashMap<ProcessKey, ProcessId>,
    /// The last known mapping at an address range.
    mapped: HashMap<(ProcessId, u64, u64), (u64, ModuleId), RandomState>,
}

/// The IDs in the part of a segment's entries, by position.
#[derive(Debug)]
pub(super) struct Ids {
    threads: Vec<ThreadId>,
    contexts: Vec<ContextId>,
    stacks: Vec<StackId>,
}

/// Memory for each sample of a part, in bytes: itself, its sort key, and the key of its group.
const SAMPLE_COST: usize = 160;
/// Memory of everything that is resolved from a part's catalog, as a multiple of the catalog's.
const CATALOG_FACTOR: usize = 5;

impl Part {
    /// Estimates the memory for resolving and writing this part, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.samples.len() * SAMPLE_COST + self.catalog.memory() * CATALOG_FACTOR
    }

    /// Adds the catalog of a segment.
    pub(super) fn add_catalog(&mut self, mut bytes: &[u8], kinds: &[FrameKind]) -> io::Result<Ids> {
        let bytes = &mut bytes;
        let modules = take_list(bytes, |bytes| Ok(self.catalog.module(read_module(bytes)?)))?;
        let mut processes = Vec::new();
        let mut renewed = HashSet::new();
        for _ in 0..take_number(bytes)? {
            let process = read_process(bytes)?;
            let key = ProcessKey::of(&process.facts);
            // The first entry of a segment continues the last one of the previous segment; further
            // entries were added by an exec.
            let known = self.processes.get(&key).copied();
            let is_first = renewed.insert(key.clone());
            let id = match known.filter(|_| is_first && process.facts.start_ticks > 0) {
                Some(id) => {
                    let facts = self.catalog.process_mut(id);
                    if process.facts.published || !facts.published {
                        facts.resource = process.facts.resource;
                        facts.published = process.facts.published;
                    }
                    id
                }
                None => self.catalog.add_process(process.facts),
            };
            self.processes.insert(key, id);
            for mapping in process.mappings {
                let module = *modules.get(mapping.module).ok_or_else(damaged)?;
                self.add_mapping(id, &mapping, module);
            }
            processes.push(id);
        }
        let threads = take_list(bytes, |bytes| {
            let thread = read_thread(bytes)?;
            let process = *processes.get(thread.process).ok_or_else(damaged)?;
            Ok(self.catalog.thread(process, thread.tid, &thread.name))
        })?;
        let contexts = take_list(bytes, |bytes| {
            Ok(self.catalog.context(&read_context(bytes)?))
        })?;
        let frames = take_list(bytes, |bytes| read_frame(bytes, kinds))?;
        let mut stack: Vec<Frame> = Vec::new();
        let stacks = take_list(bytes, |bytes| {
            stack.clear();
            for _ in 0..take_number(bytes)? {
                let frame = frames.get(take_number(bytes)?).ok_or_else(damaged)?;
                stack.push(frame.clone());
            }
            Ok(self.catalog.stack(&stack))
        })?;
        Ok(Ids {
            threads,
            contexts,
            stacks,
        })
    }

    /// Adds a mapping, unless it is the last known one at its addresses.
    fn add_mapping(&mut self, process: ProcessId, mapping: &MappingEntry, module: ModuleId) {
        let &MappingEntry {
            start,
            end,
            offset,
            since,
            ..
        } = mapping;
        let last = self.mapped.insert((process, start, end), (offset, module));
        if last != Some((offset, module)) {
            self.catalog.process_mut(process).mappings.push(Mapping {
                start,
                end,
                offset,
                module,
                since,
            });
        }
    }

    /// Adds samples of a segment.
    pub(super) fn add_samples(&mut self, mut bytes: &[u8], ids: &Ids) -> io::Result<()> {
        while !bytes.is_empty() {
            let sample = sample(&read_sample(&mut bytes)?, ids);
            self.samples.push(sample.ok_or_else(damaged)?);
        }
        Ok(())
    }
}

fn sample(entry: &Entry, ids: &Ids) -> Option<Sample> {
    let mut is_damaged = false;
    let found = entry.found.and_then(|context| {
        let id = ids.contexts.get(context);
        is_damaged = id.is_none();
        id.map_or(Found::Detached, |id| Found::Attached(*id))
    });
    (!is_damaged).then_some(Sample {
        time: entry.time,
        cpu: entry.cpu,
        thread: *ids.threads.get(entry.thread)?,
        event: entry.event,
        found,
        gil: entry.gil,
        user_stack: *ids.stacks.get(entry.user_stack)?,
        stack_end: entry.stack_end,
        kernel_stack: *ids.stacks.get(entry.kernel_stack)?,
    })
}

impl ProcessKey {
    fn of(facts: &ProcessFacts) -> Self {
        Self {
            pid: facts.pid,
            start_ticks: facts.start_ticks,
            executable: facts.executable.clone(),
        }
    }
}
