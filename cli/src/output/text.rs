//! Terms that all commands and the JSON share (docs/json.md).

use std::ffi::OsStr;

use otelctx_reader::remote::{Access, Storage};

/// Names the access model of code that uses the variable.
pub(crate) fn access(access: Access) -> &'static str {
    match access {
        Access::Tlsdesc => "tlsdesc",
        Access::GeneralDynamic => "general-dynamic",
        Access::LocalDynamic => "local-dynamic",
        Access::InitialExec => "initial-exec",
        Access::LocalExec => "local-exec",
    }
}

/// Names the storage in which each thread keeps the variable.
pub(crate) fn storage(storage: Storage) -> &'static str {
    match storage {
        Storage::Static => "static",
        Storage::Dynamic => "dynamic",
    }
}

/// Returns a path from `/proc/PID/maps`, where a line break is written as `\012`
/// (fs/proc/task_mmu.c, show_map_vma). It cannot be distinguished from a name with these four
/// characters.
pub(crate) fn path(escaped: &OsStr) -> String {
    escaped.to_string_lossy().replace("\\012", "\n")
}

/// Formats a number of things: `1 key`, `2,000 keys`.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    format!(
        "{} {}",
        grouped(number),
        if number == 1 { one } else { many }
    )
}

/// Formats a number with thousands separators: `12,345`.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the command that the user called this program by, for hints.
pub(crate) fn own_name() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    if called.is_empty() {
        // The caller passed no name.
        "otelctx".to_owned()
    } else {
        argument(&called.to_string_lossy())
    }
}

/// Returns `text` as one argument for a shell: in quotes if it needs them.
pub(crate) fn argument(text: &str) -> String {
    let is_plain = |it: char| it.is_alphanumeric() || "/._-+,:@%=".contains(it);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Returns a bar of this length, in eighths of a column.
pub(crate) fn bar(eighths: usize) -> String {
    let rest = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    "█".repeat(eighths / 8) + rest
}

#[cfg(test)]
mod tests {
    use super::{argument, count, grouped};

    #[test]
    fn a_shell_takes_an_argument_for_one() {
        assert_eq!(argument("a/b-1.svg"), "a/b-1.svg");
        assert_eq!(argument("a b"), "'a b'");
        assert_eq!(argument("it's"), r"'it'\''s'");
        assert_eq!(argument(""), "''");
    }

    #[test]
    fn thousands_are_set_apart() {
        let groups = [0, 999, 1000, 123_456, 1_234_567].map(grouped);
        assert_eq!(groups, ["0", "999", "1,000", "123,456", "1,234,567"]);
        assert_eq!(count(1, "key", "keys"), "1 key");
        assert_eq!(count(2000, "key", "keys"), "2,000 keys");
    }
}
