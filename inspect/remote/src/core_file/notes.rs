//! The notes of a core file: the process, its threads, the files that it had mapped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{self, NoteType};

use crate::arch::ThreadPointerNote;
use crate::machine::Machine;
use crate::target::CallRegisters;

/// Maximum number of notes read; a core has up to about ten per thread.
const MAX_NOTES: u32 = 1 << 20;
/// Maximum number of threads: four times the kernel's default limit (`kernel.threads-max`).
const MAX_THREADS: usize = 1 << 17;
/// Maximum number of mappings: as many as program headers.
const MAX_MAPPED: u64 = 1 << 19;
/// Maximum size of all file names, in bytes. By default the kernel writes at most 4 MiB of NT_FILE.
const MAX_NAMES: usize = 8 << 20;
/// Maximum size of a file name, in bytes (PATH_MAX, plus ` (deleted)`).
const MAX_NAME: usize = 4096 + 16;
/// Number of bytes read at a time.
const CHUNK: u64 = 4096;

/// `struct elf_prstatus` (<sys/procfs.h>): the same on every 64-bit machine, up to the registers.
const STATUS_SIGNAL: usize = 12;
const STATUS_PID: usize = 32;
/// `struct elf_prpsinfo`.
const PROCESS_SIZE: u64 = 136;
const PROCESS_PID: usize = 24;
const PROCESS_NAME: usize = 40;
const PROCESS_NAME_SIZE: usize = 16;
/// Entries of the auxiliary vector (<elf.h>): addresses of the program headers and of the vDSO.
const AT_PHDR: u64 = 3;
const AT_SYSINFO_EHDR: u64 = 33;

/// A thread in a core file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreThread {
    /// Its ID in its own PID namespace.
    pub tid: i32,
    /// The signal that terminated the process (the same for every thread); 0 if it continued.
    pub signal: i32,
    /// The thread pointer: fs base on x86-64, TPIDR_EL0 on aarch64. `None` if it is missing.
    pub thread_pointer: Option<u64>,
    /// The registers for unwinding its stack. `None` if they are missing.
    pub registers: Option<CallRegisters>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    /// Start of its name in [`Notes::names`]: the same for consecutive mappings of one file.
    pub(crate) name: u32,
    /// Length of the name, in bytes.
    pub(crate) name_length: u16,
}

#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) threads: Vec<CoreThread>,
    pub(crate) pid: Option<i32>,
    pub(crate) comm: Option<Vec<u8>>,
    /// The address at which the program headers are loaded.
    pub(crate) program_headers: Option<u64>,
    pub(crate) vdso: Option<u64>,
    /// Sorted by their addresses; `None` without NT_FILE.
    pub(crate) mapped: Option<Vec<MappedFile>>,
    pub(crate) all_mapped: bool,
    /// The names of `mapped`, each terminated by a NUL byte.
    pub(crate) names: Vec<u8>,
    /// True if notes are missing, or exceed the limits.
    pub(crate) incomplete: bool,
}

impl Notes {
    /// Reads the notes at these offsets and of these sizes, in a file of `length` bytes.
    pub(crate) fn read(file: &File, length: u64, places: &[(u64, u64)], machine: Machine) -> Self {
        let mut notes = Notes::default();
        let mut left = MAX_NOTES;
        for (offset, size) in places {
            let end = offset.saturating_add(*size);
            let mut bytes = Bytes::new(file, end.min(length));
            let whole = notes.read_all(&mut bytes, *offset, end, machine, &mut left);
            notes.incomplete |= whole.is_none();
        }
        if let Some(mapped) = &mut notes.mapped {
            mapped.sort_unstable_by_key(|mapped| mapped.start);
        }
        notes
    }

