//! The program's data about a process: where its threads keep their contexts.

use std::collections::BTreeMap;

use otelctx_reader::remote::tls;
use otelctx_reader::runtime::Present;
use otelctx_track::ThreadStatus;

use super::abi::{MAX_PLACES, Place, StepConfiguration, Target, storage};

/// The entry of a process in the program's map.
pub(super) fn target(serial: u32, places: &[Place]) -> Target {
    let mut target = Target {
        serial,
        places: places.len().min(MAX_PLACES) as u32,
        ..Target::default()
    };
    for (to, from) in target.place.iter_mut().zip(places) {
        *to = *from;
    }
    target
}

/// Maximum number of steps of a target: `steps` in `target.h` has a byte for each.
const MAX_STEPS: usize = size_of::<u32>();

/// The steps of a process's runtimes: their numbers and configurations. A runtime whose step is not
/// loaded is only supported by the ptrace sampler.
pub(super) fn steps_of(
    runtimes: &[Present],
    numbers: &BTreeMap<String, u32>,
) -> Vec<(u32, StepConfiguration)> {
    let step = |present: &Present| {
        let step = present.process.as_ref().ok()?.kernel_step()?;
        let number = *numbers.get(step.name)?;
        let mut configuration = [0; size_of::<StepConfiguration>()];
        let room = configuration.get_mut(..step.configuration.len())?;
        room.copy_from_slice(&step.configuration);
        Some((number, configuration))
    };
    runtimes.iter().filter_map(step).take(MAX_STEPS).collect()
}

/// Encodes the numbers of steps for a target: the first one in the lowest byte.
pub(super) fn numbers(steps: &[(u32, StepConfiguration)]) -> u32 {
    let numbers = steps.iter().rev().map(|(number, _)| number);
    numbers.fold(0, |all, number| all << 8 | number)
}

/// Where the threads of a process keep their contexts; empty if they cannot be read.
pub(super) fn places_of(threads: &ThreadStatus) -> Vec<Place> {
    match threads {
        ThreadStatus::Readable(variables) => places(&variables.resolution.variables),
        _ => Vec::new(),
    }
}

/// Converts the variables of a process to the program's layout.
pub(super) fn places(variables: &[tls::TlsVariable]) -> Vec<Place> {
    let place = |variable: &tls::TlsVariable| {
        let registration = variable.registration();
        let base = Place {
            slot: registration.map_or(0, |it| it.address),
            slot_words: registration.map_or([0; 2], |it| it.words),
            ..Default::default()
        };
        match variable.place() {
            tls::Place::Static(offset) => Place {
                storage: storage::STATIC,
                offset: offset as u64,
                ..base
            },
            tls::Place::Dynamic {
                library,
                module,
                offset,
                generation,
            } => Place {
                storage: match library {
                    tls::CLibrary::Glibc => storage::GLIBC,
                    tls::CLibrary::Musl => storage::MUSL,
                },
                offset,
                module,
                generation: generation.unwrap_or(0),
                ..base
            },
        }
    };
    variables.iter().take(MAX_PLACES).map(place).collect()
}
