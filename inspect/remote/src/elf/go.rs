//! The table that Go's runtime keeps for its own stack traces, also in stripped programs (`-ldflags=-s`): its functions,
//! their names, and how far the stack pointer is below the return address.
//!
//! It is that of Go 1.18 and later (`pcHeader`, `functab` and `_func` in Go's src/runtime).

mod calls;
mod module;

pub use calls::GoCall;
use module::Module;

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

use super::{Elf, ElfError};

/// Maximum size of the table, in bytes: 128 MiB. Kubernetes' kubelet, a large program, has 25 MiB.
const MAX_TABLE: u64 = 128 << 20;
/// Maximum length of a name that is kept, in bytes.
const MAX_NAME: usize = 4096;
/// Its section; the second in position-independent programs of external linkers.
const SECTIONS: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
/// A section that all programs of Go's linker have.
const MARK: &[u8] = b".go.buildinfo";
/// Sections with the structure that says where everything is: of Go 1.26 and later, and of earlier versions.
const MODULES: [&[u8]; 2] = [b".go.module", b".noptrdata"];
/// The first four bytes, of Go 1.18 and 1.19, and of Go 1.20 and later.
const MAGICS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Functions at the entry point of programs that Go's own linker has made.
const ENTRIES: [&[u8]; 2] = [b"_rt0_amd64_linux\0", b"_rt0_arm64_linux\0"];
/// Offsets in `_func`, in bytes: `nameOff`, `pcsp`, and `flag`, which Go 1.20 moved by one word (`startLine`).
const NAME: usize = 4;
const STACK_SIZES: usize = 16;
const FLAG: [usize; 2] = [37, 41];
/// `abi.FuncFlagTopFrame` (Go's src/internal/abi/symtab.go): the function is the first one of its stack.
const TOP_FRAME: u8 = 1;
/// `abi.FuncFlagSPWrite`: the function goes to another stack.
const STACK_WRITE: u8 = 2;
/// `abi.FuncFlagAsm`: the function is written in assembly.
const ASSEMBLY: u8 = 4;
/// What the kernel calls for a signal (runtime/sys_linux_amd64.s), and what that returns to; `runtime.sigreturn` up to
/// Go 1.19.
const SIGNAL_HANDLER: &str = "runtime.sigtramp";
const SIGNAL_RETURN: &str = "runtime.sigreturn";
/// The function that leaves a goroutine's stack for the scheduler's: what it calls is the first of that stack, because
/// another thread may run the goroutine meanwhile. It clears the frame pointer for that reason since Go 1.25
/// (runtime/asm_amd64.s).
const LEAVING: &str = "runtime.mcall";
/// The function that grows a goroutine's stack, on the scheduler's, or puts the goroutine aside to run another one
/// (runtime/stack.go).
const GROWING: &str = "runtime.newstack";
/// What it calls to put a goroutine aside, which another thread may run from then on (runtime/proc.go). Up to Go 1.22,
/// `gopreempt_m` calls `goschedImpl`.
const PUTTING_ASIDE: [&str; 3] = [
    "runtime.goschedImpl",
    "runtime.gopreempt_m",
    "runtime.preemptPark",
];
/// The suffix of the names of functions that take their arguments on the stack.
const STACK_ABI: &str = ".abi0";
/// Sizes of the smallest instruction, in bytes (`MinLC` in Go's src/cmd/internal/sys/arch.go).
const QUANTA: [u8; 3] = [1, 2, 4];
/// The size that a stack stays below, in bytes: 1 GiB. The runtime ends programs whose stacks are larger
/// (`maxstacksize` in Go's src/runtime/proc.go).
const MAX_STACK: i32 = 1 << 30;

/// The functions of a Go program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GoTable {
    bytes: Vec<u8>,
    header: Header,
    /// The address that the functions' addresses count from.
    text: u64,
    /// The address that the offsets of what functions refer to count from, if it is known.
    referred: Option<u64>,
    /// Size of the smallest instruction, in bytes.
    quantum: u64,
}

