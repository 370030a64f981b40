//! Thrift's compact protocol, in which Parquet's headers are written
//! (<https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md>).

/// Types of fields and of lists' elements.
const TRUE: u8 = 1;
const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// Writes a struct with its fields.
#[derive(Debug, Default)]
pub(super) struct Thrift {
    bytes: Vec<u8>,
    /// The last field's ID in each of the open structs.
    last: Vec<i16>,
}

/// Appends a number in groups of seven bits.
pub(super) fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 1 << 7 {
        out.push(number as u8 | 1 << 7);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Maps numbers of small size to small numbers.
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

impl Thrift {
    /// Returns the bytes of a struct with these fields.
    pub(super) fn of(fields: impl FnOnce(&mut Self)) -> Vec<u8> {
        let mut thrift = Self::default();
        thrift.fields(fields);
        thrift.bytes
    }

    fn fields(&mut self, fields: impl FnOnce(&mut Self)) {
        self.last.push(0);
        fields(self);
        self.last.pop();
        self.bytes.push(0);
    }

    fn head(&mut self, id: i16, kind: u8) {
        // Fields are written in the order of their IDs, none of which is 15 beyond the one before.
        let last = self.last.last_mut().expect("a struct is open");
        self.bytes.push(((id - *last) as u8) << 4 | kind);
        *last = id;
    }

    pub(super) fn i32(&mut self, id: i16, value: i32) {
        self.head(id, I32);
        varint(zigzag(value.into()), &mut self.bytes);
    }

    pub(super) fn i64(&mut self, id: i16, value: i64) {
        self.head(id, I64);
        varint(zigzag(value), &mut self.bytes);
    }

    pub(super) fn set(&mut self, id: i16) {
        self.head(id, TRUE);
    }

    pub(super) fn binary(&mut self, id: i16, value: &[u8]) {
        self.head(id, BINARY);
        self.element(value);
    }

    fn element(&mut self, value: &[u8]) {
        varint(value.len() as u64, &mut self.bytes);
        self.bytes.extend_from_slice(value);
    }

    pub(super) fn structure(&mut self, id: i16, fields: impl FnOnce(&mut Self)) {
        self.head(id, STRUCT);
        self.fields(fields);
    }

    fn list(&mut self, id: i16, kind: u8, len: usize) {
        self.head(id, LIST);
        match len {
            0..15 => self.bytes.push((len as u8) << 4 | kind),
            _ => {
                self.bytes.push(15 << 4 | kind);
                varint(len as u64, &mut self.bytes);
            }
        }
    }

    pub(super) fn structures<T>(
        &mut self,
        id: i16,
        all: &[T],
        mut fields: impl FnMut(&mut Self, &T),
    ) {
        self.list(id, STRUCT, all.len());
        for one in all {
            self.fields(|thrift| fields(thrift, one));
        }
    }

    pub(super) fn i32s(&mut self, id: i16, all: &[i32]) {
        self.list(id, I32, all.len());
        for one in all {
            varint(zigzag((*one).into()), &mut self.bytes);
        }
    }

    pub(super) fn texts(&mut self, id: i16, all: &[&str]) {
        self.list(id, BINARY, all.len());
        for one in all {
            self.element(one.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes follow from the specification.
    #[test]
    fn fields_have_their_distance_and_their_type() {
        let bytes = Thrift::of(|it| {
            it.i32(1, -3);
            it.binary(4, b"ab");
            it.structure(5, |it| it.i64(1, 300));
            it.i32s(6, &[1, 2]);
            it.set(7);
        });
        let expected = [
            0x15, 5, 0x38, 2, b'a', b'b', 0x1c, 0x16, 0xd8, 4, 0, 0x19, 0x25, 2, 4, 0x11, 0,
        ];
        assert_eq!(bytes, expected);
        let long = Thrift::of(|it| it.texts(1, &[""; 16]));
        assert_eq!(long[..3], [0x19, 0xf8, 16]);
    }
}
