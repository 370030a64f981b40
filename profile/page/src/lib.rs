//! One self-contained HTML page that shows a recording: an icicle graph of any selection, CPU over
//! time, tables of routes, traces and functions, and the view of one trace.
//!
//! [`write()`] puts a [`Recording`] into the page as compressed columns. The page needs no network, no
//! other file and no framework; its sources are in the crate's folder `page`, and `README.md`
//! describes the data in it.
//!
//! The crate trusts no text of a recording: names become text nodes only, the page has a strict
//! Content-Security-Policy, and its size is bounded ([`MAX_TREE_NODES`], [`MAX_DEPTH`],
//! [`MAX_NAME_BYTES`], [`MAX_NAMES_BYTES`]).
//!
//! It does not open recordings, select samples or resolve functions.
//!
//! ```
//! use otelctx_page::{Function, Language, Node, Recording, Sample, Thread};
//!
//! let recording = Recording {
//!     title: "shop".to_owned(),
//!     period: 10_000_000,
//!     services: vec!["shop".to_owned()],
//!     functions: vec![Function {
//!         name: "Cart.total".to_owned(),
//!         file: "shop/cart.py".to_owned(),
//!         line: 88,
//!         language: Language::Python,
//!         plumbing: None,
//!     }],
//!     nodes: vec![Node::default(), Node { parent: 0, function: 0 }],
//!     threads: vec![Thread { pid: 7, tid: 7, service: 0, name: "main".to_owned() }],
//!     samples: vec![Sample { weight: 10_000_000, node: 1, ..Sample::default() }],
//!     ..Recording::default()
//! };
//! let mut page = Vec::new();
//! otelctx_page::write(&recording, &mut page)?;
//! assert!(page.starts_with(b"<!doctype html>"));
//! # Ok::<(), std::io::Error>(())
//! ```

mod bytes;
mod check;
mod html;
mod order;
mod sections;
mod spans;
mod text;
mod tree;

use std::io;

pub use text::{MAX_NAME_BYTES, MAX_NAMES_BYTES, clean, escape};
pub use tree::{MAX_DEPTH, MAX_TREE_NODES};

/// A recording, ready to be shown. Indexes refer to the other fields' elements.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// The heading of the page.
    pub title: String,
    /// Nanoseconds that a sample of a running thread usually stands for.
    pub period: u64,
    /// Nanoseconds since 1970 of time 0.
    pub start: u64,
    /// The attribute whose values [`Recording::routes`] has, such as `http.route`.
    pub by: String,
    /// Functions of [`Recording::nodes`].
    pub functions: Vec<Function>,
    /// Names of the kinds of plumbing, such as `interpreter`.
    pub plumbing: Vec<String>,
    /// Frames of all stacks as a tree. Node 0 is the root, and has no function.
    pub nodes: Vec<Node>,
    /// Names of services.
    pub services: Vec<String>,
    /// Values of the attribute [`Recording::by`].
    pub routes: Vec<String>,
    /// Trace IDs.
    pub traces: Vec<[u8; 16]>,
    /// What threads worked on.
    pub contexts: Vec<Context>,
    /// Threads that were sampled.
    pub threads: Vec<Thread>,
    /// The samples, in any order.
    pub samples: Vec<Sample>,
    /// How many of them are further parts of others: long waits may be several samples.
    pub further_parts: usize,
    /// The spans of the traces, in any order, if they are known.
    pub spans: Vec<Span>,
    /// A sentence to show, for example that samples were joined.
    pub note: Option<String>,
}

/// A function of a program. Two functions of the same name in different files are different.
#[derive(Clone, Debug, Default)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its source file, or the object file that it is in; empty if unknown.
    pub file: String,
    /// The line in the file; 0 if unknown.
    pub line: u32,
    /// What it is written in, which decides its colour.
    pub language: Language,
    /// Its kind, an index of [`Recording::plumbing`], if it belongs to the machinery of a runtime
    /// and not to the code of an application: such frames are not shown unless asked for.
    pub plumbing: Option<u8>,
}

/// What a function is written in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs)]
pub enum Language {
    Python,
    JavaScript,
    Java,
    /// C, C++, Rust and others that are compiled ahead of time.
    Native,
    /// Code of the kernel.
    Kernel,
    /// Every other language.
    #[default]
    Other,
    /// None: what a thread waits for, at the end of its stack.
    Waiting,
}

/// A frame below the frames of its callers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Node {
    /// The caller's node, which precedes this one.
    pub parent: u32,
    /// An index of [`Recording::functions`].
    pub function: u32,
}

/// What a thread worked on.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Context {
    /// An index of [`Recording::traces`].
    pub trace: Option<u32>,
    /// The span ID; zero if there is none.
    pub span: [u8; 8],
    /// An index of [`Recording::routes`].
    pub route: Option<u32>,
}

/// A thread of a process.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// The process's ID.
    pub pid: u32,
    /// The thread's ID.
    pub tid: u32,
    /// An index of [`Recording::services`].
    pub service: u32,
    /// The thread's name.
    pub name: String,
}

/// What a thread did at a sample.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Kind {
    /// It ran on a CPU.
    #[default]
    Running,
    /// It was ready to run, and waited for a CPU.
    Queued,
    /// It waited for something else, such as a lock or the network.
    Waiting,
    /// It waited without a context, as an idle thread of a pool. The page shows that if it is asked
    /// for.
    Idle,
}

/// One observation of a thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Nanoseconds after [`Recording::start`].
    pub time: u64,
    /// An index of [`Recording::threads`].
    pub thread: u32,
    /// What the thread did.
    pub kind: Kind,
    /// Nanoseconds that the sample stands for.
    pub weight: u64,
    /// An index of [`Recording::contexts`].
    pub context: Option<u32>,
    /// The innermost frame, an index of [`Recording::nodes`]; 0 for a sample without stack.
    pub node: u32,
}

/// A span of a trace.
#[derive(Clone, Debug, Default)]
pub struct Span {
    /// An index of [`Recording::traces`].
    pub trace: u32,
    /// The span's ID.
    pub id: [u8; 8],
    /// The parent's index in [`Recording::spans`].
    pub parent: Option<u32>,
    /// An index of [`Recording::services`].
    pub service: u32,
    /// Its name.
    pub name: String,
    /// Nanoseconds after [`Recording::start`].
    pub start: u64,
    /// Nanoseconds that it took.
    pub duration: u64,
}

/// Writes the page that shows a recording.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidData`] if an index in the recording is out of range, and any error of the
/// writer.
pub fn write(recording: &Recording, writer: &mut dyn io::Write) -> io::Result<()> {
    check::indexes(recording)?;
    let ordered = order::Ordered::new(recording);
    let tree = tree::Tree::new(recording, &ordered);
    let sections = sections::encode(recording, &ordered, &tree);
    html::write(recording, &ordered, &tree, &sections, writer)
}
