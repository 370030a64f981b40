//! Makes the seeds of the target `tls`: running processes, reduced to what resolving the variable
//! reads, and synthetic ones for platforms that do not run here.
//!
//! `cargo run --release --example tls_seeds -- DIRECTORY`, in `testing/fuzz/`. Each seed is resolved as the
//! target does, and the variable must be at the address that the process has.

#[path = "../targets/tls/synthetic.rs"]
#[expect(dead_code, reason = "the target asks for more")]
mod synthetic;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use otelctx_fixtures::{Compiler, Target};
use otelctx_reader::SYMBOL as NAME;
use otelctx_remote::mappings::Walk;
use otelctx_remote::module::Machine;
use otelctx_remote::tls::resolve;
use otelctx_remote::{
    Access, Device, Error, FileCache, Mapping, Memory, MemoryError, Module, Process, Stopped,
};
use synthetic::{AARCH64, FILE, FILES, MAPPINGS, PIECE, SEPARATOR, Synthetic, THREAD};

const TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a file that are kept or dropped together.
const GRAIN: usize = 16;

fn main() {
    let directory = PathBuf::from(std::env::args_os().nth(1).expect("a directory"));
    fs::create_dir_all(&directory).expect("a directory can be made");
    let seeds = running().into_iter().chain(made());
    for (name, seed) in seeds {
        println!("{name}: {} bytes", seed.len());
        fs::write(directory.join(name), seed).expect("a seed can be written");
    }
}

/// A seed and its name.
type Seed = (String, Vec<u8>);

/// Where each thread has each of the variables.
type Addresses = Vec<Vec<Option<u64>>>;

fn addresses(target: &dyn otelctx_remote::Target, threads: &[u64]) -> (Addresses, Vec<OsString>) {
    let resolution = resolve(target, &FileCache::new(), NAME).expect("a resolution");
    let variables = resolution.variables.iter().map(|variable| {
        let address = |thread: &u64| variable.address(target, *thread).expect("an address");
        threads.iter().map(address).collect()
    });
    (variables.collect(), resolution.bound_elsewhere)
}

fn running() -> Vec<Seed> {
    let gcc = Compiler::gcc();
    let musl = Compiler::musl_gcc();
    let small = ["-Wl,-z,noseparate-code", "-Wl,-s"];
    let library = |compiler: Compiler, flags: &[&str]| {
        compiler.library(&["variable.c"], &[&small, flags].concat())
    };
    let loading = |compiler: Compiler, flags: &[&str], how: &[&str]| {
        let library = library(compiler, flags)?;
        let program = compiler.program(&["threads.c"], &["-ldl"])?;
        let mut command = Command::new(program);
        command.arg(format!("lib={}", library.display()));
        for word in how {
            match word.split_once('=') {
                Some((name, value)) if name == "GLIBC_TUNABLES" => command.env(name, value),
                _ => command.arg(word),
            };
        }
        Some(command)
    };
    let own = |compiler: Compiler, flags: &[&str]| {
        let flags = [&["-DLINKED"], flags].concat();
        compiler
            .program(&["threads.c", "variable.c"], &flags)
            .map(Command::new)
    };
    let two = || {
        let library = library(gcc, &["-mtls-dialect=gnu2"])?;
        let library = library.to_str().expect("UTF-8");
        own(gcc, &["-rdynamic", "-DSLOT=own_slot", library])
    };
    let dynamic = "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=0";
    let (gnu, gnu2) = ("-mtls-dialect=gnu", "-mtls-dialect=gnu2");
    let commands = [
        ("glibc-executable", own(gcc, &["-rdynamic"])),
        ("glibc-local", own(gcc, &[])),
        ("glibc-static", own(gcc, &["-static"])),
        ("glibc-two", two()),
        ("glibc-descriptor-surplus", loading(gcc, &[gnu2], &[])),
        ("glibc-descriptor", loading(gcc, &[gnu2], &[dynamic])),
        ("glibc-general", loading(gcc, &[gnu], &[dynamic])),
        (
            "glibc-initial",
            loading(gcc, &["-ftls-model=initial-exec"], &[]),
        ),
        (
            "glibc-unnamed",
            loading(gcc, &[gnu, "-Wl,-Bsymbolic", "-DBIG=24"], &[]),
        ),
        (
            "glibc-local-dynamic",
            loading(gcc, &[gnu, "-DMODEL=\"local-dynamic\"", "-DBIG=24"], &[]),
        ),
        (
            "glibc-sysv",
            loading(gcc, &[gnu2, "-Wl,--hash-style=sysv"], &[dynamic]),
        ),
        ("musl-executable", own(musl, &["-rdynamic"])),
        ("musl-general", loading(musl, &[gnu], &[])),
        ("musl-descriptor", loading(musl, &[gnu2], &[])),
        ("musl-static", own(musl, &["-static"])),
    ];
    let mut seeds = Vec::new();
    for (name, command) in commands {
        let Some(mut command) = command else { continue };
        let target = Target::spawn(&mut command);
        for deleted in [false, true] {
            // Where no module is loaded with its symbols a file is needed.
            if deleted && (name.ends_with("-static") || name.ends_with("-local")) {
                continue;
            }
            let name = format!("{name}{}", if deleted { "-deleted" } else { "" });
            seeds.push((name, record(&target, deleted)));
        }
    }
    seeds
}

