//! The walk from outside.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use otelctx_fixtures::{HANG_TIMEOUT, Random};
use otelctx_hotspot::HotSpot;
use otelctx_reader::remote::{
    FileCache, GeneratedCode, LiveProcess, Memory, MemoryError, Modules, Process, ProcessMemory,
};
use otelctx_reader::runtime::{Runtime, RuntimeProcess};
use otelctx_reader::sample::Frame;
use otelctx_unwind::{
    CodeMap, Dictionary, MAX_FRAMES, MakeRules, Registers, StackEnd, walk_generated,
};

/// A method on a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) line: u32,
}

impl Shown {
    pub(crate) fn is_same_method(&self, other: &Self) -> bool {
        (&self.name, &self.file) == (&other.name, &other.file)
    }
}

/// A method that a walk has found. `None` without a name.
#[derive(Debug)]
pub(crate) struct Method {
    pub(crate) shown: Option<Shown>,
    /// The number of its frame, which inlined methods share.
    pub(crate) frame: usize,
}

/// What a walk has found.
#[derive(Debug)]
pub(crate) struct Found {
    /// Methods, innermost first.
    pub(crate) methods: Vec<Method>,
    pub(crate) end: StackEnd,
    /// The innermost generated code is that which passes on an exception.
    pub(crate) passes_on_exception: bool,
    /// All frames, for messages.
    pub(crate) all: Vec<String>,
}

/// A program whose stacks are read.
pub(crate) struct Reader {
    process: Process,
    memory: ProcessMemory,
    files: FileCache,
    rules: Arc<Dictionary>,
    runtime: Arc<dyn RuntimeProcess>,
    code: Option<CodeMap>,
}

/// A stack as it was, and the rest of the process as it is.
struct Copied<'r> {
    /// The addresses from the first one that was copied up to the end of the stack.
    stack: Range<u64>,
    bytes: Vec<u8>,
    now: &'r dyn Memory,
}

/// Bytes that are copied of a stack, as in recordings, and at a time.
const MAX_COPY: u64 = 64 << 10;
const PAGE: u64 = 4096;

impl Memory for Copied<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        // Code may be right above the stack.
        if !self.stack.contains(&address) {
            return self.now.read(address, buffer);
        }
        let skip = (address - self.stack.start) as usize;
        let rest = self.bytes.get(skip..).unwrap_or_default();
        let found = rest.get(..length);
        buffer.copy_from_slice(found.ok_or(MemoryError::Unmapped { address, length })?);
        Ok(())
    }
}

impl Reader {
    pub(crate) fn new(pid: i32) -> Self {
        let process = Process::open(pid).unwrap();
        let memory = process.memory().unwrap();
        let files = FileCache::new();
        let target = LiveProcess::new(&process, &memory);
        let modules = Modules::read(&target, &files).unwrap();
        let runtime = HotSpot.probe(&target, &modules).unwrap();
        Self {
            rules: Arc::new(Dictionary::new()),
            process,
            memory,
            files,
            runtime: runtime.expect("it is a Java virtual machine"),
            code: None,
        }
    }

