//! Suspends this process, as Ctrl-Z does, only while it has no thread of another process stopped:
//! that thread would stay stopped until this process continues.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Number of threads that this process traces.
static TRACED: AtomicUsize = AtomicUsize::new(0);
static REQUESTED: AtomicBool = AtomicBool::new(false);
static SUSPENDING: AtomicBool = AtomicBool::new(false);
/// Suspends this process, see [`set_action`].
static ACTION: OnceLock<fn()> = OnceLock::new();

/// The interval of checks whether the process was suspended and has continued.
const PERIOD: Duration = Duration::from_millis(1);

thread_local! {
    /// Number of threads that this OS thread traces.
    static OWN: Cell<usize> = const { Cell::new(0) };
}

/// Sets how [`request`] suspends this process: `action` returns when the process continues. It may
/// run in a signal handler. Only the first call counts.
pub fn set_action(action: fn()) {
    let _ = ACTION.set(action);
}

/// Suspends this process as soon as it has no thread stopped: immediately, or when the last one is
/// resumed. Until then, no other thread is stopped. May be called in signal handlers.
pub fn request() {
    REQUESTED.store(true, Ordering::SeqCst);
    if TRACED.load(Ordering::SeqCst) == 0 {
        run();
    }
}

/// Returns whether a request is pending.
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

/// Counts a thread as traced until dropped.
#[derive(Debug)]
pub(super) struct Traced(());

impl Traced {
    /// Waits while a request is pending, unless this OS thread traces another thread.
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

    /// Counts the thread as no longer traced, after the OS thread that traced it was joined.
    pub(super) fn forget_joined(self) {
        // Dropping it subtracts this again: the thread was never this OS thread's.
        OWN.set(OWN.get() + 1);
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
