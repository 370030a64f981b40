//! The priority of the thread that stacks wait for.

use std::io;

/// See sched(7): some nine times the CPU time of a thread with the default.
const NICE: i32 = -10;

/// Raises the priority of the calling thread, if that is permitted, and the user has not chosen another one (nice(1)): on a busy
/// machine, it would take seconds for what takes a tenth of a second, and stacks are incomplete until then.
///
/// # Errors
/// If it is not permitted: it takes `CAP_SYS_NICE`, or a limit (`RLIMIT_NICE`).
pub(crate) fn raise_thread_priority() -> io::Result<()> {
    if nice() != 0 {
        return Ok(());
    }
    // SAFETY: the call has no preconditions. On Linux, it changes the calling thread alone (setpriority(2), "C library/kernel
    // differences").
    match unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The nice value of the calling thread.
fn nice() -> i32 {
    // SAFETY: the call has no preconditions. It cannot fail for the calling thread.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn only_the_calling_thread_is_preferred() {
        let before = nice();
        let raised = thread::spawn(move || {
            let result = raise_thread_priority();
            // Without the right, or with a priority of the user's choice, nothing changes.
            let expected = if before == 0 && result.is_ok() {
                NICE
            } else {
                before
            };
            (nice(), expected)
        });
        let (raised, expected) = raised.join().unwrap();
        assert_eq!(raised, expected);
        assert_eq!(nice(), before);
    }
}
