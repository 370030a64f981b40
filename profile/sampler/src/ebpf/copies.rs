//! Reads the stacks that the program has copied (`bpf/copy.h`).

use std::collections::HashMap;

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};
use foldhash::fast::RandomState;
use otelctx_reader::remote::Machine;
use otelctx_unwind::Registers;

use super::abi::{StackHead, StackPage, StackThread, stack_kind, take};
use super::object::map;
use crate::Options;
use crate::refusal::Refusal;
use crate::second_walk::{CopiedStack, StackBytes, add_page, copied_code};

/// Bytes of the kernel's ring buffer for each CPU: copies of a tenth of a second, and far more of usual stacks.
const SIZE_PER_CPU: u64 = 1 << 20;
/// Limits of its size, in bytes.
const MIN_SIZE: u64 = 1 << 20;
const MAX_SIZE: u64 = 16 << 20;
/// Maximum number of copies that wait for their samples.
const MAX_WAITING: usize = 1024;

/// Size of the kernel's ring buffer, a power of two; as small as possible where no stacks are copied.
pub(super) fn size(options: &Options, online: usize) -> u32 {
    if !copies_stacks(options) {
        return 1 << 16;
    }
    let size = (SIZE_PER_CPU * online as u64).next_power_of_two();
    size.clamp(MIN_SIZE, MAX_SIZE) as u32
}

/// Returns true if the program copies stacks.
pub(super) fn copies_stacks(options: &Options) -> bool {
    options.user_stacks && !options.without_second_walk
}

/// A CPU, and the number of a copy on it.
type Key = (u32, u64);

pub(super) struct Copies {
    ring: RingBuf<MapData>,
    /// Copies whose samples have not come.
    waiting: HashMap<Key, CopiedStack, RandomState>,
}

impl Copies {
    pub(super) fn new(programs: &mut Ebpf) -> Result<Self, Refusal> {
        Ok(Self {
            ring: map(programs, "copies")?,
            waiting: HashMap::default(),
        })
    }

    /// Returns the copy with this number. The program has copied it before it has published the sample.
    pub(super) fn take(&mut self, cpu: u32, number: u64) -> Option<CopiedStack> {
        while let Some(record) = self.ring.next() {
            add(&mut self.waiting, &record);
        }
        let copied = self.waiting.remove(&(cpu, number));
        if self.waiting.len() > MAX_WAITING {
            // Those of lost samples, most likely.
            self.waiting.clear();
        }
        copied
    }
}

fn add(to: &mut HashMap<Key, CopiedStack, RandomState>, record: &[u8]) {
    let Some((head, _)) = take::<StackHead>(record) else {
        return;
    };
    let key = (head.cpu, head.number);
    match head.kind {
        stack_kind::THREAD => {
            let thread = take::<StackThread>(record).and_then(|(thread, _)| copied(&thread));
            to.extend(thread.map(|thread| (key, thread)));
        }
        stack_kind::PAGE => {
            let page = take::<StackPage>(record);
            if let (Some((page, _)), Some(copied)) = (page, to.get_mut(&key)) {
                add_page(&mut copied.stack, page.address, &page.bytes);
            }
        }
        _ => {}
    }
}

/// Converts registers by DWARF's numbers, with the instruction pointer behind them.
pub(super) fn registers(words: &[u64]) -> Option<Registers> {
    /// DWARF's numbers of the instruction pointer's place and of the stack pointer.
    const PLACES: (usize, usize) = if cfg!(target_arch = "x86_64") {
        (16, 7)
    } else {
        (32, 31)
    };
    let (pointer, stack_pointer) = (*words.get(PLACES.0)?, words[PLACES.1]);
    let mut registers = Registers::new(Machine::own(), pointer, stack_pointer)?;
    for (number, value) in (0..).zip(&words[..PLACES.0]) {
        registers.set(number, *value);
    }
    Some(registers)
}

fn copied(thread: &StackThread) -> Option<CopiedStack> {
    let pointer = thread.registers[if cfg!(target_arch = "x86_64") { 16 } else { 32 }];
    let registers = registers(&thread.registers)?;
    let (has_before, has_behind) = (thread.code_before != 0, thread.code_behind != 0);
    Some(CopiedStack {
        registers,
        stack: (0, StackBytes::default()),
        code: copied_code(pointer, &thread.code, has_before, has_behind),
        may_be_cut: false,
    })
}
