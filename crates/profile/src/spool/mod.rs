//! A recording in the making: samples go to a file, so that its length does not matter.
//!
//! The file has no name, and goes away with the process. It holds segments: the samples that were taken
//! with one catalog, and behind them that catalog. A catalog that has grown too large is written and
//! replaced, so that the memory of a recording is bounded. When it ends, segments are put together to
//! parts, of which each is bounded as well; nearly all recordings have one.

mod codec;
mod part;

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use otelctx_sample::{Catalog, Counts, FrameKind, Rotation, Sample};

use crate::{Clock, Recording, file};
use codec::SAMPLE_SIZE;
use part::Part;

/// Samples are written when there are this many bytes of them.
const BUFFER: usize = 256 * 1024;
/// A catalog that takes more memory than this is replaced, in bytes: small beside what the command
/// takes anyway, so that its memory hardly changes.
const MAX_CATALOG: usize = 2 << 20;
/// But not before it has served this many samples: two and a half seconds of two busy CPUs at 999 Hz.
const MIN_SEGMENT_SAMPLES: u64 = 5_000;
/// A part is full with this many samples: with all that a profile keeps of each some 400 MB.
const MAX_PART_SAMPLES: usize = 4_000_000;
/// A part is full when its catalog takes this much memory, in bytes. As OTLP it is smaller than
/// 1 GiB: a sample takes less than 40 bytes there, and the tables less than the catalog.
const MAX_PART_CATALOG: usize = 256 << 20;

/// The limits of a spool.
#[derive(Clone, Copy, Debug)]
struct Limits {
    rotation: Rotation,
    part_samples: usize,
    part_catalog: usize,
}

const LIMITS: Limits = Limits {
    rotation: Rotation::new(MAX_CATALOG, MIN_SEGMENT_SAMPLES),
    part_samples: MAX_PART_SAMPLES,
    part_catalog: MAX_PART_CATALOG,
};

/// Samples on their way to a file.
#[derive(Debug)]
pub struct Spool {
    file: File,
    /// Samples that are not written yet.
    buffer: Vec<u8>,
    /// Where the next bytes go.
    end: u64,
    /// Where the samples begin that belong to the catalog in use.
    start: u64,
    segments: Vec<Segment>,
    kinds: Vec<FrameKind>,
    limits: Limits,
    len: u64,
}

/// Samples, and behind them their catalog.
#[derive(Clone, Copy, Debug)]
struct Segment {
    start: u64,
    catalog: u64,
    end: u64,
}

impl Spool {
    /// A spool beside `path`, or where that is no place for files, in the current directory or the one
    /// for temporary files; in memory if no file can be made in any of them.
    ///
    /// # Errors
    /// When there is no room in memory either.
    pub fn beside(path: &Path) -> io::Result<Self> {
        let is_file = path.metadata().is_ok_and(|found| found.is_file());
        let is_new = path.symlink_metadata().is_err();
        let beside = (is_file || is_new).then(|| file::directory(path).to_owned());
        let places = [Some(".".into()), Some(std::env::temp_dir())];
        let mut places = beside.into_iter().chain(places.into_iter().flatten());
        let file = match places.find_map(|place| file::unlinked(&place).ok()) {
            Some(file) => file,
            None => memfd_create(c"otelctx-spool", MFdFlags::MFD_CLOEXEC)?.into(),
        };
        Ok(Self::with(file, LIMITS))
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

    /// How many samples it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a sample. [`Spool::write`] is to be called every now and then.
    pub fn push(&mut self, sample: &Sample) {
        self.len += 1;
        self.limits.rotation.count(1);
        codec::write_sample(&mut self.buffer, sample);
    }

    /// Writes samples if there are many, and the catalog if it is large: then it is empty afterwards, and
    /// the sampler has to be told (`Sampler::reset_catalog`). Returns whether it was.
    ///
    /// # Errors
    /// When the file cannot be written, for example because the disk is full. Nothing is lost, but the
    /// recording has to end.
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
        // It keeps its memory: the next catalog takes as much.
        self.buffer.clear();
        written?;
        self.segments.push(segment);
        (self.start, self.end) = (segment.end, segment.end);
        Ok(())
    }

    /// The recording, part by part. `catalog` is the one in use.
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
            file: Some(self.file),
            segments: self.segments.into_iter(),
            last: Some(Last {
                samples: (self.start, self.end),
                buffer: self.buffer,
                catalog: last,
            }),
            kinds: self.kinds,
            limits: self.limits,
            samples: self.len,
            clock,
            rest: clock,
            period,
            counts,
        }
    }
}

/// The segment whose catalog is not in the file.
#[derive(Debug)]
struct Last {
    samples: (u64, u64),
    /// Samples behind those.
    buffer: Vec<u8>,
    catalog: Vec<u8>,
}

/// A recording, part by part. The counters are those of the first; the others have none.
///
/// What was read is given back to the file system, and the file itself before the last part is returned:
/// on a disk that is full there is room for what is made of it.
#[derive(Debug)]
pub struct Parts {
    file: Option<File>,
    segments: std::vec::IntoIter<Segment>,
    last: Option<Last>,
    kinds: Vec<FrameKind>,
    limits: Limits,
    samples: u64,
    clock: Clock,
    /// The time of the parts that were not read yet.
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
    /// How many samples all parts have.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The time that all parts span.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    fn read(&mut self) -> io::Result<Recording> {
        let mut part = Part::default();
        let is_full = |part: &Part, limits: &Limits| {
            part.samples.len() >= limits.part_samples
                || part.catalog.memory() >= limits.part_catalog
        };
        while !is_full(&part, &self.limits) {
            let Some(segment) = self.segments.next() else {
                if let Some(last) = self.last.take() {
                    let ids = part.add_catalog(&last.catalog, &self.kinds)?;
                    self.add_samples(&mut part, last.samples, &ids)?;
                    part.add_samples(&last.buffer, &ids)?;
                }
                self.file = None;
                break;
            };
            let catalog = self.bytes(segment.catalog, segment.end)?;
            let ids = part.add_catalog(&catalog, &self.kinds)?;
            self.add_samples(&mut part, (segment.start, segment.catalog), &ids)?;
            self.give_back(segment.start, segment.end);
        }
        let mut clock = self.rest;
        if self.last.is_some() {
            // The next part begins where this one ends.
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

    /// Adds the samples between two positions of the file.
    fn add_samples(
        &self,
        part: &mut Part,
        (mut from, to): (u64, u64),
        ids: &part::Ids,
    ) -> io::Result<()> {
        let step = (BUFFER / SAMPLE_SIZE * SAMPLE_SIZE) as u64;
        while from < to {
            let until = to.min(from + step);
            part.add_samples(&self.bytes(from, until)?, ids)?;
            from = until;
        }
        Ok(())
    }

    fn bytes(&self, from: u64, to: u64) -> io::Result<Vec<u8>> {
        let file = self.file.as_ref().ok_or_else(codec::damaged)?;
        let mut bytes = vec![0; (to - from) as usize];
        file.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    }

    /// Where a file system cannot do that, the room comes back in the end.
    fn give_back(&self, from: u64, to: u64) {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        if let Some(file) = &self.file {
            let _ = fallocate(file, flags, from.cast_signed(), (to - from).cast_signed());
        }
    }
}

#[cfg(test)]
mod tests;
