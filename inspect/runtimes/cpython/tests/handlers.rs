//! Each sample has the functions of the request that its thread handles, and the context of the same request.
//!
//! Needs the right to use eBPF. `cargo xtask soak handlers` compares many more samples.

mod common;

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use common::{Starts, start};
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::sampled::Sampled;
use otelctx_fixtures::{Target, in_pid_namespace, tier};
use otelctx_reader::sample::{Catalog, Found, Frame, Sample};
use otelctx_sampler::INTERVAL;

/// Versions, with the number of samples of each.
const VERSIONS: [(&str, usize); 12] = [
    ("2.7", 10_000),
    ("3.6", 4000),
    ("3.7", 4000),
    ("3.8", 4000),
    ("3.9", 4000),
    ("3.10", 4000),
    ("3.11", 10_000),
    ("3.12", 10_000),
    ("3.13", 4000),
    ("3.13t", 10_000),
    ("3.14", 10_000),
    ("3.15", 4000),
];
/// The functions that the innermost one of a handler calls: two of them compute without the GIL.
const WORKS: [&str; 3] = ["spin", "digest", "compress"];
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Stacks that the program can have: functions, outermost first, with true if they start with the thread's first one,
/// and the kinds of requests whose contexts the thread may have meanwhile, which may be none.
struct Truth(HashMap<String, (bool, HashSet<Option<u8>>)>);

impl Truth {
    fn of(target: &Target) -> Self {
        let mut truth = HashMap::<String, (bool, HashSet<Option<u8>>)>::new();
        let lines = target.lines.iter();
        for stack in lines.filter_map(|it| it.strip_prefix("stack ")) {
            let (kind, functions) = stack.split_once(' ').unwrap();
            let handle = format!("handle_{kind}");
            let kind = Some(kind.parse::<u8>().unwrap());
            for work in WORKS {
                let functions: Vec<&str> = functions.split(' ').chain([work]).collect();
                let handle = functions.iter().position(|it| *it == handle).unwrap();
                for start in 0..functions.len() {
                    for end in start + 1..=functions.len() {
                        let entry = truth.entry(functions[start..end].join(" ")).or_default();
                        entry.0 |= start == 0;
                        // It attaches before the next call, and detaches after it.
                        let is_attached = (end - 1).cmp(&handle);
                        entry.1.extend(is_attached.is_le().then_some(None));
                        entry.1.extend(is_attached.is_ge().then_some(kind));
                    }
                }
            }
        }
        Self(truth)
    }

    /// Returns true if the functions of a sample are complete, and `None` if it is wrong.
    fn compare(&self, functions: &[&str], kind: Option<u8>) -> Option<bool> {
        // The first thread has no context.
        if functions[0] == "<module>" {
            return kind.is_none().then_some(true);
        }
        let (is_whole, kinds) = self.0.get(&functions.join(" "))?;
        kinds.contains(&kind).then_some(*is_whole)
    }
}

/// Numbers of a program's samples.
#[derive(Debug, Default)]
struct Tally {
    samples: usize,
    /// Samples with a context.
    attached: usize,
    /// Samples whose outer functions are missing.
    incomplete: usize,
    /// Samples with functions or a context that the program cannot have.
    wrong: Vec<String>,
    /// Samples of a thread's first second without functions: the recorder finds threads of 2.7 by their first samples.
    early: usize,
    /// For each thread: the time of its first sample, the number of others, and of those without functions.
    threads: HashMap<i32, (u64, [usize; 2])>,
    starts: Starts,
}

impl Tally {
    fn add(&mut self, truth: &Truth, catalog: &Catalog, sample: &Sample) {
        let functions = functions(catalog, sample);
        self.starts.add(catalog, sample);
        self.samples += 1;
        let tid = catalog.thread_facts(sample.thread).tid;
        let (first, thread) = self.threads.entry(tid).or_insert((sample.time, [0; 2]));
        if functions.is_empty() && sample.time - *first < 1_000_000_000 {
            self.early += 1;
        } else {
            thread[0] += 1;
            thread[1] += usize::from(functions.is_empty());
        }
        let kind = match sample.found {
            Found::Attached(id) => {
                let context = catalog.context_facts(id);
                let kind = context.span_id.to_bytes()[0];
                assert_eq!(context.span_id.to_bytes(), [kind; 8]);
                assert_eq!(context.trace_id.to_bytes(), [kind; 16]);
                Some(kind - 1)
            }
            Found::Detached => None,
            other => panic!("{other:?}"),
        };
        self.attached += usize::from(kind.is_some());
        if functions.is_empty() {
            return;
        }
        match truth.compare(&functions, kind) {
            Some(true) => {}
            Some(false) => self.incomplete += 1,
            None => self.wrong.push(format!("{functions:?}: {kind:?}")),
        }
    }

