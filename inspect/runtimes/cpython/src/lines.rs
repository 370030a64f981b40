//! Tables of lines.

use crate::layout::LineFormat;

/// Bytes of an instruction, from 3.6 on.
const INSTRUCTION: i64 = 2;

/// The line of the instruction at offset `at` in its code, in bytes; 0 if it has none. A frame that has
/// not started has a negative offset. Instructions before the first one with a line, which for example
/// make the function's cells, have the function's first line.
pub(crate) fn line(format: LineFormat, table: &[u8], first: i32, at: i64) -> u32 {
    let line = match format {
        _ if at < 0 => Some(i64::from(first)),
        LineFormat::Unsigned => increments(table, first, at, i64::from),
        LineFormat::Signed => increments(table, first, at, signed),
        LineFormat::Ranges => ranges(table, first, at),
        LineFormat::Locations => locations(table, first, at),
    };
    line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0)
}

fn signed(byte: u8) -> i64 {
    byte.cast_signed().into()
}

/// `Objects/lnotab_notes.txt` up to 3.9.
fn increments(table: &[u8], first: i32, at: i64, of_line: fn(u8) -> i64) -> Option<i64> {
    let (mut address, mut line) = (0, i64::from(first));
    for pair in table.chunks_exact(2) {
        address += i64::from(pair[0]);
        if address > at {
            break;
        }
        line += of_line(pair[1]);
    }
    Some(line)
}

/// `Objects/lnotab_notes.txt` of 3.10.
fn ranges(table: &[u8], first: i32, at: i64) -> Option<i64> {
    const NO_LINE: i64 = -128;
    let (mut end, mut line) = (0, i64::from(first));
    let mut is_before_lines = true;
    for pair in table.chunks_exact(2) {
        end += i64::from(pair[0]);
        let increment = signed(pair[1]);
        let has_line = increment != NO_LINE;
        if has_line {
            line += increment;
            is_before_lines = false;
        }
        if at < end {
            return (has_line || is_before_lines).then_some(line);
        }
    }
    None
}

/// `Objects/locations.md` of 3.11.
fn locations(table: &[u8], first: i32, at: i64) -> Option<i64> {
    let (mut end, mut line) = (0, i64::from(first));
    let mut bytes = table.iter().copied();
    let mut is_before_lines = true;
    while let Some(head) = bytes.next() {
        end += i64::from((head & 7) + 1) * INSTRUCTION;
        let mut has_line = true;
        match (head >> 3) & 15 {
            15 => has_line = false,
            14 => {
                line = line.wrapping_add(signed_number(&mut bytes)?);
                for _ in 0..3 {
                    number(&mut bytes)?;
                }
            }
            13 => line = line.wrapping_add(signed_number(&mut bytes)?),
            code @ 10..=12 => {
                line = line.wrapping_add(i64::from(code) - 10);
                bytes.next()?;
                bytes.next()?;
            }
            _ => {
                bytes.next()?;
            }
        }
        is_before_lines &= !has_line;
        if at < end {
            return (has_line || is_before_lines).then_some(line);
        }
    }
    None
}

/// Six bits per byte, the lowest first; another byte follows while bit 6 is set.
fn number(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..).step_by(6) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 63).checked_shl(shift)?;
        if byte & 64 == 0 {
            break;
        }
    }
    Some(value)
}

/// The sign is in the lowest bit.
fn signed_number(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    let value = number(bytes)?;
    let size = (value >> 1).cast_signed();
    Some(if value & 1 == 0 { size } else { -size })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables like those of six lines of code, of which three are empty.
    #[test]
    fn instructions_have_the_lines_that_dis_shows() {
        let lines = |format, table: &[u8], first, offsets: &[i64]| -> Vec<u32> {
            let line = |at: &i64| line(format, table, first, *at);
            offsets.iter().map(line).collect()
        };
        let table = [4, 1, 4, 4];
        for format in [LineFormat::Unsigned, LineFormat::Signed] {
            let found = lines(format, &table, 1, &[-1, 0, 2, 4, 6, 8, 10]);
            assert_eq!(found, [1, 1, 1, 2, 2, 6, 6]);
        }
        // The line goes back by one.
        assert_eq!(lines(LineFormat::Signed, &[2, 0xff], 7, &[0, 2]), [7, 6]);
        let table = [4, 0, 4, 1, 2, 0x80, 6, 4];
        let found = lines(LineFormat::Ranges, &table, 1, &[-2, 0, 4, 8, 10, 16]);
        assert_eq!(found, [1, 1, 2, 0, 6, 0]);
        // RESUME in line 0, a one-line form, no line, a long form, one without columns.
        let table = [
            0x80 | 13 << 3,
            1 << 1 | 1,
            0x80 | 11 << 3 | 1,
            0,
            5,
            0x80 | 15 << 3,
            0x80 | 14 << 3 | 1,
            64 | 2,
            1,
            0,
            1,
            1,
            0x80 | 2 << 3,
            0,
        ];
        let found = lines(
            LineFormat::Locations,
            &table,
            1,
            &[0, 2, 4, 6, 8, 10, 12, 14],
        );
        assert_eq!(found, [0, 1, 1, 0, 34, 34, 34, 0]);
    }

    #[test]
    fn instructions_before_the_first_line_are_in_the_line_of_the_function() {
        let lines = |format, table: &[u8], offsets: &[i64]| -> Vec<u32> {
            offsets
                .iter()
                .map(|at| line(format, table, 7, *at))
                .collect()
        };
        let found = lines(LineFormat::Ranges, &[2, 0x80, 2, 1, 2, 0x80], &[0, 2, 4]);
        assert_eq!(found, [7, 8, 0]);
        // No line twice (MAKE_CELL, COPY_FREE_VARS), a line further, and no line.
        let nowhere = 0x80 | 15 << 3;
        let table = [nowhere, nowhere, 0x80 | 11 << 3, 0, 5, nowhere];
        let found = lines(LineFormat::Locations, &table, &[0, 2, 4, 6]);
        assert_eq!(found, [7, 7, 8, 0]);
    }

    #[test]
    fn malformed_tables_have_no_lines() {
        let endless = [
            0xf0, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 1,
        ];
        assert_eq!(line(LineFormat::Locations, &endless, 1, 0), 0);
        assert_eq!(line(LineFormat::Locations, &[0xf0], 1, 0), 0);
        assert_eq!(line(LineFormat::Signed, &[0, 0x80], 1, 0), 0);
        assert_eq!(line(LineFormat::Locations, &[], 1, 100), 0);
    }
}
