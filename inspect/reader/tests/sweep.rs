//! All threads of a process: each mode, each limit, and what is said to be missing.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use otelctx_fixtures::{Compiler, Target as Program};
use otelctx_reader::format::TraceId;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::remote::mappings::Walk;
use otelctx_reader::remote::{
    self, Device, LiveProcess, Mapping, Memory, MemoryError, Stopped, Target, TargetImage,
    ThreadInfo,
};
use otelctx_reader::sweep::{
    Mode, PartialReason, SnapshotSource, Sweep, Swept, ThreadReading, ThreadSnapshot, Visitor,
};
use otelctx_reader::{
    Error, Found, Options, Process, ReadStep, StopReason, Thread, ThreadVariables,
};

/// So that a busy machine is not late.
const LONG: Duration = Duration::from_secs(600);

fn options() -> Options {
    let mut options = Options::default();
    options.any_schema = true;
    options
}

fn open(program: &Program) -> Process {
    Process::with_options(program.pid(), options()).unwrap()
}

/// Threads that sleep with a record attached, except the first, which has none; the last may spin.
fn idle(arguments: &[&str]) -> Option<Program> {
    let sources = ["idle.c", "variable.c"];
    let program = Compiler::gcc().program(&sources, &["-rdynamic"])?;
    let program = Program::spawn(Command::new(program).args(arguments));
    let awake = ["spinning", "stuck"].iter();
    let awake = awake.filter(|it| arguments.contains(it)).count();
    let is_asleep = || {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap();
        let stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
        let asleep = stats.filter(|stat| stat.as_ref().unwrap().contains(") S "));
        asleep.count() == program.lines.len() + 1 - awake
    };
    while !is_asleep() {
        std::thread::yield_now();
    }
    Some(program)
}

/// The ID of the thread that spins.
fn last(program: &Program) -> i32 {
    let lines = program.lines.iter();
    let mut sleepers = lines.filter_map(|line| line.strip_prefix("sleeper "));
    sleepers.next_back().unwrap().parse().unwrap()
}

fn sweep(sweep: Sweep<'_>, process: &mut Process) -> (Swept, BTreeMap<i32, ThreadReading>) {
    let mut threads = BTreeMap::new();
    let swept = sweep.run(process, &mut |thread: ThreadReading| {
        assert!(
            threads.insert(thread.tid, thread).is_none(),
            "visited twice"
        );
    });
    (swept.unwrap(), threads)
}

#[test]
fn running_threads_are_stopped_or_left_alone() {
    let Some(program) = idle(&["workers=3", "spinning"]) else {
        return;
    };
    let (pid, last) = (program.pid(), last(&program));
    let mut process = open(&program);
    for is_stop in [true, false] {
        let mode = if is_stop { Mode::Stop } else { Mode::Asleep };
        let (swept, threads) = sweep(Sweep::within(LONG).with_mode(mode), &mut process);
        assert_eq!((swept.partial, swept.read, threads.len()), (None, 4, 4));
        assert!(swept.is_readable());
        for (tid, thread) in threads {
            match (tid, is_stop) {
                (tid, _) if tid == pid => assert_eq!(thread.context.unwrap(), Found::Detached),
                (tid, true) if tid == last => {
                    assert!(matches!(thread.context, Ok(Found::Attached(_))));
                    assert_eq!(thread.stop, Some(StopReason::Running));
                }
                (tid, false) if tid == last => {
                    let error = thread.context.unwrap_err();
                    assert!(matches!(error, Error::NotAsleep { .. }), "{error}");
                }
                _ => {
                    assert!(matches!(thread.context, Ok(Found::Attached(_))));
                    assert_eq!(thread.stop, None);
                }
            }
        }
    }
    assert!(
        !process.options().never_stop,
        "the mode ends with the sweep"
    );
}

/// Says of each thread that it works on a trace whose number is its own; or fails.
struct Numbered {
    threads: Vec<i32>,
    is_refused: bool,
}

