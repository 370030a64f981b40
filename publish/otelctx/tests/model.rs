//! Interleavings of everything that writes the slot: the guards of records and of shared ones,
//! owned and forgotten guards, swaps, the record that is rewritten in place, attributes that are
//! appended, and another publisher.
//!
//! After each step the slot must hold nothing to read, or the record of a living holder; and a
//! record of a holder must be the one that it made, whatever memory was used again since. While no
//! other publisher has a record attached, the slot must show the latest record that is attached.

#![cfg(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
))]

mod common;

use std::collections::HashMap;
use std::mem;
use std::thread;

use common::{attached, bytes, in_own_process, slot};
use otelctx::{
    append_current, raw, raw::set_current, raw::swap_current, thread_context, Attached,
    AttachedOwned, AttachedShared, Context, Key, ProcessContext, SharedContext, TraceFlags,
};

const SEQUENCES: u64 = 300;
const STEPS: usize = 600;

static FIRST: Key = Key::new("first");
static LATE: Key = Key::new("late");

/// xorshift64*, so that a failure can be repeated by its seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// The number of the record in the slot, which is also its ids; `None` for nothing to read.
fn shown() -> Option<u64> {
    let bytes = bytes()?;
    let number = u64::from_ne_bytes(bytes[16..24].try_into().unwrap());
    assert_eq!(bytes[..8], bytes[16..24], "a record of two halves");
    // Each record has its number as its first attribute, too.
    if bytes.len() > 28 && bytes[28] == 0 {
        let length = usize::from(bytes[29]);
        assert_eq!(bytes[30..30 + length], *number.to_string().as_bytes());
    }
    Some(number)
}

fn ids(number: u64) -> ([u8; 16], [u8; 8]) {
    let half = number.to_ne_bytes();
    let mut trace_id = [0; 16];
    trace_id[..8].copy_from_slice(&half);
    (trace_id, half)
}

fn record(number: u64) -> Context {
    let (trace_id, span_id) = ids(number);
    Context::new(trace_id, span_id)
        .unwrap()
        .with_attribute(&FIRST, &number.to_string())
}

