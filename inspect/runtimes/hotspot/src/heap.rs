//! Objects in Java's heap: references to them, and the texts of strings.
//!
//! Collectors move objects while they are read. What is read counts only if the references that lead to it are the same
//! afterwards. That is not enough: collectors that compact the heap change all references before they move the first object, and
//! those of ZGC lead to other objects for a while. So a text is only what may be one, until something else confirms it.

use otelctx_reader::remote::Memory;

use crate::fields::fields;
use crate::layout::{Layout, Threads, ZPointers};

/// Maximum size of a text, in bytes as it is in memory: one or two for each character.
const MAX_TEXT: u32 = 512;
/// Compact headers have the number of the class in the highest bits of their only word (`markWord::klass_shift`).
const COMPACT_HEADER: u64 = 8;
const COMPACT_CLASS_SHIFT: u32 = 42;
/// Size of a header with the address of a class.
const WIDE_HEADER: u64 = 16;
/// The first version whose arrays begin right behind their length.
const DENSE_ARRAYS: u32 = 23;
/// What describes the layout of arrays of numbers, in the highest bits (`Klass::_lh_array_tag_type_value`), and above the logarithm
/// of an element's size the kind of the elements (`BasicType`): bytes, or UTF-16.
const NUMBERS: u64 = 3 << 30;
const BYTES: u64 = 8 << 8;
const CHARS: u64 = 5 << 8 | 1;

/// How objects are laid out in one process: it depends on options and the size of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Objects {
    /// The address of the class of strings.
    string_class: u64,
    /// Size of an object's header, in bytes. An array has its length there.
    header: u64,
    /// The offset of an array's first element.
    elements: u64,
    /// References have four bytes.
    is_narrow: bool,
    /// The offset of the name in a thread.
    pub(crate) name: u64,
    /// The offsets of a string's array, and of the byte that says how that is encoded. JDK 8 has none: elements are UTF-16.
    value: u64,
    coder: Option<u64>,
}

/// A reference, and where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// The reference itself, as it is in memory.
    raw: u64,
    pub(crate) object: u64,
}

/// The state of references of ZGC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Colors {
    /// Another collector.
    None,
    /// Before generations: bits of addresses, all of which lead to the object.
    Address { bad: u64 },
    /// With generations: bits below the address, of which one is set. The address's place depends on which one.
    Pointer { good: u64, bad: u64, shift: u64 },
}

impl Colors {
    /// Reads them. They change while garbage is collected.
    pub(crate) fn read(memory: &dyn Memory, of: &[ZPointers]) -> Option<Self> {
        for pointers in of {
            let globals = memory.read_u64(pointers.globals).ok()?;
            let value = |at: u64| {
                let variable = memory.read_u64(globals.wrapping_add(at)).ok()?;
                memory.read_u64(variable).ok()
            };
            // Those of a collector that is not used are 0.
            let bad = value(pointers.bad)?;
            if bad == 0 {
                continue;
            }
            return Some(match pointers.good_and_shift {
                None => Self::Address { bad },
                Some((good, shift)) => Self::Pointer {
                    good: value(good)?,
                    bad,
                    shift: value(shift)?,
                },
            });
        }
        Some(Self::None)
    }

    /// Decodes a reference of eight bytes.
    pub(crate) fn decode(self, raw: u64) -> Option<Reference> {
        let object = match self {
            Self::None | Self::Address { .. } => raw,
            Self::Pointer { good, bad, shift } => {
                let color = raw & (good | bad);
                if !color.is_power_of_two() {
                    return None;
                }
                let shift = shift + u64::from(color.trailing_zeros());
                let shift = shift.checked_sub(good.trailing_zeros().into())?;
                raw.checked_shr(shift.try_into().ok()?)?
            }
        };
        (object != 0).then_some(Reference { raw, object })
    }
}

