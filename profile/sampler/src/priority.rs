//! The priority of threads that stacks wait for.

/// See sched(7): some nine times the CPU time of a thread with the default.
const NICE: i32 = -10;

/// Gives the calling thread more CPU time than others, if that is permitted (`CAP_SYS_NICE`): on a busy machine, it would
/// take seconds for what takes a tenth of a second, and stacks are incomplete until then.
pub(crate) fn prefer_this_thread() {
    // SAFETY: the call has no preconditions. On Linux, it changes the calling thread alone (setpriority(2), "C library/kernel
    // differences").
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{NICE, prefer_this_thread};

    /// The nice value of the calling thread: getpriority(2).
    fn nice() -> i32 {
        // SAFETY: the call has no preconditions.
        unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
    }

    #[test]
    fn only_the_calling_thread_is_preferred() {
        let before = nice();
        let preferred = thread::spawn(|| {
            prefer_this_thread();
            nice()
        });
        // Without the right, nothing changes.
        let preferred = preferred.join().unwrap();
        assert!([NICE, before].contains(&preferred), "{preferred}");
        // SAFETY: the call has no preconditions.
        if unsafe { libc::geteuid() } == 0 {
            assert_eq!(preferred, NICE);
        }
        assert_eq!(nice(), before);
    }
}
