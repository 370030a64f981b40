//! A thread of CPython and its tasks, from arbitrary memory.
//!
//! Input: a byte that chooses a version, then the memory at [`START`], where the interpreter's variables
//! are. The same bytes are decoded as what the kernel step has added to a sample.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use otelctx_python::Python;
use otelctx_reader::runtime::{
    MAX_FRAMES, MAX_TASKS, MAX_WALKED, RuntimeError, RuntimeThread, ThreadView,
};
use otelctx_reader::sample::NamedFrame;
use otelctx_remote::memory::{CountedMemory, Image};
use otelctx_remote::{TargetImage, Through};

/// Where the memory starts.
const START: u64 = 0x10_0000;
/// The thread that is asked for, by its thread pointer.
const THREAD: ThreadView = ThreadView::new(1, START);
const VERSIONS: [[u8; 3]; 11] = [
    [2, 7, 18],
    [3, 6, 15],
    [3, 7, 16],
    [3, 8, 18],
    [3, 9, 18],
    [3, 10, 13],
    [3, 11, 7],
    [3, 12, 1],
    [3, 13, 0],
    [3, 14, 10],
    [3, 15, 2],
];
/// Limit on reads of one thread: three attempts to read 1,024 interpreters and 16,384 thread states, of which one that
/// exceeds the limit is the last; then 8,192 frames, of which each takes at most sixteen reads.
const MAX_READS: usize = 3 * (2 * 1024 + 16384 + 256) + 2 * MAX_WALKED * 16;
/// Limit on reads of all tasks, and of the layout of their structures.
const MAX_TASK_READS: usize = (4 << 20) + 1024;
/// Limits on names and paths: 512 and 4,096 characters.
const MAX_NAME: usize = 4 * 512;
const MAX_PATH: usize = 4 * 4096;

/// Maximum number of reads of memory for the name of a thread.
const MAX_NAME_READS: usize = 4096 + 8;

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else {
        return;
    };
    let version = VERSIONS[usize::from(*choice) % VERSIONS.len()];
    let mut memory = Image::new();
    memory.map(START, data);
    let (process, memory) = (TargetImage::new(), CountedMemory::new(memory));
    let target = Through::new(&process, &memory);
    let Ok(python) = Python::at(&target, version, START) else {
        return;
    };
    memory.take_reads();
    let thread = python.thread(&target, THREAD);
    let reads = memory.take_reads();
    assert!(reads <= MAX_READS, "{reads} reads");
    check(&thread);
    // The names of functions are known now.
    assert_eq!(python.thread(&target, THREAD), thread);
    if let Ok(Some(thread)) = &thread {
        memory.take_reads();
        let name = python.thread_name(&target, THREAD.tid, Some(thread));
        assert!(name.is_none_or(|name| name.len() <= MAX_NAME));
        let reads = memory.take_reads();
        assert!(reads <= MAX_NAME_READS, "{reads} reads");
    }

    memory.take_reads();
    let mut tasks = 0;
    let visited = python.tasks(&target, &mut |task| {
        tasks += 1;
        assert!(task.frames.len() <= MAX_FRAMES + 2);
        task.frames.iter().for_each(check_frame);
        ControlFlow::Continue(())
    });
    let reads = memory.take_reads();
    assert!(reads <= MAX_TASK_READS, "{reads} reads");
    assert!(tasks <= MAX_TASKS + 1, "{tasks} tasks: {visited:?}");

    let decoded = python.decode(&target, data);
    check(&decoded);
    assert_eq!(python.decode(&target, data), decoded);
});

fn check(thread: &Result<Option<RuntimeThread>, RuntimeError>) {
    if let Ok(Some(thread)) = thread {
        assert!(thread.stack.frames().count() <= MAX_FRAMES + 1);
        thread.stack.frames().for_each(check_frame);
    }
}

fn check_frame(frame: &NamedFrame) {
    for name in [&frame.function, &frame.qualified_name] {
        assert!(name.len() <= MAX_NAME, "{} bytes", name.len());
    }
    assert!(frame.file.len() <= MAX_PATH, "{} bytes", frame.file.len());
}
