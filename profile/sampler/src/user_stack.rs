//! Stacks that are walked here, as the catalog has them.

use otelctx_reader::remote::GeneratedEnd;
use otelctx_sample::{Frame, StackEnd};
use otelctx_unwind::StackEnd as End;

/// Converts the frames of a walk, innermost first.
pub(crate) fn frames(found: &[otelctx_unwind::Frame]) -> Vec<Frame> {
    let frame = |frame: &otelctx_unwind::Frame| {
        if frame.is_caller {
            Frame::return_address(frame.address)
        } else {
            Frame::instruction(frame.address)
        }
    };
    let mut frames: Vec<Frame> = found.iter().map(frame).collect();
    Frame::mark_signal_returns(&mut frames);
    frames
}

/// Converts the end of a walk.
pub(crate) fn stack_end(end: End) -> StackEnd {
    match end {
        End::Start => StackEnd::Start,
        End::Limit => StackEnd::Limit,
        End::NoRows => StackEnd::NoTables,
        End::Unreadable(_) => StackEnd::Unreadable,
        End::NotExecutable(_) => StackEnd::NotExecutable,
        End::Generated(GeneratedEnd::Unreadable(_)) => StackEnd::Unreadable,
        End::Generated(_) => StackEnd::GeneratedCode,
        _ => StackEnd::BadTables,
    }
}
