//! Names of functions, resolved in the background: the symbols of a large program take a while.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use otelctx_profile::sample::{
    Catalog, Frame, GilState, Mapping, Module, ModuleFiles, ModuleId, ProcessFacts, ProcessId,
};
use otelctx_profile::{SymbolQuery, Symbolizer};
use otelctx_symbolize::Symbols;

use super::rows::Key;
use super::window::{Stacks, Window};
use crate::command::without_symbols::WithoutSymbols;

/// Maximum number of addresses whose names are kept.
const MAX_ADDRESSES: usize = 1 << 16;
/// Symbolizing takes at most 1/[`IDLE_FACTOR`] of one CPU.
const IDLE_FACTOR: u32 = 10;

/// An address in the kernel, or in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Spot {
    /// `None` in the kernel.
    module: Option<ModuleId>,
    address: u64,
}

/// A request about one module.
struct Request {
    module: Module,
    process: ProcessFacts,
    mapping: Option<Mapping>,
    spots: Vec<Spot>,
}

struct Answer {
    generation: u32,
    names: Vec<(Spot, Option<String>)>,
    without_symbols: Vec<(ModuleId, Vec<String>)>,
    took: Duration,
}

/// The names of addresses in one catalog.
pub(super) struct Names {
    generation: u32,
    known: HashMap<Spot, Option<String>>,
    /// Files without symbols, each with where its debug file was searched.
    without_symbols: HashMap<ModuleId, Vec<String>>,
    /// Addresses without a name so far, each with a mapping that it is in.
    wanted: HashMap<Spot, (ProcessId, Option<Mapping>)>,
    requests: Sender<(u32, Vec<Request>)>,
    answers: Receiver<Answer>,
    /// Names are still being resolved.
    pub(super) is_waiting: bool,
    next: Instant,
}

impl Names {
    pub(super) fn new(files: ModuleFiles) -> Self {
        let symbols = Symbols::new().files(files);
        let (requests, received) = channel::<(u32, Vec<Request>)>();
        let (answer, answers) = channel();
        // Without the thread, addresses stay without names.
        let _ = std::thread::Builder::new()
            .name("otelctx-names".into())
            .spawn(move || {
                for (generation, requests) in received {
                    let start = Instant::now();
                    let mut found = Answer {
                        generation,
                        names: Vec::new(),
                        without_symbols: Vec::new(),
                        took: Duration::ZERO,
                    };
                    for request in requests {
                        find(request, &symbols, &mut found);
                    }
                    found.took = start.elapsed();
                    let answer = answer.send(found);
                    if answer.is_err() {
                        return;
                    }
                }
            });
        Self {
            generation: 0,
            known: HashMap::new(),
            without_symbols: HashMap::new(),
            wanted: HashMap::new(),
            requests,
            answers,
            is_waiting: false,
            next: Instant::now(),
        }
    }

    /// Returns the innermost function; for a thread that waits for an interpreter's lock, that it
    /// waits. Functions of an earlier catalog are counted together.
    pub(super) fn leaf(&mut self, catalog: &Catalog, stacks: &Stacks) -> Key {
        if stacks.catalog != self.generation {
            return Key::Others;
        }
        if catalog.frames(stacks.user).any(Frame::is_gil_wait) {
            return Key::Function(GilState::WAITING_FRAME.to_owned());
        }
        let innermost = self.frames(catalog, stacks, 1).pop();
        innermost.map_or(Key::Nothing, Key::Function)
    }

    /// Returns the innermost frames: names of functions, or of their files until the former are
    /// resolved.
    pub(super) fn frames(
        &mut self,
        catalog: &Catalog,
        stacks: &Stacks,
        most: usize,
    ) -> Vec<String> {
        if stacks.catalog != self.generation {
            return Vec::new();
        }
        let process = catalog.thread_facts(stacks.thread).process;
        let kernel = catalog.frames(stacks.kernel).map(|frame| (None, frame));
        let user = catalog.frames(stacks.user);
        let user = user.map(|frame| (Some(process), frame));
        let innermost = kernel.chain(user).take(most);
        let names = innermost.map(|(process, frame)| match frame {
            Frame::Named(named) => named.name().to_owned(),
            Frame::Native { address, .. } => {
                let address = frame.lookup_address().unwrap_or(*address);
                self.name(catalog, process, address)
            }
        });
        names.collect()
    }

