//! Parses `/proc/PID/maps` as a stream.
//!
//! A process can have millions of mappings: only the incomplete line at the end of a read is kept.
//! read(2) returns at most 4 KiB of maps, and is consistent only within one read.

pub(crate) mod moved;
pub(crate) mod query;
mod search;

use std::io::{self, Read};
use std::ops::ControlFlow;

use crate::Device;
pub use moved::{ExecutableMapping, HUGE_PAGE, VisitExecutable, is_name_of_memory};
pub(crate) use search::is_clock_check_due;
pub use search::{NameFilter, NamedMapping, Scan, ScanOptions, Search};

/// Maximum size of a line: a path of 4096 bytes, each escaped (`\012`), after about 75 characters.
const MAX_LINE: usize = 4 * 4096 + 256;

/// The permissions in the second column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Permissions {
    /// `r`
    pub read: bool,
    /// `w`
    pub write: bool,
    /// `x`
    pub execute: bool,
    /// `s` rather than `p`
    pub shared: bool,
}

/// One mapping, borrowed from the text it was read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping<'a> {
    /// First address.
    pub start: u64,
    /// The first address after it.
    pub end: u64,
    /// Its permissions.
    pub permissions: Permissions,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Device of the file; zero for anonymous memory.
    pub device: Device,
    /// Inode of the file; zero for anonymous memory.
    pub inode: u64,
    /// The last column as the kernel wrote it: a path (a newline is escaped as `\012`, but not with
    /// `PROCMAP_QUERY`; ` (deleted)` may follow), a name in brackets, or nothing. May not be UTF-8.
    pub name: &'a [u8],
}