    /// `None` if the notes are truncated.
    fn read_all(
        &mut self,
        bytes: &mut Bytes<'_>,
        mut at: u64,
        end: u64,
        machine: Machine,
        left: &mut u32,
    ) -> Option<()> {
        while at < end {
            *left = left.checked_sub(1)?;
            let [name_size, size, kind] = [0, 4, 8].map(|skip| bytes.u32(at.checked_add(skip)?));
            let (name_size, size) = (u64::from(name_size?), u64::from(size?));
            let start = (at + 12).checked_add(name_size.next_multiple_of(4))?;
            let next = start.checked_add(size.next_multiple_of(4))?;
            let kind = NoteType(kind?);
            let note = Note { start, size, kind };
            // Debuggers add notes with their own names.
            let owner = match name_size {
                5 => bytes.array::<5>(at + 12)? == *b"CORE\0",
                6 => bytes.array::<6>(at + 12)? == *b"LINUX\0",
                _ => false,
            };
            if owner {
                self.take(bytes, note, machine)?;
            }
            // A note whose contents are not needed may still be truncated.
            (start.checked_add(size)? <= bytes.end).then_some(())?;
            at = next;
        }
        Some(())
    }

    /// Reads the useful contents of a note; `None` if it is truncated.
    fn take(&mut self, bytes: &mut Bytes<'_>, note: Note, machine: Machine) -> Option<()> {
        let layout = machine.status_layout();
        match (note.kind, layout) {
            (elf::NT_PRSTATUS, Some(layout)) if note.size == layout.size => {
                let at = |offset: usize| note.start.checked_add(offset as u64);
                if self.threads.len() == MAX_THREADS {
                    return None;
                }
                let thread_pointer = match layout.thread_pointer {
                    ThreadPointerNote::Status(offset) => Some(bytes.u64(at(offset)?)?),
                    ThreadPointerNote::Own(_) => None,
                };
                let word = |bytes: &mut Bytes<'_>, index: usize| {
                    bytes.u64(at(layout.registers + 8 * index)?)
                };
                let registers = CallRegisters {
                    instruction_pointer: word(bytes, layout.instruction_pointer)?,
                    stack_pointer: word(bytes, layout.stack_pointer)?,
                    frame_pointer: word(bytes, layout.frame_pointer)?,
                    link: match layout.link {
                        Some(index) => Some(word(bytes, index)?),
                        None => None,
                    },
                };
                self.threads.push(CoreThread {
                    registers: Some(registers),
                    tid: bytes.u32(at(STATUS_PID)?)? as i32,
                    signal: i32::from(bytes.u32(at(STATUS_SIGNAL)?)? as i16),
                    thread_pointer,
                });
            }
            // A thread with an unknown layout.
            (elf::NT_PRSTATUS, _) => self.incomplete = true,
            (elf::NT_PRPSINFO, _) if note.size == PROCESS_SIZE => {
                let fields = bytes.array::<{ PROCESS_SIZE as usize }>(note.start)?;
                let name = &fields[PROCESS_NAME..PROCESS_NAME + PROCESS_NAME_SIZE];
                let length = name.iter().position(|byte| *byte == 0);
                self.comm = Some(name[..length.unwrap_or(name.len())].to_vec());
                self.pid = Some(bytes.u32(note.start + PROCESS_PID as u64)? as i32);
            }
            (elf::NT_AUXV, _) => {
                let entries = (note.size / 16).min(1024);
                for index in 0..entries {
                    let at = note.start.checked_add(16 * index)?;
                    match bytes.u64(at)? {
                        AT_PHDR => self.program_headers = Some(bytes.u64(at + 8)?),
                        AT_SYSINFO_EHDR => self.vdso = Some(bytes.u64(at + 8)?),
                        _ => {}
                    }
                }
            }
            (elf::NT_FILE, _) if self.mapped.is_none() => self.take_files(bytes, note)?,
            (kind, Some(layout))
                if layout.thread_pointer == ThreadPointerNote::Own(kind) && note.size >= 8 =>
            {
                let value = bytes.u64(note.start)?;
                // It follows the status of its thread.
                if let Some(thread) = self.threads.last_mut() {
                    thread.thread_pointer = thread.thread_pointer.or(Some(value));
                }
            }
            _ => {}
        }
        Some(())
    }

    /// NT_FILE (`fill_files_note` in the kernel's fs/binfmt_elf.c): count and unit of the
    /// offsets, {start, end, offset} of each mapping, then their names.
    fn take_files(&mut self, bytes: &mut Bytes<'_>, note: Note) -> Option<()> {
        let end = note.start.checked_add(note.size)?;
        let (count, unit) = (bytes.u64(note.start)?, bytes.u64(note.start + 8)?);
        let entries_at = note.start + 16;
        let mut name_at = entries_at.checked_add(count.checked_mul(24)?)?;
        if count > MAX_MAPPED || name_at > end {
            return None;
        }
        // Names are read in turn with the entries, from another part of the note.
        let mut names = Bytes::new(bytes.file, bytes.end);
        let (mut last, mut last_length) = (0, 0);
        let mapped = self.mapped.insert(Vec::new());
        for index in 0..count {
            let at = entries_at + 24 * index;
            let [start, stop, offset] = [0, 8, 16].map(|skip| bytes.u64(at + skip));
            let name = names.text(name_at, end)?;
            name_at += name.len() as u64 + 1;
            // The mappings of a module are consecutive.
            if index == 0 || name != self.names[last..last + last_length] {
                if self.names.len() + name.len() >= MAX_NAMES {
                    return None;
                }
                (last, last_length) = (self.names.len(), name.len());
                self.names.extend_from_slice(&name);
                // An empty name is stored as well.
                self.names.push(0);
            }
            let (start, end) = (start?, stop?);
            if start < end {
                mapped.push(MappedFile {
                    start,
                    end,
                    offset: offset?.saturating_mul(unit),
                    // Both are below their limits.
                    name: last as u32,
                    name_length: last_length as u16,
                });
            }
        }
        self.all_mapped = true;
        Some(())
    }
}