/// The offsets of the table's parts, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Header {
    is_new: bool,
    /// Number of functions.
    count: usize,
    names: usize,
    /// Offsets of files' names, by unit of compilation, and the names.
    units: usize,
    files: usize,
    /// Encoded values for ranges of addresses.
    values: usize,
    /// The table of functions: the address and the offset of each.
    functions: usize,
    /// The address that addresses count from; 0 if the table has none.
    text: u64,
}

/// A function of a Go program.
#[derive(Debug, Clone, Copy)]
pub struct GoFunction<'a> {
    table: &'a GoTable,
    /// First address, and the one behind the last one, of the program's headers.
    start: u64,
    end: u64,
    /// The offset of its `_func`, in bytes.
    place: usize,
}

impl GoTable {
    /// Size of the table, in bytes.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Reads the table of a file. `None` if it is no program of Go's, or its functions' addresses are not known.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(elf: &Elf<'_>) -> Result<Option<Self>, ElfError> {
        let [table, beside, text, mark, newer, older] = elf.sections_named([
            SECTIONS[0],
            SECTIONS[1],
            b".text",
            MARK,
            MODULES[0],
            MODULES[1],
        ])?;
        // Sections are enough where the structure is not found, as in versions to come, or damaged.
        if let Some(section) = newer.or(older).filter(|_| mark.is_some())
            && let Ok(Some(module)) = Module::find(elf, &section)
            && let Some(table) = Self::of_module(elf, &module)
        {
            return Ok(Some(table));
        }
        let Some(section) = table.or(beside).filter(|it| it.size <= MAX_TABLE) else {
            return Ok(None);
        };
        let bytes = elf.section_bytes(&section, MAX_TABLE)?;
        let text = text.map_or(0, |text| text.address);
        Ok(Self::parse(bytes, elf.entry(), text))
    }

    /// `None` if the table's functions are not where the structure says.
    fn of_module(elf: &Elf<'_>, module: &Module) -> Option<Self> {
        let mut bytes = vec![0; usize::try_from(module.size).ok()?];
        elf.read_at(module.table, &mut bytes).ok()?;
        let mut table = Self::new(bytes, Some(module.text))?;
        let ends = (table.start(0)?, table.start(table.header.count)?);
        table.referred = module.referred;
        (ends == module.ends).then_some(table)
    }

    /// Reads a table, given the address of the program's entry point, and that of its code. `None` if it is not one of
    /// Go's, or its functions are not in the order of their addresses.
    pub fn parse(bytes: Vec<u8>, entry: u64, text: u64) -> Option<Self> {
        let mut table = Self::new(bytes, None)?;
        if table.text == 0 {
            // Position-independent programs, and all from Go 1.26 on. Go's own linker has only Go's code in the section.
            let start = (0..table.header.count).find(|index| {
                let name = table
                    .place(*index)
                    .and_then(|place| table.name_bytes(place));
                name.is_some_and(|name| ENTRIES.iter().any(|it| name.starts_with(it)))
            })?;
            if entry.checked_sub(table.start(start)?) != Some(text) {
                return None;
            }
            table.text = text;
        }
        Some(table)
    }

    /// Reads a table whose functions' addresses count from `text`, or from what its header says.
    fn new(bytes: Vec<u8>, text: Option<u64>) -> Option<Self> {
        let header = Header::parse(&bytes)?;
        let quantum = *bytes.get(6).filter(|size| QUANTA.contains(size))?;
        let table = Self {
            bytes,
            header,
            text: text.unwrap_or(header.text),
            referred: None,
            quantum: quantum.into(),
        };
        let mut last = 0;
        for index in 0..=header.count {
            let start = table.start(index)?;
            if start < last {
                return None;
            }
            last = start;
        }
        Some(table)
    }

    /// Its functions, in the order of the table, which is that of their addresses.
    pub fn functions(&self) -> impl Iterator<Item = GoFunction<'_>> {
        (0..self.header.count).filter_map(|index| self.function(index))
    }

    /// The function at an address of the program's headers.
    pub fn function_at(&self, address: u64) -> Option<GoFunction<'_>> {
        let offset = address.checked_sub(self.text)?;
        // The entry behind the last function is its end.
        if offset >= self.start(self.header.count)? {
            return None;
        }
        let (mut first, mut behind) = (0, self.header.count);
        while behind - first > 1 {
            let middle = first.midpoint(behind);
            if self.start(middle)? <= offset {
                first = middle;
            } else {
                behind = middle;
            }
        }
        let function = self.function(first)?;
        (function.start <= address).then_some(function)
    }

    fn function(&self, index: usize) -> Option<GoFunction<'_>> {
        Some(GoFunction {
            table: self,
            start: self.text.checked_add(self.start(index)?)?,
            end: self.text.checked_add(self.start(index + 1)?)?,
            place: self.place(index)?,
        })
    }

    /// The address of a function, from the start of Go's code; with the count, the end of the last one.
    fn start(&self, index: usize) -> Option<u64> {
        let entry = self.header.functions.checked_add(index.checked_mul(8)?)?;
        u32_at(&self.bytes, entry).map(u64::from)
    }

    /// The offset of a function's `_func`.
    fn place(&self, index: usize) -> Option<usize> {
        let entry = self.header.functions.checked_add(index.checked_mul(8)?)?;
        let place = u32_at(&self.bytes, entry.checked_add(4)?)? as usize;
        self.header.functions.checked_add(place)
    }

    /// The rest of the table, from the name of a function on.
    fn name_bytes(&self, place: usize) -> Option<&[u8]> {
        self.names_from(self.name_offset(place)?)
    }

    fn name_offset(&self, place: usize) -> Option<u32> {
        u32_at(&self.bytes, place.checked_add(NAME)?)
    }

    fn names_from(&self, offset: u32) -> Option<&[u8]> {
        self.bytes
            .get(self.header.names.checked_add(offset as usize)?..)
    }

    /// The name at an offset of the names, as Go's linker writes it into symbol tables; empty if there is none.
    fn name_at(&self, offset: u32) -> Cow<'_, str> {
        let name = self.names_from(offset).unwrap_or_default();
        let name = &name[..name.len().min(MAX_NAME)];
        let end = name.iter().position(|byte| *byte == 0);
        let name = String::from_utf8_lossy(&name[..end.unwrap_or(name.len())]);
        match name.contains('·') {
            true => name.replace('·', ".").into(),
            false => name,
        }
    }
}

