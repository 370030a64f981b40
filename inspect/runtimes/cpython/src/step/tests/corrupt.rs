//! Changes words of a thread state, of frames and of code objects: the step in the kernel must find the
//! same stack as the walk in user space.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Compiler, HANG_TIMEOUT, Random, Target};
use otelctx_reader::format::process_context::Value;
use otelctx_reader::remote::{LiveProcess, Memory};
use otelctx_reader::runtime::{MAX_FRAMES, MAX_OUTERMOST, Present, RuntimeReading, Runtimes};
use otelctx_reader::sample::{Catalog, Frame, FrameKind, GilState, NamedFrame, Sample};
use otelctx_reader::{Options, Process, Thread};
use otelctx_sampler::{INTERVAL, KernelObject, Sampler, Targets, monotonic};

use crate::layout::{CallEnd, Gil, Instruction, Layout, TopFrame};
use crate::test_process::{find_python, open};

/// One version for each way to store frames, and modes: with `hold`, the thread has the GIL.
const VERSIONS: [(&str, &[&str]); 5] = [
    ("3.9", &["release"]),
    ("3.11", &["release"]),
    ("3.12", &["release", "hold"]),
    ("3.13t", &["release"]),
    ("3.14", &["release", "hold"]),
];
/// Number of words of a code object that are changed, from its type on: more than the step reads.
const CODE_WORDS: u64 = 20;
/// An address without memory.
const NOWHERE: u64 = 0x1234_5000;

/// A thread of `endless.py`, with the addresses of its frames.
struct Program {
    target: Target,
    memory: File,
    reader: LiveProcess<'static>,
    layout: Layout,
    tid: i32,
    state: u64,
    /// Its `_PyCFrame`s, innermost first, in 3.11 and 3.12.
    calls: Vec<u64>,
    /// Its frames, innermost first, including those without a function.
    frames: Vec<u64>,
    /// The code objects of its two innermost frames.
    codes: Vec<u64>,
}

impl Program {
    fn start(interpreter: &Interpreter, mode: &str) -> Option<Self> {
        let library = Compiler::gcc().library::<&str>(&["endless.c"], &[])?;
        let mut command = interpreter.command("endless.py");
        let target = Target::spawn(command.arg(library).arg(mode));
        let tid = target.lines[0].strip_prefix("thread ").unwrap();
        let tid = tid.parse().unwrap();
        let path = format!("/proc/{}/mem", target.pid());
        let memory = OpenOptions::new().read(true).write(true).open(path);
        let reader = open(target.pid());
        let layout = find_python(&reader).layout;
        let mut program = Self {
            memory: memory.unwrap(),
            reader,
            layout,
            tid,
            state: 0,
            calls: Vec::new(),
            frames: Vec::new(),
            codes: Vec::new(),
            target,
        };
        program.find();
        Some(program)
    }

    fn find(&mut self) {
        let mut process = process(self.target.pid());
        let present = process.runtimes().unwrap();
        let threads = process.threads().unwrap();
        let thread = threads.iter().find(|it| it.tid() == self.tid).unwrap();
        let state = stopped(thread, &present);
        let facts = &state[0].thread.as_ref().unwrap().facts;
        let state = facts.iter().find(|it| it.0 == "thread_state");
        let (_, Value::String(state)) = state.unwrap() else {
            panic!("{facts:?}")
        };
        self.state = u64::from_str_radix(&state[2..], 16).unwrap();
        let mut frame = match self.layout.thread.frame {
            TopFrame::Direct(frame) => self.word(self.state + frame),
            TopFrame::CFrame { cframe, current } => {
                let mut call = self.word(self.state + cframe);
                for _ in 0..3 {
                    self.calls.push(call);
                    call = self.word(call + current + 8);
                }
                self.word(self.calls[0] + current)
            }
        };
        while frame != 0 {
            self.frames.push(frame);
            frame = self.word(frame + self.layout.frame.previous);
        }
        // `inner`, `numbers`, the lambda, `middle`, `outer` and the module's.
        assert!(self.frames.len() >= 8, "{:x?}", self.frames);
        let code = |frame: &u64| self.word(frame + self.layout.frame.code) & !3;
        self.codes = self.frames[..2].iter().map(code).collect();
    }

    fn word(&self, address: u64) -> u64 {
        self.reader.read_u64(address).unwrap()
    }

    fn write(&self, (address, word): Change) {
        self.memory
            .write_all_at(&word.to_ne_bytes(), address)
            .unwrap();
    }

