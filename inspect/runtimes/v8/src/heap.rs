//! Objects in V8's heap.
//!
//! Whatever is read may be garbage: the collector moves objects, and a word can be anything. Each object is used only if its
//! map says that it is of the expected type.

use otelctx_reader::remote::Memory;

use crate::layout::Layout;

/// Addresses of objects are below this one.
const END_OF_MEMORY: u64 = 1 << 47;

/// The address of an object in V8's heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Object(u64);

impl Object {
    /// The object that a strong reference refers to. `None` for other words.
    pub(crate) fn strong(word: u64) -> Option<Self> {
        let is_one = word & 3 == 1 && word < END_OF_MEMORY;
        is_one.then(|| Object(word - 1))
    }

    /// [`Self::strong`], or a weak reference.
    pub(crate) fn strong_or_weak(word: u64) -> Option<Self> {
        Self::strong(word & !2)
    }

    /// The object at an address.
    pub(crate) fn at(address: u64) -> Self {
        Object(address)
    }

    pub(crate) fn address(self) -> u64 {
        self.0
    }
}

/// The number in a word that is a small integer.
pub(crate) fn small_integer(word: u64) -> Option<i32> {
    (word & 0xffff_ffff == 0).then_some((word >> 32) as i32)
}

/// The heap of a process.
#[derive(Clone, Copy)]
pub(crate) struct Heap<'m> {
    pub(crate) memory: &'m dyn Memory,
    pub(crate) layout: &'m Layout,
}

impl Heap<'_> {
    /// A word of an object.
    pub(crate) fn word(&self, object: Object, offset: u64) -> Option<u64> {
        self.memory.read_u64(object.0.wrapping_add(offset)).ok()
    }

    pub(crate) fn u32_at(&self, object: Object, offset: u64) -> Option<u32> {
        self.memory.read_u32(object.0.wrapping_add(offset)).ok()
    }

    /// An object's field that is a small integer.
    pub(crate) fn integer(&self, object: Object, offset: u64) -> Option<i32> {
        small_integer(self.word(object, offset)?)
    }

    /// The object to which an object's field refers.
    pub(crate) fn object(&self, object: Object, offset: u64) -> Option<Object> {
        Object::strong(self.word(object, offset)?)
    }

    /// The type of an object, by its map.
    pub(crate) fn instance_type(&self, object: Object) -> Option<u16> {
        let map = self.object(object, 0)?;
        let at = map.0.wrapping_add(self.layout.map_type);
        self.memory.read_u16(at).ok()
    }

    /// An object if it is of this type.
    pub(crate) fn of_type(&self, object: Object, wanted: u16) -> Option<Object> {
        (self.instance_type(object)? == wanted).then_some(object)
    }

    /// A function to which a word of the stack refers. The collector may have moved it since the stack was copied: then it
    /// has left the new address in the map's place.
    pub(crate) fn function(&self, word: u64) -> Option<Object> {
        let types = &self.layout.types.function;
        let is_function = |object: &Object| {
            let found = self.instance_type(*object);
            found.is_some_and(|it| types.contains(&it))
        };
        let object = Object::strong(word)?;
        let moved = || {
            let address = self.word(object, 0)?;
            let is_address = address & 3 == 0 && (1..END_OF_MEMORY).contains(&address);
            is_address.then_some(Object(address))
        };
        let found = Some(object).filter(is_function);
        found.or_else(|| moved().filter(is_function))
    }

    /// An element of a fixed array.
    pub(crate) fn element(&self, array: Object, index: u64) -> Option<u64> {
        let length = self.integer(array, Layout::ARRAY_LENGTH)?;
        let length = u64::try_from(length).ok()?;
        if index >= length {
            return None;
        }
        self.word(array, Layout::ARRAY_DATA + 8 * index)
    }

    /// The number of bytes in an array of bytes.
    pub(crate) fn byte_length(&self, array: Object) -> Option<u64> {
        let is_array = |kind| self.layout.types.byte_arrays.contains(&kind);
        self.instance_type(array).filter(|kind| is_array(*kind))?;
        let length = self.integer(array, Layout::ARRAY_LENGTH)?;
        u64::try_from(length).ok()
    }

    /// The bytes of an array of bytes, if there are at most `limit`.
    pub(crate) fn bytes(&self, array: Object, limit: usize) -> Option<Vec<u8>> {
        let length = self.byte_length(array)?;
        let at = array.0.wrapping_add(Layout::ARRAY_DATA);
        self.memory.read_vec(at, length, limit).ok()
    }
}
