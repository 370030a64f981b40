//! A thread of Node.js, from arbitrary memory.
//!
//! Input: the memory at [`START`], where the structure of an addon is. The same bytes are decoded as what the kernel step
//! has added to a sample.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_node::Node;
use otelctx_reader::format::record::RECOMMENDED_SIZE;
use otelctx_reader::runtime::{RuntimeError, RuntimeThread, ThreadView};
use otelctx_remote::memory::{CountedMemory, Image};
use otelctx_remote::{TargetImage, Through};

/// Where the memory starts.
const START: u64 = 0x10_0000;
/// The thread that is asked for, by its thread pointer.
const THREAD: ThreadView = ThreadView::new(1, START);
/// Limit on reads: up to the map 5, its head and a bucket 6, 64 entries of 4 and a value, an object 2, a record 2.
const MAX_READS: usize = 5 + 6 + 64 * 4 + 1 + 2 + 2;

fuzz_target!(|data: &[u8]| {
    let mut memory = Image::new();
    memory.map(START, data);
    let (process, memory) = (TargetImage::new(), CountedMemory::new(memory));
    let target = Through::new(&process, &memory);
    let node = Node::at(&target, 0);
    let thread = node.thread(&target, THREAD);
    let reads = memory.take_reads();
    assert!(reads <= MAX_READS, "{reads} reads");
    check(&thread);
    assert_eq!(node.thread(&target, THREAD), thread);

    let decoded = node.decode(&target, data);
    check(&decoded);
    assert_eq!(node.decode(&target, data), decoded);
});

fn check(thread: &Result<Option<RuntimeThread>, RuntimeError>) {
    if let Ok(Some(RuntimeThread {
        record: Some(record),
        ..
    })) = thread
    {
        assert!(record.len() <= RECOMMENDED_SIZE, "{} bytes", record.len());
    }
}
