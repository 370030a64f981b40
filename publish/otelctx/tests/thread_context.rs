//! What a thread's slot shows while records are attached, changed and dropped.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::alloc::{alloc, dealloc, Layout};
use std::collections::HashSet;
use std::mem;
use std::sync::atomic::{compiler_fence, Ordering};
use std::thread;

use common::{attached, attributes, bytes, in_own_process, number, slot};
use otelctx::{
    append_current, raw, raw::swap_current, raw::thread_slot, thread_context, visible_to_readers,
    Context, Key, KeyError, ProcessContext, PublishError, SharedContext, TraceFlags, ZeroId,
};

fn record(number: u8) -> Context {
    Context::new([number; 16], [number; 8]).unwrap()
}

#[test]
fn a_record_lies_in_memory_as_the_proposal_says() {
    in_own_process("a_record_lies_in_memory_as_the_proposal_says", || {
        static ROUTE: Key = Key::new("http.route");
        static EMPTY: Key = Key::new("empty");
        let _process = ProcessContext::new()
            .with_service_name("test")
            .publish()
            .unwrap();
        let trace_id = *b"0123456789abcdef";
        let mut record = Context::new(trace_id, *b"ABCDEFGH")
            .unwrap()
            .with_flags(TraceFlags(0x82))
            .with_sampled(true)
            .with_attribute(&ROUTE, "/cart")
            .with_attribute(&EMPTY, "");
        let attached = record.attach();
        let mut expected = b"0123456789abcdefABCDEFGH\x01\x83".to_vec();
        expected.extend(9_u16.to_ne_bytes());
        expected.extend(b"\x00\x05/cart\x01\x00");
        assert_eq!(bytes().unwrap(), expected);
        assert!(!attached.is_truncated());
    });
}

#[test]
fn a_guard_restores_what_was_attached_before() {
    let (mut outer, mut inner) = (record(1), record(2));
    assert!(attached().is_null());
    let outer = outer.attach();
    for _ in 0..3 {
        let _inner = inner.attach();
        assert_eq!(number(), Some(2));
    }
    assert_eq!(number(), Some(1));
    drop(outer);
    assert!(attached().is_null());
}

/// Every order in which the guards of four nested records can be dropped, with new records taking
/// the place of those dropped.
#[test]
fn guards_dropped_in_any_order_leave_the_latest_that_is_alive() {
    for order in permutations(4) {
        let mut records: Vec<_> = (1..=4).map(|number| Box::new(record(number))).collect();
        let mut guards: Vec<_> = records
            .iter_mut()
            .map(|record| Some(record.attach()))
            .collect();
        for &at in &order {
            guards[at] = None;
            let latest = guards.iter().rposition(Option::is_some);
            assert_eq!(number(), latest.map(|at| at as u8 + 1), "{order:?}");
            // Memory of the dropped record must not show up again.
            let mut other = record(99);
            let guard = other.attach();
            assert_eq!(number(), Some(99));
            drop(guard);
            assert_eq!(number(), latest.map(|at| at as u8 + 1), "{order:?}");
        }
        assert!(attached().is_null());
    }
}

#[test]
fn any_number_of_guards_dropped_early_leaves_the_latest() {
    let mut records: Vec<_> = (0..3000).map(|_| record(1)).collect();
    let mut latest = record(2);
    let mut guards: Vec<_> = records.iter_mut().map(Context::attach).collect();
    let last = latest.attach();
    for (dropped, guard) in guards.drain(..).enumerate() {
        drop(guard);
        assert_eq!(number(), Some(2), "{dropped}");
    }
    drop(last);
    assert!(attached().is_null());
}

#[test]
fn a_record_dropped_early_can_be_attached_again() {
    let (mut first, mut second) = (record(1), record(2));
    let one = first.attach();
    let two = second.attach();
    drop(one);
    let again = first.attach();
    assert_eq!(number(), Some(1));
    drop(two);
    assert_eq!(number(), Some(1));
    drop(again);
    assert!(attached().is_null());
}

#[test]
fn shared_records_attached_twice_can_be_dropped_in_any_order() {
    let shared = [record(1).share(), record(2).share()];
    // Which of the two each of three guards attaches, and the order of dropping.
    for which in 0..8_usize {
        for order in permutations(3) {
            let which: Vec<_> = (0..3).map(|bit| which >> bit & 1).collect();
            let mut guards: Vec<_> = which.iter().map(|at| Some(shared[*at].attach())).collect();
            for &at in &order {
                guards[at] = None;
                let latest = guards.iter().rposition(Option::is_some);
                let expected = latest.map(|at| which[at] as u8 + 1);
                assert_eq!(number(), expected, "{which:?} {order:?}");
            }
            assert!(attached().is_null());
        }
    }
}