/// A process that records which bytes of its memory are read.
struct Recorder<'a> {
    process: &'a Process,
    memory: &'a dyn Memory,
    deleted: bool,
    bytes: RefCell<BTreeMap<u64, u8>>,
}

impl Memory for Recorder<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        self.memory.read(address, buffer)?;
        let bytes = (address..).zip(buffer.iter().copied());
        self.bytes.borrow_mut().extend(bytes);
        Ok(())
    }
}

impl otelctx_remote::Target for Recorder<'_> {
    fn mappings(
        &self,
        visit: &mut dyn FnMut(&Mapping<'_>) -> ControlFlow<()>,
    ) -> Result<Walk, Error> {
        self.process.mappings(visit)
    }

    fn mapped_file(
        &self,
        range: (u64, u64),
        name: &[u8],
        device: Device,
        inode: u64,
    ) -> Result<File, Option<String>> {
        if self.deleted {
            return Err(None);
        }
        self.process
            .mapped_file(range, name, device, inode)
            .ok_or(None)
    }

    fn machine(&self) -> Machine {
        Machine::own()
    }

    fn name(&self) -> OsString {
        "the process".into()
    }
}

/// Makes a seed of a running process.
fn record(target: &Target, deleted: bool) -> Vec<u8> {
    let process = Process::open(target.pid()).expect("it runs");
    let memory = process.memory().expect("it may be read");
    let threads = target.threads.iter().map(|thread| {
        let stopped = Stopped::stop(&process, thread.tid, TIMEOUT).expect("it stops");
        let pointer = stopped.thread_pointer();
        stopped.resume().expect("it goes on");
        pointer
    });
    let threads: Vec<u64> = threads.collect();
    let recorder = Recorder {
        process: &process,
        memory: &memory,
        deleted,
        bytes: RefCell::default(),
    };
    let truth = addresses(&recorder, &threads);
    assert!(!truth.0.is_empty());

    let mut seed = Parts::default();
    threads.iter().for_each(|thread| seed.thread(*thread));
    let (text, paths) = mappings(&process, deleted);
    seed.part(MAPPINGS, &[text.as_bytes()]);
    for (number, path) in paths.iter().enumerate().filter(|_| !deleted) {
        seed.file(number, path);
    }
    seed.memory(&recorder.bytes.into_inner());
    seed.check(&truth)
}

/// The mappings of modules, with the numbers of their files, and these.
fn mappings(process: &Process, deleted: bool) -> (String, Vec<PathBuf>) {
    let (mut text, mut paths) = (String::new(), Vec::new());
    let walk = process.mappings(&mut |mapping| {
        let name = String::from_utf8_lossy(mapping.name).into_owned();
        let path = PathBuf::from(&name);
        if mapping.inode == 0 || !path.is_file() {
            return ControlFlow::Continue(());
        }
        let number = paths.iter().position(|other| *other == path);
        let number = number.unwrap_or_else(|| {
            paths.push(path);
            paths.len() - 1
        });
        let short = name.rsplit('/').next().unwrap_or_default();
        let short = short.split('-').next().unwrap_or_default();
        let inode = number + 1 + if deleted { FILES } else { 0 };
        let execute = if mapping.permissions.execute {
            'x'
        } else {
            '-'
        };
        let (start, end, offset) = (mapping.start, mapping.end, mapping.offset);
        writeln!(
            text,
            "{start:x}-{end:x} r-{execute}p {offset:08x} 00:01 {inode} {short}"
        )
        .expect("a string takes all");
        ControlFlow::Continue(())
    });
    walk.expect("it may be read");
    (text, paths)
}

/// Parts of a seed.
#[derive(Default)]
struct Parts {
    bytes: Vec<u8>,
    threads: Vec<u64>,
}

impl Parts {
    fn part(&mut self, kind: u8, pieces: &[&[u8]]) {
        if !self.bytes.is_empty() {
            self.bytes.extend_from_slice(SEPARATOR);
        }
        self.bytes.push(kind);
        for piece in pieces {
            assert!(!piece.windows(SEPARATOR.len()).any(|it| it == SEPARATOR));
            self.bytes.extend_from_slice(piece);
        }
    }

