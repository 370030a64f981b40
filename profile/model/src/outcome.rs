//! The outcome of reading a thread's context.

use std::fmt;

use crate::frame::NamedFrame;
use crate::id::ContextId;

/// The outcome of reading a thread's context. A sample contains the context's ID; when a single
/// thread is read, it is the context itself (`Found<Context>`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Found<C = ContextId> {
    /// A record is attached, with this context.
    Attached(C),
    /// The process publishes thread contexts, and this thread has none attached: its variable is
    /// null, or it never used the variable.
    Detached,
    /// The process publishes no thread contexts.
    NotPublished,
    /// A record is attached whose `valid` field is not 1. Its thread is writing it, or has detached
    /// it that way: a single read cannot tell which.
    Invalid,
    /// The context could not be read: this step failed.
    Unreadable(ReadStep),
}

impl<C> Found<C> {
    /// The context, if one is attached.
    #[must_use]
    pub fn attached(&self) -> Option<&C> {
        match self {
            Self::Attached(context) => Some(context),
            _ => None,
        }
    }

    /// The same outcome, with a reference to the context.
    #[must_use]
    pub fn as_ref(&self) -> Found<&C> {
        match self {
            Self::Attached(context) => Found::Attached(context),
            Self::Detached => Found::Detached,
            Self::NotPublished => Found::NotPublished,
            Self::Invalid => Found::Invalid,
            Self::Unreadable(step) => Found::Unreadable(*step),
        }
    }

    /// Converts the context. If the conversion fails, its outcome is returned.
    #[must_use]
    pub fn and_then<D>(self, convert: impl FnOnce(C) -> Found<D>) -> Found<D> {
        match self {
            Self::Attached(context) => convert(context),
            Self::Detached => Found::Detached,
            Self::NotPublished => Found::NotPublished,
            Self::Invalid => Found::Invalid,
            Self::Unreadable(step) => Found::Unreadable(step),
        }
    }
}

/// A step of reading a thread's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ReadStep {
    /// Resolving the variable: not done yet, failed, or out of date.
    Resolve,
    /// Choosing how to read the contexts that the process announces: their schema is not supported,
    /// the announcement is invalid, or no module has the variable.
    Access,
    /// Stopping the thread, or getting its thread pointer.
    Thread,
    /// Opening the memory of the process.
    Memory,
    /// Reading the variable, for example because its page is not in memory.
    Variable,
    /// Reading the record that the variable points to.
    Record,
    /// Reading the record a second time while its thread runs: it had changed.
    Verify,
    /// Scanning the process: it had ended, after some milliseconds. Whether it has published anything is
    /// unknown.
    Process,
}

impl ReadStep {
    /// All steps, in the order of [`Counts::unreadable`](crate::Counts::unreadable).
    pub const ALL: [Self; 8] = [
        Self::Resolve,
        Self::Access,
        Self::Thread,
        Self::Memory,
        Self::Variable,
        Self::Record,
        Self::Verify,
        Self::Process,
    ];

    /// Its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.texts().0
    }

    /// Its name, and the message of its failure.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Resolve => ("resolve", "the variable is not resolved"),
            Self::Access => (
                "access",
                "the contexts that the process announces are not supported or not found",
            ),
            Self::Thread => ("thread", "the thread could not be stopped"),
            Self::Memory => ("memory", "the process's memory could not be opened"),
            Self::Variable => ("variable", "the variable could not be read"),
            Self::Record => ("record", "the record could not be read"),
            Self::Verify => ("verify", "the record changed while it was read"),
            Self::Process => ("process", "the process ended before it was scanned"),
        }
    }
}

impl fmt::Display for ReadStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}

/// The reason why a user stack ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum StackEnd {
    /// It is complete: its last frame is the one that the thread started with.
    Start,
    /// It was walked by frame pointers alone: nothing shows that it is complete.
    FramePointers,
    /// There was no room for the executable mappings of its process, or not for all of them.
    TooManyMappings,
    /// There was no room for the unwind tables of the last frame's file, or for all of their rules.
    TooManyTables,
    /// There are no unwind tables for the last frame's code, and its frame pointer leads nowhere.
    NoTables,
    /// The unwind tables for the last frame's code were not converted yet when the sample was taken.
    TablesNotReady,
    /// The last frame's unwind tables are of an unsupported kind, or wrong.
    BadTables,
    /// Memory with the address of the last frame's caller could not be read.
    Unreadable,
    /// The last frame would return to an address that is not executable.
    NotExecutable,
    /// The last frame is in code that its runtime generated, and the runtime's data did not lead to its caller.
    GeneratedCode,
    /// It has more frames than are kept.
    Limit,
}

impl StackEnd {
    /// All ends, in the order of their values.
    pub const ALL: [Self; 11] = [
        Self::Start,
        Self::FramePointers,
        Self::TooManyMappings,
        Self::TooManyTables,
        Self::NoTables,
        Self::TablesNotReady,
        Self::BadTables,
        Self::Unreadable,
        Self::NotExecutable,
        Self::GeneratedCode,
        Self::Limit,
    ];

    /// The ends of incomplete stacks, except [`StackEnd::Limit`], in order.
    pub const INCOMPLETE: [Self; 9] = {
        let [_, incomplete @ .., _] = Self::ALL;
        incomplete
    };

    /// Its name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.texts().0
    }

    /// Its name and its description.
    const fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Start => ("start", "complete"),
            Self::FramePointers => ("frame_pointers", "walked by frame pointers"),
            Self::TooManyMappings => ("too_many_mappings", "too many executable mappings"),
            Self::TooManyTables => ("too_many_tables", "too many unwind tables"),
            Self::NoTables => ("no_tables", "no unwind tables"),
            Self::TablesNotReady => ("tables_not_ready", "unwind tables not ready yet"),
            Self::BadTables => ("bad_tables", "unsupported or wrong unwind tables"),
            Self::Unreadable => ("unreadable", "unreadable memory"),
            Self::NotExecutable => ("not_executable", "return address is not code"),
            Self::GeneratedCode => ("generated_code", "generated code whose caller is unknown"),
            Self::Limit => ("limit", "too many frames"),
        }
    }

    /// The outermost frame in files of an incomplete stack, such as `[incomplete: no unwind tables]`.
    /// `None` if no frame is missing, or if that is unknown.
    #[must_use]
    pub fn marker(self) -> Option<NamedFrame> {
        let is_cut = !matches!(self, Self::Start | Self::FramePointers);
        is_cut.then(|| NamedFrame::incomplete(self))
    }
}

impl fmt::Display for StackEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.texts().1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ends_are_listed_in_order() {
        for (index, end) in StackEnd::ALL.into_iter().enumerate() {
            assert_eq!(end as usize, index);
            // A new one is added here, and to the lists.
            let is_incomplete = match end {
                StackEnd::Start | StackEnd::Limit => false,
                StackEnd::FramePointers
                | StackEnd::TooManyMappings
                | StackEnd::TooManyTables
                | StackEnd::NoTables
                | StackEnd::TablesNotReady
                | StackEnd::BadTables
                | StackEnd::Unreadable
                | StackEnd::NotExecutable
                | StackEnd::GeneratedCode => true,
            };
            assert_eq!(StackEnd::INCOMPLETE.contains(&end), is_incomplete);
        }
        assert_eq!(StackEnd::INCOMPLETE.len() + 2, StackEnd::ALL.len());
    }
}
