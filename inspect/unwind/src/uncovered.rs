//! Functions that no table describes: assembly, and code of compilers that write no tables. Their rules are made of
//! their instructions.

use std::ops::Range;

use otelctx_remote::elf::{Elf, ElfError, Segment};

use crate::functions::{Function, MAX_ALIGNMENT};
use crate::instructions::{Call, CodeReader, CodeWork, FunctionCode};
use crate::rule::Rule;

/// Maximum size of the code without tables that is read of one file, in bytes. Programs without any tables, such as
/// Go's, exceed it.
const MAX_CODE: u64 = 16 << 20;
/// Size of the code without tables, in bytes, up to which calls of it are not searched for in other code: nearly every
/// file has a few functions of its start (libgcc/crtstuff.c).
const FEW: usize = 1024;
/// Starts that are taken from calls in code with tables.
const MAX_STARTS: usize = 65_536;
/// Maximum number of times that code is read again with the starts that its calls have shown.
const MAX_ROUNDS: usize = 4;
/// Functions are aligned to this many bytes, where nothing says where they start.
const ALIGNMENT: u64 = 16;

/// The code of a file that no table describes.
#[derive(Debug, Default, Hash)]
pub(crate) struct Uncovered {
    pieces: Vec<Piece>,
    /// Addresses of functions that symbols name or this code calls, in order.
    starts: Vec<u64>,
}

#[derive(Debug, Hash)]
struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

impl Uncovered {
    /// Reads what is between the functions of the tables, which are in order.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn read(
        elf: &Elf<'_>,
        segments: &[Segment],
        functions: &[Function],
        reader: &CodeReader,
    ) -> Result<Self, ElfError> {
        let mut uncovered = Uncovered::default();
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
                    let mut bytes = vec![0; size as usize];
                    // An image or a core file can lack it.
                    if elf.read_at(covered, &mut bytes).is_ok() {
                        uncovered.pieces.push(Piece {
                            start: covered,
                            bytes,
                        });
                    }
                }
                covered = covered.max(next.end);
            }
        }
        uncovered.pieces.sort_by_key(|piece| piece.start);
        if !uncovered.pieces.is_empty() {
            let (pieces, starts) = (&uncovered.pieces, &mut uncovered.starts);
            let find = |address: u64| {
                let behind = pieces.partition_point(|it| it.start <= address);
                let piece = pieces.get(behind.checked_sub(1)?)?;
                piece.contains(address).then_some(piece)
            };
            elf.functions(&mut |address| starts.extend(find(address).map(|_| address)))?;
            let size = segments.iter().map(|it| it.file_size).sum::<u64>();
            let uncovered = pieces.iter().map(|it| it.bytes.len()).sum::<usize>();
            if uncovered >= FEW && size <= MAX_CODE {
                for segment in segments {
                    let mut bytes = vec![0; segment.file_size as usize];
                    if elf.read_at(segment.address, &mut bytes).is_err() {
                        continue;
                    }
                    let calls = (reader.calls)(&bytes, segment.address).into_iter();
                    let calls = calls.filter_map(|Call { at, target }| {
                        find(target)?.may_start_at(target, reader).then_some(())?;
                        // From the start of the function that the tables describe there.
                        let behind = functions.partition_point(|it| it.start <= at);
                        let caller = functions.get(behind.checked_sub(1)?)?;
                        let from = caller.start.checked_sub(segment.address)? as usize;
                        let code = bytes.get(from..(at - segment.address) as usize)?;
                        let is_call = at < caller.end && (reader.is_call)(code, caller.start, at);
                        is_call.then_some(target)
                    });
                    starts.extend(calls.take(MAX_STARTS));
                }
            }
            starts.sort_unstable();
            starts.dedup();
        }
        Ok(uncovered)
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
        for _ in 0..MAX_ROUNDS {
            found.clear();
            let mut called = Vec::new();
            for piece in &self.pieces {
                find(piece, &starts, reader, work, &mut found, &mut called);
            }
            // Where functions are not aligned, calls of them show where they start.
            called.retain(|address| {
                let piece = self.piece_at(*address);
                let may_start = piece.is_some_and(|piece| piece.may_start_at(*address, reader));
                may_start && starts.binary_search(address).is_err()
            });
            if called.is_empty() || work.is_spent() {
                break;
            }
            starts.append(&mut called);
            starts.sort_unstable();
            starts.dedup();
        }
        found.sort_by_key(|rules: &Vec<(u64, Rule)>| rules.first().map(|rule| rule.0));
        let mut all: Vec<(u64, Rule)> = Vec::new();
        for (at, rule) in found.into_iter().flatten() {
            if all.last().is_none_or(|last| at >= last.0) {
                all.push((at, rule));
            }
        }
        all
    }

    fn piece_at(&self, address: u64) -> Option<&Piece> {
        let behind = self.pieces.partition_point(|it| it.start <= address);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        piece.contains(address).then_some(piece)
    }
}

/// Adds the rules of each straight range of a piece's code, and what they call.
fn find(
    piece: &Piece,
    starts: &[u64],
    reader: &CodeReader,
    work: &mut CodeWork,
    found: &mut Vec<Vec<(u64, Rule)>>,
    called: &mut Vec<u64>,
) {
    let mut holes: Vec<Range<u64>> = Vec::new();
    holes.push(piece.start..piece.end());
    while let Some(hole) = holes.pop() {
        let is_named = starts.binary_search(&hole.start).is_ok();
        let mut code = FunctionCode {
            bytes: &piece.bytes,
            address: piece.start,
            start: hole.start,
            end: hole.end,
        };
        if !is_named {
            code.start = (reader.skip_padding)(&code, hole.start);
        }
        let behind = starts.partition_point(|start| *start <= hole.start);
        if let Some(&next) = starts.get(behind).filter(|it| **it < hole.end) {
            holes.push(next..hole.end);
            code.end = next;
        }
        if code.start >= code.end || work.is_spent() {
            continue;
        }
        let is_first = hole.start == piece.start;
        let may_start = is_named || is_first || piece.may_start_at(code.start, reader);
        let rules = may_start.then(|| (reader.function)(&code, work.of_function()));
        let Some(rules) = rules.flatten() else {
            let next = (code.start / ALIGNMENT + 1) * ALIGNMENT;
            // What is named is one function.
            if !is_named && next < code.end {
                holes.push(next..code.end);
            }
            continue;
        };
        called.extend_from_slice(&rules.calls);
        let mut covered = code.start;
        for straight in rules.ranges() {
            if straight.start > covered {
                holes.push(covered..straight.start);
            }
            covered = straight.end;
            found.push(rules.of(&straight));
        }
        if covered < code.end && covered > code.start {
            holes.push(covered..code.end);
        }
    }
}

impl Piece {
    /// Returns whether a function may start at an address in it.
    fn may_start_at(&self, address: u64, reader: &CodeReader) -> bool {
        let (before, from) = self.bytes.split_at((address - self.start) as usize);
        // The first one has a function of the tables before it, or the start of the segment.
        before.is_empty() || (reader.may_start)(before, from)
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
