//! A recording in progress, in a file, so that memory does not limit its length.
//!
//! The file has no name, and is deleted with the process. It consists of segments: the samples that
//! were taken with one catalog, and that catalog, which is replaced when it has grown too large. At
//! the end, segments are combined into parts of bounded memory; most recordings have one part.
//!
//! A recording of which only the last minute is kept ([`KeptSpool`]) has its segments in memory.

mod codec;
mod kept;
mod part;

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use nix::fcntl::{FallocateFlags, fallocate};
use otelctx_sample::{Catalog, Counts, FrameKind, Rotation, Sample};

use crate::{Clock, Recording, file};
use codec::SAMPLE_SIZE;
use kept::KeptSegment;
pub use kept::KeptSpool;
use part::Part;

/// Number of bytes of samples that are written at once.
const BUFFER: usize = 256 * 1024;
/// Maximum memory of a catalog before it is replaced, in bytes: small compared to the command's.
const MAX_CATALOG: usize = 2 << 20;
/// Minimum number of samples per catalog: two and a half seconds of two busy CPUs at 999 Hz.
const MIN_SEGMENT_SAMPLES: u64 = 5_000;
/// Maximum memory for resolving and writing a part, in bytes, as [`Part::cost`] estimates it.
const MAX_PART_MEMORY: usize = 200 << 20;

#[derive(Clone, Copy, Debug)]
struct Limits {
    rotation: Rotation,
    part_memory: usize,
}

const LIMITS: Limits = Limits {
    rotation: Rotation::new(MAX_CATALOG, MIN_SEGMENT_SAMPLES),
    part_memory: MAX_PART_MEMORY,
};

/// Writes samples to a file.
#[derive(Debug)]
pub struct Spool {
    file: File,
    buffer: Vec<u8>,
    end: u64,
    /// The position of the current catalog's first sample.
    start: u64,
    segments: Vec<Segment>,
    kinds: Vec<FrameKind>,
    limits: Limits,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    catalog: u64,
    end: u64,
}

impl Spool {
    /// Creates a spool next to `path`, otherwise in the current directory or the directory for
    /// temporary files, otherwise in memory.
    ///
    /// # Errors
    /// Fails if there is not enough memory either.
    pub fn beside(path: &Path) -> io::Result<Self> {
        Ok(Self::with(file::spool(path)?, LIMITS))
    }

    fn with(file: File, limits: Limits) -> Self {
        Self {
            file,
            buffer: Vec::with_capacity(BUFFER + SAMPLE_SIZE),
            end: 0,
            start: 0,
            segments: Vec::new(),
            kinds: Vec::new(),
            limits,
            len: 0,
        }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if there are no samples.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a sample. [`Spool::write`] must be called regularly.
    pub fn push(&mut self, sample: &Sample) {
        self.len += 1;
        self.limits.rotation.count(1);
        codec::write_sample(&mut self.buffer, sample);
    }

    /// Writes samples if there are many, and the catalog if it is large. Returns true if the
    /// catalog was written and is empty now: the caller calls `Sampler::reset_catalog`.
    ///
    /// # Errors
    /// Fails if the file cannot be written, for example because the disk is full. Nothing is lost,
    /// but the recording must end.
    pub fn write(&mut self, catalog: &mut Catalog) -> io::Result<bool> {
        if self.buffer.len() >= BUFFER {
            self.flush()?;
        }
        if !self.limits.rotation.is_due(catalog) {
            return Ok(false);
        }
        self.close_segment(catalog)?;
        self.limits.rotation.rotate(catalog);
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.end)?;
        self.end += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn close_segment(&mut self, catalog: &Catalog) -> io::Result<()> {
        self.flush()?;
        codec::write_catalog(&mut self.buffer, catalog, &mut self.kinds);
        let segment = Segment {
            start: self.start,
            catalog: self.end,
            end: self.end + self.buffer.len() as u64,
        };
        let written = self.file.write_all_at(&self.buffer, self.end);
        // Keeps its memory for the next catalog.
        self.buffer.clear();
        written?;
        self.segments.push(segment);
        (self.start, self.end) = (segment.end, segment.end);
        Ok(())
    }

    /// Returns the recording, part by part. `catalog` is the current one.
    #[must_use]
    pub fn finish(
        mut self,
        catalog: Catalog,
        clock: Clock,
        period: NonZeroU64,
        counts: Counts,
    ) -> Parts {
        let mut last = Vec::new();
        codec::write_catalog(&mut last, &catalog, &mut self.kinds);
        Parts {
            segments: Segments::InFile(self.file, self.segments.into_iter()),
            last: Some(Last {
                samples: self.start..self.end,
                buffer: self.buffer,
                catalog: last,
            }),
            kinds: self.kinds,
            part_memory: self.limits.part_memory,
            samples: self.len,
            since: 0,
            clock,
            rest: clock,
            period,
            counts,
        }
    }
}

/// The last segment, whose catalog is not in the file.
#[derive(Debug)]
struct Last {
    /// Positions of samples in the file.
    samples: Range<u64>,
    /// Further samples.
    buffer: Vec<u8>,
    catalog: Vec<u8>,
}

/// The segments that were not read yet.
#[derive(Debug)]
enum Segments {
    InFile(File, std::vec::IntoIter<Segment>),
    InMemory(std::vec::IntoIter<Arc<KeptSegment>>),
    /// All were read, and the file is deleted.
    Read,
}

/// A recording, part by part. The first part has the counters; those of the others are zero.
///
/// Space that was read is returned to the file system, and the file is deleted before the last part
/// is returned, so that a full disk has room for the output.
#[derive(Debug)]
pub struct Parts {
    segments: Segments,
    last: Option<Last>,
    kinds: Vec<FrameKind>,
    /// Maximum [`Part::cost`] before another part begins.
    part_memory: usize,
    /// Maximum number of samples.
    samples: u64,
    /// The time of the oldest sample to return.
    since: u64,
    clock: Clock,
    /// The time span of the parts that were not read yet.
    rest: Clock,
    period: NonZeroU64,
    counts: Counts,
}

impl Iterator for Parts {
    type Item = io::Result<Recording>;

