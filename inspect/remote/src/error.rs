//! Errors of reading another process.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::memory::MemoryError;

/// Why another process, one of its threads or one of its files could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The process does not exist, or has exited.
    #[error("process {pid} does not exist, or has exited")]
    NoSuchProcess {
        /// The requested process.
        pid: i32,
    },
    /// `/proc` belongs to another PID namespace, in which IDs belong to other processes: one
    /// process would be read, and another one stopped.
    #[error(
        "process {pid} cannot be inspected: /proc belongs to another PID namespace than this \
         process; mount /proc in this one, as `unshare --mount-proc` does"
    )]
    OtherPidNamespace {
        /// The requested process.
        pid: i32,
    },
    /// The thread does not exist, has exited, or belongs to another process.
    #[error("thread {tid} of process {pid} does not exist, or has exited")]
    NoSuchThread {
        /// The process.
        pid: i32,
        /// The requested thread.
        tid: i32,
    },
    /// The kernel denied access. `hint` names the required capability or setting.
    #[error("not permitted to {action} of process {pid}: {hint}")]
    NotPermitted {
        /// The process.
        pid: i32,
        /// The denied action, worded to follow "not permitted to".
        action: &'static str,
        /// The capability or setting that gives permission.
        hint: String,
    },
    /// The thread has another tracer; there can be only one.
    #[error(
        "thread {tid} of process {pid} is already traced by process {tracer} \
         (a debugger, strace or another profiler): end that first"
    )]
    AlreadyTraced {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// The `TracerPid` that the kernel reports.
        tracer: i32,
    },
    /// The thread is an io_uring worker that the kernel started in the process. It executes no code
    /// of the process and cannot be traced.
    #[error(
        "thread {tid} of process {pid} is a worker of the kernel's io_uring, which has no context"
    )]
    KernelWorker {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// The thread did not stop in time. It keeps running.
    #[error(
        "thread {tid} of process {pid} did not stop within {} ms: the kernel reports state {state} \
         (D is an uninterruptible sleep)", .timeout.as_millis()
    )]
    StopTimeout {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// The time allowed.
        timeout: Duration,
        /// The state letter of `/proc/PID/task/TID/stat`, `?` if it could not be read.
        state: char,
    },
    /// The thread sleeps in a system call whose timeout a stop would restart: it was not stopped.
    #[error(
        "thread {tid} of process {pid} was not stopped: it sleeps in a system call whose timeout \
         would start again"
    )]
    WouldLengthen {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// The reader cannot start another thread.
    #[error("cannot start a thread of the reader to stop others: {0}")]
    NoOwnThread(#[source] io::Error),
    /// The process executes 32-bit code: only 64-bit threads are supported.
    #[error("thread {tid} of process {pid} runs as 32-bit code, which is not supported")]
    Not64Bit {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
    },
    /// The memory of the target could not be read.
    #[error("{what}: {source}")]
    Memory {
        /// The data that was being read.
        what: &'static str,
        /// Why it failed, with the address.
        source: MemoryError,
    },
    /// A file, or an entry of `/proc`, could not be read.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The contents of an ELF file, or of a module in memory, do not match its headers.
    #[error("{}: not a readable ELF module: {reason}", .path.display())]
    Elf {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A file is not a core file, or is entirely unreadable.
    #[error("{}: not a readable core file: {reason}", .path.display())]
    Core {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The file is a FIFO, a device, a directory or a socket.
    #[error("{}: not a regular file", .path.display())]
    NotRegularFile {
        /// The file.
        path: PathBuf,
    },
    /// The caller's deadline has passed.
    #[error("{name}: the deadline passed before {action}")]
    Deadline {
        /// The process or core file that was being read.
        name: String,
        /// The step that was not completed, worded to follow "before".
        action: &'static str,
    },
    /// The C library of the process, or its architecture, is not supported.
    #[error("process {pid}: {reason}")]
    Unsupported {
        /// The process.
        pid: i32,
        /// The unsupported property.
        reason: &'static str,
    },
}

impl Error {
    /// Adds the path to a system error.
    pub(crate) fn io<E: Into<io::Error>>(path: impl Into<PathBuf>) -> impl FnOnce(E) -> Error {
        move |source| Error::Io {
            path: path.into(),
            source: source.into(),
        }
    }

    pub(crate) fn memory(what: &'static str) -> impl FnOnce(MemoryError) -> Error {
        move |source| Error::Memory { what, source }
    }

    /// Converts errors of reading a thread's entry: it is the thread that does not exist.
    pub(crate) fn of_thread(self, tid: i32) -> Self {
        match self {
            Error::NoSuchProcess { pid } => Error::NoSuchThread { pid, tid },
            error => error,
        }
    }
}
