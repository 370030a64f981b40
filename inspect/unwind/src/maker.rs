//! Makes rows of a file's tables.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};

use gimli::{BaseAddresses, DebugFrame, EhFrame, EhFrameHdr, LittleEndian};
use otelctx_remote::elf::{Elf, GoFunction, GoTable, Segment};

use crate::arch::Architecture;
use crate::cfi::{Budget, Table};
use crate::error::Error;
use crate::functions::{Function, Functions, MAX_ALIGNMENT, Source};
use crate::instructions::{Call, CodeReader, CodeWork};
use crate::rows::Rows;
use crate::rule::{Dictionary, Rule};
use crate::tables::{Bytes, Tables};
use crate::writer::{Counts, Writer};

/// Maximum number of functions of Go that go to another stack: its runtime has some 20.
const MAX_SWITCHING: usize = 256;
/// Maximum number of calls after which a stack starts: the runtime has three.
const MAX_ENDS: usize = 16;
/// Maximum size of the code that is read to find them, in bytes. `runtime.mcall` has 100, `runtime.newstack` 3,200.
const MAX_LEAVING_CODE: usize = 16 << 10;

/// Maximum size of a function's code behind the end of its entry, in bytes.
const MAX_CODE_BEHIND_ENTRY: u64 = 64 << 10;

pub(crate) fn make(
    tables: &Tables,
    architecture: &'static Architecture,
    code: &[Segment],
    dictionary: &Dictionary,
) -> Result<(Rows, Counts), Error> {
    let mut eh_frame = eh_frame(tables, architecture);
    let mut debug_frame = debug_frame(tables, architecture);
    let (mut functions, counts) = described(tables, code, &mut eh_frame, &mut debug_frame)?;
    let mut writer = Writer::new(functions.start()?, dictionary);
    writer.counts = counts;
    // Some C libraries, among them glibc's dynamic linker, have no tables for where programs start, and programs of Free Pascal
    // have none at all: their other functions are unwound by their instructions.
    let has_others = writer.counts.has_tables() || !tables.uncovered.is_empty();
    let size = match tables.entry_size {
        0 if has_others => tables.entry_extent,
        size => size,
    };
    let end = tables.entry.saturating_add(size);
    functions.add(Source::Entry, tables.entry, end, 0)?;
    for address in &tables.first_returns {
        functions.add(Source::Entry, address.saturating_sub(1), *address, 0)?;
    }

    let start = functions.start()?;
    let counts = writer.counts;
    let reader = &architecture.code;
    let uncovered = tables.uncovered.rules(reader, &mut CodeWork::default());
    let mut maker = Maker {
        eh_frame,
        debug_frame,
        functions: functions.sorted(),
        tables,
        uncovered: with_ends(uncovered, &ends_of_stacks(tables, reader)),
        architecture,
    };
    maker.write(&mut writer)?;
    if writer.needs_base {
        // A dynamic linker, most likely. Rules with rbx are more, so other files do without them.
        writer = Writer::new(start, dictionary);
        (writer.tracks_base, writer.counts) = (true, counts);
        maker.write(&mut writer)?;
    }
    Ok(writer.finish())
}

/// Returns the code in which stacks end: what calls in functions of Go return to that leave their stack, from the byte before,
/// and where coroutines start.
fn ends_of_stacks(tables: &Tables, reader: &CodeReader) -> Vec<Range<u64>> {
    let leaving = switching(tables).filter(GoFunction::leaves_stack);
    let calls = leaving.flat_map(|function| {
        let range = function.range();
        let bytes = tables.uncovered.bytes(range.clone()).unwrap_or_default();
        (reader.call_ends)(&bytes[..bytes.len().min(MAX_LEAVING_CODE)], range.start)
    });
    // The rule of a caller is that of the byte before its return address.
    let calls = calls.take(MAX_ENDS).map(|end| end.saturating_sub(1)..end);
    let mut ends: Vec<Range<u64>> = calls.collect();
    ends.extend(tables.uncovered.starts_of_coroutines(reader));
    ends.sort_unstable_by_key(|range| (range.end, range.start));
    ends.dedup();
    ends
}

