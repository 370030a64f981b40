//! The kernel's reports of new mappings, programs and processes: the records that an event on each
//! CPU writes into a ring (perf_event_open(2), "MMAP layout").

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use otelctx_reader::remote::Device;

use super::perf::{self, Event};
use super::shared::{map_shared, page_size};
use crate::code::{FileId, MemoryChange, Region, Report};

/// Size of the data in a ring, in bytes: a power of two. A record of a mapping takes about 150.
const RING: usize = 128 << 10;

// Offsets in `struct perf_event_mmap_page`, <linux/perf_event.h>.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

// `enum perf_event_type`.
const LOST: u32 = 2;
const COMM: u32 = 3;
const EXIT: u32 = 4;
const FORK: u32 = 7;
const MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_COMM_EXEC`: the name changed because of an exec.
const MISC_COMM_EXEC: u16 = 1 << 13;
/// `PERF_RECORD_MISC_MMAP_BUILD_ID`: the record has the build ID in the place of device and inode.
const MISC_BUILD_ID: u16 = 1 << 14;

#[derive(Debug, Default)]
pub(super) struct SideBand {
    rings: Vec<Ring>,
    /// The kernel adds build IDs to its records (Linux 5.12).
    has_build_ids: bool,
    reports: Vec<Report>,
    /// Number of records that a full ring has lost.
    pub(super) lost: u64,
}

impl SideBand {
    pub(super) fn start(cpus: &[u32]) -> io::Result<Self> {
        let mut side_band = Self {
            has_build_ids: true,
            ..Self::default()
        };
        if side_band.add(cpus).is_err() {
            side_band.has_build_ids = false;
            side_band.add(cpus)?;
        }
        Ok(side_band)
    }

    /// Starts the reports on CPUs that have come online; the next call retries failed starts. The
    /// kernel has stopped the reports of the CPUs in `stopped`: for each that is online again, one
    /// report counts as lost.
    pub(super) fn follow(&mut self, cpus: &[u32], stopped: &[u32]) {
        if self.rings.is_empty() {
            return;
        }
        for mut ring in self
            .rings
            .extract_if(.., |ring| stopped.contains(&ring.cpu))
        {
            self.lost += ring.read(&mut self.reports);
            self.lost += u64::from(cpus.contains(&ring.cpu));
        }
        let _ = self.add(cpus);
    }

    fn add(&mut self, cpus: &[u32]) -> io::Result<()> {
        for &cpu in cpus {
            if self.rings.iter().all(|ring| ring.cpu != cpu) {
                self.rings.push(Ring::open(cpu, self.has_build_ids)?);
            }
        }
        Ok(())
    }

    /// Returns the reports until this time, which has passed, in the order of their times. Later
    /// ones wait for the next call: a process that changes its CPU may cause an earlier one in a
    /// ring that was already read.
    pub(super) fn read(&mut self, until: u64) -> impl Iterator<Item = Report> {
        for ring in &mut self.rings {
            self.lost += ring.read(&mut self.reports);
        }
        self.reports.sort_by_key(|report| report.time);
        let later = self.reports.partition_point(|report| report.time <= until);
        self.reports.drain(..later)
    }
}

#[derive(Debug)]
struct Ring {
    cpu: u32,
    /// A page with positions, and the data.
    memory: NonNull<u8>,
    page: usize,
    event: Event,
}

// SAFETY: the mapping is the ring's own, and no thread has a reference into it.
unsafe impl Send for Ring {}

impl Ring {
    fn open(cpu: u32, build_ids: bool) -> io::Result<Self> {
        let event = perf::side_band(cpu, build_ids)?;
        let page = page_size();
        let ring = Self {
            cpu,
            memory: map_shared(event.descriptor(), page + RING)?,
            page,
            event,
        };
        ring.event.start()?;
        Ok(ring)
    }

    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: `open` has mapped the page; the callers' offsets are aligned, and the kernel
        // changes these words whole.
        unsafe { AtomicU64::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }

    /// Decodes the new records. Returns the number of lost ones.
    fn read(&mut self, reports: &mut Vec<Report>) -> u64 {
        // The kernel writes a record before it moves the head.
        let head = self.position(DATA_HEAD).load(Ordering::Acquire);
        let mut tail = self.position(DATA_TAIL).load(Ordering::Relaxed);
        let mut lost = 0;
        let mut record = Vec::new();
        while tail < head {
            let mut header = [0; 8];
            self.copy(tail, &mut header);
            let size = u16::from_ne_bytes([header[6], header[7]]);
            if usize::from(size) < header.len() || u64::from(size) > head - tail {
                // Only the kernel writes here.
                lost += 1;
                tail = head;
                break;
            }
            record.resize(size.into(), 0);
            self.copy(tail, &mut record);
            tail += u64::from(size);
            match Record(&record).decode() {
                Decoded::Report(report) => reports.push(report),
                Decoded::Lost(count) => lost += count,
                Decoded::Other => {}
            }
        }
        // From here on, the kernel may overwrite the records.
        self.position(DATA_TAIL).store(tail, Ordering::Release);
        lost
    }

    /// Copies data from a position, across the end of the ring.
    fn copy(&self, from: u64, to: &mut [u8]) {
        let start = from as usize % RING;
        let first = to.len().min(RING - start);
        let (one, two) = to.split_at_mut(first);
        // SAFETY: `open` has mapped RING bytes behind the page, both parts lie in them, and the
        // kernel does not change them between tail and head.
        unsafe {
            let data = self.memory.as_ptr().add(self.page);
            data.add(start)
                .copy_to_nonoverlapping(one.as_mut_ptr(), one.len());
            data.copy_to_nonoverlapping(two.as_mut_ptr(), two.len());
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` has mapped this many bytes, and they are not used any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), self.page + RING) };
    }
}

