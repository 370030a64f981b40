//! Standard output: its width, colours, and escaping.

use std::env;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::libc;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Capabilities of standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terminal {
    /// Width in columns if standard output is a terminal. Lines in a pipe are never cut.
    pub(crate) width: Option<usize>,
    pub(crate) colours: bool,
}

/// Style of a text, if colours are supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Headings and names.
    Bold,
    Green,
    Red,
}

impl Terminal {
    pub(crate) fn of_stdout() -> Self {
        let is_terminal = io::stdout().is_terminal();
        let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        // https://no-color.org: any value that is not empty.
        let colours = is_terminal && !set("NO_COLOR") && env::var_os("TERM") != Some("dumb".into());
        // As ls(1) does. A pipe has no width, whatever a shell has exported.
        let given = env::var("COLUMNS").ok().and_then(|it| it.parse().ok());
        let given = given.filter(|width| is_terminal && *width > 0);
        Self {
            width: given.or_else(|| columns(io::stdout().as_fd())),
            colours,
        }
    }

    /// Creates a terminal without colours.
    pub(crate) fn with_width(width: Option<usize>) -> Self {
        Self {
            width,
            colours: false,
        }
    }

    /// Returns `text` in `style`, if colours are supported.
    pub(crate) fn paint(&self, style: Style, text: &str) -> String {
        if !self.colours || text.is_empty() {
            return text.to_owned();
        }
        // ECMA-48, "Select graphic rendition".
        let code = match style {
            Style::Bold => 1,
            Style::Red => 31,
            Style::Green => 32,
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// Returns true if lines have less room than this.
    pub(crate) fn is_narrower_than(&self, width: usize) -> bool {
        self.width.is_some_and(|own| own < width)
    }

    pub(crate) fn fits(&self, text: &str) -> bool {
        self.width.is_none_or(|width| text.width() <= width)
    }

    pub(crate) fn cut(&self, text: &str) -> String {
        match self.width {
            Some(width) => cut(text, width),
            None => text.to_owned(),
        }
    }

    /// Formats `head` and the `items`, separated by two spaces. On a terminal they are wrapped, with
    /// further lines starting below the first item.
    pub(crate) fn flow(&self, head: &str, items: &[String]) -> String {
        self.fill(head, items.iter().map(String::as_str), "  ", true)
    }

    /// Formats `head` and a sentence, wrapped like [`Self::flow`].
    pub(crate) fn sentence(&self, head: &str, sentence: &str) -> String {
        self.fill(head, sentence.split(' '), " ", true)
    }

    /// Like [`Self::sentence`], but cuts nothing: the terminal wraps a word that does not fit on a
    /// line.
    pub(crate) fn paragraph(&self, head: &str, sentence: &str) -> String {
        self.fill(head, sentence.split(' '), " ", false)
    }

    fn fill<'a>(
        &self,
        head: &str,
        items: impl Iterator<Item = &'a str>,
        gap: &str,
        may_cut: bool,
    ) -> String {
        let limit = self.width.unwrap_or(usize::MAX);
        let indent = head.width();
        let mut text = head.to_owned();
        let mut used = indent;
        for (index, item) in items.enumerate() {
            let item = if may_cut {
                &cut(item, limit.saturating_sub(indent).max(1))
            } else {
                item
            };
            if index > 0 && used + gap.len() + item.width() > limit {
                text.push('\n');
                text.extend(std::iter::repeat_n(' ', indent));
                used = indent;
            } else if index > 0 {
                text.push_str(gap);
                used += gap.len();
            }
            used += item.width();
            text.push_str(item);
        }
        text.push('\n');
        text
    }
}

/// Returns the width of a terminal, if `file` is one and knows it.
pub(crate) fn columns(file: BorrowedFd<'_>) -> Option<usize> {
    let mut size = libc::winsize {
        ws_row: 0,
        ws_col: 0,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: TIOCGWINSZ writes one winsize to its argument (ioctl_tty(2)), and `size`, which nothing
    // else uses during the call, is one.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    // A terminal without a known size reports 0.
    (answer == 0 && size.ws_col > 0).then(|| size.ws_col.into())
}

/// Writes all of `text` to standard output, see [`write`].
pub(crate) fn print(text: &str) -> io::Result<()> {
    write(|stdout| stdout.write_all(text.as_bytes()))
}

/// Lets `work` write to standard output. If the reader closes the pipe (`| head`), writing ends
/// without an error.
pub(crate) fn write(work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    // Bypasses `Stdout`, whose own buffer would be written at exit even if this failed.
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut stdout = BufWriter::new(stdout);
    let written = work(&mut stdout).and_then(|()| stdout.flush());
    // Data that could not be written is not retried on drop.
    let _ = stdout.into_parts();
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes another process's output to standard output. Returns false if standard output was closed.
pub(crate) fn pass_on(bytes: &[u8]) -> io::Result<bool> {
    let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    match (&stdout).write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Prints a message to standard error, and the hint below it.
pub(crate) fn complain(message: &str, hint: Option<&str>) {
    complain_with(message, hint);
}

/// Prints a message to standard error, and each hint on a line of its own below it.
pub(crate) fn complain_with<'h>(message: &str, hints: impl IntoIterator<Item = &'h str>) {
    let mut text = format!("otelctx: {}\n", escape(message));
    for hint in hints {
        text.push_str(&format!("  {}\n", escape(hint)));
    }
    // There is nowhere to report a failure.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Returns the part of `text` that fits into `width` columns, with `…` if it is cut.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut used = 1;
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > width {
            break;
        }
        short.push(character);
    }
    short.push('…');
    short
}

/// Returns whether a character could affect a terminal: C0, DEL and C1 controls, line and paragraph
/// separators, and bidirectional formatting (Unicode 15, section 23.2: one name could look like
/// another).
pub(crate) fn is_control(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// Returns `text` with every control character as Rust writes it: `\n`, `\u{1b}`.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_control(character) {
            escaped.extend(character.escape_debug());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_drive_a_terminal_is_escaped() {
        assert_eq!(escape("Bücher\t\x1b[31m"), "Bücher\\t\\u{1b}[31m");
        assert_eq!(
            escape("a\x7fb\u{9b}c\u{202e}d"),
            "a\\u{7f}b\\u{9b}c\\u{202e}d"
        );
        assert_eq!(
            escape("C:\\x \"y\" 日本 e\u{301}"),
            "C:\\x \"y\" 日本 e\u{301}"
        );
    }

    #[test]
    fn text_is_cut_by_columns_and_not_by_characters() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("日本語", 6), "日本語");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("日本語", 4), "日…");
    }

    #[test]
    fn items_flow_below_the_first_one() {
        let items = ["a=1".to_owned(), "b=22".to_owned(), "c=333".to_owned()];
        let narrow = Terminal::with_width(Some(12));
        assert_eq!(narrow.flow("x  ", &items), "x  a=1  b=22\n   c=333\n");
        let pipe = Terminal::with_width(None);
        assert_eq!(pipe.flow("x  ", &items), "x  a=1  b=22  c=333\n");
        let hint = "Add:  -Wl,--export it";
        assert_eq!(narrow.sentence("  ", hint), "  Add: \n  -Wl,--exp…\n  it\n");
        assert_eq!(
            narrow.paragraph("  ", hint),
            "  Add: \n  -Wl,--export\n  it\n"
        );
    }
}
