//! The native stack of a thread, the code that it is in, and the functions of that.

use std::collections::HashMap;
use std::sync::Arc;

use otelctx_profile::Function;
use otelctx_reader::remote::GeneratedEnd;
use otelctx_reader::runtime::{NativeFrames, RuntimeReading, RuntimeStack};
use otelctx_reader::sample::{self, FrameKind, Module, ModuleFiles};
use otelctx_sampler::GeneratedNames;
use otelctx_symbolize::Failure;
use otelctx_unwind::{Frame, StackEnd};

/// The stack of a thread, or why it has none.
pub(super) type ThreadStack = Result<Stack, String>;

/// A stack, innermost frame first.
#[derive(Debug)]
pub(super) struct Stack {
    pub(super) frames: Vec<Frame>,
    /// The functions of frames in generated code, by the index of the frame, from their runtime.
    pub(super) generated: HashMap<usize, Arc<[sample::Frame]>>,
    pub(super) end: StackEnd,
    /// It was walked while the thread slept, from two registers.
    pub(super) is_asleep: bool,
    /// Runtimes were read at another moment: their frames belong to another stack.
    pub(super) is_separate: bool,
}

impl Stack {
    /// Each frame with the address at which to look up its function: a caller's is within its call
    /// instruction. Code that the kernel makes a signal handler return to has called nothing.
    pub(super) fn frames(&self) -> impl Iterator<Item = (&Frame, u64)> {
        let callers = self.frames.iter().skip(1).map(|frame| frame.is_caller);
        let callers = callers.chain([true]);
        self.frames.iter().zip(callers).map(|(frame, has_caller)| {
            let is_caller = frame.is_caller && has_caller;
            (frame, frame.address.wrapping_sub(is_caller.into()))
        })
    }

    /// The frames without those of runtimes.
    pub(super) fn native(&self) -> Vec<sample::Frame> {
        let mut native = Vec::with_capacity(self.frames.len());
        for (index, (frame, lookup)) in self.frames().enumerate() {
            if let Some(functions) = self.generated.get(&index) {
                native.extend_from_slice(functions);
            } else if lookup == frame.address {
                native.push(sample::Frame::instruction(frame.address));
            } else {
                native.push(sample::Frame::return_address(frame.address));
            }
        }
        native
    }

    /// Returns the frames, with those of the thread's runtimes in place of the calls of their
    /// interpreters. The flag is true if a runtime executes on a stack of its own: then the frames are
    /// complete.
    pub(super) fn mixed(
        &self,
        runtimes: &[RuntimeReading],
        named: &Named,
    ) -> (Vec<sample::Frame>, bool) {
        let mut native = self.native();
        let stacks = (!self.is_separate).then(|| interpreted(runtimes));
        let stacks: Vec<_> = stacks.into_iter().flatten().collect();
        let own = stacks.iter().filter_map(|stack| {
            let switches = |address| {
                let module = named.module(address);
                module.is_some_and(|(path, _)| stack.is_switching_library(path))
            };
            stack.own_native_frames(&native, switches)
        });
        let own = own.min();
        native.truncate(own.unwrap_or(native.len()));
        let reaches_start = own.is_some() || self.end == StackEnd::Start;
        let mixed = stacks.into_iter().fold(native, |mixed, stack| {
            let stack = stack.clone();
            stack.in_native_with(mixed, reaches_start, named)
        });
        (mixed, own.is_some())
    }

    /// Returns whether it lacks frames of the thread's runtimes, which were read at another moment.
    pub(super) fn lacks_frames(&self, runtimes: &[RuntimeReading]) -> bool {
        self.is_separate && interpreted(runtimes).next().is_some()
    }

    /// Returns the reason if it is incomplete.
    pub(super) fn why_incomplete(&self) -> Option<String> {
        match &self.end {
            StackEnd::Start => None,
            _ if self.needs_stop() => Some(
                "its unwind tables need a register that is only known while the thread is stopped \
                 (--stop-sleeping)"
                    .into(),
            ),
            end => Some(end.to_string()),
        }
    }

