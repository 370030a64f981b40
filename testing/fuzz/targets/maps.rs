//! The text of `/proc/PID/maps`: read whole, read in pieces, read up to a mapping, and written
//! again as the kernel writes it.
//!
//! Input: one byte, the size of the pieces; one byte, where to stop; then the text.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use otelctx_remote::mappings::{Mapping, Parser, Walk, walk};

fuzz_target!(|data: &[u8]| {
    let &[piece, stop, ref text @ ..] = data else {
        return;
    };
    let (whole, counted) = read(text, 4096, u64::MAX);
    assert_eq!(whole.len() as u64, counted.mappings);
    assert!(!counted.stopped);
    // Every line is visited or counted, also an empty one, and a last one without a newline.
    let lines = text.split(|byte| *byte == b'\n').count() as u64;
    let unfinished = u64::from(text.last().is_none_or(|byte| *byte == b'\n'));
    assert_eq!(counted.mappings + counted.malformed, lines - unfinished);

    assert_eq!(
        read(text, usize::from(piece) + 1, u64::MAX),
        (whole.clone(), counted)
    );

    let stop = u64::from(stop) + 1;
    let (some, walked) = read(text, usize::from(piece) + 1, stop);
    assert_eq!(some[..], whole[..some.len()]);
    assert_eq!(walked.stopped, counted.mappings >= stop);
    assert_eq!(walked.mappings, counted.mappings.min(stop));

    let mut from_reader = 0;
    let streamed = walk(text, &mut |_| {
        from_reader += 1;
        ControlFlow::Continue(())
    });
    assert_eq!(
        (streamed.ok(), from_reader),
        (Some(counted), counted.mappings)
    );

    for line in text.split(|byte| *byte == b'\n') {
        if let Some(mapping) = Mapping::parse(line) {
            assert_eq!(Mapping::parse(&written(&mapping)), Some(mapping));
            assert!(line.ends_with(mapping.name));
            assert_eq!(mapping.size(), mapping.end.saturating_sub(mapping.start));
        }
    }
});

/// Start and name of every mapping up to the `stop`th.
fn read(text: &[u8], piece: usize, stop: u64) -> (Vec<(u64, Vec<u8>)>, Walk) {
    let mut visited = Vec::new();
    let mut parser = Parser::new();
    for piece in text.chunks(piece) {
        let flow = parser.feed(piece, &mut |mapping| {
            visited.push((mapping.start, mapping.name.to_vec()));
            if visited.len() as u64 == stop {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        if flow.is_break() {
            break;
        }
    }
    (visited, parser.finish())
}

/// The line as fs/proc/task_mmu.c (`show_vma_header_prefix`) writes it.
fn written(mapping: &Mapping<'_>) -> Vec<u8> {
    let letter = |set, letter| if set { letter } else { '-' };
    let permissions = mapping.permissions;
    let mut line = format!(
        "{:08x}-{:08x} {}{}{}{} {:08x} {:02x}:{:02x} {} ",
        mapping.start,
        mapping.end,
        letter(permissions.read, 'r'),
        letter(permissions.write, 'w'),
        letter(permissions.execute, 'x'),
        if permissions.shared { 's' } else { 'p' },
        mapping.offset,
        mapping.device.major,
        mapping.device.minor,
        mapping.inode,
    );
    while line.len() < 73 && !mapping.name.is_empty() {
        line.push(' ');
    }
    [line.as_bytes(), mapping.name].concat()
}