#[test]
fn a_change_of_a_record_shows_whatever_the_order_of_guards() {
    in_own_process(
        "a_change_of_a_record_shows_whatever_the_order_of_guards",
        || {
            static KEY: Key = Key::new("key");
            let _process = ProcessContext::new()
                .with_service_name("test")
                .publish()
                .unwrap();
            let (mut first, mut second) = (record(1), record(2));
            let one = first.attach();
            let two = second.attach();
            drop(one);
            two.append(&KEY, "late");
            assert_eq!(number(), Some(2));
            assert_eq!(attributes(), [(0, "late".to_owned())]);
            two.shrink_to(0);
            assert_eq!(attributes(), []);
        },
    );
}

#[test]
fn a_record_of_another_publisher_stays_in_the_slot() {
    #[repr(align(64))]
    struct Foreign([u8; 64]);
    let mut foreign = Foreign([0; 64]);
    foreign.0[..16].fill(7);
    foreign.0[24] = 1;
    let before = foreign.0;
    let address = foreign.0.as_mut_ptr();

    let (mut below, mut above) = (record(1), record(2));
    let guard = below.attach();
    // SAFETY: the slot is this thread's, and the record outlives its time in it.
    unsafe { slot().write(address) };
    let nested = above.attach();
    assert_eq!(number(), Some(2));
    drop(nested);
    assert_eq!(attached(), address);
    drop(guard);
    assert_eq!(attached(), address);
    drop(below);
    thread_context().detach();
    assert_eq!(attached(), address);
    assert_eq!(foreign.0, before);
    // SAFETY: as above.
    unsafe { slot().write(std::ptr::null_mut()) };
}

#[test]
fn a_record_whose_guard_was_forgotten_is_detached_when_it_is_dropped() {
    let mut outer = record(1);
    let guard = outer.attach();
    let mut forgotten = record(2);
    mem::forget(forgotten.attach());
    assert_eq!(number(), Some(2));
    drop(forgotten);
    assert_eq!(number(), Some(1));
    drop(guard);
    assert!(attached().is_null());

    // From below a later one, too.
    let mut forgotten = record(3);
    mem::forget(forgotten.attach());
    let mut later = record(4);
    let guard = later.attach();
    drop(forgotten);
    assert_eq!(number(), Some(4));
    drop(guard);
    assert!(attached().is_null());

    // And while guards are dropped out of order.
    let mut records: [Context; 5] = std::array::from_fn(|number| record(number as u8 + 10));
    let [base, early, forgotten, third, fourth] = &mut records;
    let guards = [base.attach(), early.attach()];
    let [base, early] = guards;
    drop(base);
    mem::forget(forgotten.attach());
    let [third, fourth] = [third.attach(), fourth.attach()];
    let next_to_be_used = [record(20), record(21), record(22)];
    *forgotten = record(23);
    drop(next_to_be_used);
    drop(third);
    assert_eq!(number(), Some(14));
    drop(fourth);
    assert_eq!(number(), Some(11));
    drop(early);
    assert!(attached().is_null());

    // A shared record is kept alive by being attached.
    let shared = record(5).share();
    mem::forget(shared.attach());
    drop(shared);
    let next = record(6).share();
    assert_eq!(number(), Some(5));
    drop(next);
}

#[test]
fn memory_of_a_forgotten_record_is_not_shown_by_a_later_guard() {
    let mut forgotten = record(1);
    mem::forget(forgotten.attach());
    let mut later = record(2);
    let guard = later.attach();
    drop(forgotten);
    // As many records as there are blocks in a chunk: one would have the memory.
    let others: Vec<_> = (0..64).map(|_| record(3)).collect();
    drop(guard);
    assert_eq!(
        number(),
        None,
        "the context of a record that is not attached"
    );
    drop(others);
    assert!(attached().is_null());
}

/// A record of another publisher in the slot; returns its address.
fn attach_foreign(number: u8) -> *mut u8 {
    let mut bytes = Box::new([0u64; 8]);
    let address: *mut u8 = bytes.as_mut_ptr().cast();
    mem::forget(bytes);
    // SAFETY: the slot is this thread's, and the record is never freed.
    unsafe {
        address.write_bytes(number, 24);
        address.add(24).write(1);
        slot().write(address);
    }
    address
}

#[test]
fn memory_of_a_forgotten_record_is_not_shown_by_another_publisher() {
    let mut forgotten = record(1);
    mem::forget(forgotten.attach());
    let replaced = attached();
    attach_foreign(2);
    let mut later = record(3);
    let guard = later.attach();
    drop(forgotten);
    let others: Vec<_> = (0..64).map(|_| record(4)).collect();
    drop(guard);
    assert_eq!(number(), Some(2));
    // SAFETY: the slot is this thread's; the block stays a record.
    unsafe { slot().write(replaced) };
    assert_eq!(number(), None);
    drop(others);
    // SAFETY: as above.
    unsafe { slot().write(std::ptr::null_mut()) };
}

