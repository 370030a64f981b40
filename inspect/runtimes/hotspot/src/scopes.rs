//! The methods at a place in compiled code: the inlined ones, and the one that was compiled.

use otelctx_reader::remote::Memory;

use crate::code_cache::Blob;
use crate::compressed::Stream;
use crate::layout::{DebugInfo, Layout};

/// Maximum number of methods at one place. HotSpot inlines some ten levels, and 15 by default.
const MAX_SCOPES: usize = 128;
/// Maximum size of the list of places, in bytes. Methods of 8,000 bytes of bytecode, which are the largest that are compiled by
/// default, have some hundred KiB.
const MAX_PLACES: usize = 8 << 20;
/// Bytes of one scope that are read: three compressed numbers.
const SCOPE_SIZE: u64 = 16;

/// A method at a place, and the position in its bytecode; `None` if it is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    pub(crate) method: u64,
    pub(crate) position: Option<u16>,
}

/// The addresses of the tables of compiled code.
struct Tables {
    places: u64,
    places_end: u64,
    scopes: u64,
    metadata: u64,
}

impl Tables {
    fn of(layout: &Layout, blob: &Blob) -> Self {
        let object = &blob.object;
        match &layout.nmethod.debug {
            DebugInfo::Inside {
                pcs,
                pcs_end,
                scopes,
                metadata,
            } => {
                let at = |field| object.address.wrapping_add_signed(object.signed(field));
                Self {
                    places: at(*pcs),
                    places_end: at(*pcs_end),
                    scopes: object.place(*scopes, object.address),
                    metadata: at(*metadata),
                }
            }
            DebugInfo::Outside {
                tables,
                pcs,
                scopes,
                metadata,
                relocations,
            } => {
                let tables = object.int(*tables);
                let scopes = tables.wrapping_add(object.int(*scopes));
                let relocations = object.int(*relocations).wrapping_add(7) & !7;
                Self {
                    places: tables.wrapping_add(object.int(*pcs)),
                    places_end: scopes,
                    scopes,
                    metadata: object.int(*metadata).wrapping_add(relocations),
                }
            }
        }
    }
}

/// Returns the methods at an instruction of compiled code, innermost first. The last one is the method that was compiled, also
/// where the tables have no more of the place. `None` if the tables are damaged.
pub(crate) fn scopes(
    memory: &dyn Memory,
    layout: &Layout,
    blob: &Blob,
    pc: u64,
) -> Option<Vec<Scope>> {
    let tables = Tables::of(layout, blob);
    let compiled = Scope {
        method: blob.object.int(layout.nmethod.method),
        position: None,
    };
    let place = pc.checked_sub(blob.start)?;
    let Some((_, scope)) = place_from(memory, layout, &tables, place)? else {
        return Some(vec![compiled]);
    };
    let Some(mut scope) = Some(scope).filter(|scope| *scope != 0) else {
        return Some(vec![compiled]);
    };
    let mut found = Vec::new();
    while scope != 0 {
        if found.len() == MAX_SCOPES {
            return None;
        }
        let at = tables.scopes.wrapping_add(scope.into());
        let bytes = memory.read_vec(at, SCOPE_SIZE, SCOPE_SIZE as usize).ok()?;
        let mut stream = Stream::new(&bytes, layout.excluded_bytes());
        let (caller, method) = (stream.number()?, stream.number()?);
        // Positions count from -1, which stands for the entry.
        let position = stream.number()?.wrapping_sub(1);
        let index = u64::from(method).checked_sub(1)?;
        let method = memory
            .read_u64(tables.metadata.wrapping_add(8 * index))
            .ok()?;
        found.push(Scope {
            method,
            position: u16::try_from(position).ok(),
        });
        // Callers are written before: no other order would end.
        if caller >= scope {
            return None;
        }
        scope = caller;
    }
    if found.is_empty() {
        found.push(compiled);
    }
    Some(found)
}

/// Returns whether the tables of compiled code have this very place.
pub(crate) fn has_place(memory: &dyn Memory, layout: &Layout, blob: &Blob, pc: u64) -> bool {
    let tables = Tables::of(layout, blob);
    let Some(place) = pc.checked_sub(blob.start) else {
        return false;
    };
    let found = place_from(memory, layout, &tables, place).flatten();
    found.is_some_and(|found| u64::try_from(found.0) == Ok(place))
}

/// Returns a place, or the next one that the list has, and the offset of its innermost scope. `Some(None)` if there is none.
fn place_from(
    memory: &dyn Memory,
    layout: &Layout,
    tables: &Tables,
    place: u64,
) -> Option<Option<(i64, u32)>> {
    let size = layout.method.pc_desc_size;
    let bytes = tables.places_end.checked_sub(tables.places)?;
    if size < 8 || bytes > MAX_PLACES as u64 {
        return None;
    }
    let (mut first, mut count) = (0, bytes / size);
    // The list is sorted: the first place that is not below.
    let read = |index: u64| -> Option<(i64, u32)> {
        let pair = memory
            .read_u64(tables.places.wrapping_add(index * size))
            .ok()?;
        Some((i64::from(pair as i32), (pair >> 32) as u32))
    };
    let place = i64::try_from(place).ok()?;
    let end = count;
    while count > 0 {
        let half = count / 2;
        if read(first + half)?.0 < place {
            first += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    if first >= end {
        return Some(None);
    }
    Some(Some(read(first)?))
}
