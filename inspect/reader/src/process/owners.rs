//! Which of several publishers in a process uses which thread-local variable.
//!
//! A record does not say to which publisher it belongs. But a publisher keeps the address of its process
//! context, to update it, in the data of its module; and if that module's code uses a variable of its
//! own, its records are there.

use std::ops::{ControlFlow, Range};

use otelctx_remote::tls::TlsVariable;
use otelctx_remote::{Memory, Target};

use crate::process_context::Publisher;
use crate::record_keys::Owner;

/// Maximum size of a module's data that is searched, in bytes.
const MAX_DATA: u64 = 16 << 20;
/// Size of a read, in bytes.
const CHUNK: usize = 64 * 1024;

/// The owner of each variable. All are unknown unless every publisher has another module with a variable of its own: otherwise
/// one may use another one's variable.
pub(super) fn find(
    target: &dyn Target,
    publishers: &[Publisher],
    variables: &[TlsVariable],
) -> Vec<Owner> {
    let unknown = vec![Owner::Unknown; variables.len()];
    let modules: Vec<Option<Range<u64>>> = variables.iter().map(TlsVariable::own_module).collect();
    let Some(data) = data_of(target, &modules) else {
        return unknown;
    };
    // For each publisher, the variables of the modules that it may be.
    let mut places = vec![Vec::new(); publishers.len()];
    for (index, module) in modules.iter().enumerate() {
        let Some(module) = module else { continue };
        let mut kept = vec![false; publishers.len()];
        for range in &data[index] {
            note_addresses(target, range.clone(), publishers, &mut kept);
        }
        for (publisher, (places, is_kept)) in publishers.iter().zip(places.iter_mut().zip(kept)) {
            let is_own = match publisher.descriptor {
                Some(descriptor) => module.contains(&descriptor),
                None => is_kept,
            };
            if is_own {
                places.push(index);
            }
        }
    }
    let mut owners = unknown.clone();
    for (publisher, places) in publishers.iter().zip(places) {
        match places[..] {
            [index] if owners[index] == Owner::Unknown => {
                owners[index] = Owner::Context(publisher.address);
            }
            _ => return unknown,
        }
    }
    // Copies of otelctx share a key map, which one of them publishes.
    if publishers.iter().all(|it| it.descriptor.is_none()) {
        for (owner, module) in owners.iter_mut().zip(&modules) {
            if *owner == Owner::Unknown && module.is_some() {
                *owner = Owner::WithoutContext;
            }
        }
    }
    owners
}

/// The writable memory of each module. `None` if the mappings cannot be read, or there is too much.
fn data_of(target: &dyn Target, modules: &[Option<Range<u64>>]) -> Option<Vec<Vec<Range<u64>>>> {
    let mut data = vec![Vec::new(); modules.len()];
    let mut size = 0_u64;
    let walk = target.mappings(&mut |mapping| {
        if mapping.permissions.read && mapping.permissions.write {
            for (data, module) in data.iter_mut().zip(modules) {
                let Some(module) = module else { continue };
                let range = mapping.start.max(module.start)..mapping.end.min(module.end);
                if !range.is_empty() {
                    size += range.end - range.start;
                    data.push(range);
                }
            }
        }
        if size > MAX_DATA {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    (walk.is_ok() && size <= MAX_DATA).then_some(data)
}

/// Notes of which publishers the address of the context is in a range of memory, as far as it can be read.
fn note_addresses(
    memory: &dyn Memory,
    range: Range<u64>,
    publishers: &[Publisher],
    kept: &mut [bool],
) {
    let mut buffer = vec![0; CHUNK];
    let mut address = range.start.next_multiple_of(8);
    while address < range.end {
        let size = (range.end - address).min(CHUNK as u64);
        let bytes = &mut buffer[..size as usize];
        if memory.read(address, bytes).is_ok() {
            for word in bytes.chunks_exact(8) {
                let word = word.try_into().map_or(0, u64::from_ne_bytes);
                for (publisher, kept) in publishers.iter().zip(&mut *kept) {
                    *kept |= publisher.address == word;
                }
            }
        }
        address += size;
    }
}