    /// Compares all figures with what must hold.
    fn check(self, interpreter: &Interpreter) {
        let is_oldest = interpreter.version.starts_with("2.");
        let Self {
            samples,
            attached,
            incomplete,
            early,
            ..
        } = self;
        let without: usize = self.threads.values().map(|it| it.1[1]).sum();
        eprintln!(
            "{interpreter}: {samples} samples, {attached} with a context, {incomplete} incomplete, \
                 {without} without functions, and {early} early ones"
        );
        assert_eq!(self.wrong, [""; 0], "{interpreter}");
        let name = interpreter.to_string();
        self.starts.check(&name);
        // Where the C library starts threads.
        let files = ["libc.so", "libc-", "libpthread"];
        self.starts.check_reached(&name, &files);
        // Little is executed outside of handlers, and a thread may only just have been scheduled.
        assert!(attached * 10 >= samples * 9, "{interpreter}: {self:?}");
        // And some, because few samples vary more.
        assert!(incomplete <= samples / 200 + 8, "{interpreter}: {self:?}");
        // Others find the state in the thread's own memory.
        assert!(early == 0 || is_oldest, "{interpreter}: {self:?}");
        for (_, thread) in self.threads.values() {
            assert!(thread[1] <= thread[0] / 100 + 8, "{interpreter}: {self:?}");
        }
        let often = self.threads.values().filter(|it| it.1[0] * 20 > samples);
        // In 2.7, the thread that gives the GIL up may take it again at once.
        assert!(often.count() >= 2 || is_oldest, "{interpreter}: {self:?}");
    }
}

/// The names of Python's functions, outermost first.
fn functions<'c>(catalog: &'c Catalog, sample: &Sample) -> Vec<&'c str> {
    let frames = catalog.frames(sample.user_stack).rev();
    let functions = frames.filter_map(|frame| match frame {
        // Code without a name, such as libffi's, and what the thread waits for.
        Frame::Named(frame) if frame.function.starts_with('[') => None,
        frame if frame.is_gil_wait() => None,
        Frame::Named(frame) => Some(&*frame.function),
        Frame::Native { .. } => None,
    });
    functions.collect()
}

/// Samples a program, in a PID namespace of its own or not. `None`, with a line, where it can't be built, or the kernel
/// does not permit it.
fn run(interpreter: &Interpreter, count: usize, is_namespaced: bool) -> Option<Tally> {
    let library = Sampled::own().publishing_library()?;
    let mut command = interpreter.command("handlers.py");
    command.arg(library);
    let (target, pid) = if is_namespaced {
        let target = Target::spawn(&mut in_pid_namespace(&command)?);
        let pid = target.child_pid();
        (target, pid)
    } else {
        let target = Target::spawn(&mut command);
        let pid = target.pid();
        (target, pid)
    };
    let truth = Truth::of(&target);
    let mut sampler = start(pid, 9_999, false)?;
    let mut catalog = Catalog::new();
    let mut tally = Tally::default();
    let begin = Instant::now();
    while tally.samples < count {
        assert!(
            begin.elapsed() < TIMEOUT + INTERVAL * count as u32 / 100,
            "{tally:?}"
        );
        std::thread::sleep(INTERVAL);
        // Before the process is known, stacks have no functions.
        let is_known = sampler.counts().complete_stacks > 0;
        let mut new = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        for sample in new.iter().filter(|_| is_known) {
            tally.add(&truth, &catalog, sample);
        }
    }
    Some(tally)
}

#[test]
fn each_sample_has_the_functions_and_the_context_of_the_same_request() {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let given: Option<usize> = number.ok().map(|number| number.parse().unwrap());
    for (version, count) in VERSIONS {
        for interpreter in Interpreter::with_version(version) {
            let usual = tier::usual_or_all(count / 3, count);
            let Some(tally) = run(&interpreter, given.unwrap_or(usual), false) else {
                return;
            };
            tally.check(&interpreter);
        }
    }
}

/// There, threads have other IDs than the kernel gives the sampler.
#[test]
fn samples_in_a_pid_namespace_have_them_too() {
    for version in ["2.7", "3.9", "3.12", "3.14"] {
        for interpreter in Interpreter::with_version(version) {
            let Some(tally) = run(&interpreter, tier::usual_or_all(700, 2000), true) else {
                return;
            };
            tally.check(&interpreter);
        }
    }
}
