//! The fields of protobuf messages, without a copy: a sample is read once, and not kept.

use prost::encoding::{DecodeContext, WireType, decode_varint, skip_field};

/// A defect of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    /// A field ends behind the message, or is none.
    NoField,
    /// A field has a type that its number does not have.
    OtherType,
    /// A list of numbers of a fixed size ends within a number.
    HalfNumber,
}

impl From<Defect> for String {
    fn from(defect: Defect) -> Self {
        let sentence = match defect {
            Defect::NoField => "it was cut off, or is not a recording",
            Defect::OtherType => "a field has another type",
            Defect::HalfNumber => "a list of numbers is cut off",
        };
        sentence.to_owned()
    }
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'m> {
    /// A number of variable length, or a `fixed64`.
    Number(u64),
    /// A string, a message, or packed numbers.
    Bytes(&'m [u8]),
}

impl<'m> Field<'m> {
    #[inline]
    pub(super) fn bytes(self) -> Result<&'m [u8], Defect> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err(Defect::OtherType),
        }
    }

    #[inline]
    pub(super) fn number(self) -> Result<u64, Defect> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err(Defect::OtherType),
        }
    }

    /// Calls `add` with each number of a repeated field, packed or not.
    #[inline]
    pub(super) fn numbers(self, mut add: impl FnMut(u64)) -> Result<(), Defect> {
        match self {
            Self::Number(number) => add(number),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    add(varint(&mut packed)?);
                }
            }
        }
        Ok(())
    }

    /// Like [`Self::numbers`], for a repeated `fixed64`.
    #[inline]
    pub(super) fn fixed_numbers(self, mut add: impl FnMut(u64)) -> Result<(), Defect> {
        match self {
            Self::Number(number) => add(number),
            Self::Bytes(packed) => {
                let (numbers, []) = packed.as_chunks() else {
                    return Err(Defect::HalfNumber);
                };
                numbers.iter().for_each(|it| add(u64::from_le_bytes(*it)));
            }
        }
        Ok(())
    }
}

/// The fields of a message with their numbers. An error is the last item.
#[derive(Clone)]
pub(super) struct Fields<'m>(&'m [u8]);

/// Returns the fields of an encoded message.
pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields(message)
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u32, Field<'m>), Defect>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            match self.read() {
                Ok(Some(field)) => return Some(Ok(field)),
                Ok(None) => {}
                Err(defect) => {
                    self.0 = &[];
                    return Some(Err(defect));
                }
            }
        }
        None
    }
}

impl<'m> Fields<'m> {
    /// Reads a field; `None` for one of a type that no message of a profile has.
    #[inline(always)]
    fn read(&mut self) -> Result<Option<(u32, Field<'m>)>, Defect> {
        let key = varint(&mut self.0)?;
        // At most 29 bits (https://protobuf.dev/programming-guides/encoding).
        let tag = u32::try_from(key >> 3).map_err(|_| Defect::NoField)?;
        if tag == 0 || key > u64::from(u32::MAX) {
            return Err(Defect::NoField);
        }
        let value = match key & 7 {
            0 => Field::Number(varint(&mut self.0)?),
            1 => {
                let (number, rest) = self.0.split_first_chunk().ok_or(Defect::NoField)?;
                self.0 = rest;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = usize::try_from(varint(&mut self.0)?).ok();
                let split = length.and_then(|length| self.0.split_at_checked(length));
                let (bytes, rest) = split.ok_or(Defect::NoField)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            other => {
                let kind = WireType::try_from(other).map_err(|_| Defect::NoField)?;
                let skipped = skip_field(kind, tag, &mut self.0, DecodeContext::default());
                skipped.map_err(|_| Defect::NoField)?;
                return Ok(None);
            }
        };
        Ok(Some((tag, value)))
    }
}

/// Takes the number and the length of a field with bytes; `None` if there is no such field.
pub(super) fn head(bytes: &mut &[u8]) -> Option<(u32, u64)> {
    let key = varint(bytes).ok()?;
    let number = u32::try_from(key >> 3).ok()?;
    (key & 7 == 2).then_some((number, varint(bytes).ok()?))
}

/// Takes a number of variable length. Most take a byte or two.
#[inline(always)]
fn varint(bytes: &mut &[u8]) -> Result<u64, Defect> {
    match **bytes {
        [first @ ..0x80, ref rest @ ..] => {
            *bytes = rest;
            Ok(first.into())
        }
        [first, second @ ..0x80, ref rest @ ..] => {
            *bytes = rest;
            Ok(u64::from(first & 0x7f) | u64::from(second) << 7)
        }
        _ => long_varint(bytes),
    }
}

#[inline(never)]
fn long_varint(bytes: &mut &[u8]) -> Result<u64, Defect> {
    decode_varint(bytes).map_err(|_| Defect::NoField)
}

#[cfg(test)]
mod tests {
    use prost::encoding::encode_varint;

    use super::*;

    #[test]
    fn numbers_of_all_lengths_are_read() {
        for bits in 0..64 {
            for number in [1_u64 << bits, (1 << bits) - 1, u64::MAX >> bits] {
                let mut encoded = Vec::new();
                encode_varint(number, &mut encoded);
                let mut read = Vec::new();
                Field::Bytes(&encoded).numbers(|it| read.push(it)).unwrap();
                assert_eq!(read, [number]);
                let short = Field::Bytes(&encoded[..encoded.len() - 1]).numbers(|_| ());
                assert_eq!(short.is_err(), encoded.len() > 1, "{number}");
            }
        }
        assert_eq!(
            Field::Bytes(&[0xff; 10]).numbers(|_| ()),
            Err(Defect::NoField)
        );
    }

    #[test]
    fn fields_without_a_number_or_with_an_unknown_type_are_defects() {
        let all = |bytes| fields(bytes).collect::<Vec<_>>();
        assert_eq!(
            all(&[0x08, 5, 0x12, 1, 7]),
            [Ok((1, Field::Number(5))), Ok((2, Field::Bytes(&[7])))]
        );
        // A group and a `fixed32` are skipped.
        assert_eq!(
            all(&[0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 0x08, 5]),
            [Ok((1, Field::Number(5)))]
        );
        for defect in [
            &[0x00, 5][..],
            &[0x0e],
            &[0x12, 2, 7],
            &[0x09, 1, 2],
            &[0x80],
        ] {
            assert_eq!(all(defect), [Err(Defect::NoField)], "{defect:?}");
        }
        // A number of more than 29 bits.
        assert_eq!(
            all(&[0x88, 0x80, 0x80, 0x80, 0x10, 5]),
            [Err(Defect::NoField)]
        );
    }
}
