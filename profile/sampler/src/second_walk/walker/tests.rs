//! A process that goes on after its stack was copied.

use otelctx_reader::format::process_context::Attributes;
use otelctx_reader::remote::{
    FrameRecord, FrameRegisters, GeneratedCode, GeneratedEnd, GeneratedFrame, Machine, Target,
};
use otelctx_reader::runtime::{Present, RuntimeError, RuntimeProcess, RuntimeThread, ThreadView};
use otelctx_sample::Frame;
use otelctx_unwind::Registers;

use super::*;
use crate::second_walk::{PAGE, StackBytes};

/// Where generated code is, which is never read.
const CODE: Range<u64> = 0x1000..0x2000;
/// DWARF's number of the stack pointer.
const RSP: u8 = 7;

/// A runtime whose frames have one page, with the return address first.
#[derive(Debug)]
struct OnePageFrames;

impl GeneratedCode for OnePageFrames {
    fn ranges(&self) -> Vec<Range<u64>> {
        vec![CODE]
    }

    fn covers(&self, address: u64) -> bool {
        CODE.contains(&address)
    }

    fn step(
        &self,
        memory: &dyn Memory,
        frame: &FrameRegisters,
        _: bool,
    ) -> Result<GeneratedFrame, GeneratedEnd> {
        let stack_pointer = frame.get(RSP).unwrap();
        let mut caller = FrameRegisters::new(memory.read_u64(stack_pointer)?);
        caller.set(RSP, stack_pointer + PAGE as u64);
        let record = Some(FrameRecord([0; 4]));
        Ok(GeneratedFrame { caller, record })
    }
}

impl RuntimeProcess for OnePageFrames {
    fn facts(&self) -> Attributes {
        Attributes::default()
    }

    fn thread(&self, _: &dyn Target, _: ThreadView) -> Result<Option<RuntimeThread>, RuntimeError> {
        Ok(None)
    }

    fn generated(&self, _: &dyn Target) -> Option<Arc<dyn GeneratedCode>> {
        Some(Arc::new(Self))
    }

    fn frames(&self, _: &dyn Target, address: u64, _: &FrameRecord) -> Arc<[Frame]> {
        [Frame::instruction(address)].into()
    }
}

/// The addresses of the frames of a walk of this thread, and the end of its stack.
fn walk(pointer: u64, stack: (u64, &[u8])) -> Option<(Vec<u64>, StackEnd)> {
    walk_with_code(pointer, stack, Vec::new())
}

/// The same of a thread at an instruction with this code.
fn walk_with_code(
    pointer: u64,
    stack: (u64, &[u8]),
    code: Vec<u8>,
) -> Option<(Vec<u64>, StackEnd)> {
    let pid = std::process::id() as i32;
    let runtimes = [Present {
        name: "test",
        process: Ok(Arc::new(OnePageFrames)),
    }];
    let registers = Registers::new(Machine::own(), CODE.start, pointer).unwrap();
    let bytes = StackBytes::Own(stack.1.to_vec());
    let mut copied = CopiedStack::of_bytes(registers, (stack.0, bytes));
    copied.may_be_cut = false;
    copied.code = (CODE.start, code);
    let request = Request {
        number: 1,
        copied: Arc::new(copied),
        places: Vec::new(),
        walkers: LiveWalkers::of(pid, &runtimes),
    };
    let walked = Walker::default().walk(&request)?;
    let frames = walked.frames.iter().filter_map(Frame::address);
    Some((frames.collect(), walked.end))
}

#[test]
fn what_a_stack_has_become_is_not_read() {
    let mut stack = [[0_u64; PAGE / 8]; 4];
    for (page, address) in stack.iter_mut().zip(CODE.step_by(16).skip(1)) {
        page[0] = address;
    }
    let pointer = (&raw const stack).addr() as u64;
    let copy: Vec<u8> = stack[..2]
        .iter()
        .flatten()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    // The thread has called other functions since.
    stack[2][0] = CODE.start + 0x100;
    std::hint::black_box(&mut stack);
    let frames = [CODE.start, CODE.start + 16, CODE.start + 32];
    let expected = Some((frames.to_vec(), StackEnd::Unreadable));
    assert_eq!(walk(pointer, (pointer, &copy)), expected);
    assert_eq!(walk(pointer, (0, &[])), None);
}

#[test]
fn a_stack_whose_innermost_code_was_replaced_has_its_address_alone() {
    let stack = [0; PAGE];
    let pointer = (&raw const stack).addr() as u64;
    let expected = Some((vec![CODE.start], StackEnd::GeneratedCode));
    // It is not mapped any more.
    assert_eq!(
        walk_with_code(pointer, (pointer, &stack), vec![0x90; 32]),
        expected
    );
    let code: Vec<u8> = (0..32).collect();
    let address = code.as_ptr().addr() as u64;
    let live = LiveWalkers::all_of(std::process::id() as i32, &[]).unwrap();
    let is_replaced = |changed: Range<usize>| {
        let mut copied = code.clone();
        copied[changed].iter_mut().for_each(|byte| *byte ^= 0xff);
        let registers = Registers::new(Machine::own(), address, 0).unwrap();
        let mut stack = CopiedStack::of_bytes(registers, Default::default());
        // What is before the instruction may be other code.
        stack.code = (address - 2, [&[0xff; 2], &copied[..]].concat());
        super::is_replaced(&stack, &live)
    };
    for changed in [0..0, 0..8, 24..32, 7..12] {
        assert!(!is_replaced(changed.clone()), "{changed:?}");
    }
    for changed in [0..9, 23..32, 0..32] {
        assert!(is_replaced(changed.clone()), "{changed:?}");
    }
}

#[test]
fn memory_beside_the_stack_is_read_as_it_is_now() {
    let registers = |pointer| Registers::new(Machine::own(), CODE.start, pointer).unwrap();
    let live = LiveWalkers::all_of(std::process::id() as i32, &[]).unwrap();
    let (on_stack, on_heap) = ([7_u64; 1], Box::new(8_u64));
    let on_stack = (&raw const on_stack).addr() as u64;
    let on_heap = (&raw const *on_heap).addr() as u64;
    let stack = live.stack(on_stack);
    assert!(stack.contains(&on_stack) && !stack.contains(&on_heap));
    let copied = CopiedStack::of_bytes(registers(on_stack - 4096), Default::default());
    let memory = CopiedMemory {
        copied: &copied,
        places: &[],
        live: Some(&live),
        live_stack: OnceCell::new(),
        stack_words: RefCell::default(),
    };
    assert_eq!(memory.read_u64(on_heap).unwrap(), 8);
    assert!(live.read_u64(on_stack).is_ok() && memory.read_u64(on_stack).is_err());
    let is_stack = |address: u64| memory.is_stack(address, address.checked_add(8));
    // Beside its ends, and across them.
    let places = [stack.start - 8, stack.start - 7, stack.end - 1, stack.end];
    assert_eq!(places.map(is_stack), [false, true, true, false]);
    // An address that is in no mapping.
    assert_eq!(live.stack(8), 8..8 + (8 << 20));
}
