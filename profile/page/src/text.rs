//! Texts of a recording, made harmless and of a bounded length.

use std::borrow::Cow;

/// Longer names are cut, with `…` at the end.
pub const MAX_NAME_BYTES: usize = 4096;

/// If all names of functions have more bytes than this, each of them is cut to a share of it.
pub const MAX_NAMES_BYTES: usize = 32 << 20;

/// The fewest bytes of a name that remain.
const MIN_NAME_BYTES: usize = 32;

/// Whether a character has no picture of its own, and can change what is around it: controls, marks
/// and overrides of the direction, and separators of lines.
const fn is_harmful(character: char) -> bool {
    matches!(
        character,
        '\0'..='\x1f'
            | '\x7f'..='\u{9f}'
            | '\u{61c}'
            | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{feff}'
    )
}

/// Replaces harmful characters by U+FFFD, and cuts a text to `limit` bytes.
pub(crate) fn clean(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit && !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let mut clean = text[..end].replace(is_harmful, "\u{fffd}");
    if end < text.len() {
        clean.push('…');
    }
    Cow::Owned(clean)
}

/// Returns the bytes that each of these names may have.
pub(crate) fn name_limit(lengths: impl ExactSizeIterator<Item = usize>) -> usize {
    let count = lengths.len().max(1);
    let all: usize = lengths.map(|length| length.min(MAX_NAME_BYTES)).sum();
    if all <= MAX_NAMES_BYTES {
        return MAX_NAME_BYTES;
    }
    (MAX_NAMES_BYTES / count).clamp(MIN_NAME_BYTES, MAX_NAME_BYTES)
}

/// Escapes a text for HTML, in elements and in attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