#[test]
fn after_1024_records_that_another_publisher_may_restore_the_slot_is_emptied() {
    for forgotten in 1..=3000 {
        let mut below = record(1);
        mem::forget(below.attach());
        attach_foreign(2);
        let mut above = record(3);
        let guard = above.attach();
        drop(below);
        let expected = (forgotten % 1024 != 0).then_some(3);
        assert_eq!(number(), expected, "{forgotten}");
        drop(guard);
    }
    // SAFETY: the slot is this thread's.
    unsafe { slot().write(std::ptr::null_mut()) };
}

#[test]
fn a_record_attached_again_after_its_guard_was_forgotten_is_restored_once() {
    let mut first = record(1);
    mem::forget(first.attach());
    let mut second = record(2);
    let outer = second.attach();
    drop(first.attach());
    assert_eq!(number(), Some(2));
    drop(first);
    let others: Vec<_> = (0..64).map(|_| record(3)).collect();
    drop(outer);
    assert_eq!(number(), None);
    drop(others);
}

#[test]
fn any_number_of_forgotten_guards_leaves_the_latest_record() {
    let mut last = record(1);
    mem::forget(last.attach());
    let mut blocks = HashSet::from([attached()]);
    for forgotten in 1..=3000 {
        let mut next = record(2);
        mem::forget(next.attach());
        blocks.insert(attached());
        drop(mem::replace(&mut last, next));
        assert_eq!(number(), Some(2), "{forgotten}");
    }
    assert_eq!(blocks.len(), 2);
    drop(last);
    assert!(attached().is_null());
}

#[test]
fn after_1024_forgotten_guards_of_shared_records_the_slot_is_emptied() {
    let shared = record(3).share();
    for forgotten in 0..3000 {
        mem::forget(shared.attach());
        let expected = (forgotten % 1025 != 1024).then_some(3);
        assert_eq!(number(), expected, "{forgotten}");
    }
}

#[test]
fn swapping_needs_no_order_and_returns_what_was_swapped_in() {
    let number_of = |record: Option<SharedContext>| {
        let record = record?;
        let _attached = record.attach();
        number()
    };
    let [first, second] = [record(1).share(), record(2).share()];
    assert!(swap_current(Some(first.clone())).is_none());
    let address = attached();
    assert_eq!(number(), Some(1));
    let before = swap_current(Some(second));
    assert_eq!(number(), Some(2));
    assert_eq!(number_of(swap_current(before)), Some(2));
    assert_eq!(attached(), address, "the record itself, not a copy");
    assert_eq!(number_of(swap_current(None)), Some(1));
    assert!(attached().is_null());
    assert!(swap_current(None).is_none());

    // Guards that are alive restore nothing, and leave the slot alone.
    let mut own = record(3);
    swap_current(Some(first.clone()));
    let guard = own.attach();
    assert_eq!(number(), Some(3));
    assert_eq!(number_of(swap_current(Some(record(4).share()))), Some(1));
    assert_eq!(number(), Some(4));
    drop(guard);
    assert_eq!(number(), Some(4));
    // Over it, a guard works as ever.
    drop(own.attach());
    assert_eq!(number(), Some(4));
    // A guard of the same record is one of its own.
    let guard = first.attach();
    swap_current(Some(first.clone()));
    drop(guard);
    assert_eq!(number(), Some(1));
    let guard = first.attach();
    swap_current(None);
    assert!(attached().is_null());
    drop(guard);
    assert!(attached().is_null());

    // The thread's own record and this one replace each other.
    swap_current(Some(first.clone()));
    thread_context()
        .set([5; 16], [5; 8], TraceFlags::NONE)
        .unwrap();
    assert_eq!(number(), Some(5));
    assert_eq!(number_of(swap_current(Some(first))), Some(1));
    assert_eq!(number(), Some(1));
    thread_context().detach();
    assert_eq!(number(), Some(1));
    assert_eq!(number_of(swap_current(None)), Some(1));
}

/// Once there were too many, the slot was emptied after the new record had been put into it.
#[test]
fn a_new_record_is_shown_however_many_another_publisher_may_restore() {
    static FOREIGN: [u8; 64] = [0; 64];
    for round in 0..3_000 {
        drop(swap_current(Some(record(1).share())));
        assert_eq!(number(), Some(1), "{round}");
        // SAFETY: the slot is this thread's, and what is in it says that it is to be ignored.
        unsafe { slot().write(FOREIGN.as_ptr().cast_mut()) };
    }
    // SAFETY: as above.
    unsafe { slot().write(std::ptr::null_mut()) };
    drop(swap_current(None));
}

#[test]
fn an_owned_guard_keeps_its_record_attached_without_a_borrow() {
    let guards: Vec<_> = (1..=9)
        .map(|number| record(number).share().attach_owned())
        .collect();
    // No handle is left; others take memory that is free.
    let others: Vec<_> = (0..64).map(|_| record(99).share()).collect();
    for (left, guard) in guards.into_iter().enumerate().rev() {
        assert_eq!(number(), Some(left as u8 + 1));
        drop(guard);
    }
    assert!(attached().is_null());
    drop(others);
}

