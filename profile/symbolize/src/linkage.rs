//! Names of the stubs in a file's procedure linkage tables, which no symbol has: a call of `puts` in another file goes
//! through `puts@plt`, as binutils call it.
//!
//! A stub jumps to the address that the dynamic linker has stored for the function. Where it does so is in the file's
//! relocations, with the function's symbol (System V ABI for x86-64, 5.2 "Procedure Linkage Table"; ELF for the Arm 64-bit
//! Architecture, "Program Linkage Table").

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use object::elf::{EM_AARCH64, EM_X86_64, Machine};
use object::endian::Endianness;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Object, ObjectSection, ObjectSymbol, ObjectSymbolTable, ReadCache, RelocationTarget};

/// The sections with stubs, of all linkers.
const SECTIONS: [&str; 4] = [".plt", ".plt.got", ".plt.sec", ".iplt"];
/// Maximum size of a section with stubs, in bytes: 16 MiB, a million stubs.
const MAX_SECTION: u64 = 16 << 20;
/// Maximum number of relocations in which a function is looked up.
const MAX_RELOCATIONS: usize = 1 << 22;
/// Maximum length of a function's linker name that is kept, in bytes.
const MAX_NAME: usize = 4096;

/// Instructions of aarch64: where a stub may begin, and its jump.
const BTI_C: u32 = 0xd503_245f;
const BR_X17: u32 = 0xd61f_0220;

/// A section with stubs.
struct Section {
    address: u64,
    /// Size of a stub in bytes, on x86-64.
    size: usize,
    code: Vec<u8>,
}

/// The linker names of the functions that the stubs at addresses of a file's program headers call.
pub(crate) fn stubs(file: &File, addresses: &[u64]) -> Vec<Option<String>> {
    find(file, addresses).unwrap_or_else(|| vec![None; addresses.len()])
}

fn find(file: &File, addresses: &[u64]) -> Option<Vec<Option<String>>> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let machine = elf.elf_header().e_machine(elf.endian());
    let mut sections = Vec::new();
    for section in SECTIONS.iter().filter_map(|name| elf.section_by_name(name)) {
        let header = section.elf_section_header();
        let (start, size) = (section.address(), header.sh_size(elf.endian()));
        let is_inside = |address: &u64| address.wrapping_sub(start) < size;
        if size > MAX_SECTION || !addresses.iter().any(is_inside) {
            continue;
        }
        let mut code = vec![0; usize::try_from(size).ok()?];
        let (offset, _) = section.file_range()?;
        file.read_exact_at(&mut code, offset).ok()?;
        let size = header.sh_entsize(elf.endian());
        sections.push(Section {
            address: start,
            // lld writes no size.
            size: if size == 8 { 8 } else { 16 },
            code,
        });
    }
    // Stubs, by the places in which their targets may be stored.
    let mut stubs: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    for (index, address) in addresses.iter().enumerate() {
        for section in &sections {
            for stored in section.stored(machine, *address) {
                stubs.entry(stored).or_default().push(index);
            }
        }
    }
    if stubs.is_empty() {
        return None;
    }
    let mut names = vec![None; addresses.len()];
    let symbols = elf.dynamic_symbol_table()?;
    for (address, relocation) in elf.dynamic_relocations()?.take(MAX_RELOCATIONS) {
        let RelocationTarget::Symbol(symbol) = relocation.target() else {
            continue;
        };
        // Each is looked up once.
        let Some(indices) = stubs.remove(&address) else {
            continue;
        };
        let symbol = symbols.symbol_by_index(symbol);
        if let Ok(Ok(name)) = symbol.as_ref().map(ObjectSymbol::name_bytes)
            && !name.is_empty()
        {
            let name = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]);
            for index in indices {
                names[index] = Some(name.clone().into_owned());
            }
        }
        if stubs.is_empty() {
            break;
        }
    }
    Some(names)
}

impl Section {
    /// Finds the places in which the target of the stub at an address may be stored.
    fn stored(&self, machine: Machine, address: u64) -> Vec<u64> {
        let offset = address.checked_sub(self.address);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let Some(offset) = offset.filter(|offset| *offset < self.code.len()) else {
            return Vec::new();
        };
        match machine {
            EM_X86_64 => self.stored_x86_64(offset).collect(),
            EM_AARCH64 => self.stored_aarch64(offset).into_iter().collect(),
            _ => Vec::new(),
        }
    }

    fn stored_x86_64(&self, offset: usize) -> impl Iterator<Item = u64> {
        let start = offset - offset % self.size;
        let stub = self.code.get(start..start + self.size).unwrap_or_default();
        let address = self.address.wrapping_add(start as u64);
        let places = (0_u64..).zip(stub.windows(6));
        places.filter_map(move |(at, bytes)| {
            // jmp *distance(%rip)
            let [0xff, 0x25, distance @ ..] = bytes else {
                return None;
            };
            let distance = i32::from_le_bytes(distance.try_into().ok()?);
            let next = address.wrapping_add(at + 6);
            Some(next.wrapping_add_signed(distance.into()))
        })
    }

