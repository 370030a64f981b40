//! The parts of samples that language runtimes add.

use std::sync::Arc;

use otelctx_reader::runtime::{
    self, RuntimeError, RuntimeProcess, RuntimeReading, RuntimeStack, ThreadView, choose,
};
use otelctx_sample::{Catalog, Found, Frame, FrameKind, GilState, StackId};
use otelctx_track::TrackedProcess;

use crate::code::CodeMappings;
use crate::observation::Observation;
use crate::tally::Tally;

struct RuntimeWithStep<'p> {
    /// The name of the runtime.
    name: &'static str,
    runtime: &'p Arc<dyn RuntimeProcess>,
    /// The name of the step.
    step: &'static str,
}

fn with_steps(process: &TrackedProcess) -> impl Iterator<Item = RuntimeWithStep<'_>> {
    process.runtimes().iter().filter_map(|present| {
        let runtime = present.process.as_ref().ok()?;
        Some(RuntimeWithStep {
            name: present.name,
            runtime,
            step: runtime.kernel_step()?.name,
        })
    })
}

pub(super) fn have_step(process: &TrackedProcess) -> bool {
    with_steps(process).next().is_some()
}

/// Counts a sample without the reading of a runtime that could not be read in its process. Readings
/// have the reasons of the others.
pub(super) fn count_unreadable(
    process: &TrackedProcess,
    readings: &[RuntimeReading],
    tally: &mut Tally,
) {
    for present in process.runtimes().iter() {
        let has_reading = || readings.iter().any(|it| it.name == present.name);
        if let Err(error) = &present.process
            && !has_reading()
        {
            tally.counts.incomplete_steps += 1;
            tally.incomplete_steps.add(present.name, error);
        }
    }
}

/// Decodes the part that the kernel step with this name has added to a sample.
pub(super) fn decode(process: &TrackedProcess, step: &str, part: &[u8]) -> Option<RuntimeReading> {
    let RuntimeWithStep { name, runtime, .. } = with_steps(process).find(|it| it.step == step)?;
    let target = process.reader()?.as_target()?;
    let thread = runtime.decode(&*target, part).transpose()?;
    let mut reading = RuntimeReading { name, thread };
    process.reader()?.decode_record(&mut reading);
    Some(reading)
}

/// Returns the word that the kernel step with this name needs of a thread.
pub(super) fn thread_word(
    process: &TrackedProcess,
    step: &str,
    thread: ThreadView,
) -> Result<Option<u64>, RuntimeError> {
    let target = process.reader().and_then(|it| it.as_target());
    let found = with_steps(process).find(|it| it.step == step).zip(target);
    found.map_or(Ok(None), |(found, target)| {
        found.runtime.thread_word(&*target, thread)
    })
}

/// Returns the name of a thread that only a runtime has.
pub(super) fn thread_name(
    process: &TrackedProcess,
    tid: i32,
    readings: &[RuntimeReading],
) -> Option<String> {
    let target = process.reader()?.as_target()?;
    runtime::thread_name(process.runtimes(), &*target, tid, readings)
}

/// Returns the number of frames without a name; the maximum if the thread was not read.
pub(super) fn unnamed_frames(reading: &RuntimeReading) -> usize {
    let thread = reading.thread.as_ref();
    thread.map_or(usize::MAX, |thread| {
        thread.stack.frames().filter(|it| it.is_unnamed()).count()
    })
}

/// Returns the number of leading frames that lie on a runtime's own stack, if that is not the
/// thread's: it is complete then.
pub(super) fn own_frames(
    seen: &Observation<'_>,
    stack: &[Frame],
    code: &CodeMappings,
) -> Option<usize> {
    let of_runtimes = seen.runtimes.iter().filter_map(|reading| {
        let of_runtime = &reading.thread.as_ref().ok()?.stack;
        if of_runtime.switching_libraries.is_empty() {
            return None;
        }
        let libraries = code.mapped_files(|path| of_runtime.is_switching_library(path));
        if libraries.is_empty() {
            return None;
        }
        let switches = |address| libraries.iter().any(|library| library.contains(&address));
        of_runtime.own_native_frames(stack, switches)
    });
    of_runtimes.min()
}

/// A thread's context, interpreter lock and stack, from its record and its runtimes' readings.
pub(super) struct Merged {
    pub(super) found: Found,
    pub(super) gil: Option<GilState>,
    pub(super) user_stack: StackId,
}

/// Merges a thread's own context and stack with its runtimes' readings.
pub(super) fn merge(
    native: Found,
    readings: &[RuntimeReading],
    user_stack: &[Frame],
    reaches_start: bool,
    tally: &mut Tally,
    catalog: &mut Catalog,
) -> Merged {
    if readings.is_empty() {
        return Merged {
            found: native,
            gil: None,
            user_stack: catalog.stack(user_stack),
        };
    }
    let native = native.and_then(|id| Found::Attached(catalog.context_facts(id).clone()));
    let chosen = choose(native, readings);
    tally.counts.context_conflicts += u64::from(chosen.is_conflict);
    let found = chosen
        .context
        .and_then(|context| Found::Attached(catalog.context(&context)));
    let mut stack = user_stack.to_vec();
    let mut gil: Option<GilState> = None;
    for reading in readings {
        match &reading.thread {
            Ok(thread) => {
                tally.counts.truncated_runtime_stacks += u64::from(thread.stack.is_truncated);
                tally.counts.unnamed_functions += unnamed_frames(reading) as u64;
                if let Some(lock) = &thread.gil {
                    let state = lock.state_in(&mut stack, FrameKind::new(reading.name));
                    gil = Some(gil.map_or(state, |other| other.min(state)));
                }
                stack = thread.stack.clone().in_native(stack, reaches_start);
                tally.counts.truncated_runtime_stacks +=
                    u64::from(reaches_start && RuntimeStack::is_misplaced(&stack));
            }
            Err(error) => {
                tally.counts.incomplete_steps += 1;
                tally.incomplete_steps.add(reading.name, error);
            }
        }
    }
    Merged {
        found,
        gil,
        user_stack: catalog.stack(&stack),
    }
}
