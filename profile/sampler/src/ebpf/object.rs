//! Programs and maps of a loaded object, by their names.

use aya::maps::{Map, MapData};
use aya::{Ebpf, programs::Program};

use crate::refusal::Refusal;

pub(super) fn find<'p, P>(programs: &'p mut Ebpf, name: &str) -> Result<&'p mut P, Refusal>
where
    &'p mut P: TryFrom<&'p mut Program>,
{
    let program = programs.program_mut(name);
    program
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| Refusal::other(format!("the object has no program {name}")))
}

pub(super) fn map<M: TryFrom<Map>>(programs: &mut Ebpf, name: &str) -> Result<M, Refusal> {
    let map = programs.take_map(name);
    map.and_then(|map| map.try_into().ok())
        .ok_or_else(|| Refusal::other(format!("the object has no map {name}")))
}

pub(super) fn array(programs: &mut Ebpf, name: &str) -> Result<MapData, Refusal> {
    match programs.take_map(name) {
        Some(Map::Array(data) | Map::ArrayOfMaps(data)) => Ok(data),
        _ => Err(Refusal::other(format!("the object has no array {name}"))),
    }
}