    /// The offsets of a frame's words that are read.
    fn fields(&self) -> Vec<u64> {
        let frame = &self.layout.frame;
        let instruction = match frame.instruction {
            Instruction::Last { at, .. } | Instruction::Address(at) => at,
        };
        let mut fields = vec![frame.previous, frame.code, instruction];
        fields.extend(frame.copy);
        match frame.end {
            CallEnd::Every => {}
            CallEnd::Flag { is_entry, owner } => fields.extend([is_entry, owner]),
            CallEnd::Shim { owner, .. } => fields.push(owner),
        }
        fields
    }

    /// The addresses of words that the walk reads of a thread that is known.
    fn places(&self) -> Vec<u64> {
        let (top, current) = match self.layout.thread.frame {
            TopFrame::Direct(frame) => (frame, 0),
            TopFrame::CFrame { cframe, current } => (cframe, current),
        };
        let mut places = vec![self.state + self.layout.thread.id, self.state + top];
        let calls = self.calls.iter();
        places.extend(calls.flat_map(|call| [call + current, call + current + 8]));
        let frames = self.frames[..5].iter();
        places.extend(frames.flat_map(|frame| self.fields().into_iter().map(move |at| frame + at)));
        let start = self.layout.object.object_type();
        let codes = self.codes.iter();
        places.extend(codes.flat_map(|code| (0..CODE_WORDS).map(move |at| code + start + 8 * at)));
        places
    }

    /// The addresses of structures of the thread.
    fn values(&self) -> Vec<u64> {
        let mut values = vec![self.state];
        values.extend(&self.calls);
        values.extend(&self.frames);
        values.extend(&self.codes);
        values
    }

    /// One change for each check of the walk, and those around it.
    fn chosen(&self) -> Vec<Vec<Change>> {
        let values = |good: u64| {
            let others = [
                0,
                NOWHERE,
                u64::MAX,
                u64::MAX - 3,
                self.state,
                self.codes[1],
            ];
            let near = [1, 4, 0_u64.wrapping_sub(8)];
            let near = near.map(|it| good.wrapping_add(it));
            others.into_iter().chain(near)
        };
        let mut one: Vec<Change> = Vec::new();
        let mut add = |address: u64, words: &[u64]| {
            one.extend(words.iter().map(|word| (address, *word)));
        };
        let all = |address: u64| values(self.word(address)).collect::<Vec<_>>();
        add(self.state + self.layout.thread.id, &[0, NOWHERE]);
        match self.layout.thread.frame {
            TopFrame::Direct(frame) => {
                add(self.state + frame, &all(self.state + frame));
                add(self.state + frame, &self.frames[1..4]);
            }
            TopFrame::CFrame { cframe, current } => {
                add(self.state + cframe, &all(self.state + cframe));
                add(self.state + cframe, &self.calls[1..]);
                for call in &self.calls[..2] {
                    add(call + current, &all(call + current));
                    add(call + current, &self.frames[..4]);
                    add(call + current + 8, &all(call + current + 8));
                    // A call that leads to itself.
                    add(call + current + 8, &self.calls);
                }
            }
        }
        for (index, frame) in self.frames[..5].iter().enumerate() {
            let previous = frame + self.layout.frame.previous;
            add(previous, &all(previous));
            // Cycles, and a frame that is skipped.
            add(previous, &self.frames[..=index]);
            add(previous, &[self.frames[index + 2]]);
        }
        for frame in &self.frames[..2] {
            let code = frame + self.layout.frame.code;
            add(code, &all(code));
            add(code, &self.codes);
            for at in self.fields().into_iter().skip(2) {
                add(frame + at, &all(frame + at));
                add(frame + at, &[1, 2, 3, 4, 5, 1 << 8, 1 << 16]);
            }
        }
        let start = self.layout.object.object_type();
        let code = &self.layout.code;
        let fields = [start, code.name, code.filename, code.line_table];
        for at in fields {
            let at = self.codes[0] + at;
            add(at, &[0, NOWHERE, u64::MAX, self.codes[1], self.state]);
        }
        one.into_iter().map(|change| vec![change]).collect()
    }
}

/// An address, and the word there.
type Change = (u64, u64);

fn any<'v>(random: &mut Random, all: &'v [u64]) -> &'v u64 {
    &all[random.below(all.len() as u64) as usize]
}

/// One to three changes of any words.
fn random_changes(random: &mut Random, program: &Program) -> Vec<Change> {
    let (places, values) = (program.places(), program.values());
    let count = 1 + random.below(3);
    let changes = (0..count).map(|_| {
        let address = *any(random, &places);
        let word = match random.below(7) {
            0 => random.below(u64::MAX),
            1 => *any(random, &values),
            2 => *any(random, &values) + random.below(64),
            3 => random.below(8),
            // Addresses of the kernel, and numbers that are no addresses.
            4 => u64::MAX - random.below(1 << 46),
            5 => program.word(address) ^ 1 << random.below(64),
            _ => 1 << random.below(64),
        };
        (address, word)
    });
    changes.collect()
}