#[test]
fn what_is_known_late_shows_on_the_attached_record() {
    in_own_process("what_is_known_late_shows_on_the_attached_record", || {
        static KEY: Key = Key::new("key");
        static LATE: Key = Key::new("late");
        let fact = |value: &str| (1, value.to_owned());
        let early = (0, "early".to_owned());
        let only_early = vec![early.clone()];
        assert!(!append_current(&LATE, "no process context"));
        let _process = ProcessContext::new()
            .with_service_name("test")
            .publish()
            .unwrap();
        KEY.register().unwrap();
        LATE.register().unwrap();
        assert!(!append_current(&LATE, "nothing is attached"));

        // A record of the thread has it itself.
        let mut own = record(1).with_attribute(&KEY, "early");
        let guard = own.attach();
        let address = attached();
        assert!(append_current(&LATE, "a"));
        assert_eq!(
            (attached(), attributes()),
            (address, vec![early.clone(), fact("a")])
        );
        assert!(
            !append_current(&LATE, &"x".repeat(64)),
            "its 64 bytes are full"
        );
        drop(guard);
        thread_context()
            .set([2; 16], [2; 8], TraceFlags::NONE)
            .unwrap();
        assert!(append_current(&LATE, "b"));
        assert_eq!(attributes(), [fact("b")]);
        thread_context().detach();

        // A shared one does not change; on this thread it shows until it is detached.
        let shared = record(3).with_attribute(&KEY, "early").share();
        let elsewhere = |expected: Vec<(u8, String)>| {
            let shared = shared.clone();
            thread::spawn(move || {
                let _attached = shared.attach();
                assert_eq!(attributes(), expected);
            })
            .join()
            .unwrap();
        };
        swap_current(Some(shared.clone()));
        let long = "y".repeat(200);
        assert!(append_current(&LATE, &long));
        assert!(append_current(&LATE, &long));
        assert_eq!(number(), Some(3));
        assert_eq!(attributes(), [early.clone(), fact(&long), fact(&long)]);
        assert!(append_current(&LATE, &"y".repeat(190)));
        assert!(!append_current(&LATE, "612 bytes are full"));
        elsewhere(only_early.clone());
        {
            let over = shared.attach();
            assert_eq!(attributes(), only_early);
            assert!(over.append(&LATE, "c"));
            assert_eq!(attributes(), [early.clone(), fact("c")]);
            let mut own = record(4);
            let above = own.attach();
            assert!(!over.append(&LATE, "not while another one is attached over it"));
            assert!(append_current(&LATE, "d"));
            assert_eq!(attributes(), [fact("d")]);
            drop(above);
            assert_eq!(attributes(), [early.clone(), fact("c")]);
            assert!(append_current(&LATE, "e"));
            assert_eq!(attributes(), [early.clone(), fact("c"), fact("e")]);
        }
        assert_eq!(
            attributes().len(),
            4,
            "what was appended before is attached again"
        );
        let same = swap_current(None).unwrap();
        assert!(attached().is_null());
        let owned = same.attach_owned();
        assert_eq!(attributes(), only_early);
        assert!(owned.append(&LATE, "f"));
        assert_eq!(attributes(), [early.clone(), fact("f")]);
        drop(owned);
        assert!(attached().is_null());

        // A record of another publisher is never written.
        #[repr(align(64))]
        struct Foreign([u8; 64]);
        let mut foreign = Foreign([0; 64]);
        foreign.0[24] = 1;
        // SAFETY: the slot is this thread's, and the record outlives its time in it.
        unsafe { thread_slot().write(foreign.0.as_mut_ptr()) };
        assert!(!append_current(&LATE, "g"));
        assert_eq!(foreign.0[26..], [0; 38]);
        // SAFETY: as above.
        unsafe { thread_slot().write(std::ptr::null_mut()) };
    });
}

#[test]
fn a_record_is_made_from_anothers_attributes_with_new_ids() {
    in_own_process(
        "a_record_is_made_from_anothers_attributes_with_new_ids",
        || {
            static KEY: Key = Key::new("key");
            let _process = ProcessContext::new()
                .with_service_name("test")
                .publish()
                .unwrap();
            let parent = record(1)
                .with_attribute(&KEY, "value")
                .with_attribute(&KEY, &"x".repeat(300));
            let mut child = parent
                .copy_with_ids([2; 16], [3; 8], TraceFlags::SAMPLED)
                .unwrap();
            assert!(child.is_truncated());
            let guard = child.attach();
            assert_eq!(
                bytes().unwrap()[..26],
                [&[2; 16][..], &[3; 8], &[1, 1]].concat()
            );
            assert_eq!(
                attributes(),
                [(0, "value".to_owned()), (0, "x".repeat(255))]
            );
            drop(guard);
            let shared = record(1).with_attribute(&KEY, "value").share();
            let mut child = shared.to_context();
            child.clear_ids();
            assert!(!child.is_truncated());
            let _guard = child.attach();
            assert_eq!(bytes().unwrap()[..26], [&[0; 24][..], &[1, 0]].concat());
            assert_eq!(attributes(), [(0, "value".to_owned())]);
        },
    );
}

