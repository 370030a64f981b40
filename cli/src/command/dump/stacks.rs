//! Native stacks of threads, by unwind tables.
//!
//! The stack of a sleeping thread is walked from its stack and instruction pointer, which the kernel
//! shows without stopping it. Its other registers are unknown: a stack whose unwind tables need one
//! ends there, and says so. A running thread is stopped, and has all registers.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use otelctx_reader::remote::mappings::ExecutableMapping;
use otelctx_reader::remote::threads::{Call, ThreadFiles};
use otelctx_reader::remote::{self, Stopped, Target, module};
use otelctx_reader::runtime::GeneratedWalkers;
use otelctx_reader::sample::{self, Module};
use otelctx_reader::sweep::{Sweep, ThreadReading};
use otelctx_reader::{Process, StopReason, Thread};
use otelctx_sampler::{GeneratedNames, monotonic};
use otelctx_unwind::{CodeMap, Dictionary, MAX_FRAMES, MakeRules, Registers, walk_generated};
use otelctx_waits::Reason;

use super::stack::{Code, Region, Stack, ThreadStack};
use super::waits::Waits;

/// Attempts to walk the stack of a thread asleep, and to stop a thread that another reader has
/// stopped.
const MAX_TRIES: usize = 3;
/// Minimum time to wait for a thread to stop, even if less is left until the deadline: once requested,
/// the stop happens whether or not it is awaited.
const MIN_STOP_TIMEOUT: Duration = Duration::from_millis(20);
/// Delay before retrying.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

#[derive(Debug, Clone)]
pub(super) struct StackOptions {
    /// The rules of unwind tables, which processes share.
    pub(super) dictionary: Arc<Dictionary>,
    /// Stop sleeping threads whose stacks need it (`--stop-sleeping`).
    pub(super) stop_sleeping: bool,
    /// They are part of the report (`--stacks`).
    pub(super) are_shown: bool,
    /// Also find out why sleeping threads wait (`--waits`).
    pub(super) waits: Option<Waits>,
}

pub(super) struct StackReader {
    options: StackOptions,
    /// An error if the process's mappings cannot be read.
    code_map: Result<CodeMap, String>,
    /// Runtimes that walk the code that they have generated.
    generated: GeneratedWalkers,
    /// Time from which no thread is stopped any more.
    deadline: Instant,
    /// By thread ID.
    pub(super) stacks: HashMap<i32, ThreadStack>,
    /// Why threads wait, by thread ID.
    pub(super) reasons: HashMap<i32, Reason>,
    /// Memory of the stacks, in bytes.
    pub(super) memory: usize,
    /// The code that the stacks are in.
    pub(super) code: Option<Code>,
}

impl StackReader {
    pub(super) fn new(options: &StackOptions) -> Self {
        Self {
            options: options.clone(),
            code_map: Ok(CodeMap::default()),
            generated: GeneratedWalkers::default(),
            deadline: Instant::now(),
            stacks: HashMap::new(),
            reasons: HashMap::new(),
            memory: 0,
            code: None,
        }
    }

    /// Returns whether the stacks are part of the report.
    pub(super) fn are_shown(&self) -> bool {
        self.options.are_shown
    }

    pub(super) fn begin(&mut self, process: &Process, deadline: Instant) {
        let read = |target: &dyn Target| {
            let dictionary = &self.options.dictionary;
            CodeMap::read(target, process.files(), dictionary, MakeRules::OnDemand)
        };
        let target = process.as_target();
        self.generated = target.as_ref().map_or_else(Default::default, |target| {
            GeneratedWalkers::of(process.known_runtimes(), &**target)
        });
        let code_map = target.map(|target| read(&*target)).transpose();
        self.code_map = code_map
            .map(Option::unwrap_or_default)
            .map_err(|error| error.to_string());
        self.deadline = deadline;
        self.stacks.clear();
        self.reasons.clear();
        self.memory = 0;
    }

