//! Functions of the running kernel. The kernel makes the text of `/proc/kallsyms` again for each reader, which takes 20 ms and
//! more, so what was read is kept: 4 MiB for 120,000 functions.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use blazesym::symbolize::Input;
use blazesym::symbolize::source::{Kernel, Source};
use otelctx_sample::Function;

use crate::demangle;
use crate::resolve::symbolize;

/// Directories that blazesym searches for the kernel's own file with symbols.
const KERNEL_DIRECTORIES: [&str; 2] = ["/boot", "/usr/lib/debug/boot"];
/// The origin of functions that can end without a module that ends, such as eBPF programs.
const VOLATILE: u16 = u16::MAX;
/// Size of the pages in which the kernel has code, as a power of two; larger ones are several of these.
const PAGE_BITS: u32 = 12;

/// Functions of the kernel and of its modules.
#[derive(Clone, Debug, Default)]
pub(crate) struct KernelSymbols {
    table: Option<Arc<Table>>,
}

impl KernelSymbols {
    /// Resolves addresses. Reads the kernel's list if it was not read before, or may have changed.
    pub(crate) fn functions(&mut self, addresses: &[u64]) -> Vec<Vec<Function>> {
        let nothing = || vec![Vec::new(); addresses.len()];
        if has_kernel_file() {
            // It may have inlined functions and lines.
            let source = Source::Kernel(Kernel::default());
            let found = symbolize(&source, Input::AbsAddr(addresses), |_, _| true);
            return found.map_or_else(nothing, |it| it.functions);
        }
        let modules = loaded_modules().unwrap_or_default();
        let is_current = |table: &&Arc<Table>| {
            let is_certain = |address: &u64| table.find(*address).is_some_and(|it| it.is_certain);
            table.modules == modules && addresses.iter().all(is_certain)
        };
        let table = match self.table.as_ref().filter(is_current) {
            Some(table) => Arc::clone(table),
            None => {
                let opened = File::open("/proc/kallsyms");
                let read = opened.and_then(|file| {
                    let lines = BufReader::with_capacity(1 << 16, file);
                    Table::read(lines, modules)
                });
                let Ok(table) = read else {
                    return nothing();
                };
                let table = Arc::new(table);
                self.table = Some(Arc::clone(&table));
                table
            }
        };
        let functions = addresses.iter().map(|address| {
            let found = table.find(*address);
            let function = found.map(|it| Function {
                name: demangle::demangle(it.name),
                ..Function::default()
            });
            function.into_iter().collect()
        });
        functions.collect()
    }
}

/// Returns what changes when a module of the kernel is loaded or unloaded: the name, size and address of each
/// (proc(5), `/proc/modules`), without its number of users, which changes often. Empty for a kernel without modules.
///
/// # Errors
/// If it cannot be read.
pub fn loaded_modules() -> io::Result<Box<[u8]>> {
    match fs::read_to_string("/proc/modules") {
        Ok(text) => Ok(module_places(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Box::default()),
        Err(error) => Err(error),
    }
}

fn module_places(text: &str) -> Box<[u8]> {
    let facts = text.lines().flat_map(|line| {
        let mut fields = line.split(' ');
        [fields.next(), fields.next(), fields.nth(3), Some("\n")]
    });
    facts.flatten().collect::<String>().into_bytes().into()
}

/// Returns whether there is a file with the running kernel's symbols.
fn has_kernel_file() -> bool {
    let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") else {
        return false;
    };
    let name = format!("vmlinux-{}", release.trim_end());
    KERNEL_DIRECTORIES
        .iter()
        .any(|it| Path::new(it).join(&name).exists())
}

/// A function's address, the start of its name in the table's text, and its module.
#[derive(Clone, Copy, Debug)]
struct Entry {
    address: u64,
    name: u32,
    /// 0 for the kernel itself.
    origin: u16,
}

