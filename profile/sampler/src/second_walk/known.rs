//! Walks of stacks that need not be walked again: threads wait in the same calls of the same functions over and over.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_sample::StackEnd;
use otelctx_unwind::Registers;

use super::{CopiedStack, REGISTERS, Walked};

/// Maximum number of walks; all are dropped when there are more. Each takes about 2 KiB.
const MAX_WALKS: usize = 8192;
/// Maximum number of walks of a thread from one instruction: calls from many places wait in one function.
const MAX_SAME_KEY: usize = 8;

/// The instruction pointer and the stack pointer.
type Key = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct KnownWalks {
    /// By process.
    walks: HashMap<i32, HashMap<Key, Vec<KnownWalk>, RandomState>, RandomState>,
    count: usize,
}

#[derive(Debug)]
struct KnownWalk {
    /// The registers that the walk began with, and the copied stack's address and end.
    registers: Registers,
    stack: (u64, u64),
    /// The words of the stack that it read, with their addresses: each once.
    words: Vec<(u64, u64)>,
    walked: Walked,
}

impl KnownWalks {
    /// Returns the walk of a stack that leads the same way.
    pub(crate) fn get(
        &self,
        pid: i32,
        copied: &CopiedStack,
        is_code: &dyn Fn(u64) -> bool,
    ) -> Option<&Walked> {
        let known = self.walks.get(&pid)?.get(&key(copied))?;
        let mut known = known.iter();
        let known = known.find(|it| it.leads_the_same_way(copied, is_code));
        known.map(|it| &it.walked)
    }

    /// Keeps a walk, if it reached the start and depends on the registers and on words of the stack alone: others end where a
    /// value leads nowhere, or where the copy does.
    pub(crate) fn insert(&mut self, pid: i32, copied: &CopiedStack, walked: &Walked) {
        let words = walked.stack_words.as_ref();
        let Some(words) = words.filter(|_| walked.end == StackEnd::Start) else {
            return;
        };
        if self.count >= MAX_WALKS {
            *self = Self::default();
        }
        let mut words = words.clone();
        words.sort_unstable();
        words.dedup();
        let known = KnownWalk {
            registers: copied.registers,
            stack: copied.range(),
            words,
            walked: walked.clone(),
        };
        let walks = self.walks.entry(pid).or_default();
        let walks = walks.entry(key(copied)).or_default();
        if walks.len() == MAX_SAME_KEY {
            walks.remove(0);
            self.count -= 1;
        }
        walks.push(known);
        self.count += 1;
    }

    /// Forgets the walks of a process, whose mappings have changed.
    pub(crate) fn remove(&mut self, pid: i32) {
        let removed = self.walks.remove(&pid);
        let walks = removed.iter().flat_map(HashMap::values);
        self.count -= walks.map(Vec::len).sum::<usize>();
    }
}

impl KnownWalk {
    /// Returns true if a walk of another copy comes to the same. Functions save registers whose values are others in each
    /// wait; only those have to be equal that can lead anywhere: addresses of code (`is_code`) and of the stack, where every
    /// address of memory lies that rules read, and 0, which ends a walk as the frame pointer or as a return address.
    fn leads_the_same_way(&self, copied: &CopiedStack, is_code: &dyn Fn(u64) -> bool) -> bool {
        let leads = |value: u64| {
            let is_in = |(start, end): (u64, u64)| (start..end).contains(&value);
            is_in(self.stack)
                || is_in(copied.range())
                || is_code(value)
                || is_code(value.wrapping_sub(1))
        };
        // Signed return addresses are no addresses.
        let may_differ = |old, new| cfg!(target_arch = "x86_64") && !leads(old) && !leads(new);
        let is_same = |old, new| old == new || may_differ(old, new);
        let registers = [&self.registers, &copied.registers];
        let [was_zero, is_zero] = registers.map(|it| it.frame_pointer() == Some(0));
        let is_same_register = |number| {
            let [old, new] = registers.map(|it| it.get(number));
            let both = old.zip(new);
            both.map_or(old == new, |(old, new)| is_same(old, new))
        };
        let is_same_word = |(address, old): &(u64, u64)| {
            let new = copied.stack_word(*address);
            new.is_some_and(|new| is_same(*old, new) && (*old == 0) == (new == 0))
        };
        was_zero == is_zero
            && (0..REGISTERS).all(is_same_register)
            && self.words.iter().all(is_same_word)
    }
}

