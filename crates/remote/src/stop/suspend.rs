//! Suspending this very process, as Ctrl-Z does, only while it has no thread of another stopped: that
//! thread would stand still until somebody continues this process.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Threads that this process traces.
static TRACED: AtomicUsize = AtomicUsize::new(0);
/// The process is to be suspended.
static REQUESTED: AtomicBool = AtomicBool::new(false);
/// It is being suspended.
static SUSPENDING: AtomicBool = AtomicBool::new(false);
/// How it is suspended.
static ACTION: OnceLock<fn()> = OnceLock::new();

/// How often is checked whether the process has been suspended and continued.
const PERIOD: Duration = Duration::from_millis(1);

thread_local! {
    /// Threads that this OS thread traces.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Sets how [`request`] suspends this process: `action` returns when the process continues. It may run
/// in a signal handler. The first call counts.
pub fn set_action(action: fn()) {
    let _ = ACTION.set(action);
}

/// Suspends this process as soon as it has no thread stopped: at once, or else when the last one is
/// resumed, by the OS thread that resumes it. Until then no other is stopped. For signal handlers, too.
pub fn request() {
    REQUESTED.store(true, Ordering::SeqCst);
    if TRACED.load(Ordering::SeqCst) == 0 {
        run();
    }
}

/// Whether a request is still to be met.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

fn run() {
    if !is_requested() || SUSPENDING.swap(true, Ordering::SeqCst) {
        return;
    }
    if let Some(action) = ACTION.get() {
        action();
    }
    REQUESTED.store(false, Ordering::SeqCst);
    SUSPENDING.store(false, Ordering::SeqCst);
}

/// Counts a thread that is traced, until this is dropped.
#[derive(Debug)]
pub(super) struct Traced(());

impl Traced {
    /// Waits while the process is to be suspended, unless this OS thread traces another thread: that
    /// has to be resumed first.
    pub(super) fn new() -> Self {
        loop {
            TRACED.fetch_add(1, Ordering::SeqCst);
            if OWN.get() > 0 || !is_requested() {
                break;
            }
            leave();
            std::thread::sleep(PERIOD);
        }
        OWN.set(OWN.get() + 1);
        Self(())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        OWN.set(OWN.get().saturating_sub(1));
        leave();
    }
}

fn leave() {
    if TRACED.fetch_sub(1, Ordering::SeqCst) == 1 {
        run();
    }
}
