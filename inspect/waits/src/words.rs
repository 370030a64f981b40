//! Text for people, of names that other processes chose.

use std::borrow::Cow;

/// Maximum length of a name, in characters: longer ones are cut in the middle.
const MAX_NAME: usize = 256;
/// Put in place of the middle.
const CUT: char = '…';

/// A name as text: control characters and characters that reverse text are escaped, and it is at most [`MAX_NAME`] characters long.
pub(crate) fn plain(name: &[u8]) -> String {
    let text = String::from_utf8_lossy(name);
    let text = cut(&text);
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if is_control(character) {
            plain.extend(character.escape_debug());
        } else {
            plain.push(character);
        }
    }
    plain
}

fn cut(text: &str) -> Cow<'_, str> {
    let count = text.chars().count();
    if count <= MAX_NAME {
        return text.into();
    }
    let half = MAX_NAME / 2;
    let start = text.chars().take(half);
    let end = text.chars().skip(count - half + 1);
    start.chain([CUT]).chain(end).collect::<String>().into()
}

/// Returns whether a character could drive a terminal, or change the direction of text.
fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A time in the largest unit of which it has at least one, with at most three decimals: `1.5 s`, `20 ms`.
pub(crate) fn duration(nanoseconds: u64) -> String {
    let units = [("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)];
    let unit = units.into_iter().find(|(_, size)| nanoseconds >= *size);
    let Some((unit, size)) = unit else {
        return format!("{nanoseconds} ns");
    };
    let thousandths = nanoseconds % size / (size / 1000);
    let decimals = format!(".{thousandths:03}");
    let decimals = decimals.trim_end_matches('0').trim_end_matches('.');
    format!("{}{decimals} {unit}", nanoseconds / size)
}

/// A list with the number of others: `a, b and 3 more`.
pub(crate) fn list(names: &[String], more: usize) -> String {
    match more {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// A number of things.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    let what = if number == 1 { one } else { many };
    format!("{number} {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_unit_that_a_person_would_use() {
        let times = [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_500, "1.5 µs"),
            (20_000_000, "20 ms"),
            (1_000_000_000, "1 s"),
            (1_500_000_000, "1.5 s"),
            (90_012_999_999, "90.012 s"),
            (u64::MAX, "18446744073.709 s"),
        ];
        for (nanoseconds, expected) in times {
            assert_eq!(duration(nanoseconds), expected);
        }
    }

    #[test]
    fn names_cannot_drive_a_terminal_and_are_bounded() {
        assert_eq!(plain(b"a\x1b[31m\n\xff"), "a\\u{1b}[31m\\n\u{fffd}");
        assert_eq!(plain("x\u{202e}y".as_bytes()), "x\\u{202e}y");
        let long = format!("/{}/end", "ä".repeat(5000));
        let short = plain(long.as_bytes());
        assert_eq!(short.chars().count(), MAX_NAME);
        assert!(short.starts_with("/ää") && short.ends_with("ää/end") && short.contains(CUT));
        assert_eq!(plain("ä".repeat(MAX_NAME).as_bytes()), "ä".repeat(MAX_NAME));
    }

    #[test]
    fn lists_count_what_they_do_not_name() {
        let names = ["a", "b"].map(String::from);
        assert_eq!(list(&names, 0), "a, b");
        assert_eq!(list(&names, 1), "a, b and 1 more");
    }
}
