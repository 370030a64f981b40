//! What threads leave behind when they end.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::mem;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::thread;

use common::{attached, number, slot};
use otelctx::{
    raw::swap_current, thread_context, AttachedShared, Context, SharedContext, TraceFlags,
};

/// Counts what is allocated for records: they alone are aligned to 64 bytes.
struct Counting;

static RECORD_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() == 64 {
            RECORD_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        if layout.align() == 64 {
            RECORD_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
            // What a reader would take for a record if it still looked.
            // SAFETY: the memory is of that size.
            unsafe { address.write_bytes(0xaa, layout.size()) };
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn record(number: u8) -> Context {
    Context::new([number; 16], [number; 8]).unwrap()
}

fn in_thread(body: impl FnOnce() + Send + 'static) {
    thread::spawn(body).join().unwrap();
}

// One test, because what it counts belongs to the process.
#[test]
fn a_thread_that_ends_leaves_no_memory_of_records() {
    let before = RECORD_BYTES.load(Ordering::Relaxed);
    let left = move || RECORD_BYTES.load(Ordering::Relaxed) - before;
    for _ in 0..50 {
        in_thread(|| {
            let mut records: Vec<_> = (0..200).map(|_| record(1).with_capacity(600)).collect();
            let (first, rest) = records.split_at_mut(1);
            let early = first[0].attach();
            let late = rest[0].attach();
            drop(early);
            drop(late);
            thread_context()
                .set([1; 16], [1; 8], TraceFlags::NONE)
                .unwrap();
        });
        assert_eq!(left(), 0);
        // Still attached, and never detached.
        in_thread(|| mem::forget(record(1).attach()));
        in_thread(|| {
            let (mut first, mut second) = (record(1), record(2));
            let early = first.attach();
            mem::forget(second.attach());
            drop(early);
        });
        assert_eq!(left(), 0);
    }

    thread_local! {
        static LATE: RefCell<Option<Late>> = const { RefCell::new(None) };
    }
    struct Late(Context);
    impl Drop for Late {
        fn drop(&mut self) {
            // The pool's own destructor has run: it was registered later.
            let mut another = record(4);
            let outer = self.0.attach();
            assert_eq!(number(), Some(3));
            let inner = another.attach();
            drop(outer);
            assert_eq!(number(), Some(4));
            drop(inner);
            thread_context()
                .set([5; 16], [5; 8], TraceFlags::NONE)
                .unwrap();
            assert!(attached().is_null());
        }
    }
    for _ in 0..50 {
        in_thread(|| {
            LATE.with(|_| ());
            LATE.set(Some(Late(record(3))));
        });
        assert_eq!(left(), 0);
    }

    // A guard that outlives the pool does not restore what was in it.
    thread_local! {
        static GUARD: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    struct Guard(Option<AttachedShared<'static>>);
    impl Drop for Guard {
        fn drop(&mut self) {
            drop(self.0.take());
            assert!(attached().is_null(), "the slot points at freed memory");
        }
    }
    let lasting: &SharedContext = Box::leak(Box::new(record(7).share()));
    let before_guards = left();
    for _ in 0..50 {
        in_thread(|| {
            GUARD.with(|_| ());
            thread_context()
                .set([8; 16], [8; 8], TraceFlags::NONE)
                .unwrap();
            GUARD.set(Some(Guard(Some(lasting.attach()))));
        });
        assert_eq!(left(), before_guards);
    }

    // The same while another publisher's record is above it, and is detached first.
    thread_local! {
        static HIDDEN: RefCell<Option<Hidden>> = const { RefCell::new(None) };
    }
    struct Hidden(Option<AttachedShared<'static>>, *mut u8);
    impl Drop for Hidden {
        fn drop(&mut self) {
            // SAFETY: the slot is this thread's, and a shared record that has a handle.
            unsafe { slot().write(self.1) };
            drop(self.0.take());
            assert!(attached().is_null(), "the slot points at freed memory");
        }
    }
    in_thread(|| {
        static FOREIGN: [u8; 64] = [0; 64];
        HIDDEN.with(|_| ());
        thread_context()
            .set([8; 16], [8; 8], TraceFlags::NONE)
            .unwrap();
        let guard = lasting.attach();
        HIDDEN.set(Some(Hidden(Some(guard), attached())));
        // SAFETY: the slot is this thread's, and what is in it says that it is to be ignored.
        unsafe { slot().write(FOREIGN.as_ptr().cast_mut()) };
    });

    // The current record is released, and nothing is attached afterwards.
    thread_local! {
        static SWAPS: RefCell<Option<Swaps>> = const { RefCell::new(None) };
    }
    struct Swaps;
    impl Drop for Swaps {
        fn drop(&mut self) {
            assert!(attached().is_null());
            assert!(swap_current(Some(record(1).share())).is_none());
            assert!(attached().is_null());
        }
    }
    let before_swaps = left();
    for _ in 0..50 {
        in_thread(|| {
            SWAPS.with(|_| ());
            SWAPS.set(Some(Swaps));
            assert!(swap_current(Some(record(1).share())).is_none());
            mem::forget(record(2).share().attach_owned());
        });
    }
    // The first two threads at most had blocks made; the others used them again.
    assert!(
        left() - before_swaps <= 3 * 128,
        "{}",
        left() - before_swaps
    );

    // Guards that find another publisher's record each time, for as long as the thread runs.
    in_thread(move || {
        static FOREIGN: [u8; 64] = [0; 64];
        for _ in 0..100_000 {
            let mut record = record(9);
            let guard = record.attach();
            // SAFETY: the slot is this thread's, and what is in it says that it is to be ignored.
            unsafe { slot().write(FOREIGN.as_ptr().cast_mut()) };
            drop(guard);
        }
        assert!(left() < 200_000, "{} bytes", left());
    });

    // The same for records that are swapped in; the other publisher restores each.
    let before_foreign = left();
    in_thread(move || {
        static FOREIGN: [u8; 64] = [0; 64];
        for _ in 0..5_000 {
            swap_current(Some(record(9).share()));
            let replaced = attached();
            // SAFETY: the slot is this thread's, and what is in it says that it is to be ignored.
            unsafe { slot().write(FOREIGN.as_ptr().cast_mut()) };
            drop(swap_current(None));
            // SAFETY: as above; what was replaced stays a record.
            unsafe { slot().write(replaced) };
        }
        assert!(
            left() - before_foreign < 200_000,
            "{} bytes",
            left() - before_foreign
        );
    });

    // Shared records: as much memory as there ever were at once, and no more.
    let share = || record(6).share();
    drop(share());
    let once = left();
    for _ in 0..100 {
        let shared: SharedContext = share();
        let elsewhere = shared.clone();
        thread::spawn(move || drop(elsewhere.attach()))
            .join()
            .unwrap();
        drop(shared);
    }
    // This thread's own pool is the rest.
    assert_eq!(left(), once);
}
