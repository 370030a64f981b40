//! A thread of Node.js, from arbitrary memory.
//!
//! Input: the memory at [`START`], where the structure of an addon is. It is read as each published variant of the schema has
//! it: what the process context announces for the older ones says where an object has its record. The same bytes are decoded as
//! what the kernel step has added to a sample.
#![no_main]

use libfuzzer_sys::fuzz_target;
use otelctx_node::Node;
use otelctx_reader::format::record::RECOMMENDED_SIZE;
use otelctx_reader::runtime::{RuntimeError, RuntimeProcess, RuntimeThread, ThreadView};
use otelctx_remote::memory::{CountedMemory, Image};
use otelctx_remote::{TargetImage, Through};

/// Where the memory starts.
const START: u64 = 0x10_0000;
/// Where the structure says where an object has its record.
const RECORD_SLOT_OFFSET: usize = 20;
/// The thread that is asked for, by its thread pointer.
const THREAD: ThreadView = ThreadView::new(1, START);
/// Limit on reads: up to the map 5, its beginning and a bucket 2, 64 entries of 4 and a value, an object 3, a record 2.
const MAX_READS: usize = 5 + 2 + 64 * 4 + 1 + 3 + 2;
/// What the process contexts of older addons announce, names behind `threadlocal.`: `@datadog/pprof` 5.19 and the public
/// draft, 5.18, the first draft, and compressed pointers, which are refused.
const ANNOUNCED: [&[(&str, i64)]; 6] = [
    &[("js_object_record_offset", 24)],
    &[("js_object_record_offset", 32), ("tagged_size", 8)],
    &[
        ("wrapped_object_offset", 24),
        ("native_wrap_fields_offset", 24),
    ],
    &[
        ("wrapped_object_offset", 24),
        ("native_wrap_fields_offset", 40),
    ],
    &[
        ("nodejs_v1.wrapped_object_offset", 32),
        ("nodejs_v1.tagged_size", 8),
    ],
    &[("js_object_record_offset", 12), ("tagged_size", 4)],
];

fuzz_target!(|data: &[u8]| {
    let mut memory = Image::new();
    memory.map(START, data);
    let (process, memory) = (TargetImage::new(), CountedMemory::new(memory));
    let target = Through::new(&process, &memory);
    let node = Node::at(&target, 0);
    let read = |node: &dyn RuntimeProcess| {
        let thread = node.thread(&target, THREAD);
        let reads = memory.take_reads();
        assert!(reads <= MAX_READS, "{reads} reads");
        check(&thread);
        assert_eq!(node.thread(&target, THREAD), thread);
        memory.take_reads();
        thread
    };
    let newest = read(&*node);
    for announced in ANNOUNCED {
        let named = |&(name, value): &(&str, i64)| (format!("threadlocal.{name}"), value.into());
        let attributes: Vec<_> = announced.iter().map(named).collect();
        let older = node.with_context(&attributes).expect("another variant");
        let thread = read(&*older);
        // Where the structure itself says where the record is, nothing else counts.
        let is_compressed = attributes.iter().any(|(_, value)| *value == 4.into());
        if !is_compressed && data.get(RECORD_SLOT_OFFSET).is_some_and(|it| *it != 0) {
            assert_eq!(thread, newest);
        }
        assert!(
            !is_compressed || !matches!(thread, Ok(Some(_))),
            "{thread:?}"
        );
    }

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
