//! Encodings of values (<https://parquet.apache.org/docs/file-format/data-pages/encodings>).

use super::thrift::{varint, zigzag};

/// Number of values that are packed together.
const PACKED: usize = 8;

/// Returns the number of bits of values up to `max`.
pub(super) fn bits(max: u32) -> u8 {
    (u32::BITS - max.leading_zeros()) as u8
}

/// Levels of values, as runs of equal ones.
#[derive(Debug, Default)]
pub(super) struct Levels {
    bytes: Vec<u8>,
    level: u8,
    count: u64,
}

impl Levels {
    /// Adds a level, 0 or 1, this number of times.
    pub(super) fn push(&mut self, level: u8, count: usize) {
        if self.level != level && count > 0 {
            self.end_run();
            self.level = level;
        }
        self.count += count as u64;
    }

    fn end_run(&mut self) {
        if self.count > 0 {
            varint(self.count << 1, &mut self.bytes);
            self.bytes.push(self.level);
            self.count = 0;
        }
    }

    /// Moves all levels to a page, with their size before them.
    pub(super) fn drain(&mut self, page: &mut Vec<u8>) {
        self.end_run();
        page.extend_from_slice(&(self.bytes.len() as u32).to_le_bytes());
        page.append(&mut self.bytes);
    }
}

/// Appends indexes of this width as runs of equal ones, and packed where they differ.
pub(super) fn indexes(values: &[u32], width: u8, page: &mut Vec<u8>) {
    page.push(width);
    let mut packed = 0;
    let mut at = 0;
    while at < values.len() {
        let run = values[at..].iter().take_while(|it| **it == values[at]);
        let run = run.count();
        // A run starts where whole groups of packed values end.
        if run >= PACKED && (at - packed).is_multiple_of(PACKED) {
            pack(&values[packed..at], width, page);
            varint((run as u64) << 1, page);
            page.extend_from_slice(&values[at].to_le_bytes()[..width.div_ceil(8).into()]);
            at += run;
            packed = at;
        } else {
            // Up to the next place where a run may start.
            let rest = PACKED - (at - packed) % PACKED;
            at += if run >= PACKED + rest {
                rest
            } else {
                run.max(1)
            };
        }
    }
    pack(&values[packed..], width, page);
}

/// Appends a run of packed indexes, the last one filled up with zeros.
pub(super) fn pack(values: &[u32], width: u8, page: &mut Vec<u8>) {
    if values.is_empty() {
        return;
    }
    let groups = values.len().div_ceil(PACKED);
    varint((groups as u64) << 1 | 1, page);
    let end = page.len() + groups * usize::from(width);
    match width {
        // What has whole bytes is most of a recording's values.
        8 => page.extend(values.iter().map(|it| *it as u8)),
        16 => page.extend(values.iter().flat_map(|it| (*it as u16).to_le_bytes())),
        _ => pack_bits(values.iter().map(|it| u64::from(*it)), width, page),
    }
    page.resize(end, 0);
}

/// Appends the lowest bits of values, the first value's lowest bit first.
fn pack_bits(values: impl Iterator<Item = u64>, width: u8, page: &mut Vec<u8>) {
    let (mut word, mut used) = (0_u128, 0);
    for value in values {
        word |= u128::from(value) << used;
        used += u32::from(width);
        while used >= 8 {
            page.push(word as u8);
            word >>= 8;
            used -= 8;
        }
    }
    if used > 0 {
        page.push(word as u8);
    }
}

