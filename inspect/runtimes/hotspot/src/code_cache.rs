//! The memory with all code that HotSpot has generated: heaps of code blobs.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;

use otelctx_reader::remote::{GeneratedEnd, Memory, MemoryError};

use crate::layout::{Heaps, Layout, Object, read_int};
use crate::tables::c_string;

/// Maximum number of heaps: three where the code cache is segmented.
const MAX_HEAPS: u64 = 16;
/// Maximum size of a heap, in bytes: the code cache has at most 2 GiB.
const MAX_HEAP: u64 = 4 << 30;
/// Maximum number of steps back through a segment map. A step takes up to 254 segments, of which the largest method has
/// some thousand.
const MAX_STEPS: usize = 256;
/// Bytes read of a blob that is no method: a few members.
const BLOB_SIZE: u64 = 128;
/// Maximum size of a frame, in words: the stack of a thread has a megabyte.
const MAX_FRAME_WORDS: u64 = 1 << 20;
/// Maximum number of names that are kept. There are some hundred kinds of blobs.
const MAX_NAMES: usize = 4096;

/// One heap of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heap {
    start: u64,
    end: u64,
    segment_map: u64,
    segment_shift: u32,
}

impl Heap {
    fn contains(&self, address: u64) -> bool {
        self.range().contains(&address)
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.end
    }
}

/// The heaps of a process, which are reserved when it starts and stay.
#[derive(Debug)]
pub(crate) struct CodeCache {
    pub(crate) heaps: Vec<Heap>,
    /// The kinds of blobs by the addresses of their names.
    kinds: Mutex<HashMap<u64, Kind>>,
}

/// A kind of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A compiled method.
    Method,
    /// The code that calls a method's native function.
    Native,
    Interpreter,
    /// Code between a call and a method, without a frame.
    Adapter,
    /// Code that selects a method by the receiver's class, without a frame.
    Dispatch,
    /// The end of a virtual thread's frames that are on this stack: others are in the heap.
    Barrier,
    /// Code of the virtual machine with this name.
    Stub(String),
}

impl Kind {
    fn of(name: String) -> Self {
        match name.as_str() {
            "nmethod" => Self::Method,
            "native nmethod" => Self::Native,
            "Interpreter" => Self::Interpreter,
            // "vtable chunks"
            name if name.starts_with("vtable") => Self::Dispatch,
            name if name.contains("adapters") || name.starts_with("I2C") => Self::Adapter,
            name if name.starts_with("StubRoutines (cont") => Self::Barrier,
            _ => Self::Stub(name),
        }
    }

    pub(crate) fn is_method(&self) -> bool {
        matches!(self, Self::Method | Self::Native)
    }
}

/// One piece of code, with its description.
#[derive(Debug)]
pub(crate) struct Blob {
    pub(crate) object: Object,
    pub(crate) kind: Kind,
    /// The addresses of its code.
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Size of its frame, in bytes, with the return address. 0 for code with frames of several sizes.
    pub(crate) frame_size: u64,
    /// The first address at which its frame is complete. `None` if it has none.
    pub(crate) frame_complete: Option<u64>,
}

