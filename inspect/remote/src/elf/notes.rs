//! The notes of a module: its build ID.

use object::LittleEndian as LE;
use object::elf::{self, NoteHeader64};

use super::{Elf, ElfError, Source, read_struct};

/// Maximum number of bytes of notes read; a linker writes about a hundred.
const MAX_NOTES: u64 = 64 * 1024;
/// Maximum size of a build ID, in bytes. Linkers write at most 20.
const MAX_BUILD_ID: usize = 64;
/// Maximum size of a build ID of Go's linker, in bytes: four hashes of 20 characters with strokes between them.
const MAX_GO_BUILD_ID: usize = 128;

impl Elf<'_> {
    /// The build ID, which the linker derives from the module's contents (NT_GNU_BUILD_ID).
    pub fn build_id(&self) -> Result<Option<Vec<u8>>, ElfError> {
        self.note(elf::NT_GNU_BUILD_ID, b"GNU\0", MAX_BUILD_ID)
    }

    /// What identifies the contents: the build ID, or else that of Go's linker, whose programs have no other one among
    /// the notes that are loaded.
    pub(crate) fn content_id(&self) -> Result<Option<Vec<u8>>, ElfError> {
        const GO_BUILD_ID: elf::NoteType = elf::NoteType(4);
        match self.build_id()? {
            Some(id) => Ok(Some(id)),
            None => self.note(GO_BUILD_ID, b"Go\0\0", MAX_GO_BUILD_ID),
        }
    }

    /// The contents of the first note of a kind, at most `limit` bytes. `None` if there is none, or it is empty.
    fn note(
        &self,
        kind: elf::NoteType,
        owner: &[u8; 4],
        limit: usize,
    ) -> Result<Option<Vec<u8>>, ElfError> {
        for segment in &self.notes {
            let start = match self.source {
                Source::File(_) => segment.offset,
                Source::Loaded(..) => self.bias().wrapping_add(segment.address),
            };
            let size = segment.file_size.min(MAX_NOTES);
            let mut done = 0;
            while done + size_of::<NoteHeader64<LE>>() as u64 <= size {
                let at = start.wrapping_add(done);
                let note: NoteHeader64<LE> = read_struct(self.memory(), at)?;
                let name_size = u64::from(note.n_namesz.get(LE));
                let id_size = u64::from(note.n_descsz.get(LE));
                let name_at = at.wrapping_add(size_of::<NoteHeader64<LE>>() as u64);
                let id_at = name_at.wrapping_add(name_size.next_multiple_of(4));
                if note.n_type.get(LE) == kind
                    && self.memory().read_vec(name_at, name_size, 4).as_deref() == Ok(owner)
                {
                    let id = self.memory().read_vec(id_at, id_size, limit)?;
                    return Ok((!id.is_empty()).then_some(id));
                }
                // Entries of a segment with an alignment of 8 are padded to 8 bytes.
                let padding = if segment.alignment == 8 { 8 } else { 4 };
                done += (id_at.wrapping_sub(at))
                    .saturating_add(id_size)
                    .next_multiple_of(padding);
            }
        }
        Ok(None)
    }
}