#[test]
fn the_threads_own_context_can_be_read_back() {
    in_own_process("the_threads_own_context_can_be_read_back", || {
        static KEY: Key = Key::new("key");
        let _process = ProcessContext::new()
            .with_service_name("test")
            .publish()
            .unwrap();
        assert_eq!(visible_to_readers(), None);
        let mut record = record(1).with_sampled(true).with_attribute(&KEY, "value");
        let _guard = record.attach();
        let context = visible_to_readers().unwrap();
        assert_eq!(context.trace_id.to_bytes(), [1; 16]);
        assert_eq!(context.span_id.to_bytes(), [1; 8]);
        assert_eq!(context.trace_flags, TraceFlags::SAMPLED);
        assert_eq!(context.attributes, [("key".to_owned(), "value".to_owned())]);
        assert!(context.skipped.is_empty());
    });
}

#[test]
fn a_runtime_writes_the_slot_and_the_record_itself() {
    assert_eq!(thread_slot(), slot());
    let raw = raw::thread_record().unwrap().as_ptr().cast::<u8>();
    assert!(attached().is_null());
    // SAFETY: the record is this thread's; steps 1 to 4 of the protocol.
    unsafe {
        raw.add(24).write_volatile(0);
        compiler_fence(Ordering::SeqCst);
        raw.write_bytes(7, 24);
        raw.add(25).write(1);
        raw.add(26).cast::<u16>().write(0);
        compiler_fence(Ordering::SeqCst);
        raw.add(24).write_volatile(1);
        thread_slot().write_volatile(raw);
    }
    assert_eq!(visible_to_readers().unwrap().span_id.to_bytes(), [7; 8]);
    thread_context()
        .set([8; 16], [8; 8], TraceFlags::NONE)
        .unwrap();
    assert_eq!((attached(), number()), (raw, Some(8)));
    thread_context().detach();
}

#[test]
fn a_new_record_has_no_bytes_of_freed_memory() {
    in_own_process("a_new_record_has_no_bytes_of_freed_memory", || {
        // What the allocator will reuse.
        let page = Layout::from_size_align(4096, 64).unwrap();
        let pages: Vec<_> = (0..8)
            .map(|_| {
                // SAFETY: the layout has a size, and the memory is as large.
                unsafe {
                    let page = alloc(page);
                    page.write_bytes(0xaa, 4096);
                    page
                }
            })
            .collect();
        for address in pages {
            // SAFETY: it was allocated with this layout.
            unsafe { dealloc(address, page) };
        }
        let raw = raw::thread_record().unwrap().as_ptr();
        // SAFETY: the record is this thread's, and the memory is initialized.
        let bytes = unsafe { raw.read() };
        // After the header, and the address by which a free record is found.
        assert_eq!(bytes[40..], [0; 640 - 40]);
    });
}

#[test]
fn a_size_that_a_runtime_writes_leads_nowhere_outside_of_the_record() {
    in_own_process(
        "a_size_that_a_runtime_writes_leads_nowhere_outside_of_the_record",
        || {
            static KEY: Key = Key::new("key");
            let _process = ProcessContext::new()
                .with_service_name("test")
                .publish()
                .unwrap();
            KEY.register().unwrap();
            let thread_context = thread_context();
            thread_context
                .set([1; 16], [1; 8], TraceFlags::NONE)
                .unwrap();
            let raw = raw::thread_record().unwrap().as_ptr().cast::<u8>();
            // What follows the record, to the end of the largest size.
            let others: Vec<_> = (0..120).map(|_| record(2).with_capacity(612)).collect();
            let after = || -> Vec<u8> {
                // SAFETY: a chunk of records is a page, and the first records are in it.
                unsafe { std::slice::from_raw_parts(raw.add(640), 640).to_vec() }
            };
            let before = after();
            for size in [613, 640, 700, u16::MAX] {
                // SAFETY: within the record, which is this thread's.
                unsafe { raw.add(26).cast::<u16>().write(size) };
                thread_context.append(&KEY, &"x".repeat(255));
                assert!(!append_current(&KEY, "late"), "{size}");
                assert_eq!(after(), before, "{size}");
                let attributes = visible_to_readers().unwrap().attributes;
                assert!(attributes.iter().all(|(key, _)| key == "key"), "{size}");
                thread_context.shrink_to(usize::MAX);
                assert!(thread_context.attributes_size() <= 612, "{size}");
            }
            thread_context
                .set([3; 16], [3; 8], TraceFlags::NONE)
                .unwrap();
            thread_context.append(&KEY, "value");
            assert_eq!(attributes(), [(0, "value".to_owned())]);
            thread_context.detach();
            drop(others);
        },
    );
}

