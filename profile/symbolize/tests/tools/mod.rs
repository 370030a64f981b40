//! Binutils as the truth, and what the crate says of a file.

#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use otelctx_profile::sample::{Mapping, Module, ProcessFacts};
use otelctx_profile::{Function, SymbolQuery, Symbolizer};
use otelctx_remote::Device;
use otelctx_symbolize::Symbols;

pub(crate) fn tool(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A directory that goes away with this value.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("otelctx-symbols-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every instruction of functions, by symbol.
pub(crate) fn instructions(path: &Path, symbols: &[&str]) -> Vec<u64> {
    let mut addresses = Vec::new();
    for symbol in symbols {
        let symbol = format!("--disassemble={symbol}");
        let text = tool(
            "objdump",
            &["-d", "--no-show-raw-insn", &symbol, text(path)],
        );
        let lines = text
            .lines()
            .filter_map(|line| line.trim().split_once(":\t"));
        addresses.extend(lines.map(|(address, _)| u64::from_str_radix(address, 16).unwrap()));
    }
    addresses.sort_unstable();
    addresses.dedup();
    assert!(!addresses.is_empty(), "{symbols:?}");
    addresses
}

/// Every instruction in `.text` but those between functions, which align the next one.
pub(crate) fn code(path: &Path) -> Vec<u64> {
    let arguments = ["-d", "--no-show-raw-insn", "-j", ".text", text(path)];
    let listing = tool("objdump", &arguments);
    let lines = listing
        .lines()
        .filter_map(|line| line.trim().split_once(":\t"))
        .filter(|(_, text)| !text.contains("nop") && !text.starts_with("xchg   %ax,%ax"));
    lines
        .map(|(address, _)| u64::from_str_radix(address, 16).unwrap())
        .collect()
}

/// The offsets of addresses in the file.
pub(crate) fn offsets(path: &Path, addresses: &[u64]) -> Vec<u64> {
    let headers = tool("readelf", &["-lW", text(path)]);
    let number = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap();
    let segments: Vec<(u64, u64, u64)> = headers
        .lines()
        .filter(|line| line.trim().starts_with("LOAD"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .map(|words| (number(words[1]), number(words[2]), number(words[4])))
        .collect();
    let offset = |address: &u64| {
        let mut segments = segments.iter();
        let found = segments.find(|(_, start, size)| (*start..start + size).contains(address));
        let (offset, start, _) = found.unwrap();
        address - start + offset
    };
    addresses.iter().map(offset).collect()
}

/// A function's name, its source's file name, and the line; the innermost first.
pub(crate) type Resolved = Vec<(String, String, u32)>;

/// The functions at each address according to addr2line.
pub(crate) fn truth(path: &Path, addresses: &[u64]) -> Vec<Resolved> {
    let addresses: Vec<_> = addresses
        .iter()
        .map(|address| format!("{address:#x}"))
        .collect();
    let mut arguments = vec!["-a", "-f", "-i", "-C", "-e", text(path)];
    arguments.extend(addresses.iter().map(String::as_str));
    let mut answers: Vec<Resolved> = Vec::new();
    let output = tool("addr2line", &arguments);
    let mut lines = output.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("0x") {
            answers.push(Vec::new());
            continue;
        }
        let place = lines.next().unwrap();
        let place = place.split(" (discriminator").next().unwrap();
        let (file, number) = place.rsplit_once(':').unwrap();
        let file = file.rsplit('/').next().unwrap().to_owned();
        let entry = (line.to_owned(), file, number.parse().unwrap_or(0));
        answers.last_mut().unwrap().push(entry);
    }
    answers
}

pub(crate) fn resolved(functions: &[Function]) -> Resolved {
    let resolved = |function: &Function| {
        let file = function.file.rsplit('/').next().unwrap().to_owned();
        (function.name.clone(), file, function.line)
    };
    functions.iter().map(resolved).collect()
}

/// The file at `path` as a module.
pub(crate) fn module(path: &Path) -> Module {
    let found = fs::metadata(path).unwrap();
    let device = Device::from_stat(found.dev());
    Module {
        path: text(path).into(),
        build_id: Vec::new(),
        device: u64::from(device.major) << 32 | u64::from(device.minor),
        inode: found.ino(),
    }
}

/// The functions that the crate resolves at addresses of the file at `path`, in which code has the same addresses as
/// offsets.
pub(crate) fn found(symbols: &mut Symbols, path: &Path, addresses: &[u64]) -> Vec<Resolved> {
    // No process has this id.
    in_process(symbols, &module(path), i32::MAX, None, addresses)
}

/// The same of a module that a process has mapped.
pub(crate) fn in_process(
    symbols: &mut Symbols,
    module: &Module,
    pid: i32,
    mapping: Option<&Mapping>,
    offsets: &[u64],
) -> Vec<Resolved> {
    let process = ProcessFacts {
        pid,
        ..ProcessFacts::default()
    };
    let query = SymbolQuery::new(module, &process).mapped(mapping);
    let functions = symbols.functions(query, offsets);
    functions.iter().map(|found| resolved(found)).collect()
}

/// Changes the header of `.debug_info`, which is compressed: type, reserved, size, alignment.
pub(crate) fn change_compression(path: &Path, change: impl FnOnce(&mut [u8; 24])) {
    let list = tool("readelf", &["-SW", text(path)]);
    let line = list.lines().find(|line| line.contains(".debug_info"));
    let words = line.unwrap().split("PROGBITS").nth(1).unwrap();
    let offset = words.split_whitespace().nth(1).unwrap();
    let offset = u64::from_str_radix(offset, 16).unwrap();
    let file = fs::File::options().read(true).write(true).open(path);
    let (file, mut header) = (file.unwrap(), [0; 24]);
    file.read_exact_at(&mut header, offset).unwrap();
    change(&mut header);
    file.write_all_at(&header, offset).unwrap();
}
