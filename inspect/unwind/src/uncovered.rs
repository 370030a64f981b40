//! Functions that no table describes: assembly, and code of compilers that write no tables. Their rules are made of
//! their instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use otelctx_remote::elf::{Elf, Segment};

use crate::functions::{Function, MAX_ALIGNMENT};
use crate::instructions::{Call, CodeReader, CodeRules, CodeWork, FunctionCode, Tails};
use crate::rule::Rule;

/// Maximum size of one file's code without tables that is read, and of the code in which calls to that are searched
/// for, in bytes. Programs without any tables exceed it if they are large.
const MAX_CODE: u64 = 16 << 20;
/// Minimum size of the code without tables, in bytes, for which calls to it are searched for in other code: nearly
/// every file has less, of a few functions of its start (libgcc/crtstuff.c).
const MIN_SEARCHED_CODE: usize = 1024;
/// Maximum number of addresses at which functions start that symbols and calls show, of one file: one for each 256
/// bytes of [`MAX_CODE`].
const MAX_FUNCTION_STARTS: usize = 65_536;
/// Maximum number of times that code is read again with the starts that its calls have shown.
const MAX_ROUNDS: usize = 4;
/// Maximum number of places at which coroutines start, of one file: a library for them has one.
const MAX_STARTS_OF_COROUTINES: usize = 16;
/// Functions are aligned to this many bytes, where nothing says where they start.
const ALIGNMENT: u64 = 16;

/// The code of a file that no table describes.
#[derive(Debug, Default, Hash)]
pub(crate) struct Uncovered {
    pieces: Vec<Piece>,
    /// Addresses of functions that symbols name or this code calls, in order.
    starts: Vec<u64>,
    /// Addresses of functions that a table lists, in order.
    listed: Vec<u64>,
}

#[derive(Debug, Hash)]
struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

impl Uncovered {
    /// Reads what is between the functions of the tables, which are in order. What cannot be read is left out. A
    /// table lists functions that start at the addresses `listed`, and `starts` are others at which functions may start.
    pub(crate) fn read(
        elf: &Elf<'_>,
        segments: &[Segment],
        functions: &[Function],
        listed: Vec<u64>,
        mut starts: Vec<u64>,
        reader: &CodeReader,
    ) -> Self {
        let pieces = read_pieces(elf, segments, functions);
        let mut uncovered = Uncovered {
            pieces,
            starts: Vec::new(),
            listed,
        };
        if uncovered.is_empty() {
            return uncovered;
        }
        let is_inside = |address| uncovered.piece_at(address).is_some();
        starts.extend(&uncovered.listed);
        // A file's tables count, even if its symbols are damaged.
        starts.extend(elf.functions(&is_inside).unwrap_or_default());
        starts.truncate(MAX_FUNCTION_STARTS);
        let sizes = uncovered.pieces.iter().map(|it| it.bytes.len());
        if sizes.sum::<usize>() >= MIN_SEARCHED_CODE {
            uncovered.add_called(&mut starts, elf, segments, functions, reader);
        }
        starts.sort_unstable();
        starts.dedup();
        uncovered.starts = starts;
        uncovered
    }

    /// Adds the functions that code with tables calls.
    fn add_called(
        &self,
        starts: &mut Vec<u64>,
        elf: &Elf<'_>,
        segments: &[Segment],
        functions: &[Function],
        reader: &CodeReader,
    ) {
        let sizes = segments.iter().map(|it| it.file_size);
        if sizes.fold(0, u64::saturating_add) > MAX_CODE {
            return;
        }
        for segment in segments {
            let mut bytes = vec![0; segment.file_size as usize];
            if elf.read_at(segment.address, &mut bytes).is_err() {
                continue;
            }
            // The last caller, and the address up to which it was decoded: each byte is decoded once.
            let mut decoded = (None, 0);
            for Call { at, target } in (reader.calls)(&bytes, segment.address) {
                if starts.len() >= MAX_FUNCTION_STARTS {
                    return;
                }
                if !self.may_be_called(target, reader) {
                    continue;
                }
                let behind = functions.partition_point(|it| it.start <= at);
                let caller = behind.checked_sub(1).and_then(|it| functions.get(it));
                let caller = caller.filter(|it| it.start >= segment.address && at < it.end);
                let Some(caller) = caller else {
                    continue;
                };
                if decoded.0 != Some(caller.start) {
                    decoded = (Some(caller.start), caller.start);
                }
                let from = (decoded.1 - segment.address) as usize;
                let code = bytes.get(from..).unwrap_or_default();
                decoded.1 = (reader.next_instruction)(code, decoded.1, at);
                if decoded.1 == at {
                    starts.push(target);
                }
            }
        }
    }