    fn thread(&mut self, pointer: u64) {
        self.part(THREAD, &[&pointer.to_le_bytes()]);
        self.threads.push(pointer);
    }

    /// What the answer takes of a file.
    fn file(&mut self, number: usize, path: &Path) {
        let bytes = fs::read(path).expect("the file can be read");
        let mut reduced = bytes.clone();
        let module = Module::from_bytes(&bytes, NAME);
        reduce(&mut reduced, 0, bytes.len().next_power_of_two(), &|bytes| {
            Module::from_bytes(bytes, NAME) == module
        });
        let number = [u8::try_from(number).expect("few files")];
        // The last byte keeps the size.
        let last = reduced.len().saturating_sub(1) / GRAIN;
        let blocks: Vec<(usize, &[u8])> = reduced.chunks(GRAIN).enumerate().collect();
        let kept = |block: &(usize, &[u8])| block.0 == last || block.1.iter().any(|it| *it != 0);
        for run in blocks.chunk_by(|left, right| kept(left) == kept(right)) {
            if kept(&run[0]) {
                let offset = u32::try_from(run[0].0 * GRAIN).expect("a small file");
                let bytes: Vec<u8> = run.iter().flat_map(|block| block.1).copied().collect();
                self.part(FILE, &[&number, &offset.to_le_bytes(), &bytes]);
            }
        }
    }

    fn memory(&mut self, bytes: &BTreeMap<u64, u8>) {
        let bytes: Vec<(u64, u8)> = bytes.iter().map(|(at, byte)| (*at, *byte)).collect();
        for run in bytes.chunk_by(|left, right| left.0 + 1 == right.0) {
            let piece: Vec<u8> = run.iter().map(|(_, byte)| *byte).collect();
            self.piece(run[0].0, &piece);
        }
    }

    fn piece(&mut self, address: u64, bytes: &[u8]) {
        self.part(PIECE, &[&address.to_le_bytes(), bytes]);
    }

    fn words(&mut self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.piece(address, &bytes);
    }

    /// The seed, if it says the same as what it was made of.
    fn check(self, truth: &(Addresses, Vec<OsString>)) -> Vec<u8> {
        let process = Synthetic::new(&self.bytes);
        let found = addresses(&process, &self.threads);
        assert_eq!(found.0, truth.0);
        assert_eq!(found.1.len(), truth.1.len());
        self.bytes
    }
}

/// Zeroes what makes no difference.
fn reduce(bytes: &mut [u8], at: usize, length: usize, same: &dyn Fn(&[u8]) -> bool) {
    let end = (at + length).min(bytes.len());
    if at >= end || bytes[at..end].iter().all(|byte| *byte == 0) {
        return;
    }
    let kept = bytes[at..end].to_vec();
    bytes[at..end].fill(0);
    if same(bytes) {
        return;
    }
    bytes[at..end].copy_from_slice(&kept);
    if length > GRAIN {
        reduce(bytes, at, length / 2, same);
        reduce(bytes, at + length / 2, length / 2, same);
    }
}

/// Processes made by hand of module files, as the dynamic linkers of both C libraries leave them
/// on both architectures.
fn made() -> Vec<Seed> {
    let gcc = |machine| match machine {
        Machine::Aarch64 => Compiler::aarch64_gcc(),
        _ => Compiler::gcc(),
    };
    let mut seeds = Vec::new();
    for machine in [Machine::X86_64, Machine::Aarch64] {
        for library in ["libc.so.6", "libc.so"] {
            for access in [
                Access::Tlsdesc,
                Access::GeneralDynamic,
                Access::InitialExec,
                Access::LocalExec,
            ] {
                for dynamic in [true, false] {
                    let fixed = matches!(access, Access::InitialExec | Access::LocalExec);
                    if dynamic && fixed || !dynamic && access == Access::GeneralDynamic {
                        continue;
                    }
                    let Some(seed) = make(gcc(machine), machine, library, access, dynamic) else {
                        continue;
                    };
                    let storage = if dynamic { "dynamic" } else { "static" };
                    let name = format!("made-{machine:?}-{library}-{access:?}-{storage}");
                    seeds.push((name.to_lowercase(), seed));
                }
            }
        }
    }
    seeds
}

const THREAD_POINTER: u64 = 0x7f22_0000_1000;
const VECTOR: u64 = 0x7f22_0000_2000;
const BLOCK: u64 = 0x7f22_0000_3000;
const ARGUMENT: u64 = 0x7f22_0000_4000;
const BASES: [u64; 2] = [0x7f00_0000_0000, 0x7f00_0100_0000];

