//! How long a thread is stopped while `otelctx dump` reads its context, against a bare stop:
//! PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_GETREGSET of the general registers, PTRACE_DETACH.

use std::ffi::c_void;
use std::io::Error;

use otelctx_reader::{Process, Thread};
use otelctx_remote::stop::on_own_thread;

use crate::child::Role;
use crate::pair::Rounds;
use crate::row::Report;
use crate::stopped_time;

/// Stops of each side.
const STOPS: usize = 10_000;

pub(crate) fn run(report: &mut Report) {
    report.group("stop");
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

/// Stops a thread as `dump` does, then with a bare stop; returns how long each took, in nanoseconds.
fn stops(thread: &Thread<'_>) -> Result<[f64; 2], String> {
    let stopped_time = || stopped_time::take().ok_or("the thread was not stopped");
    let outcome = thread.context().map_err(|error| error.to_string())?;
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
