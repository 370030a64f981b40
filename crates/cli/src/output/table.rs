//! Columns that are as wide as what is in them.

use unicode_width::UnicodeWidthStr;

use super::terminal::{Style, Terminal};

/// Which side of a column its cells touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Text.
    Left,
    /// Numbers.
    Right,
}

/// A table with a head line.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

/// What stands between two columns, and before the first.
const GAP: &str = "  ";

impl Table {
    /// An empty table with these columns.
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row. Cells are shown as they are: escaped already, and without line breaks.
    pub(crate) fn push<const N: usize>(&mut self, cells: [String; N]) {
        debug_assert_eq!(N, self.columns.len());
        self.rows.push(cells.into());
    }

    /// The lines, each cut to the terminal's width. Where the last cell of a row has no room it
    /// stands below the row, on lines of its own.
    pub(crate) fn render(&self, terminal: &Terminal) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|index| {
                let cells = self.rows.iter().map(|row| row[index].width());
                cells
                    .chain([self.columns[index].0.width()])
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for ((cell, width), (_, align)) in cells.zip(&widths).zip(&self.columns) {
                let padding = " ".repeat(width - cell.width());
                line.push_str(GAP);
                match align {
                    Align::Left => line.extend([cell, &padding]),
                    Align::Right => line.extend([&padding, cell]),
                }
            }
            line.truncate(line.trim_end().len());
            line
        };
        let mut head = line(&mut self.columns.iter().map(|(name, _)| *name));
        if !terminal.fits(&head) {
            // The last cells stand below their rows.
            let others = &self.columns[..self.columns.len().saturating_sub(1)];
            head = line(&mut others.iter().map(|(name, _)| *name));
        }
        let mut text = terminal.paint(Style::Bold, &terminal.cut(&head));
        text.push('\n');
        // Below the second column.
        let indent = " ".repeat(2 * GAP.len() + widths.first().copied().unwrap_or(0));
        for row in &self.rows {
            let whole = line(&mut row.iter().map(String::as_str));
            if terminal.fits(&whole) {
                text += &whole;
                text.push('\n');
            } else if let Some((last, others)) = row.split_last() {
                text += &terminal.cut(&line(&mut others.iter().map(String::as_str)));
                text.push('\n');
                if !last.is_empty() {
                    text += &terminal.sentence(&indent, last);
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_by_the_width_they_are_shown_with() {
        let mut table = Table::new(&[
            ("NAME", Align::Left),
            ("CPU", Align::Right),
            ("LAST", Align::Left),
        ]);
        table.push(["日本".into(), "7".into(), "a".into()]);
        table.push(["e\u{301}".into(), "1234".into(), String::new()]);
        let pipe = Terminal::with_width(None);
        assert_eq!(
            table.render(&pipe),
            "  NAME   CPU  LAST\n  日本     7  a\n  e\u{301}     1234\n"
        );
        // A name whose cells stand below their rows is left out.
        let narrower = Terminal::with_width(Some(15));
        assert_eq!(
            table.render(&narrower),
            "  NAME   CPU\n  日本     7  a\n  e\u{301}     1234\n"
        );
        let narrow = Terminal::with_width(Some(10));
        assert_eq!(
            table.render(&narrow),
            "  NAME   …\n  日本   …\n        a\n  e\u{301}     1…\n"
        );
    }
}
