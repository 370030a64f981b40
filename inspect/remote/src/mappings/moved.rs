//! Code that a process has moved from its file to other memory, as for huge pages.
//!
//! Node.js (`--use-largepages`), PHP (`opcache.huge_code_pages`), BOLT's and Intel's libraries copy the text of a loaded file
//! and map anonymous memory, a memfd or a file of hugetlbfs in its place: at the same addresses, but without the file's name.
//! Such memory is recognized by its place, inside an executable segment of a file that is mapped before or behind it, and by
//! its bytes.

use std::fs::File;
use std::ops::ControlFlow;

use super::Mapping;
use crate::Device;
use crate::elf::{Elf, Segment, Source, bias};
use crate::memory::{FileBytes, Memory};

/// Size of a page, in bytes; larger ones are multiples.
const PAGE: u64 = 4096;
/// Largest size of a page that files are mapped in (aarch64), in bytes.
const MAX_PAGE: u64 = 64 * 1024;
/// Size of the smallest huge page, in bytes: mappings of hugetlbfs are aligned to it.
pub const HUGE_PAGE: u64 = 2 << 20;
/// Maximum number of pages that are compared for a mapping: of a program of 60 MB, one in 1,000.
const MAX_COMPARED_PAGES: u64 = 16;
/// Maximum number of comparisons in one visit of a process's mappings.
const MAX_COMPARISONS: usize = 256;
/// Maximum number of files whose headers are read in one visit.
const MAX_FILES: usize = 16;
/// Maximum number of mappings that wait for a file behind them: just-in-time compilers can have thousands in a row.
const MAX_WAITING: usize = 64;
/// Maximum number of segments of a file that are considered. Usually, four are loaded.
const MAX_SEGMENTS: usize = 16;

/// An executable mapping, and the file that its code is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutableMapping<'a> {
    /// The mapping. If its code was moved, `offset`, `device`, `inode` and `name` are those of the file that it is from.
    pub mapping: Mapping<'a>,
    /// The range of a mapping of the file that the code was moved from, if it was.
    pub moved_from: Option<(u64, u64)>,
    /// True for memory in the place of a file's code that has other bytes: the process may be copying the code.
    pub may_be_copied: bool,
}

impl ExecutableMapping<'_> {
    /// Returns the range of a mapping of the file, as [`Process::mapped_file`](crate::Process::mapped_file) needs it.
    pub fn file_range(&self) -> (u64, u64) {
        let own = (self.mapping.start, self.mapping.end);
        self.moved_from.unwrap_or(own)
    }
}

/// Takes one executable mapping after another, until it breaks.
pub type VisitExecutable<'v> = &'v mut (dyn FnMut(&ExecutableMapping<'_>) -> ControlFlow<()> + 'v);

/// Access to a process for [`CodeVisitor`].
pub(crate) struct Access<'a> {
    /// Opens the file of a mapping.
    pub(crate) open: &'a dyn Fn(&Mapping<'_>) -> Option<File>,
    /// Fills the buffer with the memory at this address. Returns false if it cannot be read.
    pub(crate) read: &'a dyn Fn(u64, &mut [u8]) -> bool,
}

/// A mapping with its own copy of the name.
#[derive(Debug, Clone)]
pub(crate) struct OwnedMapping {
    pub(crate) mapping: Mapping<'static>,
    name: Vec<u8>,
}

impl OwnedMapping {
    pub(crate) fn of(mapping: &Mapping<'_>) -> Self {
        Self {
            mapping: Mapping {
                name: &[],
                ..*mapping
            },
            name: mapping.name.to_vec(),
        }
    }

    pub(crate) fn borrow(&self) -> Mapping<'_> {
        Mapping {
            name: &self.name,
            ..self.mapping
        }
    }
}

/// A file that code may have been moved from.
struct Original {
    device: Device,
    inode: u64,
    /// `None` if it is no ELF file, or cannot be read.
    file: Option<(File, Vec<Segment>)>,
}

/// Where the code of memory is in a file.
enum Place {
    Elsewhere,
    /// At addresses of the file's code, with other bytes.
    Differs,
    /// At this offset.
    At(u64),
}