enum Guard {
    /// With the record, which is dropped after it.
    Own(Attached<'static>, *mut Context),
    Shared(AttachedShared<'static>, *mut SharedContext),
    Owned(AttachedOwned),
}

#[repr(align(64))]
struct Foreign {
    bytes: [u8; 64],
}

struct Model {
    random: Random,
    last: u64,
    /// How many holders a number has.
    living: HashMap<u64, usize>,
    records: Vec<(u64, *mut Context)>,
    handles: Vec<(u64, SharedContext)>,
    /// With the number of the record and that of the attachment.
    guards: Vec<(u64, Guard, u64)>,
    /// Records whose guard was forgotten, with the number of the attachment.
    forgotten: Vec<(u64, *mut Context, u64)>,
    /// What is attached, by the number of the attachment, and what it shows: the last one is in the
    /// slot. Without number, what was written without a guard.
    chain: Vec<(Option<u64>, Option<u64>)>,
    /// Whether another publisher may have changed the chain.
    interfered: bool,
    current: Option<u64>,
    /// The handle of the current record if the thread has no reference.
    kept: Option<SharedContext>,
    in_place: Option<u64>,
    /// The other publisher's record, and what it will restore.
    foreign: Vec<(*mut Foreign, *mut u8, Option<u64>)>,
}

impl Model {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn hold(&mut self, number: u64) {
        *self.living.entry(number).or_default() += 1;
    }

    fn release(&mut self, number: u64) {
        *self.living.get_mut(&number).unwrap() -= 1;
    }

    fn written(&mut self, shown: Option<u64>) {
        self.chain = shown.map(|_| (None, shown)).into_iter().collect();
        self.interfered = false;
    }

    fn detached(&mut self, attachment: u64) {
        self.chain.retain(|(number, _)| *number != Some(attachment));
    }

    fn is_foreign(&self) -> bool {
        // SAFETY: the records are never freed.
        let address = |record: *mut Foreign| unsafe { (&raw mut (*record).bytes).cast() };
        let mut records = self.foreign.iter();
        records.any(|(record, ..)| address(*record) == attached())
    }

    fn handle(&mut self) -> (u64, SharedContext) {
        if self.handles.is_empty() || self.random.below(3) == 0 {
            let number = self.number();
            self.handles.push((number, record(number).share()));
        }
        let at = self.random.below(self.handles.len());
        let (number, shared) = &self.handles[at];
        (*number, shared.clone())
    }

    fn swap(&mut self, new: Option<(u64, SharedContext)>) {
        let number = new.as_ref().map(|(number, _)| *number);
        if number.is_some() || !self.interfered {
            self.written(number);
        }
        if number.is_none() && self.is_foreign() {
            // What the other publisher's record lies over is restored after all.
            self.current.into_iter().for_each(|old| self.hold(old));
        }
        let before = swap_current(new.map(|(_, shared)| shared));
        self.kept = None;
        assert_eq!(before.is_some(), self.current.is_some());
        if number.is_some() {
            assert_eq!(shown(), number, "what was swapped in is shown");
        }
        if let (Some(old), Some(before)) = (self.current, before) {
            let copy = before
                .copy_with_ids(ids(old).0, ids(old).1, TraceFlags::NONE)
                .unwrap();
            assert_eq!(copy.attributes_size(), 2 + old.to_string().len());
            self.release(old);
            if self.random.below(2) == 0 {
                self.handles.push((old, before));
            }
        }
        self.current = number;
        if let Some(number) = number {
            self.hold(number);
        }
    }

    fn set(&mut self, new: Option<(u64, SharedContext)>) {
        let (number, handle) = new.unzip();
        if number.is_some() || !self.interfered {
            self.written(number);
        }
        if number.is_none() && self.is_foreign() {
            self.current.into_iter().for_each(|old| self.hold(old));
        }
        // SAFETY: the handle is kept until the next one is set or swapped in.
        unsafe { set_current(handle.as_ref()) };
        self.kept = handle;
        if number.is_some() {
            assert_eq!(shown(), number, "what was set is shown");
        }
        let current = raw::current().map(|record| record.span_id());
        assert_eq!(current, number.map(|number| ids(number).1.into()));
        if let Some(old) = std::mem::replace(&mut self.current, number) {
            self.release(old);
        }
        if let Some(number) = number {
            self.hold(number);
        }
    }

    fn attach(&mut self) {
        let attachment = self.number();
        let number = match self.random.below(3) {
            0 => {
                let (number, record) = match self.records.pop() {
                    Some(known) if self.random.below(2) == 0 => known,
                    known => {
                        self.records.extend(known);
                        let number = self.number();
                        (number, Box::into_raw(Box::new(record(number))))
                    }
                };
                // SAFETY: the record lives until its guard was dropped or forgotten.
                let guard = unsafe { (*record).attach() };
                self.guards
                    .push((number, Guard::Own(guard, record), attachment));
                number
            }
            1 => {
                let (number, shared) = self.handle();
                let shared = Box::into_raw(Box::new(shared));
                // SAFETY: as above.
                let guard = unsafe { (*shared).attach() };
                self.guards
                    .push((number, Guard::Shared(guard, shared), attachment));
                number
            }
            _ => {
                let (number, shared) = self.handle();
                let guard = shared.attach_owned();
                self.guards.push((number, Guard::Owned(guard), attachment));
                number
            }
        };
        self.hold(number);
        self.chain.push((Some(attachment), Some(number)));
        assert_eq!(shown(), Some(number), "what was attached is shown");
    }

    fn drop_guard(&mut self) {
        if self.guards.is_empty() {
            return;
        }
        // The last one, or any.
        let at = match self.random.below(3) {
            0 => self.random.below(self.guards.len()),
            _ => self.guards.len() - 1,
        };
        let (number, guard, attachment) = self.guards.remove(at);
        self.detached(attachment);
        let before = shown();
        if !self.foreign.is_empty() && !matches!(guard, Guard::Own(..)) {
            // A later guard that the other publisher restores does not learn of this: it restores
            // a shared record whose guard was dropped, which is kept alive for that.
            self.hold(number);
        }
        match guard {
            Guard::Own(guard, record) => {
                drop(guard);
                self.records.push((number, record));
            }
            Guard::Shared(guard, shared) => {
                drop(guard);
                // SAFETY: made by attach().
                drop(unsafe { Box::from_raw(shared) });
            }
            Guard::Owned(guard) => drop(guard),
        }
        self.release(number);
        if before != Some(number) {
            assert_eq!(shown(), before, "the record of another one stays");
        }
    }

    fn forget_guard(&mut self) {
        let Some((number, guard, attachment)) = self.guards.pop() else {
            return;
        };
        // It counts as attached for good, unless its record is dropped.
        match guard {
            Guard::Own(guard, record) => {
                mem::forget(guard);
                self.forgotten.push((number, record, attachment));
            }
            Guard::Shared(guard, shared) => {
                mem::forget(guard);
                // SAFETY: made by attach().
                drop(unsafe { Box::from_raw(shared) });
            }
            Guard::Owned(guard) => mem::forget(guard),
        }
    }

    fn drop_record(&mut self) {
        if let Some((number, record, attachment)) = self.forgotten.pop() {
            self.detached(attachment);
            match self.random.below(3) {
                // Attached again, its guard not forgotten this time.
                0 => {
                    // SAFETY: as above.
                    let guard = unsafe { (*record).attach() };
                    self.chain.push((Some(attachment), Some(number)));
                    let guard = Guard::Own(guard, record);
                    return self.guards.push((number, guard, attachment));
                }
                _ => {
                    // SAFETY: made by attach().
                    drop(unsafe { Box::from_raw(record) });
                    self.release(number);
                }
            }
        }
        if let Some((_, record)) = self.records.pop() {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(record) });
        }
        if !self.handles.is_empty() {
            let at = self.random.below(self.handles.len());
            self.handles.swap_remove(at);
        }
    }

