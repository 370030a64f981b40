//! What is kept of a frame while its thread goes on, to name its methods later.

use otelctx_reader::remote::FrameRecord;

/// What identifies the code of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    /// A compiled method, with methods that are inlined in it.
    Compiled {
        /// The address of its blob.
        blob: u64,
        /// The number of the compilation: no other one has it.
        compile_id: u32,
        /// The instruction that runs next, by which the tables are searched.
        pc: u64,
    },
    /// A method that is interpreted.
    Interpreted {
        /// The address of its `Method`.
        method: u64,
        /// What distinguishes it from later methods at the same address.
        identity: MethodIdentity,
        /// The position in its bytecode, in bytes. `None` if it is unknown.
        position: Option<u16>,
    },
    /// Code of the virtual machine.
    Stub {
        /// The address of its blob.
        blob: u64,
        /// It is the code through which the virtual machine calls Java.
        is_entry: bool,
    },
}

/// What distinguishes methods that had the same address one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MethodIdentity {
    /// JDK Flight Recorder's number of its class, which no other class gets; without it, the address of the class.
    pub(crate) class: u64,
    /// Its number in the class.
    pub(crate) number: u16,
}

/// Kinds of records, in the lowest byte of the first word.
const COMPILED: u64 = 1;
const INTERPRETED: u64 = 2;
const STUB: u64 = 3;
/// The position is known.
const HAS_POSITION: u64 = 1 << 8;

impl Record {
    pub(crate) fn encode(self) -> FrameRecord {
        FrameRecord(match self {
            Self::Compiled {
                blob,
                compile_id,
                pc,
            } => [COMPILED | u64::from(compile_id) << 32, blob, pc, 0],
            Self::Interpreted {
                method,
                identity,
                position,
            } => {
                let known = if position.is_some() { HAS_POSITION } else { 0 };
                let position = u64::from(position.unwrap_or_default()) << 16;
                let number = u64::from(identity.number) << 32;
                [
                    INTERPRETED | known | position | number,
                    method,
                    identity.class,
                    0,
                ]
            }
            Self::Stub { blob, is_entry } => [STUB, blob, is_entry.into(), 0],
        })
    }

    /// `None` for one that this crate has not made.
    pub(crate) fn decode(record: &FrameRecord) -> Option<Self> {
        let [first, second, third, _] = record.0;
        Some(match first & 0xff {
            COMPILED => Self::Compiled {
                blob: second,
                compile_id: (first >> 32) as u32,
                pc: third,
            },
            INTERPRETED => Self::Interpreted {
                method: second,
                identity: MethodIdentity {
                    class: third,
                    number: (first >> 32) as u16,
                },
                position: (first & HAS_POSITION != 0).then_some((first >> 16) as u16),
            },
            STUB => Self::Stub {
                blob: second,
                is_entry: third != 0,
            },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_decoded_as_they_were_encoded() {
        let identity = MethodIdentity {
            class: 0x1234_5678_9abc,
            number: 0xfffe,
        };
        let interpreted = |position| Record::Interpreted {
            method: 0x7fff_1234,
            identity,
            position,
        };
        let compiled = Record::Compiled {
            blob: 0x7f00_0000_1000,
            compile_id: u32::MAX,
            pc: 0x7f00_0000_1234,
        };
        let stub = |is_entry| Record::Stub { blob: 7, is_entry };
        let all = [
            compiled,
            interpreted(None),
            interpreted(Some(0)),
            interpreted(Some(u16::MAX)),
            stub(false),
            stub(true),
        ];
        for record in all {
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
        assert_eq!(Record::decode(&FrameRecord::default()), None);
    }
}
