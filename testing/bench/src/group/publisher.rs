//! Records in a Rust executable, against libdd-otel-thread-ctx in the same one.
//!
//! The two define the same thread-local variable, which the linker merges. Each side detaches what
//! it attached at the end of each round.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::row::Report;
use crate::work::{WORKS, libdd, ours, reference};
use crate::{machine, pair};

pub(crate) fn run(report: &mut Report) {
    report.group("publisher");
    let pinned = machine::Pinned::to(0);
    let published = ours::set_up();
    for (index, (name, bound)) in WORKS.into_iter().enumerate() {
        let pair = pair::compare(ours::WORKS[index], libdd::WORKS[index]);
        report.pair(name, pair, "ns", bound);
    }
    type Work = fn(u64);
    let pair = pair::compare(ours::WORKS[0], reference::swap_and_back);
    let work = format!("{}, to a load and two stores", WORKS[0].0);
    report.pair(work, pair, "ns", 1.3);
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
    // Threads inherit the pinning.
    drop(pinned);
    share_on_threads(report);
    // The keys stay usable.
    drop(published);
    share_while_publishing(report);
}

/// Number of threads that share records at the same time.
const THREADS: usize = 8;
/// Number of operations per thread and round, and rounds of the pair.
const SHARES: u64 = 100_000;
const SHARE_ROUNDS: usize = 41;

/// The CPU time of sharing per thread when other threads share, too, compared with a single thread.
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

/// Number of mappings while another thread publishes, so that publishing takes long.
const MAPPINGS: usize = 60_000;
/// Number of rounds, each with a whole publication.
const PUBLICATIONS: usize = 21;

/// The worst-case time of sharing while another thread publishes repeatedly, compared with the time
/// while it does not.
fn share_while_publishing(report: &mut Report) {
    let work = "the same while another thread publishes, p99.9";
    let Some(_mappings) = Mappings::new(MAPPINGS) else {
        return report.skipped(work, "vm.max_map_count is too low for 60,000 mappings");
    };
    let (wanted, is_publishing) = (AtomicBool::new(false), AtomicBool::new(false));
    let (ended, published) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rounds = pair::Rounds::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let wanted = wanted.load(Ordering::Relaxed);
                is_publishing.store(wanted, Ordering::Release);
                if wanted {
                    drop(ours::publish());
                    published.fetch_add(1, Ordering::Relaxed);
                } else {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        let switch = |publish: bool| {
            wanted.store(publish, Ordering::Relaxed);
            while is_publishing.load(Ordering::Acquire) != publish {
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let share = |_| {
            let start = Instant::now();
            ours::share_attach_drop(1);
            start.elapsed().as_nanos() as f64
        };
        for _ in 0..PUBLICATIONS {
            let before = published.load(Ordering::Relaxed);
            switch(true);
            let unfinished = |_: &usize| published.load(Ordering::Relaxed) == before;
            let with: Vec<f64> = (0..).take_while(unfinished).map(share).collect();
            switch(false);
            for (at, with) in with.into_iter().enumerate() {
                rounds.push(with, share(at));
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    report.pair(work, rounds.quantiles(0.999, 1.0), "ns", 2.0);
}

/// Mappings of one page each, until dropped.
struct Mappings {
    start: *mut libc::c_void,
    size: usize,
}

impl Mappings {
    fn new(count: usize) -> Option<Self> {
        const PAGE: usize = 4096;
        let size = count * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: asks for new memory wherever there is room.
        let start =
            unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let mappings = Self { start, size };
        // The kernel merges neighbours with equal protection.
        let split = (0..count).step_by(2).all(|page| {
            // SAFETY: the pages are this value's.
            unsafe { libc::mprotect(start.byte_add(page * PAGE), PAGE, libc::PROT_READ) == 0 }
        });
        split.then_some(mappings)
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the pages.
        unsafe { libc::munmap(self.start, self.size) };
    }
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
