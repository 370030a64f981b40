//! `/proc/PID/status`: one line a fact, in text.

/// Fields of `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Status {
    /// State letter: R running, S sleeping, D in an uninterruptible sleep, T stopped, t traced,
    /// Z zombie, X dead.
    pub state: char,
    /// The process that the thread belongs to.
    pub process: i32,
    /// The process that started it, 0 for none in the reader's PID namespace.
    pub parent: i32,
    /// The process that traces it, 0 for none.
    pub tracer: i32,
    /// How many threads the process has.
    pub threads: usize,
    /// Its process id in each PID namespace from the reader's to its own.
    pub namespace_pids: Vec<i32>,
    /// It has no memory of its own and runs in the kernel only.
    pub kernel_thread: bool,
}

impl Status {
    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut has_memory = false;
        let mut status = Status {
            state: '?',
            ..Status::default()
        };
        for line in text.split(|byte| *byte == b'\n') {
            let Some(colon) = line.iter().position(|byte| *byte == b':') else {
                continue;
            };
            // What follows the colon is ASCII in every line used here; `Name` is not.
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
        status.kernel_thread = !has_memory && !matches!(status.state, 'Z' | 'X' | '?');
        status
    }
}

#[cfg(test)]
mod tests {
    use super::Status;

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
        assert_eq!(Status::parse(text), expected);
        assert_eq!(Status::parse(b"").state, '?');
    }
}