fn make(
    gcc: Compiler,
    machine: Machine,
    library: &str,
    access: Access,
    dynamic: bool,
) -> Option<Vec<u8>> {
    let soname = format!("-Wl,-soname,{library}");
    let small = ["-Wl,-z,noseparate-code", "-Wl,-s", "-DBIG=24"];
    let aarch64 = machine == Machine::Aarch64;
    let model = match (access, aarch64) {
        (Access::Tlsdesc, false) => "-mtls-dialect=gnu2",
        (Access::Tlsdesc, true) => "-mtls-dialect=desc",
        (Access::GeneralDynamic, false) => "-mtls-dialect=gnu",
        (Access::GeneralDynamic, true) => "-mtls-dialect=trad",
        _ => "-ftls-model=initial-exec",
    };
    let c_library = gcc.library(&["variable.c"], &["-DNAME=other", &soname])?;
    let own = if access == Access::LocalExec {
        let flags = [&small[..], &["-DLINKED", "-rdynamic", "-pie", "-fPIE"]].concat();
        gcc.program(&["threads.c", "variable.c"], &flags)?
    } else {
        gcc.library(&["variable.c"], &[&small[..], &[model]].concat())?
    };
    let module = Module::open(&own, NAME).expect("a module");
    let (offset, _) = module.symbol.definition().expect("it defines the variable");

    let mut seed = Parts::default();
    if aarch64 {
        seed.part(AARCH64, &[]);
    }
    seed.thread(THREAD_POINTER);
    let mut text = String::new();
    for (number, (path, base)) in [(&own, BASES[0]), (&c_library, BASES[1])]
        .into_iter()
        .enumerate()
    {
        lines(&mut text, number, path, base);
        seed.file(number, path);
    }
    seed.part(MAPPINGS, &[text.as_bytes()]);

    let resolver = BASES[1] + 0x100;
    // ldr x0, [x0, #8]; ret
    let code: [u32; 2] = if dynamic {
        [0; 2]
    } else {
        [0xf940_0400, 0xd65f_03c0]
    };
    seed.piece(resolver, &code.map(u32::to_le_bytes).concat());
    let fixed = if aarch64 { 32_i64 } else { -64 } as u64;
    if let Some(relocation) = module.relocations.first() {
        let slot = BASES[0] + relocation.slot;
        match access {
            Access::Tlsdesc if dynamic => {
                seed.words(slot, &[resolver, ARGUMENT]);
                seed.words(ARGUMENT, &[1, offset, 1]);
            }
            Access::Tlsdesc => seed.words(slot, &[resolver, fixed]),
            Access::GeneralDynamic => seed.words(slot, &[1, offset]),
            _ => seed.words(slot, &[fixed]),
        }
    }
    let glibc = library == "libc.so.6";
    let at = match (glibc, aarch64) {
        (true, true) => 0,
        (false, true) => -8,
        (_, false) => 8,
    };
    seed.words(THREAD_POINTER.wrapping_add_signed(at), &[VECTOR + 16]);
    if glibc {
        seed.words(VECTOR, &[1, 0, 1, 0, BLOCK, 0]);
    } else {
        seed.words(VECTOR + 16, &[1, BLOCK]);
    }
    let truth = if access == Access::LocalExec {
        let process = Synthetic::new(&seed.bytes);
        addresses(&process, &[THREAD_POINTER]).0
    } else if dynamic {
        vec![vec![Some(BLOCK + offset)]]
    } else {
        vec![vec![Some(THREAD_POINTER.wrapping_add(fixed))]]
    };
    assert!(matches!(truth[..], [_]));
    Some(seed.check(&(truth, Vec::new())))
}

/// The mappings that a module's PT_LOAD segments make.
fn lines(text: &mut String, number: usize, path: &Path, base: u64) {
    const PAGE: u64 = 0x1000;
    let bytes = fs::read(path).expect("the file can be read");
    let word = |at: u64, size: usize| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(&bytes[at as usize..][..size]);
        u64::from_le_bytes(word)
    };
    // e_phoff, e_phnum; p_type, p_flags, p_offset, p_vaddr, p_memsz (ELF-64 Object File Format).
    for header in 0..word(56, 2) {
        let at = word(32, 8) + header * 56;
        let (kind, flags) = (word(at, 4), word(at + 4, 4));
        let (offset, address, size) = (word(at + 8, 8), word(at + 16, 8), word(at + 40, 8));
        if kind != 1 {
            continue;
        }
        let execute = if flags & 1 != 0 { 'x' } else { '-' };
        let start = (base + address) & !(PAGE - 1);
        let end = (base + address + size).next_multiple_of(PAGE);
        let offset = offset & !(PAGE - 1);
        let inode = number + 1;
        writeln!(
            text,
            "{start:x}-{end:x} r-{execute}p {offset:08x} 00:01 {inode} m{number}"
        )
        .expect("a string takes all");
    }
}
