//! Sums of recordings: CPU time by attribute, by trace, by function and by process.

use std::collections::BTreeSet;

use otelctx_sample::GilState;
use serde::{Deserialize, Serialize};

use crate::attributes::THREAD_NAME;
pub use crate::selection::{AttributeFilter, Condition, Moment, Selection, ThreadFilter, TimeKind};

/// The name for samples without the attribute.
pub const NO_ATTRIBUTE: &str = "(none)";

/// What a [`Report`] contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOptions {
    /// Names of what samples are grouped by, outermost first: attributes of the context or the
    /// resource, or `service`, `process`, `thread`, `trace`, and of the innermost function
    /// `function`, `file` and `line`. Empty for none.
    pub by: Vec<String>,
    /// The samples to sum up.
    pub selection: Selection,
    /// True for all frames; false to leave out functions of interpreters, of the starts of threads
    /// and of system calls between others.
    pub with_plumbing: bool,
    /// Maximum number of functions in [`Report::by_function`].
    pub functions: usize,
    /// Number of groups that have functions, those of the greatest cost.
    pub detailed_groups: usize,
    /// Number of functions of each such group.
    pub functions_of_group: usize,
    /// True for [`Report::tree`]; with selected functions, they are its roots, and there is
    /// [`Report::callers`].
    pub with_tree: bool,
    /// True for [`Report::by_span`].
    pub with_spans: bool,
    /// True to sort functions by the time with the functions that they call, false by their own.
    pub by_total: bool,
}

impl ReportOptions {
    /// Groups all samples by these names, with all frames, and without functions of groups.
    #[must_use]
    pub fn by(names: &[&str]) -> Self {
        Self {
            by: names.iter().map(|&name| name.to_owned()).collect(),
            selection: Selection::default(),
            with_plumbing: true,
            functions: usize::MAX,
            detailed_groups: 0,
            functions_of_group: 0,
            by_total: false,
            with_tree: false,
            with_spans: false,
        }
    }
}

/// Sums of CPU time over a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// All samples: on a CPU, unless kinds of time are selected.
    pub total: Cost,
    /// The same by kind of time, of all kinds unless some are selected.
    pub kinds: KindCosts,
    /// Waits without a context that were left out ([`Selection::with_idle`]).
    pub idle: Cost,
    /// Samples with a trace.
    pub with_trace: Cost,
    /// Samples by the state of the interpreter's lock, in the order of [`GilState::ALL`].
    pub by_gil: [Cost; GilState::ALL.len()],
    /// Costs by [`ReportOptions::by`], largest first.
    pub groups: Vec<GroupCost>,
    /// The names of all samples' attributes.
    pub attributes: BTreeSet<String>,
    /// Those of them that have more than one value.
    pub varying: BTreeSet<String>,
    /// Costs by trace.
    pub by_trace: Vec<TraceCost>,
    /// Costs by trace and span, in no order; empty unless asked for.
    pub by_span: Vec<([u8; 16], [u8; 8], Cost, KindCosts)>,
    /// Functions below their callers, from the root on; empty unless asked for.
    pub tree: Vec<TreeNode>,
    /// The selected functions, and the functions that call them below; empty unless asked for.
    pub callers: Vec<TreeNode>,
    /// The number of functions.
    pub functions: usize,
    /// Costs by function, the costliest; of an unknown one by file, or `[unknown]`.
    pub by_function: Vec<(Function, FunctionCost)>,
    /// Costs by file of samples whose innermost function is unknown.
    pub unnamed: Vec<(String, Cost)>,
    /// Costs by service name and process ID. Without a service name, the command name takes its
    /// place, or without samples of the first thread the program's name.
    pub by_process: Vec<(String, Cost)>,
    /// The same without the process ID.
    pub by_service: Vec<(String, Cost)>,
    /// The first recorded time, in nanoseconds after 1970-01-01 UTC; 0 if unknown.
    pub start: u64,
    /// Time from the first recorded time to the last, in nanoseconds.
    pub duration: u64,
    /// Time that a sample on a CPU stands for, in nanoseconds; 0 if unknown.
    pub period: u64,
}

/// The cost of samples with the same values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GroupCost {
    /// In the order of [`ReportOptions::by`]; [`NO_ATTRIBUTE`] where there is none.
    pub values: Vec<String>,
    /// Their cost.
    pub cost: Cost,
    /// Their cost by kind of time.
    pub kinds: KindCosts,
    /// Number of traces that some of the samples belong to.
    pub traces: usize,
    /// Cost of the samples with a trace.
    pub with_trace: Cost,
    /// Costliest functions, if asked for.
    pub functions: Vec<(Function, FunctionCost)>,
}

/// A function. Those of the same name in different files are different.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Function {
    /// Its name; in square brackets if it stands for something else.
    pub name: String,
    /// Its source file; empty if unknown.
    pub file: String,
    /// The line at which it starts, or else the lowest one that was sampled; 0 if unknown.
    pub line: u32,
    /// The kind of its frames: a value of `profile.frame.type`, such as `cpython`.
    pub kind: String,
}

/// A function in a tree, before those at a greater depth below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TreeNode {
    /// 0 for a root.
    pub depth: usize,
    /// The function.
    pub function: Function,
    /// Its cost at this place.
    pub cost: FunctionCost,
}