fn key(copied: &CopiedStack) -> Key {
    let registers = &copied.registers;
    (registers.instruction_pointer(), registers.stack_pointer())
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use otelctx_reader::remote::Machine;
    use otelctx_sample::Frame;

    use super::*;
    use crate::second_walk::StackBytes;

    /// Where the stack's copy begins, code, and what is neither.
    const STACK: u64 = 0x7fff_0000;
    const CODE: u64 = 0x40_0000;
    const DATA: u64 = 0x1234;
    /// DWARF's numbers.
    const RBX: u8 = 3;
    const RBP: u8 = 6;

    fn is_code(address: u64) -> bool {
        (CODE..CODE + 0x1000).contains(&address)
    }

    /// A stack with these words, and values of rbx and rbp.
    fn copied(words: &[u64], rbx: u64, rbp: u64) -> CopiedStack {
        let mut registers = Registers::new(Machine::own(), CODE, STACK).unwrap();
        registers.set(RBX, rbx);
        registers.set(RBP, rbp);
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        CopiedStack::of_bytes(registers, (STACK, StackBytes::Own(bytes.collect())))
    }

    fn walked(copied: &CopiedStack, read: &[u64], end: StackEnd) -> Walked {
        let word = |address: &u64| Some((*address, copied.stack_word(*address)?));
        Walked {
            frames: [Frame::native(0, CODE)].into(),
            end,
            stack_words: read.iter().map(word).collect(),
        }
    }

    #[test]
    fn a_walk_is_known_while_all_values_lead_the_same_way() {
        // A return address, a saved register, one that a walk did not read, and 0 in place of a return address.
        let words = [CODE + 8, DATA, DATA, 0];
        let (rbx, rbp) = (DATA, STACK + 8);
        let first = copied(&words, rbx, rbp);
        let read = [STACK, STACK + 8, STACK + 24];
        let mut known = KnownWalks::default();
        known.insert(1, &first, &walked(&first, &read, StackEnd::Start));
        let is_known = |copied: &CopiedStack| known.get(1, copied, &is_code).is_some();
        let with = |index: usize, word: u64| {
            let mut words = words;
            words[index] = word;
            copied(&words, rbx, rbp)
        };
        assert!(is_known(&first));
        assert!(known.get(2, &first, &is_code).is_none());
        // Saved registers, and what was not read.
        assert!(is_known(&with(1, DATA + 1)));
        assert!(is_known(&with(2, CODE)));
        assert!(is_known(&copied(&words, DATA + 1, rbp)));
        // Values that may lead elsewhere: code, the end of code, the stack, and 0.
        for word in [CODE, CODE + 0x1000, STACK, 0] {
            assert!(!is_known(&with(1, word)), "{word:#x}");
        }
        assert!(!is_known(&with(0, CODE + 16)));
        assert!(!is_known(&with(0, DATA)));
        assert!(!is_known(&with(3, DATA)));
        assert!(!is_known(&copied(&words, STACK, rbp)));
        assert!(!is_known(&copied(&words, rbx, 0)));
        assert!(!is_known(&copied(&words, rbx, STACK + 16)));
        // A word that was read is behind the end.
        assert!(!is_known(&copied(&words[..3], rbx, rbp)));
    }

    #[test]
    fn a_walk_that_did_not_reach_the_start_is_not_kept() {
        let first = copied(&[CODE + 8], DATA, DATA);
        let ends = StackEnd::ALL
            .into_iter()
            .filter(|end| *end != StackEnd::Start);
        for end in ends {
            let mut known = KnownWalks::default();
            known.insert(1, &first, &walked(&first, &[STACK], end));
            assert!(known.get(1, &first, &is_code).is_none(), "{end:?}");
        }
    }

    #[test]
    fn walks_are_bounded_and_forgotten_by_process() {
        let mut known = KnownWalks::default();
        let stack = |word| copied(&[word], DATA, DATA);
        for pid in 1..=2 {
            for index in 0..=MAX_SAME_KEY as u64 {
                let copied = stack(CODE + index);
                known.insert(pid, &copied, &walked(&copied, &[STACK], StackEnd::Start));
            }
        }
        assert_eq!(known.count, 2 * MAX_SAME_KEY);
        // The oldest has made room.
        assert!(known.get(1, &stack(CODE), &is_code).is_none());
        assert!(known.get(1, &stack(CODE + 1), &is_code).is_some());
        known.remove(1);
        assert_eq!(known.count, MAX_SAME_KEY);
        assert!(known.get(1, &stack(CODE + 1), &is_code).is_none());
        assert!(known.get(2, &stack(CODE + 1), &is_code).is_some());
        known.remove(2);
        assert_eq!(known.count, 0);
    }
}