    /// Size of the code, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.pieces.iter().map(|it| it.bytes.len()).sum()
    }

    /// Whether there is any.
    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The end of a function that starts at an address, if a symbol behind it shows it.
    pub(crate) fn next_start(&self, address: u64) -> Option<u64> {
        let behind = self.starts.partition_point(|start| *start <= address);
        self.starts.get(behind).copied()
    }

    /// Makes the rules of the code, in order.
    pub(crate) fn rules(&self, reader: &CodeReader, work: &mut CodeWork) -> Vec<(u64, Rule)> {
        let mut starts = self.starts.clone();
        let mut found = Vec::new();
        let mut tails = Tails::default();
        let mut decided = BTreeMap::new();
        for round in 0..MAX_ROUNDS {
            let mut of_round = Round {
                uncovered: self,
                reader,
                starts: &starts,
                found: Vec::new(),
                tails,
                called: BTreeSet::new(),
                decided: &mut decided,
            };
            for piece in &self.pieces {
                of_round.find(piece, work);
            }
            let Round {
                found: of_round,
                called,
                tails: new_tails,
                ..
            } = of_round;
            tails = new_tails;
            // Without work for all of it, a later round has less.
            if round == 0 || !work.is_spent() {
                found = of_round;
            }
            if called.is_empty() || work.is_spent() {
                break;
            }
            starts.extend(called);
            starts.sort_unstable();
        }
        merged(found)
    }

    /// Finds the code that coroutines start in.
    pub(crate) fn starts_of_coroutines(&self, reader: &CodeReader) -> Vec<Range<u64>> {
        let pieces = self.pieces.iter();
        let starts = pieces.flat_map(|it| (reader.starts_of_coroutines)(&it.bytes, it.start));
        starts.take(MAX_STARTS_OF_COROUTINES).collect()
    }

    /// Returns the bytes of a function.
    pub(crate) fn bytes(&self, function: Range<u64>) -> Option<&[u8]> {
        let piece = self.piece_at(function.start)?;
        let from = (function.start - piece.start) as usize;
        let bytes = piece.bytes.get(from..)?;
        let size = function.end.saturating_sub(function.start) as usize;
        Some(&bytes[..bytes.len().min(size)])
    }

    fn piece_at(&self, address: u64) -> Option<&Piece> {
        let behind = self.pieces.partition_point(|it| it.start <= address);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        piece.contains(address).then_some(piece)
    }

    /// Returns whether a function may start at an address that is called.
    fn may_be_called(&self, address: u64, reader: &CodeReader) -> bool {
        let piece = self.piece_at(address);
        piece.is_some_and(|piece| piece.may_start_at(address, reader, true))
    }
}

/// Reads the pieces of code between the functions of the tables.
fn read_pieces(elf: &Elf<'_>, segments: &[Segment], functions: &[Function]) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut left = MAX_CODE;
    for segment in segments {
        let mut covered = segment.address;
        let end = segment.address.saturating_add(segment.file_size);
        let first = functions.partition_point(|it| it.end <= covered);
        let inside = functions[first..].iter();
        let inside = inside.take_while(|it| it.start < end);
        for next in inside
            .map(|it| it.start..it.end)
            .chain(std::iter::once(end..end))
        {
            let size = next.start.saturating_sub(covered);
            if size > MAX_ALIGNMENT && size <= left {
                left -= size;
                let start = covered;
                let mut bytes = vec![0; size as usize];
                // An image or a core file can lack it.
                if elf.read_at(start, &mut bytes).is_ok() {
                    pieces.push(Piece { start, bytes });
                }
            }
            covered = covered.max(next.end);
        }
    }
    pieces.sort_by_key(|piece| piece.start);
    pieces
}

/// The rules of each function, in the order of addresses.
fn merged(mut found: Vec<Vec<(u64, Rule)>>) -> Vec<(u64, Rule)> {
    found.sort_by_key(|rules| rules.first().map(|rule| rule.0));
    let mut all: Vec<(u64, Rule)> = Vec::new();
    for (at, rule) in found.into_iter().flatten() {
        if all.last().is_some_and(|last| at < last.0) {
            continue;
        }
        // A function may start where another one ends.
        all.pop_if(|last| last.0 == at);
        if all.last().is_none_or(|last| last.1 != rule) {
            all.push((at, rule));
        }
    }
    all
}

/// Reads the code once.
struct Round<'a> {
    uncovered: &'a Uncovered,
    reader: &'a CodeReader,
    /// Addresses of functions, in order.
    starts: &'a [u64],
    /// The rules of each straight range of code.
    found: Vec<Vec<(u64, Rule)>>,
    tails: Tails,
    /// Where functions are not aligned, calls of them show where they start.
    called: BTreeSet<u64>,
    /// Functions that an earlier round has decided, by their ranges. That more starts are known changes nothing of them.
    decided: &'a mut BTreeMap<(u64, u64), CodeRules>,
}

