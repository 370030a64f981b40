//! Holders of locks: named where glibc records them, and nowhere else.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use otelctx_fixtures::{Compiler, HANG_TIMEOUT, Target, tier};
use otelctx_reader::remote::threads::{self, ThreadFiles};
use otelctx_reader::remote::{FileCache, LiveProcess, Machine, Process, ProcessMemory};
use otelctx_unwind::{CodeMap, Dictionary, MAX_FRAMES, MakeRules, Registers, walk};
use otelctx_waits::{Call, Reason, Resolver, State, Waiting};

/// Number of the system call futex(2).
const FUTEX: i64 = if cfg!(target_arch = "x86_64") {
    202
} else {
    98
};

/// A thread that waits, and the thread for which it does.
#[derive(Debug)]
struct Waiter {
    /// In the program's PID namespace.
    tid: i32,
    holder: Option<i32>,
    kind: String,
    name: String,
}

fn waiters(target: &Target) -> Vec<Waiter> {
    let lines = target.lines.iter();
    let waiters = lines.map(|line| {
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let ["lock", tid, holder, kind, name] = words[..] else {
            panic!("{line}")
        };
        Waiter {
            tid: tid.parse().unwrap(),
            holder: holder.parse().ok().filter(|holder| *holder != 0),
            kind: kind.to_owned(),
            name: name.to_owned(),
        }
    });
    waiters.collect()
}

/// A process whose threads' stacks are walked while they sleep.
struct Inspected {
    process: Process,
    memory: ProcessMemory,
    code: CodeMap,
    /// The program is in another PID namespace.
    is_namespaced: bool,
}

impl Inspected {
    fn open(pid: i32) -> Self {
        let process = Process::open(pid).unwrap();
        let memory = process.memory().unwrap();
        let code = {
            let target = LiveProcess::new(&process, &memory);
            let rules = Arc::new(Dictionary::new());
            CodeMap::read(&target, &FileCache::new(), &rules, MakeRules::OnDemand).unwrap()
        };
        let is_namespaced = process.status().unwrap().namespace_pids.len() > 1;
        Self {
            process,
            memory,
            code,
            is_namespaced,
        }
    }

    /// The ID in this test's namespace of a thread of the program.
    fn outer(&self, inner: i32) -> i32 {
        if !self.is_namespaced {
            return inner;
        }
        let is_it = |tid: &i32| {
            let status = self.process.thread_status(*tid).unwrap();
            status.namespace_pids.last() == Some(&inner)
        };
        self.process
            .thread_ids()
            .unwrap()
            .into_iter()
            .find(is_it)
            .unwrap()
    }

    fn stack(&self, call: &threads::Call) -> Vec<u64> {
        let (pc, sp) = (call.instruction_pointer, call.stack_pointer);
        let registers = Registers::new(Machine::own(), pc, sp).unwrap();
        let mut frames = Vec::new();
        walk(
            &registers,
            &self.code,
            &self.memory,
            MAX_FRAMES,
            &mut frames,
        );
        frames.iter().map(|frame| frame.address).collect()
    }

    /// The reason of a thread that sleeps in futex(2); `None` if it does not.
    fn reason(
        &self,
        resolver: &mut Resolver,
        tid: i32,
        with_stack: bool,
        now: u64,
    ) -> Option<Reason> {
        let files = ThreadFiles::open(&self.process, tid).unwrap();
        let call = files.call().unwrap().filter(|call| call.number == FUTEX)?;
        let frames = if with_stack {
            self.stack(&call)
        } else {
            Vec::new()
        };
        let thread = Waiting {
            tid,
            call: Call::from(&call),
            state: State::Asleep,
            frames: &frames,
            memory: None,
            since: None,
            now,
        };
        Some(resolver.reason(&self.process, thread))
    }