/// A trace in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Trace {
    /// Its ID, 32 hexadecimal digits.
    pub id: String,
    /// The value in most of its samples of what is grouped by first; [`NO_ATTRIBUTE`] if there is
    /// none.
    pub attribute: String,
}

/// The cost of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TraceCost {
    /// The trace.
    pub trace: Trace,
    /// Its cost.
    pub cost: Cost,
    /// Its cost by kind of time.
    pub kinds: KindCosts,
    /// The time of its first sample, in nanoseconds after 1970-01-01 UTC; 0 if unknown.
    pub first: u64,
    /// The time of its last sample.
    pub last: u64,
    /// Number of its threads, at most 1,024.
    pub threads: usize,
}

/// A frame of a live view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LiveFrame {
    /// The function's name.
    pub name: String,
    /// Its source file; empty if unknown.
    pub file: String,
    /// The line that was sampled; 0 if unknown.
    pub line: u32,
    /// The kind of frame: a value of `profile.frame.type`, such as `cpython`.
    pub kind: &'static str,
}

/// Samples of a live view with the same stack, thread and trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveSamples {
    /// The index of the stack.
    pub stack: usize,
    /// A number of the thread.
    pub thread: i64,
    /// The trace, if there is one.
    pub trace: Option<[u8; 16]>,
    /// The time of the first sample, in nanoseconds after 1970-01-01 UTC.
    pub time: u64,
    /// The number of samples.
    pub samples: u64,
}

/// Samples, and the CPU time that they stand for: 0 if the recording does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// The number of samples.
    pub samples: u64,
    /// CPU time, in nanoseconds.
    pub nanoseconds: u64,
}

impl Cost {
    /// Returns what costs are compared by.
    #[must_use]
    pub fn size(&self) -> (u64, u64) {
        (self.nanoseconds, self.samples)
    }

    pub(crate) fn add(&mut self, other: Cost) {
        self.samples = self.samples.saturating_add(other.samples);
        self.nanoseconds = self.nanoseconds.saturating_add(other.nanoseconds);
    }
}

/// Costs by kind of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KindCosts {
    /// On a CPU.
    pub running: Cost,
    /// Ready to run, without a CPU.
    pub queued: Cost,
    /// Waiting.
    pub waiting: Cost,
}

impl KindCosts {
    /// Returns the cost of a kind.
    #[must_use]
    pub fn of(&self, kind: TimeKind) -> Cost {
        match kind {
            TimeKind::Running => self.running,
            TimeKind::Queued => self.queued,
            TimeKind::Waiting => self.waiting,
        }
    }

    /// Returns the cost of all kinds.
    #[must_use]
    pub fn sum(&self) -> Cost {
        let mut sum = self.off_cpu();
        sum.add(self.running);
        sum
    }

    /// Returns the cost of all kinds but the time on a CPU.
    #[must_use]
    pub fn off_cpu(&self) -> Cost {
        let mut sum = self.queued;
        sum.add(self.waiting);
        sum
    }

    pub(crate) fn add(&mut self, kind: TimeKind, cost: Cost) {
        let known = match kind {
            TimeKind::Running => &mut self.running,
            TimeKind::Queued => &mut self.queued,
            TimeKind::Waiting => &mut self.waiting,
        };
        known.add(cost);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        for kind in [TimeKind::Running, TimeKind::Queued, TimeKind::Waiting] {
            self.add(kind, other.of(kind));
        }
    }
}

/// The cost of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FunctionCost {
    /// Cost of the function itself.
    pub own: Cost,
    /// Cost of the function and the functions that it called.
    pub total: Cost,
}

/// Languages, each with its kind of frames: the value of `profile.frame.type`.
pub const LANGUAGES: [(&str, &str); 10] = [
    ("python", "cpython"),
    ("javascript", "v8js"),
    ("java", "jvm"),
    ("go", "go"),
    ("ruby", "ruby"),
    ("php", "php"),
    ("erlang", "beam"),
    ("dotnet", "dotnet"),
    ("native", "native"),
    ("kernel", "kernel"),
];

/// What samples are grouped by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
    /// The attribute with this name, of the context or the resource.
    Attribute(String),
    /// The service.
    Service,
    /// The process.
    Process,
    /// The thread.
    Thread,
    /// The trace.
    Trace,
    /// The innermost function.
    Function,
    /// Its file.
    File,
    /// The innermost function's line.
    Line,
}

impl Level {
    /// Returns the level that a name means: an attribute unless it is another level's.
    #[must_use]
    pub fn of(name: &str) -> Self {
        match name {
            "service" => Self::Service,
            "process" => Self::Process,
            // The name of its attribute in OTLP.
            "thread" | THREAD_NAME => Self::Thread,
            "trace" => Self::Trace,
            "function" => Self::Function,
            "file" => Self::File,
            "line" => Self::Line,
            name => Self::Attribute(name.to_owned()),
        }
    }
}

/// Returns true if `name` is something to group by that every recording has, and no attribute.
#[must_use]
pub fn is_level(name: &str) -> bool {
    !matches!(Level::of(name), Level::Attribute(_))
}