impl Objects {
    /// `None` until the classes of threads and strings are there.
    pub(crate) fn read(memory: &dyn Memory, layout: &Layout, of: &Threads) -> Option<Self> {
        let class = |at: u64| memory.read_u64(at).ok().filter(|it| *it != 0);
        let string_class = class(of.string_class)?;
        let of_thread = fields(memory, layout, &of.fields, class(of.thread_class)?)?;
        let of_string = fields(memory, layout, &of.fields, string_class)?;
        let named = |name: &'static str| move |it: &&crate::fields::ClassField| it.name == name;
        let value = of_string.iter().find(named("value"))?.at;
        let coder = of_string.iter().find(named("coder")).map(|it| it.at);
        // Fields fill the space behind the header.
        let header = of_string.iter().map(|it| it.at).min()?;
        let elements = match header {
            COMPACT_HEADER => 12,
            12 => 16,
            WIDE_HEADER if layout.major >= DENSE_ARRAYS => 20,
            WIDE_HEADER => 24,
            _ => return None,
        };
        // The references in a thread are side by side.
        let mut references: Vec<u64> = of_thread
            .iter()
            .filter(|it| it.is_reference)
            .map(|it| it.at)
            .collect();
        references.sort_unstable();
        let distances = references.windows(2).map(|pair| pair[1] - pair[0]);
        let is_narrow = match distances.min()? {
            4 => true,
            8 => false,
            _ => return None,
        };
        Some(Self {
            string_class,
            header,
            elements,
            is_narrow,
            name: of_thread.iter().find(named("name"))?.at,
            value,
            coder,
        })
    }

    /// Reads the reference in an object.
    pub(crate) fn reference(
        &self,
        memory: &dyn Memory,
        of: &Threads,
        colors: Colors,
        at: u64,
    ) -> Option<Reference> {
        if !self.is_narrow {
            return colors.decode(memory.read_u64(at).ok()?);
        }
        let raw = u64::from(memory.read_u32(at).ok()?);
        let object = decompressed(memory, of.narrow, raw)?;
        (raw != 0).then_some(Reference { raw, object })
    }

    /// Reads the text of a string. `None` if there is no string with an array, it is longer than [`MAX_TEXT`], or it was moved.
    pub(crate) fn text(
        &self,
        memory: &dyn Memory,
        of: &Threads,
        colors: Colors,
        string: u64,
    ) -> Option<String> {
        if self.class(memory, of, string)? != self.string_class {
            return None;
        }
        let value_at = string.wrapping_add(self.value);
        let value = self.reference(memory, of, colors, value_at)?;
        let elements = match self.coder {
            None => CHARS,
            Some(_) => BYTES,
        };
        let array_class = self.class(memory, of, value.object)?;
        let array_layout = memory.read_u32(array_class.wrapping_add(of.class_layout));
        if u64::from(array_layout.ok()?) != NUMBERS | self.elements << 16 | elements {
            return None;
        }
        let coder = self.coder.map(|at| memory.read_u8(string.wrapping_add(at)));
        let is_latin = match coder {
            None => false,
            Some(Ok(coder @ (0 | 1))) => coder == 0,
            Some(_) => return None,
        };
        let length = memory.read_u32(value.object.wrapping_add(self.header));
        let of_char = if self.coder.is_none() { 2 } else { 1 };
        let bytes = length.ok()?.saturating_mul(of_char);
        let elements = value.object.wrapping_add(self.elements);
        let bytes = memory.read_vec(elements, bytes.into(), MAX_TEXT as usize);
        let text = decode(&bytes.ok()?, is_latin);
        (self.reference(memory, of, colors, value_at)? == value).then_some(text)
    }

    /// The address of an object's class.
    fn class(&self, memory: &dyn Memory, of: &Threads, object: u64) -> Option<u64> {
        let at = object.wrapping_add(8);
        let number = match self.header {
            COMPACT_HEADER => memory.read_u64(object).ok()? >> COMPACT_CLASS_SHIFT,
            WIDE_HEADER => return memory.read_u64(at).ok(),
            _ => memory.read_u32(at).ok()?.into(),
        };
        decompressed(memory, of.narrow_class, number)
    }
}

/// The address of a compressed one. `variables` are the addresses of the base and of the shift.
fn decompressed(memory: &dyn Memory, variables: (u64, u64), number: u64) -> Option<u64> {
    let base = memory.read_u64(variables.0).ok()?;
    let shift = memory.read_u32(variables.1).ok()?;
    Some(base.wrapping_add(number.checked_shl(shift)?))
}

fn decode(bytes: &[u8], is_latin: bool) -> String {
    if is_latin {
        return bytes.iter().map(|byte| char::from(*byte)).collect();
    }
    let (units, _) = bytes.as_chunks::<2>();
    let units: Vec<u16> = units.iter().map(|it| u16::from_le_bytes(*it)).collect();
    String::from_utf16_lossy(&units)
}

#[cfg(test)]
mod tests {
    use otelctx_reader::remote::memory::Image;

    use super::*;
    use crate::layout::ThreadList;

