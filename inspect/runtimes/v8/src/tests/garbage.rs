//! Heaps and stacks of random words, of which many refer to each other: whatever they say, a frame takes a bounded number of reads.

use std::sync::Arc;

use otelctx_fixtures::tier;
use otelctx_reader::remote::memory::{CountedMemory, Image};
use otelctx_reader::remote::{Device, FrameRegisters, GeneratedCode, TargetImage, Through};
use otelctx_reader::runtime::RuntimeProcess;
use otelctx_reader::sample::Frame;

use super::{MAPS, layout, map_of};
use crate::builtins::Builtins;
use crate::process::V8Process;
use crate::walker::Walker;

/// The memory with objects, that with a stack, and that with code.
const START: u64 = 0x20_0000;
const STACK: u64 = 0x28_0000;
const CODE: u64 = 0x30_0000;
const CODE_END: u64 = CODE + 64 * 64;
/// Objects and their size.
const OBJECTS: u64 = 4 * KINDS.len() as u64;
const SIZE: u64 = 256;
const QUARTER: u64 = (CODE_END - CODE) / 4;
const STACK_WORDS: u64 = 64;
/// Limit on the reads of a step.
const MAX_STEP_READS: usize = 1 << 10;
/// Limit on the reads that the functions of a frame take: those of 64 functions that were inlined, each with names of
/// many parts.
const MAX_READS: usize = (64 * 3 * 8) << 10;

const FUNCTION: u16 = 2065;
const SHARED: u16 = 282;
const SCRIPT: u16 = 167;
const SCOPE: u16 = 280;
const CODE_KIND: u16 = 187;
const STREAM: u16 = 192;
const BYTECODE: u16 = 186;
const BYTES: u16 = 196;
const FIXED: u16 = 205;
const STRINGS: [u16; 4] = [40, 41, 43, 45];
const KINDS: [u16; 13] = [
    FUNCTION, SHARED, SCRIPT, SCOPE, CODE_KIND, STREAM, BYTECODE, BYTES, FIXED, 40, 41, 43, 45,
];

/// A sequence of numbers (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A reference to an object of a kind.
    fn reference(&mut self, kind: u16) -> u64 {
        let first = KINDS.iter().position(|it| *it == kind).unwrap() as u64;
        // Half of them to the first one, so that functions and code agree.
        let count = OBJECTS / KINDS.len() as u64;
        let object = first + KINDS.len() as u64 * self.below(2 * count).saturating_sub(count);
        START + SIZE * object + 1
    }

    fn small(&mut self) -> u64 {
        self.below(48) << 32
    }

    /// A word as heaps and stacks have them.
    fn any(&mut self) -> u64 {
        match self.below(8) {
            0..4 => {
                let kind = self.one_of(&KINDS);
                self.reference(kind)
            }
            4 => CODE + self.below(CODE_END - CODE),
            5 => self.small(),
            6 => self.below(256),
            _ => self.next(),
        }
    }

    /// A word of an object. Most are as they should be.
    fn word(&mut self, kind: u16, index: u64) -> u64 {
        if self.below(24) == 0 {
            return self.any();
        }
        match (kind, index) {
            (_, 0) => map_of(kind),
            (FUNCTION, 4) | (FIXED, 9) => self.reference(SHARED),
            (SHARED, 1) => {
                let kind = self.one_of(&[BYTECODE, BYTECODE, CODE_KIND]);
                self.reference(kind)
            }
            (SHARED, 3) => {
                let kind = self.one_of(&[SCOPE, SCOPE, 40, 41]);
                self.reference(kind)
            }
            (SHARED, 5) => self.reference(SCRIPT),
            (SCRIPT, 1 | 2) | (SCOPE, 6..) => {
                let kind = self.one_of(&STRINGS);
                self.reference(kind)
            }
            (CODE_KIND, 1) => {
                let kind = self.one_of(&[FIXED, FIXED, BYTECODE]);
                self.reference(kind)
            }
            (CODE_KIND, 2) | (BYTECODE, 3) | (FIXED, 2 | 10) => self.reference(BYTES),
            (FIXED, 5) => self.reference(FIXED),
            (CODE_KIND, 5) => CODE + 64 * self.below(16),
            (CODE_KIND, 6) => (10 + self.below(3)) << 32,
            (CODE_KIND, 7) => 64 * self.below(32),
            (40 | 41 | 43 | 45, 1) => (4 + self.below(8)) << 32,
            (41 | 43 | 45, 2 | 3) => {
                let kind = self.one_of(&STRINGS);
                self.reference(kind)
            }
            (BYTES, 2..) => self.next() & 0x1f1f_1f1f_1f1f_1f1f,
            (FIXED, 2..) if self.below(2) == 0 => self.reference(SHARED),
            _ => self.small(),
        }
    }

    /// A heap, a stack and code.
    fn memory(&mut self) -> Image {
        let mut image = Image::new();
        for kind in KINDS {
            let mut map = [0; 16];
            map[12..14].copy_from_slice(&kind.to_le_bytes());
            image.map(MAPS + 16 * u64::from(kind), map);
        }
        let objects = (0..OBJECTS).flat_map(|object| {
            let kind = KINDS[object as usize % KINDS.len()];
            (0..SIZE / 8).map(move |index| (kind, index))
        });
        let words: Vec<u64> = objects
            .map(|(kind, index)| self.word(kind, index))
            .collect();
        image.map_u64(START, &words);
        // Frame pointers lead to others; frames have a function, and bytecode.
        let words = (0..STACK_WORDS).map(|index| match index % 8 {
            2 => self.reference(BYTECODE),
            4 => self.reference(FUNCTION),
            5 => self.any() | 1,
            6 => STACK + 8 * (6 + 8 * self.below(8)),
            7 => CODE + self.below(CODE_END - CODE),
            _ => self.any(),
        });
        image.map_u64(STACK, &words.collect::<Vec<_>>());
        let code = (0..(CODE_END - CODE) / 8).map(|index| match index % 8 {
            4 => map_of(STREAM),
            5 => self.reference(CODE_KIND),
            _ => self.below(1 << 20),
        });
        image.map_u64(CODE - 64, &code.collect::<Vec<_>>());
        image
    }
}

