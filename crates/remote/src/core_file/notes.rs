//! The notes of a core file: the process, its threads, the files that it had mapped.

use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{self, NoteType};

use crate::arch::ThreadPointerNote;
use crate::machine::Machine;
use crate::target::CallRegisters;

/// Maximum number of notes read; a core has up to about ten per thread.
const MAX_NOTES: u32 = 1 << 20;
/// Threads that are kept: four times what a kernel starts by default (`kernel.threads-max`).
const MAX_THREADS: usize = 1 << 17;
/// Mappings that are kept; as many as program headers.
const MAX_MAPPED: u64 = 1 << 19;
/// Bytes of file names that are kept, one that follows itself counted once. By default the kernel
/// writes at most 4 MiB of NT_FILE.
const MAX_NAMES: usize = 8 << 20;
/// The longest file name that is read, in bytes (PATH_MAX, and ` (deleted)`).
const MAX_NAME: usize = 4096 + 16;
/// Bytes read at a time.
const CHUNK: u64 = 4096;

/// `struct elf_prstatus` (<sys/procfs.h>): the same on every 64-bit machine, up to the registers.
const STATUS_SIGNAL: usize = 12;
const STATUS_PID: usize = 32;
/// `struct elf_prpsinfo`.
const PROCESS_SIZE: u64 = 136;
const PROCESS_PID: usize = 24;
const PROCESS_NAME: usize = 40;
const PROCESS_NAME_SIZE: usize = 16;
/// Entry of the auxiliary vector that has the address of the program's headers (<elf.h>).
const AT_PHDR: u64 = 3;

/// A thread, as the core file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoreThread {
    /// Its id in its own PID namespace.
    pub tid: i32,
    /// The signal that ended the process (the same in every thread), 0 if it went on.
    pub signal: i32,
    /// The thread pointer: fs base on x86-64, TPIDR_EL0 on aarch64. `None` if it is missing.
    pub thread_pointer: Option<u64>,
    /// The registers that its stack is unwound from. `None` if they are missing.
    pub registers: Option<CallRegisters>,
}

/// A mapping of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MappedFile {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// In bytes.
    pub(crate) offset: u64,
    /// Where its name begins in [`Notes::names`]: the same in mappings of one file that follow one
    /// another.
    pub(crate) name: u32,
    /// Bytes of the name.
    pub(crate) name_length: u16,
}

/// What the notes say.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    pub(crate) threads: Vec<CoreThread>,
    pub(crate) pid: Option<i32>,
    pub(crate) comm: Option<Vec<u8>>,
    /// Where the program's headers are loaded.
    pub(crate) program_headers: Option<u64>,
    /// Sorted by their addresses; `None` without NT_FILE.
    pub(crate) mapped: Option<Vec<MappedFile>>,
    /// `mapped` has all that were mapped.
    pub(crate) all_mapped: bool,
    /// The names of `mapped`, each with a NUL byte behind it.
    pub(crate) names: Vec<u8>,
    /// Some of the notes are missing, or there are more than the limit.
    pub(crate) incomplete: bool,
}

impl Notes {
    /// Reads the notes at these offsets, of these sizes, in a file of `length` bytes.
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

    /// `None` where the notes are cut short.
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
            let note = Note {
                start,
                size,
                kind: NoteType(kind?),
            };
            // Debuggers add notes under names of their own.
            let owner = match name_size {
                5 => bytes.array::<5>(at + 12)? == *b"CORE\0",
                6 => bytes.array::<6>(at + 12)? == *b"LINUX\0",
                _ => false,
            };
            if owner {
                self.take(bytes, note, machine)?;
            }
            // A note whose contents are not needed may still be cut short.
            if start.checked_add(size)? > bytes.end {
                return None;
            }
            at = next;
        }
        Some(())
    }

    /// Takes what is of use in a note, `None` where it is cut short.
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
            // A thread in an unknown layout.
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
                    if bytes.u64(at)? == AT_PHDR {
                        self.program_headers = Some(bytes.u64(at + 8)?);
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
        // The names are in a second place of the note.
        let mut names = bytes.again();
        let (mut last, mut last_length) = (0, 0);
        let mapped = self.mapped.insert(Vec::new());
        for index in 0..count {
            let at = entries_at + 24 * index;
            let [start, stop, offset] = [0, 8, 16].map(|skip| bytes.u64(at + skip));
            let name = names.text(name_at, end)?;
            name_at += name.len() as u64 + 1;
            // A module's mappings follow one another.
            if index == 0 || name != self.names[last..last + last_length] {
                if self.names.len() + name.len() >= MAX_NAMES {
                    return None;
                }
                (last, last_length) = (self.names.len(), name.len());
                self.names.extend_from_slice(&name);
                // Also one of no bytes has a place of its own.
                self.names.push(0);
            }
            let (start, end) = (start?, stop?);
            if start < end {
                mapped.push(MappedFile {
                    start,
                    end,
                    offset: offset?.saturating_mul(unit),
                    // Both below their limits.
                    name: last as u32,
                    name_length: last_length as u16,
                });
            }
        }
        self.all_mapped = true;
        Some(())
    }
}

/// Where the contents of a note are.
#[derive(Debug, Clone, Copy)]
struct Note {
    start: u64,
    size: u64,
    kind: NoteType,
}

/// The bytes of a file up to an end, some of them in a buffer.
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

    /// The same, with a buffer of its own.
    fn again(&self) -> Self {
        Bytes::new(self.file, self.end)
    }

    /// What is in the buffer from `at` on, at least `length` bytes. `None` behind the end.
    fn from(&mut self, at: u64, length: usize) -> Option<&[u8]> {
        let end = at.checked_add(length as u64)?;
        if end > self.end {
            return None;
        }
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

    /// A text up to its NUL byte, which comes before `end`.
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