impl CodeCache {
    /// Finds the heaps. `None` if the virtual machine has not made them yet.
    pub(crate) fn read(memory: &dyn Memory, layout: &Layout) -> Result<Option<Self>, MemoryError> {
        let objects = match layout.heaps {
            Heaps::One(pointer) => vec![memory.read_u64(pointer)?],
            Heaps::Array(pointer, length, data) => {
                let array = memory.read_u64(pointer)?;
                if array == 0 {
                    return Ok(None);
                }
                let length = read_int(memory, array, length)?.min(MAX_HEAPS);
                let data = memory.read_u64(array.wrapping_add(data))?;
                let address = |index| data.wrapping_add(8 * index);
                let objects = (0..length).map(|index| memory.read_u64(address(index)));
                objects.collect::<Result<_, _>>()?
            }
        };
        let of = &layout.heap;
        let mut heaps = Vec::new();
        for object in objects.into_iter().filter(|object| *object != 0) {
            let word = |offset: u64| memory.read_u64(object.wrapping_add(offset));
            let shift = read_int(memory, object, of.segment_shift)?;
            let heap = Heap {
                start: word(of.start)?,
                end: word(of.end)?,
                segment_map: word(of.segment_map)?,
                segment_shift: u32::try_from(shift).unwrap_or(u32::MAX),
            };
            let size = heap.end.checked_sub(heap.start);
            if size.is_some_and(|size| (1..=MAX_HEAP).contains(&size)) && heap.segment_shift < 16 {
                heaps.push(heap);
            }
        }
        Ok((!heaps.is_empty()).then(|| Self {
            heaps,
            kinds: Mutex::default(),
        }))
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.heaps.iter().any(|heap| heap.contains(address))
    }

    /// Returns the address of the blob that an address is in.
    pub(crate) fn blob_address(
        &self,
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
    ) -> Result<u64, GeneratedEnd> {
        const FREE: u8 = 0xff;
        let no_code = GeneratedEnd::Unexpected("there is no code at its address");
        let heap = self.heaps.iter().find(|heap| heap.contains(address));
        let heap = heap.ok_or(no_code)?;
        let mut segment = (address - heap.start) >> heap.segment_shift;
        for _ in 0..MAX_STEPS {
            // `CodeHeap::find_block_for`: 0 is the first segment of a blob, others lead towards it.
            match memory.read_u8(heap.segment_map.wrapping_add(segment))? {
                FREE => return Err(no_code),
                0 => {
                    let start = heap.start + (segment << heap.segment_shift);
                    return Ok(start.wrapping_add(layout.heap.header));
                }
                back => segment = segment.checked_sub(back.into()).ok_or(no_code)?,
            }
        }
        Err(no_code)
    }

    /// Reads the blob that an address is in.
    pub(crate) fn blob(
        &self,
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
    ) -> Result<Blob, GeneratedEnd> {
        let start = self.blob_address(memory, layout, address)?;
        let blob = self.read_blob(memory, layout, start)?;
        match (blob.start..blob.end).contains(&address) {
            true => Ok(blob),
            false => Err(GeneratedEnd::Unexpected("its address is in no code")),
        }
    }

    /// Reads the blob at an address.
    pub(crate) fn read_blob(
        &self,
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
    ) -> Result<Blob, GeneratedEnd> {
        let of = &layout.blob;
        // One read for all members of a method, the most frequent kind.
        let size = layout.nmethod.size.max(BLOB_SIZE);
        let object = Object::read(memory, address, size)
            // The last blob of a heap may be smaller.
            .or_else(|_| Object::read(memory, address, BLOB_SIZE))?;
        let kind = self.kind(memory, object.int(of.name))?;
        let start = object.place(of.code_start, address);
        let complete = u64::try_from(object.signed(of.frame_complete)).ok();
        let frame_size = u64::try_from(object.signed(of.frame_size)).unwrap_or(0);
        Ok(Blob {
            start,
            end: object.place(of.code_end, address),
            frame_size: frame_size.min(MAX_FRAME_WORDS) * 8,
            frame_complete: complete.map(|complete| start.wrapping_add(complete)),
            object,
            kind,
        })
    }

    fn kind(&self, memory: &dyn Memory, name: u64) -> Result<Kind, MemoryError> {
        let mut kinds = self.kinds.lock().unwrap_or_else(|error| error.into_inner());
        if let Some(kind) = kinds.get(&name) {
            return Ok(kind.clone());
        }
        let kind = Kind::of(c_string(memory, name)?);
        if kinds.len() < MAX_NAMES {
            kinds.insert(name, kind.clone());
        }
        Ok(kind)
    }
}
