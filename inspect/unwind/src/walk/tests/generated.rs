use otelctx_remote::{FrameRecord, FrameRegisters, GeneratedEnd, GeneratedFrame};

use super::*;

/// A walker of code in the middle of code with rules: each frame has 16 bytes. Calls have a record, unless their
/// address is odd: then they are part of their callers.
#[derive(Debug)]
struct Walker;

impl GeneratedCode for Walker {
    fn ranges(&self) -> Vec<std::ops::Range<u64>> {
        std::iter::once(CODE + 0x100..CODE + 0x400).collect()
    }

    fn covers(&self, address: u64) -> bool {
        (CODE + 0x100..CODE + 0x400).contains(&address)
    }

    fn step(
        &self,
        memory: &dyn Memory,
        frame: &FrameRegisters,
        is_innermost: bool,
    ) -> Result<GeneratedFrame, GeneratedEnd> {
        let at = frame.instruction_pointer;
        let stack_pointer = frame.get(7).ok_or(GeneratedEnd::UnknownRegister)?;
        if at == CODE + 0x3fe {
            return Err(GeneratedEnd::Unexpected("no code here"));
        }
        let mut caller = FrameRegisters::new(memory.read_u64(stack_pointer + 8)?);
        let size = if at == CODE + 0x3fc { 0 } else { 16 };
        caller.set(7, stack_pointer + size);
        let record = FrameRecord([at, is_innermost.into(), 0, 0]);
        let record = at.is_multiple_of(2).then_some(record);
        Ok(GeneratedFrame { caller, record })
    }
}

/// Addresses with the first two words of their records, and the end.
type Walked = (Vec<(u64, Option<(u64, u64)>)>, StackEnd);

fn walked(words: &[u64], address: u64, limit: usize) -> Walked {
    let code = code(&[above(16), Rule::End, Rule::End, Rule::End, Rule::End]);
    let mut memory = Image::new();
    memory.map_u64(STACK, words);
    let (registers, mut frames) = (registers(address, 0), Vec::new());
    let walkers: [Arc<dyn GeneratedCode>; 1] = [Arc::new(Walker)];
    let end = walk_generated(&registers, &code, &walkers, &memory, limit, &mut frames);
    let words = |it: &Frame| it.generated.map(|it| (it.record.0[0], it.record.0[1]));
    let frames = frames.iter().map(|it| (it.address, words(it)));
    (frames.collect(), end)
}

#[test]
fn a_walker_takes_over_in_its_own_code_alone() {
    // Native code, called by generated code, called by native code, called by generated code, called by the start.
    let [native, generated, start] = [CODE + 0x20, CODE + 0x120, CODE + 0x420];
    let words = [0, generated, 0, native, 0, generated + 2, 0, start];
    let expected = vec![
        (CODE, None),
        (generated, Some((generated, 0))),
        (native, None),
        (generated + 2, Some((generated + 2, 0))),
        (start, None),
    ];
    assert_eq!(walked(&words, CODE, 100), (expected, StackEnd::Start));
    // Interrupted in it.
    let expected = vec![(generated, Some((generated, 1))), (start, None)];
    let found = walked(&[0, start], generated, 100);
    assert_eq!(found, (expected, StackEnd::Start));
    // A call that is the last instruction before generated code is not in it, and the other way round.
    let words = [0, CODE + 0x100, 0, CODE + 0x400, 0, start];
    let expected = vec![
        (CODE, None),
        (CODE + 0x100, None),
        (CODE + 0x400, Some((CODE + 0x400, 0))),
        (start, None),
    ];
    assert_eq!(walked(&words, CODE, 100), (expected, StackEnd::Start));
}

#[test]
fn code_that_is_part_of_a_call_has_no_frame() {
    let [adapter, generated, start] = [CODE + 0x101, CODE + 0x120, CODE + 0x420];
    let words = [0, adapter, 0, generated, 0, adapter, 0, start];
    let expected = vec![(generated, Some((generated, 0))), (start, None)];
    assert_eq!(walked(&words, adapter, 100), (expected, StackEnd::Start));
    // The innermost frame stays if its caller is unknown.
    assert_eq!(walked(&[], adapter, 100).0, [(adapter, None)]);
    // However many there are, the walk ends.
    let endless: Vec<u64> = (0..200).map(|_| adapter).collect();
    assert_eq!(walked(&endless, adapter, 10), (vec![], StackEnd::Limit));
}

#[test]
fn a_walker_that_does_not_know_the_caller_ends_the_stack() {
    let [unknown, same] = [CODE + 0x3fe, CODE + 0x3fc];
    let end = StackEnd::Generated(GeneratedEnd::Unexpected("no code here"));
    assert_eq!(walked(&[], unknown, 100), (vec![(unknown, None)], end));
    assert_eq!(end.to_string(), "generated code: no code here");
    let found = walked(&[0, same], same, 100);
    assert_eq!(found.1, StackEnd::NotGrowing);
    assert_eq!(found.0.len(), 2);
    // It leads to no code.
    let found = walked(&[0, 0x1234], CODE + 0x120, 100);
    assert_eq!(found.1, StackEnd::NotExecutable(0x1234));
}
