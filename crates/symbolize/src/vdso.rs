//! The library that the kernel maps into each process (vdso(7)). It is the same in all processes of
//! one architecture, so names are read from this process's own.

use std::fs::File;
use std::os::unix::fs::FileExt;

use otelctx_profile::{Function, SymbolQuery};

use crate::copy::{Copy, nameless};

/// The name of its mapping.
const NAME: &str = "[vdso]";
/// Maximum size, in bytes. It has a few pages.
const LARGEST: u64 = 1 << 20;

/// The functions at addresses of a process's vdso; `None` if it is not mapped there.
pub(crate) fn functions(query: SymbolQuery<'_>, addresses: &[u64]) -> Option<Vec<Vec<Function>>> {
    let mapping = query.mapping.filter(|_| query.module.path == NAME)?;
    let image = own()?;
    // A process of another architecture has a different vDSO.
    if image.len() as u64 != mapping.end.checked_sub(mapping.start)? {
        return None;
    }
    let file = nameless().ok()?;
    file.write_all_at(&image, 0).ok()?;
    let offset = |address: &u64| address.wrapping_sub(mapping.start);
    let offsets: Vec<u64> = addresses.iter().map(offset).collect();
    let (functions, _) = crate::in_copy(&Copy::of(&file).ok()?, None, &offsets, false)?;
    Some(functions)
}

/// The vDSO of this process.
fn own() -> Option<Vec<u8>> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.ends_with(NAME))?;
    let (start, end) = line.split_once(' ')?.0.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    let size = end.checked_sub(start).filter(|size| *size <= LARGEST)?;
    let mut image = vec![0; usize::try_from(size).ok()?];
    let memory = File::open("/proc/self/mem").ok()?;
    memory.read_exact_at(&mut image, start).ok()?;
    Some(image)
}
