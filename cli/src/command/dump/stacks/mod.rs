//! Native stacks of threads, by unwind tables.
//!
//! The stack of a sleeping thread is walked from its stack and instruction pointer, which the kernel
//! shows without stopping it. Its other registers are unknown: a stack whose unwind tables need one
//! ends there, and says so. A running thread is stopped, and has all registers.

mod names;
mod show;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use otelctx_reader::remote::threads::{Call, ThreadFiles};
use otelctx_reader::remote::{self, Stopped, Target, module};
use otelctx_reader::runtime::{RuntimeReading, RuntimeStack};
use otelctx_reader::sample::{self, Module, ModuleFiles};
use otelctx_reader::{Process, StopReason, Thread};
use otelctx_sampler::{GeneratedNames, monotonic};
use otelctx_unwind::{
    CodeMap, Dictionary, Frame, MAX_FRAMES, MakeRules, Registers, StackEnd, walk,
};

use super::inspection::InspectedThread;
use super::report::{MAX_CONTEXTS, ThreadReport};
pub(super) use names::{Named, Names};
pub(super) use show::{StackJson, lines};

/// Attempts to walk the stack of a thread asleep, and to stop a thread that another reader has
/// stopped.
const MAX_TRIES: usize = 3;
/// Minimum time to wait for a thread to stop, even if less is left until the deadline: once requested,
/// the stop happens whether or not it is awaited.
const MIN_STOP_TIMEOUT: Duration = Duration::from_millis(20);
/// How long to wait before retrying.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// The stack of a thread, or why it has none.
pub(super) type ThreadStack = Result<Stack, String>;

/// A stack, innermost frame first.
#[derive(Debug)]
pub(super) struct Stack {
    frames: Vec<Frame>,
    end: StackEnd,
    /// It was walked while the thread slept, from two registers.
    is_asleep: bool,
    /// What runtimes know of the thread was read at another moment: their frames belong to another stack.
    is_separate: bool,
}

impl Stack {
    /// Estimated memory, in bytes.
    pub(super) fn size(&self) -> usize {
        size_of_val(&self.frames[..])
    }

    /// Each frame with the address at which to look up its function: a caller's is within its call
    /// instruction. Code that the kernel makes a signal handler return to has called nothing.
    fn frames(&self) -> impl Iterator<Item = (&Frame, u64)> {
        let callers = self.frames.iter().skip(1).map(|frame| frame.is_caller);
        let callers = callers.chain([true]);
        self.frames.iter().zip(callers).map(|(frame, has_caller)| {
            let is_caller = frame.is_caller && has_caller;
            (frame, frame.address.wrapping_sub(is_caller.into()))
        })
    }

    /// The frames, with those of the thread's runtimes in place of the calls of their interpreters, and whether they are
    /// those of a stack that a runtime executes on and that is not the thread's own: it is complete.
    fn mixed(&self, runtimes: &[RuntimeReading], named: &Named) -> (Vec<sample::Frame>, bool) {
        let native = self.frames().map(|(frame, lookup)| {
            if lookup == frame.address {
                sample::Frame::instruction(frame.address)
            } else {
                sample::Frame::return_address(frame.address)
            }
        });
        let mut native: Vec<_> = native.collect();
        let stacks = (!self.is_separate).then(|| interpreted(runtimes));
        let stacks: Vec<_> = stacks.into_iter().flatten().collect();
        let own = stacks.iter().filter_map(|stack| {
            let switches = |address| {
                let module = named.module(address);
                module.is_some_and(|(path, _)| stack.is_switching_library(path))
            };
            stack.own_native_frames(&native, switches)
        });
        let own = own.min();
        native.truncate(own.unwrap_or(native.len()));
        let mixed = stacks.into_iter().fold(native, |mixed, stack| {
            let only_calls = |frame: &sample::Frame, callee: &sample::NamedFrame| {
                let lookup = frame.lookup_address();
                lookup.is_some_and(|address| named.is_generated_for(address, callee.name()))
            };
            stack.clone().in_native_with(mixed, only_calls)
        });
        (mixed, own.is_some())
    }

