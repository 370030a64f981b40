//! The messages of OTLP files. Large files are read a resource at a time: they take no more memory
//! than their dictionaries and their largest resource.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::otlp::Reader;
use super::tables::{Sink, Tables};
use super::wire::{fields, head};
use crate::messages::Messages;

/// Field numbers of `ProfilesData`, which has no others.
const RESOURCE_PROFILES: u32 = 1;
const DICTIONARY: u32 = 2;

/// Smallest file that is read in parts, in bytes.
const MIN_FILE: u64 = 1 << 20;
/// Largest number of resources and dictionaries of such a file.
const MAX_PARTS: usize = 1 << 20;
/// Number of bytes in which the start of a field is searched.
const WINDOW: usize = 4 << 10;
/// Size before each of several messages, in bytes.
const SIZE: u64 = 4;

/// Where the parts of a message lie in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Layout {
    dictionaries: Vec<Range<u64>>,
    resources: Vec<Range<u64>>,
}

/// Reads all messages of a file.
pub(super) fn read(content: &[u8], tables: &mut Tables, sink: &mut dyn Sink) -> Result<(), String> {
    for message in Messages::new(content) {
        let (mut dictionaries, mut resources) = (Vec::new(), Vec::new());
        for field in fields(message?) {
            match field? {
                (RESOURCE_PROFILES, part) => resources.push(part.bytes()?),
                (DICTIONARY, part) => dictionaries.push(part.bytes()?),
                _ => {}
            }
        }
        let each = |visit: Visit<'_>| resources.iter().try_for_each(|it| visit(it));
        read_message(dictionaries, each, tables, sink)?;
    }
    Ok(())
}

/// Reads the messages that were found by [`layouts`].
pub(super) fn read_parts(
    file: &File,
    layouts: &[Layout],
    tables: &mut Tables,
    sink: &mut dyn Sink,
) -> Result<(), String> {
    let mut buffer = Vec::new();
    for layout in layouts {
        let mut dictionaries = Vec::new();
        for range in &layout.dictionaries {
            let mut dictionary = Vec::new();
            read_part(file, range, &mut dictionary)?;
            dictionaries.push(dictionary);
        }
        let each = |visit: Visit<'_>| {
            layout.resources.iter().try_for_each(|range| {
                read_part(file, range, &mut buffer)?;
                visit(&buffer)
            })
        };
        read_message(dictionaries.iter().map(|it| &it[..]), each, tables, sink)?;
    }
    Ok(())
}

/// A function that is called with each resource.
type Visit<'v> = &'v mut dyn FnMut(&[u8]) -> Result<(), String>;

fn read_message<'m>(
    dictionaries: impl IntoIterator<Item = &'m [u8]>,
    mut each: impl FnMut(Visit<'_>) -> Result<(), String>,
    tables: &mut Tables,
    sink: &mut dyn Sink,
) -> Result<(), String> {
    let mut reader = Reader::new(dictionaries, tables)?;
    if sink.needs_start() {
        each(&mut |resource| reader.read_times(resource))?;
    }
    each(&mut |resource| reader.read(resource, sink))
}

fn read_part(file: &File, range: &Range<u64>, buffer: &mut Vec<u8>) -> Result<(), String> {
    buffer.resize((range.end - range.start) as usize, 0);
    let read = file.read_exact_at(buffer, range.start);
    read.map_err(|error| format!("it cannot be read ({error})"))
}

/// Returns the messages of a large OTLP file. `None` for any other file, and for a damaged one: what
/// reads a whole file says what is wrong with it.
pub(super) fn layouts(file: &File, size: u64) -> Option<Vec<Layout>> {
    if size < MIN_FILE {
        return None;
    }
    let mut scan = Scan {
        file,
        start: 0,
        window: Vec::new(),
        parts: 0,
    };
    let mut layouts = Vec::new();
    if !Messages::new(scan.bytes_at(0)?).have_sizes() {
        layouts.push(scan.message(0..size)?);
        return Some(layouts);
    }
    let mut position = 0;
    while position < size {
        let (length, _) = scan.bytes_at(position)?.split_first_chunk()?;
        let length = u64::from(u32::from_be_bytes(*length));
        let start = position + SIZE;
        position = start + length;
        if length == 0 || position > size {
            return None;
        }
        layouts.push(scan.message(start..position)?);
    }
    Some(layouts)
}