    fn write_in_place(&mut self) {
        if let Some(old) = self.in_place.take() {
            self.release(old);
        }
        if self.random.below(3) == 0 {
            if let Some((None, shown)) = self.chain.first_mut() {
                *shown = self.current.filter(|current| *shown == Some(*current));
            }
            return thread_context().detach();
        }
        let number = self.number();
        let (trace_id, span_id) = ids(number);
        thread_context()
            .set_with(trace_id, span_id, TraceFlags::NONE, |attributes| {
                attributes.append(&FIRST, &number.to_string());
            })
            .unwrap();
        self.in_place = Some(number);
        self.written(Some(number));
        self.hold(number);
        assert_eq!(shown(), Some(number));
    }

    fn append(&mut self) {
        let before = shown();
        let foreign = self.is_foreign();
        let length = bytes().map_or(0, |bytes| bytes.len());
        let value = "x".repeat(self.random.below(40));
        if append_current(&LATE, &value) {
            assert!(before.is_some() && !foreign);
            assert_eq!(bytes().unwrap().len(), length + 2 + value.len());
        }
        assert_eq!(shown(), before);
    }

    /// Another publisher, which restores what it has replaced if nobody wrote the slot meanwhile.
    fn foreign(&mut self) {
        let top = self.foreign.last().copied();
        match top {
            Some((record, previous, number)) if self.random.below(2) == 0 => {
                self.foreign.pop();
                if attached() == record.cast() {
                    // SAFETY: the slot is this thread's.
                    unsafe { slot().write_volatile(previous) };
                    if let Some(number) = number {
                        // Whatever became of it, it is the record of that number, or none.
                        self.hold(number);
                        assert!([None, Some(number)].contains(&shown()));
                    }
                }
            }
            _ => {
                let number = self.number();
                let mut bytes = [0; 64];
                let (trace_id, span_id) = ids(number);
                bytes[..16].copy_from_slice(&trace_id);
                bytes[16..24].copy_from_slice(&span_id);
                bytes[24] = 1;
                let record = Box::into_raw(Box::new(Foreign { bytes }));
                self.foreign.push((record, attached(), shown()));
                self.hold(number);
                self.interfered = true;
                // SAFETY: the slot is this thread's, and the record is never freed.
                unsafe { slot().write_volatile(record.cast()) };
            }
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=4 => self.attach(),
            5..=9 => self.drop_guard(),
            10 => self.forget_guard(),
            11 | 12 => self.drop_record(),
            13 | 14 => {
                let new = self.handle();
                match self.random.below(2) {
                    0 => self.swap(Some(new)),
                    _ => self.set(Some(new)),
                }
            }
            15 => match self.random.below(2) {
                0 => self.swap(None),
                _ => self.set(None),
            },
            16 => self.write_in_place(),
            17 | 18 => self.append(),
            _ => self.foreign(),
        }
        if attached().is_null() {
            // What another publisher would restore after that is not kept.
            self.foreign.clear();
            if self.interfered {
                self.written(None);
            }
        }
        if !self.interfered {
            let latest = self.chain.last().and_then(|(_, shown)| *shown);
            assert_eq!(shown(), latest, "{:?}", self.chain);
        }
        if let Some(number) = shown() {
            let holders = self.living.get(&number).copied();
            assert!(holders > Some(0), "{number} is shown, which nobody holds");
        }
    }

    fn end(mut self) {
        while !self.guards.is_empty() {
            self.drop_guard();
        }
        self.set(None);
        while !(self.forgotten.is_empty() && self.records.is_empty() && self.handles.is_empty()) {
            self.drop_record();
        }
        for (_, guard, _) in self.guards.drain(..) {
            if let Guard::Own(guard, record) = guard {
                drop(guard);
                // SAFETY: made by attach().
                drop(unsafe { Box::from_raw(record) });
            }
        }
    }
}

#[test]
fn the_slot_holds_nothing_or_the_record_of_a_living_holder() {
    in_own_process(
        "the_slot_holds_nothing_or_the_record_of_a_living_holder",
        || {
            let _process = ProcessContext::new()
                .with_service_name("model")
                .publish()
                .unwrap();
            FIRST.register().unwrap();
            LATE.register().unwrap();
            for seed in 1..=SEQUENCES {
                let sequence = thread::spawn(move || {
                    let mut model = Model {
                        random: Random(seed),
                        last: 0,
                        living: HashMap::new(),
                        records: Vec::new(),
                        handles: Vec::new(),
                        guards: Vec::new(),
                        forgotten: Vec::new(),
                        chain: Vec::new(),
                        interfered: false,
                        current: None,
                        kept: None,
                        in_place: None,
                        foreign: Vec::new(),
                    };
                    for _ in 0..STEPS {
                        model.step();
                    }
                    model.end();
                });
                assert!(sequence.join().is_ok(), "seed {seed}");
            }
        },
    );
}
