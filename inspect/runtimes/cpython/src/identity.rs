//! Distinguishes a code object from another one that later has the same address.

use otelctx_reader::remote::{Memory, MemoryError};

use crate::layout::{Layout, ObjectLayout, TextLayout};

/// The words of a code object that are compared, from its type on.
const WORDS: usize = 16;
/// Number of hashes that the words are distributed over, as in `bpf/cpython.step.h`.
const LANES: usize = 4;
/// 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The offset of a string's flags, from 3.3 on, among them the one of an ASCII string.
const FLAGS: u64 = 32;
const IS_ASCII: u8 = 0x40;
/// Maximum number of characters that are compared.
const CHARACTERS: usize = 48;
/// The part of a string on the next page is not compared: the page may not be mapped.
const PAGE: u64 = 4096;

/// The state of a code object at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The address of its type.
    pub(crate) object_type: u64,
    /// True if it has not been freed: the allocator overwrites the first word, the number of
    /// references, with a pointer to the next free object. Free-threaded builds have two other numbers,
    /// which remain 0.
    pub(crate) is_alive: bool,
    /// A hash of its contents, the same as in `bpf/cpython.step.h`: the words that do not change, and up
    /// to 3.11 the beginning of its name, because later objects of the same shape can have the same
    /// words. Later versions number their code objects.
    pub(crate) hash: u64,
}

impl Identity {
    pub(crate) fn read(
        memory: &dyn Memory,
        layout: &Layout,
        address: u64,
    ) -> Result<Self, MemoryError> {
        const HEAD: usize = ObjectLayout::FreeThreaded.object_type() as usize / 8;
        let object_type = layout.object.object_type() as usize;
        let mut bytes = [[0; 8]; HEAD + WORDS];
        let size = object_type + 8 * WORDS;
        memory.read(address, &mut bytes.as_flattened_mut()[..size])?;
        let head = bytes.map(u64::from_ne_bytes);
        let words = &head[object_type / 8..][..WORDS];
        let changing = layout.code.changing_words;
        let stable = words.iter().enumerate().map(|(index, word)| {
            let changes = changing >> index & 1 == 1;
            if changes { 0 } else { *word }
        });
        let mut lanes = [0_u64; LANES];
        for (index, word) in stable.enumerate() {
            let lane = &mut lanes[index % LANES];
            *lane = (*lane ^ word).wrapping_mul(FACTOR);
        }
        let mut hash = lanes.into_iter().fold(0, mix);
        if let Some(name) = name_word(layout) {
            hash = text(memory, layout.text, words[name], hash);
        }
        Ok(Self {
            object_type: words[0],
            is_alive: match layout.object {
                // `ob_refcnt` has 32 bits from 3.12 on, with others above in 3.14. No address is
                // such a number.
                ObjectLayout::Counted => head[0] as u32 != 0 && head[0] >> 32 & 0xffff == 0,
                // `ob_ref_local`, and `ob_ref_shared` without its two flags.
                ObjectLayout::FreeThreaded => head[1] >> 32 != 0 || head[2] >> 2 != 0,
            },
            hash,
        })
    }
}

/// The word with the address of the name that is compared.
pub(crate) fn name_word(layout: &Layout) -> Option<usize> {
    let code = &layout.code;
    if code.is_numbered {
        return None;
    }
    let offset = code.qualified_name.unwrap_or(code.name);
    let word = offset.checked_sub(layout.object.object_type())? / 8;
    let word = usize::try_from(word).ok()?;
    (word < WORDS).then_some(word)
}

fn mix(hash: u64, word: u64) -> u64 {
    let hash = (hash ^ word).wrapping_mul(FACTOR);
    hash ^ hash >> 32
}

/// Adds a string to a hash: its length and, if it is ASCII, its first characters.
fn text(memory: &dyn Memory, layout: TextLayout, address: u64, hash: u64) -> u64 {
    const HEAD: usize = TextLayout::HEAD;
    let start = address.wrapping_add(layout.start());
    let mut bytes = [0; HEAD + CHARACTERS];
    let left_on_page = (PAGE - start % PAGE) as usize;
    let size = left_on_page.min(bytes.len());
    let bytes = &mut bytes[..size];
    if size < HEAD || memory.read(start, bytes).is_err() {
        return hash;
    }
    let (head, characters) = bytes.split_at(HEAD);
    let at = |offset: u64| &head[offset.wrapping_sub(layout.start()) as usize % HEAD..];
    // The lower half is enough.
    let length = at(TextLayout::LENGTH).first_chunk();
    let length = u64::from(length.map_or(0, |length| u32::from_ne_bytes(*length)));
    let flags = at(FLAGS)[0];
    let count = match layout {
        TextLayout::Unicode { .. } if flags & IS_ASCII == 0 => 0,
        _ => usize::try_from(length).unwrap_or(usize::MAX),
    };
    let count = count.min(characters.len());
    let mut kept = [0; CHARACTERS];
    kept[..count].copy_from_slice(&characters[..count]);
    let (words, _) = kept.as_chunks();
    let words = words.iter().map(|word| u64::from_ne_bytes(*word));
    words.fold(mix(hash, length), mix)
}

#[cfg(test)]
mod tests {
    use otelctx_fixtures::python::Interpreter;

    use super::*;
    use crate::test_process;

    #[test]
    fn a_code_object_that_was_freed_is_not_alive() {
        for version in ["3.6", "3.9", "3.12", "3.13", "3.13t", "3.14", "3.15"] {
            for interpreter in Interpreter::with_version(version) {
                let target = interpreter.start("dropped.py");
                let words = target.lines[0].split(' ').skip(1);
                let address = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16);
                let codes: Vec<u64> = words.map(|word| address(word).unwrap()).collect();
                let process = test_process::open(target.pid());
                let layout = test_process::find_python(&process).layout;
                let is_alive = |code| Identity::read(&process, &layout, code).unwrap().is_alive;
                let alive = codes.into_iter().map(is_alive);
                assert_eq!(alive.collect::<Vec<_>>(), [false, true], "{interpreter}");
            }
        }
    }
}
