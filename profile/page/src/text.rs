//! Texts of a recording, made harmless and of a bounded length.

use std::borrow::Cow;

/// Longer names are cut, with `…` at the end.
pub const MAX_NAME_BYTES: usize = 4096;

/// If all names of functions, or all of services, routes, threads or spans, have more bytes than
/// this, each of them is cut to a share of it.
pub const MAX_NAMES_BYTES: usize = 32 << 20;

/// The fewest bytes of a name that remain.
const MIN_NAME_BYTES: usize = 32;

/// Whether a character has no picture of its own, and can change what is around it: controls, marks
/// and overrides of the direction, separators of lines, and what XML cannot have.
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
            | '\u{fffe}' | '\u{ffff}'
    )
}

/// Replaces characters that are not shown, and can change what is around them, by U+FFFD, and cuts a
/// text to `limit` bytes: controls, marks and overrides of the direction, and separators of lines.
#[must_use]
pub fn clean(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit && !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    // A replacement takes more bytes than most of what it replaces.
    let replaced = start(text, limit).replace(is_harmful, "\u{fffd}");
    let mut clean = start(&replaced, limit).to_owned();
    if text.len() > limit || clean.len() < replaced.len() {
        clean.push('…');
    }
    Cow::Owned(clean)
}

/// The first `limit` bytes of a text, or less where that is within a character.
fn start(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Cleans names, and cuts each to `longest` bytes or to its share of the room for all.
pub(crate) fn clean_all<'t>(
    names: impl ExactSizeIterator<Item = &'t str> + Clone,
    longest: usize,
) -> Vec<Cow<'t, str>> {
    let limit = name_limit(names.clone().map(str::len)).min(longest);
    names.map(|name| clean(name, limit)).collect()
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

/// Escapes a text for HTML and XML, in elements and in attributes.
#[must_use]
pub fn escape(text: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmful_characters_are_replaced_and_others_stay() {
        let harmful = "a\0b\u{202e}c\u{2066}d\ne\u{85}f\u{feff}";
        assert_eq!(
            clean(harmful, 100),
            "a\u{fffd}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}f\u{fffd}"
        );
        for text in ["", "Cart.total", "straße 日本 😀", "مرحبا"] {
            assert!(matches!(clean(text, 100), Cow::Borrowed(same) if same == text));
        }
    }

    #[test]
    fn names_are_cut_between_characters() {
        assert_eq!(clean("straße", 6), "straß…");
        assert_eq!(clean("straße", 5), "stra…");
        assert_eq!(clean("straße", 7), "straße");
        assert_eq!(clean("\0\0\0", 3), "\u{fffd}…");
    }

    #[test]
    fn names_share_the_room_for_all() {
        let limit = |count: usize, length: usize| name_limit(vec![length; count].into_iter());
        assert_eq!(limit(0, 0), MAX_NAME_BYTES);
        assert_eq!(limit(8192, 4096), MAX_NAME_BYTES);
        assert_eq!(limit(8193, 70_000), MAX_NAMES_BYTES / 8193);
        assert_eq!(limit(1 << 21, 64), MIN_NAME_BYTES);
    }

    #[test]
    fn names_are_cut_to_the_longest_or_to_their_share() {
        let cut = |count: usize, name: &str, longest| {
            let names = vec![name; count];
            let cut = clean_all(names.iter().copied(), longest);
            assert_eq!(cut.len(), count);
            cut[count - 1].len()
        };
        assert_eq!(cut(2, "12345", 4), 4 + '…'.len_utf8());
        assert_eq!(cut(2, "12345", 5), 5);
        let many = MAX_NAMES_BYTES / 100 + 1;
        assert_eq!(cut(many, &"a".repeat(100), 200), 99 + '…'.len_utf8());
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(
            escape("<a href=\"x\">'&"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;"
        );
    }
}