    /// Returns whether it ends because a register is unknown.
    pub(super) fn needs_stop(&self) -> bool {
        let is_unknown = matches!(
            self.end,
            StackEnd::UnknownRegister
                | StackEnd::NoRows
                | StackEnd::Generated(GeneratedEnd::UnknownRegister)
        );
        self.is_asleep && is_unknown
    }
}

/// Returns the stacks of runtimes that have an interpreter.
fn interpreted(runtimes: &[RuntimeReading]) -> impl Iterator<Item = &RuntimeStack> {
    runtimes.iter().filter_map(|reading| {
        let stack = &reading.thread.as_ref().ok()?.stack;
        (!stack.interpreter.is_empty()).then_some(stack)
    })
}

/// The code that stacks are in.
#[derive(Debug, Default)]
pub(super) struct Code {
    pub(super) regions: Vec<Region>,
    pub(super) files: ModuleFiles,
    /// Time at which the stacks were taken, in nanoseconds of `CLOCK_MONOTONIC`.
    pub(super) time: u64,
    /// The names of generated code, if a stack is in any.
    pub(super) generated: Option<GeneratedNames>,
    /// The process is running. Otherwise its vDSO may not be this kernel's.
    pub(super) is_live: bool,
}

/// A mapping.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Offset in the file, in bytes.
    pub(super) offset: u64,
    pub(super) module: Module,
    /// Addresses in it at which to look up functions.
    pub(super) lookups: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Named {
    pub(super) places: HashMap<u64, Place>,
    pub(super) modules: Vec<String>,
    /// Files whose functions could not be resolved.
    pub(super) failures: Vec<Failure>,
}

/// The code at an address.
#[derive(Debug)]
pub(super) struct Place {
    /// Index of its module's path.
    pub(super) module: usize,
    /// Offset in the file.
    pub(super) offset: u64,
    /// Innermost inlined function first.
    pub(super) functions: Vec<Function>,
}

impl NativeFrames for Named {
    fn only_calls(&self, frame: &sample::Frame, callee: &sample::NamedFrame) -> bool {
        let lookup = frame.lookup_address();
        lookup.is_some_and(|address| self.is_generated_for(address, callee.name()))
    }

    fn is_generated(&self, frame: &sample::Frame, _: FrameKind) -> bool {
        let is_unnamed = |address| {
            let mut functions = self.functions(address).iter();
            functions.all(|it| it.name.starts_with('[') && it.name.ends_with(']'))
        };
        let lookup = frame.lookup_address();
        lookup.is_some_and(|address| self.is_anonymous(address) && is_unnamed(address))
    }
}

impl Named {
    /// The functions at an address, innermost inlined function first.
    pub(super) fn functions(&self, address: u64) -> &[Function] {
        let place = self.places.get(&address);
        place.map_or(&[], |place| &place.functions)
    }

    /// Returns whether an address is in code that a runtime has generated for this function, without
    /// lines of its own. A function that is not announced yet has the runtime's name: `[Python]`.
    pub(super) fn is_generated_for(&self, address: u64, name: &str) -> bool {
        let [function] = self.functions(address) else {
            return false;
        };
        let is_unnamed = function.name.starts_with('[') && function.name.ends_with(']');
        let is_it = function.name == name || is_unnamed;
        is_it && function.line == 0 && self.is_anonymous(address)
    }

    /// Returns whether an address is in memory without a file or another name.
    pub(super) fn is_anonymous(&self, address: u64) -> bool {
        let place = self.places.get(&address);
        place.is_some_and(|it| self.modules[it.module].is_empty())
    }

    /// The file at an address, and the offset in it.
    pub(super) fn module(&self, address: u64) -> Option<(&str, u64)> {
        let place = self.places.get(&address)?;
        let path = self.modules[place.module].as_str();
        (!path.is_empty()).then_some((path, place.offset))
    }
}