/// The text of `/proc/kallsyms` without data.
#[derive(Debug)]
struct Table {
    /// By address.
    entries: Box<[Entry]>,
    /// Names, each with its length in two bytes before it.
    names: Box<[u8]>,
    /// The modules that were loaded before the text was read.
    modules: Box<[u8]>,
}

/// What a table has for an address.
#[derive(Debug, PartialEq, Eq)]
struct Found<'a> {
    name: &'a str,
    /// False if the code at this address may be newer than the table.
    is_certain: bool,
}

impl Table {
    /// Reads a text, while these modules are loaded.
    fn read(mut lines: impl BufRead, modules: Box<[u8]>) -> io::Result<Self> {
        let (mut entries, mut names) = (Vec::new(), Vec::new());
        let mut origins: Vec<String> = Vec::new();
        let mut line = String::new();
        loop {
            line.clear();
            if lines.read_line(&mut line)? == 0 {
                break;
            }
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some(kind), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            // Without the right to see addresses, all are 0.
            let address = u64::from_str_radix(address, 16).unwrap_or(0);
            if address == 0 || !matches!(kind, "t" | "T" | "w" | "W") {
                continue;
            }
            // The kernel's names have at most 511 bytes, and there are some hundred thousand.
            let length = u16::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidData)?;
            let start = u32::try_from(names.len()).map_err(|_| io::ErrorKind::InvalidData)?;
            names.extend_from_slice(&length.to_ne_bytes());
            names.extend_from_slice(name.as_bytes());
            entries.push(Entry {
                address,
                name: start,
                origin: words.next().map_or(0, |it| origin(it, &mut origins)),
            });
        }
        // Stable: the first one of several names for an address counts.
        entries.sort_by_key(|entry| entry.address);
        Ok(Self {
            entries: entries.into(),
            names: names.into(),
            modules,
        })
    }

    /// Returns the last function that starts at this address or before it.
    fn find(&self, address: u64) -> Option<Found<'_>> {
        let behind = self.entries.partition_point(|it| it.address <= address);
        let last = self.entries.get(behind.checked_sub(1)?)?;
        let first = self.entries.partition_point(|it| it.address < last.address);
        let entry = self.entries.get(first)?;
        // Code of another module may be between two modules, but in no page that has code of one.
        let next = self.entries.get(behind).map(|it| it.origin);
        let is_inside =
            next == Some(last.origin) || address >> PAGE_BITS == last.address >> PAGE_BITS;
        Some(Found {
            name: self.name(entry)?,
            is_certain: is_inside && last.origin != VOLATILE,
        })
    }

    fn name(&self, entry: &Entry) -> Option<&str> {
        let (length, behind) = self.names.get(entry.name as usize..)?.split_first_chunk()?;
        let length = usize::from(u16::from_ne_bytes(*length));
        std::str::from_utf8(behind.get(..length)?).ok()
    }
}

