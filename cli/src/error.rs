//! Why a command could not run, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use otelctx_reader::remote::{self, inspect::Other};

use crate::hidden;
use crate::output::text::{argument, own_name};

/// Hint for everything that the deadline cut short.
pub(crate) const MORE_TIME: &str = "raise the limit with --deadline SECONDS";

/// Why a command could not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{}", headline(.0))]
    Reader(#[from] otelctx_reader::Error),
    #[error("no process has the ID {0}: the largest possible one is {max}", max = i32::MAX)]
    NoProcessId(String),
    /// A file that no linker or compiler made.
    #[error("{}: {what}", .path.display())]
    NotLinked { path: PathBuf, what: NotLinked },
    #[error("process {0} is a kernel thread: it has no memory to publish in")]
    KernelThread(i32),
    #[error("{}: not a readable directory: {why}", .path.display())]
    Sysroot {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
    #[error(
        "process {pid} did not respond within {} s (its memory may be backed by an unresponsive file server)",
        .waited.as_secs_f64()
    )]
    NotResponding {
        pid: i32,
        /// The time that the worker process was waited for.
        waited: Duration,
    },
    #[error("cannot start the worker process: {0}")]
    StartWorker(#[source] io::Error),
    #[error("cannot read from the worker process: {0}")]
    ReadWorker(#[source] io::Error),
    #[error("the worker process ended unexpectedly")]
    WorkerEnded,
    #[error(transparent)]
    Sampler(otelctx_sampler::Error),
    /// Waits were asked for, and threads are sampled with ptrace.
    #[error("threads that wait cannot be sampled: {0}")]
    WaitsWithPtrace(otelctx_sampler::Refusal),
    #[error(transparent)]
    Profile(#[from] otelctx_profile::Error),
    /// The file that samples go to while a recording runs could not be created or read.
    #[error("cannot write samples to a temporary file: {0}")]
    Spool(#[source] io::Error),
    #[error("the recording ended early, because samples cannot be stored: {0}")]
    SpoolFull(#[source] io::Error),
    #[error(transparent)]
    Export(#[from] otelctx_export::Error),
    /// A setting of the agent in a file, or the file itself.
    #[error("{place}: {why}")]
    Settings { place: String, why: String },
    #[error("--queue-dir: {0}")]
    Queue(#[from] otelctx_agent::DirectoryError),
    #[error("--listen {address}: {why}")]
    Listen {
        address: std::net::SocketAddr,
        #[source]
        why: io::Error,
    },
    #[error("--health asks an agent that listens: give its --listen, or the same --config")]
    NoListener,
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("--debuginfod: {0}")]
    Debuginfod(#[from] otelctx_export::DownloadError),
    #[error(transparent)]
    NotSent(#[from] Box<otelctx_export::Failed>),
    /// A word that is no option, and no process ID.
    #[error("{word} is not a process ID; to run it as a command:  {line}")]
    BareWord { word: String, line: String },
    #[error("process {0} is this otelctx process, which cannot sample itself")]
    Own(i32),
    /// No process has a name, a container or a control group that it was selected by.
    #[error("no process is {0}")]
    NoneSelected(String),
    #[error("{}: symbolize writes OTLP alone, to a file FILE.otlp", .0.display())]
    OnlyOtlp(PathBuf),
    #[error("{}: output file given twice", .0.display())]
    OutputTwice(PathBuf),
    #[error("-o - needs a format, such as --format {}", otelctx_profile::Format::Otlp.name())]
    NoFormat,
    #[error("--format is for -o -: the extension of a file selects its format")]
    FormatOfFile,
    #[error("{0} is binary, and is not written to a terminal: name a file, or pipe it")]
    BinaryToTerminal(&'static str),
    #[error("-o -: standard output is {0}: name a file")]
    OutputInUse(&'static str),
    #[error("{}: already exists", .0.display())]
    OutputExists(PathBuf),
    #[error("{}: cannot create the directory: {why}", path.display())]
    OutputDirectory {
        path: PathBuf,
        #[source]
        why: io::Error,
    },
    #[error("cannot start {}: {why}", program.to_string_lossy())]
    Command {
        program: std::ffi::OsString,
        why: io::Error,
    },
    #[error("cannot write to standard output: {0}")]
    Output(#[source] io::Error),
    #[error("no recorder of this user keeps samples")]
    NoRecorder,
    #[error("several recorders keep samples: choose one with --recorder: {}", ids(.0))]
    ManyRecorders(Vec<i32>),
    #[error("process {pid} is no recorder of this user that keeps samples{}", these(.others))]
    NoSuchRecorder { pid: i32, others: Vec<i32> },
    #[error("recorder {pid} did not answer: {why}")]
    RecorderSilent {
        pid: i32,
        #[source]
        why: io::Error,
    },
    #[error(
        "no recording is here: name one, or make one with `{} record -o profile.otlp -p PID`",
        own_name()
    )]
    NoRecording,
    #[error("two recordings are compared; more can only be added up, with --join")]
    ManyRecordings,
    #[error("--tree, --traces, --spans and -o are for one recording, or several with --join")]
    OnlyOneRecording,
    #[error("{}: there is no such recording", .path.display())]
    NoSuchRecording { path: PathBuf, hint: String },
    #[error("--spans: of the formats of -o, only a page (.html) shows spans")]
    SpansWithoutPage,
    #[error("{}: is the recording itself: name another file", .0.display())]
    OutputIsInput(PathBuf),
    #[error("cannot read standard input: {0}")]
    Input(#[source] io::Error),
    #[error("cannot start the demo's service: {0}")]
    Start(#[source] io::Error),
    #[error("the demo's service exited early")]
    ServiceEnded,
    #[error("the demo's service cannot publish its context: {0}")]
    Publish(#[from] otelctx::PublishError),
    #[error("cannot install a signal handler: {0}")]
    Interrupt(#[source] io::Error),
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
            Self::Other(Other::Script(_)) => format!(
                "a file cannot show whether it publishes: `{} check PID` of the process that runs it",
                own_name()
            ),
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

/// Lists process IDs.
fn ids(pids: &[i32]) -> String {
    let ids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    ids.join(", ")
}

/// Lists the recorders that there are.
fn these(pids: &[i32]) -> String {
    match pids {
        [] => String::new(),
        pids => format!("; these are: {}", ids(pids)),
    }
}

/// Returns the sentence that says how to find processes to choose from.
fn publishing() -> String {
    let own = own_name();
    format!("`{own} ps` lists the processes that publish a context")
}

impl Error {
    /// Returns what the user can do, if the message does not say it.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Reader(otelctx_reader::Error::Remote(error)) => match error {
                remote::Error::NotPermitted { hint, .. } => Some(hint.clone()),
                remote::Error::NoSuchProcess { pid } if hidden::is_hidden(*pid) => {
                    Some(hidden::HINT.into())
                }
                remote::Error::NoSuchProcess { .. } => Some(publishing()),
                remote::Error::Elf { .. } | remote::Error::NotRegularFile { .. } => {
                    Some("check takes an ELF program or library, or a process ID".into())
                }
                _ => None,
            },
            Self::Reader(otelctx_reader::Error::Deadline { .. }) => Some(MORE_TIME.into()),
            Self::NoRecorder => Some(format!(
                "`{} record --keep 60s -p PID` does; only its own user can ask it",
                own_name()
            )),
            Self::NoSuchRecording { hint, .. } => Some(hint.clone()),
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
            Self::WaitsWithPtrace(otelctx_sampler::Refusal::Disabled) => {
                Some("--wall needs eBPF: omit --ptrace".into())
            }
            Self::WaitsWithPtrace(_) | Self::Sampler(otelctx_sampler::Error::Waits(_)) => Some(
                "--wall needs eBPF and Linux 5.18; without it, threads that run are sampled".into(),
            ),
            Self::OutputExists(_) => {
                Some("the demo does not overwrite files: choose another directory".into())
            }
            Self::BareWord { word, .. } => Some(format!(
                "to choose running processes of that name:  --name {}",
                argument(word)
            )),
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

/// Returns the hint of an error about permissions.
pub(crate) fn not_permitted(error: &otelctx_reader::Error) -> Option<&str> {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { hint, .. }) => Some(hint),
        _ => None,
    }
}

/// Returns the message without its hint, which is printed on a line of its own.
fn headline(error: &otelctx_reader::Error) -> String {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { pid, action, .. }) => {
            format!("not permitted to {action} of process {pid}")
        }
        otelctx_reader::Error::Remote(remote::Error::NoSuchProcess { pid })
            if hidden::is_hidden(*pid) =>
        {
            format!("process {pid} exists, but /proc hides it (it is mounted with hidepid)")
        }
        error => error.to_string(),
    }
}
