//! A pre-forking server. `prefork republish` publishes again in its workers, `prefork` does not.
//!
//! It forks while other threads of it change the context and register keys. Each worker attaches
//! trace 0x01…, span 0x02… with `http.route` and its pid, and the key `worker.key` that it registers
//! itself; then it prints
//!
//! - `worker`, its pid, and how often `fork` has allocated or freed memory in it

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use otelctx::{Context, Key, ProcessContext};

const WORKERS: usize = 20;

/// Counts what a forking thread does in the child, where it is the only thread.
struct Counting;

static IN_FORK: AtomicBool = AtomicBool::new(false);
static PARENT: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

fn count() {
    if IN_FORK.load(Ordering::Relaxed)
        && std::process::id() as usize != PARENT.load(Ordering::Relaxed)
    {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: what the system's allocator does.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ROUTE: Key = Key::new("http.route");
static WORKER: Key = Key::new("worker.key");

fn main() {
    let mut process = ProcessContext::detect()
        .with_service_name("shop")
        .with_attribute("ports", vec![80_i64, 443])
        .publish()
        .expect("published");
    if std::env::args().nth(1).as_deref() == Some("republish") {
        process.republish_after_fork().expect("registered");
    }
    ROUTE.register().expect("registered");
    PARENT.store(std::process::id() as usize, Ordering::Relaxed);

    let stop = AtomicBool::new(false);
    let mut workers = Vec::new();
    thread::scope(|scope| {
        let until_stopped = |mut work: Box<dyn FnMut(i64) + Send>| {
            let stop = &stop;
            scope.spawn(move || {
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    work(round);
                }
            });
        };
        until_stopped(Box::new(|round| {
            ProcessContext::modify(|context| context.with_attribute("round", round))
                .expect("changed");
        }));
        until_stopped(Box::new(|round| {
            if round < 200 {
                Key::from_string(format!("key-{round}")).expect("registered");
            }
            thread::yield_now();
        }));
        until_stopped(Box::new(|_| {
            drop(
                Context::new([9; 16], [9; 8])
                    .unwrap()
                    .with_attribute(&ROUTE, "/")
                    .share(),
            );
        }));
        workers.extend((0..WORKERS).map(|_| fork_worker()));
        stop.store(true, Ordering::Relaxed);
    });
    println!("ready");
    // Until the test closes it.
    let _ = std::io::stdin().read_line(&mut String::new());
    for worker in workers {
        // SAFETY: the children are this process's own.
        unsafe {
            libc::kill(worker, libc::SIGKILL);
            libc::waitpid(worker, std::ptr::null_mut(), 0);
        }
    }
}

/// Returns when the worker has printed its line.
fn fork_worker() -> libc::pid_t {
    let mut pipe = [0; 2];
    // SAFETY: the arguments are as the calls want them.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        IN_FORK.store(true, Ordering::Relaxed);
        let child = libc::fork();
        IN_FORK.store(false, Ordering::Relaxed);
        assert!(child >= 0, "fork");
        if child == 0 {
            work(pipe[1]);
        }
        libc::close(pipe[1]);
        let mut byte = 0_u8;
        libc::read(pipe[0], (&raw mut byte).cast(), 1);
        libc::close(pipe[0]);
        child
    }
}

fn work(ready: libc::c_int) -> ! {
    // SAFETY: ended with its parent, however that ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let pid = std::process::id();
    WORKER.register().expect("registered");
    let mut record = Context::new([1; 16], [2; 8])
        .unwrap()
        .with_attribute(&ROUTE, &pid.to_string())
        .with_attribute(&WORKER, "own");
    let _attached = record.attach();
    // Another thread of the parent may have held the lock of standard output.
    let line = format!("worker\t{pid}\t{}\n", CALLS.load(Ordering::Relaxed));
    // SAFETY: the text lives through the call.
    unsafe {
        libc::write(1, line.as_ptr().cast(), line.len());
        libc::close(ready);
        loop {
            libc::pause();
        }
    }
}
