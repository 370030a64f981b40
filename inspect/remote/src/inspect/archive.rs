//! Static libraries: `ar` archives in the GNU or System V format (ar(5)).

use super::{Contents, Inspection};
use crate::elf::ElfError;
use crate::memory::{Memory, MemoryError};

const MAGIC: &[u8; 8] = b"!<arch>\n";
/// The members are in separate files.
const THIN_MAGIC: &[u8; 8] = b"!<thin>\n";
/// Size of a member's header, in bytes: name 16, date 12, owner 6, group 6, mode 8, size 10, end 2.
const HEADER: usize = 60;
/// Maximum number of members inspected; a large static library has some ten thousand.
const MAX_MEMBERS: usize = 1 << 17;
/// Maximum number of members reported.
const MAX_REPORTED: usize = 256;
/// Maximum size of the table of long names, in bytes.
const MAX_NAMES: usize = 16 << 20;

/// A member of a static library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name, the file name of the object file.
    pub name: String,
    /// Its contents, or why they cannot be read.
    pub contents: Result<Box<Inspection>, String>,
}

pub(super) fn is_archive(memory: &dyn Memory) -> bool {
    let mut magic = [0; MAGIC.len()];
    memory.read(0, &mut magic).is_ok() && (&magic == MAGIC || &magic == THIN_MAGIC)
}

/// A part of a file, accessed like a file.
struct Part<'a> {
    whole: &'a dyn Memory,
    start: u64,
    size: u64,
}

impl Memory for Part<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let length = buffer.len();
        match address.checked_add(length as u64) {
            Some(end) if end <= self.size => self.whole.read(self.start + address, buffer),
            _ => Err(MemoryError::Unmapped { address, length }),
        }
    }
}

pub(super) fn read(memory: &dyn Memory, size: u64, name: &str) -> Result<Contents, ElfError> {
    let mut magic = [0; MAGIC.len()];
    memory.read(0, &mut magic)?;
    if &magic == THIN_MAGIC {
        return Err(ElfError::Malformed(
            "it is a thin archive: its members are separate files, check these",
        ));
    }
    let mut names = Vec::new();
    let (mut count, mut members) = (0, Vec::new());
    let mut at = MAGIC.len() as u64;
    while at < size {
        let mut header = [0; HEADER];
        memory.read(at, &mut header)?;
        let length: u64 = std::str::from_utf8(&header[48..58])
            .ok()
            .and_then(|text| text.trim_end().parse().ok())
            .filter(|_| header[58..] == *b"`\n")
            .ok_or(ElfError::Malformed("a member of the archive has no size"))?;
        let part = Part {
            whole: memory,
            start: at + HEADER as u64,
            size: length,
        };
        let end = part.start.checked_add(length).filter(|end| *end <= size);
        let truncated = "it is truncated, within a member of the archive";
        at = end
            .ok_or(ElfError::Malformed(truncated))?
            .next_multiple_of(2);
        match &header[..16] {
            [b'/', b'/', ..] => names = part.read_vec(0, length, MAX_NAMES)?,
            // The symbol index.
            [b'/', b' ', ..] => {}
            header if header.starts_with(b"/SYM64/") => {}
            header => {
                count += 1;
                if count > MAX_MEMBERS {
                    return Err(ElfError::Malformed("it has more than 131,072 members"));
                }
                let contents = match Contents::of_memory(&part, length, name) {
                    Ok(Contents::Elf(inspection)) if inspection.local.is_empty() => continue,
                    Ok(Contents::Elf(inspection)) => Ok(inspection),
                    Ok(_) => continue,
                    Err(error) => Err(error.to_string()),
                };
                if members.len() < MAX_REPORTED {
                    members.push(Member {
                        name: member_name(header, &names),
                        contents,
                    });
                }
            }
        }
    }
    Ok(Contents::Archive { count, members })
}

/// `name/`, or `/offset` of a name in the table of long names.
fn member_name(header: &[u8], names: &[u8]) -> String {
    let short = String::from_utf8_lossy(header);
    let short = short.trim_end();
    let long = short
        .strip_prefix('/')
        .and_then(|offset| names.get(offset.parse().ok()?..))
        .map(|rest| {
            let end = rest.iter().position(|byte| *byte == b'\n');
            String::from_utf8_lossy(&rest[..end.unwrap_or(rest.len())]).into_owned()
        });
    let name = long.unwrap_or_else(|| short.to_owned());
    name.trim_end_matches('/').to_owned()
}
