//! Why a command could not run.

use std::io;
use std::path::PathBuf;

use otelctx_reader::remote;

/// Why a command could not run, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The process could not be looked at.
    #[error("{}", headline(.0))]
    Reader(otelctx_reader::Error),
    /// It would be a process, but no process can have this id.
    #[error("no process has the id {0}: they go up to {max}", max = i32::MAX)]
    NoProcessId(String),
    /// Nothing that runs or is loaded: an object file, a core dump.
    #[error("{}: neither a program nor a shared library", .0.display())]
    NotLinked(PathBuf),
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
    /// The kernel told nothing about a thread of the service.
    #[error("the demo's service can't be watched: {0}")]
    Watch(#[source] io::Error),
    /// A system call failed that does not fail.
    #[error("the demo's service can't be tied to this process: {0}")]
    Tie(#[source] nix::Error),
}

impl From<otelctx_reader::Error> for Error {
    fn from(error: otelctx_reader::Error) -> Self {
        Self::Reader(error)
    }
}

impl From<remote::Error> for Error {
    fn from(error: remote::Error) -> Self {
        Self::Reader(error.into())
    }
}

impl Error {
    /// What the user can do, if it is not part of the message.
    pub(crate) fn mend(&self) -> Option<String> {
        match self {
            Self::Reader(otelctx_reader::Error::Remote(error)) => match error {
                remote::Error::NotPermitted { mend, .. } => Some(mend.clone()),
                remote::Error::NoSuchProcess { .. } => {
                    Some("`otelctx ps` lists the processes that publish a context".into())
                }
                remote::Error::Elf { .. } | remote::Error::NotRegularFile { .. } => {
                    Some("check takes an ELF program or library, or the id of a process".into())
                }
                _ => None,
            },
            Self::Reader(otelctx_reader::Error::Deadline { .. }) => {
                Some("--deadline SECONDS allows more".into())
            }
            Self::NoProcessId(name) => Some(format!("for a file of that name:  ./{name}")),
            Self::NotLinked(_) => {
                Some("check what is linked from it, or the process that runs".into())
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
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { mend, .. }) => Some(mend),
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

/// The message without its mend, which goes to a line of its own.
fn headline(error: &otelctx_reader::Error) -> String {
    match error {
        otelctx_reader::Error::Remote(remote::Error::NotPermitted { pid, action, .. }) => {
            format!("not permitted to {action} of process {pid}")
        }
        error => error.to_string(),
    }
}