#[test]
fn ids_of_zero_are_refused() {
    let flags = TraceFlags::SAMPLED;
    for (trace, span, zero) in [
        ([0; 16], [1; 8], ZeroId::TraceId),
        ([1; 16], [0; 8], ZeroId::SpanId),
        ([0; 16], [0; 8], ZeroId::TraceId),
    ] {
        assert_eq!(Context::new(trace, span).unwrap_err(), zero);
        let mut context = record(7);
        assert_eq!(context.set_ids(trace, span, flags), Err(zero));
        assert_eq!(context.copy_with_ids(trace, span, flags).unwrap_err(), zero);
        let mut shared = context.to_shared();
        assert_eq!(shared.copy_with_ids(trace, span, flags).unwrap_err(), zero);
        let other = record(8).share();
        let replaced = raw::replace_by_copy(&mut shared, &other, trace, span, flags);
        assert_eq!(replaced, Err(zero));
        for attach in [&mut context, &mut shared.to_context()] {
            let _attached = attach.attach();
            assert_eq!(number(), Some(7));
        }
        thread_context().set([9; 16], [9; 8], flags).unwrap();
        assert_eq!(thread_context().set(trace, span, flags), Err(zero));
        assert_eq!(number(), None, "the work before has ended");
    }
    let text = "zero is not an ID; for attributes alone, give neither ID";
    assert_eq!(ZeroId::TraceId.to_string(), format!("trace_id: {text}"));
    assert_eq!(ZeroId::SpanId.to_string(), format!("span_id: {text}"));
}

#[test]
fn a_context_without_ids_has_no_flags() {
    let flags = TraceFlags::SAMPLED;
    let mut expected = vec![0; 28];
    expected[24] = 1;
    let mut without = Context::without_ids().with_flags(flags);
    let mut cleared = record(1).with_flags(flags);
    cleared.clear_ids();
    for context in [&mut without, &mut cleared] {
        let _attached = context.attach();
        assert_eq!(bytes().unwrap(), expected);
    }
    thread_context().set_attributes(|_| ());
    assert_eq!(bytes().unwrap(), expected);
    thread_context().detach();
}

#[test]
fn the_thread_record_is_rewritten_in_place() {
    in_own_process("the_thread_record_is_rewritten_in_place", || {
        static ROOT: Key = Key::new("root");
        static ROUTE: Key = Key::new("route");
        let _process = ProcessContext::new()
            .with_service_name("test")
            .publish()
            .unwrap();
        let thread_context = thread_context();
        thread_context
            .set_with([1; 16], [2; 8], TraceFlags::SAMPLED, |attributes| {
                attributes.append_span_id(&ROOT, [0x0f; 8]);
                attributes.append(&ROUTE, "/cart");
            })
            .unwrap();
        let address = attached();
        let expected = [(0, "0f0f0f0f0f0f0f0f".to_owned()), (1, "/cart".to_owned())];
        assert_eq!(attributes(), expected);
        assert_eq!(bytes().unwrap()[24..26], [1, 1]);

        let mark = thread_context.attributes_size();
        thread_context.append(&ROUTE, "/");
        assert_eq!(attributes().last().unwrap(), &(1, "/".to_owned()));
        thread_context.shrink_to(mark);
        assert_eq!(attributes(), expected);
        thread_context.shrink_to(mark - 1);
        assert_eq!(attributes(), expected[..1]);

        thread_context
            .set([3; 16], [3; 8], TraceFlags::NONE)
            .unwrap();
        assert_eq!(
            (attached(), number(), attributes()),
            (address, Some(3), vec![])
        );

        // A guard that is alive when the thread's record is written leaves it there.
        let mut other = record(4);
        let guard = other.attach();
        thread_context
            .set([5; 16], [5; 8], TraceFlags::NONE)
            .unwrap();
        drop(guard);
        assert_eq!(number(), Some(5));
        thread_context.detach();
        assert!(attached().is_null());
    });
}

#[test]
fn nothing_valid_is_seen_while_the_thread_record_is_written() {
    let thread_context = thread_context();
    thread_context
        .set([1; 16], [1; 8], TraceFlags::NONE)
        .unwrap();
    thread_context
        .set_with([2; 16], [2; 8], TraceFlags::NONE, |_| {
            assert_eq!(number(), None)
        })
        .unwrap();
    assert_eq!(number(), Some(2));
    let panicked = std::panic::catch_unwind(|| {
        otelctx::thread_context()
            .set_with([3; 16], [3; 8], TraceFlags::NONE, |_| panic!("no"))
            .unwrap();
    });
    assert!(panicked.is_err());
    assert_eq!(number(), None);
    thread_context.detach();
}