    fn name(&mut self, catalog: &Catalog, process: Option<ProcessId>, address: u64) -> String {
        let (spot, mapping) = spot(catalog, process, address);
        let module = mapping.map(|mapping| catalog.module_facts(mapping.module));
        let Some(spot) = spot else {
            // Memory without a file has no symbols.
            return module.map_or_else(|| format!("{address:#x}"), file);
        };
        if let Some(Some(name)) = self.known.get(&spot) {
            return name.clone();
        }
        if !self.known.contains_key(&spot)
            && self.wanted.len() < MAX_ADDRESSES
            && let Some(process) = process.or_else(|| catalog.processes().next().map(|it| it.0))
        {
            self.wanted.insert(spot, (process, mapping.copied()));
        }
        match module {
            Some(module) => file(module),
            None => "[kernel]".into(),
        }
    }

    /// Returns the samples whose innermost function was looked up, and has no name because its file has no symbols.
    pub(super) fn without_symbols(&self, catalog: &Catalog, window: &Window) -> WithoutSymbols {
        let mut files = WithoutSymbols::default();
        if self.without_symbols.is_empty() {
            return files;
        }
        for (cell, samples) in window.cells() {
            let stacks = cell.stacks.as_ref();
            let Some(stacks) = stacks.filter(|it| it.catalog == self.generation) else {
                continue;
            };
            let user = catalog.frames(stacks.user).next();
            let innermost = catalog.frames(stacks.kernel).next().or(user);
            let process = catalog.thread_facts(stacks.thread).process;
            let address = innermost.and_then(Frame::lookup_address);
            let spot = address.and_then(|address| spot(catalog, Some(process), address).0);
            if let Some(spot) = spot
                && self.known.get(&spot) == Some(&None)
                && let Some(module) = spot.module
                && let Some(searched) = self.without_symbols.get(&module)
            {
                files.add_samples(catalog.module_facts(module), searched, samples);
            }
        }
        files
    }

    /// Takes the names that were resolved, and requests the missing ones. Returns whether there were
    /// new ones.
    pub(super) fn update(&mut self, catalog: &Catalog, generation: u32) -> bool {
        if generation != self.generation {
            self.generation = generation;
            self.known.clear();
            self.without_symbols.clear();
            self.wanted.clear();
        }
        let mut new = false;
        while let Ok(answer) = self.answers.try_recv() {
            self.is_waiting = false;
            self.next = Instant::now() + answer.took * IDLE_FACTOR;
            if answer.generation != generation {
                continue;
            }
            if self.known.len() + answer.names.len() > MAX_ADDRESSES {
                self.known.clear();
            }
            self.without_symbols.extend(answer.without_symbols);
            for (spot, name) in answer.names {
                new |= name.is_some();
                self.known.insert(spot, name);
            }
        }
        if !self.is_waiting && !self.wanted.is_empty() && Instant::now() >= self.next {
            let requests = self.requests(catalog);
            self.is_waiting = self.requests.send((generation, requests)).is_ok();
        }
        new
    }

    /// Sends the next request without a delay.
    pub(super) fn hurry(&mut self) {
        self.next = Instant::now();
    }

    /// Returns the requests, by module.
    fn requests(&mut self, catalog: &Catalog) -> Vec<Request> {
        let mut by_module: HashMap<Option<ModuleId>, Request> = HashMap::new();
        for (spot, (process, mapping)) in self.wanted.drain() {
            let request = by_module.entry(spot.module).or_insert_with(|| Request {
                module: match spot.module {
                    Some(module) => catalog.module_facts(module).clone(),
                    None => Module::kernel(),
                },
                process: ProcessFacts {
                    pid: catalog.process(process).pid,
                    ..ProcessFacts::default()
                },
                mapping,
                spots: Vec::new(),
            });
            request.spots.push(spot);
        }
        by_module.into_values().collect()
    }
}

