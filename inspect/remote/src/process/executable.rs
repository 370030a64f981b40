//! The executable mappings of a process.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use nix::errno::Errno;

use super::{Process, is_gone};
use crate::Error;
use crate::Memory as _;
use crate::mappings::moved::{Access, CodeVisitor, OwnedMapping, may_have_moved_code};
use crate::mappings::query::{Query, flags};
use crate::mappings::{self, ExecutableMapping, Mapping, VisitExecutable};

impl Process {
    /// Calls `visit` for each executable mapping, of a file or not, with its name, until it breaks. Code that was moved from
    /// its file to other memory, as for huge pages, is reported as the file's if the memory can be read.
    pub fn executable_mappings(&self, visit: VisitExecutable<'_>) -> Result<(), Error> {
        let visited = Cell::new(false);
        let mut visit = |code: &ExecutableMapping<'_>| {
            visited.set(true);
            visit(code)
        };
        let memory = OnceCell::new();
        let open = |mapping: &Mapping<'_>| {
            let range = (mapping.start, mapping.end);
            self.mapped_file(range, mapping.name, mapping.device, mapping.inode)
        };
        let read = |address, buffer: &mut [u8]| {
            let memory = memory.get_or_init(|| self.memory().ok());
            let read = memory.as_ref().map(|it| it.read(address, buffer));
            read.is_some_and(|read| read.is_ok())
        };
        let (open, read) = (&open, &read);
        self.read_maps(
            |maps| visit_code(maps, CodeVisitor::new(Access { open, read }, &mut visit)),
            |scan| !visited.get() && scan.as_ref().is_err_and(is_gone),
        )
    }
}

/// ESRCH if there is no memory.
fn visit_code(maps: File, visitor: CodeVisitor<'_>) -> io::Result<()> {
    match Query::new(&maps).next(0, flags::EXECUTABLE) {
        Ok(_) => visit_queried(&maps, visitor),
        Err(Errno::ESRCH) => Err(Errno::ESRCH.into()),
        // The kernel is older, or denies it.
        Err(_) => visit_text(maps, visitor),
    }
}

fn visit_text(maps: File, mut visitor: CodeVisitor<'_>) -> io::Result<()> {
    let walk = mappings::walk(maps, &mut |mapping| visitor.take(mapping));
    if !walk.as_ref().is_ok_and(|walk| walk.stopped) {
        // Mappings that were read before an error count, too.
        let _ = visitor.finish();
    }
    (walk?.mappings > 0)
        .then_some(())
        .ok_or(Errno::ESRCH.into())
}

/// Of the mappings that are not executable, only those of files next to memory that may have moved code are visited.
fn visit_queried(maps: &File, mut visitor: CodeVisitor<'_>) -> io::Result<()> {
    let result = take_queried(maps, &mut visitor);
    match result {
        Ok(ControlFlow::Break(())) => Ok(()),
        result => {
            // Mappings that were read before an error count, too.
            let _ = visitor.finish();
            result.map(drop)
        }
    }
}

fn take_queried(maps: &File, visitor: &mut CodeVisitor<'_>) -> io::Result<ControlFlow<()>> {
    let mut query = Query::with_paths(maps);
    let mut files = FilesBehind::default();
    let mut address = 0;
    loop {
        let mapping = query.next_named(address, flags::EXECUTABLE)?;
        let mapping = mapping.filter(|it| it.end > address);
        let mapping = mapping.as_ref().map(OwnedMapping::of);
        let start = mapping.as_ref().map_or(u64::MAX, |it| it.mapping.start);
        if let Some(end) = visitor.waits_behind()
            && let Some(file) = files.next(&mut query, end)?
            && file.mapping.start < start
            && visitor.take(&file.borrow()).is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
        let Some(mapping) = mapping else {
            return Ok(ControlFlow::Continue(()));
        };
        // The mapping that ends at its start, unless it is the last executable one.
        if address != start && may_have_moved_code(&mapping.borrow()) {
            let below = query.next_named(start.saturating_sub(1), 0)?;
            let below = below.filter(|it| it.end == start && it.inode != 0);
            if below.is_some_and(|below| visitor.take(&below).is_break()) {
                return Ok(ControlFlow::Break(()));
            }
        }
        address = mapping.mapping.end;
        if visitor.take(&mapping.borrow()).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
}

/// The first mapping of a file behind an address: the kernel searches for it once, however much memory lies before it.
#[derive(Debug, Default)]
struct FilesBehind(Option<(u64, Option<OwnedMapping>)>);

impl FilesBehind {
    /// The addresses ascend from call to call.
    fn next(&mut self, query: &mut Query<'_>, address: u64) -> io::Result<Option<&OwnedMapping>> {
        let known = self.0.as_ref().is_some_and(|(searched, found)| {
            *searched <= address && found.as_ref().is_none_or(|it| address < it.mapping.end)
        });
        if !known {
            let found = query.next_named(address, flags::FILE_BACKED)?;
            self.0 = Some((address, found.as_ref().map(OwnedMapping::of)));
        }
        Ok(self.0.as_ref().and_then(|(_, found)| found.as_ref()))
    }
}
