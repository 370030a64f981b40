//! What a walk has found, compared with what the virtual machine says.
//!
//! `AsyncGetCallTrace` is not always right: where a thread has no frame that it knows, it begins at a stale one, and it may lose the
//! way. The program's own calls decide then which of both is wrong.

use std::fmt;

use otelctx_unwind::StackEnd;

use crate::agent::Calls;
use crate::program::{is_possible, is_possible_call};
use crate::reader::{Found, Method, Shown};

/// The outermost method of each thread.
const START: &str = "java.lang.Thread.run";
/// Maximum number of stacks that are printed.
const MAX_SHOWN: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) what: String,
    /// Stacks, and the number that did not reach their start.
    pub(crate) stacks: usize,
    pub(crate) incomplete: usize,
    /// Methods, and those without a name.
    pub(crate) frames: usize,
    pub(crate) unnamed: usize,
    /// Stacks of which the virtual machine says nothing.
    pub(crate) unknown: usize,
    /// Stacks whose methods are equal, with files and lines of all callers.
    pub(crate) equal: usize,
    /// Stacks that differ, where the virtual machine lacks the innermost or the outermost methods, has others that are inlined
    /// in the innermost code, or says what the program does not do.
    pub(crate) decided: usize,
    /// Stacks that differ, and nothing decides.
    pub(crate) undecided: usize,
    /// Stacks with calls that the program does not make.
    pub(crate) wrong: usize,
    pub(crate) shown: usize,
}

/// How two stacks compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Compared {
    Equal,
    Decided,
    Undecided,
}

impl Tally {
    pub(crate) fn add(&mut self, found: &Found, calls: &Calls) {
        self.stacks += 1;
        self.frames += found.methods.len();
        self.unnamed += found.methods.iter().filter(|it| it.shown.is_none()).count();
        let own: Vec<_> = found.methods.iter().map(|it| it.shown.as_ref()).collect();
        if !is_possible(&own) {
            self.wrong += 1;
            self.show("wrong", found, &[]);
        }
        if found.end != StackEnd::Start {
            self.incomplete += 1;
            self.show("incomplete", found, &[]);
            return;
        }
        let Calls::Known(calls) = calls else {
            self.unknown += 1;
            return;
        };
        match compare(found, calls) {
            Compared::Equal => self.equal += 1,
            Compared::Decided => self.decided += 1,
            Compared::Undecided => {
                self.undecided += 1;
                self.show("undecided", found, calls);
            }
        }
    }

    fn show(&mut self, how: &str, found: &Found, calls: &[Option<Shown>]) {
        self.shown += 1;
        if self.shown <= MAX_SHOWN {
            println!("{}, {how}: {}", self.what, found.end);
            found.all.iter().for_each(|frame| println!("    {frame}"));
            println!("  and {calls:#?}");
        }
    }

    /// Returns whether few stacks are incomplete, few frames have no names, and none is wrong.
    pub(crate) fn is_right(&self, is_old: bool) -> bool {
        println!("{self}");
        // In a thousand; and some in a short run.
        let max = |all: usize, share: usize| 2 + all * share / 1000;
        let (incomplete, unnamed) = if is_old { (10, 20) } else { (5, 10) };
        let compared = self.equal + self.decided + self.undecided;
        self.incomplete <= max(self.stacks, incomplete)
            && self.unnamed <= max(self.frames, unnamed)
            && self.undecided <= max(self.stacks, 10)
            && self.decided <= max(self.stacks, 250)
            // Of up to half of the stacks, the virtual machine knows nothing.
            && 4 * self.equal >= self.stacks
            && 10 * self.equal >= 7 * compared
            && self.wrong == 0
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} stacks, {} incomplete; {} frames, {} unnamed; {} equal, {} unknown, {} decided, {} undecided, {} wrong",
            self.what,
            self.stacks,
            self.incomplete,
            self.frames,
            self.unnamed,
            self.equal,
            self.unknown,
            self.decided,
            self.undecided,
            self.wrong
        )
    }
}

fn compare(found: &Found, calls: &[Option<Shown>]) -> Compared {
    let methods = &found.methods;
    // Methods without a name may be any, as well as methods that were gone when the virtual machine named them.
    let same = |(own, call): (&Method, &Option<Shown>)| match (&own.shown, call) {
        (Some(own), Some(call)) => own.is_same_method(call),
        _ => true,
    };
    let outer = methods.iter().rev().zip(calls.iter().rev());
    let common = outer.take_while(|pair| same(*pair)).count();
    let (own, of_calls) = (methods.len() - common, calls.len() - common);
    if own == 0 && of_calls == 0 {
        // The innermost code has the place where it is interrupted, which the virtual machine takes for another one.
        let in_innermost = |method: &Method| method.frame == methods[0].frame;
        let callers = methods
            .iter()
            .zip(calls)
            .skip_while(|it| in_innermost(it.0));
        let mut lines = callers.filter_map(|(own, call)| own.shown.as_ref().zip(call.as_ref()));
        return match lines.all(|(own, call)| own.line == call.line) {
            true => Compared::Equal,
            false => Compared::Undecided,
        };
    }
    let is_of = |frame: usize| methods.iter().take(own).all(|it| it.frame == frame);
    // All that differs is in the innermost code, or called by it as the virtual machine says.
    let in_innermost = methods.first().is_some_and(|it| is_of(it.frame));
    // The virtual machine begins at the last frame that it knows of the thread.
    let lacks_innermost = of_calls == 0;
    let is_early_end = methods.iter().zip(calls).all(same) && calls.len() < methods.len();
    let is_impossible = calls.windows(2).any(|pair| match pair {
        [Some(callee), Some(caller)] => !is_possible_call(callee, caller),
        _ => false,
    });
    // All of the program's threads begin with one method: the virtual machine has lost the way.
    let is_lost = matches!(calls.last(), Some(Some(outermost)) if outermost.name != START);
    // The virtual machine knows no frame of a thread that passes on an exception.
    let is_stale = found.passes_on_exception;
    let is_decided = in_innermost || lacks_innermost || is_early_end || is_impossible;
    match is_decided || is_lost || is_stale {
        true => Compared::Decided,
        false => Compared::Undecided,
    }
}