/// Returns the number of a module from its name in brackets.
fn origin(name: &str, origins: &mut Vec<String>) -> u16 {
    if name == "[bpf]" || name.starts_with("[__builtin__") {
        return VOLATILE;
    }
    // The functions of a module follow each other.
    let at = origins.iter().rposition(|it| it == name);
    let at = at.unwrap_or_else(|| {
        origins.push(name.to_owned());
        origins.len() - 1
    });
    u16::try_from(at + 1).unwrap_or(VOLATILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
0000000000000000 A hidden
ffffffff81000000 T _stext
ffffffff81000000 T alias
ffffffff81001200 t schedule
ffffffff81004000 T _etext
ffffffff82000000 D some_data
ffffffffc0009000 t bpf_prog_6deef7357e7b4530\t[bpf]
ffffffffc000a000 t bpf_prog_7deef7357e7b4530\t[bpf]
ffffffffc0002010 t ext4_read\t[ext4]
ffffffffc0001000 t ext4_open\t[ext4]
ffffffffc0005000 T nvme_poll\t[nvme]
";

    #[test]
    fn functions_that_may_have_been_replaced_are_not_certain() {
        let table = Table::read(TEXT.as_bytes(), Box::default()).unwrap();
        let found = |address| table.find(address).map(|it| (it.name, it.is_certain));
        for (address, expected) in [
            (0xffff_ffff_80ff_ffff, None),
            (0xffff_ffff_8100_0000, Some(("_stext", true))),
            (0xffff_ffff_8100_11ff, Some(("_stext", true))),
            (0xffff_ffff_8100_1200, Some(("schedule", true))),
            (0xffff_ffff_8100_3fff, Some(("schedule", true))),
            (0xffff_ffff_8100_4fff, Some(("_etext", true))),
            (0xffff_ffff_8100_5000, Some(("_etext", false))),
            (0xffff_ffff_c000_1fff, Some(("ext4_open", true))),
            (0xffff_ffff_c000_2fff, Some(("ext4_read", true))),
            // Another module or program may have been loaded behind this page.
            (0xffff_ffff_c000_3000, Some(("ext4_read", false))),
            (0xffff_ffff_c000_5fff, Some(("nvme_poll", true))),
            (0xffff_ffff_c000_6000, Some(("nvme_poll", false))),
            (
                0xffff_ffff_c000_9001,
                Some(("bpf_prog_6deef7357e7b4530", false)),
            ),
            (u64::MAX, Some(("bpf_prog_7deef7357e7b4530", false))),
        ] {
            assert_eq!(found(address), expected, "{address:x}");
        }
    }

    #[test]
    fn malformed_lines_are_skipped() {
        let text = "x\nzz T a\n10\n20 T\n30 T b\n40 T ";
        let table = Table::read(text.as_bytes(), Box::default()).unwrap();
        assert_eq!(table.entries.len(), 1);
        assert_eq!(table.find(0x30).unwrap().name, "b");
        let long = "x".repeat(511);
        let table = format!("50 T {long}\n60 T c\n");
        let table = Table::read(table.as_bytes(), Box::default()).unwrap();
        assert_eq!(table.find(0x5f).unwrap().name, long);
        assert_eq!(table.find(0x60).unwrap().name, "c");
        assert_eq!(Table::read(&b""[..], Box::default()).unwrap().find(1), None);
    }

    #[test]
    fn modules_are_compared_without_their_users() {
        let before = "nf_nat 61440 2 nf_nat_ftp,ipt, Live 0xffffffffc0a00000\n";
        let used = "nf_nat 61440 3 nf_nat_ftp,ipt,x, Live 0xffffffffc0a00000\n";
        let moved = "nf_nat 61440 2 nf_nat_ftp,ipt, Live 0xffffffffc0b00000\n";
        assert_eq!(module_places(before), module_places(used));
        assert_ne!(module_places(before), module_places(moved));
    }

    /// The kernel makes its text again for each reader.
    #[test]
    fn the_list_is_read_once() {
        let mut symbols = KernelSymbols::default();
        let text = fs::read_to_string("/proc/kallsyms").unwrap_or_default();
        let line = text.lines().find(|it| it.ends_with(" schedule"));
        let address = line.and_then(|it| u64::from_str_radix(it.split(' ').next()?, 16).ok());
        let Some(address) = address.filter(|it| *it != 0 && !has_kernel_file()) else {
            println!("skipped: the kernel's addresses are hidden, or its file is there");
            return;
        };
        let names = |symbols: &mut KernelSymbols| {
            let found = symbols.functions(&[address]);
            found[0][0].name.clone()
        };
        // A module that is loaded meanwhile is a reason to read it again.
        loop {
            let before = loaded_modules().unwrap();
            assert_eq!(names(&mut symbols), "schedule");
            let first = symbols.table.clone().unwrap();
            assert_eq!(names(&mut symbols), "schedule");
            if before == loaded_modules().unwrap() {
                assert!(Arc::ptr_eq(&first, symbols.table.as_ref().unwrap()));
                break;
            }
        }
    }
}
