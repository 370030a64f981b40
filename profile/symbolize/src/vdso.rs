//! The library that the kernel maps into each process (vdso(7)). It is the same in all processes of
//! one architecture, so names are read from this process's own.

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use otelctx_remote::{Memory, Process};
use otelctx_sample::{Function, SymbolQuery};

use crate::copy::{Copy, nameless};
use crate::resolve::in_copy;

/// The name of its mapping.
const NAME: &str = "[vdso]";
/// Maximum size, in bytes. It has a few pages.
const MAX_SIZE: usize = 1 << 20;

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
    let copy = Copy::of(&file, None).ok()?;
    Some(in_copy(&copy, None, &offsets, false)?.functions)
}

/// The vDSO of this process.
fn own() -> Option<Vec<u8>> {
    let process = Process::open(i32::try_from(std::process::id()).ok()?).ok()?;
    let mut range = None;
    let found = process.mappings(&mut |mapping| {
        if mapping.name != NAME.as_bytes() {
            return ControlFlow::Continue(());
        }
        range = Some((mapping.start, mapping.end));
        ControlFlow::Break(())
    });
    found.ok()?;
    let (start, end) = range?;
    let size = usize::try_from(end.checked_sub(start)?).ok();
    let mut image = vec![0; size.filter(|size| *size <= MAX_SIZE)?];
    process.memory().ok()?.read(start, &mut image).ok()?;
    Some(image)
}
