//! A part of a recording, combined from segments of the spool.

use std::collections::HashMap;
use std::io;

use foldhash::fast::RandomState;
use otelctx_sample::{
    Catalog, ContextId, Frame, FrameKind, Mapping, ModuleId, ProcessFacts, ProcessId, Sample,
    StackId, ThreadId,
};

use super::codec::{
    Entry, damaged, read_context, read_frame, read_module, read_process, read_sample, read_thread,
    take_number,
};

/// Identifies a process: ID, start time, program.
type Identity = (i32, u64, String);

/// A catalog to which others are added.
#[derive(Debug, Default)]
pub(super) struct Part {
    pub(super) catalog: Catalog,
    pub(super) samples: Vec<Sample>,
    /// The newest entry of each process.
    processes: HashMap<Identity, ProcessId>,
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
/// How much larger than a part's catalog everything is that is resolved from it.
const CATALOG_FACTOR: usize = 5;

impl Part {
    /// Estimates the memory for resolving and writing this part, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.samples.len() * SAMPLE_COST + self.catalog.memory() * CATALOG_FACTOR
    }

    /// Adds the catalog of a segment.
    pub(super) fn add_catalog(&mut self, mut bytes: &[u8], kinds: &[FrameKind]) -> io::Result<Ids> {
        let bytes = &mut bytes;
        let modules = list(bytes, |bytes| Ok(self.catalog.module(read_module(bytes)?)))?;
        let mut processes = Vec::new();
        let mut renewed = HashMap::new();
        for _ in 0..take_number(bytes)? {
            let process = read_process(bytes)?;
            let identity = identity(&process.facts);
            // The first entry of a segment continues the last one of the previous segment; further
            // entries were added by an exec.
            let known = self.processes.get(&identity).copied();
            let is_first = renewed.insert(identity.clone(), ()).is_none();
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
            self.processes.insert(identity, id);
            for ([start, end, offset, since], module) in process.mappings {
                let module = *modules.get(module).ok_or_else(damaged)?;
                let last = self.mapped.insert((id, start, end), (offset, module));
                if last != Some((offset, module)) {
                    self.catalog.process_mut(id).mappings.push(Mapping {
                        start,
                        end,
                        offset,
                        module,
                        since,
                    });
                }
            }
            processes.push(id);
        }
        let threads = list(bytes, |bytes| {
            let (process, tid, name) = read_thread(bytes)?;
            let process = *processes.get(process).ok_or_else(damaged)?;
            Ok(self.catalog.thread(process, tid, &name))
        })?;
        let contexts = list(bytes, |bytes| {
            Ok(self.catalog.context(&read_context(bytes)?))
        })?;
        let frames = list(bytes, |bytes| read_frame(bytes, kinds))?;
        let mut stack: Vec<Frame> = Vec::new();
        let stacks = list(bytes, |bytes| {
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
        id.map_or(otelctx_sample::Found::Detached, |id| {
            otelctx_sample::Found::Attached(*id)
        })
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

fn identity(facts: &ProcessFacts) -> Identity {
    (facts.pid, facts.start_ticks, facts.executable.clone())
}

fn list<T>(
    bytes: &mut &[u8],
    mut read: impl FnMut(&mut &[u8]) -> io::Result<T>,
) -> io::Result<Vec<T>> {
    (0..take_number(bytes)?).map(|_| read(bytes)).collect()
}
