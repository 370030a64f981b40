//! The configuration of the eBPF sampler's step (`bpf/nodejs.step.h`) for a process, and the part
//! that the step adds to a sample.

use otelctx_reader::format::record::RECOMMENDED_SIZE;
use otelctx_reader::remote::tls::{CLibrary, Place, TlsVariable};
use otelctx_reader::runtime::{KernelStep, RuntimeError};

use crate::walk::{Broken, RecordPlace};

/// Maximum number of addons that are read. A program has one, that of a vendor beside it, or several
/// versions of one.
pub(crate) const MAX_ADDONS: usize = 4;
/// Words of a `struct place`.
const VARIABLE_WORDS: usize = 7;

/// `enum storage` (profile/sampler/bpf/target.h).
const STATIC: u64 = 1;
const GLIBC: u64 = 2;
const MUSL: u64 = 3;

/// The step and its configuration for a process.
pub(crate) fn kernel_step(addons: &[TlsVariable], place: RecordPlace) -> KernelStep {
    let (kind, in_object, in_native) = match place {
        RecordPlace::Published => (0, 0, 0),
        RecordPlace::InObject(offset) => (1, offset, 0),
        RecordPlace::InNative { object, native } => (2, object, native),
        RecordPlace::Compressed => (3, 0, 0),
    };
    let mut words: Vec<u64> = addons.iter().flat_map(variable).collect();
    // A place of zeros has no storage.
    words.resize(MAX_ADDONS * VARIABLE_WORDS, 0);
    words.extend([kind, in_object, in_native]);
    let configuration = words.into_iter().flat_map(u64::to_ne_bytes).collect();
    KernelStep::new("nodejs", configuration)
}

/// A `struct place` (profile/sampler/bpf/target.h).
fn variable(variable: &TlsVariable) -> [u64; VARIABLE_WORDS] {
    let (storage, offset, module, generation) = match variable.place() {
        Place::Static(offset) => (STATIC, offset.cast_unsigned(), 0, 0),
        Place::Dynamic {
            library,
            module,
            offset,
            generation,
        } => {
            let storage = match library {
                CLibrary::Glibc => GLIBC,
                CLibrary::Musl => MUSL,
            };
            (storage, offset, module, generation.unwrap_or(0))
        }
    };
    let registration = variable.registration();
    let [first, second] = registration.map_or([0; 2], |it| it.words);
    [
        offset,
        module,
        generation,
        registration.map_or(0, |it| it.address),
        first,
        second,
        // Followed by 32 reserved bits.
        storage.to_le(),
    ]
}

/// The part of a sample that the step adds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'a> {
    /// The thread executes no JavaScript that publishes.
    Nothing,
    NoFrame,
    NotInFrame,
    Detached,
    TornDown,
    Invalid,
    /// The bytes of the record, at most [`RECOMMENDED_SIZE`].
    Record(&'a [u8]),
}

impl<'a> Part<'a> {
    pub(crate) fn read(part: &'a [u8]) -> Result<Self, RuntimeError> {
        if part.is_empty() {
            return Ok(Self::Nothing);
        }
        let error = |what: &str| RuntimeError::new(format!("the kernel's step {what}"));
        let Some((state, record)) = part.split_first_chunk() else {
            return Err(error("has added less than a state"));
        };
        match u64::from_ne_bytes(*state) {
            1 => Ok(Self::NoFrame),
            2 => Ok(Self::NotInFrame),
            3 => Ok(Self::Detached),
            4 => Ok(Self::TornDown),
            5 => Ok(Self::Record(&record[..record.len().min(RECOMMENDED_SIZE)])),
            6 => Ok(Self::Invalid),
            8 => Err(Broken::Compressed.into_error()),
            _ => Err(error("could not follow what the addon publishes")),
        }
    }
}
