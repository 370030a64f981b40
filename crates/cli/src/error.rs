//! Why a command could not run.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use otelctx_reader::remote::{self, inspect::Other};

/// What to do where time is missing.
pub(crate) const MORE_TIME: &str = "--deadline SECONDS allows more";

/// Why a command could not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The process could not be looked at.
    #[error("{}", headline(.0))]
    Reader(otelctx_reader::Error),
    /// It would be a process, but no process can have this id.
    #[error("no process has the id {0}: they go up to {max}", max = i32::MAX)]
    NoProcessId(String),
    /// Nothing that a linker or a compiler made.
    #[error("{}: {what}", .path.display())]
    NotLinked {
        /// The file.
        path: PathBuf,
        /// What it is instead.
        what: NotLinked,
    },
    /// It has no memory of its own that something could be published in.
    #[error("process {0} is a thread of the kernel: it has no memory to publish in")]
    KernelThread(i32),
    /// The place for files of the process is none.
    #[error("{}: no directory to take files from: {why}", .path.display())]
    Sysroot {
        /// What was given as `--sysroot`.
        path: PathBuf,
        /// Why it can't be listed.
        #[source]
        why: io::Error,
    },
    /// A look at it does not end.
    #[error(
        "process {pid} does not answer: looking at it was given up after {} s in which nothing came of it",
        .waited.as_secs_f64()
    )]
    NotAnswering {
        /// The process.
        pid: i32,
        /// How long nothing was heard.
        waited: Duration,
    },
    /// The system starts no child.
    #[error("no process of the command's own can be started to look at others from: {0}")]
    NoChild(#[source] io::Error),
    /// The child can't be listened to.
    #[error("the command's own process that looks at others can't be followed: {0}")]
    Follow(#[source] io::Error),
    /// The child has ended before its time.
    #[error("the command's own process that looks at others was ended")]
    NoAnswer,
    /// What should be sampled can't be.
    #[error(transparent)]
    Sampler(otelctx_sampler::Error),
    /// A profile can't be written or read.
    #[error(transparent)]
    Profile(#[from] otelctx_profile::Error),
    /// There is no way to that collector.
    #[error(transparent)]
    Export(#[from] otelctx_export::Error),
    /// A profile was not sent.
    #[error(transparent)]
    NotSent(#[from] Box<otelctx_export::Failed>),
    /// The process would look at itself.
    #[error("process {0} is this otelctx itself, which can't sample itself")]
    Own(i32),
    /// Two outputs are one.
    #[error("{}: given twice with -o", .0.display())]
    OutputTwice(PathBuf),
    /// What the demo would write is there already.
    #[error("{}: is there already", .0.display())]
    OutputThere(PathBuf),
    /// The directory for the demo's files can't be made.
    #[error("{}: no directory for the files can be made: {why}", path.display())]
    OutputDirectory {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        why: io::Error,
    },
    /// The program to sample can't be started.
    #[error("{}: can't be started: {why}", program.to_string_lossy())]
    Command {
        /// The program.
        program: std::ffi::OsString,
        /// Why.
        why: io::Error,
    },
    /// Standard output does not take the answer.
    #[error("the answer can't be written: {0}")]
    Output(#[source] io::Error),
    /// The demo's service can't be started.
    #[error("the demo's service can't be started: {0}")]
    Start(#[source] io::Error),
    /// The demo's service has ended before its time.
    #[error("the demo's service could not start")]
    ServiceEnded,
    /// The service could not publish.
    #[error("the demo's service can't publish its context: {0}")]
    Publish(#[from] otelctx::PublishError),
    /// The signals that end a command can't be caught.
    #[error("an interruption can't be caught: {0}")]
    Interrupt(#[source] io::Error),
    /// A system call failed that does not fail.
    #[error("the demo's service can't be tied to this process: {0}")]
    Tie(#[source] nix::Error),
}

/// What a file is that nothing can be checked in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotLinked {
    #[error("a core file: what a process left, and no program")]
    Core,
    #[error("the debug information of a program, without its code")]
    DebugInformation,
    #[error("an ELF file that is neither program, library nor object file")]
    Unknown,
    #[error("{}", other(.0))]
    Other(Other),
}

impl NotLinked {
    fn hint(&self, path: &Path) -> String {
        match self {
            Self::Core => format!(
                "what it holds shows  otelctx dump --core {}",
                path.display()
            ),
            Self::DebugInformation => "check the program that it was taken from".into(),
            Self::Other(Other::Script(_)) => {
                "check its interpreter, or the process that runs it".into()
            }
            Self::Other(Other::LinkerScript) => "check the library that it names".into(),
            Self::Other(Other::Bitcode) => "check what is linked from it".into(),
            _ => "check takes an ELF program or library, or the id of a process".into(),
        }
    }
}

fn other(other: &Other) -> String {
    match other {
        Other::Empty => "an empty file".into(),
        Other::Script(interpreter) => format!("a script for {interpreter}, no ELF file"),
        Other::LinkerScript => "a script for the linker, no ELF file".into(),
        Other::Bitcode => "an object file of LLVM that is not compiled yet (-flto)".into(),
        _ => "no ELF file".into(),
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

impl Error {
    /// What the user can do, if it is not part of the message.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Reader(otelctx_reader::Error::Remote(error)) => match error {
                remote::Error::NotPermitted { hint, .. } => Some(hint.clone()),
                remote::Error::NoSuchProcess { .. } => {
                    Some("`otelctx ps` lists the processes that publish a context".into())
                }
                remote::Error::Elf { .. } | remote::Error::NotRegularFile { .. } => {
                    Some("check takes an ELF program or library, or the id of a process".into())
                }
                _ => None,
            },
            Self::Reader(otelctx_reader::Error::Deadline { .. }) => {
                Some(MORE_TIME.into())
            }
            Self::Export(error) => error.hint(),
            Self::NotSent(failed) => failed.why.hint(),
            Self::NotAnswering { .. } => Some(
                "some of its memory is a file whose server gives nothing, or too slowly (FUSE, a \
                 network file system): hint or end that server"
                    .into(),
            ),
            Self::Sampler(otelctx_sampler::Error::Snapshot(_)) => Some(
                "it takes Linux 5.18; without --no-stop each thread is stopped for some microseconds"
                    .into(),
            ),
            Self::OutputThere(_) => Some("nothing is overwritten: name another directory".into()),
            Self::NoProcessId(name) => Some(format!("for a file of that name:  ./{name}")),
            Self::NotLinked { path, what } => Some(what.hint(path)),
            Self::KernelThread(_) => {
                Some("`otelctx ps` lists the processes that publish a context".into())
            }
            Self::Publish(_) | Self::ServiceEnded => {
                Some("a sandbox may deny what it takes: try it outside of one".into())
            }
            _ => None,
        }
    }
}

/// What would allow it, if `error` is about rights.
pub(crate) fn not_permitted(error: &otelctx_reader::Error) -> Option<&str> {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { hint, .. }) => Some(hint),
        _ => None,
    }
}

/// Whether the process, or the thread, is not there (any more).
pub(crate) fn is_gone(error: &otelctx_reader::Error) -> bool {
    matches!(
        error,
        otelctx_reader::Error::Remote(
            remote::Error::NoSuchProcess { .. } | remote::Error::NoSuchThread { .. }
        )
    )
}

/// The message without its hint, which goes to a line of its own.
fn headline(error: &otelctx_reader::Error) -> String {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { pid, action, .. }) => {
            format!("not permitted to {action} of process {pid}")
        }
        error => error.to_string(),
    }
}
