//! What a reader finds that stops the thread between any two instructions.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::arch::asm;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use common::{bytes, in_own_process};
use otelctx::{
    append_current, raw, raw::set_current, raw::swap_current, thread_context, Context, Key,
    ProcessContext, SharedContext, TraceFlags,
};

static SLOT: AtomicPtr<*mut u8> = AtomicPtr::new(ptr::null_mut());
static ALLOWED: AtomicPtr<[Vec<u8>; 3]> = AtomicPtr::new(ptr::null_mut());
static READS: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);

/// Reads as a reader does: nothing attached, a record to ignore, or bytes that are allowed.
extern "C" fn read(_signal: libc::c_int) {
    READS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the slot is that of the one thread that traps; whatever is in it is a record.
    unsafe {
        let record = SLOT.load(Ordering::Relaxed).read_volatile();
        if record.is_null() || record.add(24).read_volatile() != 1 {
            return;
        }
        let size = record.add(26).cast::<u16>().read_volatile();
        let seen = slice::from_raw_parts(record, 28 + usize::from(size));
        if !(*ALLOWED.load(Ordering::Relaxed))
            .iter()
            .any(|one| one == seen)
        {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs `step` twice: to learn what is to be seen before and after, and with a read after each
/// instruction. `step` leaves the thread as `prepare` finds it.
fn at_any_instruction<T>(name: &str, prepare: impl Fn() -> T, step: impl Fn(&mut T)) {
    at_any_instruction_or(name, &[], prepare, step);
}

/// The same for a step of two parts, with `between` visible between them.
fn at_any_instruction_or<T>(
    name: &str,
    between: &[u8],
    prepare: impl Fn() -> T,
    step: impl Fn(&mut T),
) {
    let mut subject = prepare();
    let before = bytes().unwrap_or_default();
    step(&mut subject);
    let mut allowed = [before, bytes().unwrap_or_default(), between.to_vec()];
    drop(subject);
    ALLOWED.store(&raw mut allowed, Ordering::Relaxed);

    let mut subject = prepare();
    let reads = READS.load(Ordering::Relaxed);
    // SAFETY: sets and clears the trap flag (bit 8 of the flags).
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    step(&mut subject);
    // SAFETY: as above.
    unsafe { asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq") };
    assert!(READS.load(Ordering::Relaxed) > reads + 5, "{name}");
    assert_eq!(WRONG.load(Ordering::Relaxed), 0, "{name}");
    assert_eq!(bytes().unwrap_or_default(), allowed[1], "{name}");
}

#[test]
fn a_reader_sees_the_old_record_or_the_new_one_or_none() {
    in_own_process(
        "a_reader_sees_the_old_record_or_the_new_one_or_none",
        || {
            static KEY: Key = Key::new("key");
            let _process = ProcessContext::new().publish().unwrap();
            KEY.register().unwrap();
            SLOT.store(common::slot(), Ordering::Relaxed);
            // SAFETY: the handler does nothing but read and count.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = read as extern "C" fn(libc::c_int) as usize;
                let set = libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut());
                assert_eq!(set, 0);
            }
            let record = |number: u8| {
                Context::new([number; 16], [number; 8])
                    .unwrap()
                    .with_attribute(&KEY, "value")
            };
            let long = "x".repeat(200);

            let swap_and_set = || {
                at_any_instruction(
                    "swap a shared record for another one",
                    || {
                        drop(swap_current(Some(record(3).share())));
                        Some(record(4).share())
                    },
                    |next| *next = swap_current(next.take()),
                );
                at_any_instruction(
                    "swap out",
                    || drop(swap_current(Some(record(3).share()))),
                    |()| drop(swap_current(None)),
                );
                // Sets a record that nobody drops.
                let set = |record: Option<&'static SharedContext>| {
                    // SAFETY: the handle exists for the rest of the process, and `replace_by_copy` is not called on it.
                    unsafe { set_current(record) };
                };
                let [three, four] = [record(3), record(4).with_attribute(&KEY, &long)]
                    .map(|record| &*Box::leak(Box::new(record.share())));
                at_any_instruction(
                    "set a kept record in place of another one",
                    || set(Some(three)),
                    |()| set(Some(four)),
                );
                at_any_instruction(
                    "set none in place of a kept record",
                    || set(Some(three)),
                    |()| set(None),
                );
                at_any_instruction(
                    "set a kept record in place of the thread's",
                    || drop(swap_current(Some(record(5).share()))),
                    |()| set(Some(four)),
                );
                at_any_instruction(
                    "swap a kept record for the thread's",
                    || set(Some(three)),
                    |()| drop(swap_current(Some(record(5).share()))),
                );
                let flags = TraceFlags::SAMPLED;
                at_any_instruction(
                    "replace a detached record by a copy of the current one, and set it",
                    || {
                        set(Some(four));
                        let unused: &'static mut SharedContext =
                            Box::leak(Box::new(record(5).with_attribute(&KEY, &long).share()));
                        Some(unused)
                    },
                    |unused| {
                        let unused = unused.take().unwrap();
                        raw::replace_by_copy(unused, four, [6; 16], [6; 8], flags).unwrap();
                        set(Some(unused));
                    },
                );
                at_any_instruction(
                    "replace the handle of the current record by a copy of another one",
                    || {
                        let handle = record(5).with_attribute(&KEY, &long).share();
                        drop(swap_current(Some(handle.clone())));
                        handle
                    },
                    |handle| {
                        let current = bytes();
                        raw::replace_by_copy(handle, three, [6; 16], [6; 8], flags).unwrap();
                        assert_eq!(bytes(), current);
                    },
                );
                set(Some(three));
                let between = bytes().unwrap();
                at_any_instruction_or(
                    "replace the record that another one was swapped for, and swap it in again",
                    &between,
                    || {
                        drop(swap_current(Some(
                            record(5).with_attribute(&KEY, &long).share(),
                        )))
                    },
                    |()| {
                        let mut before = swap_current(Some(three.clone())).unwrap();
                        raw::replace_by_copy(&mut before, three, [6; 16], [6; 8], flags).unwrap();
                        drop(swap_current(Some(before)));
                    },
                );
                drop(swap_current(None));
            };
            // With no guard that was forgotten, and below with some.
            swap_and_set();
            at_any_instruction(
                "attach",
                || record(1),
                |record| std::mem::forget(record.attach()),
            );
            at_any_instruction(
                "attach another and detach it; build and drop others",
                || {
                    let mut below = record(1);
                    std::mem::forget(below.attach());
                    (below, record(1))
                },
                |(_, above)| {
                    drop(above.attach());
                    drop(record(3).with_attribute(&KEY, &long));
                    drop(record(4).share());
                },
            );
            at_any_instruction(
                "append",
                || {
                    let mut record = record(2).with_capacity(600);
                    std::mem::forget(record.attach());
                    record
                },
                |record| record.append(&KEY, &long),
            );
            at_any_instruction(
                "shrink",
                || {
                    let mut record = record(2);
                    std::mem::forget(record.attach());
                    record
                },
                |record| record.shrink_to(0),
            );
            let empty = [&[2; 24][..], &[1, 0, 0, 0]].concat();
            at_any_instruction_or(
                "shrink, append",
                &empty,
                || {
                    let mut record = record(2).with_capacity(600);
                    std::mem::forget(record.attach());
                    record
                },
                |record| {
                    record.shrink_to(0);
                    record.append(&KEY, "other");
                },
            );
            swap_and_set();
            at_any_instruction(
                "append to a shared record",
                || drop(swap_current(Some(record(3).share()))),
                |()| assert!(append_current(&KEY, &long)),
            );
            at_any_instruction(
                "drop a guard over what was appended",
                || {
                    drop(swap_current(Some(record(3).share())));
                    assert!(append_current(&KEY, &long));
                    record(3).share()
                },
                |shared| {
                    std::mem::forget(shared.attach());
                },
            );
            drop(swap_current(None));
            at_any_instruction(
                "new ids for a record whose guard was forgotten",
                || {
                    let mut record = record(2);
                    std::mem::forget(record.attach());
                    record
                },
                |record| {
                    record
                        .set_ids([3; 16], [3; 8], TraceFlags::SAMPLED)
                        .unwrap()
                },
            );
            at_any_instruction(
                "drop a record whose guard was forgotten, and use its memory",
                || {
                    let mut record = record(2);
                    std::mem::forget(record.attach());
                    Some(record)
                },
                |record| {
                    *record = None;
                    *record = Some(Context::new([9; 16], [9; 8]).unwrap());
                },
            );
            at_any_instruction(
                "drop guards out of order",
                || [record(1), record(1)],
                |[first, second]| {
                    let one = first.attach();
                    let two = second.attach();
                    drop(one);
                    drop(two);
                    std::mem::forget(first.attach());
                },
            );
            at_any_instruction(
                "append out of order",
                || [record(1), record(1)],
                |[first, second]| {
                    let one = first.attach();
                    let two = second.attach();
                    drop(one);
                    two.append(&KEY, &long);
                    std::mem::forget(two);
                },
            );
            at_any_instruction(
                "rewrite the thread's record",
                || {
                    thread_context()
                        .set_with([5; 16], [5; 8], TraceFlags::NONE, |a| a.append(&KEY, "old"))
                        .unwrap()
                },
                |()| {
                    thread_context()
                        .set_with([6; 16], [6; 8], TraceFlags::SAMPLED, |a| {
                            a.append(&KEY, "new");
                            a.append_span_id(&KEY, [7; 8]);
                        })
                        .unwrap();
                },
            );
            at_any_instruction(
                "append to the thread's record",
                || {
                    thread_context()
                        .set([5; 16], [5; 8], TraceFlags::NONE)
                        .unwrap()
                },
                |()| thread_context().append(&KEY, "later"),
            );
            let empty = [&[5; 24][..], &[1, 0, 0, 0]].concat();
            at_any_instruction_or(
                "shrink the thread's record, append",
                &empty,
                || {
                    thread_context()
                        .set_with([5; 16], [5; 8], TraceFlags::NONE, |a| a.append(&KEY, "old"))
                        .unwrap()
                },
                |()| {
                    thread_context().shrink_to(0);
                    thread_context().append(&KEY, "other");
                },
            );
            at_any_instruction(
                "detach the thread's record and reuse it",
                || {
                    thread_context()
                        .set([5; 16], [5; 8], TraceFlags::NONE)
                        .unwrap()
                },
                |()| {
                    thread_context().detach();
                    thread_context().append(&KEY, "later");
                },
            );
        },
    );
}