#[test]
fn frames_of_garbage_take_a_bounded_number_of_reads() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let (mut steps, mut named, mut most) = (0, 0, 0);
    for _ in 0..tier::usual_or_all(500, 5000) {
        let image = random.memory();
        let process = V8Process::new(
            Arc::new(layout()),
            Arc::new(Builtins {
                range: 0x1000..0x2000,
                interpreter: std::iter::once(0x1000..0x1800).collect(),
                ..Builtins::default()
            }),
            (Device::default(), 0),
        );
        let walker = Arc::new(Walker {
            layout: process.layout.clone(),
            builtins: process.builtins.clone(),
            finder: process.finder.clone(),
            code: std::iter::once(CODE..CODE + 3 * QUARTER).collect(),
            regions: Vec::new(),
            copies: std::iter::once(CODE + 3 * QUARTER..CODE_END).collect(),
        });
        *process.walker.lock().unwrap() = Some(walker.clone());
        let nothing = TargetImage::new();
        let memory = CountedMemory::new(image);
        let target = Through::new(&nothing, &memory);
        let mut frame = FrameRegisters::new(CODE + random.below(CODE_END - CODE));
        frame.set(5, random.reference(FUNCTION));
        frame.set(6, STACK + 8 * 6);
        frame.set(7, STACK);
        frame.set(9, random.below(100));
        for is_innermost in [true, false, false, false] {
            let Ok(found) = walker.step(&memory, &frame, is_innermost) else {
                break;
            };
            let reads = memory.take_reads();
            assert!(reads <= MAX_STEP_READS, "{reads} reads of a step");
            steps += 1;
            if let Some(record) = &found.record {
                let frames = process.frames(&target, frame.instruction_pointer, record);
                let is_named = |it: &&Frame| matches!(it, Frame::Named(it) if !it.is_unnamed());
                named += frames.iter().filter(is_named).count();
                most = most.max(memory.take_reads());
                assert_eq!(process.frames(&target, 0, record).len(), frames.len());
                memory.take_reads();
            }
            frame = found.caller;
            if !walker.covers(frame.instruction_pointer.wrapping_sub(1)) {
                break;
            }
        }
    }
    println!("{steps} steps, {named} functions, up to {most} reads");
    assert!(
        steps > 500 && named > 20,
        "{steps} steps, {named} functions"
    );
    assert!(
        most <= MAX_READS,
        "{most} reads of the functions of a frame"
    );
}
