//! The fields of protobuf messages, without a copy: a sample is read once, and not kept.

use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field<'m> {
    /// A number of variable length, or a `fixed64`.
    Number(u64),
    /// A string, a message, or packed numbers.
    Bytes(&'m [u8]),
}

impl<'m> Field<'m> {
    pub(super) fn bytes(self) -> Result<&'m [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) => Err("a field has another type".to_owned()),
        }
    }

    pub(super) fn number(self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) => Err("a field has another type".to_owned()),
        }
    }

    /// Calls `add` with each number of a repeated field, packed or not.
    pub(super) fn numbers(self, mut add: impl FnMut(u64)) -> Result<(), String> {
        match self {
            Self::Number(number) => add(number),
            Self::Bytes(mut packed) => {
                while !packed.is_empty() {
                    add(decode_varint(&mut packed).map_err(damage)?);
                }
            }
        }
        Ok(())
    }

    /// Like [`Self::numbers`], for a repeated `fixed64`.
    pub(super) fn fixed_numbers(self, mut add: impl FnMut(u64)) -> Result<(), String> {
        match self {
            Self::Number(number) => add(number),
            Self::Bytes(packed) => {
                let (numbers, []) = packed.as_chunks() else {
                    return Err("a list of numbers is cut off".to_owned());
                };
                numbers.iter().for_each(|it| add(u64::from_le_bytes(*it)));
            }
        }
        Ok(())
    }
}

/// The fields of a message with their numbers. An error is the last item: a sentence that names the
/// defect.
#[derive(Clone)]
pub(super) struct Fields<'m>(&'m [u8]);

/// Returns the fields of an encoded message.
pub(super) fn fields(message: &[u8]) -> Fields<'_> {
    Fields(message)
}

impl<'m> Iterator for Fields<'m> {
    type Item = Result<(u32, Field<'m>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            match self.read() {
                Ok(Some(field)) => return Some(Ok(field)),
                Ok(None) => {}
                Err(reason) => {
                    self.0 = &[];
                    return Some(Err(reason));
                }
            }
        }
        None
    }
}

impl<'m> Fields<'m> {
    /// Reads a field; `None` for one of a type that no message of a profile has.
    fn read(&mut self) -> Result<Option<(u32, Field<'m>)>, String> {
        let (tag, kind) = decode_key(&mut self.0).map_err(damage)?;
        let value = match kind {
            WireType::Varint => Field::Number(decode_varint(&mut self.0).map_err(damage)?),
            WireType::SixtyFourBit if self.0.len() >= 8 => Field::Number(self.0.get_u64_le()),
            WireType::LengthDelimited => {
                let length = decode_varint(&mut self.0).map_err(damage)?;
                let length = usize::try_from(length).ok();
                let split = length.and_then(|length| self.0.split_at_checked(length));
                let (bytes, rest) = split.ok_or_else(cut_off)?;
                self.0 = rest;
                Field::Bytes(bytes)
            }
            _ => {
                skip_field(kind, tag, &mut self.0, DecodeContext::default()).map_err(damage)?;
                return Ok(None);
            }
        };
        Ok(Some((tag, value)))
    }
}

fn cut_off() -> String {
    "it was cut off, or is not a recording".to_owned()
}

#[expect(clippy::needless_pass_by_value, reason = "passed to `map_err`")]
fn damage(error: prost::DecodeError) -> String {
    format!("{} ({error})", cut_off())
}