/// Finds what Go's runtime returns to from putting a goroutine aside whose stack was to grow: the scheduler's stack begins in the
/// function that calls it. When it does grow a stack, that one begins with the goroutine's functions.
pub(crate) fn ends_of_growing(elf: &Elf<'_>, tables: &Tables, reader: &CodeReader) -> Vec<u64> {
    let Some(table) = &tables.go else {
        return Vec::new();
    };
    let puts_aside = |call: &Call| {
        let callee = table.function_at(call.target);
        callee.is_some_and(|it| it.range().start == call.target && it.puts_goroutine_aside())
    };
    let ends_in = |growing: GoFunction<'_>| {
        let Range { start, end } = growing.range();
        let mut code = vec![0; end.saturating_sub(start).min(MAX_LEAVING_CODE as u64) as usize];
        if elf.read_at(start, &mut code).is_err() {
            return Vec::new();
        }
        let calls = (reader.calls)(&code, start).filter(puts_aside);
        let end_of = |Call { at, .. }| {
            let from = (at - start) as usize;
            (reader.next_instruction)(&code[from..], at, at + 1)
        };
        calls.map(end_of).take(MAX_ENDS).collect()
    };
    // A wrapper may have the same name.
    let growing = table.functions().filter(GoFunction::grows_stack);
    growing.flat_map(ends_in).take(MAX_ENDS).collect()
}

/// Ends stacks in these ranges.
fn with_ends(rules: Vec<(u64, Rule)>, ends: &[Range<u64>]) -> Vec<(u64, Rule)> {
    let mut all = rules;
    for Range { start, end } in ends {
        let behind = all.partition_point(|it| it.0 <= *end);
        let rule = behind.checked_sub(1).map_or(Rule::Gap, |last| all[last].1);
        all.retain(|it| !(*start..=*end).contains(&it.0));
        let place = all.partition_point(|it| it.0 < *end);
        all.splice(place..place, [(*start, Rule::End), (*end, rule)]);
    }
    all
}

fn bases(tables: &Tables) -> BaseAddresses {
    let address = tables.eh_frame.as_ref().map_or(0, |(address, _)| *address);
    BaseAddresses::default()
        .set_eh_frame(address)
        .set_eh_frame_hdr(tables.eh_frame_header)
        .set_text(tables.text)
        .set_got(tables.got)
}

fn eh_frame<'a>(
    tables: &'a Tables,
    architecture: &'static Architecture,
) -> Table<'a, EhFrame<Bytes<'a>>> {
    let bytes = tables.eh_frame.as_ref().map_or(&[][..], |(_, bytes)| bytes);
    let mut section = EhFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(architecture.vendor);
    Table::new(section, bytes, bases(tables), architecture)
}

fn debug_frame<'a>(
    tables: &'a Tables,
    architecture: &'static Architecture,
) -> Table<'a, DebugFrame<Bytes<'a>>> {
    let bytes = tables.debug_frame.as_deref().unwrap_or_default();
    let mut section = DebugFrame::new(bytes, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(architecture.vendor);
    Table::new(section, bytes, bases(tables), architecture)
}

/// Returns the functions of Go that go to another stack. Tables count from the stack pointer there, which is the other
/// stack's: only its instructions show that the frame pointer stays.
fn switching(tables: &Tables) -> impl Iterator<Item = GoFunction<'_>> {
    let functions = tables.go.iter().flat_map(GoTable::functions);
    let switching = functions.filter(GoFunction::changes_stack);
    switching.take(MAX_SWITCHING).filter(|it| !it.is_first())
}

/// Returns where the functions of Go start that go to another stack.
pub(crate) fn starts_with_other_stack(tables: &Tables) -> impl Iterator<Item = u64> {
    switching(tables).map(|function| function.range().start)
}

/// Adds the functions of other tables than those of call frame information.
fn add_others(tables: &Tables, functions: &mut Functions<'_>) -> Result<(), Error> {
    let switching: BTreeSet<u64> = starts_with_other_stack(tables).collect();
    for function in tables.go.iter().flat_map(GoTable::functions) {
        let range = function.range();
        if switching.contains(&range.start) {
            continue;
        }
        functions.add(Source::Go, range.start, range.end, 0)?;
    }
    for (index, (start, bytes)) in tables.stubs.iter().enumerate() {
        let end = start.saturating_add(bytes.len() as u64);
        functions.add(Source::Stubs, *start, end, index)?;
    }
    Ok(())
}

/// The functions that the tables describe, in order.
pub(crate) fn functions(
    tables: &Tables,
    architecture: &'static Architecture,
    code: &[Segment],
) -> Result<Vec<Function>, Error> {
    let mut eh_frame = eh_frame(tables, architecture);
    let mut debug_frame = debug_frame(tables, architecture);
    let (functions, _) = described(tables, code, &mut eh_frame, &mut debug_frame)?;
    Ok(functions.sorted())
}

