//! Scans of a process's mappings that are fast for any number of mappings.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;

use nix::errno::Errno;

use super::{Process, is_gone};
use crate::Error;
use crate::mappings::query::{Query, flags};
use crate::mappings::{
    self, Mapping, NameFilter, NamedMapping, Scan, ScanOptions, Search, is_clock_check_due,
};

impl Process {
    /// Finds mappings by their names.
    #[doc(alias = "PROCMAP_QUERY")]
    pub fn search<'a>(&self, filter: NameFilter<'a>) -> Result<Scan<Search<'a>>, Error> {
        let is_nothing = |scan: &io::Result<_>| scan.as_ref().is_err_and(is_gone);
        self.read_maps(|maps| Search::begin(maps, filter), is_nothing)
    }

    /// Continues a search with all other mappings: those without a file, or not writable.
    pub fn search_others(&self, search: Search<'_>) -> Result<Scan<Vec<NamedMapping>>, Error> {
        let others = search.others();
        others.map_err(|error| self.error("maps", "read the mappings", error))
    }

    /// Calls `visit` for each executable mapping of a file, without its name.
    pub fn code_mappings(
        &self,
        options: ScanOptions,
        visit: &mut dyn FnMut(&Mapping<'_>),
    ) -> Result<Scan<()>, Error> {
        self.mappings_of_files(Files::Code, options, visit)
    }

    /// Calls `visit` for each mapping of a file; one that is not executable may have no name.
    pub fn file_mappings(
        &self,
        options: ScanOptions,
        visit: &mut dyn FnMut(&Mapping<'_>),
    ) -> Result<Scan<()>, Error> {
        self.mappings_of_files(Files::All, options, visit)
    }

    fn mappings_of_files(
        &self,
        files: Files,
        options: ScanOptions,
        visit: &mut dyn FnMut(&Mapping<'_>),
    ) -> Result<Scan<()>, Error> {
        let visited = Cell::new(false);
        let mut visit = |mapping: &Mapping<'_>| {
            visited.set(true);
            visit(mapping);
        };
        self.read_maps(
            |maps| visit_files(maps, files, &options, &mut visit),
            // A scan that failed halfway is not repeated: no mapping may be visited twice.
            |scan| !visited.get() && scan.as_ref().is_err_and(is_gone),
        )
    }

    /// Reads `maps`, or another thread's if it is empty.
    pub(super) fn read_maps<T>(
        &self,
        mut read: impl FnMut(File) -> io::Result<T>,
        is_nothing: impl Fn(&io::Result<T>) -> bool,
    ) -> Result<T, Error> {
        let mut read = |prefix: &str| read(self.open_entry(&format!("{prefix}maps"))?);
        let mut whole = read("");
        if is_nothing(&whole)
            && let Some(prefix) = self.other_task()
        {
            whole = read(&prefix);
        }
        whole.map_err(|error| self.error("maps", "read the mappings", error))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    /// Executable mappings, without their names.
    Code,
    /// All mappings; the executable ones with their names.
    All,
}

/// ESRCH if there is no memory.
fn visit_files(
    maps: File,
    files: Files,
    options: &ScanOptions,
    visit: &mut dyn FnMut(&Mapping<'_>),
) -> io::Result<Scan<()>> {
    if !options.reads_text()
        && let Some(scan) = query_files(&maps, files, options, visit)?
    {
        return Ok(scan);
    }
    let mut seen = 0;
    let mut late = false;
    let walk = mappings::walk(maps, &mut |mapping| {
        late = is_clock_check_due(&mut seen) && options.is_past_deadline();
        if late || options.max_mappings.is_some_and(|limit| seen > limit) {
            return ControlFlow::Break(());
        }
        if mapping.inode != 0 && (files == Files::All || mapping.permissions.execute) {
            visit(mapping);
        }
        ControlFlow::Continue(())
    })?;
    Ok(match walk {
        walk if walk.mappings == 0 => return Err(Errno::ESRCH.into()),
        walk if !walk.stopped => Scan::Complete(()),
        _ if late => Scan::DeadlinePassed,
        _ => Scan::TooMany,
    })
}

/// `None` if the kernel is older, or does not permit it.
fn query_files(
    maps: &File,
    files: Files,
    options: &ScanOptions,
    visit: &mut dyn FnMut(&Mapping<'_>),
) -> io::Result<Option<Scan<()>>> {
    let (mut query, filter) = match files {
        Files::Code => (Query::new(maps), flags::FILE_BACKED | flags::EXECUTABLE),
        Files::All => (Query::with_paths(maps), flags::FILE_BACKED),
    };
    let (mut address, mut seen) = (0, 0);
    loop {
        if is_clock_check_due(&mut seen) && options.is_past_deadline() {
            return Ok(Some(Scan::DeadlinePassed));
        }
        match query.next(address, filter) {
            Ok(Some(mapping)) if mapping.end > address => {
                address = mapping.end;
                let is_named = files == Files::All && mapping.permissions.execute;
                // The mapping may have been removed since.
                match is_named.then(|| query.next_named(mapping.start, filter)) {
                    Some(Ok(Some(named))) if named.start == mapping.start => visit(&named),
                    Some(Err(error)) => return Err(error.into()),
                    _ => visit(&mapping),
                }
            }
            Ok(_) => return Ok(Some(Scan::Complete(()))),
            Err(error) if address == 0 && error != Errno::ESRCH => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
