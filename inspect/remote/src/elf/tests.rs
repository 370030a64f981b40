//! Hand-made modules with hostile tables: their cost is bounded, and errors are reported.

use std::cell::Cell;

use object::elf::{DynamicTag, Sym64};

use super::*;
use crate::memory::Image;
use crate::module::{Module, Symbol};

const NAME: &str = "otel_thread_ctx_v1";

/// Where the parts of [`file`] are; addresses are file offsets.
const DYNAMIC: u64 = 0x400;
const TABLES: u64 = 0x1000;
/// End of the file, which is one segment: 1 TiB, almost all holes.
const END: u64 = 1 << 40;

/// A file that counts reads and their bytes. Bytes that are not in the image are `filler`,
/// repeated.
struct Hostile {
    image: Image,
    filler: [u8; 8],
    reads: Cell<u64>,
    bytes: Cell<u64>,
}

impl Memory for Hostile {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.reads.set(self.reads.get() + 1);
        self.bytes.set(self.bytes.get() + buffer.len() as u64);
        if address < TABLES {
            return self.image.read(address, buffer);
        }
        let length = buffer.len();
        let end = address.checked_add(length as u64);
        if end.is_none_or(|end| end > END) {
            return Err(MemoryError::Unmapped { address, length });
        }
        buffer.fill(0);
        if self.filler != [0; 8] {
            for (at, byte) in (address..end.unwrap()).zip(buffer.iter_mut()) {
                *byte = self.filler[at as usize % 8];
            }
        }
        // Bytes of the image take precedence.
        let mut piece = vec![0; buffer.len().min(64)];
        if self.image.read(address, &mut piece).is_ok() {
            buffer[..piece.len()].copy_from_slice(&piece);
        }
        Ok(())
    }
}

/// A library with one PT_LOAD segment, a PT_TLS segment and this dynamic table.
fn file(filler: [u8; 8], dynamic: &[(DynamicTag, u64)]) -> Hostile {
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(16, &elf::ET_DYN.0.to_le_bytes());
    put(18, &elf::EM_X86_64.0.to_le_bytes());
    put(32, &64_u64.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &3_u16.to_le_bytes());
    let table = dynamic.len() as u64 * 16;
    for (kind, flags, at, size) in [
        (elf::PT_LOAD.0, 5_u32, 0, END),
        (elf::PT_DYNAMIC.0, 4, DYNAMIC, table),
        (elf::PT_TLS.0, 4, 0, 16),
    ] {
        header.extend(kind.to_le_bytes());
        header.extend(flags.to_le_bytes());
        header.extend([at, at, at, size, size, 8].map(u64::to_le_bytes).concat());
    }
    let mut image = Image::new();
    image.map(0, header);
    let words: Vec<u64> = dynamic
        .iter()
        .flat_map(|(tag, value)| [tag.0 as u64, *value])
        .collect();
    image.map_u64(DYNAMIC, &words);
    Hostile {
        image,
        filler,
        reads: Cell::new(0),
        bytes: Cell::new(0),
    }
}

fn facts(file: &Hostile) -> Result<Option<Symbol>, String> {
    let facts = Module::read(Source::File(file), NAME);
    facts.map(|module| module.map(|module| module.symbol))
}

/// Symbols, names and hash table overlap: none of them ends.
fn cyclic(hash: DynamicTag) -> [(DynamicTag, u64); 4] {
    [
        (elf::DT_SYMTAB, TABLES),
        (elf::DT_STRTAB, TABLES),
        (elf::DT_STRSZ, END - TABLES),
        (hash, TABLES),
    ]
}

#[test]
fn a_chain_of_dt_hash_that_loops() {
    // One bucket, a huge number of chains; each leads to symbol 1, which has another name.
    let mut file = file([1, 0, 0, 0, 1, 0, 0, 0], &cyclic(elf::DT_HASH));
    file.image.map(TABLES, [1, 0, 0, 0, 255, 255, 255, 255]);
    let error = facts(&file).unwrap_err();
    assert_eq!(error, "a chain of its DT_HASH does not end");
    // A link, a symbol and a name for each of 4,096 links.
    assert!(file.reads.get() <= 3 * 4097 + 16, "{}", file.reads.get());
}

#[test]
fn a_chain_of_dt_gnu_hash_that_does_not_end() {
    // A bloom filter that passes everything; all links are even, so none is the last.
    let mut file = file([0xfe; 8], &cyclic(elf::DT_GNU_HASH));
    file.image.map_u64(TABLES, &[1 << 32 | 1, 1, u64::MAX]);
    let error = facts(&file).unwrap_err();
    assert_eq!(error, "a chain of its DT_GNU_HASH does not end");
    assert!(file.reads.get() <= 3 * 4097 + 16, "{}", file.reads.get());
}