impl SnapshotSource for Numbered {
    fn threads(
        &mut self,
        _: &mut Process,
        variables: &ThreadVariables,
    ) -> Result<Vec<ThreadSnapshot>, Error> {
        assert_eq!(variables.resolution.variables.len(), 1);
        if self.is_refused {
            let reason = "the kernel refused".to_owned();
            return Err(Error::Snapshot { reason });
        }
        let thread = |tid: &i32| {
            let mut context = DecodedContext::default();
            context.trace_id = trace(*tid);
            ThreadSnapshot {
                tid: *tid,
                name: format!("thread {tid}"),
                context: Found::Attached(context),
            }
        };
        Ok(self.threads.iter().map(thread).collect())
    }
}

fn trace(tid: i32) -> TraceId {
    TraceId::from_bytes(u128::from(tid.unsigned_abs()).to_be_bytes())
}

#[test]
fn contexts_come_from_the_snapshot_or_have_its_error() {
    let Some(program) = idle(&["workers=2", "spinning"]) else {
        return;
    };
    let mut process = open(&program);
    let threads = process.running().unwrap().thread_ids().unwrap();
    let mut source = Numbered {
        threads: threads.clone(),
        is_refused: false,
    };
    let snapshot = Sweep::within(LONG).with_mode(Mode::Snapshot(&mut source));
    let (swept, read) = sweep(snapshot, &mut process);
    assert_eq!((swept.partial, swept.read), (None, 3));
    assert_eq!(read.keys().copied().collect::<Vec<_>>(), threads);
    for (tid, thread) in read {
        assert_eq!(thread.name.unwrap(), *format!("thread {tid}"));
        assert_eq!(
            thread.context.unwrap().attached().unwrap().trace_id,
            trace(tid)
        );
        assert_eq!(thread.stop, None);
    }
    let memory = Sweep::within(LONG).with_max_bytes(1);
    let (swept, read) = sweep(memory.with_mode(Mode::Snapshot(&mut source)), &mut process);
    let partial = swept.partial.unwrap();
    assert_eq!((partial.read, partial.of, read.len()), (0, 3, 0));
    assert_eq!(partial.why, PartialReason::Memory(1));

    source.is_refused = true;
    let snapshot = Sweep::within(LONG).with_mode(Mode::Snapshot(&mut source));
    let (_, read) = sweep(snapshot, &mut process);
    assert_eq!(read.len(), 3);
    for thread in read.into_values() {
        assert_eq!(
            thread.context.unwrap_err().to_string(),
            "the kernel refused"
        );
        assert!(thread.name.is_some());
    }
}

#[test]
fn no_thread_is_read_when_those_before_exceed_the_memory() {
    let Some(program) = idle(&["workers=4"]) else {
        return;
    };
    let mut process = open(&program);
    let (whole, threads) = sweep(Sweep::within(LONG), &mut process);
    assert_eq!((whole.partial, threads.len()), (None, 5));
    let sizes = threads.values().map(ThreadReading::memory);
    // Just enough for the first two.
    let two = sizes.take(2).sum::<usize>();
    let (swept, threads) = sweep(Sweep::within(LONG).with_max_bytes(two), &mut process);
    let partial = swept.partial.unwrap();
    assert_eq!((partial.read, partial.of, threads.len()), (3, 5, 3));
    assert_eq!(partial.why, PartialReason::Memory(two));
    assert_eq!(swept.read, 3);
}

#[test]
fn records_that_stay_invalid_are_detached() {
    for arguments in [
        &["workers=3", "invalid"][..],
        &["workers=3", "invalid", "spinning"],
    ] {
        let Some(program) = idle(arguments) else {
            return;
        };
        let (swept, threads) = sweep(Sweep::within(LONG), &mut open(&program));
        assert_eq!((swept.partial, threads.len()), (None, 4));
        for (tid, thread) in threads {
            match thread.context.unwrap() {
                Found::Attached(_) => assert_eq!(tid, last(&program)),
                found => assert_eq!(found, Found::Detached),
            }
        }
    }
}

/// Reads each thread with a delay until the deadline, and counts what else is called.
#[derive(Default)]
struct Slow {
    deadline: Option<Instant>,
    read: usize,
    ended: usize,
    visited: Vec<ThreadReading>,
}

impl Visitor for Slow {
    fn visit(&mut self, thread: ThreadReading) {
        assert_eq!(self.ended, 1);
        self.visited.push(thread);
    }