/// Lists the functions that the tables describe, and counts their entries.
fn described<'a, 'code>(
    tables: &'a Tables,
    code: &'code [Segment],
    eh_frame: &mut Table<'a, EhFrame<Bytes<'a>>>,
    debug_frame: &mut Table<'a, DebugFrame<Bytes<'a>>>,
) -> Result<(Functions<'code>, Counts), Error> {
    let mut counts = Counts::default();
    let mut functions = Functions::new(code);
    eh_frame.functions(Source::EhFrame, &mut functions, &mut counts)?;
    debug_frame.functions(Source::DebugFrame, &mut functions, &mut counts)?;
    add_others(tables, &mut functions)?;
    Ok((functions, counts))
}

pub(crate) struct FunctionRows {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) rows: Rows,
}

/// Makes the rows of the function at an address, by `header`, the sorted table `.eh_frame_hdr`
/// (Linux Standard Base, Exception Frames). `None` if it is not there, or exceeds a limit.
pub(crate) fn function_at(
    tables: &Tables,
    header: &[u8],
    architecture: &'static Architecture,
    code: &[Segment],
    dictionary: &Dictionary,
    budget: &mut Budget,
    address: u64,
) -> Option<FunctionRows> {
    let bases = bases(tables);
    let header = EhFrameHdr::new(header, LittleEndian).parse(&bases, 8);
    let header = header.ok()?;
    let table = header.table()?;
    let entry = table.lookup(address, &bases).ok()?;
    let entry = table.pointer_to_offset(entry).ok()?;
    let mut eh_frame = eh_frame(tables, architecture);
    let (start, end) = eh_frame.addresses(entry.0)?;
    let mut functions = Functions::new(code);
    functions.add(Source::EhFrame, start, end, entry.0).ok()?;
    let function = *functions.sorted().first()?;
    if !(function.start..function.end).contains(&address) {
        return None;
    }
    let mut writer = Writer::new(function.start, dictionary);
    // Rules with rbx are more, but a callee may need it, and these are few functions.
    writer.tracks_base = true;
    let Function { start, end, .. } = function;
    let written = by_eh_frame(tables, &mut eh_frame, &function, start, budget, &mut writer);
    written.and_then(|()| writer.write(end, Rule::Gap)).ok()?;
    let (rows, _) = writer.finish();
    Some(FunctionRows { start, end, rows })
}

/// Writes the rules of a function from the address `from` on: those of its tables, up to a call that they are wrong of.
fn by_eh_frame<'a>(
    tables: &Tables,
    table: &mut Table<'a, EhFrame<Bytes<'a>>>,
    function: &Function,
    from: u64,
    budget: &mut Budget,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    let mut function = *function;
    let end = function.end;
    let first = tables
        .behind_calls
        .partition_point(|it| it.start < function.start);
    let behind = tables.behind_calls.get(first).filter(|it| it.start < end);
    function.end = behind.map_or(end, |it| it.start);
    table.evaluate(&function, from, end, budget, writer)?;
    for (at, rule) in behind.iter().flat_map(|it| &it.rules) {
        budget.take_row()?;
        writer.write((*at).max(from), *rule)?;
    }
    Ok(())
}

struct Maker<'a> {
    eh_frame: Table<'a, EhFrame<Bytes<'a>>>,
    debug_frame: Table<'a, DebugFrame<Bytes<'a>>>,
    functions: Vec<Function>,
    tables: &'a Tables,
    /// The rules of code that no table describes, in order.
    uncovered: Vec<(u64, Rule)>,
    architecture: &'static Architecture,
}

