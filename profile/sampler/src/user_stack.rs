//! Stacks that are walked here, as the catalog has them.

use std::sync::Arc;

use otelctx_reader::remote::GeneratedEnd;
use otelctx_sample::{Frame, StackEnd};
use otelctx_unwind::{GeneratedRecord, MAX_FRAMES, StackEnd as End};

/// Converts the frames of a walk, innermost first. `functions` returns those of a frame in generated code, at an address. If
/// there are more than [`MAX_FRAMES`] with inlined functions, the outermost ones are dropped, and `end` says so.
pub(crate) fn frames(
    found: &[otelctx_unwind::Frame],
    end: &mut StackEnd,
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
        if named.len() > MAX_FRAMES {
            break;
        }
        match &frame.generated {
            Some(record) => named.extend_from_slice(&functions(frame.address, record)),
            None => named.push(native),
        }
    }
    if named.len() > MAX_FRAMES {
        named.truncate(MAX_FRAMES);
        *end = StackEnd::Limit;
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

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::FrameRecord;

    use super::*;

    #[test]
    fn inlined_functions_count_for_the_limit() {
        let generated = GeneratedRecord {
            walker: 0,
            record: FrameRecord([0; 4]),
        };
        let frame = |address| otelctx_unwind::Frame {
            address,
            is_caller: true,
            by_frame_pointer: false,
            generated: Some(generated),
        };
        let converted = |count: usize, inlined: usize| {
            let found: Vec<_> = (0..count as u64).map(frame).collect();
            let mut end = StackEnd::Start;
            let functions =
                |_: u64, _: &GeneratedRecord| vec![Frame::instruction(1); inlined].into();
            (frames(&found, &mut end, &functions).len(), end)
        };
        assert_eq!(converted(MAX_FRAMES / 2, 2), (MAX_FRAMES, StackEnd::Start));
        assert_eq!(
            converted(MAX_FRAMES / 2 + 1, 2),
            (MAX_FRAMES, StackEnd::Limit)
        );
        assert_eq!(converted(MAX_FRAMES, 128), (MAX_FRAMES, StackEnd::Limit));
    }
}
