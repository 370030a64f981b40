//! Rows: the address from which on a rule holds.
//!
//! A row takes four bytes: the low half of its address and the index of its rule, in two arrays. A
//! third array has the number of the first row of each page of 64 KiB. Each page in which a rule
//! holds at its first byte begins with a row for it, so that a search needs one page.

use crate::rule::{GAP, RuleIndex};

/// Bytes of code that one entry of the page index covers.
pub const PAGE_SIZE: u64 = 1 << 16;
/// Maximum distance of a file's lowest and highest code, in bytes: 65,536 pages.
pub(crate) const MAX_CODE: u64 = 1 << 32;

/// The rows of one file, by the addresses of its program headers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rows {
    first_page: u64,
    /// The first row of each page, then the number of rows.
    pages: Box<[u32]>,
    low: Box<[u16]>,
    rules: Box<[RuleIndex]>,
}

impl Rows {
    /// The index of the rule that holds at an address.
    pub fn rule_at(&self, address: u64) -> RuleIndex {
        let page = (address / PAGE_SIZE).checked_sub(self.first_page);
        let page = page.and_then(|page| usize::try_from(page).ok());
        let Some(rows) = page.and_then(|page| self.page(page)) else {
            return GAP;
        };
        let low = (address % PAGE_SIZE) as u16;
        let behind = self.low[rows.clone()].partition_point(|start| *start <= low);
        match behind {
            0 => GAP,
            _ => self.rules[rows.start + behind - 1],
        }
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.low.is_empty()
    }

    /// Number of pages.
    pub fn pages(&self) -> usize {
        self.pages.len().saturating_sub(1)
    }

    /// Number of the first page: its address divided by [`PAGE_SIZE`].
    pub fn first_page(&self) -> u64 {
        self.first_page
    }

    /// The rows of a page, counted from the first one.
    pub fn page(&self, page: usize) -> Option<std::ops::Range<usize>> {
        let end = self.pages.get(page.checked_add(1)?)?;
        Some(self.pages[page] as usize..*end as usize)
    }

    /// The low halves of the rows' addresses.
    pub fn low(&self) -> &[u16] {
        &self.low
    }

    /// The indexes of the rows' rules.
    pub fn rules(&self) -> &[RuleIndex] {
        &self.rules
    }

    /// Bytes that rows and page index take.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.pages) + size_of_val(&*self.low) + size_of_val(&*self.rules)
    }

    /// Address and rule of every row, in address order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, RuleIndex)> {
        (0..self.pages()).flat_map(move |page| {
            let base = (self.first_page + page as u64) * PAGE_SIZE;
            let rows = self.page(page).unwrap_or_default();
            rows.map(move |row| (base + u64::from(self.low[row]), self.rules[row]))
        })
    }
}

/// Builds [`Rows`] in address order.
#[derive(Debug)]
pub(crate) struct Builder {
    first_page: u64,
    pages: Vec<u32>,
    low: Vec<u16>,
    rules: Vec<RuleIndex>,
    /// The rule that holds after the last row.
    current: RuleIndex,
}

impl Builder {
    /// Starts at `start`. The caller limits the distance to [`MAX_CODE`].
    pub(crate) fn new(start: u64) -> Self {
        Builder {
            first_page: start / PAGE_SIZE,
            pages: vec![0],
            low: Vec::new(),
            rules: Vec::new(),
            current: GAP,
        }
    }

    /// Adds a rule that holds from `address` on. Addresses must not descend.
    pub(crate) fn push(&mut self, address: u64, rule: RuleIndex) {
        if rule == self.current {
            return;
        }
        let low = (address % PAGE_SIZE) as u16;
        self.advance(address / PAGE_SIZE, low == 0);
        if self.is_in_page() && self.low.last() == Some(&low) {
            // The row before holds for no byte.
            self.low.pop();
            self.rules.pop();
            // The previous row of this page holds again.
            let last = self.rules.last().filter(|_| self.is_in_page());
            self.current = last.copied().unwrap_or(GAP);
        }
        if rule != self.current {
            self.low.push(low);
            self.rules.push(rule);
            self.current = rule;
        }
    }

