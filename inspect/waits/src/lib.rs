#![doc = include_str!("../README.md")]

mod call;
mod descriptor;
mod file_locks;
mod inet;
mod inspection;
mod known;
mod lock_code;
mod locks;
mod memory;
mod numbers;
mod owners;
mod peers;
mod resolver;
mod unix;
#[doc(hidden)]
pub mod untrusted;
mod words;

pub use call::{Call, State, Waiting};
pub use resolver::{Options, Resolver};

use std::borrow::Cow;

/// Why a thread waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The system call's name, `page fault`, or what else the thread does: `ready to run`, `stopped`.
    pub call: Cow<'static, str>,
    /// The reason in words, such as `poll for 127.0.0.1:5432 (postgres)`. Control characters in names are escaped.
    pub text: String,
    /// The process that is waited for, if it is one of this machine.
    pub peer: Option<Peer>,
    /// The thread that holds the lock which is waited for: its ID in the reader's PID namespace. It is a thread of the same
    /// process, and not the waiting one.
    pub holder: Option<i32>,
}

impl Reason {
    fn of(call: impl Into<Cow<'static, str>>) -> Self {
        let call = call.into();
        Self {
            text: call.clone().into_owned(),
            call,
            peer: None,
            holder: None,
        }
    }
}

/// A process at the other end of a connection or pipe, or one that is waited for otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its process ID. That of the waiting process, if it has both ends.
    pub pid: i32,
    /// Its command name. Control characters are escaped.
    pub name: String,
    /// The name of its service, if it publishes one or is started with `OTEL_SERVICE_NAME`. Control characters are escaped.
    pub service: Option<String>,
}

impl Peer {
    /// The name of its service, or else its command name.
    #[must_use]
    pub fn label(&self) -> &str {
        self.service.as_deref().unwrap_or(&self.name)
    }
}
