//! Stacks that are walked here, as the catalog has them.

use std::sync::Arc;

use otelctx_reader::remote::GeneratedEnd;
use otelctx_sample::{Frame, StackEnd};
use otelctx_unwind::{GeneratedRecord, StackEnd as End};

/// Converts the frames of a walk, innermost first. `functions` returns those of a frame in generated code, at an address.
pub(crate) fn frames(
    found: &[otelctx_unwind::Frame],
    functions: &dyn Fn(u64, &GeneratedRecord) -> Arc<[Frame]>,
) -> Vec<Frame> {
    let native = |frame: &otelctx_unwind::Frame| {
        if frame.is_caller {
            Frame::return_address(frame.address)
        } else {
            Frame::instruction(frame.address)
        }
    };
    // Where a signal has interrupted generated code, the frame that it returns to is marked by the native one.
    let mut frames: Vec<Frame> = found.iter().map(native).collect();
    Frame::mark_signal_returns(&mut frames);
    if found.iter().all(|frame| frame.generated.is_none()) {
        return frames;
    }
    let mut named = Vec::with_capacity(frames.len());
    for (native, frame) in frames.into_iter().zip(found) {
        match &frame.generated {
            Some(record) => named.extend_from_slice(&functions(frame.address, record)),
            None => named.push(native),
        }
    }
    named
}

/// Converts the end of a walk.
pub(crate) fn stack_end(end: End) -> StackEnd {
    match end {
        End::Start => StackEnd::Start,
        End::Limit => StackEnd::Limit,
        End::NoRows => StackEnd::NoTables,
        End::Unreadable(_) | End::Generated(GeneratedEnd::Unreadable(_)) => StackEnd::Unreadable,
        End::NotExecutable(_) => StackEnd::NotExecutable,
        End::Generated(_) => StackEnd::GeneratedCode,
        _ => StackEnd::BadTables,
    }
}