    /// [`Self::reason`] once the thread sleeps.
    fn awaited(&self, resolver: &mut Resolver, tid: i32) -> Reason {
        let deadline = Instant::now() + HANG_TIMEOUT;
        let mut now = 0;
        loop {
            if let Some(reason) = self.reason(resolver, tid, true, now) {
                return reason;
            }
            now += 100_000_000_000;
            assert!(Instant::now() < deadline, "thread {tid} does not wait");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// Checks each thread `rounds` times. Returns the numbers of right holders, and of threads without one.
fn check(pid: i32, waiters: &[Waiter], rounds: usize) -> (usize, usize) {
    let inspected = Inspected::open(pid);
    let mut resolver = Resolver::default();
    let (mut named, mut unnamed) = (0, 0);
    let outer = |inner| inspected.outer(inner);
    let threads = waiters
        .iter()
        .map(|waiter| (waiter, outer(waiter.tid), waiter.holder.map(outer)));
    let threads: Vec<_> = threads.collect();
    for round in 0..rounds {
        for (waiter, tid, holder) in &threads {
            let mut reason = inspected.awaited(&mut resolver, *tid);
            // It may sleep in an earlier call, for a lock inside the C library.
            for now in 0..100 {
                if reason.holder == *holder {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
                let now = now * 100_000_000_000;
                let next = inspected.reason(&mut resolver, *tid, true, now);
                reason = next.unwrap_or(reason);
            }
            let text = match (holder, waiter.kind.as_str()) {
                (Some(holder), "mutex") => format!("lock held by thread {holder}"),
                (Some(holder), _) => format!("write lock held by thread {holder}"),
                (None, _) => "futex".to_owned(),
            };
            let expected = Reason {
                call: "futex".into(),
                text,
                peer: None,
                holder: *holder,
            };
            assert_eq!(reason, expected, "{waiter:?}, round {round}");
            match holder {
                Some(_) => named += 1,
                None => unnamed += 1,
            }
        }
    }
    (named, unnamed)
}

fn glibc_program() -> Option<std::path::PathBuf> {
    Compiler::gcc().program(&["lock_waits.c"], &["-pthread"])
}

#[test]
fn each_lock_of_glibc_has_its_holder() {
    let Some(program) = glibc_program() else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let waiters = waiters(&target);
    let rounds = tier::usual_or_all(20, 600);
    let (named, unnamed) = check(target.pid(), &waiters, rounds);
    assert!(named >= 21 * rounds, "{named}");
    assert!(unnamed >= 21 * rounds, "{unnamed}");
}

#[test]
fn without_a_stack_only_the_kernel_tells_a_holder() {
    let Some(program) = glibc_program() else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let inspected = Inspected::open(target.pid());
    let mut resolver = Resolver::default();
    for waiter in waiters(&target) {
        inspected.awaited(&mut resolver, waiter.tid);
        let is_inheriting = waiter.name.ends_with("inheriting");
        let reason = inspected
            .reason(&mut resolver, waiter.tid, false, 0)
            .unwrap();
        let expected = waiter.holder.filter(|_| is_inheriting);
        assert_eq!(reason.holder, expected, "{waiter:?}");
    }
}

/// Whatever a walk makes of a stack: a lock function that other code has called into the kernel is not what waits.
#[test]
fn only_the_innermost_functions_count() {
    let Some(program) = glibc_program() else {
        return;
    };
    let target = Target::spawn(&mut Command::new(program));
    let inspected = Inspected::open(target.pid());
    let mut resolver = Resolver::default();
    let waiters = waiters(&target);
    let waiter = waiters
        .iter()
        .find(|waiter| waiter.name == "normal")
        .unwrap();
    inspected.awaited(&mut resolver, waiter.tid);
    let files = ThreadFiles::open(&inspected.process, waiter.tid).unwrap();
    let call = files.call().unwrap().unwrap();
    let stack = inspected.stack(&call);
    // The helper and the lock function, then the program's own function.
    let [helper, function, program] = stack[..3] else {
        panic!("{stack:x?}")
    };
    let mut holder = |frames: &[u64]| {
        let thread = Waiting {
            tid: waiter.tid,
            call: Call::from(&call),
            state: State::Asleep,
            frames,
            memory: None,
            since: None,
            now: 0,
        };
        resolver.reason(&inspected.process, thread).holder
    };
    assert_eq!(holder(&[helper, function, program]), waiter.holder);
    assert_eq!(holder(&[helper, helper, function]), waiter.holder);
    assert_eq!(holder(&[helper, program, function]), None);
    assert_eq!(holder(&[program, function]), None);
    assert_eq!(holder(&[helper, helper, helper, function]), None);
    assert_eq!(holder(&[helper]), None);
    assert_eq!(holder(&[u64::MAX, 0, function]), None);
}

#[test]
fn a_holder_in_another_namespace_has_its_id_here() {
    let Some(program) = glibc_program() else {
        return;
    };
    let Some(mut command) = otelctx_fixtures::in_pid_namespace(&Command::new(program)) else {
        return;
    };
    let target = Target::spawn(&mut command);
    let waiters = waiters(&target);
    let (named, _) = check(target.child_pid(), &waiters, 1);
    assert!(named >= 21, "{named}");
}

/// All waits of a program of another library have no holder, but for priority inheritance.
fn has_no_holders(program: &Path) {
    let target = Target::spawn(&mut Command::new(program));
    let mut waiters = waiters(&target);
    for waiter in &mut waiters {
        if !waiter.name.ends_with("inheriting") {
            waiter.holder = None;
        }
    }
    let rounds = tier::usual_or_all(20, 600);
    let (_, unnamed) = check(target.pid(), &waiters, rounds);
    assert!(unnamed >= 8 * rounds, "{unnamed}");
}

#[test]
fn musl_records_no_holder() {
    if let Some(program) = Compiler::musl_gcc().program(&["lock_waits.c"], &["-pthread"]) {
        has_no_holders(&program);
    }
}

#[test]
fn rust_records_no_holder() {
    let program = otelctx_fixtures::rust_program("lock_waits.rs", &["-O"]);
    if let Some(program) = program {
        has_no_holders(&program);
    }
}
