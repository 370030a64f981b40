//! Rules of functions whose tables are wrong behind a call.
//!
//! A function that calls code of SBCL makes a second frame record for it, which the callee removes when it returns. Tables
//! describe the frame with the record up to the function's end, and so do not find the caller from a return address: the frame
//! pointer is that of the function's own frame again. Instructions show both.

use otelctx_remote::elf::{Elf, Segment};

use crate::functions::Function;
use crate::instructions::{CodeReader, CodeWork, FunctionCode, Tails};
use crate::rule::Rule;

/// DW_OP_breg6 (rbp) 0, DW_OP_deref: the CFA is above the frame to which the record leads. Of 1,759 programs and libraries of a
/// distribution, SBCL alone has it.
const EXPRESSION: [u8; 3] = [0x76, 0, 0x06];
/// Maximum size of the code in which records are searched for, in bytes. SBCL's runtime has 0.2 MiB.
const MAX_CODE: u64 = 16 << 20;
/// Maximum size of a function that makes one, in bytes. SBCL's has 132.
const MAX_FUNCTION: u64 = 4096;
/// Maximum number of records that are made in one file. SBCL's has two.
const MAX_RECORDS: usize = 16;

/// The rules of a function from a call on.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct BehindCall {
    /// An address inside of the call.
    pub(crate) start: u64,
    pub(crate) rules: Vec<(u64, Rule)>,
}

/// Finds calls that remove a record in functions of the tables, which are in order.
pub(crate) fn calls(
    elf: &Elf<'_>,
    eh_frame: &[u8],
    segments: &[Segment],
    functions: &[Function],
    reader: &CodeReader,
) -> Vec<BehindCall> {
    if memchr::memmem::find(eh_frame, &EXPRESSION).is_none() {
        return Vec::new();
    }
    let mut found: Vec<BehindCall> = Vec::new();
    let (mut code_left, mut records_left) = (MAX_CODE, MAX_RECORDS);
    for segment in segments {
        let mut bytes = vec![0; segment.file_size.min(code_left) as usize];
        code_left -= bytes.len() as u64;
        if elf.read_at(segment.address, &mut bytes).is_err() {
            continue;
        }
        let records = (reader.records)(&bytes, segment.address).take(records_left);
        let records: Vec<u64> = records.collect();
        records_left -= records.len();
        for record in records {
            let behind = functions.partition_point(|it| it.start <= record);
            let function = behind.checked_sub(1).and_then(|it| functions.get(it));
            let function = function.filter(|it| it.start >= segment.address && record < it.end);
            let of_function = function.and_then(|it| behind_call(it, &bytes, segment, reader));
            found.extend(of_function);
        }
    }
    found.sort_unstable_by_key(|it| it.start);
    found.dedup_by_key(|it| it.start);
    found
}

/// Reads a function that makes a record.
fn behind_call(
    function: &Function,
    bytes: &[u8],
    segment: &Segment,
    reader: &CodeReader,
) -> Option<BehindCall> {
    let end = segment.address.saturating_add(bytes.len() as u64);
    let end = function.end.min(end);
    if end.checked_sub(function.start)? > MAX_FUNCTION {
        return None;
    }
    let code = FunctionCode {
        bytes,
        address: segment.address,
        start: function.start,
        end,
        starts: &[function.start],
        tails: Tails::NONE,
        is_function: false,
    };
    let rules = (reader.function)(&code, &mut CodeWork::default())?;
    let start = rules.removed_record?;
    let range = rules.ranges().find(|range| range.contains(&start))?;
    let mut rules = rules.of(&range);
    rules.retain(|(at, _)| (start..range.end).contains(at));
    if range.end < function.end {
        rules.push((range.end, Rule::Unsupported));
    }
    Some(BehindCall { start, rules })
}

#[cfg(test)]
mod tests {
    use otelctx_remote::Machine;

    use super::*;
    use crate::arch::Architecture;
    use crate::functions::Source;
    use crate::rule::{Cfa, FrameRule, ReturnAddress, Saved};

    const START: u64 = 0x1000;
    const RBP: u8 = 6;
    const RSP: u8 = 7;

    fn rule(register: u8, offset: i32, frame_pointer: Saved) -> Rule {
        Rule::Frame(FrameRule {
            cfa: Cfa::Register { register, offset },
            frame_pointer,
            base: Saved::Unknown,
            return_address: ReturnAddress::AtCfa(-8),
        })
    }

    fn found(code: &[u8]) -> Option<BehindCall> {
        let segment = Segment {
            address: START,
            file_size: code.len() as u64,
            executable: true,
            ..Segment::default()
        };
        let function = Function {
            start: START,
            source: Source::EhFrame,
            offset: 0,
            end: START + code.len() as u64,
        };
        let reader = &Architecture::of(Machine::X86_64).unwrap().code;
        behind_call(&function, code, &segment, reader)
    }

    /// push %rbp; mov %rsp, %rbp; push %rbx; RECORD; mov (%rdi), %rax; CALL; pop %rbx; leave; ret
    fn code(record: &[u8], call: &[u8]) -> Vec<u8> {
        [
            &[0x55, 0x48, 0x89, 0xe5, 0x53][..],
            record,
            &[0x48, 0x8b, 0x07],
            call,
            &[0x5b, 0xc9, 0xc3],
        ]
        .concat()
    }

    #[test]
    fn a_called_function_removes_the_record_that_was_made_for_it() {
        // push %rbp; push %rbp; mov %rsp, %rbp. call *-3(%rax)
        let (record, call) = ([0x55, 0x55, 0x48, 0x89, 0xe5], [0xff, 0x50, 0xfd]);
        let code_of_both = code(&record, &call);
        let saved = Saved::AtCfa(-16);
        let expected = BehindCall {
            start: START + 14,
            rules: vec![
                (START + 14, rule(RBP, 16, saved)),
                (START + 18, rule(RSP, 8, Saved::Same)),
            ],
        };
        assert_eq!(found(&code_of_both), Some(expected));
        let reader = &Architecture::of(Machine::X86_64).unwrap().code;
        let records: Vec<u64> = (reader.records)(&code_of_both, START).collect();
        assert_eq!(records, [START + 10]);
        // One push, as for alignment; a record that is left again (mov %rbx, %rbp); a function whose name is known, which is C's.
        assert_eq!(found(&code(&record[1..], &call)), None);
        let left = [&record[..], &[0x48, 0x89, 0xdd]].concat();
        assert_eq!(found(&code(&left, &call)), None);
        assert_eq!(found(&code(&record, &[0xe8, 0, 1, 0, 0])), None);
    }
}
