//! The rows of the vDSO.

use std::ops::ControlFlow;
use std::sync::Arc;

use otelctx_reader::remote::Process;
use otelctx_unwind::{Dictionary, Error, FileRows};

/// Makes the rows of this process's vDSO for all: a target may have changed its own.
///
/// # Errors
/// When it has no usable tables, or this process has no vDSO.
pub(crate) fn rows(dictionary: &Arc<Dictionary>) -> Result<FileRows, Error> {
    let own = Process::open(std::process::id() as i32);
    let own = own.and_then(|own| own.memory().map(|memory| (own, memory)));
    let (process, memory) = own.map_err(|_| Error::NoTables)?;
    let mut range = None;
    let _ = process.executable_mappings(&mut |code| {
        let mapping = &code.mapping;
        if mapping.name != b"[vdso]" {
            return ControlFlow::Continue(());
        }
        range = Some((mapping.start, mapping.end));
        ControlFlow::Break(())
    });
    FileRows::of_vdso(&memory, range.ok_or(Error::NoTables)?, dictionary)
}
