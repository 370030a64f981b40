//! A shared object of a few hundred bytes that only refers to `otel_thread_ctx_v1`.
//!
//! Linkers export a symbol of an executable if a shared library on the command line refers to it.
//! This is the only way in which a dependency can export a symbol from a Rust executable:
//! `cargo:rustc-link-lib` applies to dependents, `cargo:rustc-link-arg` does not. The library is
//! not needed at run time, because rustc passes `--as-needed` and the library defines nothing.

/// The library's name, as passed to the linker's `-l`.
pub(crate) const NAME: &str = "otelctx_export";
/// The symbol it refers to (OTEP 4947, "Thread Local Variable").
pub(crate) const SYMBOL: &str = "otel_thread_ctx_v1";

/// Returns the `e_machine` of a target architecture that thread contexts are defined for and that
/// this crate has an access sequence for.
pub(crate) fn machine(target_arch: &str) -> Option<u16> {
    match target_arch {
        "x86_64" => Some(62),   // EM_X86_64
        "aarch64" => Some(183), // EM_AARCH64
        _ => None,
    }
}

// Sizes of the 64-bit structures of the System V ABI (gABI, chapters 4 and 5).
const FILE_HEADER: usize = 64;
const PROGRAM_HEADER: usize = 56;
const SECTION_HEADER: usize = 64;
const SYMBOL_ENTRY: usize = 24;

/// Returns the library's bytes. Little-endian, as both architectures are.
pub(crate) fn shared_object(machine: u16) -> Vec<u8> {
    let mut strings = vec![0];
    let mut string = |text: &str| {
        let at = strings.len() as u32;
        strings.extend(text.bytes().chain([0]));
        at
    };
    let symbol_name = string(SYMBOL);
    let file_name = string(&format!("lib{NAME}.so"));
    let section_names =
        [".dynsym", ".dynstr", ".hash", ".dynamic"].map(|name| (name, string(name)));

    // One null entry, then: name, STB_GLOBAL << 4 | STT_TLS, STV_DEFAULT, SHN_UNDEF, value, size.
    let mut symbols = vec![0; SYMBOL_ENTRY];
    symbols.extend(symbol_name.to_le_bytes());
    symbols.extend([1 << 4 | 6, 0, 0, 0]);
    symbols.extend([0; 16]);
    // SysV hash table: one bucket, two chain entries, the bucket starts at symbol 1.
    let hash = [1_u32, 2, 1, 0, 0].map(u32::to_le_bytes).concat();

    let symbols_at = FILE_HEADER + 2 * PROGRAM_HEADER;
    let hash_at = symbols_at + symbols.len();
    let strings_at = hash_at + hash.len();
    let dynamic_at = (strings_at + strings.len()).next_multiple_of(8);
    let dynamic = [
        [14, u64::from(file_name)], // DT_SONAME
        [4, hash_at as u64],        // DT_HASH
        [5, strings_at as u64],     // DT_STRTAB
        [6, symbols_at as u64],     // DT_SYMTAB
        [10, strings.len() as u64], // DT_STRSZ
        [11, SYMBOL_ENTRY as u64],  // DT_SYMENT
        [0, 0],                     // DT_NULL
    ]
    .map(|entry| entry.map(u64::to_le_bytes).concat())
    .concat();
    let sections_at = dynamic_at + dynamic.len();

    let mut file = Vec::new();
    // ELF magic, 64-bit, little-endian, version 1, System V ABI.
    file.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend(3_u16.to_le_bytes()); // ET_DYN
    file.extend(machine.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    for word in [0, FILE_HEADER as u64, sections_at as u64] {
        file.extend(word.to_le_bytes()); // entry point, program headers, section headers
    }
    file.extend(0_u32.to_le_bytes());
    let sizes = [FILE_HEADER, PROGRAM_HEADER, 2, SECTION_HEADER, 5, 2];
    file.extend(sizes.iter().flat_map(|size| (*size as u16).to_le_bytes()));

    let mut program_header = |kind: u32, flags: u32, at: usize, size: usize, align: u64| {
        file.extend(kind.to_le_bytes());
        file.extend(flags.to_le_bytes());
        let (at, size) = (at as u64, size as u64);
        for word in [at, at, at, size, size, align] {
            file.extend(word.to_le_bytes());
        }
    };
    program_header(1, 4, 0, sections_at, 0x1_0000); // PT_LOAD, readable
    program_header(2, 4, dynamic_at, dynamic.len(), 8); // PT_DYNAMIC

    file.extend(&symbols);
    file.extend(&hash);
    file.extend(&strings);
    file.resize(dynamic_at, 0);
    file.extend(&dynamic);

    file.extend([0; SECTION_HEADER]);
    // type, link, info, entry size: .dynsym's info is the first global symbol.
    let kinds: [(u32, u32, u32, usize, usize, usize); 4] = [
        (11, 2, 1, SYMBOL_ENTRY, symbols_at, symbols.len()),
        (3, 0, 0, 0, strings_at, strings.len()),
        (5, 1, 0, 4, hash_at, hash.len()),
        (6, 2, 0, 16, dynamic_at, dynamic.len()),
    ];
    for ((_, name), (kind, link, info, entry, at, size)) in section_names.iter().zip(kinds) {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for word in [2, at as u64, at as u64, size as u64] {
            file.extend((word).to_le_bytes()); // SHF_ALLOC, address, offset, size
        }
        file.extend(link.to_le_bytes());
        file.extend(info.to_le_bytes());
        for word in [if kind == 3 { 1 } else { 8_u64 }, entry as u64] {
            file.extend(word.to_le_bytes());
        }
    }
    file
}
