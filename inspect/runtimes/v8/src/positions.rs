//! Tables of positions: of code offsets in scripts (src/codegen/source-position-table.h in V8).

/// Maximum size of a table, in bytes.
pub(crate) const MAX_TABLE: usize = 4 << 20;

/// A position, which the table has as one number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position(i64);

impl Position {
    pub(crate) fn of(value: i64) -> Self {
        Position(value)
    }

    /// The position in the function's script. `None` if there is none.
    pub(crate) fn in_script(self) -> Option<u32> {
        let is_external = self.0 & 1 != 0;
        let position = (self.0 >> 1 & 0x3fff_ffff) as u32;
        position.checked_sub(1).filter(|_| !is_external)
    }

    /// The index of the call that was inlined there. `None` if it is in the function itself.
    pub(crate) fn inlined(self) -> Option<u64> {
        let number = (self.0 >> 31 & 0xffff) as u64;
        number.checked_sub(1)
    }
}

/// Returns the position of a code offset: that of the last entry that is not behind it. `None` if the table has none, or is
/// damaged.
pub(crate) fn position_at(table: &[u8], offset: i64, has_statements: bool) -> Option<Position> {
    let mut bytes = Bytes(table);
    // The entry of a function comes first, before its code.
    let (mut code, mut value) = (-1_i64, 0_i64);
    let mut found = None;
    while !bytes.0.is_empty() {
        let distance = if has_statements {
            i64::try_from(bytes.unsigned()? >> 2).ok()?
        } else {
            // A negative one is a position that is no statement.
            let distance = bytes.signed()?;
            if distance < 0 { !distance } else { distance }
        };
        code = code.checked_add(distance)?;
        if code > offset {
            break;
        }
        value = value.checked_add(bytes.signed()?)?;
        found = Some(Position(value));
    }
    found
}

/// Numbers in groups of seven bits, the lowest first.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Bytes<'_> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    pub(crate) fn unsigned(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0_u64, 0);
        loop {
            let byte = self.byte()?;
            if shift > 63 {
                return None;
            }
            value |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    /// The lowest bit is the sign.
    pub(crate) fn signed(&mut self) -> Option<i64> {
        let value = self.unsigned()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three entries: code offsets 0, 5 and 300, positions 7, 4 and 1000.
    #[test]
    fn the_last_entry_before_an_offset_counts() {
        // Distances 1, 5 and 295; the second is no statement, so that it is -6.
        let table = [2, 14, 11, 5, 0xce, 0x04, 0xc8, 0x0f];
        let at = |offset| position_at(&table, offset, false).map(|it| it.0);
        assert_eq!(at(-1), None);
        assert_eq!([at(0), at(4)], [Some(7), Some(7)]);
        assert_eq!([at(5), at(299)], [Some(4), Some(4)]);
        assert_eq!([at(300), at(i64::MAX)], [Some(1000), Some(1000)]);
        // The same with two more bits in the distances.
        let table = [1 << 2 | 3, 14, 5 << 2 | 2, 5, 0x9f, 0x09, 0xc8, 0x0f];
        let at = |offset| position_at(&table, offset, true).map(|it| it.0);
        assert_eq!([at(4), at(5)], [Some(7), Some(4)]);
        assert_eq!(at(300), Some(1000));
    }

    #[test]
    fn a_damaged_table_has_no_position() {
        assert_eq!(position_at(&[], 5, false), None);
        for has_statements in [false, true] {
            assert_eq!(position_at(&[0x80], 5, has_statements), None);
            assert_eq!(position_at(&[0xff; 40], 5, has_statements), None);
            assert_eq!(position_at(&[4], i64::MAX, has_statements), None);
        }
    }

    #[test]
    fn a_position_has_the_place_in_its_script_and_the_inlined_call() {
        let position = Position(3 << 31 | 43 << 1);
        assert_eq!(position.in_script(), Some(42));
        assert_eq!(position.inlined(), Some(2));
        let outside = Position(0);
        assert_eq!((outside.in_script(), outside.inlined()), (None, None));
        assert_eq!(Position(1 | 43 << 1).in_script(), None);
    }
}
