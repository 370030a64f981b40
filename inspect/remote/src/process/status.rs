//! `/proc/PID/status`: one fact per line, as text.

/// The flag of a task that has never had memory (include/linux/sched.h).
const PF_KTHREAD: u64 = 0x0020_0000;

/// Fields of `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// State letter: R running, S sleeping, D in an uninterruptible sleep, T stopped, t traced,
    /// Z zombie, X dead.
    pub state: char,
    /// The process to which the thread belongs.
    pub process: i32,
    /// The process that started it; 0 for none in the reader's PID namespace.
    pub parent: i32,
    /// The process that traces it; 0 for none.
    pub tracer: i32,
    /// Number of threads of the process.
    pub threads: usize,
    /// Its process ID in each PID namespace, from the reader's to its own.
    pub namespace_pids: Vec<i32>,
    /// True if it is a kernel thread, which has no memory.
    pub kernel_thread: bool,
}

impl Status {
    /// `flags` reads the task's flags. It is only called if the task has no memory.
    pub(crate) fn parse(text: &[u8], flags: impl FnOnce() -> Option<u64>) -> Self {
        let mut has_memory = false;
        let mut status = Status {
            state: '?',
            ..Status::default()
        };
        for line in text.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            // The value is ASCII in every line used here; `Name` may not be.
            let Ok(value) = std::str::from_utf8(&line[colon + 1..]) else {
                continue;
            };
            let value = value.trim();
            let number = || value.parse().unwrap_or(0);
            match &line[..colon] {
                b"State" => status.state = value.chars().next().unwrap_or('?'),
                b"Tgid" => status.process = number(),
                b"PPid" => status.parent = number(),
                b"TracerPid" => status.tracer = number(),
                b"Threads" => status.threads = value.parse().unwrap_or(0),
                b"NSpid" => {
                    status.namespace_pids = value
                        .split_whitespace()
                        .filter_map(|pid| pid.parse().ok())
                        .collect();
                }
                b"VmSize" => has_memory = true,
                _ => {}
            }
        }
        // A task that is exiting has no memory either.
        status.kernel_thread = !has_memory && flags().is_some_and(|flags| flags & PF_KTHREAD != 0);
        status
    }
}

#[cfg(test)]
mod tests {
    use super::{PF_KTHREAD, Status};

    #[test]
    fn lines_are_read_by_their_names() {
        let text =
            b"Name:\tState:\xff\nState:\tD (disk sleep)\nTgid:\t7\nPPid:\t5\nTracerPid:\t9\n\
            NSpid:\t7\t1\nThreads:\t3\nVmSize:\t4 kB\nno colon\n";
        let expected = Status {
            state: 'D',
            process: 7,
            parent: 5,
            tracer: 9,
            threads: 3,
            namespace_pids: vec![7, 1],
            kernel_thread: false,
        };
        assert_eq!(Status::parse(text, || unreachable!()), expected);
        assert_eq!(Status::parse(b"", || None).state, '?');
    }

    /// A process that was exiting was mistaken for a kernel thread: it has no memory, but is not a
    /// zombie yet.
    #[test]
    fn a_process_that_is_ending_is_no_kernel_thread() {
        const PF_EXITING: u64 = 4;
        let text = b"Name:\tshop\nState:\tR (running)\nTgid:\t7\n";
        for (flags, expected) in [(PF_EXITING, false), (PF_KTHREAD, true)] {
            assert_eq!(Status::parse(text, || Some(flags)).kernel_thread, expected);
        }
    }
}