#[test]
fn values_are_cut_on_a_character_and_what_does_not_fit_is_skipped() {
    in_own_process(
        "values_are_cut_on_a_character_and_what_does_not_fit_is_skipped",
        || {
            static KEY: Key = Key::new("key");
            let _process = ProcessContext::new()
                .with_service_name("test")
                .publish()
                .unwrap();
            for length in 0..=255 {
                let value: String = ('a'..='z').cycle().take(length).collect();
                let mut record = record(1).with_attribute(&KEY, &value);
                assert!(!record.is_truncated());
                let _guard = record.attach();
                assert_eq!(attributes(), [(0, value)]);
            }
            // 254 bytes, then a character of two.
            let long = "x".repeat(254) + "é";
            let mut cut = record(1).with_attribute(&KEY, &long);
            assert!(cut.is_truncated());
            let guard = cut.attach();
            assert_eq!(attributes(), [(0, "x".repeat(254))]);
            drop(guard);
            // 612 bytes in all: 2 + 255, twice, leave 98.
            let full = "y".repeat(255);
            let mut record = record(1)
                .with_attribute(&KEY, &full)
                .with_attribute(&KEY, &full);
            assert!(!record.is_truncated());
            record = record.with_attribute(&KEY, &"z".repeat(97));
            assert!(record.is_truncated());
            record = record.with_attribute(&KEY, &"z".repeat(96));
            let guard = record.attach();
            let lengths: Vec<_> = attributes().iter().map(|(_, value)| value.len()).collect();
            assert_eq!(lengths, [255, 255, 96]);
            guard.append(&KEY, "");
            assert_eq!(attributes().len(), 3);

            // Appending makes no room, because a guard may be alive; reserve() did.
            let small = Context::new([1; 16], [1; 8]).unwrap();
            small.append(&KEY, &"a".repeat(35));
            assert!(small.is_truncated());
            let large = Context::new([1; 16], [1; 8]).unwrap().with_capacity(37);
            large.append(&KEY, &"a".repeat(35));
            assert!(!large.is_truncated());

            thread_context()
                .set_with([1; 16], [1; 8], TraceFlags::NONE, |a| a.append(&KEY, &long))
                .unwrap();
            assert!(thread_context().is_truncated());
            thread_context()
                .set([1; 16], [1; 8], TraceFlags::NONE)
                .unwrap();
            assert!(!thread_context().is_truncated());
        },
    );
}

#[test]
fn a_key_is_used_once_it_is_published() {
    in_own_process("a_key_is_used_once_it_is_published", || {
        static EARLY: Key = Key::new("early");
        let unpublished = record(1).with_attribute(&EARLY, "value");
        assert!(unpublished.is_truncated());
        assert_eq!(unpublished.attributes_size(), 0);
        EARLY.register().unwrap();

        let process = ProcessContext::new()
            .with_service_name("test")
            .publish()
            .unwrap();
        let mut published = record(1).with_attribute(&EARLY, "value");
        let guard = published.attach();
        assert_eq!(attributes(), [(0, "value".to_owned())]);
        drop(guard);

        // Positions stay the same for every caller, also without a context.
        assert_eq!(Key::new("early").register(), Ok(()));
        drop(process);
        assert_eq!(
            record(1).with_attribute(&EARLY, "value").attributes_size(),
            7
        );
    });
}