    fn begin(&mut self, _: &Process, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    fn read(
        &mut self,
        _: &Thread<'_>,
        stopped: Option<&Stopped>,
        read: &mut dyn FnMut(Option<&Stopped>) -> ThreadReading,
    ) -> ThreadReading {
        let reading = read(stopped);
        self.read += 1;
        while Instant::now() < self.deadline.unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        reading
    }

    fn end(&mut self, _: &Process) {
        self.ended += 1;
    }
}

#[test]
fn no_thread_is_read_after_the_deadline() {
    let Some(program) = idle(&["workers=3"]) else {
        return;
    };
    let mut process = open(&program);
    // The machine may be so busy that the deadline comes before the first thread: the next one comes later.
    for attempt in 0..11 {
        let timeout = Duration::from_millis(500) * (1 << attempt);
        let mut slow = Slow::default();
        let swept = Sweep::within(timeout).unverified();
        let swept = swept.run(&mut process, &mut slow).unwrap();
        let partial = swept.partial.unwrap();
        assert_eq!(partial.why, PartialReason::Deadline(timeout));
        assert_eq!(partial.of, 4);
        assert!(partial.read <= 1);
        assert_eq!(
            (slow.read, slow.visited.len()),
            (partial.read, partial.read)
        );
        if partial.read == 1 {
            let sentence = "1 of 4 threads: the deadline of 0.5 s has passed";
            assert!(attempt > 0 || partial.to_string() == sentence, "{partial}");
            return;
        }
    }
    panic!("no thread was reached");
}

/// A thread that waits for a child that never ends does not stop, whatever the time.
#[test]
fn the_deadline_ends_the_wait_for_a_thread_that_never_stops() {
    let Some(program) = idle(&["workers=3", "own=1", "stuck"]) else {
        return;
    };
    let stuck = program.lines[0].strip_prefix("sleeper ").unwrap();
    let stat = format!("/proc/{}/task/{stuck}/stat", program.pid());
    while !std::fs::read_to_string(&stat).unwrap().contains(") D ") {
        std::thread::yield_now();
    }
    let mut options = options();
    options.stop_timeout = LONG;
    let mut process = Process::with_options(program.pid(), options).unwrap();
    let timeout = Duration::from_millis(500);
    let mut late = Vec::new();
    let mut visit = |thread: ThreadReading| {
        late.extend(thread.is_late.then(|| thread.tid.to_string()));
    };
    let swept = Sweep::within(timeout).unverified();
    let swept = swept.run(&mut process, &mut visit).unwrap();
    let partial = swept.partial.unwrap();
    assert!(partial.read <= 1, "the threads behind it are not read");
    assert_eq!((partial.of, swept.read), (4, partial.read));
    assert_eq!(partial.why, PartialReason::Deadline(timeout));
    // None at all if the machine is so busy that the deadline came before it.
    assert!(late.is_empty() || late == [stuck], "{late:?}");
}

/// An image whose list of threads has no end.
struct Endless(TargetImage);

impl Memory for Endless {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.0.read(address, buffer)
    }
}

impl Target for Endless {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, remote::Error> {
        self.0.mappings(visit)
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.0.mapped_file(range, name, device, inode)
    }

    fn machine(&self) -> remote::module::Machine {
        self.0.machine()
    }

    fn name(&self) -> OsString {
        self.0.name()
    }