impl<'a> GoFunction<'a> {
    /// Its addresses, of the program's headers.
    pub fn range(&self) -> Range<u64> {
        self.start..self.end
    }

    /// Its name, as Go's linker writes it into symbol tables (putelfsym in its elf.go); empty if it has none. Up to Go
    /// 1.20, it has `[...]` in the place of types.
    pub fn name(&self) -> Cow<'a, str> {
        let offset = self.table.name_offset(self.place);
        offset.map_or_else(Cow::default, |offset| self.table.name_at(offset))
    }

    /// Returns whether it is the first function of its stack. Go's runtime also takes handlers of signals for one, behind
    /// which is what the signal has interrupted.
    pub fn is_first(&self) -> bool {
        self.flags() & TOP_FRAME != 0 && !self.name().starts_with(SIGNAL_HANDLER)
    }

    /// Returns whether handlers of signals return to it: its caller is what the signal has interrupted.
    pub fn is_signal_return(&self) -> bool {
        self.name().starts_with(SIGNAL_RETURN)
    }

    /// Returns whether it goes to another stack, so that its stack's sizes do not lead to its caller.
    pub fn changes_stack(&self) -> bool {
        self.flags() & STACK_WRITE != 0
    }

    /// Returns whether what it calls is the first function of another stack.
    pub fn leaves_stack(&self) -> bool {
        let name = self.name();
        name.strip_suffix(STACK_ABI).unwrap_or(&name) == LEAVING
    }

    /// Returns whether it runs on the scheduler's stack for a goroutine whose stack may have to grow. What puts that goroutine
    /// aside is the first function of the scheduler's stack, as in one that [leaves](Self::leaves_stack) its stack.
    pub fn grows_stack(&self) -> bool {
        self.is_named(GROWING)
    }

    /// Returns whether it puts a goroutine aside, and never returns.
    pub fn puts_goroutine_aside(&self) -> bool {
        PUTTING_ASIDE.iter().any(|name| self.is_named(name))
    }

    fn is_named(&self, name: &str) -> bool {
        let bytes = self.table.name_bytes(self.place).unwrap_or_default();
        bytes.strip_prefix(name.as_bytes()).and_then(<[u8]>::first) == Some(&0)
    }

    /// Returns whether it is written in assembly: it need not save the frame pointer where Go's compiler does.
    pub fn is_assembly(&self) -> bool {
        self.flags() & ASSEMBLY != 0
    }

    fn flags(&self) -> u8 {
        let flag = FLAG[usize::from(self.table.header.is_new)];
        let flag = self.place.checked_add(flag);
        let flag = flag.and_then(|flag| self.table.bytes.get(flag));
        flag.copied().unwrap_or_default()
    }

    /// Calls `visit` with each address from which on the stack has another size, and that size, until it breaks: the
    /// bytes from the stack pointer to where it was when the function was called, behind its return address on x86-64.
    /// Returns false if the table is damaged up to there.
    pub fn stack_sizes(&self, visit: &mut dyn FnMut(u64, i32) -> ControlFlow<()>) -> bool {
        self.try_stack_sizes(visit).is_some()
    }

    /// `None` if the table is damaged.
    fn try_stack_sizes(&self, visit: &mut dyn FnMut(u64, i32) -> ControlFlow<()>) -> Option<()> {
        let table = self.table;
        let offset = u32_at(&table.bytes, self.place.checked_add(STACK_SIZES)?)?;
        self.values(offset, &mut |address, size| {
            (0..MAX_STACK)
                .contains(&size)
                .then(|| visit(address, size).is_continue())
        })
    }

    /// Calls `visit` with each address from which on another of the values at this offset holds, and that value, until it
    /// returns false or `None`. `None` also if there are none, or the table is damaged.
    fn values(&self, offset: u32, visit: &mut dyn FnMut(u64, i32) -> Option<bool>) -> Option<()> {
        let table = self.table;
        // No entry is at 0: the function has no values, as one without a body.
        if offset == 0 {
            return None;
        }
        let mut at = table.header.values.checked_add(offset as usize)?;
        let (mut address, mut value) = (self.start, -1_i32);
        while address < self.end {
            let change = varint(&table.bytes, &mut at)?;
            if change == 0 && address != self.start {
                break;
            }
            // Zigzag encoding.
            let change = (change >> 1) as i32 ^ -((change & 1) as i32);
            value = value.wrapping_add(change);
            if !visit(address, value)? {
                break;
            }
            let length = varint(&table.bytes, &mut at).filter(|length| *length > 0)?;
            address = address.saturating_add(u64::from(length).saturating_mul(table.quantum));
        }
        Some(())
    }
}

impl Header {
    fn parse(table: &[u8]) -> Option<Self> {
        // Two bytes are zero, then the smallest size of an instruction, and that of a pointer.
        let magic = u32_at(table, 0)?;
        if !MAGICS.contains(&magic) || table.get(4..6)? != [0, 0] || table.get(7)? != &8 {
            return None;
        }
        let word = |index: usize| {
            let bytes = table.get(8 + 8 * index..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let place = |index| usize::try_from(word(index)?).ok();
        Some(Self {
            is_new: magic == MAGICS[1],
            // Bounded by the table.
            count: place(0)?.min(table.len() / 8),
            text: word(2)?,
            names: place(3)?,
            units: place(4)?,
            files: place(5)?,
            values: place(6)?,
            functions: place(7)?,
        })
    }
}

/// Reads a number of 7 bits a byte, the lowest first, and goes behind it.
fn varint(bytes: &[u8], at: &mut usize) -> Option<u32> {
    let mut value = 0;
    for shift in [0, 7, 14, 21, 28] {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests;