/// Passes executable mappings on. Before, finds the file of those whose code was moved.
pub(crate) struct CodeVisitor<'v> {
    access: Access<'v>,
    visit: VisitExecutable<'v>,
    /// The last mapping of a file.
    before: Option<OwnedMapping>,
    /// Mappings behind it whose code may have been moved. A file behind them may tell.
    waiting: Vec<OwnedMapping>,
    files: Vec<Original>,
    comparisons: usize,
}

impl<'v> CodeVisitor<'v> {
    pub(crate) fn new(access: Access<'v>, visit: VisitExecutable<'v>) -> Self {
        Self {
            access,
            visit,
            before: None,
            waiting: Vec::new(),
            files: Vec::new(),
            comparisons: 0,
        }
    }

    /// Takes the mapping with the next higher address. Mappings between that are neither executable nor of a file may be left
    /// out.
    pub(crate) fn take(&mut self, mapping: &Mapping<'_>) -> ControlFlow<()> {
        let is_code = mapping.permissions.execute;
        if mapping.is_memory() {
            if !is_code {
                return ControlFlow::Continue(());
            }
            if self.waiting.len() >= MAX_WAITING {
                self.pass_on_waiting(None)?;
            }
            self.waiting.push(OwnedMapping::of(mapping));
            return ControlFlow::Continue(());
        }
        let file = (mapping.inode != 0).then_some(mapping);
        self.pass_on_waiting(file)?;
        if is_code && file.is_some() && may_be_huge(mapping) {
            self.waiting.push(OwnedMapping::of(mapping));
            return ControlFlow::Continue(());
        }
        self.before = file.map(OwnedMapping::of).or(self.before.take());
        if is_code {
            self.pass_on(mapping)
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Returns the end of the last mapping that waits for a file behind it, if any.
    pub(crate) fn waits_behind(&self) -> Option<u64> {
        self.waiting.last().map(|last| last.mapping.end)
    }

    /// Ends after the last mapping.
    pub(crate) fn finish(mut self) -> ControlFlow<()> {
        self.pass_on_waiting(None)
    }

    fn pass_on(&mut self, mapping: &Mapping<'_>) -> ControlFlow<()> {
        (self.visit)(&ExecutableMapping {
            mapping: *mapping,
            moved_from: None,
            may_be_copied: false,
        })
    }

    fn pass_on_waiting(&mut self, behind: Option<&Mapping<'_>>) -> ControlFlow<()> {
        for waiting in std::mem::take(&mut self.waiting) {
            let before = self.before.take();
            let near = before.as_ref().map(OwnedMapping::borrow);
            let mut found = ExecutableMapping {
                mapping: waiting.borrow(),
                moved_from: None,
                may_be_copied: false,
            };
            for file in near.iter().chain(behind) {
                match self.place_in(file, &waiting.mapping) {
                    Place::Elsewhere => {}
                    Place::Differs => found.may_be_copied = true,
                    Place::At(offset) => {
                        found.mapping.offset = offset;
                        (found.mapping.device, found.mapping.inode) = (file.device, file.inode);
                        found.mapping.name = file.name;
                        found.moved_from = Some((file.start, file.end));
                        found.may_be_copied = false;
                        break;
                    }
                }
            }
            let is_file = found.moved_from.is_none() && !waiting.borrow().is_memory();
            let flow = (self.visit)(&found);
            self.before = if is_file { Some(waiting) } else { before };
            flow?;
        }
        ControlFlow::Continue(())
    }

    /// Finds the place of memory in the file that is mapped at `near`.
    fn place_in(&mut self, near: &Mapping<'_>, memory: &Mapping<'_>) -> Place {
        let mut place = Place::Elsewhere;
        if (near.device, near.inode) == (memory.device, memory.inode) {
            return place;
        }
        let index = self.index_of(near);
        let Some((file, segments)) = index.and_then(|index| self.files[index].file.as_ref()) else {
            return place;
        };
        // Several segments can share the page of the file that is mapped there.
        let mapped = segments.iter().filter(|it| covers(it, near.offset));
        for bias in mapped.map(|it| bias(near.start, near.offset, it)) {
            for code in segments.iter().filter(|it| it.executable) {
                let Some(offset) = offset_in(code, memory, bias) else {
                    continue;
                };
                if self.comparisons >= MAX_COMPARISONS {
                    return place;
                }
                self.comparisons += 1;
                let size = memory.size().min(code.file_end() - offset);
                if agrees(&self.access, memory.start, file, offset, size) {
                    return Place::At(offset);
                }
                place = Place::Differs;
            }
        }
        place
    }

    fn index_of(&mut self, mapping: &Mapping<'_>) -> Option<usize> {
        let Mapping { device, inode, .. } = *mapping;
        let is_same = |it: &Original| (it.device, it.inode) == (device, inode);
        if let Some(known) = self.files.iter().position(is_same) {
            return Some(known);
        }
        if self.files.len() >= MAX_FILES {
            return None;
        }
        let read = |file: File| {
            let bytes = FileBytes(&file);
            let elf = Elf::read_headers(Source::File(&bytes)).ok()??;
            let segments = elf.loads().iter().take(MAX_SEGMENTS).copied().collect();
            Some((file, segments))
        };
        let file = (self.access.open)(mapping).and_then(read);
        self.files.push(Original {
            device,
            inode,
            file,
        });
        Some(self.files.len() - 1)
    }
}

impl Mapping<'_> {
    /// Returns true for memory that no file of a program or library is mapped in: without a file, or with one that the kernel
    /// has made for it. Code is generated there, and moved there.
    pub fn is_memory(&self) -> bool {
        match self.name {
            // Of the kernel.
            b"[vdso]" | b"[vsyscall]" | b"[uprobes]" => false,
            name => self.inode == 0 || is_name_of_memory(name),
        }
    }
}

/// Returns true for the names that the kernel gives to shared and huge memory: a memfd's, and those of mm/shmem.c,
/// fs/hugetlbfs/inode.c and ipc/shm.c.
pub fn is_name_of_memory(name: &[u8]) -> bool {
    let names: [&[u8]; 5] = [
        b"/memfd:",
        b"/anon_hugepage",
        b"/dev/zero",
        b"/SYSV",
        b"[anon_shmem:",
    ];
    names.iter().any(|it| name.starts_with(it))
}

/// Returns the offset in the file at which a segment with this bias has the code of some memory, if it is inside.
fn offset_in(code: &Segment, memory: &Mapping<'_>, bias: u64) -> Option<u64> {
    let skip = memory.start.wrapping_sub(bias).wrapping_sub(code.address);
    let offset = code.offset.wrapping_add(skip);
    let end = offset.checked_add(memory.size())?;
    let last = code.file_end().checked_next_multiple_of(MAX_PAGE)?;
    let is_inside = covers(code, offset) && offset.is_multiple_of(PAGE) && end <= last;
    (is_inside && memory.size() > 0).then_some(offset)
}

/// Returns true for executable memory that code of a file may have been moved to.
pub(crate) fn may_have_moved_code(mapping: &Mapping<'_>) -> bool {
    mapping.is_memory() || mapping.inode != 0 && may_be_huge(mapping)
}

/// Returns true for a mapping that may be of a file of hugetlbfs.
fn may_be_huge(mapping: &Mapping<'_>) -> bool {
    let place = mapping.start | mapping.end | mapping.offset;
    place.is_multiple_of(HUGE_PAGE)
}

/// Returns true if the segment has this offset of its file, or the page that it starts in does.
fn covers(segment: &Segment, offset: u64) -> bool {
    segment.offset / MAX_PAGE * MAX_PAGE <= offset && offset < segment.file_end()
}

/// Compares pages of memory with the file: the first, the last, and others at equal distances.
fn agrees(access: &Access<'_>, start: u64, file: &File, offset: u64, size: u64) -> bool {
    let pages = size.div_ceil(PAGE);
    let count = pages.min(MAX_COMPARED_PAGES);
    (0..count).all(|number| {
        let page = if number == 0 {
            0
        } else {
            (pages - 1) * number / (count - 1)
        };
        let skip = page * PAGE;
        let length = (size - skip).min(PAGE) as usize;
        let (mut ours, mut theirs) = ([0; PAGE as usize], [0; PAGE as usize]);
        let (ours, theirs) = (&mut ours[..length], &mut theirs[..length]);
        (access.read)(start.wrapping_add(skip), theirs)
            && FileBytes(file).read(offset + skip, ours).is_ok()
            && ours == theirs
    })
}

#[cfg(test)]
mod tests;
