//! Names of functions, resolved in the background: the symbols of a large program take a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use otelctx_profile::report::{LANGUAGES, LiveFrame, Selection};
use otelctx_profile::sample::{
    Catalog, Frame, GilState, Mapping, Module, ModuleFiles, ModuleId, ProcessFacts, ProcessId,
};
use otelctx_profile::{Function, SymbolQuery, Symbolizer};
use otelctx_symbolize::Symbols;

use super::rows::{By, Key};
use super::time::Time;
use super::window::{Cell, Stacks, Window};
use crate::command::without_symbols::WithoutSymbols;

/// Maximum number of addresses whose names are kept.
const MAX_ADDRESSES: usize = 1 << 16;
/// Maximum size of the names that are kept, in bytes.
const MAX_SIZE: usize = 32 << 20;
/// Kind of the frames of functions in files.
const NATIVE: &str = "native";
/// Kind of the frames of functions in the kernel.
const KERNEL: &str = "kernel";
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
    names: Vec<(Spot, Functions)>,
    without_symbols: Vec<(ModuleId, Vec<String>)>,
    took: Duration,
}

/// The functions at an address, innermost inlined function first; `None` if they are unknown.
type Functions = Option<Arc<[Function]>>;

/// The names of addresses in one catalog.
pub(super) struct Names {
    generation: u32,
    known: HashMap<Spot, Functions>,
    /// The size of their texts, in bytes.
    size: usize,
    /// Kinds of the frames that are shown; empty for all.
    kinds: Vec<&'static str>,
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
    /// Creates names for the frames of some languages, or of all if `languages` is empty.
    pub(super) fn new(files: ModuleFiles, languages: &[String]) -> Self {
        let all = LANGUAGES.into_iter();
        let kinds = all.filter(|(name, _)| languages.iter().any(|it| it == name));
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
            size: 0,
            kinds: kinds.map(|(_, kind)| kind).collect(),
            without_symbols: HashMap::new(),
            wanted: HashMap::new(),
            requests,
            answers,
            is_waiting: false,
            next: Instant::now(),
        }
    }

    /// Returns the innermost function, its file, or the line in it; for a thread that waits for an
    /// interpreter's lock, that it waits. Functions of an earlier catalog are counted together.
    pub(super) fn key(&mut self, by: &By, catalog: &Catalog, stacks: &Stacks) -> Key {
        if !self.has(stacks) {
            return Key::Others;
        }
        if catalog.frames(stacks.user).any(Frame::is_gil_wait) {
            return Key::Function(GilState::WAITING_FRAME.to_owned());
        }
        let mut innermost = None;
        self.frames(catalog, stacks, &mut |frame| {
            innermost = Some(frame);
            false
        });
        match (innermost, by) {
            (None, _) => Key::Nothing,
            (Some(frame), By::File | By::Line) if frame.file.is_empty() => Key::Nothing,
            (Some(frame), By::File) => Key::Function(frame.file),
            (Some(frame), By::Line) => Key::Function(format!("{}:{}", frame.file, frame.line)),
            (Some(frame), _) => Key::Function(frame.name),
        }
    }

    /// Returns true if stacks are of the catalog whose names are known.
    pub(super) fn has(&self, stacks: &Stacks) -> bool {
        stacks.catalog == self.generation
    }

    /// Returns the frames of a stack that are shown, innermost first; none of an earlier catalog.
    pub(super) fn stack(&mut self, catalog: &Catalog, stacks: &Stacks) -> Vec<LiveFrame> {
        let mut frames = Vec::new();
        self.frames(catalog, stacks, &mut |frame| {
            frames.push(frame);
            true
        });
        frames
    }

    /// Returns the samples whose stack has a function with one of these texts in its name or its
    /// file's; all if there are none.
    pub(super) fn selected<'w>(
        &mut self,
        catalog: &Catalog,
        window: &'w Window,
        functions: &[String],
    ) -> Vec<(&'w Cell, Time)> {
        let mut samples = window.all();
        if functions.is_empty() {
            return samples;
        }
        let mut selection = Selection::default();
        selection.functions = functions.to_vec();
        // Many cells have the same stack.
        let mut known = HashMap::new();
        samples.retain(|(cell, _)| {
            let Some(stacks) = cell.stacks.filter(|it| self.has(it)) else {
                return false;
            };
            let process = catalog.thread_facts(stacks.thread).process;
            let key = (process, stacks.user, stacks.kernel);
            *known.entry(key).or_insert_with(|| {
                let mut is_found = false;
                self.frames(catalog, &stacks, &mut |frame| {
                    is_found = selection.has_function(&frame.name, &frame.file);
                    !is_found
                });
                is_found
            })
        });
        samples
    }

    /// Calls `add` with frames until it returns false: functions, or their files until the former are
    /// resolved.
    fn frames(
        &mut self,
        catalog: &Catalog,
        stacks: &Stacks,
        add: &mut dyn FnMut(LiveFrame) -> bool,
    ) {
        if !self.has(stacks) {
            return;
        }
        let process = catalog.thread_facts(stacks.thread).process;
        let kernel = stacks.kernel.into_iter();
        let kernel = kernel.flat_map(|stack| catalog.frames(stack));
        let kernel = kernel.map(|frame| (None, frame));
        let user = catalog.frames(stacks.user);
        let user = user.map(|frame| (Some(process), frame));
        for (process, frame) in kernel.chain(user) {
            let kind = match (frame, process) {
                (Frame::Named(named), _) => named.kind.name(),
                (Frame::Native { .. }, Some(_)) => NATIVE,
                (Frame::Native { .. }, None) => KERNEL,
            };
            if !self.kinds.is_empty() && !self.kinds.contains(&kind) {
                continue;
            }
            let named = |name: String| LiveFrame {
                name,
                kind,
                ..LiveFrame::default()
            };
            let goes_on = match frame {
                Frame::Named(frame) => add(LiveFrame {
                    file: frame.file.clone(),
                    line: frame.line,
                    ..named(frame.name().to_owned())
                }),
                Frame::Native { address, .. } => {
                    let address = frame.lookup_address().unwrap_or(*address);
                    match self.functions(catalog, process, address) {
                        Ok(functions) => functions.iter().all(|function| {
                            add(LiveFrame {
                                file: function.file.clone(),
                                line: function.line,
                                ..named(function.name.clone())
                            })
                        }),
                        Err(name) => add(named(name)),
                    }
                }
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Returns the functions at an address, or what stands for them.
    fn functions(
        &mut self,
        catalog: &Catalog,
        process: Option<ProcessId>,
        address: u64,
    ) -> Result<Arc<[Function]>, String> {
        let (spot, mapping) = spot(catalog, process, address);
        let module = mapping.map(|mapping| catalog.module_facts(mapping.module));
        let Some(spot) = spot else {
            // Memory without a file has no symbols.
            return Err(module.map_or_else(|| format!("{address:#x}"), file));
        };
        if let Some(Some(functions)) = self.known.get(&spot) {
            return Ok(functions.clone());
        }
        if !self.known.contains_key(&spot)
            && self.wanted.len() < MAX_ADDRESSES
            && let Some(process) = process.or_else(|| catalog.processes().next().map(|it| it.0))
        {
            self.wanted.insert(spot, (process, mapping.copied()));
        }
        Err(match module {
            Some(module) => file(module),
            None => "[kernel]".into(),
        })
    }

    /// Returns the samples whose innermost function was looked up, and has no name because its file has no symbols.
    pub(super) fn without_symbols(&self, catalog: &Catalog, window: &Window) -> WithoutSymbols {
        let mut files = WithoutSymbols::default();
        if self.without_symbols.is_empty() {
            return files;
        }
        for (cell, time) in window.cells().filter(|(_, time)| time.samples > 0) {
            let stacks = cell.stacks.as_ref();
            let Some(stacks) = stacks.filter(|it| it.catalog == self.generation) else {
                continue;
            };
            let user = catalog.frames(stacks.user).next();
            let kernel = stacks.kernel.and_then(|it| catalog.frames(it).next());
            let innermost = kernel.or(user);
            let process = catalog.thread_facts(stacks.thread).process;
            let address = innermost.and_then(Frame::lookup_address);
            let spot = address.and_then(|address| spot(catalog, Some(process), address).0);
            if let Some(spot) = spot
                && self.known.get(&spot) == Some(&None)
                && let Some(module) = spot.module
                && let Some(searched) = self.without_symbols.get(&module)
            {
                files.add_samples(catalog.module_facts(module), searched, time.samples);
            }
        }
        files
    }

    /// Takes the names that were resolved, and requests the missing ones. Returns whether there were
    /// new ones.
    pub(super) fn update(&mut self, catalog: &Catalog, generation: u32) -> bool {
        if generation != self.generation {
            self.generation = generation;
            self.forget();
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
            if self.known.len() + answer.names.len() > MAX_ADDRESSES || self.size > MAX_SIZE {
                self.forget();
            }
            self.without_symbols.extend(answer.without_symbols);
            for (spot, name) in answer.names {
                new |= name.is_some();
                let functions = name.iter().flat_map(|functions| functions.iter());
                let sizes =
                    functions.map(|it| it.name.len() + it.system_name.len() + it.file.len());
                self.size += sizes.sum::<usize>();
                self.known.insert(spot, name);
            }
        }
        if !self.is_waiting && !self.wanted.is_empty() && Instant::now() >= self.next {
            let requests = self.requests(catalog);
            self.is_waiting = self.requests.send((generation, requests)).is_ok();
        }
        new
    }

    fn forget(&mut self) {
        self.known.clear();
        self.size = 0;
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
    let names = functions
        .into_iter()
        .map(|functions| (!functions.is_empty()).then(|| functions.into()));
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
            file: "shop.py".into(),
            line: 7,
        };
        let stacks = Stacks {
            catalog: 0,
            thread: catalog.thread(process, 1, "main"),
            user: catalog.stack(&[Frame::from(checkout), Frame::return_address(0x11)]),
            kernel: Some(catalog.stack(&[])),
        };
        let mut names = Names::new(ModuleFiles::default(), &[]);
        let key = |text: &str| Key::Function(text.into());
        let mut of = |by| names.key(&by, &catalog, &stacks);
        assert_eq!(of(By::Function), key("Shop.checkout"));
        assert_eq!(of(By::File), key("shop.py"));
        assert_eq!(of(By::Line), key("shop.py:7"));
        let shown = |languages: &[&str]| {
            let languages: Vec<String> = languages.iter().map(ToString::to_string).collect();
            let mut names = Names::new(ModuleFiles::default(), &languages);
            let frames = names.stack(&catalog, &stacks).into_iter();
            let frames = frames.map(|it| (it.name, it.line, it.kind));
            frames.collect::<Vec<_>>()
        };
        let python = ("Shop.checkout".to_owned(), 7, "cpython");
        // For an address in no mapping, the address itself.
        let native = ("0x10".to_owned(), 0, "native");
        assert_eq!(shown(&[]), [python.clone(), native.clone()]);
        assert_eq!(shown(&["python"]), [python]);
        assert_eq!(shown(&["native", "kernel"]), [native]);
        let mut names = Names::new(ModuleFiles::default(), &["ruby".to_owned()]);
        assert_eq!(names.key(&By::Function, &catalog, &stacks), Key::Nothing);
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
            kernel: Some(catalog.native_stack(&[1 << 63])),
        };
        let mut names = Names::new(ModuleFiles::default(), &[]);
        let leaf = Key::Function("[waiting for the GIL]".into());
        assert_eq!(names.key(&By::Function, &catalog, &stacks), leaf);
    }
}
