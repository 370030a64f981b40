//! The fields of Java's classes, as the virtual machine lays them out in objects (`fieldInfo.hpp`, `fieldStreams.hpp`).

use otelctx_reader::remote::Memory;

use crate::compressed::Stream;
use crate::layout::{ClassFields, Layout, read_int};
use crate::names::constant;

/// Maximum number of fields that are read of a class, and of bytes that describe them.
const MAX_FIELDS: usize = 1024;
const MAX_BYTES: usize = 64 << 10;
/// Maximum length of a name that is read, in bytes.
const MAX_NAME: u64 = 128;
/// Of an `Array`, the offset of the first element of up to four bytes: its length is before it (`array.hpp`).
const ARRAY_DATA: u64 = 4;
/// A flag of a field in a class file: it is not in objects.
const STATIC: u32 = 8;

/// A field of the objects of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClassField {
    pub(crate) name: String,
    /// Offset from the object's start, in bytes.
    pub(crate) at: u64,
    /// It refers to an object.
    pub(crate) is_reference: bool,
}

/// What describes a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Description {
    name: u32,
    signature: u32,
    at: u32,
    access: u32,
}

/// Reads the fields that a class adds to objects. `None` if they cannot be read.
pub(crate) fn fields(
    memory: &dyn Memory,
    layout: &Layout,
    of: &ClassFields,
    class: u64,
) -> Option<Vec<ClassField>> {
    let pool = memory
        .read_u64(class.wrapping_add(layout.method.class_constants))
        .ok()?;
    let array = |at: u64, size: u64| {
        let array = memory.read_u64(class.wrapping_add(at)).ok()?;
        let length = u64::from(memory.read_u32(array).ok()?);
        let bytes = length.saturating_mul(size);
        let start = array.wrapping_add(ARRAY_DATA);
        memory.read_vec(start, bytes, MAX_BYTES).ok()
    };
    let descriptions = match *of {
        ClassFields::Slots { fields, count } => {
            let count = read_int(memory, class, count).ok()?;
            of_slots(&array(fields, 2)?, count as usize)
        }
        ClassFields::Stream { fields } => {
            of_stream(Stream::new(&array(fields, 1)?, layout.excluded_bytes()))?
        }
    };
    let text = |index: u32| constant(memory, layout, pool, index.into(), MAX_NAME).ok();
    let in_objects = descriptions.iter().filter(|it| it.access & STATIC == 0);
    in_objects
        .map(|it| {
            Some(ClassField {
                name: text(it.name)?,
                at: it.at.into(),
                is_reference: text(it.signature)?.starts_with(['L', '[']),
            })
        })
        .collect()
}

/// Before JDK 21, each field has six numbers of two bytes. Those of the virtual machine follow.
fn of_slots(bytes: &[u8], count: usize) -> Vec<Description> {
    /// The lowest bits of an offset that say whether it is one.
    const TAG: u32 = 2;
    let (numbers, _) = bytes.as_chunks::<2>();
    let (fields, _) = numbers.as_chunks::<6>();
    let fields = fields.iter().take(count.min(MAX_FIELDS));
    fields
        .map(|field| {
            let [access, name, signature, _, low, high] =
                field.map(|it| u32::from(u16::from_le_bytes(it)));
            Description {
                name,
                signature,
                at: (high << 16 | low) >> TAG,
                access,
            }
        })
        .collect()
}

/// From JDK 21 on, they are compressed numbers. `None` if those are damaged.
fn of_stream(mut stream: Stream<'_>) -> Option<Vec<Description>> {
    /// Bits of a field's flags that say what else it has: a constant, a generic signature, a group.
    const OPTIONAL: [u32; 3] = [1 << 0, 1 << 2, 1 << 4];
    let count = stream.number()? as usize;
    // Of the virtual machine's own fields.
    stream.number()?;
    let mut found = Vec::new();
    for _ in 0..count.min(MAX_FIELDS) {
        let (name, signature) = (stream.number()?, stream.number()?);
        let (at, access) = (stream.number()?, stream.number()?);
        let flags = stream.number()?;
        for _ in OPTIONAL.iter().filter(|it| flags & **it != 0) {
            stream.number()?;
        }
        found.push(Description {
            name,
            signature,
            at,
            access,
        });
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_decoded_in_both_forms() {
        let field = |name, at, access| Description {
            name,
            signature: name + 1,
            at,
            access,
        };
        let slots = [2_u16, 7, 8, 0, 0x31, 0, 8, 9, 10, 5, 0x81, 1, 0, 0, 0];
        let bytes: Vec<u8> = slots.iter().flat_map(|it| it.to_le_bytes()).collect();
        let expected = [field(7, 12, 2), field(9, 0x1_0081 >> 2, 8)];
        assert_eq!(of_slots(&bytes, 9), expected);
        assert_eq!(of_slots(&bytes, 1), expected[..1]);
        // Numbers count from 1 there. The first field has a constant and a group.
        let bytes = [3, 1, 8, 9, 13, 3, 18, 99, 98, 10, 11, 21, 9, 1, 0];
        let found = of_stream(Stream::new(&bytes, 1));
        assert_eq!(found, Some(vec![field(7, 12, 2), field(9, 20, 8)]));
        assert_eq!(of_stream(Stream::new(&bytes[..9], 1)), None);
    }
}