    /// Whether it lacks frames of the thread's runtimes, which are of another moment.
    fn lacks_frames(&self, runtimes: &[RuntimeReading]) -> bool {
        self.is_separate && interpreted(runtimes).next().is_some()
    }

    /// It ends because a register is unknown.
    fn needs_stop(&self) -> bool {
        self.is_asleep && matches!(self.end, StackEnd::UnknownRegister | StackEnd::NoRows)
    }
}

/// The frames of runtimes that have an interpreter.
fn interpreted(runtimes: &[RuntimeReading]) -> impl Iterator<Item = &RuntimeStack> {
    runtimes.iter().filter_map(|reading| {
        let stack = &reading.thread.as_ref().ok()?.stack;
        (!stack.interpreter.is_empty()).then_some(stack)
    })
}

/// How to walk stacks.
#[derive(Debug, Clone)]
pub(super) struct StackOptions {
    /// The rules of unwind tables, which processes share.
    dictionary: Arc<Dictionary>,
    /// Whether to stop sleeping threads whose stacks need it.
    stop_sleeping: bool,
}

impl StackOptions {
    pub(super) fn new(stop_sleeping: bool) -> Self {
        Self {
            dictionary: Arc::new(Dictionary::new()),
            stop_sleeping,
        }
    }
}

/// Walks the stacks of a process's threads.
pub(super) struct StackReader<'p> {
    process: &'p Process,
    stop_sleeping: bool,
    /// An error if the process's mappings cannot be read.
    code: Result<CodeMap, String>,
    until: Instant,
}

impl<'p> StackReader<'p> {
    /// Reads the unwind tables of the process's code. `until` is the deadline for stopping threads.
    pub(super) fn start(process: &'p Process, options: &StackOptions, until: Instant) -> Self {
        let code = match process.as_target() {
            Some(target) => CodeMap::read(
                &*target,
                process.files(),
                &options.dictionary,
                MakeRules::OnDemand,
            ),
            None => Ok(CodeMap::default()),
        };
        Self {
            process,
            stop_sleeping: options.stop_sleeping,
            code: code.map_err(|error| error.to_string()),
            until,
        }
    }

    /// Reads a thread with `read`, and walks its stack at the same moment if possible. `stopped` is the
    /// thread, if it is already stopped; `read` gets the thread if it was stopped here.
    pub(super) fn read(
        &self,
        thread: &Thread<'_>,
        stopped: Option<&Stopped>,
        mut read: impl FnMut(Option<&Stopped>) -> InspectedThread,
    ) -> InspectedThread {
        let (mut inspected, stack) = match (self.process.running(), stopped) {
            (Err(_), _) => (read(None), self.saved(thread)),
            (Ok(_), Some(stopped)) => (read(None), self.of_stopped(stopped)),
            (Ok(process), None) => self.live(process, thread, &mut read),
        };
        if let InspectedThread::Read(report) = &mut inspected {
            report.stack = Some(stack);
        }
        inspected
    }

    /// Reads a thread that must not be stopped with `read`, and walks its stack at the same moment if the thread
    /// sleeps for long enough.
    pub(super) fn read_unstopped(
        &self,
        tid: i32,
        read: &mut dyn FnMut() -> InspectedThread,
    ) -> (InspectedThread, ThreadStack) {
        let process = self.process.running().ok();
        if let Some(mut files) = process.and_then(|it| ThreadFiles::open(it, tid).ok()) {
            for _ in 0..MAX_TRIES {
                match self.read_asleep(&mut files, |_, _| read()) {
                    Ok(Some((stack, inspected))) => return (inspected, Ok(stack)),
                    Ok(None) => {}
                    Err(_) => break,
                }
            }
        }
        let inspected = read();
        let separate = |stack| Stack {
            is_separate: true,
            ..stack
        };
        (inspected, self.asleep(tid).map(separate))
    }

    /// The stack of a thread that must not be stopped.
    fn asleep(&self, tid: i32) -> ThreadStack {
        let process = self.process.running().map_err(|error| error.to_string())?;
        let open = ThreadFiles::open(process, tid);
        let mut files = open.map_err(|error| error.to_string())?;
        for _ in 0..MAX_TRIES {
            if let Some((stack, ())) = self.read_asleep(&mut files, |_, _| ())? {
                return Ok(stack);
            }
        }
        Err("the thread was running: try without --no-stop".into())
    }

