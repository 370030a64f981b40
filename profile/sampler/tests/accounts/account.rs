//! A program's own account of its calls, and whether a stack is the one that it tells of.

use std::ops::Range;

use otelctx_sampler::sample::Frame;

/// Size of an entry, in bytes.
const ENTRY: usize = 8;
/// What has no entry.
const NONE: u8 = b'.';
/// Between the accounts of which either may be the stack's.
const EITHER: u8 = b'|';
/// Between a parent's calls and those of its child by vfork.
const CHILD: u8 = b'/';
/// Code that keeps no account was called.
const FOREIGN: u8 = b'*';
/// A signal handler.
const HANDLER: u8 = b'H';

/// A call of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    /// The function.
    letter: u8,
    /// Where it returns to; 0: the program does not know.
    to: u64,
}

/// Where the functions that keep account are.
pub(crate) struct Functions(Vec<(u8, Range<u64>)>);

impl Functions {
    /// From the lines that the program says.
    pub(crate) fn read(lines: &[String]) -> Self {
        let function = |line: &String| {
            let words: Vec<_> = line.split(' ').collect();
            let number = |index: usize| words[index].parse().unwrap();
            (words[0].as_bytes()[0], number(1)..number(2))
        };
        Self(lines.iter().map(function).collect())
    }

    pub(crate) fn letters(&self) -> impl Iterator<Item = char> {
        self.0.iter().map(|it| it.0.into())
    }

    fn letter(&self, frame: &Frame) -> Option<u8> {
        let address = frame.lookup_address()?;
        let mut functions = self.0.iter();
        Some(functions.find(|it| it.1.contains(&address))?.0)
    }
}

/// What a stack is, compared with an account.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Each frame is the call that the account has in its place.
    Right(Option<Root>),
    /// The same below the innermost function, or one that a signal interrupted, which the account has not yet or
    /// no longer.
    Step(Option<Root>),
    /// All frames are right, but the outermost are missing.
    Cut,
    Wrong,
}

/// The first function that keeps account, by its letter, and what it was called by. None where the account has none: a
/// coroutine is about to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root(pub(crate) char, pub(crate) Vec<u64>);

/// Compares a stack, innermost first, with the account that its sample has. `is_child`: it is the child by vfork's.
pub(crate) fn judge(
    functions: &Functions,
    account: &[u8],
    is_child: bool,
    frames: &[&Frame],
) -> Verdict {
    let entries = account.chunks_exact(ENTRY);
    let calls: Vec<Call> = entries.map(call).collect();
    let verdicts = calls.split(|call| call.letter == EITHER);
    let mut verdicts = verdicts.map(|calls| {
        let end = calls.iter().position(|it| it.letter == CHILD && !is_child);
        let calls = &calls[..end.unwrap_or(calls.len())];
        // What a signal interrupted while it wrote its entry has none.
        let is_call = |call: &&Call| call.letter != NONE && call.letter != CHILD;
        let calls: Vec<Call> = calls.iter().filter(is_call).copied().collect();
        interrupted(functions, &calls, frames)
    });
    let first = verdicts.next().expect("split yields one");
    verdicts.fold(first, Verdict::better)
}

/// Whether a program is about to switch to another stack, or has just done so.
pub(crate) fn is_switching(account: &[u8]) -> bool {
    let mut entries = account.chunks_exact(ENTRY);
    entries.any(|entry| entry[0] == EITHER)
}

fn call(entry: &[u8]) -> Call {
    let seven_bits = |address, byte: &u8| address << 7 | u64::from(*byte);
    Call {
        letter: entry[0],
        to: entry[1..].iter().rev().fold(0, seven_bits),
    }
}

impl Verdict {
    fn better(self, other: Self) -> Self {
        let rank = |verdict: &Self| match verdict {
            Self::Right(_) => 0,
            Self::Step(_) => 1,
            Self::Cut => 2,
            Self::Wrong => 3,
        };
        if rank(&other) < rank(&self) {
            other
        } else {
            self
        }
    }

    fn one_step_less(self) -> Self {
        match self {
            Self::Right(root) => Self::Step(root),
            other => other,
        }
    }
}

/// Of a stack whose innermost frame was interrupted.
fn interrupted(functions: &Functions, calls: &[Call], frames: &[&Frame]) -> Verdict {
    let [first, rest @ ..] = frames else {
        return Verdict::Cut;
    };
    let is_interrupted = |frame: &Frame| {
        matches!(
            frame,
            Frame::Native {
                is_return_address: false,
                ..
            }
        )
    };
    if !is_interrupted(first) {
        return Verdict::Wrong;
    }
    let verdict = running(functions, calls, frames);
    // A function has just begun, or is about to return.
    let beneath = match (functions.letter(first), rest) {
        (_, []) => Verdict::Cut,
        (Some(HANDLER), [_, interrupted_code @ ..]) => {
            interrupted(functions, calls, interrupted_code)
        }
        // A handler has returned to the code that ends the signal.
        (None, [frame, ..]) if is_interrupted(frame) => interrupted(functions, calls, rest),
        _ => running(functions, calls, rest),
    };
    verdict.better(beneath.one_step_less())
}

/// Of a stack whose innermost frame is in the function of the last call.
fn running(functions: &Functions, calls: &[Call], frames: &[&Frame]) -> Verdict {
    let is_foreign = |frame: &&&Frame| functions.letter(frame).is_none();
    let Some((last, earlier)) = calls.split_last() else {
        return match frames.iter().all(|frame| is_foreign(&frame)) {
            true => Verdict::Right(None),
            false => Verdict::Wrong,
        };
    };
    if last.letter == FOREIGN {
        let count = frames.iter().take_while(is_foreign).count();
        return running(functions, earlier, &frames[count..]);
    }
    let [frame, callers @ ..] = frames else {
        return Verdict::Cut;
    };
    if functions.letter(frame) != Some(last.letter) {
        return Verdict::Wrong;
    }
    let [caller, interrupted_code @ ..] = callers else {
        return Verdict::Cut;
    };
    if last.to != 0 && caller.address() != Some(last.to) {
        return Verdict::Wrong;
    }
    match (last.letter, earlier) {
        // It returns to code that ends the signal.
        (HANDLER, _) => interrupted(functions, earlier, interrupted_code),
        (letter, []) => match callers.iter().all(|frame| is_foreign(&frame)) {
            true => {
                let addresses = callers.iter().filter_map(|it| it.address()).collect();
                Verdict::Right(Some(Root(letter.into(), addresses)))
            }
            false => Verdict::Wrong,
        },
        _ => running(functions, earlier, callers),
    }
}
