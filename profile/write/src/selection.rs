//! Conditions by which samples of a recording are selected.

use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};

/// A condition on an attribute of the context or, if that has none of the name, of the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttributeFilter {
    /// Its name.
    pub name: String,
    /// The condition.
    pub condition: Condition,
}

/// As on the command line: `KEY=VALUE`, `KEY!=PREFIX*`, `KEY`.
impl Display for AttributeFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.condition {
            Condition::Is(value) => write!(formatter, "{name}={value}"),
            Condition::IsNot(value) => write!(formatter, "{name}!={value}"),
            Condition::StartsWith(start) => write!(formatter, "{name}={start}*"),
            Condition::DoesNotStartWith(start) => write!(formatter, "{name}!={start}*"),
            Condition::IsPresent => formatter.write_str(name),
        }
    }
}

/// A condition on the value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Condition {
    /// It has this value.
    Is(String),
    /// It has another value, or none.
    IsNot(String),
    /// It starts like this.
    StartsWith(String),
    /// It starts in another way, or there is none.
    DoesNotStartWith(String),
    /// It is there.
    IsPresent,
}

impl Condition {
    /// Returns true if the condition holds for this value, or for none.
    #[must_use]
    pub fn accepts(&self, value: Option<&str>) -> bool {
        match self {
            Self::Is(wanted) => value == Some(wanted),
            Self::IsNot(unwanted) => value != Some(unwanted),
            Self::StartsWith(start) => value.is_some_and(|value| value.starts_with(&start[..])),
            Self::DoesNotStartWith(start) => {
                value.is_none_or(|value| !value.starts_with(&start[..]))
            }
            Self::IsPresent => value.is_some(),
        }
    }
}

/// A thread by name or ID.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ThreadFilter {
    /// Its name; a `*` at the end stands for any rest.
    Name(String),
    /// Its ID.
    Id(i64),
}

impl Display for ThreadFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => formatter.write_str(name),
            Self::Id(id) => write!(formatter, "{id}"),
        }
    }
}

impl ThreadFilter {
    /// Returns true for a thread with this name, and this ID if it is known.
    #[must_use]
    pub fn accepts(&self, name: &str, tid: Option<i64>) -> bool {
        match self {
            Self::Id(id) => tid == Some(*id),
            Self::Name(wanted) => match wanted.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == wanted,
            },
        }
    }
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Moment {
    /// Nanoseconds after the recording's start.
    AfterStart(u64),
    /// Nanoseconds after 1970-01-01 UTC.
    Unix(u64),
}

/// The kind of time that samples stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum TimeKind {
    /// On a CPU.
    Running,
    /// Ready, without a CPU.
    Queued,
    /// Waiting.
    Waiting,
}

/// The selected samples. All conditions must hold; of several threads, processes, functions, or
/// kinds, one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Selection {
    /// Conditions on attributes.
    pub attributes: Vec<AttributeFilter>,
    /// IDs of traces.
    pub traces: Vec<[u8; 16]>,
    /// Threads.
    pub threads: Vec<ThreadFilter>,
    /// IDs of processes.
    pub processes: Vec<i64>,
    /// Parts of names of functions, or of their files, of which the stack must contain one, in upper
    /// or lower case.
    pub functions: Vec<String>,
    /// Languages of the frames to keep in stacks, of [`LANGUAGES`](crate::report::LANGUAGES); empty for
    /// all. Samples without any keep an empty stack, and [`Self::functions`] may be of any language.
    pub languages: Vec<String>,
    /// From the first moment on, until just before the last one.
    pub time: Option<(Option<Moment>, Option<Moment>)>,
    /// Kinds of time. If there are none, files have all, and views show time on a CPU: reports with
    /// the others beside it, flame graphs and folded stacks with no others, unless there is no such
    /// time.
    pub kinds: Vec<TimeKind>,
    /// True for threads that wait without a context, too, such as idle ones of a pool, in what is
    /// summed up: reports, flame graphs, folded stacks, and speedscope's files.
    pub with_idle: bool,
}

impl Selection {
    /// Returns true if the name of a function, or of its file, contains one of the selected texts, in
    /// upper or lower case.
    #[must_use]
    pub fn has_function(&self, name: &str, file: &str) -> bool {
        let mut wanted = self.functions.iter();
        wanted.any(|part| contains(name, part) || contains(file, part))
    }
}

/// Returns true if a text contains another one, whose letters of ASCII are in either case.
fn contains(text: &str, part: &str) -> bool {
    let mut windows = text.as_bytes().windows(part.len().max(1));
    part.is_empty() || windows.any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}