    /// The stacks of threads that must not be stopped, and the code that they are in. Some were `walked` before.
    pub(super) fn all_asleep(
        &self,
        threads: &[Thread<'_>],
        mut walked: HashMap<i32, ThreadStack>,
    ) -> (StacksAsleep, Code) {
        let mut kept: usize = walked.values().flatten().map(Stack::size).sum();
        let mut stacks = HashMap::new();
        for tid in threads.iter().map(Thread::tid) {
            if let Some(stack) = walked.remove(&tid) {
                stacks.insert(tid, stack);
                continue;
            }
            let stack = match () {
                () if Instant::now() >= self.until => Err("the deadline has passed".into()),
                () if kept > MAX_CONTEXTS => Err(format!(
                    "the stacks take more than {} MiB",
                    MAX_CONTEXTS >> 20
                )),
                () => self.asleep(tid),
            };
            kept += stack.as_ref().map_or(0, Stack::size);
            stacks.insert(tid, stack);
        }
        let code = self.code(stacks.values().flatten());
        (StacksAsleep(stacks), code)
    }

    fn live(
        &self,
        process: &remote::Process,
        thread: &Thread<'_>,
        read: &mut dyn FnMut(Option<&Stopped>) -> InspectedThread,
    ) -> (InspectedThread, ThreadStack) {
        let tid = thread.tid();
        if self.process.options().never_stop {
            return self.read_unstopped(tid, &mut || read(None));
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
        // Of a reading that does not count, because the thread ran since its stack was walked.
        let mut stop = None;
        loop {
            tries += 1;
            let asleep = self.read_asleep(&mut files, |call, stack| {
                let needs_stop = self.stop_sleeping
                    && stack.needs_stop()
                    && !call.is_lengthened_by_a_stop(process.pid())
                    && tries <= 2 * MAX_TRIES;
                if needs_stop {
                    return None;
                }
                let mut inspected = read(None);
                if let InspectedThread::Read(report) = &mut inspected {
                    stop = stop.or(report.stop);
                    report.stop = stop;
                }
                Some(inspected)
            });
            let reason = match asleep {
                Ok(Some((stack, Some(inspected)))) => return (inspected, Ok(stack)),
                Ok(Some((_, None))) => StopReason::Stack,
                Ok(None) if tries < MAX_TRIES => continue,
                // It may have gone to sleep since then.
                Ok(None) if tries <= 2 * MAX_TRIES && is_lengthened(&files) => continue,
                Ok(None) => StopReason::Running,
                Err(error) => return (read(None), Err(error)),
            };
            let left = self.until.saturating_duration_since(Instant::now());
            let timeout = self.process.options().stop_timeout;
            let timeout = timeout.min(left.max(MIN_STOP_TIMEOUT));
            match Stopped::stop(process, tid, timeout) {
                Ok(stopped) => {
                    let stack = self.of_stopped(&stopped);
                    let mut inspected = read(Some(&stopped));
                    if let InspectedThread::Read(report) = &mut inspected {
                        report.stop = Some(reason);
                    }
                    return (inspected, stack);
                }
                Err(remote::Error::AlreadyTraced { .. }) if tries <= 2 * MAX_TRIES => {
                    sleep(RETRY_INTERVAL);
                }
                Err(error) => return (read(None), Err(error.to_string())),
            }
        }
    }

    /// Walks the stack of a thread that sleeps, and calls `read` meanwhile. `None` if the thread was running, or ran
    /// before `read` returned.
    fn read_asleep<T>(
        &self,
        files: &mut ThreadFiles,
        read: impl FnOnce(&Call, &Stack) -> T,
    ) -> Result<Option<(Stack, T)>, String> {
        let asleep = files.read_call_asleep(|call| {
            let (pc, sp) = (call.instruction_pointer, call.stack_pointer);
            let registers = Registers::new(remote::Machine::own(), pc, sp);
            let stack = self.walk(registers, true)?;
            let read = read(call, &stack);
            Ok((stack, read))
        });
        asleep.map_err(|error| error.to_string())?.transpose()
    }

    fn of_stopped(&self, stopped: &Stopped) -> ThreadStack {
        self.walk(Registers::of_stopped(stopped.registers()), false)
    }

    /// The stack of a thread in a core file.
    fn saved(&self, thread: &Thread<'_>) -> ThreadStack {
        let target = self.process.as_target();
        let target = target.ok_or("it cannot be read")?;
        let thread = target.thread(thread.tid());
        let thread = thread.map_err(|error| error.to_string())?;
        let registers = thread.registers.ok_or("its registers are missing")?;
        self.walk(Registers::of_call(target.machine(), &registers), false)
    }

    fn walk(&self, registers: Option<Registers>, is_asleep: bool) -> ThreadStack {
        let registers = registers.ok_or("stacks of this architecture are not supported")?;
        let code = self.code.as_ref().map_err(String::clone)?;
        let target = self.process.as_target().ok_or("it cannot be read")?;
        let mut frames = Vec::new();
        let end = walk(&registers, code, &*target, MAX_FRAMES, &mut frames);
        frames.shrink_to_fit();
        Ok(Stack {
            frames,
            end,
            is_asleep,
            is_separate: false,
        })
    }

    /// The code that the stacks of these threads are in, with its files open.
    pub(super) fn code<'s>(&self, stacks: impl Iterator<Item = &'s Stack>) -> Code {
        let mut lookups: Vec<u64> = stacks
            .flat_map(Stack::frames)
            .map(|(_, lookup)| lookup)
            .collect();
        lookups.sort_unstable();
        lookups.dedup();
        let mut code = Code {
            time: monotonic(),
            ..Code::default()
        };
        let Some(target) = self.process.as_target() else {
            return code;
        };
        code.is_live = self.process.running().is_ok();
        let mut left = &lookups[..];
        // If they cannot be read any more, the stacks have addresses alone.
        let _ = target.mappings(&mut |mapping| {
            let below = left.partition_point(|address| *address < mapping.start);
            let inside = left.partition_point(|address| *address < mapping.end);
            if below < inside {
                code.add(&*target, mapping, &left[below..inside]);
            }
            left = &left[inside..];
            match left {
                [] => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        });
        code
    }

    /// Reads the names of generated code. A runtime may have announced so much of it that this takes until
    /// the deadline, so the process must not be stopped.
    pub(super) fn read_generated(&self, code: &mut Code) {
        let regions = code.regions.iter();
        let generated = regions.filter(|region| GeneratedNames::may_be_in(&region.module));
        let addresses: Vec<u64> = generated
            .flat_map(|region| region.lookups.iter().copied())
            .collect();
        if let Ok(process) = self.process.running()
            && !addresses.is_empty()
        {
            let names = GeneratedNames::read(process, &addresses, code.time, self.until);
            code.generated = Some(names);
        }
    }
}

/// The stacks of threads that were not stopped, by thread ID.
pub(super) struct StacksAsleep(HashMap<i32, ThreadStack>);

impl StacksAsleep {
    /// Adds them to the results of reading the threads by other means.
    pub(super) fn add_to(mut self, reports: &mut [ThreadReport]) {
        for report in reports {
            report.stack = self.0.remove(&report.tid);
        }
    }
}

/// The code that stacks are in.
#[derive(Debug, Default)]
pub(super) struct Code {
    regions: Vec<Region>,
    files: ModuleFiles,
    /// When the stacks were taken, in nanoseconds of `CLOCK_MONOTONIC`.
    time: u64,
    /// The names of generated code, if a stack is in any.
    generated: Option<GeneratedNames>,
    /// The process is running. Otherwise its vDSO may not be this kernel's.
    is_live: bool,
}

/// A mapping.
#[derive(Debug)]
struct Region {
    start: u64,
    end: u64,
    /// Offset in the file, in bytes.
    offset: u64,
    module: Module,
    /// Addresses in it at which to look up functions.
    lookups: Vec<u64>,
}

impl Code {
    fn add(&mut self, target: &dyn Target, mapping: &remote::Mapping<'_>, lookups: &[u64]) {
        let remote::Mapping { device, inode, .. } = *mapping;
        let (name, range) = (mapping.name, (mapping.start, mapping.end));
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