/// Every symbol's name offset points into the symbols: each is compared, and none matches.
#[test]
fn more_thread_local_variables_than_any_program_has() {
    // st_name and st_info (STT_TLS) of every symbol.
    let mut file = file([6; 8], &cyclic(elf::DT_GNU_HASH));
    // Hashed symbols start at 2^20: those before it are searched.
    file.image.map_u64(TABLES, &[1 << 52 | 1, 1, 0]);
    let error = facts(&file).unwrap_err();
    assert!(error.contains("16,384 symbols"), "{error}");
    assert!(file.reads.get() <= 16_384 + 64, "{}", file.reads.get());
}

#[test]
fn counts_beyond_all_reason() {
    let sizes = |tag: DynamicTag, size_tag: DynamicTag| [(tag, TABLES), (size_tag, u64::MAX)];
    let hash = cyclic(elf::DT_GNU_HASH);
    for (extra, expected) in [
        // A file may contain more symbols than it could relocate.
        (&sizes(elf::DT_RELA, elf::DT_RELASZ)[..], "8 million"),
        (&sizes(elf::DT_JMPREL, elf::DT_PLTRELSZ), "8 million"),
        (&[(elf::DT_RELAENT, 0)], "not RELA"),
        (&[(elf::DT_RELAENT, u64::MAX)], "not RELA"),
        (&[(elf::DT_PLTREL, elf::DT_REL.0 as u64)], "not RELA"),
    ] {
        // An empty table without the number of symbols: relocations are used instead.
        let mut file = file([0; 8], &[&hash[..], extra].concat());
        file.image.map_u64(TABLES, &[1 << 32 | 1, 1, 0]);
        let error = facts(&file).unwrap_err();
        assert!(error.contains(expected), "{extra:?}: {error}");
        assert!(file.bytes.get() <= 1 << 20, "{}", file.bytes.get());
    }
    // The first hashed symbol is number 2^32 - 1.
    let mut symbols = file([0; 8], &hash);
    symbols
        .image
        .map_u64(TABLES, &[u64::from(u32::MAX) << 32 | 1, 1, 0]);
    assert!(facts(&symbols).unwrap_err().contains("8 million"));
    // 2^32 - 1 buckets, chains or filter words are an address, not work.
    for tag in [elf::DT_HASH, elf::DT_GNU_HASH] {
        let file = file([0xff; 8], &cyclic(tag));
        let _ = facts(&file);
        assert!(file.reads.get() < 64, "{}", file.reads.get());
    }
    // More relative relocations than there are relocations leave none.
    let relative = [
        (elf::DT_RELA, TABLES),
        (elf::DT_RELASZ, 1 << 20),
        (elf::DT_RELACOUNT, u64::MAX),
    ];
    let mut skipped = file([0; 8], &[&hash[..], &relative].concat());
    skipped.image.map_u64(TABLES, &[1 << 32 | 1, 1, 0]);
    assert_eq!(facts(&skipped), Ok(Some(Symbol::Absent)));
    assert!(skipped.bytes.get() < 1 << 14, "{}", skipped.bytes.get());
}

/// Tables of holes that are each below the limit, but exceed it together.
#[test]
fn a_module_costs_so_much_and_no_more() {
    const LIMIT: u64 = 2 << 20;
    let size = (MAX_ENTRIES - 1) * 24;
    let hash = cyclic(elf::DT_GNU_HASH);
    let large = [
        (elf::DT_RELA, TABLES),
        (elf::DT_RELASZ, size),
        (elf::DT_JMPREL, TABLES),
        (elf::DT_PLTRELSZ, size),
    ];
    let mut file = file([0; 8], &[&hash[..], &large].concat());
    file.image.map_u64(TABLES, &[1 << 32 | 1, 1, 0]);
    let (facts, cost) = Module::read_within(LIMIT, Source::File(&file), NAME);
    let error = facts.unwrap_err();
    assert_eq!(error, "more than 2 MiB of it would have to be read");
    assert!(file.bytes.get() <= LIMIT, "{}", file.bytes.get());
    assert!(cost <= LIMIT + CHUNK, "{cost}");
}