    /// Reads a thread with `read`, and walks its stack at the same moment if possible. `stopped` is
    /// the thread, if it is already stopped; `read` gets the thread if it was stopped here.
    pub(super) fn read(
        &mut self,
        thread: &Thread<'_>,
        stopped: Option<&Stopped>,
        read: &mut dyn FnMut(Option<&Stopped>) -> ThreadReading,
    ) -> ThreadReading {
        let mut reason = None;
        let (reading, stack) = match (thread.process().running(), stopped) {
            (Err(_), _) => (read(None), self.saved(thread)),
            (Ok(_), Some(stopped)) => (read(None), self.of_stopped(thread, stopped)),
            (Ok(process), None) => self.live(process, thread, &mut reason, read),
        };
        if let Some(reason) = reason {
            self.reasons.insert(thread.tid(), reason);
        }
        self.memory += stack.as_ref().map_or(0, |it| size_of_val(&it.frames[..]));
        self.stacks.insert(thread.tid(), stack);
        reading
    }

    /// Reads a thread that must not be stopped with `read`, and walks its stack at the same moment if
    /// the thread sleeps for long enough.
    fn read_unstopped(
        &self,
        process: &remote::Process,
        thread: &Thread<'_>,
        reason: &mut Option<Reason>,
        read: &mut dyn FnMut(Option<&Stopped>) -> ThreadReading,
    ) -> (ThreadReading, ThreadStack) {
        let max_bytes = Sweep::DEFAULT_MAX_BYTES;
        if Instant::now() >= self.deadline {
            return (read(None), Err("the deadline has passed".into()));
        }
        if self.memory > max_bytes {
            let why = format!("the stacks take more than {} MiB", max_bytes >> 20);
            return (read(None), Err(why));
        }
        let mut files = match ThreadFiles::open(process, thread.tid()) {
            Ok(files) => files,
            Err(error) => return (read(None), Err(error.to_string())),
        };
        for _ in 0..MAX_TRIES {
            let asleep = self.read_asleep(thread, &mut files, |call, stack| {
                (read(None), self.why(process, thread, call, stack))
            });
            match asleep {
                Ok(Some((stack, (reading, why)))) => {
                    *reason = why;
                    return (reading, Ok(stack));
                }
                Ok(None) => {}
                Err(_) => break,
            }
        }
        let reading = read(None);
        let separate = |stack| Stack {
            is_separate: true,
            ..stack
        };
        (reading, self.asleep(thread, &mut files).map(separate))
    }

    /// Why a thread waits that sleeps in `call`, if that is asked for.
    fn why(
        &self,
        process: &remote::Process,
        thread: &Thread<'_>,
        call: &Call,
        stack: &Stack,
    ) -> Option<Reason> {
        let waits = self.options.waits.as_ref()?;
        Some(waits.reason(process, thread.tid(), call, stack))
    }

    /// Walks the stack of a thread that must not be stopped.
    fn asleep(&self, thread: &Thread<'_>, files: &mut ThreadFiles) -> ThreadStack {
        for _ in 0..MAX_TRIES {
            if let Some((stack, ())) = self.read_asleep(thread, files, |_, _| ())? {
                return Ok(stack);
            }
        }
        Err("the thread was running: try without --no-stop".into())
    }

