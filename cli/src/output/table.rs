//! Tables whose columns are as wide as their contents.

use std::io::{self, Write};

use unicode_width::UnicodeWidthStr;

use super::terminal::{Style, Terminal};

/// Alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table with a heading line.
#[derive(Debug)]
pub(crate) struct Table<const N: usize> {
    columns: [(&'static str, Align); N],
    widths: [usize; N],
    hidden: [bool; N],
}

/// Text between two columns, and before the first one.
const GAP: &str = "  ";

/// Maximum width of a column. A longer text, which is probably an error or hostile, is shown in
/// full and shifts the rest of its own row, but does not pad all other rows.
pub(crate) const MAX_WIDTH: usize = 160;

impl<const N: usize> Table<N> {
    /// Creates a table with columns as wide as their headings.
    pub(crate) fn new(columns: [(&'static str, Align); N]) -> Self {
        let widths = columns.map(|(head, _)| head.width());
        Self {
            columns,
            widths,
            hidden: [false; N],
        }
    }

    /// Leaves out columns that have nothing to show.
    pub(crate) fn hide(mut self, hidden: [bool; N]) -> Self {
        self.hidden = hidden;
        self
    }

    /// Sets minimum widths, for rows that are not known yet.
    pub(crate) fn at_least(mut self, widths: [usize; N]) -> Self {
        for (width, least) in self.widths.iter_mut().zip(widths) {
            *width = least.max(*width);
        }
        self
    }

    /// Widens the columns for a row.
    pub(crate) fn fit(&mut self, cells: &[String; N]) {
        for (width, cell) in self.widths.iter_mut().zip(cells) {
            let wanted = cell.width();
            if wanted <= MAX_WIDTH {
                *width = wanted.max(*width);
            }
        }
    }

    /// Formats the heading line, cut to the terminal's width.
    pub(crate) fn head(&self, terminal: &Terminal) -> String {
        let names = self.columns.map(|(name, _)| name);
        let mut head = self.line(&names);
        if !terminal.fits(&head) {
            // The last cells are below their rows.
            head = self.line(&names[..N.saturating_sub(1)]);
        }
        terminal.paint(Style::Bold, &terminal.cut(&head)) + "\n"
    }

    /// Formats a row, cut to the terminal's width. If its last cell does not fit, it continues below
    /// the row. Cells must be escaped and without line breaks.
    pub(crate) fn row(&self, cells: &[String; N], terminal: &Terminal) -> String {
        let cells = cells.each_ref().map(String::as_str);
        let mut text = self.line(&cells);
        if terminal.fits(&text) {
            text.push('\n');
        } else if let Some((last, others)) = cells.split_last() {
            text = terminal.cut(&self.line(others));
            text.push('\n');
            if !last.is_empty() {
                // Below the second column.
                let indent = " ".repeat(2 * GAP.len() + self.widths[0]);
                text += &terminal.sentence(&indent, last);
            }
        }
        text
    }

    fn line(&self, cells: &[&str]) -> String {
        let mut line = String::new();
        let columns = cells.iter().zip(self.widths).zip(self.columns);
        for (((cell, width), (_, align)), is_hidden) in columns.zip(self.hidden) {
            if is_hidden {
                continue;
            }
            let padding = " ".repeat(width.saturating_sub(cell.width()));
            line.push_str(GAP);
            match align {
                Align::Left => line.extend([cell, padding.as_str()]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        line.truncate(line.trim_end().len());
        line
    }

    /// Writes the headings and all `rows`. `rows` is run twice, the first time to compute widths,
    /// so that a table takes no more memory than one row.
    pub(crate) fn write(
        mut self,
        rows: impl Iterator<Item = [String; N]> + Clone,
        terminal: &Terminal,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        rows.clone().for_each(|cells| self.fit(&cells));
        out.write_all(self.head(terminal).as_bytes())?;
        for cells in rows {
            out.write_all(self.row(&cells, terminal).as_bytes())?;
        }
        Ok(())
    }

    pub(crate) fn render(
        self,
        rows: impl Iterator<Item = [String; N]> + Clone,
        terminal: &Terminal,
    ) -> String {
        let mut text = Vec::new();
        // Writing to memory does not fail.
        let _ = self.write(rows, terminal, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_the_width_they_are_shown_with() {
        let render = |width: Option<usize>| {
            let table = Table::new([
                ("NAME", Align::Left),
                ("CPU", Align::Right),
                ("LAST", Align::Left),
            ]);
            let rows: [[String; 3]; 2] = [
                ["日本".into(), "7".into(), "a".into()],
                ["e\u{301}".into(), "1234".into(), String::new()],
            ];
            table.render(rows.into_iter(), &Terminal::with_width(width))
        };
        assert_eq!(
            render(None),
            "  NAME   CPU  LAST\n  日本     7  a\n  e\u{301}     1234\n"
        );
        // The heading of cells that are below their rows is omitted.
        assert_eq!(
            render(Some(15)),
            "  NAME   CPU\n  日本     7  a\n  e\u{301}     1234\n"
        );
        assert_eq!(
            render(Some(10)),
            "  NAME   …\n  日本   …\n        a\n  e\u{301}     1…\n"
        );
    }

    #[test]
    fn rows_that_come_later_find_their_columns() {
        let mut table = Table::new([("A", Align::Left), ("B", Align::Left)]).at_least([3, 0]);
        let terminal = Terminal::with_width(None);
        assert_eq!(table.head(&terminal), "  A    B\n");
        let row = ["123".to_owned(), "4".to_owned()];
        table.fit(&row);
        assert_eq!(table.row(&row, &terminal), "  123  4\n");
    }

    #[test]
    fn one_enormous_cell_does_not_pad_the_other_rows() {
        let table = Table::new([("A", Align::Left), ("B", Align::Left)]);
        let long = "x".repeat(MAX_WIDTH + 1);
        let rows: [[String; 2]; 2] = [[long.clone(), "1".into()], ["y".into(), "2".into()]];
        let text = table.render(rows.into_iter(), &Terminal::with_width(None));
        assert_eq!(text, format!("  A  B\n  {long}  1\n  y  2\n"));
    }

    #[test]
    fn a_hidden_column_takes_no_room() {
        let table = Table::new(["A", "B", "C"].map(|name| (name, Align::Left)));
        let rows = [["1", "22", "3"].map(str::to_owned)];
        let table = table.hide([false, true, false]);
        let text = table.render(rows.into_iter(), &Terminal::with_width(None));
        assert_eq!(text, "  A  C\n  1  3\n");
    }
}
