//! Why a command could not run, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use otelctx_reader::remote::{self, inspect::Other};

use crate::output::text::own_name;

/// Hint for everything that the deadline cut short.
pub(crate) const MORE_TIME: &str = "raise the limit with --deadline SECONDS";

/// Why a command could not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The process could not be inspected.
    #[error("{}", headline(.0))]
    Reader(otelctx_reader::Error),
    /// A number too large to be a process ID.
    #[error("no process has the ID {0}: the largest possible one is {max}", max = i32::MAX)]
    NoProcessId(String),
    /// A file that no linker or compiler made.
    #[error("{}: {what}", .path.display())]
    NotLinked {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: NotLinked,
    },
    /// A kernel thread has no memory to publish in.
    #[error("process {0} is a kernel thread: it has no memory to publish in")]
    KernelThread(i32),
    /// `--sysroot` is not a readable directory.
    #[error("{}: not a readable directory: {why}", .path.display())]
    Sysroot {
        /// What was given as `--sysroot`.
        path: PathBuf,
        /// Why it cannot be listed.
        #[source]
        why: io::Error,
    },
    /// Inspecting it does not end.
    #[error(
        "process {pid} did not respond within {} s (its memory may be backed by an unresponsive file server)",
        .waited.as_secs_f64()
    )]
    NotResponding {
        /// The process.
        pid: i32,
        /// How long the worker process was waited for.
        waited: Duration,
    },
    /// The worker process could not be created.
    #[error("cannot start the worker process: {0}")]
    StartWorker(#[source] io::Error),
    /// The pipes to the worker process failed.
    #[error("cannot read from the worker process: {0}")]
    ReadWorker(#[source] io::Error),
    /// The worker process ended without an answer.
    #[error("the worker process ended unexpectedly")]
    WorkerEnded,
    /// The sampler could not start.
    #[error(transparent)]
    Sampler(otelctx_sampler::Error),
    /// A profile could not be written or read.
    #[error(transparent)]
    Profile(#[from] otelctx_profile::Error),
    /// The file that samples go to while a recording runs could not be created or read.
    #[error("cannot write samples to a temporary file: {0}")]
    Spool(#[source] io::Error),
    /// There was no room for samples any more.
    #[error("the recording ended early, because samples cannot be stored: {0}")]
    SpoolFull(#[source] io::Error),
    /// The collector cannot be used.
    #[error(transparent)]
    Export(#[from] otelctx_export::Error),
    /// `--debuginfod` is not usable.
    #[error("--debuginfod: {0}")]
    Debuginfod(#[from] otelctx_export::DownloadError),
    /// A profile could not be sent.
    #[error(transparent)]
    NotSent(#[from] Box<otelctx_export::Failed>),
    /// The process would sample itself.
    #[error("process {0} is this otelctx process, which cannot sample itself")]
    Own(i32),
    /// No process has this name.
    #[error("no process is named {}", crate::output::terminal::escape(.0))]
    NoneNamed(String),
    /// No process is in a container with this ID.
    #[error("no process is in container {0}")]
    EmptyContainer(String),
    /// No process is in a control group with this path.
    #[error("no process is in control group {}", crate::output::terminal::escape(.0))]
    EmptyControlGroup(String),
    /// `symbolize` was to write another format.
    #[error("{}: symbolize writes OTLP alone, to a file FILE.otlp", .0.display())]
    OnlyOtlp(PathBuf),
    /// The same output file twice.
    #[error("{}: output file given twice", .0.display())]
    OutputTwice(PathBuf),
    /// A file that the demo would write exists.
    #[error("{}: already exists", .0.display())]
    OutputExists(PathBuf),
    /// The directory for the demo's files could not be created.
    #[error("{}: cannot create the directory: {why}", path.display())]
    OutputDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        why: io::Error,
    },
    /// The command to sample could not be started.
    #[error("cannot start {}: {why}", program.to_string_lossy())]
    Command {
        /// The program.
        program: std::ffi::OsString,
        /// Why.
        why: io::Error,
    },
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    /// The demo's service could not be started.
    #[error("cannot start the demo's service: {0}")]
    Start(#[source] io::Error),
    /// The demo's service exited early.
    #[error("the demo's service exited early")]
    ServiceEnded,
    /// The demo's service could not publish.
    #[error("the demo's service cannot publish its context: {0}")]
    Publish(#[from] otelctx::PublishError),
    /// A signal handler could not be installed.
    #[error("cannot install a signal handler: {0}")]
    Interrupt(#[source] io::Error),
    /// prctl(2) failed.
    #[error("cannot tie the demo's service to this process: {0}")]
    Tie(#[source] nix::Error),
}

/// Why a file cannot be checked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotLinked {
    #[error("a core file, not a program or library")]
    Core,
    #[error("a separate debug file, without code")]
    DebugInformation,
    #[error("an ELF file, but not a program, library or object file")]
    Unknown,
    #[error("{}", other(.0))]
    Other(Other),
}

impl NotLinked {
    fn hint(&self, path: &Path) -> String {
        match self {
            Self::Core => format!(
                "`{} dump --core {}` shows its contents",
                own_name(),
                path.display()
            ),
            Self::DebugInformation => "check the program that it belongs to".into(),
            Self::Other(Other::Script(_)) => {
                "check its interpreter, or the process that runs it".into()
            }
            Self::Other(Other::LinkerScript) => "check the library that it names".into(),
            Self::Other(Other::Bitcode) => "check the program or library linked from it".into(),
            _ => "check takes an ELF program or library, or a process ID".into(),
        }
    }
}

fn other(other: &Other) -> String {
    match other {
        Other::Empty => "an empty file".into(),
        Other::Script(interpreter) => format!("a script for {interpreter}, not an ELF file"),
        Other::LinkerScript => "a linker script, not an ELF file".into(),
        Other::Bitcode => "LLVM bitcode, not compiled yet (-flto)".into(),
        _ => "not an ELF file".into(),
    }
}

impl From<otelctx_reader::Error> for Error {
    fn from(error: otelctx_reader::Error) -> Self {
        Self::Reader(error)
    }
}

impl From<otelctx_sampler::Error> for Error {
    fn from(error: otelctx_sampler::Error) -> Self {
        match error {
            otelctx_sampler::Error::Reader(error) => Self::Reader(error),
            otelctx_sampler::Error::Remote(error) => error.into(),
            error => Self::Sampler(error),
        }
    }
}

impl From<remote::Error> for Error {
    fn from(error: remote::Error) -> Self {
        Self::Reader(error.into())
    }
}

/// Which processes to choose from.
fn publishing() -> String {
    let own = own_name();
    format!("`{own} ps` lists the processes that publish a context")
}

impl Error {
    /// What the user can do, if the message does not say it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Reader(otelctx_reader::Error::Remote(error)) => match error {
                remote::Error::NotPermitted { hint, .. } => Some(hint.clone()),
                remote::Error::NoSuchProcess { .. } => Some(publishing()),
                remote::Error::Elf { .. } | remote::Error::NotRegularFile { .. } => {
                    Some("check takes an ELF program or library, or a process ID".into())
                }
                _ => None,
            },
            Self::Reader(otelctx_reader::Error::Deadline { .. }) => Some(MORE_TIME.into()),
            Self::Export(error)
            | Self::Debuginfod(otelctx_export::DownloadError::Prepare(error)) => error.hint(),
            Self::NotSent(failed) => failed.why.hint(),
            Self::NotResponding { .. } => {
                Some("check the FUSE or network file server of its mapped files".into())
            }
            Self::Sampler(otelctx_sampler::Error::Snapshot(_)) => Some(
                "it needs Linux 5.18; without --no-stop, running threads are stopped for a few \
                 microseconds"
                    .into(),
            ),
            Self::OutputExists(_) => {
                Some("the demo does not overwrite files: choose another directory".into())
            }
            Self::NoProcessId(name) => Some(format!("if it is a file, write ./{name}")),
            Self::NotLinked { path, what } => Some(what.hint(path)),
            Self::KernelThread(_) => Some(publishing()),
            Self::Publish(_) | Self::ServiceEnded => Some(
                "a sandbox may deny the system calls it needs: run it outside the sandbox".into(),
            ),
            _ => None,
        }
    }
}

/// The hint of an error about permissions.
pub(crate) fn not_permitted(error: &otelctx_reader::Error) -> Option<&str> {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { hint, .. }) => Some(hint),
        _ => None,
    }
}

/// The message without its hint, which is printed on a line of its own.
fn headline(error: &otelctx_reader::Error) -> String {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { pid, action, .. }) => {
            format!("not permitted to {action} of process {pid}")
        }
        error => error.to_string(),
    }
}
