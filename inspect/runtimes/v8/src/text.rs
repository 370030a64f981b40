//! Strings in V8's heap: flat, external, slices, and trees of parts.

use std::ops::ControlFlow;

use crate::heap::{Heap, Object};

/// Maximum number of parts of a string that are visited. Names and sources are flat, or refer to a flat string, once they
/// were used.
const MAX_PARTS: usize = 1 << 10;
/// Number of characters that are read at a time.
const CHUNK: u32 = 1 << 14;

// Instance types of strings, the same in all supported versions (src/objects/instance-type.h in V8).
const NOT_A_STRING: u16 = 0xff80;
const REPRESENTATION: u16 = 7;
const FLAT: u16 = 0;
const CONCATENATED: u16 = 1;
const EXTERNAL: u16 = 2;
const SLICED: u16 = 3;
const THIN: u16 = 5;
const ONE_BYTE: u16 = 8;
const UNCACHED: u16 = 16;
const EXTERNAL_OR_UNCACHED: u16 = EXTERNAL | UNCACHED;

// Fields of strings, in bytes (src/objects/string.h in V8).
const LENGTH: u64 = 12;
const CHARACTERS: u64 = 16;
const FIRST: u64 = 16;
const SECOND: u64 = 24;
const OFFSET: u64 = 24;
const EXTERNAL_DATA: u64 = 24;

/// A part of a string to visit: `length` characters from `skip` on.
struct Part {
    string: Object,
    skip: u32,
    length: u32,
}

/// Takes characters, in UTF-16, until it breaks.
type VisitCharacters<'v> = &'v mut dyn FnMut(&[u16]) -> ControlFlow<()>;

/// The first `limit` bytes of a text, or fewer, so that no character is cut.
pub(crate) fn cut(mut text: String, limit: usize) -> String {
    let mut ends = (0..=limit.min(text.len())).rev();
    let end = ends.find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
    text
}

impl Heap<'_> {
    /// Returns whether an object is a string.
    pub(crate) fn is_string(&self, object: Object) -> bool {
        let found = self.instance_type(object);
        found.is_some_and(|found| found & NOT_A_STRING == 0)
    }

    /// The number of characters of a string.
    pub(crate) fn length(&self, string: Object) -> Option<u32> {
        let length = self.u32_at(string, LENGTH)?;
        i32::try_from(length).ok().map(|_| length)
    }

    /// At most `limit` characters of a string.
    pub(crate) fn text(&self, string: Object, limit: u32) -> Option<String> {
        let mut text = Vec::new();
        self.visit_characters(string, limit, &mut |characters| {
            text.extend_from_slice(characters);
            ControlFlow::Continue(())
        })?;
        Some(String::from_utf16_lossy(&text))
    }

    /// Calls `visit` with at most `limit` characters of a string, in pieces, until it breaks. `None` if a part of it cannot be
    /// read.
    pub(crate) fn visit_characters(
        &self,
        string: Object,
        limit: u32,
        visit: VisitCharacters<'_>,
    ) -> Option<()> {
        let length = self.length(string)?.min(limit);
        let mut parts = vec![Part {
            string,
            skip: 0,
            length,
        }];
        for _ in 0..MAX_PARTS {
            let Some(part) = parts.pop() else {
                return Some(());
            };
            if part.length == 0 {
                continue;
            }
            if self.visit_part(&part, &mut parts, visit)?.is_break() {
                return Some(());
            }
        }
        None
    }

    /// Visits a part's characters, or adds its own parts to the remaining ones, the first one last.
    fn visit_part(
        &self,
        part: &Part,
        left: &mut Vec<Part>,
        visit: VisitCharacters<'_>,
    ) -> Option<ControlFlow<()>> {
        let &Part {
            string,
            skip,
            length,
        } = part;
        let kind = self.instance_type(string)?;
        let end = skip.checked_add(length)?;
        if kind & NOT_A_STRING != 0 || end > self.length(string)? {
            return None;
        }
        let is_one_byte = kind & ONE_BYTE != 0;
        let mut push = |string, skip, length| {
            left.push(Part {
                string,
                skip,
                length,
            });
        };
        match kind & REPRESENTATION {
            FLAT => {
                let at = string.address().wrapping_add(CHARACTERS);
                return self.visit_flat(at, part, is_one_byte, visit);
            }
            EXTERNAL if kind & EXTERNAL_OR_UNCACHED == EXTERNAL => {
                let at = self.word(string, EXTERNAL_DATA)?;
                return self.visit_flat(at, part, is_one_byte, visit);
            }
            CONCATENATED => {
                let first = self.object(string, FIRST)?;
                let second = self.object(string, SECOND)?;
                let middle = self.length(first)?;
                if end > middle {
                    let inside = skip.max(middle);
                    push(second, inside - middle, end - inside);
                }
                if skip < middle {
                    push(first, skip, end.min(middle) - skip);
                }
            }
            SLICED => {
                let offset = u32::try_from(self.integer(string, OFFSET)?).ok()?;
                let parent = self.object(string, FIRST)?;
                push(parent, skip.checked_add(offset)?, length);
            }
            THIN => push(self.object(string, FIRST)?, skip, length),
            _ => return None,
        }
        Some(ControlFlow::Continue(()))
    }

    /// Visits the characters of a part whose string has its characters at an address.
    fn visit_flat(
        &self,
        start: u64,
        part: &Part,
        is_one_byte: bool,
        visit: VisitCharacters<'_>,
    ) -> Option<ControlFlow<()>> {
        let size = if is_one_byte { 1 } else { 2 };
        let mut characters = Vec::new();
        let mut done = 0;
        while done < part.length {
            let count = (part.length - done).min(CHUNK);
            let at = u64::from(part.skip) + u64::from(done);
            let at = start.wrapping_add(at * size);
            let bytes = u64::from(count) * size;
            let bytes = self.memory.read_vec(at, bytes, 2 * CHUNK as usize).ok()?;
            characters.clear();
            if is_one_byte {
                characters.extend(bytes.iter().map(|byte| u16::from(*byte)));
            } else {
                let pairs = bytes.as_chunks::<2>().0.iter();
                characters.extend(pairs.map(|pair| u16::from_le_bytes(*pair)));
            }
            if visit(&characters).is_break() {
                return Some(ControlFlow::Break(()));
            }
            done += count;
        }
        Some(ControlFlow::Continue(()))
    }
}