    fn live(
        &self,
        process: &remote::Process,
        thread: &Thread<'_>,
        reason: &mut Option<Reason>,
        read: &mut dyn FnMut(Option<&Stopped>) -> ThreadReading,
    ) -> (ThreadReading, ThreadStack) {
        let (tid, options) = (thread.tid(), thread.process().options());
        if options.never_stop {
            return self.read_unstopped(process, thread, reason, read);
        }
        let mut files = match ThreadFiles::open(process, tid) {
            Ok(files) => files,
            Err(error) => return (read(None), Err(error.to_string())),
        };
        let is_lengthened = |files: &ThreadFiles| {
            let call = files.call().ok().flatten();
            call.is_some_and(|call| call.is_lengthened_by_a_stop(process.pid()))
        };
        let mut tries = 0;
        // The stop of a reading that does not count: the thread has run since its stack was walked.
        let mut stop = None;
        loop {
            tries += 1;
            let asleep = self.read_asleep(thread, &mut files, |call, stack| {
                let needs_stop = self.options.stop_sleeping
                    && stack.needs_stop()
                    && !call.is_lengthened_by_a_stop(process.pid())
                    && tries <= 2 * MAX_TRIES;
                if needs_stop {
                    return None;
                }
                let mut reading = read(None);
                stop = stop.or(reading.stop);
                reading.stop = stop;
                Some((reading, self.why(process, thread, call, stack)))
            });
            let stop_reason = match asleep {
                Ok(Some((stack, Some((reading, why))))) => {
                    *reason = why;
                    return (reading, Ok(stack));
                }
                Ok(Some((_, None))) => StopReason::Stack,
                Ok(None) if tries < MAX_TRIES => continue,
                // It may have gone to sleep since then.
                Ok(None) if tries <= 2 * MAX_TRIES && is_lengthened(&files) => continue,
                Ok(None) => StopReason::Running,
                Err(error) => return (read(None), Err(error)),
            };
            let left = self.deadline.saturating_duration_since(Instant::now());
            let timeout = options.stop_timeout.min(left.max(MIN_STOP_TIMEOUT));
            match Stopped::stop(process, tid, timeout) {
                Ok(stopped) => {
                    let stack = self.of_stopped(thread, &stopped);
                    let mut reading = read(Some(&stopped));
                    reading.stop = Some(stop_reason);
                    return (reading, stack);
                }
                Err(remote::Error::AlreadyTraced { .. }) if tries <= 2 * MAX_TRIES => {
                    sleep(RETRY_INTERVAL);
                }
                Err(error) => return (read(None), Err(error.to_string())),
            }
        }
    }

    /// Walks the stack of a thread that sleeps, and calls `read` meanwhile. Returns `None` if the
    /// thread was running, or ran before `read` returned.
    fn read_asleep<T>(
        &self,
        thread: &Thread<'_>,
        files: &mut ThreadFiles,
        read: impl FnOnce(&Call, &Stack) -> T,
    ) -> Result<Option<(Stack, T)>, String> {
        let asleep = files.read_call_asleep(|call| {
            let (pc, sp) = (call.instruction_pointer, call.stack_pointer);
            let registers = Registers::new(remote::Machine::own(), pc, sp);
            let stack = self.walk(thread, registers, true)?;
            let read = read(call, &stack);
            Ok((stack, read))
        });
        asleep.map_err(|error| error.to_string())?.transpose()
    }

    fn of_stopped(&self, thread: &Thread<'_>, stopped: &Stopped) -> ThreadStack {
        self.walk(thread, Registers::of_stopped(stopped.registers()), false)
    }

    fn saved(&self, thread: &Thread<'_>) -> ThreadStack {
        let target = thread.process().as_target();
        let target = target.ok_or("it cannot be read")?;
        let saved = target.thread(thread.tid());
        let saved = saved.map_err(|error| error.to_string())?;
        let registers = saved.registers.ok_or("its registers are missing")?;
        let registers = Registers::of_call(target.machine(), &registers);
        self.walk(thread, registers, false)
    }

    fn walk(
        &self,
        thread: &Thread<'_>,
        registers: Option<Registers>,
        is_asleep: bool,
    ) -> ThreadStack {
        let registers = registers.ok_or("stacks of this architecture are not supported")?;
        let code = self.code_map.as_ref().map_err(String::clone)?;
        let target = thread.process().as_target().ok_or("it cannot be read")?;
        let mut frames = Vec::new();
        let walkers = self.generated.walkers();
        let limit = MAX_FRAMES;
        let end = walk_generated(&registers, code, walkers, &*target, limit, &mut frames);
        frames.shrink_to_fit();
        Ok(Stack {
            frames,
            generated: HashMap::new(),
            end,
            is_asleep,
            is_separate: false,
        })
    }