    fn target(&self) -> LiveProcess<'_> {
        LiveProcess::new(&self.process, &self.memory)
    }

    /// One of the threads whose names in the kernel begin with this.
    pub(crate) fn thread(&self, name: &str, random: &mut Random) -> i32 {
        let begun = std::time::Instant::now();
        loop {
            let threads = self.process.threads().unwrap();
            let work = threads
                .iter()
                .filter(|it| it.name.to_string_lossy().starts_with(name));
            let work: Vec<i32> = work.map(|it| it.tid).collect();
            if !work.is_empty() {
                return work[random.below(work.len() as u64) as usize];
            }
            assert!(begun.elapsed() < HANG_TIMEOUT, "no thread works");
        }
    }

    /// Copies the stack of a thread that waits, and returns its addresses.
    pub(crate) fn copy(&self, registers: &Registers) -> (Range<u64>, Vec<u8>) {
        let lowest = registers.stack_pointer() - 256;
        let (start, mut bytes) = (lowest - lowest % PAGE, Vec::new());
        for at in (start..start + MAX_COPY).step_by(PAGE as usize) {
            let mut page = [0; PAGE as usize];
            match self.memory.read(at, &mut page) {
                Ok(()) => bytes.extend_from_slice(&page),
                Err(_) => break,
            }
        }
        let mut end = start + bytes.len() as u64;
        let mappings = self.process.mappings(&mut |mapping| {
            if (mapping.start..mapping.end).contains(&start) {
                end = mapping.end;
            }
            ControlFlow::Continue(())
        });
        mappings.unwrap();
        (start..end, bytes)
    }

    /// The code around the place where a thread is interrupted, and the top of its stack, for messages.
    fn interrupted(&self, registers: &Registers) -> Vec<String> {
        let (pc, sp) = (registers.instruction_pointer(), registers.stack_pointer());
        let code = self.memory.read_vec(pc - 48, 96, 96).unwrap_or_default();
        let words = (0..128).map(|index| self.memory.read_u64(sp + 8 * index).unwrap_or_default());
        let frame_pointer = registers.get(6).unwrap_or_default();
        vec![
            format!("pc {pc:#x}, sp {sp:#x}, rbp {frame_pointer:#x}, from pc - 48: {code:02x?}"),
            format!("stack {:x?}", words.collect::<Vec<_>>()),
        ]
    }

    /// Walks the stack of a thread that waits, or a copy of it.
    pub(crate) fn walk(
        &mut self,
        registers: &Registers,
        copied: Option<(Range<u64>, Vec<u8>)>,
    ) -> Found {
        let found = self.walk_once(registers, copied.as_ref());
        if matches!(found.end, StackEnd::NotExecutable(_) | StackEnd::NoRows) {
            // Libraries are loaded while the program runs.
            self.code = None;
            return self.walk_once(registers, copied.as_ref());
        }
        found
    }

    fn walk_once(
        &mut self,
        registers: &Registers,
        copied: Option<&(Range<u64>, Vec<u8>)>,
    ) -> Found {
        let target = LiveProcess::new(&self.process, &self.memory);
        let read = || CodeMap::read(&target, &self.files, &self.rules, MakeRules::OnDemand);
        let code = self.code.get_or_insert_with(|| read().unwrap());
        let generated = self.runtime.generated(&target);
        let walkers: Vec<Arc<dyn GeneratedCode>> = generated.into_iter().collect();
        let copied = copied.map(|(stack, bytes)| Copied {
            stack: stack.clone(),
            bytes: bytes.clone(),
            now: &self.memory,
        });
        let memory: &dyn Memory = match &copied {
            Some(copied) => copied,
            None => &target,
        };
        let mut frames = Vec::new();
        let limit = MAX_FRAMES;
        let end = walk_generated(registers, code, &walkers, memory, limit, &mut frames);
        let (mut methods, mut all) = (Vec::new(), self.interrupted(registers));
        let target = self.target();
        let mut stubs = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let record = frame.generated.map(|it| it.record);
            all.push(format!("{:#x} {record:x?}", frame.address));
            let Some(record) = record else { continue };
            for frame in &*self.runtime.frames(&target, frame.address, &record) {
                let Frame::Named(named) = frame else { continue };
                all.push(format!("  {} {}:{}", named.name(), named.file, named.line));
                let shown = Shown {
                    name: named.qualified_name.clone(),
                    file: named.file.clone(),
                    line: named.line,
                };
                let is_unnamed = named.is_unnamed();
                if !is_unnamed && shown.name.is_empty() {
                    stubs.push((methods.is_empty(), named.function.clone()));
                    continue;
                }
                methods.push(Method {
                    shown: (!is_unnamed).then_some(shown),
                    frame: number,
                });
            }
        }
        let mut innermost = stubs.iter().take_while(|it| it.0);
        let passes_on_exception = innermost.any(|it| it.1.to_lowercase().contains("exception"));
        Found {
            methods,
            end,
            passes_on_exception,
            all,
        }
    }
}
