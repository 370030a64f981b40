//! A language runtime's threads and tasks: those of the toy runtime, from arbitrary memory.
//!
//! Input: the memory at [`START`], with the runtime's first structure at its beginning. The same bytes
//! are decoded as what the kernel step has added to a sample.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_reader::runtime::{
    MAX_FRAMES, MAX_TASK_BYTES, MAX_TASKS, Present, RuntimeError, RuntimeThread, ThreadView,
    read_thread,
};
use otelctx_reader::sample::NamedFrame;
use otelctx_reader::{Options, Process};
use otelctx_remote::memory::{CountedMemory, Image};
use otelctx_remote::{TargetImage, Through};
use otelctx_toy::Toy;

/// Where the memory starts.
const START: u64 = 0x10_0000;
/// The thread that is asked for, by its thread pointer.
const THREAD: ThreadView = ThreadView::new(1, START);
/// Limit on reads of one thread: the list of threads, and for each frame itself, its function and
/// three names of 17 reads.
const MAX_READS: usize = 1024 + MAX_FRAMES * (2 + 3 * 17) + 8;
/// Bytes of a name that is not UTF-8, as text: 255, each replaced by three.
const MAX_NAME: usize = 3 * 255;

fuzz_target!(|data: &[u8]| {
    let mut memory = Image::new();
    memory.map(START, data);
    let (process, counted) = (TargetImage::new(), CountedMemory::new(memory.clone()));
    let target = Through::new(&process, &counted);
    let read = |process| {
        let present = Present {
            name: "toy",
            process: Ok(process),
        };
        let readings = read_thread(&target, &[present], THREAD);
        readings.into_iter().map(|it| it.thread).next()
    };
    let toy = Toy::at(START);
    let thread = read(toy.clone());
    let reads = counted.take_reads();
    assert!(reads <= MAX_READS, "{reads} reads");
    check(thread.as_ref());
    // The names of functions are known now, and a process that is read for the first time says the same.
    assert_eq!(read(toy.clone()), thread);
    assert_eq!(read(Toy::at(START)), thread);

    let decoded = toy.decode(&target, data).transpose();
    check(decoded.as_ref());
    assert_eq!(toy.decode(&target, data).transpose(), decoded);

    let image = TargetImage {
        memory,
        ..TargetImage::new()
    };
    let process = Process::of_target(image, Options::default());
    let present = Present {
        name: "toy",
        process: Ok(toy),
    };
    for reading in process.tasks(&[present], None) {
        let Ok(tasks) = reading.tasks else { continue };
        assert!(tasks.len() <= MAX_TASKS);
        let frames = || tasks.iter().flat_map(|task| task.frames.iter());
        frames().for_each(check_frame);
        let memory: usize = frames().map(NamedFrame::memory).sum();
        assert!(memory <= MAX_TASK_BYTES, "{memory} bytes");
    }
});

fn check(thread: Option<&Result<RuntimeThread, RuntimeError>>) {
    if let Some(Ok(thread)) = thread {
        assert!(thread.stack.frames().count() <= MAX_FRAMES + 1);
        thread.stack.frames().for_each(check_frame);
    }
}

fn check_frame(frame: &NamedFrame) {
    for name in [&frame.function, &frame.qualified_name, &frame.file] {
        assert!(name.len() <= MAX_NAME, "{} bytes", name.len());
    }
}
