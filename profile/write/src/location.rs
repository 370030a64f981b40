//! Frames of stacks, resolved.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use otelctx_sample::{
    Catalog, Frame, FrameId, FrameKind, Mapping, ModuleId, NamedFrame, ProcessFacts, ProcessId,
    Sample, StackEnd,
};

use crate::{Function, Identity, SymbolQuery, Symbolizer};

/// The index of a [`Location`] in its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationIndex(pub(crate) u32);

impl LocationIndex {
    /// The position, from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A frame of a stack, resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The sampled address of a native frame: of an instruction, or a return address. 0 for a frame
    /// that a runtime has named.
    pub address: u64,
    /// The owner of the frame's code.
    pub place: Place,
    /// The functions at the address, innermost inlined function first; empty if unknown.
    pub functions: Arc<[Function]>,
}

/// The owner of the code of a [`Location`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The kernel.
    Kernel,
    /// This mapping of a process.
    Mapped(Mapping),
    /// Memory of a process in no known mapping.
    Unknown,
    /// A runtime, which has named the function.
    Runtime(FrameKind),
}

/// The times at which processes mapped code over other code.
#[derive(Debug, Default)]
pub(crate) struct Remappings(HashMap<ProcessId, Vec<u64>, foldhash::fast::RandomState>);

impl Remappings {
    pub(crate) fn of(catalog: &Catalog) -> Self {
        let times = |(id, process)| {
            let times = remapping_times(process);
            (!times.is_empty()).then_some((id, times))
        };
        Self(catalog.processes().filter_map(times).collect())
    }

    /// Returns the epoch of a process, in which an address belongs to one mapping, at a time: from
    /// 1; 0 if the process never mapped code over other code.
    pub(crate) fn epoch(&self, process: ProcessId, time: u64) -> usize {
        let times = self.0.get(&process);
        times.map_or(0, |times| 1 + times.partition_point(|it| *it <= time))
    }
}

/// Returns the module of a mapping, and the address of the module's first byte.
fn code(mapping: &Mapping) -> (ModuleId, u64) {
    (mapping.module, mapping.start.wrapping_sub(mapping.offset))
}

fn remapping_times(process: &ProcessFacts) -> Vec<u64> {
    let mut mappings: Vec<_> = process.mappings.iter().collect();
    mappings.sort_unstable_by_key(|mapping| (mapping.start, mapping.since));
    let mut times = Vec::new();
    let mut furthest: Option<&Mapping> = None;
    for mapping in mappings {
        if let Some(other) = furthest
            && mapping.start < other.end
            && code(mapping) != code(other)
        {
            times.extend([other.since, mapping.since]);
        }
        if furthest.is_none_or(|it| it.end <= mapping.end) {
            furthest = Some(mapping);
        }
    }
    times.sort_unstable();
    times.dedup();
    times
}

#[derive(Default)]
pub(crate) struct Locator {
    known: HashMap<Key, LocationIndex, foldhash::fast::RandomState>,
    locations: Vec<Location>,
    /// The locations that represent the missing frames of incomplete stacks.
    markers: HashMap<StackEnd, LocationIndex, foldhash::fast::RandomState>,
    /// The address to resolve of each location.
    unresolved: Vec<Option<UnresolvedAddress>>,
}

pub(crate) struct Resolved {
    /// In the order of their indices.
    pub(crate) locations: Vec<Location>,
    pub(crate) identities: HashMap<ModuleId, Identity>,
}

/// Identifies a location, native frames with their process: an address may be another function in
/// another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    process: Option<ProcessId>,
    frame: FrameId,
    /// The [`code`] of the mapping at the time, if the process mapped code over other code.
    code: Option<(ModuleId, u64)>,
}

#[derive(Clone, Copy)]
struct UnresolvedAddress {
    process: ProcessId,
    module: ModuleId,
    address: u64,
}

impl Locator {
    /// Returns the locations of a sample's stack, innermost first: the kernel frames, then the
    /// user-mode frames. `epoch` is the process's at the time of the sample.
    pub(crate) fn stack(
        &mut self,
        catalog: &Catalog,
        kernel: ModuleId,
        process: ProcessId,
        epoch: usize,
        sample: &Sample,
    ) -> Box<[LocationIndex]> {
        let in_kernel = catalog.frame_ids(sample.kernel_stack);
        let in_process = catalog.frame_ids(sample.user_stack);
        let mut stack = Vec::with_capacity(in_kernel.len() + in_process.len() + 1);
        for (frames, owner) in [(in_kernel, None), (in_process, Some(process))] {
            for &frame in frames {
                let facts = catalog.frame_facts(frame);
                let mut key = Key {
                    process: owner.filter(|_| matches!(facts, Frame::Native { .. })),
                    frame,
                    code: None,
                };
                if epoch > 0
                    && let (Some(owner), Some(address)) = (key.process, facts.lookup_address())
                {
                    let owner = catalog.process(owner);
                    key.code = owner.mapping_at(address, sample.time).map(code);
                }
                let index = match self.known.get(&key) {
                    Some(index) => *index,
                    None => self.add(key, catalog, kernel, process, sample.time),
                };
                stack.push(index);
            }
        }
        let end = sample.stack_end.filter(|_| !in_process.is_empty());
        stack.extend(end.and_then(|end| self.marker(end)));
        stack.into()
    }