/// Takes one mapping after another, until it breaks.
pub type Visit<'v> = &'v mut (dyn FnMut(&Mapping<'_>) -> ControlFlow<()> + 'v);

impl<'a> Mapping<'a> {
    /// Parses one line, without its newline. `None` if it is not a mapping.
    pub fn parse(line: &'a [u8]) -> Option<Self> {
        let mut rest = line;
        let start = hexadecimal(&mut rest)?;
        literal(&mut rest, b'-')?;
        let end = hexadecimal(&mut rest)?;
        literal(&mut rest, b' ')?;
        let ([read, write, execute, shared], tail) = rest.split_first_chunk::<4>()?;
        rest = tail;
        literal(&mut rest, b' ')?;
        let offset = hexadecimal(&mut rest)?;
        literal(&mut rest, b' ')?;
        let major = u32::try_from(hexadecimal(&mut rest)?).ok()?;
        literal(&mut rest, b':')?;
        let minor = u32::try_from(hexadecimal(&mut rest)?).ok()?;
        literal(&mut rest, b' ')?;
        let inode = digits(&mut rest, 10)?;
        // The kernel pads with spaces up to column 73, and always writes at least one.
        let padding = rest.iter().take_while(|byte| **byte == b' ').count();
        if padding == 0 && !rest.is_empty() {
            return None;
        }
        Some(Mapping {
            start,
            end,
            permissions: Permissions {
                read: *read == b'r',
                write: *write == b'w',
                execute: *execute == b'x',
                shared: *shared == b's',
            },
            offset,
            device: Device { major, minor },
            inode,
            name: &rest[padding..],
        })
    }

    /// Size in bytes; 0 if the line is inconsistent.
    pub fn size(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

fn literal(rest: &mut &[u8], expected: u8) -> Option<()> {
    let (first, tail) = rest.split_first()?;
    *rest = tail;
    (*first == expected).then_some(())
}

fn hexadecimal(rest: &mut &[u8]) -> Option<u64> {
    digits(rest, 16)
}

/// Consumes digits at the start: at least one, and no more than fit into 64 bits.
fn digits(rest: &mut &[u8], base: u64) -> Option<u64> {
    let mut value = 0_u64;
    let mut length = 0;
    for byte in *rest {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' if base == 16 => byte - b'a' + 10,
            _ => break,
        };
        value = value.checked_mul(base)?.checked_add(u64::from(digit))?;
        length += 1;
    }
    *rest = &rest[length..];
    (length > 0).then_some(value)
}

/// The result of a walk over the mappings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Walk {
    /// Number of mappings that were visited.
    pub mappings: u64,
    /// Number of lines that are not mappings, and were skipped.
    pub malformed: u64,
    /// True if the caller ended the walk.
    pub stopped: bool,
}

/// A parser for text that arrives in pieces, split anywhere.
#[derive(Debug, Default)]
pub struct Parser {
    /// The start of a line whose end has not arrived yet.
    partial: Vec<u8>,
    /// True if the current line is too long and is skipped up to its newline.
    skipping: bool,
    walk: Walk,
}

impl Parser {
    /// Creates a parser for the start of the text.
    pub fn new() -> Self {
        Parser::default()
    }

    pub(crate) fn is_inside_line(&self) -> bool {
        self.skipping || !self.partial.is_empty()
    }

    /// Parses the next piece, and calls `visit` for every line that it completes, until it breaks.
    pub fn feed(&mut self, mut piece: &[u8], visit: Visit<'_>) -> ControlFlow<()> {
        while let Some(newline) = piece.iter().position(|byte| *byte == b'\n') {
            let (line, rest) = (&piece[..newline], &piece[newline + 1..]);
            piece = rest;
            if self.skipping {
                self.skipping = false;
                continue;
            }
            if self.partial.is_empty() {
                Self::line(&mut self.walk, line, visit)?;
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                let flow = Self::line(&mut self.walk, &whole, visit);
                whole.clear();
                self.partial = whole;
                flow?;
            }
        }
        if self.skipping {
            return ControlFlow::Continue(());
        }
        if self.partial.len() + piece.len() > MAX_LINE {
            self.walk.malformed += 1;
            self.partial.clear();
            self.skipping = true;
        } else {
            self.partial.extend_from_slice(piece);
        }
        ControlFlow::Continue(())
    }

    /// Ends the text. A last line without a newline is incomplete.
    pub fn finish(self) -> Walk {
        let mut walk = self.walk;
        if !self.partial.is_empty() {
            walk.malformed += 1;
        }
        walk
    }

    fn line(walk: &mut Walk, line: &[u8], visit: Visit<'_>) -> ControlFlow<()> {
        let Some(mapping) = Mapping::parse(line) else {
            walk.malformed += 1;
            return ControlFlow::Continue(());
        };
        walk.mappings += 1;
        let flow = visit(&mapping);
        walk.stopped = flow.is_break();
        flow
    }
}

/// Reads `maps` to its end, or until `visit` breaks.
pub fn walk(mut maps: impl Read, visit: Visit<'_>) -> io::Result<Walk> {
    let mut parser = Parser::new();
    let mut buffer = [0; 4096];
    loop {
        match maps.read(&mut buffer) {
            Ok(0) => return Ok(parser.finish()),
            Ok(length) => {
                if parser.feed(&buffer[..length], visit).is_break() {
                    parser.partial.clear();
                    return Ok(parser.finish());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
56110f4000-56110f6000 r-xp 00001000 fd:10 1835301                        /usr/bin/a b (deleted)
7ffd0000-7ffd1000 rw-p 00000000 00:00 0 
7ffd1000-7ffd2000 r--s 00000000 00:01 4026                               /memfd:OTEL_CTX (deleted)
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
";

    fn names(text: &[u8], cut: usize) -> (Vec<(u64, u64, Vec<u8>)>, Walk) {
        let mut seen = Vec::new();
        let mut parser = Parser::new();
        for piece in text.chunks(cut) {
            let flow = parser.feed(piece, &mut |mapping| {
                seen.push((mapping.start, mapping.inode, mapping.name.to_vec()));
                ControlFlow::Continue(())
            });
            assert!(flow.is_continue());
        }
        (seen, parser.finish())
    }

    #[test]
    fn every_column_is_read() {
        let line = TEXT.split(|byte| *byte == b'\n').next().unwrap();
        assert_eq!(
            Mapping::parse(line),
            Some(Mapping {
                start: 0x56110f4000,
                end: 0x56110f6000,
                permissions: Permissions {
                    read: true,
                    write: false,
                    execute: true,
                    shared: false
                },
                offset: 0x1000,
                device: Device {
                    major: 0xfd,
                    minor: 0x10
                },
                inode: 1835301,
                name: b"/usr/bin/a b (deleted)",
            })
        );
    }

    #[test]
    fn lines_may_be_cut_anywhere() {
        let (whole, walk) = names(TEXT, TEXT.len());
        assert_eq!(
            walk,
            Walk {
                mappings: 4,
                malformed: 0,
                stopped: false
            }
        );
        assert_eq!(whole[1], (0x7ffd0000, 0, Vec::new()));
        assert_eq!(whole[3].0, 0xffffffffff600000);
        for cut in 1..TEXT.len() {
            assert_eq!(
                names(TEXT, cut),
                (whole.clone(), walk),
                "cut every {cut} bytes"
            );
        }
    }

    #[test]
    fn the_caller_can_stop() {
        let mut seen = 0;
        let walk = walk(TEXT, &mut |_| {
            seen += 1;
            if seen == 2 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        assert_eq!(
            walk.unwrap(),
            Walk {
                mappings: 2,
                malformed: 0,
                stopped: true
            }
        );
    }

    #[test]
    fn what_is_no_mapping_is_counted_and_skipped() {
        for (text, malformed) in [
            (&b"x\n"[..], 1),
            (b"1-2 r-xp 0 0:0 99999999999999999999999\n", 1),
            (b"1-2 r-xp 0 0:0 1x\n", 1),
            (b"1-2 r-", 1),
            (b"\n\n", 2),
            (b"1-2 r-xp 0 100000000:0 1 a\n", 1),
        ] {
            let (seen, walk) = names(text, 3);
            assert!(seen.is_empty(), "{text:?}");
            assert_eq!(walk.malformed, malformed, "{text:?}");
        }
    }

    #[test]
    fn an_endless_line_takes_bounded_memory() {
        let mut parser = Parser::new();
        for _ in 0..1000 {
            let _ = parser.feed(&[b'a'; 4096], &mut |_| ControlFlow::Continue(()));
            assert!(parser.partial.capacity() <= 2 * MAX_LINE);
        }
        let mut after = 0;
        let _ = parser.feed(b"a\n1-2 r-xp 0 0:0 1 a\n", &mut |_| {
            after += 1;
            ControlFlow::Continue(())
        });
        assert_eq!((after, parser.finish().malformed), (1, 1));
    }
}
