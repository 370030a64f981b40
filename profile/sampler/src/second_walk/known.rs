//! Walks of stacks that need not be walked again: threads wait in the same calls of the same functions over and over.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_unwind::Registers;

use super::{CopiedStack, REGISTERS, Walked};

/// Maximum number of walks; all are dropped when there are more. Each takes about 2 KiB.
const MAX_WALKS: usize = 8192;

/// The instruction pointer and the stack pointer.
type Key = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct KnownWalks {
    /// By process.
    walks: HashMap<i32, HashMap<Key, KnownWalk, RandomState>, RandomState>,
    count: usize,
}

#[derive(Debug)]
struct KnownWalk {
    registers: Registers,
    walked: Walked,
}

impl KnownWalks {
    /// Returns the walk of an equal stack: what it depends on is the same. Registers that do not point to the stack have
    /// no part in it, as every address of memory that rules read is one on the stack.
    pub(crate) fn get(&self, pid: i32, copied: &CopiedStack) -> Option<&Walked> {
        let known = self.walks.get(&pid)?.get(&key(copied))?;
        let words = known.walked.stack_words.as_ref()?;
        let has_word = |(address, word): &(u64, u64)| copied.stack_word(*address) == Some(*word);
        let is_same = has_same_registers(&known.registers, copied) && words.iter().all(has_word);
        is_same.then_some(&known.walked)
    }

    /// Keeps a walk, if it depends on the registers and on words of the stack alone.
    pub(crate) fn insert(&mut self, pid: i32, copied: &CopiedStack, walked: &Walked) {
        if walked.stack_words.is_none() {
            return;
        }
        if self.count >= MAX_WALKS {
            *self = Self::default();
        }
        let known = KnownWalk {
            registers: copied.registers,
            walked: walked.clone(),
        };
        let walks = self.walks.entry(pid).or_default();
        self.count += usize::from(walks.insert(key(copied), known).is_none());
    }

    /// Forgets the walks of a process, whose mappings have changed.
    pub(crate) fn remove(&mut self, pid: i32) {
        let removed = self.walks.remove(&pid);
        self.count -= removed.map_or(0, |walks| walks.len());
    }
}

fn key(copied: &CopiedStack) -> Key {
    let registers = &copied.registers;
    (registers.instruction_pointer(), registers.stack_pointer())
}

/// Whether all registers are equal that point to the stack in either, and on aarch64 the one with the return address.
fn has_same_registers(known: &Registers, copied: &CopiedStack) -> bool {
    const LINK: u8 = 30;
    let (start, bytes) = &copied.stack;
    let stack = *start..start.saturating_add(bytes.len() as u64);
    (0..REGISTERS).all(|number| {
        let (old, new) = (known.get(number), copied.registers.get(number));
        let is_in_stack = |value: Option<u64>| value.is_some_and(|value| stack.contains(&value));
        let counts = is_in_stack(old)
            || is_in_stack(new)
            || (cfg!(target_arch = "aarch64") && number == LINK);
        !counts || old == new
    })
}
