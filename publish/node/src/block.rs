//! The records of contexts, and the list of all that an environment has.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ptr;
use std::sync::atomic::{Ordering, compiler_fence};

use otelctx_format::record::{HEADER_SIZE, RECOMMENDED_SIZE, VALID, offset};

use crate::environment::Environment;
use crate::v8::GlobalSlot;

/// Largest size of a record's attributes, in bytes.
pub(crate) const MAX_ATTRIBUTES: usize = RECOMMENDED_SIZE - HEADER_SIZE;
/// Room that the first block has. Most contexts have few attributes.
const FIRST_CAPACITY: usize = 64;

/// Memory with a record. The object of the context has the address of the record.
#[repr(C)]
pub(crate) struct Block {
    /// The environment of the context.
    pub(crate) environment: *const Environment,
    /// The slot with the object, weak.
    pub(crate) object: GlobalSlot,
    previous: *mut Block,
    next: *mut Block,
    /// Size that the record can grow to, in bytes.
    capacity: u32,
    /// Its context stands for one of OpenTelemetry's API.
    is_bridged: bool,
    // The record follows.
}

/// Offset of the record in a block, in bytes.
const RECORD: usize = size_of::<Block>();

/// The blocks of an environment.
pub(crate) struct Blocks {
    first: Cell<*mut Block>,
}

impl Block {
    /// Returns a block with this record, whose header is made valid, with the attributes' size.
    pub(crate) fn new(
        environment: *const Environment,
        record: &[u8],
        is_bridged: bool,
    ) -> *mut Self {
        let capacity = record.len().max(FIRST_CAPACITY) as u32;
        let block = Self::allocate(Self {
            environment,
            object: ptr::null_mut(),
            previous: ptr::null_mut(),
            next: ptr::null_mut(),
            capacity,
            is_bridged,
        });
        let attributes = (record.len() - HEADER_SIZE) as u16;
        // SAFETY: the block has room for the record, and is known to nobody yet.
        unsafe {
            let to = Self::record(block);
            ptr::copy_nonoverlapping(record.as_ptr(), to, record.len());
            *to.add(offset::VALID) = VALID;
            ptr::write_unaligned(to.add(offset::ATTRIBUTES_SIZE).cast(), attributes);
        }
        block
    }

    fn layout(capacity: u32) -> Layout {
        // Both are small constants or bounded by `RECOMMENDED_SIZE`.
        Layout::from_size_align(RECORD + capacity as usize, align_of::<Self>())
            .expect("a small size")
    }

    fn allocate(block: Self) -> *mut Self {
        let layout = Self::layout(block.capacity);
        // SAFETY: the size is not 0, and a block is what the memory is for.
        unsafe {
            let memory: *mut Self = alloc::alloc(layout).cast();
            if memory.is_null() {
                alloc::handle_alloc_error(layout);
            }
            memory.write(block);
            memory
        }
    }

    /// # Safety
    /// The block is from [`Self::new`] or [`Self::successor`], was not freed, and no reader can
    /// find it.
    pub(crate) unsafe fn free(block: *mut Self) {
        // SAFETY: it was allocated with this layout.
        unsafe { alloc::dealloc(block.cast(), Self::layout((*block).capacity)) };
    }

    /// Returns the record of a block.
    pub(crate) fn record(block: *mut Self) -> *mut u8 {
        block.cast::<u8>().wrapping_add(RECORD)
    }

    /// Returns the block of a record.
    pub(crate) fn of(record: *mut u8) -> *mut Self {
        record.wrapping_sub(RECORD).cast()
    }

    /// Size of the record, in bytes.
    ///
    /// # Safety
    /// The block was not freed.
    pub(crate) unsafe fn size(block: *mut Self) -> usize {
        // SAFETY: the caller passes a block that was not freed.
        let attributes: u16 =
            unsafe { ptr::read_unaligned(Self::record(block).add(offset::ATTRIBUTES_SIZE).cast()) };
        HEADER_SIZE + usize::from(attributes)
    }

    /// Returns the record's bytes.
    ///
    /// # Safety
    /// The block was not freed; nothing changes the record while the bytes are used.
    pub(crate) unsafe fn bytes<'a>(block: *mut Self) -> &'a [u8] {
        // SAFETY: the caller passes a block that was not freed, and keeps its record unchanged.
        unsafe { std::slice::from_raw_parts(Self::record(block), Self::size(block)) }
    }

