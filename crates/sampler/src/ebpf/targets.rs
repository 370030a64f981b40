//! What the program in the kernel is told of a process: where its threads keep their contexts.

use otelctx_reader::remote::tls;
use otelctx_track::ThreadStatus;

use super::abi::{MAX_PLACES, Place, Target, storage};

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

/// Where the threads of a process keep their contexts; empty if they can't be read.
pub(super) fn places_of(threads: &ThreadStatus) -> Vec<Place> {
    match threads {
        ThreadStatus::Readable(variables) => places(&variables.resolution.variables),
        _ => Vec::new(),
    }
}

/// The variables of a process as the program takes them.
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