    #[test]
    fn references_of_zgc_lead_to_objects_in_each_phase() {
        let decode = |colors: Colors, raw| Some(colors.decode(raw)?.object);
        assert_eq!(decode(Colors::None, 0x1230), Some(0x1230));
        assert_eq!(decode(Colors::None, 0), None);
        let addresses = Colors::Address { bad: 3 << 42 };
        let (bad, good) = (1 << 42 | 0x1230, 4 << 42 | 0x1230);
        assert_eq!(decode(addresses, good), Some(good));
        assert_eq!(decode(addresses, bad), Some(bad));
        // `ZPointerLoadShift` is 14 where the second of the four bits is good.
        let pointers = Colors::Pointer {
            good: 1 << 13,
            bad: 0b1101 << 12,
            shift: 14,
        };
        let raw = |bit: u32| 0x4000_1230 << (bit + 1) | 1 << bit | 0x30;
        assert_eq!(decode(pointers, raw(13)), Some(0x4000_1230));
        assert_eq!(decode(pointers, raw(15)), Some(0x4000_1230));
        // The lowest bit of the address is in the way of no other color.
        assert_eq!(decode(pointers, raw(12)), Some(0x4000_1230));
        assert_eq!(decode(pointers, 0x4000 << 16), None);
        assert_eq!(decode(pointers, 0), None);
    }

    /// Where a string is in memory, its array, and their classes.
    const STRING: u64 = 0x1000;
    const ARRAY: u64 = 0x2000;
    const STRING_CLASS: u64 = 0x3000;
    const ARRAY_CLASS: u64 = 0x4000;

    /// Reads the text of a string whose array has this length and these bytes, in a class with this layout.
    fn text(coder: Option<u8>, length: u32, bytes: &[u8], layout: u64) -> Option<String> {
        let objects = Objects {
            string_class: STRING_CLASS,
            header: WIDE_HEADER,
            elements: 24,
            is_narrow: false,
            name: 0,
            value: 16,
            coder: coder.map(|_| 24),
        };
        let of = Threads {
            class_layout: 8,
            ..crate::threads::tests::of(ThreadList::Linked { first: 0, next: 0 })
        };
        let mut memory = Image::new();
        memory
            .map_u64(STRING, &[1, STRING_CLASS, ARRAY, coder.unwrap_or(9).into()])
            .map_u64(ARRAY, &[1, ARRAY_CLASS, length.into()])
            .map(ARRAY + 24, bytes)
            .map_u64(ARRAY_CLASS, &[0, layout]);
        objects.text(&memory, &of, Colors::None, STRING)
    }

    #[test]
    fn a_text_is_in_an_array_of_its_kind_and_size() {
        // As the virtual machine describes arrays whose first element is at 24.
        const OF_BYTES: u64 = 0xc018_0800;
        const OF_CHARS: u64 = 0xc018_0501;
        let short = |coder, length, layout| text(coder, length, b"m\0a\0i\0n\0", layout);
        assert_eq!(short(Some(1), 8, OF_BYTES).unwrap(), "main");
        assert_eq!(short(Some(0), 1, OF_BYTES).unwrap(), "m");
        assert_eq!(short(None, 4, OF_CHARS).unwrap(), "main");
        for (coder, layout) in [
            (Some(1), OF_CHARS),
            (None, OF_BYTES),
            // Of references, and with another first element.
            (Some(1), 0x8018_0c02),
            (Some(1), 0xc010_0800),
            (Some(2), OF_BYTES),
        ] {
            assert_eq!(short(coder, 4, layout), None, "{coder:?} {layout:x}");
        }
        let long = |coder, length, layout| text(coder, length, &[b'a'; 1024], layout);
        assert_eq!(long(Some(0), 512, OF_BYTES).unwrap().len(), 512);
        assert_eq!(long(Some(0), 513, OF_BYTES), None);
        assert!(long(None, 256, OF_CHARS).is_some());
        for length in [257, u32::MAX] {
            assert_eq!(long(None, length, OF_CHARS), None);
        }
    }

    #[test]
    fn texts_are_decoded_as_strings_encode_them() {
        assert_eq!(decode(b"w\xf6rker", true), "wörker");
        let wide: Vec<u8> = "wörker €\u{1f600}"
            .encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect();
        assert_eq!(decode(&wide, false), "wörker €\u{1f600}");
        assert_eq!(decode(&[1], false), "");
    }
}
