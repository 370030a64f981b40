//! A core file: the memory and the threads of a process as the kernel or a debugger (`gcore`) has
//! written them.
//!
//! A core file lacks most of the contents of mapped files. They are read from files with the same
//! build IDs, if there are. Files are read with pread, never mapped, and not trusted.

mod files;
mod notes;
mod segments;

use std::ffi::OsString;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::elf::{Elf, ElfError, Segment, Source};
use crate::file::open_regular;
use crate::machine::Machine;
use crate::mappings::{Mapping, Visit, Walk};
use crate::memory::{FileBytes, MemoryError, Omission};
use crate::{Device, Error, Memory, Permissions, Target, ThreadInfo};
pub use notes::CoreThread;
use notes::{MappedFile, Notes};
use segments::{Load, Segments, missing};

/// Maximum number of mappings of one module: one for each of its segments.
const MAX_SEGMENTS: usize = 512;

/// A core file.
#[derive(Debug)]
pub struct CoreFile {
    path: PathBuf,
    file: File,
    /// The directory tree with the files that the process had mapped.
    root: PathBuf,
    segments: Segments,
    notes: Notes,
    /// Thread IDs and their positions in the notes, sorted.
    by_id: Vec<(i32, usize)>,
    missing: Vec<Missing>,
    /// The file from which memory was last read, by the start of its module.
    backing: Mutex<Option<(u64, Option<Backing>)>>,
}

/// Parts that a core file lacks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// The file is truncated.
    #[error(
        "the core file is truncated: it has {length} of {expected} bytes (see RLIMIT_CORE in \
         core(5), and the disk's free space)"
    )]
    CutShort {
        /// Its size, in bytes.
        length: u64,
        /// The size that it should have.
        expected: u64,
    },
    /// Some of the notes: threads and the names of mappings may be missing.
    #[error(
        "some notes of the core file are missing or unreadable: there may have been more threads"
    )]
    Notes,
    /// Some or all names of the files that were mapped (NT_FILE).
    #[error(
        "the core file does not name all files that were mapped (its NT_FILE note is missing or \
         unreadable): files without a name are not searched for thread-local variables"
    )]
    FileNames,
}

/// A file that provides memory missing from the core file.
#[derive(Debug)]
struct Backing {
    file: File,
    /// Segments to which the dynamic linker does not write.
    read_only: Vec<Segment>,
}

impl CoreFile {
    /// Opens the core file at `path`. The files that the process had mapped are searched below
    /// `root`, which is `/` for a process of this machine.
    pub fn open(path: &Path, root: &Path) -> Result<Self, Error> {
        match open_regular(path).map_err(Error::io(path))? {
            Some(file) => Self::from_file(file, path, root),
            None => Err(Error::Core {
                path: path.into(),
                reason: "it is not a regular file".to_string(),
            }),
        }
    }

    /// Reads an open core file; `path` is its name in messages.
    pub fn from_file(file: File, path: &Path, root: &Path) -> Result<Self, Error> {
        let length = file.metadata().map_err(Error::io(path))?.len();
        let core = |reason| Error::Core {
            path: path.into(),
            reason,
        };
        let segments = Segments::read(&file).map_err(core)?;
        if let Machine::Other(number) = segments.machine {
            return Err(core(format!(
                "it is from an unsupported architecture (e_machine {number})"
            )));
        }
        let notes = Notes::read(&file, length, &segments.notes, segments.machine);
        let ids = notes.threads.iter().map(|thread| thread.tid);
        let mut by_id: Vec<(i32, usize)> = ids.zip(0..).collect();
        by_id.sort_unstable();
        let mut missing = Vec::new();
        if length < segments.expected_size {
            missing.push(Missing::CutShort {
                length,
                expected: segments.expected_size,
            });
        }
        if notes.incomplete || segments.more_notes || notes.threads.is_empty() {
            missing.push(Missing::Notes);
        }
        if !notes.all_mapped {
            missing.push(Missing::FileNames);
        }
        Ok(CoreFile {
            path: path.into(),
            file,
            root: root.into(),
            segments,
            notes,
            by_id,
            missing,
            backing: Mutex::new(None),
        })
    }

