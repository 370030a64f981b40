//! What reading a function's instructions takes and gives, whatever the architecture.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::rule::Rule;

/// Instructions that are decoded of one file, counting repetitions.
pub(crate) const MAX_WORK: u64 = 8 << 20;
/// Instructions that are decoded of one function, counting repetitions.
pub(crate) const MAX_FUNCTION: u64 = 1 << 18;

/// A direct call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The address of the instruction.
    pub(crate) at: u64,
    pub(crate) target: u64,
}

/// Reads instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodeReader {
    /// Makes the rules of a function. `None` if its code cannot be a function's, or cannot be shown to be one: no path
    /// returns with the stack as it was at the start.
    pub(crate) function: fn(code: &FunctionCode<'_>, work: &mut CodeWork) -> Option<CodeRules>,
    /// Returns the number of bytes from the start of a program's code that are reached from there without a gap, and
    /// belong to no function that it calls.
    pub(crate) extent: fn(code: &FunctionCode<'_>, work: &mut CodeWork) -> u64,
    /// Finds what looks like direct calls in the code at `start`, in order.
    pub(crate) calls: for<'a> fn(code: &'a [u8], start: u64) -> Box<dyn Iterator<Item = Call> + 'a>,
    /// Returns the first address of an instruction that is not below `at`, in the code at `start`, which is that of an
    /// instruction.
    pub(crate) next_instruction: fn(code: &[u8], start: u64, at: u64) -> u64,
    /// Finds the ends of the calls in a function's code at `start`, in order.
    pub(crate) call_ends: fn(code: &[u8], start: u64) -> Vec<u64>,
    /// Finds what may be addresses of functions that the code at `start` takes.
    pub(crate) addresses: fn(code: &[u8], start: u64) -> Vec<u64>,
    /// Finds the code at `start` in which coroutines start, up to what their first functions return to.
    pub(crate) starts_of_coroutines: fn(code: &[u8], start: u64) -> Vec<Range<u64>>,
    /// Finds where functions have made a second frame record, for code that they call, in the code at `start`.
    pub(crate) records:
        for<'a> fn(code: &'a [u8], start: u64) -> Box<dyn Iterator<Item = u64> + 'a>,
    /// Returns whether a function may start between these bytes: behind an instruction that nothing follows, and
    /// padding. A call counts as one if `may_follow_call`.
    pub(crate) may_start: fn(before: &[u8], from: &[u8], may_follow_call: bool) -> bool,
    /// Returns the address of the first instruction from an address on that is no padding; the end of the code if there
    /// is none, or no work left.
    pub(crate) skip_padding: fn(code: &FunctionCode<'_>, start: u64, work: &mut CodeWork) -> u64,
}

/// The work that one file's code may still cause.
#[derive(Debug)]
pub(crate) struct CodeWork {
    pub(crate) left: u64,
    left_of_function: u64,
}

impl Default for CodeWork {
    fn default() -> Self {
        CodeWork {
            left: MAX_WORK,
            left_of_function: MAX_FUNCTION,
        }
    }
}

impl CodeWork {
    /// Starts the work on another function.
    pub(crate) fn of_function(&mut self) -> &mut Self {
        self.left_of_function = MAX_FUNCTION;
        self
    }

    pub(crate) fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Takes one instruction; `None` if there is no more work to do.
    pub(crate) fn take(&mut self) -> Option<()> {
        self.take_many(1)
    }

    /// Takes as much work as decoding `count` instructions is.
    pub(crate) fn take_many(&mut self, count: u64) -> Option<()> {
        let left_of_function = self.left_of_function.checked_sub(count);
        let left = self.left.checked_sub(count);
        self.left_of_function = left_of_function.unwrap_or_default();
        self.left = left.unwrap_or_default();
        left_of_function.and(left).map(|_| ())
    }
}

/// A function's code, or what may be one's.
#[derive(Debug)]
pub(crate) struct FunctionCode<'a> {
    pub(crate) bytes: &'a [u8],
    /// The address of the first byte.
    pub(crate) address: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Addresses at which functions are known to start, in order.
    pub(crate) starts: &'a [u64],
    /// Other functions' code in which the stack is as at their start.
    pub(crate) tails: &'a Tails,
    /// True if it is known to be a function, even if no path shows that.
    pub(crate) is_function: bool,
}

impl<'a> FunctionCode<'a> {
    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.start..self.end).contains(&address)
    }

    /// Returns whether a symbol or a call shows that a function starts here.
    pub(crate) fn is_named(&self) -> bool {
        self.starts.binary_search(&self.start).is_ok()
    }

    /// The bytes from an address in it on.
    pub(crate) fn from(&self, address: u64) -> Option<&'a [u8]> {
        let from = address.checked_sub(self.address)?;
        let to = self.end.checked_sub(self.address)?;
        self.bytes.get(from as usize..to as usize)
    }
}

/// Ranges of functions' code in which the stack is as at their start: hand-written functions share such code before their
/// return.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tails(BTreeMap<u64, u64>);

impl Tails {
    /// No code of any other function.
    pub(crate) const NONE: &Self = &Self(BTreeMap::new());

    /// Adds the code of a function.
    pub(crate) fn add(&mut self, function: &CodeRules) {
        let Some((_, at_start)) = function.rules.first() else {
            return;
        };
        let is_same = |rule: &Rule| match (rule, at_start) {
            // Functions without a frame may use the frame pointer for other data, as their callers expect.
            (Rule::Frame(here), Rule::Frame(start)) => {
                (here.cfa, here.return_address) == (start.cfa, start.return_address)
            }
            _ => false,
        };
        for pair in function.rules.windows(2) {
            if is_same(&pair[0].1) {
                self.0.insert(pair[0].0, pair[1].0);
            }
        }
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        let before = self.0.range(..=address).next_back();
        before.is_some_and(|(_, end)| address < *end)
    }
}

/// The rules of instructions in address order.
#[derive(Debug, Default)]
pub(crate) struct CodeRules {
    /// [`Rule::Gap`] where a straight range ends.
    pub(crate) rules: Vec<(u64, Rule)>,
    /// The targets of direct calls.
    pub(crate) calls: Vec<u64>,
    /// An address inside of the first call whose callee returns with another frame pointer than it was called with: from there
    /// on, tables do not say so.
    pub(crate) removed_record: Option<u64>,
}

impl CodeRules {
    /// Adds the rule of the next instruction, unless it is that of the one before.
    pub(crate) fn add(&mut self, address: u64, rule: Rule) {
        self.rules
            .pop_if(|last| last.0 >= address && last.1 == Rule::Gap);
        let last = self.rules.last();
        if last.is_none_or(|last| last.0 < address && last.1 != rule) {
            self.rules.push((address, rule));
        }
    }

    /// Ends a straight range.
    pub(crate) fn end(&mut self, address: u64) {
        if self.rules.last().is_some_and(|last| last.0 < address) {
            self.rules.push((address, Rule::Gap));
        }
    }

    /// The ranges of instructions without a hole.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let parts = self.rules.split_inclusive(|it| it.1 == Rule::Gap);
        parts.filter_map(|part| Some(part.first()?.0..part.last()?.0))
    }

    /// The rules of a range that [`ranges`](Self::ranges) returned, with its end.
    pub(crate) fn of(&self, range: &Range<u64>) -> Vec<(u64, Rule)> {
        let first = self.rules.partition_point(|it| it.0 < range.start);
        let behind = self.rules.partition_point(|it| it.0 <= range.end);
        self.rules[first..behind].to_vec()
    }
}