    fn next(&mut self) -> Option<Self::Item> {
        self.last.as_ref()?;
        let part = self.read();
        if part.is_err() {
            self.last = None;
        }
        Some(part)
    }
}

impl Parts {
    /// Returns the number of samples in all parts; of a [`KeptSpool`], at most.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the time span of all parts.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    fn read(&mut self) -> io::Result<Recording> {
        let mut part = Part::since(self.since);
        while part.cost() < self.part_memory {
            if !self.add_segment(&mut part)? {
                if let Some(last) = self.last.take() {
                    let ids = part.add_catalog(&last.catalog, &self.kinds)?;
                    if let Segments::InFile(file, _) = &self.segments {
                        add_samples(file, &mut part, last.samples, &ids)?;
                    }
                    part.add_samples(&last.buffer, &ids)?;
                }
                self.segments = Segments::Read;
                break;
            }
        }
        let mut clock = self.rest;
        if self.last.is_some() {
            // The next part starts where this one ends.
            let newest = part.samples.iter().map(|sample| sample.time).max();
            clock.end = newest.map_or(clock.start, |time| time.saturating_add(1));
            clock.end = clock.end.max(clock.start);
            self.rest.start_unix = clock.unix(clock.end);
            self.rest.start = clock.end;
        }
        Ok(Recording {
            catalog: part.catalog,
            samples: part.samples,
            clock,
            period: self.period,
            counts: std::mem::take(&mut self.counts),
        })
    }

    /// Adds the next segment but the last one to a part. Returns false if there is none.
    fn add_segment(&mut self, part: &mut Part) -> io::Result<bool> {
        match &mut self.segments {
            Segments::InFile(file, segments) => {
                let Some(segment) = segments.next() else {
                    return Ok(false);
                };
                let catalog = read_bytes(file, segment.catalog..segment.end)?;
                let ids = part.add_catalog(&catalog, &self.kinds)?;
                add_samples(file, part, segment.start..segment.catalog, &ids)?;
                give_back(file, segment.start..segment.end);
            }
            Segments::InMemory(segments) => {
                let Some(segment) = segments.next() else {
                    return Ok(false);
                };
                let ids = part.add_catalog(&segment.catalog, &self.kinds)?;
                part.add_samples(&segment.samples, &ids)?;
            }
            Segments::Read => return Ok(false),
        }
        Ok(true)
    }
}

fn add_samples(
    file: &File,
    part: &mut Part,
    range: Range<u64>,
    ids: &codec::Ids,
) -> io::Result<()> {
    let step = BUFFER / SAMPLE_SIZE * SAMPLE_SIZE;
    for start in range.clone().step_by(step) {
        let end = range.end.min(start + step as u64);
        part.add_samples(&read_bytes(file, start..end)?, ids)?;
    }
    Ok(())
}

fn read_bytes(file: &File, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    file.read_exact_at(&mut bytes, range.start)?;
    Ok(bytes)
}

/// Returns the space of a range to the file system, if it supports that.
fn give_back(file: &File, range: Range<u64>) {
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    let size = (range.end - range.start).cast_signed();
    let _ = fallocate(file, flags, range.start.cast_signed(), size);
}

#[cfg(test)]
mod tests;