    /// Appends attributes, if the block has room. Readers see the record before or after that.
    ///
    /// # Safety
    /// The block was not freed.
    pub(crate) unsafe fn append(block: *mut Self, attributes: &[u8]) -> bool {
        // SAFETY: the caller passes a block that was not freed; the new bytes are within it.
        unsafe {
            let size = Self::size(block);
            let new = size + attributes.len();
            if new > (*block).capacity as usize {
                return false;
            }
            let record = Self::record(block);
            let from = attributes.as_ptr();
            ptr::copy_nonoverlapping(from, record.add(size), attributes.len());
            compiler_fence(Ordering::SeqCst);
            // The record's address is a multiple of eight.
            let to = record.add(offset::ATTRIBUTES_SIZE).cast::<u16>();
            ptr::write_volatile(to, (new - HEADER_SIZE) as u16);
        }
        true
    }

    /// Returns a block in place of this one in the list. It has the first bytes of the record, with
    /// its header at least, and these attributes behind them.
    ///
    /// # Safety
    /// The block was not freed.
    pub(crate) unsafe fn successor(
        block: *mut Self,
        kept: usize,
        attributes: &[u8],
        blocks: &Blocks,
    ) -> *mut Self {
        // SAFETY: the caller passes a block that was not freed; the new one has room for all bytes.
        unsafe {
            let capacity = (2 * (*block).capacity as usize)
                .max(kept + attributes.len())
                .min(RECOMMENDED_SIZE);
            let new = Self::allocate(Self {
                capacity: capacity as u32,
                ..block.read()
            });
            let record = Self::record(new);
            ptr::copy_nonoverlapping(Self::record(block), record, kept);
            let size = record.add(offset::ATTRIBUTES_SIZE).cast();
            ptr::write_unaligned(size, (kept - HEADER_SIZE) as u16);
            blocks.remove(block);
            blocks.add(new);
            Self::append(new, attributes);
            new
        }
    }

    /// Makes readers ignore the record.
    ///
    /// # Safety
    /// The block was not freed.
    pub(crate) unsafe fn invalidate(block: *mut Self) {
        // SAFETY: the caller passes a block that was not freed.
        unsafe { ptr::write_volatile(Self::record(block).add(offset::VALID), 0) };
    }

    /// Replaces the trace flags. A record without IDs has none.
    ///
    /// # Safety
    /// The block was not freed.
    pub(crate) unsafe fn set_trace_flags(block: *mut Self, flags: u8) {
        // SAFETY: the caller passes a block that was not freed.
        unsafe {
            if Self::bytes(block)[..offset::VALID] != [0; offset::VALID] {
                ptr::write_volatile(Self::record(block).add(offset::TRACE_FLAGS), flags);
            }
        }
    }
}

impl Blocks {
    pub(crate) const fn new() -> Self {
        Self {
            first: Cell::new(ptr::null_mut()),
        }
    }

    /// # Safety
    /// The block is in no list; it and all blocks in this list are valid.
    pub(crate) unsafe fn add(&self, block: *mut Block) {
        // SAFETY: the caller passes a block that is in no list; all blocks in this one are valid.
        unsafe {
            (*block).previous = ptr::null_mut();
            let next = self.first.replace(block);
            (*block).next = next;
            if !next.is_null() {
                (*next).previous = block;
            }
        }
    }

    /// # Safety
    /// The block is in this list, in which all blocks are valid.
    pub(crate) unsafe fn remove(&self, block: *mut Block) {
        // SAFETY: the caller passes a block of this list, in which all blocks are valid.
        unsafe {
            let (previous, next) = ((*block).previous, (*block).next);
            if previous.is_null() {
                self.first.set(next)
            } else {
                (*previous).next = next
            }
            if !next.is_null() {
                (*next).previous = previous;
            }
        }
    }

    /// Makes readers ignore all records whose contexts stand for contexts of OpenTelemetry's API.
    ///
    /// # Safety
    /// All blocks in this list are valid.
    pub(crate) unsafe fn invalidate_bridged(&self) {
        let mut block = self.first.get();
        while !block.is_null() {
            // SAFETY: it is in the list.
            unsafe {
                if (*block).is_bridged {
                    Block::invalidate(block);
                }
                block = (*block).next;
            }
        }
    }

    /// Takes a block from the list.
    ///
    /// # Safety
    /// All blocks in this list are valid.
    pub(crate) unsafe fn pop(&self) -> Option<*mut Block> {
        let first = self.first.get();
        (!first.is_null()).then(|| {
            // SAFETY: it is in the list.
            unsafe { self.remove(first) };
            first
        })
    }
}
