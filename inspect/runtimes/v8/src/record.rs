//! What the functions of a frame are found by, when the thread has gone on.

use otelctx_reader::remote::FrameRecord;

use crate::function::Identity;
use crate::heap::Object;

/// What a frame has of its functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The instruction that the frame executes: of a caller, the last byte of the call.
    pub(crate) instruction: u64,
    /// Its function, unless it is not known, and what identifies that.
    pub(crate) function: Option<(Object, Identity)>,
    pub(crate) place: Place,
}

/// Where in its function a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In generated code: the instruction says.
    Instruction,
    /// The same, and the instruction is a call, of which it is the last byte.
    Call,
    /// At this offset of its bytecode.
    Bytecode(u32),
    /// Unknown.
    Unknown,
}

impl Place {
    /// Returns whether the frame is in generated code, which says which function it is of.
    pub(crate) fn is_in_code(self) -> bool {
        matches!(self, Self::Instruction | Self::Call)
    }
}

const INSTRUCTION: u64 = 1;
const BYTECODE: u64 = 2;
const UNKNOWN: u64 = 3;
const CALL: u64 = 4;
const NATIVE: u64 = 5;
const NATIVE_CALLER: u64 = 6;

/// The record of a frame without a function of JavaScript. Of a caller, the address is where it goes on.
pub(crate) fn native(is_caller: bool) -> FrameRecord {
    let kind = if is_caller { NATIVE_CALLER } else { NATIVE };
    FrameRecord([0, 0, 0, kind])
}

/// Whether a frame without a function of JavaScript is a caller. `None` for other records.
pub(crate) fn is_native_caller(record: &FrameRecord) -> Option<bool> {
    let kinds = [NATIVE, NATIVE_CALLER];
    let found = kinds.iter().position(|kind| record.0[3] == *kind);
    found.map(|found| found == 1)
}

impl Record {
    pub(crate) fn encoded(self) -> FrameRecord {
        let place = match self.place {
            Place::Instruction => INSTRUCTION,
            Place::Call => CALL,
            Place::Bytecode(offset) => BYTECODE | u64::from(offset) << 32,
            Place::Unknown => UNKNOWN,
        };
        let (function, identity) = self.function.map_or((0, 0), |(shared, identity)| {
            let Identity { script, literal } = identity;
            let identity = u64::from(script) << 32 | u64::from(literal as u32);
            (shared.address(), identity)
        });
        FrameRecord([self.instruction, function, identity, place])
    }

    pub(crate) fn decoded(record: &FrameRecord) -> Option<Self> {
        let FrameRecord([instruction, function, identity, place]) = *record;
        let identity = Identity {
            script: (identity >> 32) as u32,
            literal: identity as u32 as i32,
        };
        let place = match place & 0xffff_ffff {
            INSTRUCTION => Place::Instruction,
            CALL => Place::Call,
            BYTECODE => Place::Bytecode((place >> 32) as u32),
            UNKNOWN => Place::Unknown,
            _ => return None,
        };
        Some(Self {
            instruction,
            function: (function != 0).then(|| (Object::at(function), identity)),
            place,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_decoded_as_it_was() {
        let identity = Identity {
            script: u32::MAX,
            literal: -2,
        };
        let functions = [None, Some((Object::at(0x1000), identity))];
        for function in functions {
            for place in [
                Place::Instruction,
                Place::Call,
                Place::Bytecode(0),
                Place::Bytecode(u32::MAX),
                Place::Unknown,
            ] {
                let record = Record {
                    instruction: 0x7f00_1234,
                    function,
                    place,
                };
                assert_eq!(Record::decoded(&record.encoded()), Some(record));
            }
        }
        for is_caller in [false, true] {
            let record = native(is_caller);
            assert_eq!(is_native_caller(&record), Some(is_caller));
            assert_eq!(Record::decoded(&record), None);
        }
        assert_eq!(Record::decoded(&FrameRecord([0; 4])), None);
        assert_eq!(is_native_caller(&FrameRecord([0; 4])), None);
        assert_eq!(Record::decoded(&FrameRecord([u64::MAX; 4])), None);
    }
}