/// A record, header included.
struct Record<'a>(&'a [u8]);

enum Decoded {
    Report(Report),
    Lost(u64),
    Other,
}

impl Record<'_> {
    fn word<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.word(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.word(at).map(u64::from_ne_bytes)
    }

    fn decode(&self) -> Decoded {
        match self.u32(0) {
            Some(LOST) => Decoded::Lost(self.u64(16).unwrap_or(1)),
            _ => self.report().map_or(Decoded::Other, Decoded::Report),
        }
    }

    fn report(&self) -> Option<Report> {
        let misc = u16::from_ne_bytes(self.word(4)?);
        let (pid, second) = (self.u32(8)? as i32, self.u32(12)? as i32);
        let change = match self.u32(0)? {
            COMM if misc & MISC_COMM_EXEC != 0 => MemoryChange::Exec,
            // Process, parent, thread, parent's thread: a new thread is in its parent's process.
            FORK if pid != second => MemoryChange::Forked { parent: second },
            EXIT if pid as u32 == self.u32(16)? => MemoryChange::Exit,
            MMAP2 => MemoryChange::Mapped(self.region(misc)?),
            _ => return None,
        };
        // With `sample_id_all` and `PERF_SAMPLE_TIME`, the time is last.
        let time = self.u64(self.0.len().checked_sub(8)?)?;
        Some(Report { time, pid, change })
    }

    /// Decodes address, length, offset, build ID or device and inode, and the path, which is padded
    /// with zeroes.
    fn region(&self, misc: u16) -> Option<Region> {
        let (start, length, offset) = (self.u64(16)?, self.u64(24)?, self.u64(32)?);
        let file = if misc & MISC_BUILD_ID != 0 {
            let size = usize::from(*self.0.get(40)?);
            FileId::BuildId(self.word::<20>(44)?.get(..size)?.to_vec())
        } else {
            let (major, minor) = (self.u32(40)?, self.u32(44)?);
            FileId::Inode(Device { major, minor }, self.u64(48)?)
        };
        let path = self.0.get(72..self.0.len().checked_sub(8)?)?;
        let path = path.split(|byte| *byte == 0).next()?;
        Some(Region {
            start,
            end: start.checked_add(length)?,
            offset,
            file,
            path: String::from_utf8_lossy(path).into_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl SideBand {
        /// Stops the reports, as if all CPUs had gone offline.
        pub(in crate::ebpf) fn stop(&self) {
            for ring in &self.rings {
                ring.event.stop().unwrap();
            }
        }
    }

    fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
        let size = (8 + body.len()) as u16;
        let mut record = kind.to_ne_bytes().to_vec();
        record.extend(misc.to_ne_bytes());
        record.extend(size.to_ne_bytes());
        record.extend(body);
        record
    }

    fn report(record: &[u8]) -> Option<Report> {
        match Record(record).decode() {
            Decoded::Report(report) => Some(report),
            _ => None,
        }
    }

    /// The body of a record of a mapping, with 24 bytes that identify the file.
    fn mapping(file: [u8; 24], path: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(7_u32.to_ne_bytes());
        body.extend(8_u32.to_ne_bytes());
        for word in [0x1000_u64, 0x2000, 0x3000] {
            body.extend(word.to_ne_bytes());
        }
        body.extend(file);
        body.extend([0; 8]);
        body.extend(path);
        body.extend(99_u64.to_ne_bytes());
        body
    }

    #[test]
    fn a_mapping_has_its_build_id_or_its_inode() {
        let mut file = [0; 24];
        file[0] = 2;
        (file[4], file[5]) = (0xab, 0xcd);
        let found = report(&record(
            MMAP2,
            MISC_BUILD_ID,
            &mapping(file, b"/a\0\0\0\0\0\0"),
        ));
        let region = |file| Region {
            start: 0x1000,
            end: 0x3000,
            offset: 0x3000,
            file,
            path: "/a".into(),
        };
        let expected = |file| Report {
            time: 99,
            pid: 7,
            change: MemoryChange::Mapped(region(file)),
        };
        assert_eq!(found, Some(expected(FileId::BuildId(vec![0xab, 0xcd]))));
        let mut file = [0; 24];
        (file[0], file[4], file[8]) = (8, 1, 77);
        let found = report(&record(MMAP2, 0, &mapping(file, b"/a\0\0\0\0\0\0")));
        let device = Device { major: 8, minor: 1 };
        assert_eq!(found, Some(expected(FileId::Inode(device, 77))));
    }

    /// The rings are read one after the other, while processes change their CPUs.
    #[test]
    fn reports_of_all_rings_come_in_the_order_of_their_times() {
        let mut side_band = SideBand::default();
        let mut read = |written: &[u64], until| {
            side_band.reports.extend(written.iter().map(|time| Report {
                time: *time,
                pid: 7,
                change: MemoryChange::Exec,
            }));
            let reports = side_band.read(until);
            reports.map(|report| report.time).collect::<Vec<_>>()
        };
        assert_eq!(read(&[9, 12, 3], 10), [3, 9]);
        assert_eq!(read(&[11, 14], 13), [11, 12]);
        assert_eq!(read(&[], 14), [14]);
    }

    #[test]
    fn a_damaged_record_is_none() {
        let mut file = [0; 24];
        file[0] = 21;
        assert_eq!(
            report(&record(MMAP2, MISC_BUILD_ID, &mapping(file, b"/a"))),
            None
        );
        let mut huge = mapping([0; 24], b"/a");
        huge[16..24].fill(0xff);
        assert_eq!(report(&record(MMAP2, 0, &huge)), None);
        let whole = record(MMAP2, 0, &mapping([0; 24], b"/a\0"));
        for length in 0..80 {
            assert_eq!(report(&whole[..length]), None, "{length}");
        }
    }

    #[test]
    fn threads_are_no_processes_and_names_no_programs() {
        let task = |ids: [u32; 4]| {
            let mut body: Vec<u8> = ids.into_iter().flat_map(u32::to_ne_bytes).collect();
            // The time in the record, and at its end.
            body.extend([0; 8]);
            body.extend(5_u64.to_ne_bytes());
            body
        };
        let change =
            |kind, misc, body: &[u8]| report(&record(kind, misc, body)).map(|it| it.change);
        let forked = MemoryChange::Forked { parent: 6 };
        assert_eq!(change(FORK, 0, &task([7, 6, 7, 6])), Some(forked));
        assert_eq!(change(FORK, 0, &task([7, 7, 8, 7])), None);
        assert_eq!(
            change(EXIT, 0, &task([7, 6, 7, 6])),
            Some(MemoryChange::Exit)
        );
        assert_eq!(change(EXIT, 0, &task([7, 6, 8, 6])), None);
        let name = task([7, 7, 0, 0]);
        assert_eq!(
            change(COMM, MISC_COMM_EXEC, &name),
            Some(MemoryChange::Exec)
        );
        assert_eq!(change(COMM, 0, &name), None);
        let lost = record(LOST, 0, &task([1, 0, 12, 0]));
        assert!(matches!(Record(&lost).decode(), Decoded::Lost(12)));
    }
}