fn runtimes() -> Runtimes {
    Runtimes::new(vec![Arc::new(crate::Python::default())])
}

fn process(pid: i32) -> Process {
    let mut options = Options::default();
    options.runtimes = runtimes();
    Process::with_options(pid, options).unwrap()
}

/// Reads a thread's runtimes while it is stopped.
fn stopped(thread: &Thread<'_>, present: &[Present]) -> Vec<RuntimeReading> {
    // On a busy machine, it may not stop in time.
    let mut states = (0..10).map(|_| thread.state(present, None));
    states.find_map(Result::ok).expect("it stops").runtimes
}

/// A stack, as the walk or the step reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Stack {
    /// Functions and lines, innermost first.
    frames: Vec<(String, u32)>,
    is_truncated: bool,
}

impl Stack {
    const ERROR: Self = Self {
        frames: Vec::new(),
        is_truncated: true,
    };

    fn new<'f>(frames: impl Iterator<Item = &'f NamedFrame>, is_truncated: bool) -> Self {
        // How many were read before the end depends on who reads.
        let frames = frames.filter(|it| it.kind != FrameKind::ABORT_MARKER);
        Self {
            frames: frames.map(|it| (it.function.clone(), it.line)).collect(),
            is_truncated,
        }
    }

    /// Returns true if the walk has found the same stack. It has no functions without a name: it ends
    /// there or, if that may be a call that has only just begun (see [`Call`](crate::frames)), begins
    /// with the caller.
    fn is_walked(&self, walked: &Self) -> bool {
        // A cycle, in which the step may have read fewer frames.
        if walked.frames.len() == MAX_FRAMES - MAX_OUTERMOST && walked.is_truncated {
            let is_cycle = self.is_truncated && self.frames.len() > 20;
            return is_cycle && walked.frames.starts_with(&self.frames);
        }
        let unnamed = self.frames.iter().rposition(|it| it.0 == "[Python]");
        let Some(unnamed) = unnamed else {
            return self == walked;
        };
        let first = self.frames.iter().position(|it| it.0 == "[Python]");
        let is_end = walked.is_truncated && Some(walked.frames.len()) == first;
        if is_end {
            self.frames.starts_with(&walked.frames)
        } else {
            let is_outer = self.frames[unnamed + 1..].ends_with(&walked.frames);
            is_outer && self.is_truncated == walked.is_truncated
        }
    }
}

/// A stack, and true if the thread holds the GIL, if there is one. `None` if nothing was found.
type Sampled = Option<(Stack, Option<bool>)>;

/// Walks the stack in user space. `None` for a thread that has no thread state or, without a GIL, no stack.
fn walked(thread: &Thread<'_>, present: &[Present]) -> Sampled {
    let readings = stopped(thread, present);
    match &readings.first()?.thread {
        Ok(read) => {
            let stack = Stack::new(read.stack.frames(), read.stack.is_truncated);
            let gil = read.gil.as_ref().map(|gil| gil.is_held);
            (stack != Stack::default() || gil.is_some()).then_some((stack, gil))
        }
        Err(_) => Some((Stack::ERROR, None)),
    }
}

/// Takes samples of one thread.
struct Samples {
    sampler: Sampler,
    catalog: Catalog,
}

impl Samples {
    /// `None`, with a line of output, if the kernel does not permit it.
    fn start(pid: i32) -> Option<Self> {
        let mut options = otelctx_sampler::Options::new(Targets::Processes(vec![pid]));
        options.frequency = 1999;
        options.runtimes = runtimes();
        options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
        let sampler = Sampler::start(&options).unwrap();
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        Some(Self {
            sampler,
            catalog: Catalog::new(),
        })
    }

    /// The stacks of at least three samples that are taken from now on, once the step knows the thread
    /// state that it has requested.
    fn take(&mut self, tid: i32) -> BTreeSet<Sampled> {
        (0..100)
            .find_map(|_| self.resolved(tid))
            .expect("the step knows the thread state")
    }

