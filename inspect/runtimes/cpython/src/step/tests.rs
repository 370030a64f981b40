//! Samples of threads whose states the step cannot find in the threads themselves.

mod corrupt;
mod reused;

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::python::Interpreter;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::remote::{Modules, Target};
use otelctx_reader::runtime::{Runtime, RuntimeProcess, RuntimeThread, Runtimes, ThreadView};
use otelctx_reader::sample::{Catalog, Counts, Frame, FrameKind, GilState, Sample};
use otelctx_sampler::{INTERVAL, KernelObject, Options, Sampler, Targets};

use super::*;
use crate::find;
use crate::process::PythonProcess;

const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Samples of each thread.
const SAMPLES: usize = 100;

/// CPython, and a log of the threads that are read.
#[derive(Debug, Default)]
struct Logged {
    /// True if the function that shows where threads store their states could not be decoded.
    is_undecoded: bool,
    log: Arc<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// True if a thread state was found in the list.
    has_listed: AtomicBool,
    /// Thread states, and the functions that they had, outermost first.
    stacks: Mutex<BTreeSet<(String, Vec<String>)>>,
}

impl Log {
    fn add(&self, thread: &RuntimeThread) {
        let state = thread.facts.iter().find(|it| it.0 == "thread_state");
        let Some((_, Value::String(state))) = state else {
            panic!("{:?}", thread.facts)
        };
        let functions = thread.stack.frames().map(|frame| frame.function.clone());
        let mut functions: Vec<String> = functions.collect();
        functions.reverse();
        self.stacks
            .lock()
            .unwrap()
            .insert((state.clone(), functions));
    }
}

#[derive(Debug)]
struct LoggedProcess {
    process: PythonProcess,
    log: Arc<Log>,
}

impl Runtime for Logged {
    fn name(&self) -> &'static str {
        "cpython"
    }

    fn is_candidate(&self, file_name: &[u8]) -> bool {
        crate::Python::default().is_candidate(file_name)
    }

    fn probe(
        &self,
        target: &dyn Target,
        modules: &Modules,
    ) -> Result<Option<Arc<dyn RuntimeProcess>>, RuntimeError> {
        let Some(mut process) = find::find(target, modules, &Arc::default())? else {
            return Ok(None);
        };
        if self.is_undecoded {
            let step = process.step.take().unwrap();
            // The third word of the configuration.
            let (words, _) = step.configuration.as_chunks();
            let code_type = u64::from_ne_bytes(words[2]);
            (process.variables.thread_current, process.variables.own) = (None, None);
            process.step = kernel_step(&process.layout, &process.variables, code_type);
        }
        let log = self.log.clone();
        Ok(Some(Arc::new(LoggedProcess { process, log })))
    }
}

impl RuntimeProcess for LoggedProcess {
    fn facts(&self) -> otelctx_reader::format::process_context::Attributes {
        self.process.facts()
    }

    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let read = self.process.thread(target, thread)?;
        read.iter().for_each(|read| self.log.add(read));
        Ok(read)
    }

    fn kernel_step(&self) -> Option<&KernelStep> {
        self.process.kernel_step()
    }

    fn thread_word(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<u64>, RuntimeError> {
        let word = self.process.thread_word(target, thread)?;
        let has_listed = &self.log.has_listed;
        has_listed.fetch_or(word.is_some(), Ordering::Relaxed);
        Ok(word)
    }

    fn decode(
        &self,
        target: &dyn Target,
        part: &[u8],
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let read = self.process.decode(target, part)?;
        read.iter().for_each(|read| self.log.add(read));
        Ok(read)
    }
}

/// Samples of `released.py`.
struct Recording {
    catalog: Catalog,
    /// Each with the number of its drain.
    samples: Vec<(usize, Sample)>,
    counts: Counts,
    /// The function that each thread executes.
    threads: HashMap<i32, String>,
    /// The thread state of the thread that executes each.
    states: HashMap<String, String>,
}