/// Searches a file for the parts of its messages.
struct Scan<'f> {
    file: &'f File,
    start: u64,
    window: Vec<u8>,
    parts: usize,
}

impl Scan<'_> {
    /// Returns bytes of the file from `position` on, enough for the start of a field.
    fn bytes_at(&mut self, position: u64) -> Option<&[u8]> {
        /// A field's key and length have at most five bytes and ten.
        const ENOUGH: usize = 16;
        let rest = |scan: &Self| {
            let skipped = position.checked_sub(scan.start)?;
            usize::try_from(skipped)
                .ok()
                .filter(|it| *it <= scan.window.len())
        };
        let is_there = rest(self).is_some_and(|at| self.window.len() - at >= ENOUGH);
        if !is_there {
            self.window.resize(WINDOW, 0);
            let read = self.file.read_at(&mut self.window, position).ok()?;
            self.window.truncate(read);
            self.start = position;
        }
        Some(&self.window[rest(self)?..])
    }

    fn message(&mut self, message: Range<u64>) -> Option<Layout> {
        let mut layout = Layout::default();
        let mut position = message.start;
        while position < message.end {
            self.parts += 1;
            let mut bytes = self.bytes_at(position)?;
            let before = bytes.len();
            let (number, length) = head(&mut bytes)?;
            let start = position + (before - bytes.len()) as u64;
            let end = start.checked_add(length)?;
            if end > message.end || self.parts > MAX_PARTS {
                return None;
            }
            match number {
                RESOURCE_PROFILES => layout.resources.push(start..end),
                DICTIONARY => layout.dictionaries.push(start..end),
                _ => return None,
            }
            position = end;
        }
        Some(layout)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use prost::encoding::encode_varint;

    use super::*;
    use crate::file;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut field = vec![number << 3 | 2];
        encode_varint(content.len() as u64, &mut field);
        [field, content.to_vec()].concat()
    }

    fn of(content: &[u8]) -> Option<Vec<Layout>> {
        let mut file = file::unlinked(&std::env::temp_dir()).unwrap();
        file.write_all(content).unwrap();
        layouts(&file, content.len() as u64)
    }

    #[test]
    fn parts_of_large_files_are_found() {
        let large = vec![0; MIN_FILE as usize];
        let message = [field(1, &large), field(1, b"b"), field(2, b"dictionary")].concat();
        let found = |from: u64| {
            let behind = from + message.len() as u64;
            Layout {
                resources: vec![from + 4..from + 4 + MIN_FILE, behind - 13..behind - 12],
                dictionaries: std::iter::once(behind - 10..behind).collect(),
            }
        };
        assert_eq!(of(&message), Some(vec![found(0)]));
        let size = (message.len() as u32).to_be_bytes();
        let sized = [&size[..], &message, &size, &message].concat();
        let second = 2 * SIZE + message.len() as u64;
        assert_eq!(of(&sized), Some(vec![found(SIZE), found(second)]));
        // Whatever is not that is left to what reads whole files.
        assert_eq!(of(&message[..message.len() - 1]), None);
        assert_eq!(of(&sized[..sized.len() - 1]), None);
        assert_eq!(of(&[&sized[..], &[0, 0]].concat()), None);
        assert_eq!(of(&[&message[..], &field(6, b"string")].concat()), None);
        assert_eq!(of(&[&message[..], &[1 << 3, 5]].concat()), None);
        assert_eq!(of(&message[message.len() - 15..]), None);
    }
}
