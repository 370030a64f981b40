//! How long threads are stopped: from the return of the waitid(2) that reports the stop to the
//! return of the ptrace(2) that resumes the thread.
//!
//! These functions replace the C library's in the bench program, including the crates in it. So the
//! production code is measured unchanged, and a minimal stop with the same clock.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Of all threads of this program, in nanoseconds.
static TOTAL: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static STOPPED: Cell<Option<Instant>> = const { Cell::new(None) };
    static LAST: Cell<Option<f64>> = const { Cell::new(None) };
}

/// How long the thread that the calling thread resumed last had been stopped, in nanoseconds.
/// Clears the value.
pub(crate) fn take() -> Option<f64> {
    LAST.take()
}

/// How long all threads of this program have stopped others until now, taken together.
pub(crate) fn total() -> Duration {
    Duration::from_nanos(TOTAL.load(Ordering::Relaxed))
}

/// waitid(2), recording when it reports something.
///
/// # Safety
/// That of the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn waitid(
    kind: libc::idtype_t,
    id: libc::id_t,
    info: *mut libc::siginfo_t,
    options: c_int,
) -> c_int {
    let usage = std::ptr::null_mut::<libc::rusage>();
    // SAFETY: as the caller promises; the system call's fifth argument may be null.
    let result = unsafe { libc::syscall(libc::SYS_waitid, kind, id, info, options, usage) };
    // SAFETY: the kernel has filled it in, or with WNOHANG and no news set the process to 0.
    if result == 0 && !info.is_null() && unsafe { (*info).si_pid() } != 0 {
        STOPPED.set(Some(Instant::now()));
    }
    result as c_int
}

/// ptrace(2), recording when it resumes a thread.
///
/// # Safety
/// That of the system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn ptrace(
    request: c_int,
    thread: libc::pid_t,
    address: *mut c_void,
    data: *mut c_void,
) -> c_long {
    let mut word: c_long = 0;
    // The system call stores the word that it peeks at; the C library returns it.
    let peeks =
        (libc::PTRACE_PEEKTEXT as c_int..=libc::PTRACE_PEEKUSER as c_int).contains(&request);
    let data = if peeks { (&raw mut word).cast() } else { data };
    // SAFETY: as the caller promises.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, thread, address, data) };
    if request == libc::PTRACE_DETACH as c_int && result == 0 {
        let elapsed = STOPPED.take().map(|stopped| stopped.elapsed());
        let nanoseconds = elapsed.map_or(0, |elapsed| elapsed.as_nanos() as u64);
        TOTAL.fetch_add(nanoseconds, Ordering::Relaxed);
        LAST.set(elapsed.map(|elapsed| elapsed.as_nanos() as f64));
    }
    if peeks && result == 0 { word } else { result }
}
