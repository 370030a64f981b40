//! Records in a Rust executable, against libdd-otel-thread-ctx in the same one.
//!
//! The two define the same thread-local variable, which the linker makes one. Each side detaches
//! what it attached at the end of each round.

use crate::row::Report;
use crate::work::{WORKS, libdd, ours, reference};
use crate::{machine, pair};

pub(crate) fn run(report: &mut Report) {
    report.group("publisher");
    let pinned = machine::Pinned::to(0);
    ours::set_up();
    for (index, (name, bound)) in WORKS.into_iter().enumerate() {
        let pair = pair::compare(ours::WORKS[index], libdd::WORKS[index]);
        report.pair(name, pair, "ns", bound);
    }
    type Work = fn(u64);
    let shared: [(&str, Work, Work, f64); 3] = [
        (
            "swap a shared record out and in, to attach + detach",
            ours::swap_out_and_in,
            libdd::WORKS[0],
            0.25,
        ),
        (
            "attach + detach a shared record",
            ours::attach_detach_shared,
            libdd::WORKS[0],
            1.1,
        ),
        (
            "share a record with 2 attributes + attach + last drop",
            ours::share_attach_drop,
            libdd::build,
            0.8,
        ),
    ];
    for (name, ours, peer, bound) in shared {
        report.pair(name, pair::compare(ours, peer), "ns", bound);
    }
    let pair = pair::compare(ours::WORKS[0], reference::swap_and_back);
    let work = format!("{}, to a load and two stores", WORKS[0].0);
    report.pair(work, pair, "ns", 1.3);
    // Threads inherit the pinning.
    drop(pinned);
    share_on_threads(report);
}

/// Threads that share records at once.
const THREADS: usize = 8;
/// How often each does it in a round, and rounds of the pair.
const SHARES: u64 = 100_000;
const SHARE_ROUNDS: usize = 41;

/// What sharing takes of a thread's CPU time when others share, too, to one thread alone.
fn share_on_threads(report: &mut Report) {
    let on = |threads: usize| {
        let times: Vec<f64> = std::thread::scope(|scope| {
            let work = || {
                let before = thread_time_ns();
                ours::share_attach_drop(SHARES);
                (thread_time_ns() - before) / SHARES as f64
            };
            let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, f64>| thread.join();
            started.into_iter().filter_map(|t| join(t).ok()).collect()
        });
        times.iter().sum::<f64>() / times.len() as f64
    };
    let rounds = pair::interleave(SHARE_ROUNDS, || on(THREADS), || on(1));
    let work = "the same on 8 threads at once, CPU time of each, to one thread";
    report.pair(work, rounds.medians(1.0), "ns", 1.5);
}

/// The calling thread's CPU time, in nanoseconds.
fn thread_time_ns() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure lives through the call, which fails for no other reason.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
