//! A part of a recording, combined from segments of the spool.

use std::collections::{HashMap, HashSet};
use std::io;

use foldhash::fast::RandomState;
use otelctx_sample::{Catalog, Frame, FrameKind, Mapping, ModuleId, ProcessId, Sample};

use super::codec::{
    Ids, damaged, read_context, read_frame, read_module, read_process, read_reason, read_sample,
    take_entry, take_list, take_number, take_text, take_u32,
};

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
    /// The time of the oldest sample to add.
    since: u64,
    /// The newest entry of each process.
    processes: HashMap<ProcessKey, ProcessId>,
    /// Offset and module of the last mapping at each start and end.
    mapped: HashMap<(ProcessId, u64, u64), (u64, ModuleId), RandomState>,
}

/// Memory for each sample of a part, in bytes, with its sort key and the key of its group.
const SAMPLE_COST: usize = 160;
/// Memory of resolving a part's catalog, as a multiple of the catalog's.
const CATALOG_FACTOR: usize = 5;

impl Part {
    /// Creates a part without the samples before a time.
    pub(super) fn since(since: u64) -> Self {
        Self {
            since,
            ..Self::default()
        }
    }

    /// Estimates the memory for resolving and writing this part, in bytes.
    pub(super) fn cost(&self) -> usize {
        self.samples.len() * SAMPLE_COST + self.catalog.memory() * CATALOG_FACTOR
    }

    pub(super) fn add_catalog(&mut self, mut bytes: &[u8], kinds: &[FrameKind]) -> io::Result<Ids> {
        let bytes = &mut bytes;
        let modules = take_list(bytes, |bytes| Ok(self.catalog.module(read_module(bytes)?)))?;
        let mut processes = Vec::new();
        let mut renewed = HashSet::new();
        for _ in 0..take_number(bytes)? {
            let mut new = read_process(bytes, &modules)?;
            let mappings = std::mem::take(&mut new.mappings);
            let key = ProcessKey {
                pid: new.pid,
                start_ticks: new.start_ticks,
                executable: new.executable.clone(),
            };
            // A process's first entry in a segment continues its last one; an exec adds others.
            let known = self.processes.get(&key).copied();
            let is_first = renewed.insert(key.clone());
            let id = match known.filter(|_| is_first && new.start_ticks > 0) {
                Some(id) => {
                    let facts = self.catalog.process_mut(id);
                    if new.published || !facts.published {
                        facts.resource = new.resource;
                        facts.published = new.published;
                    }
                    id
                }
                None => self.catalog.add_process(new),
            };
            self.processes.insert(key, id);
            for mapping in mappings {
                self.add_mapping(id, mapping);
            }
            processes.push(id);
        }
        let threads = take_list(bytes, |bytes| {
            let process = take_entry(bytes, &processes)?;
            let tid = take_u32(bytes)?.cast_signed();
            Ok(self.catalog.thread(process, tid, &take_text(bytes)?))
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
        let reasons = take_list(bytes, |bytes| Ok(self.catalog.reason(&read_reason(bytes)?)))?;
        Ok(Ids {
            threads,
            contexts,
            stacks,
            reasons,
        })
    }

    /// Adds a mapping, unless it is the last one at its addresses.
    fn add_mapping(&mut self, process: ProcessId, mapping: Mapping) {
        let key = (process, mapping.start, mapping.end);
        let content = (mapping.offset, mapping.module);
        if self.mapped.insert(key, content) != Some(content) {
            self.catalog.process_mut(process).mappings.push(mapping);
        }
    }

    pub(super) fn add_samples(&mut self, mut bytes: &[u8], ids: &Ids) -> io::Result<()> {
        while !bytes.is_empty() {
            let sample = read_sample(&mut bytes, ids)?;
            if sample.time >= self.since {
                self.samples.push(sample);
            }
        }
        Ok(())
    }
}
