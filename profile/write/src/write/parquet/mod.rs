//! Parquet: one row for each sample, for engines that read tables
//! (<https://parquet.apache.org/docs/file-format>).
//!
//! The crate `parquet` encodes value by value. Here, a column has the distinct values of its row
//! group and the index of each, which recordings have anyway.

mod chunk;
mod encode;
mod schema;
mod store;
mod thrift;

use std::io::{self, Write};

pub(crate) use chunk::{Plain, Values};
pub(crate) use store::{Part, Store};

use chunk::Chunk;
use schema::Leaf;
use thrift::Thrift;

/// First and last bytes of a file.
const MAGIC: &[u8] = b"PAR1";

/// A row group, as the footer describes it.
#[derive(Debug)]
struct Group {
    chunks: Vec<Chunk>,
    rows: usize,
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) struct File {
    offset: u64,
    groups: Vec<Group>,
}

impl File {
    /// Starts a file.
    pub(crate) fn start(writer: &mut dyn Write) -> io::Result<Self> {
        writer.write_all(MAGIC)?;
        Ok(Self {
            offset: MAGIC.len() as u64,
            groups: Vec::new(),
        })
    }

    /// Starts a row group, whose columns are written in the order of the schema.
    pub(crate) fn group<'f>(&'f mut self, rows: usize, writer: &'f mut dyn Write) -> Columns<'f> {
        Columns {
            offset: self.offset,
            file: self,
            writer,
            leaves: schema::leaves().collect(),
            chunks: Vec::new(),
            rows,
        }
    }

    /// Writes the footer.
    pub(crate) fn end(&self, writer: &mut dyn Write) -> io::Result<()> {
        let leaves: Vec<Leaf> = schema::leaves().collect();
        let rows: usize = self.groups.iter().map(|group| group.rows).sum();
        let footer = Thrift::of(|thrift| {
            thrift.i32(1, 1);
            schema::write(thrift, 2);
            thrift.i64(3, rows as i64);
            thrift.structures(4, &self.groups, |thrift, group| {
                write_group(group, &leaves, thrift);
            });
            let program = concat!("otelctx version ", env!("CARGO_PKG_VERSION"));
            thrift.binary(6, program.as_bytes());
            // Least and largest values are of the types' own order.
            thrift.structures(7, &leaves, |thrift, _| thrift.structure(1, |_| ()));
        });
        writer.write_all(&footer)?;
        writer.write_all(&(footer.len() as u32).to_le_bytes())?;
        writer.write_all(MAGIC)
    }
}

fn write_group(group: &Group, leaves: &[Leaf], thrift: &mut Thrift) {
    let columns: Vec<(&Chunk, &Leaf)> = group.chunks.iter().zip(leaves).collect();
    thrift.structures(1, &columns, |thrift, (chunk, leaf)| {
        thrift.i64(2, chunk.start() as i64);
        thrift.structure(3, |thrift| chunk.write_metadata(leaf, thrift));
    });
    let sizes = group.chunks.iter().map(Chunk::size);
    let (size, compressed) = sizes.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    thrift.i64(2, size as i64);
    thrift.i64(3, group.rows as i64);
    thrift.i64(6, compressed as i64);
}

/// The columns of a row group that is being written.
pub(crate) struct Columns<'f> {
    file: &'f mut File,
    writer: &'f mut dyn Write,
    leaves: Vec<Leaf>,
    chunks: Vec<Chunk>,
    rows: usize,
    offset: u64,
}

impl Columns<'_> {
    /// Writes the column of times.
    pub(crate) fn times(&mut self, times: impl Iterator<Item = i64>) -> io::Result<()> {
        let chunk = chunk::write_times(times, self.offset, self.writer)?;
        self.add(chunk);
        Ok(())
    }

    /// Writes the next column: of each row, the values of its key.
    pub(crate) fn values<V: Plain>(
        &mut self,
        values: &Values<V>,
        keys: impl ExactSizeIterator<Item = u32>,
    ) -> io::Result<()> {
        let leaf = &self.leaves[self.chunks.len()];
        let chunk = chunk::write_values(leaf, values, keys, self.offset, self.writer)?;
        self.add(chunk);
        Ok(())
    }

    fn add(&mut self, chunk: Chunk) {
        self.offset += chunk.size().1;
        self.chunks.push(chunk);
    }

    /// Ends the row group, whose columns are all written.
    pub(crate) fn end(self) {
        debug_assert_eq!(self.chunks.len(), self.leaves.len());
        self.file.offset = self.offset;
        self.file.groups.push(Group {
            chunks: self.chunks,
            rows: self.rows,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_schema_at_its_end() {
        let mut bytes = Vec::new();
        let file = File::start(&mut bytes).unwrap();
        file.end(&mut bytes).unwrap();
        let (head, tail) = bytes.split_last_chunk::<8>().unwrap();
        assert_eq!(&tail[4..], MAGIC);
        let size = u32::from_le_bytes(tail[..4].try_into().unwrap()) as usize;
        let footer = head.strip_prefix(MAGIC).unwrap();
        assert_eq!(footer.len(), size);
        let schema = Thrift::of(|thrift| {
            thrift.i32(1, 1);
            schema::write(thrift, 2);
        });
        // Without the struct's end.
        assert!(footer.starts_with(&schema[..schema.len() - 1]));
    }
}
