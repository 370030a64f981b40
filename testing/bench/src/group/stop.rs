//! How long a thread is stopped while its context is read, compared with a minimal stop:
//! PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_GETREGSET of the general registers, PTRACE_DETACH; and
//! how long it takes to read a sleeping thread without a stop, compared with a whole minimal stop.

use std::ffi::c_void;
use std::io::Error;
use std::time::Instant;

use otelctx_reader::{Process, Thread};
use otelctx_remote::stop::on_own_thread;

use crate::child::Role;
use crate::pair::Rounds;
use crate::row::Report;
use crate::stopped_time;

/// Stops of each side.
const STOPS: usize = 10_000;
/// Number of sleeping threads, and of rounds.
const SLEEPERS: usize = 1000;
const ROUNDS: usize = 20;

pub(crate) fn run(report: &mut Report) {
    report.group("stop");
    let measured = on_own_thread(|| measure_sleepers(report));
    if let Err(why) = measured.unwrap_or_else(|error| Err(error.to_string())) {
        report.failed("sleeping threads", &why);
    }
    for thread in ["sleeping", "polling", "busy"] {
        let target = match Role::start(&["workers"]) {
            Ok(target) => target,
            Err(why) => return report.failed("target", &why),
        };
        // If it fails in the middle, no thread stays traced.
        let measured = on_own_thread(|| measure(report, &target, thread));
        if let Err(why) = measured.unwrap_or_else(|error| Err(error.to_string())) {
            report.failed(thread, &why);
        }
    }
}

/// Reads many sleeping threads with their files kept open, and stops as many of another process; then reads
/// threads that were stopped in between, and so have run.
fn measure_sleepers(report: &mut Report) -> Result<(), String> {
    // Two descriptors a thread, of a quarter of the limit.
    let limit = libc::rlimit {
        rlim_cur: 8 * SLEEPERS as u64,
        rlim_max: 8 * SLEEPERS as u64,
    };
    // SAFETY: the structure lives through the call.
    let is_raised = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } == 0;
    if !is_raised {
        report.skipped("sleeping threads", "too few descriptors are allowed");
        return Ok(());
    }
    let start = || Role::start(&["threads", &SLEEPERS.to_string()]);
    let (asleep, other) = (start()?, start()?);
    let stopped = read_sleepers(&asleep, &other, report, "asleep since the last time", 0.15)?
        + read_sleepers(&other, &other, report, "asleep, but not all the time", None)?;
    let work = "sleeping threads that were stopped";
    report.alone(work, stopped as f64, "threads", 0.0);
    Ok(())
}

/// Returns how many threads were stopped to be read.
fn read_sleepers(
    target: &Role,
    stopped: &Role,
    report: &mut Report,
    which: &str,
    bound: impl Into<Option<f64>>,
) -> Result<usize, String> {
    let error = |error: otelctx_reader::Error| error.to_string();
    let mut process = Process::open(target.pid()).map_err(error)?;
    let mut other = Process::open(stopped.pid()).map_err(error)?;
    let others = other.threads().map_err(error)?;
    let (mut rounds, mut stopped) = (Rounds::default(), 0);
    // The first one opens the files.
    for round in 0..=ROUNDS {
        let start = Instant::now();
        let threads = process.threads().map_err(error)?;
        let readings: Vec<_> = threads.iter().map(Thread::read).collect();
        let ours = start.elapsed();
        stopped += readings.iter().filter(|it| it.stop.is_some()).count();
        let attached = readings.iter().filter(|it| {
            let outcome = it.outcome.as_ref();
            outcome.is_ok_and(|outcome| outcome.attached().is_some())
        });
        if attached.count() != SLEEPERS {
            return Err("not every thread was read".to_owned());
        }
        let start = Instant::now();
        for thread in &others {
            bare_stop(thread.tid()).map_err(|error| error.to_string())?;
        }
        let bare = start.elapsed();
        let each = |time: std::time::Duration| time.as_nanos() as f64 / threads.len() as f64;
        if round > 0 {
            rounds.push(each(ours), each(bare));
        }
    }
    stopped_time::take();
    let work = format!("{SLEEPERS} threads {which}, each");
    report.pair(work, rounds.medians(1e3), "µs", bound);
    Ok(stopped)
}

fn measure(report: &mut Report, target: &Role, name: &str) -> Result<(), String> {
    let tid = target.number(&format!("{name} "))? as i32;
    let mut process = Process::open(target.pid()).map_err(|error| error.to_string())?;
    let threads = process.threads().map_err(|error| error.to_string())?;
    let thread = threads
        .iter()
        .find(|thread| thread.tid() == tid)
        .ok_or("the thread is not there")?;
    let mut rounds = Rounds::default();
    let mut failures = 0;
    while rounds.len() < STOPS {
        match stops(thread) {
            Ok([ours, bare]) => rounds.push(ours, bare),
            // Another process may be tracing it.
            Err(_) if failures < STOPS / 100 => failures += 1,
            Err(why) => return Err(why),
        }
    }
    for (what, pair) in [
        ("median", rounds.medians(1e3)),
        ("p99", rounds.quantiles(0.99, 1e3)),
    ] {
        report.pair(format!("{name} thread, {what}"), pair, "µs", 1.5);
    }
    Ok(())
}

/// Stops a thread and reads it, then with a bare stop; returns how long each took, in nanoseconds. Stopped
/// explicitly: a thread that was just resumed and waits for a CPU can be read without a stop.
fn stops(thread: &Thread<'_>) -> Result<[f64; 2], String> {
    let stopped_time = || stopped_time::take().ok_or("the thread was not stopped");
    let outcome = thread.stop().and_then(|mut stopped| stopped.context());
    let outcome = outcome.map_err(|error| error.to_string())?;
    let ours = stopped_time()?;
    let context = outcome.attached().ok_or("the thread has no context")?;
    if context.attributes.len() != 2 {
        return Err(format!("the context is {context:?}"));
    }
    bare_stop(thread.tid()).map_err(|error| error.to_string())?;
    Ok([ours, stopped_time()?])
}

/// Stops a thread, reads its registers and resumes it.
fn bare_stop(tid: i32) -> Result<(), Error> {
    let none = std::ptr::null_mut::<c_void>();
    let check = |result: i64| {
        if result == 0 {
            Ok(())
        } else {
            Err(Error::last_os_error())
        }
    };
    // SAFETY: all structures live through the calls that fill them in, zeroed ones are valid.
    unsafe {
        check(libc::ptrace(libc::PTRACE_SEIZE, tid, none, none))?;
        check(libc::ptrace(libc::PTRACE_INTERRUPT, tid, none, none))?;
        loop {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
            check(libc::waitid(libc::P_PID, tid as u32, &raw mut info, options).into())?;
            if info.si_pid() != 0 {
                break;
            }
            std::thread::yield_now();
        }
        let mut registers: libc::user_regs_struct = std::mem::zeroed();
        let mut vector = libc::iovec {
            iov_base: (&raw mut registers).cast(),
            iov_len: size_of_val(&registers),
        };
        let set = libc::NT_PRSTATUS as *mut c_void;
        check(libc::ptrace(
            libc::PTRACE_GETREGSET,
            tid,
            set,
            &raw mut vector,
        ))?;
        check(libc::ptrace(libc::PTRACE_DETACH, tid, none, none))
    }
}
