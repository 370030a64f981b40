//! The subject of a check: a file, a static library or a process.

use std::fmt;

use otelctx_reader::remote::inspect::{Inspection, Kind};
use otelctx_reader::remote::module::Machine;
use serde::Serialize;

use crate::output::text::{count, grouped};

/// The subject is shown because the user may have meant another file, and a process is not its
/// executable.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Subject {
    /// A file of a linker or a compiler.
    File {
        /// One of docs/json.md.
        kind: &'static str,
        machine: String,
        /// It has no `.symtab`.
        stripped: bool,
    },
    /// A static library.
    Archive { members: usize, concerned: usize },
    Process {
        pid: i32,
        comm: String,
        /// The thread whose ID was given, if it is not the main one.
        #[serde(skip_serializing_if = "Option::is_none")]
        asked_thread: Option<i32>,
        executable: Option<String>,
        /// Its state according to the kernel.
        state: &'static str,
        /// The number of threads that were stopped to be read, for a few microseconds each.
        threads_stopped: usize,
    },
}

impl Subject {
    pub(super) fn file(inspection: &Inspection) -> Self {
        Self::File {
            kind: kind(inspection.kind),
            machine: machine(inspection.machine),
            stripped: inspection.stripped,
        }
    }
}

/// The word in docs/json.md.
fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Object => "object",
        Kind::Executable => "executable",
        Kind::PositionIndependent => "pie",
        Kind::Static => "static",
        Kind::StaticPie => "static-pie",
        Kind::Library => "library",
        // These were rejected before.
        Kind::Core | Kind::DebugInformation | Kind::Unknown => "other",
    }
}

fn sentence(kind: &str) -> &'static str {
    match kind {
        "object" => "an object file, not linked yet",
        "executable" => "a program at a fixed address, linked dynamically",
        "pie" => "a position-independent program, linked dynamically",
        "static" => "a static program: no dynamic linker, no dynamic symbol table",
        "static-pie" => "a static, position-independent program: no dynamic linker",
        "library" => "a shared library",
        "32-bit" => "a 32-bit ELF file",
        _ => "a big-endian ELF file",
    }
}

pub(super) fn machine(machine: Machine) -> String {
    match machine {
        Machine::X86_64 => "x86-64".into(),
        Machine::Aarch64 => "aarch64".into(),
        // System V ABI, "Machine Information": the architectures of Debian.
        Machine::Other(number) => match number {
            3 => "i386".into(),
            8 => "mips".into(),
            20 => "powerpc".into(),
            21 => "powerpc64".into(),
            22 => "s390".into(),
            40 => "arm".into(),
            62 => "x86-64".into(),
            183 => "aarch64".into(),
            243 => "riscv".into(),
            258 => "loongarch".into(),
            number => format!("ELF machine {number}"),
        },
    }
}

/// The state letter of `/proc/PID/status` in words.
pub(super) fn state(letter: char) -> &'static str {
    match letter {
        'R' => "running",
        'S' => "sleeping",
        'D' => "in an uninterruptible sleep",
        'T' => "stopped by a signal",
        't' => "stopped by a tracer",
        // Other threads still run: a process without any has no memory to inspect.
        'Z' => "its first thread has ended",
        _ => "in an unknown state",
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File {
                kind,
                machine,
                stripped,
            } => {
                let stripped = if *stripped { ", stripped" } else { "" };
                write!(f, "{}; {machine}{stripped}", sentence(kind))
            }
            Self::Archive { members, concerned } => write!(
                f,
                "a static library, not linked yet: {}; {} the variable",
                count(*members, "member", "members"),
                count(*concerned, "knows", "know")
            ),
            Self::Process {
                pid,
                comm,
                asked_thread,
                executable,
                state,
                threads_stopped,
            } => {
                if asked_thread.is_some() {
                    write!(f, "a thread of process {pid}, {comm}")?;
                } else {
                    write!(f, "process {comm}")?;
                }
                if let Some(executable) = executable {
                    write!(f, ", {executable}")?;
                }
                write!(f, "; {state}")?;
                match threads_stopped {
                    0 => write!(f, "; no thread was stopped"),
                    1 => write!(f, "; 1 thread was stopped for a few microseconds"),
                    several => write!(
                        f,
                        "; {} threads were stopped for a few microseconds each",
                        grouped(*several)
                    ),
                }
            }
        }
    }
}
