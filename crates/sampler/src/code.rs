//! Determines which files the code of a process is mapped from, for the catalog.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Instant;

use foldhash::fast::RandomState;
use otelctx_reader::remote;
use otelctx_sample::{Catalog, Frame, Mapping, Module, ProcessId};
use otelctx_track::schedule::Backoff;

use crate::monotonic;

/// Maximum number of executable mappings that are kept per process.
const MAX_MAPPINGS: usize = 16 * 1024;
/// Maximum number of build IDs that are kept. A machine runs a few thousand files; one that builds
/// programs all day runs more.
const MAX_BUILD_IDS: usize = 16 * 1024;

/// The executable memory of a process, as recorded in the catalog.
#[derive(Debug)]
pub(crate) struct CodeMappings {
    /// Start and end, ordered by address.
    ranges: Vec<(u64, u64)>,
    reads: Backoff,
}

impl Default for CodeMappings {
    fn default() -> Self {
        Self {
            ranges: Vec::new(),
            reads: Backoff::new(Instant::now()),
        }
    }
}

impl CodeMappings {
    fn contain(&self, address: u64) -> bool {
        let at = self.ranges.partition_point(|(start, _)| *start <= address);
        at.checked_sub(1)
            .is_some_and(|at| address < self.ranges[at].1)
    }

    /// Reads the mappings if one of these frames lies in memory that is not in the catalog.
    pub(crate) fn explain(
        &mut self,
        id: ProcessId,
        process: &remote::Process,
        stack: &[Frame],
        build_ids: &mut BuildIds,
        catalog: &mut Catalog,
    ) {
        let mut addresses = stack.iter().filter_map(Frame::address);
        if addresses.all(|address| self.contain(address)) {
            return;
        }
        let start = Instant::now();
        if !self.reads.is_due(start) {
            return;
        }
        let new = self.read(id, process, build_ids, catalog);
        let took = start.elapsed();
        self.reads.done(start + took, took, new);
    }

    /// Reads the mappings, and adds new ones to the catalog. Returns whether there were any.
    fn read(
        &mut self,
        id: ProcessId,
        process: &remote::Process,
        build_ids: &mut BuildIds,
        catalog: &mut Catalog,
    ) -> bool {
        let since = monotonic();
        let known: HashSet<(u64, u64)> = self.ranges.iter().copied().collect();
        let mut ranges = Vec::new();
        let mut new = Vec::new();
        // A process that has ended has no mappings.
        let _ = process.executable_mappings(&mut |mapping| {
            let range = (mapping.start, mapping.end);
            ranges.push(range);
            if !known.contains(&range) {
                new.push((range, mapping.offset, build_ids.module(process, mapping)));
            }
            if ranges.len() < MAX_MAPPINGS {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        let any = !new.is_empty();
        for ((start, end), offset, module) in new {
            let mapping = Mapping {
                start,
                end,
                offset,
                module: catalog.module(module),
                since,
            };
            catalog.process_mut(id).mappings.push(mapping);
        }
        if !ranges.is_empty() {
            self.ranges = ranges;
        }
        any
    }
}

/// Build IDs by device and inode: processes share most files.
#[derive(Debug, Default)]
pub(crate) struct BuildIds {
    known: HashMap<(remote::Device, u64), Vec<u8>, RandomState>,
}

impl BuildIds {
    /// The module of a mapping.
    fn module(&mut self, process: &remote::Process, mapping: &remote::Mapping<'_>) -> Module {
        let name = String::from_utf8_lossy(mapping.name);
        if mapping.inode == 0 {
            let path = if name.is_empty() { "//anon" } else { &*name };
            return Module {
                path: path.to_owned(),
                ..Module::default()
            };
        }
        if self.known.len() >= MAX_BUILD_IDS {
            self.known.clear();
        }
        let key = (mapping.device, mapping.inode);
        let build_id = self.known.entry(key).or_insert_with(|| {
            let range = (mapping.start, mapping.end);
            let file = process.mapped_file(range, mapping.name, mapping.device, mapping.inode);
            file.and_then(|file| remote::module::build_id(&file))
                .unwrap_or_default()
        });
        Module {
            path: name.into_owned(),
            build_id: build_id.clone(),
            device: u64::from(mapping.device.major) << 32 | u64::from(mapping.device.minor),
            inode: mapping.inode,
        }
    }

    /// Clears everything, for a new catalog.
    pub(crate) fn clear(&mut self) {
        self.known.clear();
    }
}