    /// The path of the core file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The parts that the core file lacks.
    pub fn missing(&self) -> &[Missing] {
        &self.missing
    }

    /// The name of the executable's file.
    pub fn executable(&self) -> Option<OsString> {
        let mapped = self.mapped_at(self.notes.program_headers?)?;
        Some(OsString::from_vec(self.mapped_name(mapped).to_vec()))
    }

    /// The threads. The first is the one for which the core file was written: if a signal
    /// terminated the process, the thread that received it.
    pub fn threads(&self) -> &[CoreThread] {
        &self.notes.threads
    }

    /// The signal that terminated the process, if any, and the thread that received it.
    pub fn crash(&self) -> Option<(i32, i32)> {
        let first = self.notes.threads.first()?;
        (first.signal != 0).then_some((first.signal, first.tid))
    }

    /// Visits memory without a known file name, until `visit` returns false.
    fn visit_unnamed(&self, load: &Load, visit: &mut dyn FnMut(&Mapping<'_>) -> bool) -> bool {
        let is_vdso = self.notes.vdso == Some(load.start);
        self.mapped_at(load.start).is_some()
            || visit(&Mapping {
                start: load.start,
                end: load.end(),
                permissions: load.permissions,
                offset: 0,
                device: Device::default(),
                inode: 0,
                name: if is_vdso { b"[vdso]" } else { b"" },
            })
    }

    fn mapped(&self) -> &[MappedFile] {
        self.notes.mapped.as_deref().unwrap_or_default()
    }

    fn mapped_name(&self, mapped: &MappedFile) -> &[u8] {
        let start = mapped.name as usize;
        &self.notes.names[start..start + usize::from(mapped.name_length)]
    }

    fn mapped_index(&self, address: u64) -> Option<usize> {
        let behind = self.mapped().partition_point(|it| it.start <= address);
        let index = behind.checked_sub(1)?;
        (address < self.mapped()[index].end).then_some(index)
    }

    fn mapped_at(&self, address: u64) -> Option<&MappedFile> {
        Some(&self.mapped()[self.mapped_index(address)?])
    }

    /// Reads memory in the core file itself, at most up to the end of a segment.
    fn read_covered(&self, address: u64, buffer: &mut [u8]) -> Result<usize, MemoryError> {
        let covered = self.segments.covered(address);
        let (offset, length) = covered.map_err(|why| missing(address, why))?;
        let take = usize::try_from(length).map_or(buffer.len(), |length| length.min(buffer.len()));
        let mut done = 0;
        while done < take {
            let at = offset.saturating_add(done as u64);
            match self.file.read_at(&mut buffer[done..take], at) {
                Ok(0) => {
                    let address = address.wrapping_add(done as u64);
                    return Err(missing(address, Omission::CutShort));
                }
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The offset exceeds the maximum file size.
                Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => {
                    return Err(missing(address, Omission::CutShort));
                }
                Err(error) => {
                    return Err(MemoryError::System {
                        address,
                        length: take,
                        errno: error.raw_os_error().unwrap_or(0),
                    });
                }
            }
        }
        Ok(take)
    }

    /// Reads memory that the core file lacks from the file that was mapped there, unless the
    /// segment is writable: the process may have changed it.
    fn read_backing(&self, address: u64, buffer: &mut [u8]) -> Result<usize, Omission> {
        let writable = self.segments.load(address);
        if writable.is_some_and(|load| load.permissions.write) {
            return Err(Omission::LeftOut);
        }
        let index = self.mapped_index(address).ok_or(Omission::LeftOut)?;
        let first = self.with_headers(index);
        let mut backing = self.backing.lock().unwrap_or_else(PoisonError::into_inner);
        if backing.as_ref().is_none_or(|it| it.0 != first.start) {
            *backing = Some((first.start, self.open_backing(first)));
        }
        let Some((_, Some(backing))) = &*backing else {
            return Err(Omission::FileNotFound);
        };
        let mapped = &self.mapped()[index];
        let at = mapped.offset.saturating_add(address - mapped.start);
        let left = backing.read_only.iter().find_map(|segment| {
            let left = segment.file_end().checked_sub(at)?;
            (at >= segment.offset && left > 0).then_some(left)
        });
        let left = left.ok_or(Omission::LeftOut)?.min(mapped.end - address);
        let take = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let read = backing.file.read_exact_at(&mut buffer[..take], at);
        read.map(|()| take).map_err(|_| Omission::FileNotFound)
    }

    /// The first of the mappings of the same loaded module, which contains its headers.
    fn first_of_module(&self, index: usize) -> &MappedFile {
        let (before, from) = self.mapped().split_at(index);
        let mut first = &from[0];
        for earlier in before.iter().rev().take(MAX_SEGMENTS) {
            if earlier.name != first.name || earlier.offset > first.offset {
                break;
            }
            first = earlier;
        }
        first
    }

    /// The mapping with the headers of a mapping's module. Node.js maps a part of its file once more, elsewhere.
    fn with_headers(&self, index: usize) -> &MappedFile {
        let first = self.first_of_module(index);
        let has_headers = |it: &&MappedFile| it.offset == 0 && it.name == first.name;
        let other = || self.mapped().iter().find(has_headers);
        Some(first)
            .filter(has_headers)
            .or_else(other)
            .unwrap_or(first)
    }

    /// Permissions of a mapping that gdb has excluded and does not mention, from the module's
    /// headers. `known` caches the ranges of code of the last module, by its start.
    fn unmentioned_permissions(
        &self,
        index: usize,
        known: &mut Option<(u64, Option<Vec<Range<u64>>>)>,
    ) -> Permissions {
        let first = self.first_of_module(index);
        if known.as_ref().is_none_or(|it| it.0 != first.start) {
            *known = Some((first.start, self.code(first.start)));
        }
        let mapped = &self.mapped()[index];
        // Segments share pages of the file, whose size is unknown here, but do not share memory.
        let shows = |code: &Range<u64>| code.start < mapped.end && mapped.start < code.end;
        let code = known.as_ref().and_then(|(_, code)| code.as_deref());
        Permissions {
            execute: match code {
                Some(code) => code.iter().any(shows),
                // Code comes after the headers.
                None => mapped.offset > 0,
            },
            ..Permissions::default()
        }
    }

    /// The address ranges of code in the module whose headers are at `start`, if these are covered.
    fn code(&self, start: u64) -> Option<Vec<Range<u64>>> {
        let core = Core(self);
        let elf = Elf::read_headers(Source::Loaded(&core, start)).ok()??;
        let code = elf.loads.iter().filter(|load| load.executable);
        let range = |load: &Segment| {
            let start = elf.bias().wrapping_add(load.address);
            start..start.saturating_add(load.memory_size)
        };
        Some(code.map(range).collect())
    }

    fn open_backing(&self, first: &MappedFile) -> Option<Backing> {
        let file = self.find_file(first.start, self.mapped_name(first)).ok()?;
        let bytes = FileBytes(&file);
        let elf = Elf::read_headers(Source::File(&bytes)).ok()??;
        let read_only = elf.loads.iter().filter(|load| !load.writable);
        Some(Backing {
            read_only: read_only.copied().collect(),
            file,
        })
    }

    /// Finds the file of the module whose headers are loaded at `start`. The error is the reason.
    fn find_file(&self, start: u64, name: &[u8]) -> Result<File, String> {
        let held = Core(self);
        let headers = Elf::read_headers(Source::Loaded(&held, start));
        let id = headers.and_then(|elf| elf.map_or(Ok(None), |elf| elf.content_id()));
        match id {
            Ok(Some(id)) => files::find(&self.root, name, &id).ok_or_else(|| {
                format!(
                    "no file with its build ID {} was found below {}",
                    files::hexadecimal(&id),
                    self.root.display()
                )
            }),
            Ok(None) => Err("it has no build ID to identify its file (-Wl,--build-id)".to_string()),
            Err(ElfError::Memory(error)) => Err(format!("its build ID cannot be read: {error}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The contents of the core file, without other files.
struct Core<'a>(&'a CoreFile);

impl Memory for Core<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        read_all(address, buffer, |at, rest| self.0.read_covered(at, rest))
    }
}

impl Memory for CoreFile {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        read_all(address, buffer, |at, rest| {
            match self.read_covered(at, rest) {
                Err(MemoryError::NotInCore { page, why }) if why != Omission::CutShort => self
                    .read_backing(at, rest)
                    .map_err(|omission| MemoryError::NotInCore {
                        page,
                        // For memory without a file, keep the reason.
                        why: match omission {
                            Omission::LeftOut => why,
                            omission => omission,
                        },
                    }),
                held => held,
            }
        })
    }
}

fn read_all(
    address: u64,
    buffer: &mut [u8],
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize, MemoryError>,
) -> Result<(), MemoryError> {
    let mut done = 0;
    while done < buffer.len() {
        let at = address
            .checked_add(done as u64)
            .ok_or_else(|| missing(address, Omission::NotMentioned))?;
        done += read(at, &mut buffer[done..])?;
    }
    Ok(())
}

impl Target for CoreFile {
    /// A core file has no devices and inodes: the inode is a number for the name. Memory without a
    /// file has neither, and no name unless it is the vDSO.
    fn mappings(&self, visit: Visit<'_>) -> Result<Walk, Error> {
        let mut walk = Walk::default();
        let mut headers = None;
        let mut visit = |mapping: &Mapping<'_>| {
            walk.mappings += 1;
            walk.stopped = visit(mapping).is_break();
            !walk.stopped
        };
        let mut loads = self.segments.loads.iter().peekable();
        for (index, mapped) in self.mapped().iter().enumerate() {
            while let Some(load) = loads.next_if(|load| load.start <= mapped.start) {
                if !self.visit_unnamed(load, &mut visit) {
                    return Ok(walk);
                }
            }
            let permissions = match self.segments.load(mapped.start) {
                Some(load) => load.permissions,
                None => self.unmentioned_permissions(index, &mut headers),
            };
            let mapping = Mapping {
                start: mapped.start,
                end: mapped.end,
                permissions,
                offset: mapped.offset,
                device: Device::default(),
                inode: u64::from(mapped.name) + 1,
                name: self.mapped_name(mapped),
            };
            if !visit(&mapping) {
                return Ok(walk);
            }
        }
        let _ = loads.all(|load| self.visit_unnamed(load, &mut visit));
        Ok(walk)
    }

    fn unlisted(&self) -> Option<String> {
        let is_unnamed = self.missing.contains(&Missing::FileNames);
        is_unnamed.then(|| Missing::FileNames.to_string())
    }

    fn mapped_file(
        &self,
        (start, _): (u64, u64),
        name: &[u8],
        _: Device,
        _: u64,
    ) -> Result<File, Option<String>> {
        // Any of the module's mappings may be asked for.
        let index = self.mapped_index(start);
        let first = index.map_or(start, |index| self.with_headers(index).start);
        self.find_file(first, name).map_err(Some)
    }

    fn machine(&self) -> Machine {
        self.segments.machine
    }

    fn name(&self) -> OsString {
        self.path.clone().into_os_string()
    }

    fn pid(&self) -> Option<i32> {
        self.notes.pid
    }

    fn comm(&self) -> Result<OsString, Error> {
        let comm = self.notes.comm.clone().unwrap_or_default();
        Ok(OsString::from_vec(comm))
    }

    fn thread_ids(&self, visit: &mut dyn FnMut(i32) -> ControlFlow<()>) -> Result<(), Error> {
        let mut threads = self.notes.threads.iter();
        let _ = threads.try_for_each(|thread| visit(thread.tid));
        Ok(())
    }

    fn thread(&self, tid: i32) -> Result<ThreadInfo, Error> {
        let at = self.by_id.partition_point(|(other, _)| *other < tid);
        let Some((_, index)) = self.by_id.get(at).filter(|(found, _)| *found == tid) else {
            let pid = self.notes.pid.unwrap_or_default();
            return Err(Error::NoSuchThread { pid, tid });
        };
        let thread = &self.notes.threads[*index];
        let mut info = ThreadInfo::new(tid);
        info.thread_pointer = thread.thread_pointer;
        info.registers = thread.registers;
        Ok(info)
    }
}

#[cfg(test)]
mod tests;
