//! The functions that a file's tables are about, in address order.

use otelctx_remote::elf::{ElfError, Segment};

use crate::error::Error;
use crate::rows::MAX_CODE;

/// Maximum number of bytes of alignment between two functions, which the first one's rule covers.
pub(crate) const MAX_ALIGNMENT: u64 = 15;
/// Maximum number of functions in one file: six times what LLVM's library has.
const MAX_FUNCTIONS: usize = 1 << 20;

/// The source of a function's rules. For code with several, the first one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    EhFrame,
    DebugFrame,
    /// The table of Go's runtime.
    Go,
    Stubs,
    /// The program's entry point, or a call of the first function of a program or thread.
    Entry,
}

/// A function, by the addresses of the file's program headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Function {
    pub(crate) start: u64,
    pub(crate) source: Source,
    /// The offset of its entry in the section; for stubs, the index of the section.
    pub(crate) offset: usize,
    pub(crate) end: u64,
}

#[derive(Debug)]
pub(crate) struct Functions<'a> {
    segments: &'a [Segment],
    list: Vec<Function>,
}

impl<'a> Functions<'a> {
    pub(crate) fn new(segments: &'a [Segment]) -> Self {
        Functions {
            segments,
            list: Vec::new(),
        }
    }

    /// The lowest address of code.
    ///
    /// # Errors
    /// When it is too far from the highest, or that is too high.
    pub(crate) fn start(&self) -> Result<u64, Error> {
        let start = self.segments.iter().map(|it| it.address).min();
        let start = start.unwrap_or_default();
        let end = self.segments.iter().map(end).max().unwrap_or_default();
        if end > i64::MAX as u64 {
            let reason = "a segment is outside of what programs can map";
            return Err(ElfError::Malformed(reason).into());
        }
        if end - start > MAX_CODE {
            let (what, limit) = ("bytes of code", MAX_CODE);
            return Err(Error::Limit { what, limit });
        }
        Ok(start)
    }

    /// Adds the part of a function that is in an executable segment; false if there is none.
    pub(crate) fn add(
        &mut self,
        source: Source,
        start: u64,
        function_end: u64,
        offset: usize,
    ) -> Result<bool, Error> {
        let mut segments = self.segments.iter();
        let Some(segment) = segments.find(|it| (it.address..end(it)).contains(&start)) else {
            return Ok(false);
        };
        if self.list.len() >= MAX_FUNCTIONS {
            let (what, limit) = ("functions", MAX_FUNCTIONS as u64);
            return Err(Error::Limit { what, limit });
        }
        self.list.push(Function {
            start,
            source,
            offset,
            end: function_end.min(end(segment)),
        });
        Ok(true)
    }

    pub(crate) fn sorted(mut self) -> Vec<Function> {
        self.list.sort_unstable();
        self.list
    }
}

fn end(segment: &Segment) -> u64 {
    segment.address.saturating_add(segment.memory_size)
}