/// Code that is not known to belong to a function.
#[derive(Debug)]
struct Hole {
    range: Range<u64>,
    /// True if it follows code of a function.
    is_behind_function: bool,
}

impl Round<'_> {
    /// Adds the rules of each straight range of a piece's code, and what they call.
    fn find(&mut self, piece: &Piece, work: &mut CodeWork) {
        let (reader, starts) = (self.reader, self.starts);
        let hole = |range, is_behind_function| Hole {
            range,
            is_behind_function,
        };
        let mut holes = vec![hole(piece.start..piece.end(), false)];
        while let Some(Hole {
            range,
            is_behind_function,
        }) = holes.pop()
        {
            let is_named = starts.binary_search(&range.start).is_ok();
            let mut code = FunctionCode {
                bytes: &piece.bytes,
                address: piece.start,
                start: range.start,
                end: range.end,
                starts,
                tails: &self.tails,
                is_function: self.uncovered.listed.binary_search(&range.start).is_ok(),
            };
            let behind = starts.partition_point(|start| *start <= range.start);
            if let Some(&next) = starts.get(behind).filter(|it| **it < range.end) {
                holes.push(hole(next..range.end, false));
                code.end = next;
            }
            if !is_named {
                code.start = (reader.skip_padding)(&code, range.start, work.of_function());
            }
            if code.start >= code.end || work.is_spent() {
                continue;
            }
            let is_first = range.start == piece.start;
            let may_start =
                is_named || is_first || piece.may_start_at(code.start, reader, is_behind_function);
            let range = (code.start, code.end);
            if may_start && !self.decided.contains_key(&range) {
                let rules = (reader.function)(&code, work.of_function());
                self.decided.extend(rules.map(|rules| (range, rules)));
            }
            let rules = self.decided.get(&range).filter(|_| may_start);
            let Some(rules) = rules else {
                // What is named is one function.
                if !is_named {
                    let next = next_aligned(&code, reader);
                    holes.extend(next.map(|next| hole(next..code.end, false)));
                }
                continue;
            };
            let (start, end) = (code.start, code.end);
            self.tails.add(rules);
            let mut covered = start;
            for straight in rules.ranges() {
                if covered < straight.start && covered > start {
                    holes.push(hole(covered..straight.start, true));
                }
                covered = straight.end;
                self.found.push(rules.of(&straight));
            }
            if covered < end && covered > start {
                holes.push(hole(covered..end, true));
            }
            let calls = rules.calls.clone();
            self.add_called(&calls);
        }
    }

    /// Adds functions that code calls, as far as there is room for them.
    fn add_called(&mut self, calls: &[u64]) {
        for address in calls {
            let known = self.starts.len() + self.called.len();
            if known < MAX_FUNCTION_STARTS
                && self.starts.binary_search(address).is_err()
                && self.uncovered.may_be_called(*address, self.reader)
            {
                self.called.insert(*address);
            }
        }
    }
}

/// The next aligned address at which an instruction starts.
fn next_aligned(code: &FunctionCode<'_>, reader: &CodeReader) -> Option<u64> {
    let mut at = code.start;
    let mut next = at.checked_add(1)?.checked_next_multiple_of(ALIGNMENT)?;
    while next < code.end {
        at = (reader.next_instruction)(code.from(at)?, at, next);
        if at == next {
            return Some(next);
        }
        next = next.checked_add(ALIGNMENT)?;
    }
    None
}

/// Removes the zeros with which Free Pascal aligns the function behind this code, at `address`.
fn without_zeros(code: &[u8], address: u64) -> &[u8] {
    let zeros = code.iter().rev().take_while(|byte| **byte == 0).count();
    if address.is_multiple_of(ALIGNMENT) && zeros < ALIGNMENT as usize {
        &code[..code.len() - zeros]
    } else {
        code
    }
}

impl Piece {
    /// Returns whether a function may start at an address in it; behind a call, if `may_follow_call`.
    fn may_start_at(&self, address: u64, reader: &CodeReader, may_follow_call: bool) -> bool {
        let (before, from) = self.bytes.split_at((address - self.start) as usize);
        // The first one has a function of the tables before it, or the start of the segment.
        before.is_empty()
            || (reader.may_start)(before, from, may_follow_call)
            || (reader.may_start)(without_zeros(before, address), from, may_follow_call)
    }

    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }

    fn contains(&self, address: u64) -> bool {
        (self.start..self.end()).contains(&address)
    }
}

#[cfg(test)]
mod tests;