/// Returns what stands for a function until its name is resolved.
fn file(module: &Module) -> String {
    let name = module.path.rsplit('/').next().unwrap_or_default();
    if name.starts_with('[') {
        name.to_owned()
    } else {
        format!("[{name}]")
    }
}

/// Returns the place of an address in a file or in the kernel, if it is in one, and its mapping.
fn spot(
    catalog: &Catalog,
    process: Option<ProcessId>,
    address: u64,
) -> (Option<Spot>, Option<&Mapping>) {
    let Some(process) = process else {
        let module = None;
        return (Some(Spot { module, address }), None);
    };
    let mapping = catalog.process(process).mapping_at(address, u64::MAX);
    let spot = mapping.and_then(|mapping| {
        let has_file = catalog.module_facts(mapping.module).has_file();
        has_file.then(|| Spot {
            module: Some(mapping.module),
            address: (address - mapping.start).wrapping_add(mapping.offset),
        })
    });
    (spot, mapping)
}

fn find(request: Request, symbols: &Symbols, answer: &mut Answer) {
    let mapping = request.mapping.as_ref();
    let query = SymbolQuery::new(&request.module, &request.process).mapped(mapping);
    let addresses: Vec<u64> = request.spots.iter().map(|spot| spot.address).collect();
    let mut symbols = symbols.clone();
    let functions = symbols.functions(query, &addresses);
    let names = functions.into_iter().map(|functions| {
        let innermost = functions.into_iter().next();
        innermost.map(|function| function.name)
    });
    let module = request.spots.first().and_then(|spot| spot.module);
    let searched = symbols.without_symbols(&request.module);
    let without_symbols = module.zip(searched.map(<[String]>::to_vec));
    answer.without_symbols.extend(without_symbols);
    answer.names.extend(request.spots.into_iter().zip(names));
}

#[cfg(test)]
mod tests {
    use otelctx_profile::sample::{FrameKind, NamedFrame};

    use super::*;

    #[test]
    fn a_frame_that_a_runtime_has_named_shows_that_name() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let checkout = NamedFrame {
            kind: FrameKind::CPYTHON,
            function: "checkout".into(),
            qualified_name: "Shop.checkout".into(),
            ..NamedFrame::default()
        };
        let stacks = Stacks {
            catalog: 0,
            thread: catalog.thread(process, 1, "main"),
            user: catalog.stack(&[Frame::from(checkout), Frame::return_address(0x11)]),
            kernel: catalog.stack(&[]),
        };
        let mut names = Names::new(ModuleFiles::default());
        let leaf = Key::Function("Shop.checkout".into());
        assert_eq!(names.leaf(&catalog, &stacks), leaf);
        // For an address in no mapping, the address itself.
        assert_eq!(
            names.frames(&catalog, &stacks, 9),
            ["Shop.checkout", "0x10"]
        );
    }

    #[test]
    fn a_thread_that_waits_for_the_gil_is_counted_by_that() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let waiting = NamedFrame {
            kind: FrameKind::CPYTHON,
            function: GilState::WAITING_FRAME.into(),
            ..NamedFrame::default()
        };
        let stacks = Stacks {
            catalog: 0,
            thread: catalog.thread(process, 1, "main"),
            user: catalog.stack(&[Frame::instruction(0x10), Frame::from(waiting)]),
            kernel: catalog.native_stack(&[1 << 63]),
        };
        let mut names = Names::new(ModuleFiles::default());
        let leaf = Key::Function("[waiting for the GIL]".into());
        assert_eq!(names.leaf(&catalog, &stacks), leaf);
    }
}
