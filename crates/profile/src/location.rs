//! Addresses in stacks, and what is known of them.

use std::collections::{BTreeMap, HashMap};

use otelctx_sample::{Catalog, Mapping, ModuleId, ProcessId, Sample};

use crate::{Asked, Function, Identity, Symbolizer};

/// The place of a [`Location`] in its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LocationIndex(u32);

impl LocationIndex {
    /// Counted from 0.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// An address in a stack, with what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The address as it was sampled: of an instruction in a stack's first location, behind a call
    /// in the others.
    pub address: u64,
    /// Where that is.
    pub place: Place,
    /// The functions there, the innermost of those that were inlined first; empty if unknown.
    pub functions: Vec<Function>,
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// In the kernel.
    Kernel,
    /// In this mapping of a process.
    Mapped(Mapping),
    /// In memory of a process of which nothing is known.
    Unknown,
}

/// Gives each address one location.
#[derive(Default)]
pub(crate) struct Locator {
    known: HashMap<Address, LocationIndex, foldhash::fast::RandomState>,
    locations: Vec<Location>,
    /// What to ask for the names of each location.
    questions: Vec<Option<Question>>,
}

/// An address in the kernel (no process) or in a process. One behind a call may be the first of
/// the next function, where the call is meant: that makes two of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Address {
    process: Option<ProcessId>,
    address: u64,
    behind_call: bool,
}

/// Which process and module to ask, and the address that a [`Symbolizer`] takes.
#[derive(Clone, Copy)]
struct Question {
    process: ProcessId,
    module: ModuleId,
    address: u64,
}

impl Locator {
    /// The locations of a sample's stack, innermost first: in the kernel, then in the process.
    pub(crate) fn stack(
        &mut self,
        catalog: &Catalog,
        kernel: ModuleId,
        process: ProcessId,
        sample: &Sample,
    ) -> Box<[LocationIndex]> {
        let in_kernel = catalog.addresses(sample.kernel_stack);
        let in_process = catalog.addresses(sample.user_stack);
        let mut stack = Vec::with_capacity(in_kernel.len() + in_process.len());
        for (addresses, owner) in [(in_kernel, None), (in_process, Some(process))] {
            for (depth, &address) in addresses.iter().enumerate() {
                let address = Address {
                    process: owner,
                    address,
                    behind_call: depth > 0,
                };
                let index = match self.known.get(&address) {
                    Some(index) => *index,
                    None => self.add(address, catalog, kernel, process, sample.time),
                };
                stack.push(index);
            }
        }
        stack.into()
    }

    fn add(
        &mut self,
        address: Address,
        catalog: &Catalog,
        kernel: ModuleId,
        process: ProcessId,
        time: u64,
    ) -> LocationIndex {
        let instruction = address
            .address
            .saturating_sub(u64::from(address.behind_call));
        let place = match address.process {
            None => Place::Kernel,
            Some(process) => catalog
                .process(process)
                .mapping_at(instruction, time)
                .map_or(Place::Unknown, |mapping| Place::Mapped(*mapping)),
        };
        let question = match place {
            Place::Kernel => Some((kernel, instruction)),
            Place::Mapped(mapping) if catalog.module_facts(mapping.module).has_file() => {
                // A mapping comes from the target's side: its sum may be anything.
                let offset = (instruction - mapping.start).wrapping_add(mapping.offset);
                Some((mapping.module, offset))
            }
            Place::Mapped(mapping) => Some((mapping.module, instruction)),
            Place::Unknown => None,
        };
        self.questions
            .push(question.map(|(module, address)| Question {
                process,
                module,
                address,
            }));
        self.locations.push(Location {
            address: address.address,
            place,
            functions: Vec::new(),
        });
        let index = self.locations.len() - 1;
        let index = LocationIndex(u32::try_from(index).expect("less than 2^32 locations"));
        self.known.insert(address, index);
        index
    }

    /// Asks `symbolizer` once a module for all its addresses.
    pub(crate) fn name(
        self,
        catalog: &Catalog,
        symbolizer: &mut dyn Symbolizer,
    ) -> (Vec<Location>, HashMap<ModuleId, Identity>) {
        let mut locations = self.locations;
        let mut identities = HashMap::new();
        let mut asked: BTreeMap<_, (ProcessId, Vec<(usize, u64)>)> = BTreeMap::new();
        for (index, question) in self.questions.into_iter().enumerate() {
            let Some(question) = question else { continue };
            // One file is the same in each process, memory without a file is not.
            let own = !catalog.module_facts(question.module).is_shared();
            asked
                .entry((question.module, own.then_some(question.process)))
                .or_insert_with(|| (question.process, Vec::new()))
                .1
                .push((index, question.address));
        }
        for ((module, _), (process, questions)) in asked {
            let process = catalog.process(process);
            let mapping = process.mappings.iter().rev().find(|it| it.module == module);
            let asked = Asked::new(catalog.module_facts(module), process).mapped(mapping);
            let addresses: Vec<u64> = questions.iter().map(|(_, address)| *address).collect();
            let answers = symbolizer.functions(asked, &addresses);
            for ((index, _), functions) in questions.into_iter().zip(answers) {
                locations[index].functions = functions;
            }
            identities
                .entry(module)
                .or_insert_with(|| symbolizer.identity(asked));
        }
        (locations, identities)
    }
}