#[derive(Debug, Clone, Copy)]
struct Note {
    start: u64,
    size: u64,
    kind: NoteType,
}

/// The bytes of a file up to an end, buffered.
struct Bytes<'a> {
    file: &'a File,
    end: u64,
    at: u64,
    buffer: Vec<u8>,
}

impl<'a> Bytes<'a> {
    fn new(file: &'a File, end: u64) -> Self {
        Bytes {
            file,
            end,
            at: 0,
            buffer: Vec::new(),
        }
    }

    /// The buffered bytes from `at` on, at least `length` bytes. `None` beyond the end.
    fn from(&mut self, at: u64, length: usize) -> Option<&[u8]> {
        let end = at
            .checked_add(length as u64)
            .filter(|end| *end <= self.end)?;
        if at < self.at || end > self.at + self.buffer.len() as u64 {
            let size = CHUNK.max(length as u64).min(self.end - at);
            self.buffer.resize(size as usize, 0);
            self.at = at;
            if self.file.read_exact_at(&mut self.buffer, at).is_err() {
                self.buffer.clear();
                return None;
            }
        }
        Some(&self.buffer[(at - self.at) as usize..])
    }

    fn array<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        self.from(at, N)?.first_chunk().copied()
    }

    fn u32(&mut self, at: u64) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    fn u64(&mut self, at: u64) -> Option<u64> {
        self.array(at).map(u64::from_le_bytes)
    }

    /// A string up to its NUL byte, which must come before `end`.
    fn text(&mut self, mut at: u64, end: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while at < end && text.len() <= MAX_NAME {
            let piece = self.from(at, 1)?;
            let piece = &piece[..piece.len().min((end - at) as usize)];
            let stop = piece.iter().position(|byte| *byte == 0);
            text.extend_from_slice(&piece[..stop.unwrap_or(piece.len())]);
            if stop.is_some() {
                return (text.len() <= MAX_NAME).then_some(text);
            }
            at += piece.len() as u64;
        }
        None
    }
}
