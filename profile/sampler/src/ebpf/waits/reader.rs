//! What the recorder itself reads of threads off the CPU, while the program shows that they stay there.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use otelctx_reader::ThreadVariables;
use otelctx_reader::remote::{LiveProcess, Memory, MemoryError, Process, ProcessMemory};
use otelctx_reader::runtime::{Present, RuntimeReading, ThreadView, read_thread};
use otelctx_sample::Found;

use crate::waits::{MAX_STACK, STACK_ROOM, WaitSnapshot, copy_stack, read_record};

/// Maximum number of processes without [`Reader`] whose memory is kept open.
const MAX_OPEN: usize = 256;

/// A process of which something is read here.
#[derive(Debug)]
pub(crate) struct Reader {
    process: Process,
    memory: ProcessMemory,
    /// The configuration that the variables are of.
    serial: u32,
    /// Where its threads keep their contexts, if the program does not read these.
    variables: Option<ThreadVariables>,
    runtimes: Arc<[Present]>,
}

/// What was read of a thread.
#[derive(Debug, Default)]
pub(super) struct Reading {
    pub(super) runtimes: Vec<RuntimeReading>,
    pub(super) context: Option<ContextReading>,
    /// The stack's lowest address, and the bytes from there on.
    pub(super) stack: Option<(u64, Vec<u8>)>,
}

/// A context, where the program does not read it.
#[derive(Debug)]
pub(super) struct ContextReading {
    /// The configuration that the context was read under.
    pub(super) serial: u32,
    pub(super) context: Found<Vec<u8>>,
    /// The position of the variable that leads to it.
    pub(super) variable: usize,
}

impl Reading {
    pub(super) fn of_runtimes(reader: Option<&Reader>, tid: i32, thread_pointer: u64) -> Self {
        Self {
            runtimes: reader.map_or_else(Vec::new, |it| it.runtimes(tid, thread_pointer)),
            ..Self::default()
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runtimes.is_empty() && self.context.is_none() && self.stack.is_none()
    }
}

impl Reader {
    /// `None` if the process has ended.
    pub(crate) fn new(
        process: Process,
        serial: u32,
        variables: Option<ThreadVariables>,
        runtimes: Arc<[Present]>,
    ) -> Option<Self> {
        Some(Self {
            memory: process.memory().ok()?,
            process,
            serial,
            variables,
            runtimes,
        })
    }

    pub(super) fn has_runtimes(&self) -> bool {
        !self.runtimes.is_empty()
    }

    pub(super) fn runtimes(&self, tid: i32, thread_pointer: u64) -> Vec<RuntimeReading> {
        if self.runtimes.is_empty() {
            return Vec::new();
        }
        let target = LiveProcess::new(&self.process, &self.memory);
        let view = ThreadView::new(tid, thread_pointer);
        read_thread(&target, &self.runtimes, view)
    }
}

/// Reads the memory of processes: what the program does not, or stacks of which it copies too little.
#[derive(Debug)]
pub(super) struct MemoryReader {
    /// The program reads no memory.
    pub(super) is_in_place: bool,
    pub(super) max_record: usize,
    pub(super) user_stacks: bool,
    /// The memory of processes without [`Reader`].
    open: HashMap<i32, ProcessMemory, RandomState>,
}

impl MemoryReader {
    pub(super) fn new(is_in_place: bool, max_record: usize, user_stacks: bool) -> Self {
        Self {
            is_in_place,
            max_record,
            user_stacks,
            open: HashMap::default(),
        }
    }

    /// Reads context and stack of the thread of a scan in place of the program. If `is_long`, the stack is read in any case, and
    /// more of it.
    pub(super) fn read(
        &mut self,
        reader: Option<&Reader>,
        snapshot: &WaitSnapshot,
        thread_pointer: u64,
        is_long: bool,
    ) -> Reading {
        let mut reading = Reading::of_runtimes(reader, snapshot.tid, thread_pointer);
        if self.is_in_place {
            let (mut serial, mut context, mut variable) = (0, Found::NotPublished, 0);
            if let Some(reader) = reader {
                let (variables, memory) = (reader.variables.as_ref(), Some(&reader.memory));
                serial = reader.serial;
                (context, variable) = read_record(
                    variables,
                    memory,
                    (snapshot.tid, thread_pointer),
                    self.max_record,
                );
            }
            reading.context = Some(ContextReading {
                serial,
                context,
                variable,
            });
        }
        let limit = if is_long { MAX_STACK } else { STACK_ROOM };
        let reads_stack = self.user_stacks && (is_long || self.is_in_place);
        if let Some(stack) = snapshot.stack.as_ref().filter(|_| reads_stack) {
            let memory = match reader {
                Some(reader) if !is_gone(&reader.memory) => Some(&reader.memory),
                _ => self.memory(snapshot.pid),
            };
            let pointer = stack.registers.stack_pointer();
            let copy = memory.map(|memory| copy_stack(memory, pointer, limit));
            reading.stack = copy.filter(|it| self.is_in_place || it.1.len() > stack.stack.1.len());
        }
        reading
    }

    fn memory(&mut self, pid: i32) -> Option<&ProcessMemory> {
        if self.open.get(&pid).is_none_or(is_gone) {
            if self.open.len() >= MAX_OPEN {
                self.open.clear();
            }
            let memory = Process::open(pid).and_then(|it| it.memory()).ok()?;
            self.open.insert(pid, memory);
        }
        self.open.get(&pid)
    }
}

/// Returns true if the process has ended or executed another program since.
fn is_gone(memory: &ProcessMemory) -> bool {
    // Nothing is mapped at 0.
    matches!(memory.read(0, &mut [0]), Err(MemoryError::Gone { .. }))
}
