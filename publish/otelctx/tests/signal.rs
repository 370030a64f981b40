//! A signal handler that attaches and detaches between any two instructions.

#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

mod common;

use std::arch::asm;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use common::{attached, number};
use otelctx::{thread_context, Context, SharedContext, TraceFlags};

static PREPARED: AtomicPtr<Context> = AtomicPtr::new(ptr::null_mut());
static SHARED: AtomicPtr<SharedContext> = AtomicPtr::new(ptr::null_mut());
static SLOT: AtomicPtr<*mut u8> = AtomicPtr::new(ptr::null_mut());
static RUNS: AtomicUsize = AtomicUsize::new(0);
static FAILURES: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_trap(_signal: libc::c_int) {
    // SAFETY: the record and the slot are those of the one thread that traps.
    unsafe {
        let slot = SLOT.load(Ordering::Relaxed);
        let record = &mut *PREPARED.load(Ordering::Relaxed);
        let before = slot.read_volatile();
        let attached = record.attach();
        let seen = slot.read_volatile();
        let shared = (*SHARED.load(Ordering::Relaxed)).attach();
        let second = slot.read_volatile();
        let right = seen != before && *seen == 9 && second != seen && *second == 8;
        drop(shared);
        drop(attached);
        if !right || slot.read_volatile() != before {
            FAILURES.fetch_add(1, Ordering::Relaxed);
        }
    }
    RUNS.fetch_add(1, Ordering::Relaxed);
}

/// Runs `body` with a trap after each of its instructions. Returns how many there were.
fn step_by_step(body: impl FnOnce()) -> usize {
    let before = RUNS.load(Ordering::Relaxed);
    // SAFETY: sets and clears the trap flag (bit 8 of the flags).
    unsafe {
        asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq");
    }
    body();
    // SAFETY: as above.
    unsafe {
        asm!("pushfq", "and qword ptr [rsp], ~0x100", "popfq");
    }
    assert_eq!(FAILURES.load(Ordering::Relaxed), 0);
    RUNS.load(Ordering::Relaxed) - before
}

#[test]
fn a_handler_between_any_two_instructions_leaves_the_slot_as_it_was() {
    let mut prepared = Context::new([9; 16], [9; 8]).unwrap();
    PREPARED.store(&raw mut prepared, Ordering::Relaxed);
    let mut shared = Context::new([8; 16], [8; 8]).unwrap().share();
    SHARED.store(&raw mut shared, Ordering::Relaxed);
    SLOT.store(common::slot(), Ordering::Relaxed);
    // SAFETY: the handler does nothing but attach, detach and count.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_trap as extern "C" fn(libc::c_int) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGTRAP, &raw const action, ptr::null_mut()),
            0
        );
    }

    let (mut outer, mut inner) = (
        Context::new([1; 16], [1; 8]).unwrap(),
        Context::new([2; 16], [2; 8]).unwrap(),
    );
    let mut seen = [None; 4];
    let steps = step_by_step(|| {
        let first = outer.attach();
        seen[0] = unsafe_number();
        let second = inner.attach();
        seen[1] = unsafe_number();
        drop(second);
        seen[2] = unsafe_number();
        drop(first);
        seen[3] = unsafe_number();
    });
    assert!(steps > 20, "{steps}");
    assert_eq!(seen, [Some(1), Some(2), Some(1), None]);
    assert!(attached().is_null());

    // Out of order, and while the thread's own record is made and written.
    let steps = step_by_step(|| {
        let first = outer.attach();
        let second = inner.attach();
        drop(first);
        seen[0] = unsafe_number();
        drop(second);
        seen[1] = unsafe_number();
        thread_context()
            .set([3; 16], [3; 8], TraceFlags::NONE)
            .unwrap();
        seen[2] = unsafe_number();
        thread_context().detach();
    });
    assert!(steps > 200, "{steps}");
    assert_eq!(seen[..3], [Some(2), None, Some(3)]);
    assert_eq!(number(), None);

    // Shared records, of which the thread keeps a list.
    let shared = [4, 5, 6].map(|number| Context::new([number; 16], [number; 8]).unwrap().share());
    let of_handler = {
        // SAFETY: nothing traps here.
        let _attached = unsafe { (*SHARED.load(Ordering::Relaxed)).attach() };
        attached()
    };
    let mut addresses = [ptr::null_mut(); 4];
    step_by_step(|| {
        let mut guards = [None, None, None];
        for (at, guard) in guards.iter_mut().enumerate() {
            *guard = Some(shared[at].attach());
            addresses[at] = attached_now();
        }
        // Attached already, so that a copy is: the list still has it.
        let again = shared[0].attach();
        addresses[3] = attached_now();
        drop(again);
        // The first of the list leaves before the others.
        guards[0] = None;
        guards[2] = None;
        guards[1] = None;
    });
    assert_ne!(addresses[0], addresses[3], "one record attached twice");
    assert!(attached().is_null());
    // The list is empty again: all of them are attached themselves.
    for (shared, address) in shared.iter().zip(addresses) {
        let _attached = shared.attach();
        assert_eq!(attached(), address);
    }
    // SAFETY: nothing traps here.
    let _attached = unsafe { (*SHARED.load(Ordering::Relaxed)).attach() };
    assert_eq!(attached(), of_handler);
}

/// What the slot holds, without the work of finding it at each step.
fn attached_now() -> *mut u8 {
    // SAFETY: the slot is this thread's.
    unsafe { SLOT.load(Ordering::Relaxed).read_volatile() }
}

/// The number of the attached record, without the work of a reader at each step.
fn unsafe_number() -> Option<u8> {
    let record = attached_now();
    // SAFETY: the slot holds a record or null.
    (!record.is_null()).then(|| unsafe { *record })
}