    fn thread_ids(
        &self,
        visit: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<(), remote::Error> {
        while visit(7).is_continue() {}
        Ok(())
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, remote::Error> {
        self.0.thread(tid)
    }
}

#[test]
fn the_deadline_ends_a_list_of_threads_that_never_ends() {
    let mut process = Process::of_target(Endless(TargetImage::new()), Options::default());
    let timeout = Duration::from_millis(20);
    let swept = Sweep::within(timeout).run(&mut process, &mut |_: ThreadReading| {});
    let partial = swept.unwrap().partial.unwrap();
    assert_eq!(partial.why, PartialReason::Deadline(timeout));
}

#[test]
fn a_deadline_that_has_passed_leaves_the_number_of_threads() {
    let Some(program) = idle(&["workers=2"]) else {
        return;
    };
    let mut process = open(&program);
    let (swept, threads) = sweep(Sweep::within(Duration::ZERO), &mut process);
    let partial = swept.partial.unwrap();
    assert_eq!((partial.read, partial.of, threads.len()), (0, 3, 0));
    let deadline = process.options().deadline;
    assert_eq!(deadline, None, "the deadline ends with the sweep");
}

#[test]
fn a_process_without_contexts_is_no_error() {
    let Some(program) = idle(&["workers=2"]) else {
        return;
    };
    // The process context does not announce the variable.
    let mut process = Process::open(program.pid()).unwrap();
    let (swept, threads) = sweep(Sweep::within(LONG), &mut process);
    assert!(!swept.is_readable());
    assert_eq!((swept.partial, swept.read, threads.len()), (None, 3, 3));
    for thread in threads.into_values() {
        assert_eq!(thread.context.unwrap(), Found::NotPublished);
    }
    let error = Error::Snapshot {
        reason: "x".to_owned(),
    };
    assert_eq!(error.found::<()>(), Found::Unreadable(ReadStep::Record));
}

/// How many libraries the program has loaded. Each defines the variable.
const LIBRARIES: usize = 3;

/// A process that has one of its libraries loaded at a time: another one in each walk over its
/// mappings, until `changing` walks have been made.
struct Reloading {
    process: LiveProcess<'static>,
    libraries: Vec<Vec<u8>>,
    walks: AtomicUsize,
    changing: usize,
}

impl Memory for Reloading {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.process.read(address, buffer)
    }
}

impl Target for Reloading {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, remote::Error> {
        let walk = self.walks.fetch_add(1, Ordering::Relaxed);
        let loaded = walk.min(self.changing) % LIBRARIES;
        self.process.mappings(&mut |mapping| {
            let library = self.libraries.iter().position(|it| it == mapping.name);
            match library.is_some_and(|library| library != loaded) {
                true => ControlFlow::Continue(()),
                false => visit(mapping),
            }
        })
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        self.process.mapped_file(range, name, device, inode)
    }

    fn machine(&self) -> remote::module::Machine {
        self.process.machine()
    }

    fn name(&self) -> OsString {
        self.process.name()
    }

    fn is_running(&self) -> bool {
        true
    }

    fn thread_ids(
        &self,
        visit: &mut dyn FnMut(i32) -> ControlFlow<()>,
    ) -> Result<(), remote::Error> {
        self.process.thread_ids(visit)
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, remote::Error> {
        self.process.thread(tid)
    }
}

#[test]
fn each_read_of_the_threads_counts_only_if_the_modules_stayed_the_same() {
    let library = |name: &str| {
        let soname = format!("-Wl,-soname,{name}");
        Compiler::gcc().library(&["variable.c"], &["-mtls-dialect=gnu2", &soname])
    };
    let libraries = [
        library("first.so"),
        library("second.so"),
        library("third.so"),
    ];
    let Some(program) = Compiler::gcc().program(&["threads.c"], &["-ldl"]) else {
        return;
    };
    let Some(libraries) = libraries.into_iter().collect::<Option<Vec<_>>>() else {
        return;
    };
    assert_eq!(libraries.len(), LIBRARIES);
    let mut command = Command::new(program);
    for (argument, library) in ["lib", "beside", "late"].iter().zip(&libraries) {
        command.arg(format!("{argument}={}", library.display()));
    }
    let mut program = Program::spawn(&mut command);
    program.command("attach");
    let process = Box::leak(Box::new(remote::Process::open(program.pid()).unwrap()));
    let memory = Box::leak(Box::new(process.memory().unwrap()));
    let threads = process.thread_ids().unwrap().len();
    let inspect = |changing| {
        let target = Reloading {
            process: LiveProcess::new(process, memory),
            libraries: libraries
                .iter()
                .map(|it| it.as_os_str().as_encoded_bytes().to_vec())
                .collect(),
            walks: AtomicUsize::new(0),
            changing,
        };
        let mut process = Process::of_target(target, options());
        sweep(Sweep::within(LONG), &mut process)
    };
    let (always, read) = inspect(usize::MAX);
    let partial = always.partial.unwrap();
    assert_eq!(partial.why, PartialReason::Modules(LONG));
    assert_eq!((partial.read, partial.of), (0, threads));
    assert_eq!(read.len(), 0);
    // As long as the first read takes, and not at all.
    for changing in [3, 0] {
        let (settled, read) = inspect(changing);
        assert_eq!(settled.partial, None, "{changing}");
        assert_eq!(read.len(), threads, "{changing}");
    }
}