    /// Like [`Self::take`]. `None` if the step has requested the thread state meanwhile.
    fn resolved(&mut self, tid: i32) -> Option<BTreeSet<Sampled>> {
        self.sampler.drain(&mut self.catalog, &mut |_| {});
        let (start, before) = (monotonic(), self.sampler.counts());
        let deadline = Instant::now() + HANG_TIMEOUT;
        let mut samples = Vec::<Sample>::new();
        while samples.len() < 3 {
            assert!(Instant::now() < deadline, "no samples");
            std::thread::sleep(INTERVAL / 4);
            let drained = &mut |sample| samples.push(sample);
            self.sampler.drain(&mut self.catalog, drained);
            let catalog = &self.catalog;
            samples.retain(|it| it.time >= start && catalog.thread_facts(it.thread).tid == tid);
        }
        let after = self.sampler.counts();
        let all = samples.len() as u64;
        let is_truncated = after.truncated_runtime_stacks - before.truncated_runtime_stacks >= all;
        if after.unresolved_threads > before.unresolved_threads {
            return None;
        }
        let incomplete = after.incomplete_steps - before.incomplete_steps;
        let outcome = |sample: &Sample| {
            let frames: Vec<&Frame> = self.catalog.frames(sample.user_stack).collect();
            let frames = frames.iter().filter(|frame| !frame.is_gil_wait());
            let named = frames.filter_map(|frame| match frame {
                Frame::Named(named) if named.kind == FrameKind::CPYTHON => Some(&**named),
                _ => None,
            });
            let stack = Stack::new(named, is_truncated);
            let gil = sample.gil.map(|gil| gil == GilState::Held);
            // A sample for which the step has found nothing is only counted, once.
            let is_nothing = stack == Stack::default() && gil.is_none();
            (!is_nothing && incomplete < all).then_some((stack, gil))
        };
        Some(samples.iter().map(outcome).collect())
    }
}

fn check(interpreter: &Interpreter, mode: &str) -> Option<()> {
    let program = Program::start(interpreter, mode)?;
    let mut samples = Samples::start(program.target.pid())?;
    let mut process = process(program.target.pid());
    let present = process.runtimes().unwrap();
    let threads = process.threads().unwrap();
    let thread = threads.iter().find(|it| it.tid() == program.tid).unwrap();
    let good = walked(thread, &present);
    let (stack, _) = good.clone().unwrap();
    let functions: Vec<&str> = stack.frames.iter().map(|it| &*it.0).collect();
    let expected = ["inner", "numbers", "<lambda>", "middle", "outer", "run"];
    assert_eq!(functions[..6], expected, "{interpreter} {mode}");
    // Until the sampler tracks the process.
    let is_known = (0..200).any(|_| samples.take(thread.tid()) == BTreeSet::from([good.clone()]));
    assert!(is_known, "{interpreter} {mode}: {good:?}");

    let mut cases = program.chosen();
    let mut random = Random::new(0x9e37_79b9_7f4a_7c15);
    cases.extend((0..60).map(|_| random_changes(&mut random, &program)));
    // Complete, truncated, and without a thread state.
    let mut counts = [0; 3];
    for changes in &cases {
        let old: Vec<Change> = changes
            .iter()
            .map(|change| (change.0, program.word(change.0)))
            .collect();
        changes.iter().for_each(|change| program.write(*change));
        let expected = walked(thread, &present);
        let found = samples.take(thread.tid());
        let name = || format!("{interpreter} {mode}: {changes:x?} instead of {old:x?}");
        let found: Vec<_> = found.into_iter().collect();
        let [found] = &found[..] else {
            panic!("{}: {found:?}, not {expected:?}", name())
        };
        let is_same = match (found, &expected) {
            // If the walk fails, the GIL's state is unknown.
            (Some((found, gil)), Some((walked, known))) => {
                found.is_walked(walked) && (gil == known || *walked == Stack::ERROR)
            }
            (None, None) => true,
            _ => false,
        };
        assert!(is_same, "{}: {found:?}, not {expected:?}", name());
        let found = found.clone().map(|it| it.0);
        let is_bounded = |it: &Stack| it.is_truncated || it.frames.len() <= stack.frames.len();
        assert!(found.as_ref().is_none_or(is_bounded), "{}", name());
        counts[found.map_or(2, |it| usize::from(it.is_truncated))] += 1;
        old.iter().rev().for_each(|change| program.write(*change));
    }
    eprintln!("{interpreter} {mode}: {counts:?}");
    let [whole, truncated, without] = counts;
    assert!(whole > 20 && truncated > 20, "{interpreter} {mode}");
    // Later, a thread may have a thread state that has another one's ID.
    let is_by_id = program.layout.gil == Gil::Current;
    assert!(without > 0 || !is_by_id, "{interpreter} {mode}");
    assert_eq!(walked(thread, &present), good);
    assert_eq!(samples.take(thread.tid()), BTreeSet::from([good]));
    Some(())
}

#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "in an emulator, samples come faster than they are read"
)]
fn the_kernel_comes_to_the_stack_of_the_walk_whatever_the_words_are() {
    for (version, modes) in VERSIONS {
        // Others with the same version have the same layout.
        if let Some(interpreter) = Interpreter::with_version(version).first() {
            for mode in modes {
                check(interpreter, mode);
            }
        }
    }
}