#[test]
fn keys_can_be_made_at_run_time() {
    in_own_process("keys_can_be_made_at_run_time", || {
        static KNOWN: Key = Key::new("known");
        let early = Key::from_string("early".to_owned()).unwrap();
        assert_eq!((early.name(), early.index()), ("early", None));

        let _process = ProcessContext::new()
            .with_max_payload_size(300)
            .publish()
            .unwrap();
        KNOWN.register().unwrap();
        assert_eq!(early.index(), Some(0));
        assert_eq!(KNOWN.index(), Some(1));
        // One name is one key, however it was made, and its memory is kept once.
        let known = Key::from_string("known".to_owned()).unwrap();
        assert_eq!(known.index(), Some(1));
        assert_eq!(known.name().as_ptr(), KNOWN.name().as_ptr());

        let shared = record(1)
            .with_attribute(&early, "a")
            .with_attribute(&known, "b")
            .share();
        let guard = shared.attach();
        assert_eq!(attributes(), [(0, "a".to_owned()), (1, "b".to_owned())]);
        drop(guard);

        // What does not fit gets no position, and its name comes back.
        let long = "n".repeat(300);
        match Key::from_string(long.clone()) {
            Err(KeyError::Update { name, error }) => {
                assert_eq!(name, long);
                assert!(matches!(error, PublishError::TooLarge { limit: 300, .. }));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(Key::new("next").register(), Ok(()));
        assert_eq!(
            Key::from_string("next".to_owned()).unwrap().index(),
            Some(2)
        );
        assert!(matches!(
            Key::from_string(String::new()),
            Err(KeyError::Empty)
        ));
    });
}

#[test]
fn there_is_room_for_256_keys_and_a_clear_error_above() {
    in_own_process("there_is_room_for_256_keys_and_a_clear_error_above", || {
        let _process = ProcessContext::new()
            .with_service_name("test")
            .publish()
            .unwrap();
        assert_eq!(Key::new("").register(), Err(KeyError::Empty));
        let name = |number: usize| -> &'static str { format!("key {number}").leak() };
        // Several threads register the same names at once, and each name gets one position.
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 0..256 {
                        Key::new(name(number)).register().unwrap();
                    }
                });
            }
        });
        let last = Key::new(name(255));
        let mut record = record(1).with_attribute(&last, "x");
        let guard = record.attach();
        assert_eq!(attributes().len(), 1);
        drop(guard);

        let one_more = Key::new("one more");
        assert_eq!(
            one_more.register(),
            Err(KeyError::Full {
                name: "one more".to_owned()
            })
        );
        match Key::from_string("and another".to_owned()) {
            Err(KeyError::Full { name }) => assert_eq!(name, "and another"),
            other => panic!("{other:?}"),
        }
        assert_eq!(
            Key::from_string("key 255".to_owned()).unwrap().index(),
            last.index()
        );
        let without = Context::new([1; 16], [1; 8])
            .unwrap()
            .with_attribute(&one_more, "x");
        assert!(without.is_truncated());
        assert_eq!(without.attributes_size(), 0);
    });
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for shorter in permutations(count - 1) {
        for at in 0..count {
            let mut order = shorter.clone();
            order.insert(at, count - 1);
            all.push(order);
        }
    }
    all
}

#[test]
fn an_attribute_that_is_removed_leaves_the_others() {
    in_own_process("an_attribute_that_is_removed_leaves_the_others", || {
        static ROUTE: Key = Key::new("http.route");
        static USER: Key = Key::new("user.id");
        static ABSENT: Key = Key::new("absent");
        let _process = ProcessContext::new()
            .with_service_name("shop")
            .publish()
            .unwrap();
        let record = Context::new([1; 16], [2; 8])
            .unwrap()
            .with_sampled(true)
            .with_attribute(&ROUTE, "/first")
            .with_attribute(&USER, "4711")
            .with_attribute(&ROUTE, "/second")
            .without_attribute(&ABSENT)
            .without_attribute(&ROUTE);
        assert_eq!(record.attributes_size(), 2 + "4711".len());
        let mut record = record.with_attribute(&ROUTE, "/third");
        let _attached = record.attach();
        let context = otelctx::visible_to_readers().unwrap();
        assert_eq!(context.trace_id, [1; 16].into());
        assert_eq!(context.trace_flags, TraceFlags::SAMPLED);
        let expected = [("user.id", "4711"), ("http.route", "/third")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(context.attributes, expected);
    });
}

#[test]
fn a_handle_uses_its_memory_again_if_it_is_the_only_one() {
    in_own_process(
        "a_handle_uses_its_memory_again_if_it_is_the_only_one",
        || {
            static ROUTE: Key = Key::new("http.route");
            let _process = ProcessContext::new()
                .with_service_name("shop")
                .publish()
                .unwrap();
            let long = "x".repeat(300);
            let from = Context::new([1; 16], [1; 8])
                .unwrap()
                .with_attribute(&ROUTE, &long)
                .share();
            assert!(from.is_truncated());
            let mut handle = Context::new([2; 16], [2; 8]).unwrap().share();
            let small = raw::record_of(&handle);
            raw::replace_by_copy(&mut handle, &from, [3; 16], [3; 8], TraceFlags::SAMPLED).unwrap();
            assert_ne!(raw::record_of(&handle), small, "there was no room");
            let large = raw::record_of(&handle);
            raw::replace_by_copy(&mut handle, &from, [4; 16], [4; 8], TraceFlags::NONE).unwrap();
            assert_eq!(raw::record_of(&handle), large);
            let other = handle.clone();
            raw::replace_by_copy(&mut handle, &from, [5; 16], [5; 8], TraceFlags::SAMPLED).unwrap();
            assert_ne!(raw::record_of(&handle), large, "another handle has it");
            for (handle, byte, flags) in [
                (&other, 4, TraceFlags::NONE),
                (&handle, 5, TraceFlags::SAMPLED),
            ] {
                assert_eq!(handle.trace_id(), [byte; 16].into());
                assert_eq!(handle.span_id(), [byte; 8].into());
                assert_eq!(handle.flags(), flags);
                assert!(handle.is_truncated());
                let _attached = handle.attach();
                let attributes = otelctx::visible_to_readers().unwrap().attributes;
                assert_eq!(
                    attributes,
                    [("http.route".to_owned(), long[..255].to_owned())]
                );
            }
        },
    );
}