/// Appends differences of numbers (`DELTA_BINARY_PACKED`).
pub(super) fn deltas(values: &[i64], page: &mut Vec<u8>) {
    const BLOCK: usize = 128;
    const PARTS: usize = 4;
    varint(BLOCK as u64, page);
    varint(PARTS as u64, page);
    varint(values.len() as u64, page);
    varint(zigzag(values.first().copied().unwrap_or(0)), page);
    let deltas: Vec<i64> = values
        .windows(2)
        .map(|pair| pair[1].wrapping_sub(pair[0]))
        .collect();
    for block in deltas.chunks(BLOCK) {
        let least = block.iter().copied().min().unwrap_or(0);
        varint(zigzag(least), page);
        let above = |it: &i64| it.wrapping_sub(least) as u64;
        let parts: Vec<&[i64]> = block.chunks(BLOCK / PARTS).collect();
        let widths: Vec<u8> = parts
            .iter()
            .map(|part| part.iter().map(above).max().unwrap_or(0))
            .map(|most| (u64::BITS - most.leading_zeros()) as u8)
            .collect();
        page.extend((0..PARTS).map(|part| widths.get(part).copied().unwrap_or(0)));
        for (part, width) in parts.iter().zip(widths) {
            let end = page.len() + BLOCK / PARTS * usize::from(width) / 8;
            pack_bits(part.iter().map(above), width, page);
            page.resize(end, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes what [`indexes`] writes, by the specification.
    fn decoded(bytes: &[u8], count: usize) -> Vec<u32> {
        let width = usize::from(bytes[0]);
        let mut values = Vec::new();
        let mut at = 1;
        while at < bytes.len() {
            let (mut head, mut shift) = (0_u64, 0);
            loop {
                head |= u64::from(bytes[at] & 0x7f) << shift;
                shift += 7;
                at += 1;
                if bytes[at - 1] < 0x80 {
                    break;
                }
            }
            let bit = |from: usize| bytes[from / 8] >> (from % 8) & 1;
            let number = |from: usize| (0..width).map(|it| u32::from(bit(from + it)) << it).sum();
            if head & 1 == 1 {
                let packed = (0..head as usize >> 1 << 3).map(|it| number(at * 8 + it * width));
                values.extend(packed);
                at += (head as usize >> 1) * width;
            } else {
                values.extend(std::iter::repeat_n::<u32>(
                    number(at * 8),
                    head as usize >> 1,
                ));
                at += width.div_ceil(8);
            }
        }
        values.truncate(count);
        values
    }

    #[test]
    fn indexes_are_what_they_were_whatever_runs_they_have() {
        let mut seed = 1_u64;
        for width in [1, 2, 7, 8, 9, 16, 17, 24, 31] {
            for _ in 0..50 {
                let mut values: Vec<u32> = Vec::new();
                while values.len() < 300 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let run = [1, 1, 3, 8, 9, 30][(seed >> 33) as usize % 6];
                    let value = (seed >> 13) as u32 & ((1 << width) - 1);
                    values.extend(std::iter::repeat_n(value, run));
                }
                let mut page = Vec::new();
                indexes(&values, width, &mut page);
                assert_eq!(decoded(&page, values.len()), values, "{width}");
                page = vec![width];
                pack(&values, width, &mut page);
                assert_eq!(decoded(&page, values.len()), values, "{width}");
            }
        }
        let mut page = Vec::new();
        indexes(&[0; 1000], 0, &mut page);
        assert_eq!(page, [0, 0xd0, 0x0f]);
    }

    /// The second example of the specification.
    #[test]
    fn deltas_have_their_least_and_their_width() {
        let mut page = Vec::new();
        deltas(&[7, 5, 3, 1, 2, 3, 4, 5], &mut page);
        let expected = [
            0x80, 1, 4, 8, 14, 3, 2, 0, 0, 0, 0xc0, 0x3f, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(page, expected);
        page.clear();
        deltas(&[i64::MIN, i64::MAX], &mut page);
        assert!(page.len() < 30);
        page.clear();
        deltas(&[], &mut page);
        assert_eq!(page, [0x80, 1, 4, 0, 0]);
    }

    #[test]
    fn levels_are_runs() {
        let mut levels = Levels::default();
        levels.push(0, 1);
        levels.push(1, 29);
        levels.push(0, 1);
        let mut page = Vec::new();
        levels.drain(&mut page);
        assert_eq!(page, [6, 0, 0, 0, 2, 0, 58, 1, 2, 0]);
        page.clear();
        levels.drain(&mut page);
        assert_eq!(page, [0; 4]);
    }
}