impl Maker<'_> {
    fn write(&mut self, writer: &mut Writer<'_>) -> Result<(), Error> {
        let mut budget = Budget::default();
        let mut covered = 0;
        for (index, function) in self.functions.iter().enumerate() {
            let mut function = *function;
            let from = function.start.max(covered);
            match function.source {
                Source::EhFrame | Source::DebugFrame if from > function.start => {
                    writer.counts.overlapping += 1;
                }
                Source::Entry if from > function.start => continue,
                Source::Entry => {
                    let next = self.functions.get(index + 1).map(|next| next.start);
                    function.end = next.unwrap_or(u64::MAX).min(function.end);
                }
                _ => {}
            }
            if from >= function.end {
                continue;
            }
            if from - covered > MAX_ALIGNMENT {
                self.uncovered(covered..from, writer)?;
            }
            covered = function.end;
            let budget = &mut budget;
            match function.source {
                Source::EhFrame => {
                    let table = &mut self.eh_frame;
                    by_eh_frame(self.tables, table, &function, from, budget, writer)
                }
                Source::DebugFrame => {
                    let next = self.functions.get(index + 1).map(|next| next.start);
                    let other = self.tables.uncovered.next_start(covered.saturating_sub(1));
                    let limit = [next, other].into_iter().flatten().min();
                    let limit = limit.map_or(covered, |it| it.min(covered + MAX_CODE_BEHIND_ENTRY));
                    let limit = limit.max(covered);
                    let table = &mut self.debug_frame;
                    covered = table.evaluate(&function, from, limit, budget, writer)?;
                    Ok(())
                }
                Source::Go => self.go(&function, from, budget, writer),
                Source::Entry => writer.write(from, Rule::End),
                Source::Stubs => self.stubs(&function, from, writer),
            }?;
        }
        self.uncovered(covered..u64::MAX, writer)
    }

    /// Writes the rules of code between the functions.
    fn uncovered(&self, range: Range<u64>, writer: &mut Writer<'_>) -> Result<(), Error> {
        writer.write(range.start, Rule::Gap)?;
        let first = self.uncovered.partition_point(|it| it.0 < range.start);
        let rules = self.uncovered[first..].iter();
        for (at, rule) in rules.take_while(|it| it.0 < range.end) {
            writer.write(*at, *rule)?;
        }
        Ok(())
    }

    /// Writes the rules of a function of Go.
    fn go(
        &self,
        function: &Function,
        from: u64,
        budget: &mut Budget,
        writer: &mut Writer<'_>,
    ) -> Result<(), Error> {
        let table = self.tables.go.as_ref();
        let found = table.and_then(|table| table.function_at(function.start));
        let Some(found) = found else {
            return writer.write(from, Rule::Gap);
        };
        if found.is_first() || found.range().contains(&self.tables.entry) {
            return writer.write(from, Rule::End);
        }
        let mut written = writer.write(from, Rule::Gap);
        // What it calls has the frame pointer of its caller. And signal handlers return to code that is known without
        // a rule, but none is between it and the function before.
        if found.changes_stack() || found.is_signal_return() {
            return written;
        }
        let is_assembly = found.is_assembly();
        let mut ends = self.ends_in(from..function.end);
        let mut last = Rule::Gap;
        let is_whole = found.stack_sizes(&mut |address, size| {
            if address >= function.end {
                return ControlFlow::Break(());
            }
            // The last size before it holds there.
            let address = address.max(from);
            let rule = (self.architecture.go)(size, is_assembly);
            written = budget.take_row();
            if written.is_ok() {
                written = write_ends(&mut ends, address, last, writer);
            }
            if written.is_ok() {
                written = writer.write(address, rule);
            }
            last = rule;
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        written?;
        write_ends(&mut ends, function.end, last, writer)?;
        writer.counts.damaged += u64::from(!is_whole);
        let next = table.and_then(|table| table.function_at(function.end));
        if next.is_some_and(|next| next.is_signal_return()) {
            // The walk looks one byte before a return address.
            writer.write(from.max(function.end - 1), Rule::Gap)?;
        }
        Ok(())
    }

    /// The return addresses in a function of Go at which stacks end.
    fn ends_in(&self, range: Range<u64>) -> &[u64] {
        let ends = &self.tables.ends_of_growing[..];
        let first = ends.partition_point(|it| *it <= range.start);
        let behind = ends.partition_point(|it| *it < range.end);
        ends.get(first..behind).unwrap_or_default()
    }

    fn stubs(&self, function: &Function, from: u64, writer: &mut Writer<'_>) -> Result<(), Error> {
        writer.write(from, Rule::Gap)?;
        let bytes = &self.tables.stubs[function.offset].1;
        let mut write = |at: u64, rule| {
            if at < function.end {
                writer.write(at.max(from), rule)?;
            }
            Ok(())
        };
        (self.architecture.stubs)(bytes, function.start, &mut write)
    }
}

/// Ends stacks at the first of these return addresses, up to the address of the next rule, and goes behind them. The rule of a
/// caller is that of the byte before its return address.
fn write_ends(
    ends: &mut &[u64],
    next: u64,
    rule: Rule,
    writer: &mut Writer<'_>,
) -> Result<(), Error> {
    while let Some((end, left)) = ends.split_first()
        && *end <= next
    {
        writer.write(end.saturating_sub(1), Rule::End)?;
        writer.write(*end, rule)?;
        *ends = left;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use otelctx_remote::Machine;

    use super::*;
    use crate::rule::{Cfa, FrameRule, ReturnAddress, Saved};

    #[test]
    fn stacks_end_at_the_return_addresses_of_calls_alone() {
        let rules = vec![
            (0x10, Rule::Unsupported),
            (0x20, Rule::Gap),
            (0x30, Rule::Unsupported),
        ];
        let expected = [
            (0x10, Rule::Unsupported),
            (0x17, Rule::End),
            (0x18, Rule::Unsupported),
            (0x1f, Rule::End),
            (0x20, Rule::Gap),
            (0x30, Rule::End),
            (0x31, Rule::Unsupported),
        ];
        let ends =
            |ends: &[u64]| -> Vec<Range<u64>> { ends.iter().map(|it| it - 1..*it).collect() };
        assert_eq!(with_ends(rules, &ends(&[0x18, 0x20, 0x31])), expected);
        assert_eq!(
            with_ends(Vec::new(), &ends(&[0x18])),
            [(0x17, Rule::End), (0x18, Rule::Gap)]
        );
        // push %rbp; call 0x1007; call *%r12; ret
        let code = [0x55, 0xe8, 1, 0, 0, 0, 0x41, 0xff, 0xd4, 0xc3];
        let reader = Architecture::of(Machine::X86_64).unwrap().code;
        assert_eq!((reader.call_ends)(&code, 0x1000), [0x1006, 0x1009]);
    }

    #[test]
    fn a_program_without_tables_has_its_entry_point_alone() {
        let code = [Segment {
            address: 0x1000,
            memory_size: 0x1000,
            executable: true,
            ..Segment::default()
        }];
        let dictionary = Dictionary::new();
        let architecture = Architecture::of(Machine::X86_64).unwrap();
        // xor %ebp, %ebp; call; hlt
        let start = [0x31, 0xed, 0x67, 0xe8, 1, 2, 3, 4, 0xf4, 0x55, 0x55, 0x55];
        let rules = |entry_code: &[u8]| {
            let tables = Tables {
                entry: 0x1800,
                entry_size: (architecture.entry)(entry_code) as u64,
                ..Tables::default()
            };
            let (rows, _) = make(&tables, architecture, &code, &dictionary).unwrap();
            [0x17ff, 0x1800, 0x1808, 0x1809].map(|at| dictionary.rule(rows.rule_at(at)))
        };
        assert_eq!(rules(&start), [Rule::Gap, Rule::End, Rule::End, Rule::Gap]);
        assert_eq!(rules(&start[1..]), [Rule::Gap; 4]);
        assert_eq!(rules(&[]), [Rule::Gap; 4]);
    }

    /// The entry point of a dynamic linker, say, with a function behind it that no table describes.
    #[test]
    fn the_entry_point_of_a_program_with_tables_is_as_large_as_its_code() {
        let code = [Segment {
            address: 0x1000,
            memory_size: 0x1000,
            executable: true,
            ..Segment::default()
        }];
        let dictionary = Dictionary::new();
        let architecture = Architecture::of(Machine::X86_64).unwrap();
        let tables = Tables {
            entry: 0x1800,
            entry_extent: 7,
            // An entry that is cut.
            debug_frame: Some(vec![0x10, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
            ..Tables::default()
        };
        let (rows, _) = make(&tables, architecture, &code, &dictionary).unwrap();
        let rules = [0x17ff, 0x1800, 0x1806, 0x1807].map(|at| dictionary.rule(rows.rule_at(at)));
        assert_eq!(rules, [Rule::Gap, Rule::End, Rule::End, Rule::Gap]);
    }

    /// The rules at addresses of a file with `.debug_frame` whose first function, at 0x1000 to 0x100a, has a row at 0x1010 and
    /// one that starts behind the end at 0x1020, and whose second one is at 0x1040.
    fn rules_behind_the_end(common: &[u8]) -> [Rule; 7] {
        let entry = |body: &[&[u8]]| {
            let mut body = body.concat();
            body.resize(body.len().next_multiple_of(8) + 4, 0);
            [(body.len() as u32).to_le_bytes().to_vec(), body].concat()
        };
        let word = |value: u64| value.to_le_bytes();
        // Version 3, no augmentation, factors 1 and -8, the return address in column 16.
        let head = [0xff, 0xff, 0xff, 0xff, 3, 0, 1, 0x78, 16];
        let common = entry(&[&head, common]);
        // DW_CFA_set_loc, DW_CFA_def_cfa_offset
        let (at, offset) = (|value: u64| [&[1][..], &word(value)].concat(), [0x0e, 24]);
        let later = [at(0x1010), offset.to_vec(), at(0x1020), vec![0x0e, 32]].concat();
        let function =
            |start: u64, size: u64, code: &[u8]| entry(&[&[0; 4], &word(start), &word(size), code]);
        let table = [
            common,
            function(0x1000, 10, &later),
            function(0x1040, 0x10, &[]),
        ];
        let code = [Segment {
            address: 0x1000,
            memory_size: 0x1000,
            executable: true,
            ..Segment::default()
        }];
        let dictionary = Dictionary::new();
        let architecture = Architecture::of(Machine::X86_64).unwrap();
        let tables = Tables {
            debug_frame: Some(table.concat()),
            ..Tables::default()
        };
        let (rows, _) = make(&tables, architecture, &code, &dictionary).unwrap();
        let places = [0x1000, 0x100a, 0x1010, 0x1020, 0x103f, 0x1040, 0x1050];
        places.map(|at| dictionary.rule(rows.rule_at(at)))
    }

    /// GHC's entries end with the first block of a function.
    #[test]
    fn rows_behind_the_end_of_a_function_count_in_code_with_its_own_stack_alone() {
        // DW_CFA_def_cfa, DW_CFA_offset, DW_CFA_same_value and DW_CFA_val_offset of rbp, rip, rsp and rbp
        let of_ghc = [0x0c, 6, 0, 0x80 | 16, 0, 0x08, 7, 0x14, 6, 0];
        let rule = |offset| {
            Rule::Frame(FrameRule {
                cfa: Cfa::Register {
                    register: 6,
                    offset,
                },
                frame_pointer: Saved::Cfa,
                base: Saved::Unknown,
                return_address: ReturnAddress::AtCfa(0),
            })
        };
        let expected = [0, 0, 24, 32, 32, 0, 0].map(rule);
        let found = rules_behind_the_end(&of_ghc);
        assert_eq!(found[..6], expected[..6]);
        // Nothing follows the last function.
        assert_eq!(found[6], Rule::Gap);
        // DW_CFA_def_cfa of rsp and DW_CFA_offset of rip
        let usual = [0x0c, 7, 8, 0x80 | 16, 1];
        let found = rules_behind_the_end(&usual);
        assert!(matches!(found[0], Rule::Frame(_)), "{found:?}");
        assert_eq!(found[2..5], [Rule::Gap; 3]);
    }

    /// Functions that share one list of sizes, which has one for each byte.
    fn sizes_of_each_byte(functions: usize) -> GoTable {
        const SIZE: usize = 0x1_0000;
        let mut bytes = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        let values = 72;
        let list = values + 1 + 2 * SIZE;
        let words = [functions, 0, 0x1000, values, 0, 0, values, list];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        // Each is larger by 1 (zigzag: 2) than the one before, for a byte.
        bytes.push(0);
        bytes.extend([2, 1].repeat(SIZE));
        let behind_list = 8 * functions + 4;
        for index in 0..=functions {
            bytes.extend(((SIZE * index) as u32).to_le_bytes());
            if index < functions {
                bytes.extend((behind_list as u32).to_le_bytes());
            }
        }
        // `pcsp` of a `_func` that all have.
        bytes.extend([0; 16]);
        bytes.extend([1, 0, 0, 0]);
        bytes.extend([0; 40]);
        GoTable::parse(bytes, 0, 0x1000).expect("it is sound")
    }

    #[test]
    fn sizes_of_stacks_of_go_are_limited_in_all_functions_together() {
        let rows = |functions: usize| {
            let code = [Segment {
                address: 0x1000,
                memory_size: 0x1_0000 * functions as u64,
                executable: true,
                ..Segment::default()
            }];
            let architecture = Architecture::of(Machine::X86_64).unwrap();
            let tables = Tables {
                go: Some(sizes_of_each_byte(functions)),
                ..Tables::default()
            };
            make(&tables, architecture, &code, &Dictionary::new()).map(|(rows, _)| rows.len())
        };
        // Sizes for which a file has no room for a rule make no row.
        assert!(rows(2).is_ok_and(|rows| (2_000..5_000).contains(&rows)));
        assert!(matches!(rows(1000), Err(Error::Limit { .. })));
    }
}