    fn is_in_page(&self) -> bool {
        self.low.len() > self.pages.last().map_or(0, |first| *first as usize)
    }

    /// Starts pages up to number `page`, each with a row of the current rule, but for the last one
    /// if that is `replaced` at its first byte.
    fn advance(&mut self, page: u64, replaced: bool) {
        let page = page.saturating_sub(self.first_page) as usize;
        while self.pages.len() <= page {
            self.pages.push(self.low.len() as u32);
            let is_last = self.pages.len() > page;
            if self.current != GAP && !(is_last && replaced) {
                self.low.push(0);
                self.rules.push(self.current);
            }
            if is_last && replaced {
                self.current = GAP;
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.low.len()
    }

    pub(crate) fn finish(mut self) -> Rows {
        self.pages.push(self.low.len() as u32);
        Rows {
            first_page: self.first_page,
            pages: self.pages.into(),
            low: self.low.into(),
            rules: self.rules.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(start: u64, list: &[(u64, RuleIndex)]) -> Rows {
        let mut builder = Builder::new(start);
        for (address, rule) in list {
            builder.push(*address, *rule);
        }
        builder.finish()
    }

    /// Every address in reach has the rule of the last entry at or below it.
    fn check(start: u64, list: &[(u64, RuleIndex)]) -> Rows {
        let rows = rows(start, list);
        let (first, last) = (list[0].0, list[list.len() - 1].0);
        let mut probes = vec![
            0,
            first.wrapping_sub(1),
            last + 1,
            last + PAGE_SIZE,
            u64::MAX,
        ];
        probes.extend(list.iter().flat_map(|(at, _)| [at - 1, *at, at + 1]));
        probes.extend((first / PAGE_SIZE..=last / PAGE_SIZE).map(|page| page * PAGE_SIZE));
        for address in probes {
            let before = list.iter().rev().find(|(at, _)| *at <= address);
            let expected = before.map_or(GAP, |(_, rule)| *rule);
            assert_eq!(rows.rule_at(address), expected, "at {address:#x}: {rows:?}");
        }
        rows
    }

    #[test]
    fn equal_neighbours_are_one_row() {
        let rows = check(
            0x1000,
            &[(0x1000, 3), (0x1010, 3), (0x1020, 4), (0x1030, GAP)],
        );
        assert_eq!(rows.len(), 3);
        assert_eq!(
            rows.iter().collect::<Vec<_>>(),
            [(0x1000, 3), (0x1020, 4), (0x1030, GAP)]
        );
    }

    #[test]
    fn of_rows_at_one_address_the_last_holds() {
        let rows = check(
            0x1000,
            &[(0x1000, 3), (0x1010, 4), (0x1010, 3), (0x1020, GAP)],
        );
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn a_page_begins_with_the_rule_that_holds_there() {
        // A function of three pages, then one that starts with a page, then none.
        let list = [
            (0x1_8000, 3),
            (0x4_8000, 4),
            (0x6_0000, 5),
            (0x6_0010, GAP),
            (0x9_0010, 6),
            (0x9_0011, GAP),
        ];
        let rows = check(0x1_0000, &list);
        let of_pages: Vec<_> = (0..rows.pages())
            .map(|page| rows.page(page).unwrap().len())
            .collect();
        assert_eq!(of_pages, [1, 1, 1, 2, 1, 2, 0, 0, 2]);
        check(0x6_0000, &[(0x6_0000, 1), (0x7_0000, GAP)]);
        check(
            0x6_0000,
            &[(0x6_fff0, 1), (0x7_0000, 2), (0x7_0000, 1), (0x7_0001, GAP)],
        );
    }

    #[test]
    fn without_rows_all_is_a_gap() {
        assert_eq!(Rows::default().rule_at(0), GAP);
        assert_eq!(rows(0x1000, &[]).rule_at(0x1000), GAP);
    }
}