#[test]
fn headers_beyond_all_reason() {
    let with = |at: u64, bytes: &[u8]| {
        let file = file([0; 8], &[]);
        let mut header = [0; 64];
        file.image.read(0, &mut header).unwrap();
        header[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let mut segments = [0; 168];
        file.image.read(64, &mut segments).unwrap();
        let mut image = file.image.clone();
        image.map(0, [&header[..], &segments].concat());
        let file = Hostile { image, ..file };
        let said = facts(&file);
        assert!(file.bytes.get() <= 1 << 23, "{}", file.bytes.get());
        said
    };
    assert_eq!(with(63, &[0]), Ok(Some(Symbol::Absent)));
    assert!(with(56, &[255, 255]).unwrap_err().contains("512"));
    assert!(with(54, &[0, 0]).unwrap_err().contains("unknown size"));
    assert!(with(32, &[255; 8]).is_err());
    // Section headers: 65,535 of them, in holes, at the end, and beyond it.
    let counts = [0, 0, 0, 0, 0, 0, 56, 0, 3, 0, 64, 0, 255, 255];
    let sections = |at: u64| [&at.to_le_bytes()[..], &counts].concat();
    assert_eq!(with(40, &sections(TABLES)), Ok(Some(Symbol::Absent)));
    assert!(with(40, &sections(END - 64)).is_err());
    assert!(with(40, &sections(u64::MAX - 64)).is_err());
}

/// A dynamic table that is larger than any real one is read up to a limit.
#[test]
fn a_dynamic_table_without_end() {
    let mut file = file([1, 0, 0, 0, 0, 0, 0, 0], &[]);
    let mut headers = [0; 232];
    file.image.read(0, &mut headers).unwrap();
    // p_offset of PT_DYNAMIC, then p_filesz and p_memsz.
    headers[128..136].copy_from_slice(&TABLES.to_le_bytes());
    headers[152..168].fill(0x3f);
    file.image.map(0, headers);
    assert_eq!(facts(&file), Ok(Some(Symbol::Absent)));
    assert!(file.bytes.get() <= 70_000, "{}", file.bytes.get());
}

/// A linked library whose file is truncated while it is read, or of which one read fails: the
/// result is an error or the same as for the whole file, at any time.
#[test]
fn a_file_that_is_cut_short_while_it_is_read() {
    struct Failing<'a> {
        bytes: &'a [u8],
        reads: Cell<u64>,
        fails: std::ops::Range<u64>,
    }
    impl Memory for Failing<'_> {
        fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
            let length = buffer.len();
            let unmapped = MemoryError::Unmapped { address, length };
            let number = self.reads.replace(self.reads.get() + 1);
            if self.fails.contains(&number) {
                return Err(unmapped);
            }
            let at = address as usize;
            let bytes = self.bytes.get(at..at.saturating_add(length));
            buffer.copy_from_slice(bytes.ok_or(unmapped)?);
            Ok(())
        }
    }
    let gcc = otelctx_fixtures::Compiler::gcc();
    for flags in [
        &["-mtls-dialect=gnu2"][..],
        &["-Wl,-Bsymbolic", "-mtls-dialect=gnu", "-DBIG=24"],
        &["-Wl,--hash-style=sysv", "-Wl,-soname,libc.so.6"],
    ] {
        let Some(path) = gcc.library(&["variable.c"], flags) else {
            return;
        };
        let bytes = std::fs::read(path).unwrap();
        let read = |fails| {
            let reads = Cell::new(0);
            let memory = Failing {
                bytes: &bytes,
                reads,
                fails,
            };
            let facts = Module::read(Source::File(&memory), NAME);
            (facts, memory.reads.get())
        };
        let (whole, reads) = read(0..0);
        let whole = whole.unwrap().unwrap();
        assert!(reads > 8, "{reads}");
        // Without its first bytes, it is not an ELF file.
        for first in 1..reads {
            for fails in [first..first + 1, first..u64::MAX] {
                match read(fails.clone()).0 {
                    Err(_) => {}
                    Ok(module) => assert_eq!(module, Some(whole.clone()), "{fails:?}"),
                }
            }
        }
    }
}

/// [`file`] with symbol tables of these sizes, in bytes: of the same symbols, or of more that are zero.
fn with_symbol_tables(sizes: &[u64], symbols: &[Sym64<LE>]) -> Hostile {
    const SECTIONS: usize = 0x800;
    const SYMBOLS: u64 = 0xc00;
    let mut file = file([0; 8], &[]);
    let mut start = vec![0; TABLES as usize];
    file.image.read(0, &mut start[..232]).unwrap();
    start[40..48].copy_from_slice(&(SECTIONS as u64).to_le_bytes());
    start[58..60].copy_from_slice(&64_u16.to_le_bytes());
    start[60..62].copy_from_slice(&(sizes.len() as u16).to_le_bytes());
    for (index, size) in sizes.iter().enumerate() {
        let header = &mut start[SECTIONS + 64 * index..][..64];
        let kind = [elf::SHT_SYMTAB, elf::SHT_DYNSYM][index % 2];
        header[4..8].copy_from_slice(&kind.0.to_le_bytes());
        let is_small = *size <= size_of_val(symbols) as u64;
        let at = if is_small { SYMBOLS } else { TABLES };
        header[24..32].copy_from_slice(&at.to_le_bytes());
        header[32..40].copy_from_slice(&size.to_le_bytes());
    }
    let symbols = pod::bytes_of_slice(symbols);
    start[SYMBOLS as usize..][..symbols.len()].copy_from_slice(symbols);
    file.image = Image::new();
    file.image.map(0, start);
    file
}