impl Recording {
    /// Samples until each thread has many, also the one that starts meanwhile. `None`, with a line, where the kernel
    /// does not permit it.
    fn take(interpreter: &Interpreter, runtime: Arc<dyn Runtime>, with_ebpf: bool) -> Option<Self> {
        let mut target = interpreter.start("released.py");
        let mut options = Options::new(Targets::Processes(vec![target.pid()]));
        options.frequency = if with_ebpf { 999 } else { 99 };
        options.without_ebpf = !with_ebpf;
        options.runtimes = Runtimes::new(vec![runtime]);
        options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
        let mut sampler = Sampler::start(&options).unwrap();
        if with_ebpf {
            Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        }
        let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
        let (begin, mut drains, mut sampled) = (Instant::now(), 0, HashMap::new());
        while sampled.values().filter(|count| **count >= SAMPLES).count() < 5 {
            assert!(begin.elapsed() < TIMEOUT, "{interpreter:?}: {sampled:?}");
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |sample| samples.push((drains, sample)));
            if drains == 10 {
                target.command("another one");
            }
            drains += 1;
            sampled.clear();
            for (_, sample) in &samples {
                *sampled.entry(sample.thread).or_insert(0) += 1;
            }
        }
        let (mut threads, mut states) = (HashMap::new(), HashMap::new());
        for line in &target.lines {
            if let ["thread", tid, state, function] = line.split(' ').collect::<Vec<_>>()[..] {
                threads.insert(tid.parse().unwrap(), function.to_owned());
                states.insert(function.to_owned(), state.to_owned());
            }
        }
        Some(Self {
            threads,
            states,
            counts: sampler.counts(),
            catalog,
            samples,
        })
    }

    /// The functions of a sample, outermost first.
    fn functions(&self, sample: &Sample) -> Vec<&str> {
        let frames = self.catalog.frames(sample.user_stack).rev();
        let frames = frames.filter(|frame| !frame.is_gil_wait());
        let named = frames.filter_map(|frame| match frame {
            // The code of the interpreter is not found here, and with it not the place of its frames.
            Frame::Named(named) if named.kind == FrameKind::ABORT_MARKER => None,
            Frame::Named(named) => Some(&*named.function),
            Frame::Native { .. } => None,
        });
        named.collect()
    }

    /// Compares all samples with the functions that the threads execute, and the thread states with theirs.
    fn check(&self, interpreter: &Interpreter, log: &Log) {
        let is_old = interpreter.version.starts_with("2.");
        let start = if is_old {
            ["__bootstrap", "__bootstrap_inner", "run"]
        } else {
            ["_bootstrap", "_bootstrap_inner", "run"]
        };
        assert_eq!(self.threads.len(), 5);
        let mut sampled = BTreeSet::new();
        for (state, functions) in &*log.stacks.lock().unwrap() {
            // Before it calls its own function, a thread has the functions of others.
            if let Some((function, own)) = functions
                .get(3)
                .and_then(|it| self.states.get_key_value(it))
            {
                assert_eq!(state, own, "{interpreter:?}: {functions:?}");
                sampled.insert(function);
            }
        }
        assert_eq!(sampled.len(), 5, "{interpreter:?}");
        let mut firsts = HashMap::new();
        let [mut known, mut whole, mut released] = [0; 3];
        let (mut unresolved, mut late) = (0, 0);
        for (drain, sample) in &self.samples {
            let functions = self.functions(sample);
            unresolved += u64::from(functions.is_empty());
            let tid = self.catalog.thread_facts(sample.thread).tid;
            let Some(function) = self.threads.get(&tid) else {
                continue;
            };
            let first = *firsts.entry(tid).or_insert(*drain);
            if functions.is_empty() {
                // The thread word that the first drain requests is known in the third.
                late += usize::from(*drain > first + 1);
                continue;
            }
            known += 1;
            let expected = [&start[..], &[function]].concat();
            whole += usize::from(functions == expected);
            released += usize::from(sample.gil != Some(GilState::Held));
        }
        let counts = [whole, released, known, late];
        // With a margin, because few samples vary more.
        assert!(late * 100 <= known + 400, "{interpreter:?}: {counts:?}");
        assert!(
            (whole + 8) * 100 >= known * 99,
            "{interpreter:?}: {counts:?}"
        );
        assert!(released * 10 >= known * 9, "{interpreter:?}: {counts:?}");
        // Memory that is not resident cannot be read. A thread that has only just started has no state, and
        // requests none.
        let incomplete = self.counts.incomplete_steps;
        let counted = self.counts.unresolved_threads + incomplete;
        assert!(
            (counted..=counted + self.threads.len() as u64).contains(&unresolved),
            "{interpreter:?}: {unresolved}, {counted} counted"
        );
    }
}

const VERSIONS: [&str; 6] = ["3.6", "3.10", "3.11", "3.12", "3.13t", "3.15"];

/// Threads store their states where the step finds them; or only the interpreter's list has them.
#[test]
#[cfg_attr(
    target_arch = "aarch64",
    ignore = "in an emulator, samples come faster than they are read"
)]
fn samples_have_the_thread_states_without_the_gil() {
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        for is_undecoded in [false, true] {
            let runtime = Logged {
                is_undecoded,
                log: Arc::default(),
            };
            let log = runtime.log.clone();
            let Some(recording) = Recording::take(&interpreter, Arc::new(runtime), true) else {
                return;
            };
            recording.check(&interpreter, &log);
            let has_listed = log.has_listed.load(Ordering::Relaxed);
            let unresolved = recording.counts.unresolved_threads;
            let name = format!("{interpreter:?}: {unresolved}, {has_listed}");
            if is_undecoded {
                assert!(has_listed && unresolved > 0, "{name}")
            } else {
                // A thread that has only just started has not stored its state yet.
                assert!(unresolved <= 5, "{name}")
            }
        }
    }
}

/// Its threads keep their states in a list of its own.
#[test]
fn samples_of_2_7_have_the_thread_states_without_the_gil() {
    for interpreter in Interpreter::with_version("2.7") {
        for with_ebpf in [true, false] {
            let runtime = Logged::default();
            let log = runtime.log.clone();
            let Some(recording) = Recording::take(&interpreter, Arc::new(runtime), with_ebpf)
            else {
                continue;
            };
            recording.check(&interpreter, &log);
            let unresolved = recording.counts.unresolved_threads;
            assert_eq!(unresolved > 0, with_ebpf, "{unresolved}");
        }
    }
}