    /// Names the functions of frames that runtimes have walked.
    fn name_generated(&mut self, process: &Process) {
        let Some(target) = process.as_target() else {
            return;
        };
        for stack in self.stacks.values_mut().flatten() {
            for (index, frame) in stack.frames.iter().enumerate() {
                let Some(found) = &frame.generated else {
                    continue;
                };
                let (walker, record) = (found.walker, &found.record);
                let functions = self
                    .generated
                    .frames(&*target, walker, frame.address, record);
                let is_native = |it: &sample::Frame| matches!(it, sample::Frame::Native { .. });
                if functions.iter().all(is_native) {
                    continue;
                }
                self.memory += size_of_val(&functions[..]);
                stack.generated.insert(index, functions);
            }
        }
    }

    /// Finds the code that the stacks are in, and opens its files.
    pub(super) fn end(&mut self, process: &Process) {
        self.name_generated(process);
        let stacks = self.stacks.values().flatten();
        let lookups = stacks.flat_map(|stack| {
            let frames = stack.frames().enumerate();
            let named = |index: &usize| stack.generated.contains_key(index);
            frames.filter_map(move |(index, (_, lookup))| (!named(&index)).then_some(lookup))
        });
        let mut lookups: Vec<u64> = lookups.collect();
        lookups.sort_unstable();
        lookups.dedup();
        let code = self.code.insert(Code {
            time: monotonic(),
            is_live: process.running().is_ok(),
            ..Code::default()
        });
        let Some(target) = process.as_target() else {
            return;
        };
        let mut left = &lookups[..];
        // If they cannot be read any more, the stacks have addresses alone.
        let _ = target.executable_mappings(&mut |found| {
            let mapping = &found.mapping;
            let below = left.partition_point(|address| *address < mapping.start);
            let inside = left.partition_point(|address| *address < mapping.end);
            if below < inside {
                code.add(&*target, found, &left[below..inside]);
            }
            left = &left[inside..];
            match left {
                [] => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
    }

    /// Reads the names of generated code. A runtime may have announced so much of it that this takes
    /// until the deadline, so the process must not be stopped.
    pub(super) fn read_generated(&mut self, process: &Process) {
        let Some(code) = &mut self.code else {
            return;
        };
        let regions = code.regions.iter();
        let generated = regions.filter(|region| GeneratedNames::may_be_in(&region.module));
        let addresses = generated.flat_map(|region| region.lookups.iter().copied());
        let addresses: Vec<u64> = addresses.collect();
        if let Ok(process) = process.running()
            && !addresses.is_empty()
        {
            let names = GeneratedNames::read(process, &addresses, code.time, self.deadline);
            code.generated = Some(names);
        }
    }
}

impl Code {
    fn add(&mut self, target: &dyn Target, code: &ExecutableMapping<'_>, lookups: &[u64]) {
        let mapping = code.mapping;
        let remote::Mapping { device, inode, .. } = mapping;
        let (name, range) = (mapping.name, code.file_range());
        let mut module = Module {
            path: String::from_utf8_lossy(name).into_owned(),
            device: u64::from(device.major) << 32 | u64::from(device.minor),
            inode,
            ..Module::default()
        };
        if inode != 0
            && let Ok(file) = target.mapped_file(range, name, device, inode)
        {
            if let Some(build_id) = module::build_id(&file) {
                (module.device, module.inode) = (0, 0);
                module.build_id = build_id;
            }
            self.files.keep(&module, file);
        }
        self.regions.push(Region {
            start: mapping.start,
            end: mapping.end,
            offset: mapping.offset,
            module,
            lookups: lookups.into(),
        });
    }
}
