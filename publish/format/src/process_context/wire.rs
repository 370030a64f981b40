//! The part of the Protocol Buffers wire format that the payload needs
//! (<https://protobuf.dev/programming-guides/encoding/>): small, bounded, and as strict as common
//! decoders.

use alloc::vec::Vec;

use super::error::{PayloadError, PayloadErrorKind};

/// The encoding of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireType {
    Varint,
    Fixed64,
    Length,
    StartGroup,
    EndGroup,
    Fixed32,
}

/// The bytes to decode, with their offset in the payload (for errors).
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    rest: &'a [u8],
    position: usize,
}

impl<'a> Input<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            position: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn error(&self, kind: PayloadErrorKind) -> PayloadError {
        PayloadError {
            position: self.position,
            kind,
        }
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], PayloadError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.error(PayloadErrorKind::CutShort));
        };
        self.rest = rest;
        self.position += count;
        Ok(taken)
    }

    /// Decodes a varint: seven bits per byte, lowest first; at most ten bytes, the last at most 1.
    pub(super) fn varint(&mut self) -> Result<u64, PayloadError> {
        let mut value = 0_u64;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                if index == 9 && byte > 1 {
                    break;
                }
                self.take(index + 1)?;
                return Ok(value);
            }
        }
        Err(self.error(if self.rest.len() < 10 {
            PayloadErrorKind::CutShort
        } else {
            PayloadErrorKind::Varint
        }))
    }

    /// Returns a field's number and wire type.
    pub(super) fn key(&mut self) -> Result<(u32, WireType), PayloadError> {
        let start = *self;
        let Ok(key) = u32::try_from(self.varint()?) else {
            return Err(start.error(PayloadErrorKind::FieldNumber));
        };
        let wire_type = match key & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Length,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::Fixed32,
            _ => return Err(start.error(PayloadErrorKind::WireType)),
        };
        match key >> 3 {
            0 => Err(start.error(PayloadErrorKind::FieldNumber)),
            number => Ok((number, wire_type)),
        }
    }

    /// Decodes a length-delimited value.
    pub(super) fn length_delimited(&mut self) -> Result<Input<'a>, PayloadError> {
        let start = *self;
        let length = usize::try_from(self.varint()?).ok();
        let position = self.position;
        let rest = length.and_then(|length| self.take(length).ok());
        let rest = rest.ok_or_else(|| start.error(PayloadErrorKind::CutShort))?;
        Ok(Input { rest, position })
    }

    pub(super) fn fixed64(&mut self) -> Result<u64, PayloadError> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn string(self) -> Result<&'a str, PayloadError> {
        core::str::from_utf8(self.rest).map_err(|_| self.error(PayloadErrorKind::NotUtf8))
    }

    /// Skips the value of an unknown field. `depth` bounds nested groups.
    pub(super) fn skip(
        &mut self,
        number: u32,
        wire_type: WireType,
        depth: u32,
    ) -> Result<(), PayloadError> {
        match wire_type {
            WireType::Varint => self.varint().map(drop),
            WireType::Fixed64 => self.take(8).map(drop),
            WireType::Fixed32 => self.take(4).map(drop),
            WireType::Length => self.length_delimited().map(drop),
            WireType::EndGroup => Err(self.error(PayloadErrorKind::WireType)),
            WireType::StartGroup => loop {
                let Some(deeper) = depth.checked_sub(1) else {
                    return Err(self.error(PayloadErrorKind::TooDeep));
                };
                match self.key()? {
                    (end, WireType::EndGroup) if end == number => return Ok(()),
                    (inner, wire_type) => self.skip(inner, wire_type, deeper)?,
                }
            },
        }
    }
}

/// Size of `value` as a varint, in bytes.
pub(super) fn varint_size(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

pub(super) fn put_varint(output: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        output.push(value as u8 | 0x80);
        value >>= 7;
    }
    output.push(value as u8);
}

pub(super) fn put_key(output: &mut Vec<u8>, number: u32, wire_type: WireType) {
    put_varint(output, u64::from(number << 3 | wire_type as u32));
}

pub(super) fn put_bytes(output: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_key(output, number, WireType::Length);
    put_varint(output, bytes.len() as u64);
    output.extend_from_slice(bytes);
}