#[test]
fn functions_of_all_symbol_tables_are_limited_together_and_named_once() {
    let symbol = |kind: elf::SymbolType, section: u16, value: u64| {
        let mut symbol: Sym64<LE> = read_struct(&file([0; 8], &[]), TABLES).unwrap();
        symbol.set_st_info(elf::STB_LOCAL, kind);
        symbol.st_shndx.set(LE, elf::SymbolSection(section));
        symbol.st_value.set(LE, value);
        symbol
    };
    let (function, object) = (elf::STT_FUNC, elf::STT_OBJECT);
    // The second one is undefined, and the last one is not wanted.
    let symbols = [
        symbol(function, 1, 0x3000),
        symbol(function, 0, 0x4000),
        symbol(object, 1, 0x5000),
        symbol(elf::STT_GNU_IFUNC, 1, 0x2000),
        symbol(function, 1, 0x1000),
    ];
    let find = |sizes: &[u64]| {
        let file = with_symbol_tables(sizes, &symbols);
        let module = Elf::read(Source::File(&file)).unwrap().unwrap();
        let found = module.functions(&|address| address > 0x1000);
        (found, file.bytes.get())
    };
    let size = size_of_val(&symbols) as u64;
    assert_eq!(find(&[size, size]).0, Ok(vec![0x2000, 0x3000]));
    // Each of them is within the limit.
    let large = MAX_ENTRIES / 2 * size_of::<Sym64<LE>>() as u64;
    let (found, bytes) = find(&[large, 0, large, size, large]);
    let expected = Malformed("it has more than 8 million symbols");
    assert_eq!(found, Err(expected));
    assert!(bytes < 3 * large, "{bytes}");
}

/// Symbols that all have the same name, or the rest of it, cost no memory: a long name is skipped, and so are too many.
#[test]
fn functions_with_a_prefix_that_share_a_long_name_are_limited() {
    const NAMES: usize = 0x2000;
    const SYMBOLS: usize = 0x8000;
    const SIZE: usize = 0x4000;
    let find = |offset: u32, count: usize| {
        let mut symbol: Sym64<LE> = read_struct(&file([0; 8], &[]), TABLES).unwrap();
        symbol.set_st_info(elf::STB_LOCAL, elf::STT_FUNC);
        symbol.st_shndx.set(LE, elf::SymbolSection(1));
        symbol.st_name.set(LE, offset);
        let size = count * size_of::<Sym64<LE>>();
        let mut bytes = vec![0; TABLES as usize];
        let tables = with_symbol_tables(&[1 << 20, 0], &[]);
        tables.image.read(0, &mut bytes).unwrap();
        bytes.resize(SYMBOLS, b'a');
        bytes[TABLES as usize..SYMBOLS].fill(b'a');
        // A name of 255 bytes is the longest one, behind one of 256.
        bytes[NAMES + SIZE - 1] = 0;
        bytes.extend(pod::bytes_of_slice(&vec![symbol; count]));
        let sections: [(usize, u64); 5] = [
            (24, SYMBOLS as u64),
            (32, size as u64),
            (40, 1),
            (64 + 24, NAMES as u64),
            (64 + 32, SIZE as u64),
        ];
        for (at, value) in sections {
            bytes[0x800 + at..][..8].copy_from_slice(&value.to_le_bytes());
        }
        // A file of its own: not one segment with holes.
        let mut image = Image::new();
        image.map(0, bytes);
        let module = Elf::read(Source::File(&image)).unwrap().unwrap();
        let found = module.functions_with_prefix(b"aaaa");
        found.map(|found| found.iter().map(|it| it.name.len()).collect::<Vec<_>>())
    };
    let end = SIZE as u32 - 1;
    assert_eq!(find(end - 255, 2), Ok(vec![255, 255]));
    assert_eq!(find(end - 256, 2), Ok(vec![]));
    assert_eq!(find(0, 1 << 14), Ok(vec![]));
    assert_eq!(find(end - 4, 1 << 14).unwrap().len(), 1 << 14);
    let too_many = Err(Malformed(
        "it has more than 16,384 symbols of one kind to compare",
    ));
    assert_eq!(find(0, (1 << 14) + 1), too_many);
    // Beyond the table, or not the prefix.
    assert_eq!(find(end + 1, 1), Ok(vec![]));
    assert_eq!(find(end - 3, (1 << 14) + 1), Ok(vec![]));
}