    fn stored_aarch64(&self, offset: usize) -> Option<u64> {
        let mut at = offset & !3;
        if self.word(at)? == BTI_C {
            at += 4;
        }
        let first = at;
        // adrp x16, page
        while self.word(at)? & 0x9f00_001f != 0x9000_0010 {
            at = at.checked_sub(4)?;
            if self.word(at)? == BR_X17 || first - at > 16 {
                return None;
            }
        }
        let (page, load) = (self.word(at)?, self.word(at + 4)?);
        // ldr x17, [x16, offset]
        if load & 0xffc0_03ff != 0xf940_0211 {
            return None;
        }
        let pages = u64::from((page >> 5 & 0x7_ffff) << 2 | page >> 29 & 3);
        // 21 bits with a sign.
        let distance = ((pages << 43) as i64 >> 43) << 12;
        let own = self.address.wrapping_add(at as u64) & !0xfff;
        let offset = u64::from(load >> 10 & 0xfff) * 8;
        Some(own.wrapping_add_signed(distance).wrapping_add(offset))
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes = self.code.get(at..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// The output of a tool. `None`, with a line of output, if it is not installed.
    fn tool(name: &str, arguments: &[&str]) -> Option<String> {
        let output = match Command::new(name).args(arguments).output() {
            Ok(output) => output,
            Err(error) => {
                eprintln!("skipped: {name}: {error}");
                return None;
            }
        };
        assert!(output.status.success(), "{name} {arguments:?}: {output:?}");
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Compares the name at each instruction of a stub with that of binutils; returns the number of stubs.
    fn check(path: &str, objdump: &str) -> Option<usize> {
        let listing = tool(objdump, &["-d", "--no-show-raw-insn", path])?;
        let mut expected = Vec::new();
        let mut name = None;
        let mut stubs = 0;
        for line in listing.lines() {
            if let Some((_, label)) = line.split_once(" <")
                && let Some(label) = label.strip_suffix(">:")
            {
                // mold adds symbols of its own.
                let called = label.strip_suffix("@plt").or(label.strip_suffix("$plt"));
                // Without a symbol, it has the address of a function.
                name = called.filter(|it| !it.starts_with('*')).map(str::to_owned);
                stubs += usize::from(name.is_some());
            } else if let Some((address, instruction)) = line.split_once(":\t")
                && let Some(name) = &name
                && !instruction.starts_with("nop")
                && !instruction.starts_with("xchg")
            {
                let address = u64::from_str_radix(address.trim(), 16).unwrap();
                expected.push((address, name.clone()));
            }
        }
        let addresses: Vec<u64> = expected.iter().map(|it| it.0).collect();
        let found = super::stubs(&File::open(path).unwrap(), &addresses);
        for ((address, name), found) in expected.into_iter().zip(found) {
            assert_eq!(found, Some(name), "{path}, {address:#x}");
        }
        Some(stubs)
    }

    const SOURCE: &str = "#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    puts(getenv(argv[0]));
    int (*print)(const char *) = puts;
    return printf(\"%d\", print(argv[1])) + abs(atoi(argv[2])) + putchar(argc);
}
";

    #[test]
    fn stubs_have_the_names_of_binutils() {
        let folder = std::env::temp_dir().join(format!("otelctx-stubs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
        std::fs::write(path("a.c"), SOURCE).unwrap();
        let x86_64: [&[&str]; 7] = [
            &["-Wl,-z,lazy", "-fcf-protection=none"],
            &["-Wl,-z,lazy,-z,ibtplt", "-fcf-protection=full"],
            &["-Wl,-z,now", "-no-pie"],
            &["-Wl,-z,now,-z,ibtplt"],
            &["-fuse-ld=lld"],
            &["-fuse-ld=gold"],
            &["-fuse-ld=mold"],
        ];
        let aarch64: [&[&str]; 3] = [
            &["-Wl,-z,lazy"],
            &[
                "-mbranch-protection=standard",
                "-Wl,-z,force-bti,-z,pac-plt",
            ],
            &["-Wl,-z,now"],
        ];
        let of = |prefix: &str, flags: &[&str]| {
            let (source, program) = (path("a.c"), path("program"));
            let arguments = [
                &["-O1", "-w", "-fno-builtin", &source, "-o", &program],
                flags,
            ];
            tool(&format!("{prefix}gcc"), &arguments.concat())?;
            check(&program, &format!("{prefix}objdump"))
        };
        for flags in x86_64 {
            if let Some(stubs) = of("", flags) {
                assert!(stubs >= 5, "{flags:?}: {stubs}");
            }
        }
        for flags in aarch64 {
            if let Some(stubs) = of("aarch64-linux-gnu-", flags) {
                assert!(stubs >= 5, "{flags:?}: {stubs}");
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn stubs_of_a_distributions_programs_have_the_names_of_binutils() {
        for path in [
            "/usr/bin/bash",
            "/usr/bin/python3",
            "/usr/bin/perl",
            "/usr/bin/git",
        ] {
            if Path::new(path).exists() {
                check(path, "objdump");
            } else {
                eprintln!("skipped: there is no {path}");
            }
        }
    }
}