    /// Returns the location that represents the missing frames of an incomplete stack.
    fn marker(&mut self, end: StackEnd) -> Option<LocationIndex> {
        if let Some(index) = self.markers.get(&end) {
            return Some(*index);
        }
        let index = self.push(named_location(&end.marker()?), None);
        self.markers.insert(end, index);
        Some(index)
    }

    fn add(
        &mut self,
        key: Key,
        catalog: &Catalog,
        kernel: ModuleId,
        process: ProcessId,
        time: u64,
    ) -> LocationIndex {
        let frame = catalog.frame_facts(key.frame);
        let (location, unresolved) = match frame {
            Frame::Named(named) => (named_location(named), None),
            Frame::Native { address, .. } => {
                let instruction = frame.lookup_address().unwrap_or(*address);
                let place = key.process.map_or(Place::Kernel, |process| {
                    let mapping = catalog.process(process).mapping_at(instruction, time);
                    mapping.map_or(Place::Unknown, |mapping| Place::Mapped(*mapping))
                });
                let location = Location {
                    address: *address,
                    place,
                    functions: Arc::default(),
                };
                let module = match place {
                    Place::Kernel => Some(kernel),
                    Place::Mapped(mapping) => Some(mapping.module),
                    Place::Unknown | Place::Runtime(_) => None,
                };
                let unresolved = module.map(|module| UnresolvedAddress {
                    process,
                    module,
                    address: address_in_module(catalog, place, instruction),
                });
                (location, unresolved)
            }
        };
        let index = self.push(location, unresolved);
        self.known.insert(key, index);
        index
    }

    fn push(&mut self, location: Location, unresolved: Option<UnresolvedAddress>) -> LocationIndex {
        let index = u32::try_from(self.locations.len()).expect("less than 2^32 locations");
        self.unresolved.push(unresolved);
        self.locations.push(location);
        LocationIndex(index)
    }

    /// Resolves all addresses, with one query per module.
    pub(crate) fn resolve(self, catalog: &Catalog, symbolizer: &mut dyn Symbolizer) -> Resolved {
        let mut locations = self.locations;
        let mut identities = HashMap::new();
        let mut by_file: BTreeMap<_, Vec<(usize, UnresolvedAddress)>> = BTreeMap::new();
        for (index, address) in self.unresolved.into_iter().enumerate() {
            let Some(address) = address else { continue };
            let module = catalog.module_facts(address.module);
            // A file and its copies contain the same code in each process; memory does not.
            let file = match &module.build_id[..] {
                [] => (None, Some(address.module)),
                build_id => (Some(build_id), None),
            };
            let own = (!module.is_shared()).then_some(address.process);
            let addresses: &mut Vec<_> = by_file.entry((file, own)).or_default();
            addresses.push((index, address));
        }
        for unresolved in by_file.into_values() {
            let UnresolvedAddress {
                module, process, ..
            } = unresolved[0].1;
            let process = catalog.process(process);
            let mapping = process.mappings.iter().rev().find(|it| it.module == module);
            let query = SymbolQuery::new(catalog.module_facts(module), process).mapped(mapping);
            let mut addresses: Vec<u64> = unresolved.iter().map(|(_, it)| it.address).collect();
            // Thousands of processes may run the same code.
            addresses.sort_unstable();
            addresses.dedup();
            let functions = symbolizer.functions(query, &addresses).into_iter();
            let functions: Vec<Arc<[Function]>> = functions.map(Into::into).collect();
            let identity = symbolizer.identity(query);
            for (index, unresolved) in unresolved {
                let position = addresses.binary_search(&unresolved.address).ok();
                if let Some(functions) = position.and_then(|at| functions.get(at)) {
                    locations[index].functions = Arc::clone(functions);
                }
                let identity = || identity.clone();
                identities.entry(unresolved.module).or_insert_with(identity);
            }
        }
        Resolved {
            locations,
            identities,
        }
    }
}

/// Creates the location of a frame that needs no symbols.
fn named_location(frame: &NamedFrame) -> Location {
    let name = frame.name();
    let is_qualified = name != frame.function;
    let system_name = if is_qualified { &frame.function } else { "" };
    Location {
        address: 0,
        place: Place::Runtime(frame.kind),
        functions: Arc::new([Function {
            name: name.to_owned(),
            system_name: system_name.to_owned(),
            file: frame.file.clone(),
            line: frame.line,
            column: 0,
        }]),
    }
}

/// Converts the address of an instruction to what a [`Symbolizer`] expects.
fn address_in_module(catalog: &Catalog, place: Place, instruction: u64) -> u64 {
    match place {
        Place::Mapped(mapping) if catalog.module_facts(mapping.module).has_file() => {
            // The mapping comes from the target: the sum may overflow.
            (instruction - mapping.start).wrapping_add(mapping.offset)
        }
        _ => instruction,
    }
}
