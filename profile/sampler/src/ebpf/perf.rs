//! Perf events on each CPU: clocks, which run the program, and side bands, which report mappings.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// <linux/perf_event.h>.
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_COUNT_SW_DUMMY: u64 = 9;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_PERIOD: libc::c_ulong = 0x4008_2404;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
/// `PERF_SAMPLE_TIME`: add the time to each record.
const SAMPLE_TIME: u64 = 1 << 2;

// Flags of `struct perf_event_attr` (perf_event_open(2)).
const DISABLED: u64 = 1;
const EXCLUDE_IDLE: u64 = 1 << 7;
const MMAP: u64 = 1 << 8;
const COMM: u64 = 1 << 9;
const TASK: u64 = 1 << 13;
const WATERMARK: u64 = 1 << 14;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const MMAP2: u64 = 1 << 23;
const COMM_EXEC: u64 = 1 << 24;
const USE_CLOCKID: u64 = 1 << 25;
/// Linux 5.12.
const BUILD_ID: u64 = 1 << 34;

/// `struct perf_event_attr` up to the clock (`PERF_ATTR_SIZE_VER3`).
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
}

#[derive(Debug)]
pub(super) struct Event(OwnedFd);

impl Event {
    fn open(cpu: u32, mut attributes: Attributes) -> io::Result<Self> {
        attributes.kind = PERF_TYPE_SOFTWARE;
        attributes.size = size_of::<Attributes>() as u32;
        let (any_process, no_group) = (-1, -1);
        // SAFETY: the structure is owned here, and `size` is its size.
        let event = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attributes,
                any_process,
                cpu as libc::c_int,
                no_group,
                PERF_FLAG_FD_CLOEXEC,
            )
        };
        if event < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, which nothing else owns.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(event as libc::c_int) }))
    }

    pub(super) fn descriptor(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }

    pub(super) fn start(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_ENABLE, 0)
    }

    pub(super) fn stop(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_DISABLE, 0)
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_int) -> io::Result<()> {
        // SAFETY: the callers' requests take a number, no pointer.
        let result = unsafe { libc::ioctl(self.descriptor(), request as _, argument) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Changes the period. The next tick is a whole new period away.
    fn set_period(&self, period: u64) -> io::Result<()> {
        let pointer = &raw const period;
        // SAFETY: this request reads 8 bytes, which this function owns during the call.
        let result = unsafe { libc::ioctl(self.descriptor(), PERF_EVENT_IOC_PERIOD as _, pointer) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Opens the event of a CPU that reports mappings, programs and processes, with times of
/// `CLOCK_MONOTONIC`. It never wakes up the reader.
pub(super) fn side_band(cpu: u32, build_ids: bool) -> io::Result<Event> {
    let flags =
        DISABLED | MMAP | COMM | TASK | WATERMARK | SAMPLE_ID_ALL | MMAP2 | COMM_EXEC | USE_CLOCKID;
    Event::open(
        cpu,
        Attributes {
            config: PERF_COUNT_SW_DUMMY,
            sample_type: SAMPLE_TIME,
            flags: if build_ids { flags | BUILD_ID } else { flags },
            wakeup_events: u32::MAX,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        },
    )
}

/// `PERF_FORMAT_TOTAL_TIME_ENABLED`: add the time for which the event was enabled to its count.
const TIME_ENABLED: u64 = 1;

/// The clocks of all CPUs, which stop when this is dropped.
#[derive(Debug)]
pub(super) struct Clocks {
    clocks: Vec<Clock>,
    /// In nanoseconds.
    period: u64,
    are_started: bool,
}

impl Clocks {
    /// Opens clocks for these CPUs, which run `program` every `period` nanoseconds, unless the CPU
    /// is idle, once they are started.
    pub(super) fn open(cpus: &[u32], period: u64, program: BorrowedFd<'_>) -> io::Result<Self> {
        let clock = |cpu: &u32| Clock::open(*cpu, period, program);
        let clocks = cpus.iter().map(clock).collect::<io::Result<_>>()?;
        Ok(Self {
            clocks,
            period,
            are_started: false,
        })
    }

    pub(super) fn start(&mut self) -> io::Result<()> {
        self.are_started = true;
        self.clocks.iter().try_for_each(|clock| clock.event.start())
    }

    /// Changes the period, in nanoseconds. A clock that cannot be changed is closed, and [`follow`](Self::follow) opens
    /// another one.
    pub(super) fn set_period(&mut self, period: u64) {
        self.period = period;
        self.clocks
            .retain(|clock| clock.event.set_period(period).is_ok());
    }

    pub(super) fn stop(&self) {
        for clock in &self.clocks {
            // A clock that cannot be stopped stops when it is closed.
            let _ = clock.event.stop();
        }
    }

    /// Starts a clock on each CPU without a running one, and returns the CPUs whose clocks had
    /// stopped: the kernel stops the event of a CPU that goes offline. CPUs that have ticked since
    /// the last call are not checked, which interrupts them. The next call retries failed starts. Does
    /// nothing unless the clocks were started.
    pub(super) fn follow<S: BuildHasher>(
        &mut self,
        cpus: &[u32],
        ticked: &HashSet<u32, S>,
        program: BorrowedFd<'_>,
    ) -> Vec<u32> {
        let mut stopped = Vec::new();
        if !self.are_started {
            return stopped;
        }
        self.clocks.retain_mut(|clock| {
            let runs = cpus.contains(&clock.cpu) && (ticked.contains(&clock.cpu) || clock.runs());
            if !runs {
                stopped.push(clock.cpu);
            }
            runs
        });
        for cpu in cpus {
            if self.clocks.iter().all(|clock| clock.cpu != *cpu)
                && let Ok(clock) = Clock::open(*cpu, self.period, program)
                && clock.event.start().is_ok()
            {
                self.clocks.push(clock);
            }
        }
        stopped
    }
}

#[derive(Debug)]
struct Clock {
    event: Event,
    cpu: u32,
    /// Total running time at the last check, in nanoseconds.
    ran: u64,
}

impl Clock {
    fn open(cpu: u32, period: u64, program: BorrowedFd<'_>) -> io::Result<Self> {
        let event = Event::open(
            cpu,
            Attributes {
                config: PERF_COUNT_SW_CPU_CLOCK,
                sample_period: period,
                read_format: TIME_ENABLED,
                flags: DISABLED | EXCLUDE_IDLE,
                ..Attributes::default()
            },
        )?;
        event.control(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
        Ok(Self { event, cpu, ran: 0 })
    }

    /// Returns true if it has run since the last call.
    fn runs(&mut self) -> bool {
        let mut read = [0_u64; 2];
        let size = size_of_val(&read);
        // SAFETY: the buffer is owned here, and `size` is its size.
        let result = unsafe { libc::read(self.event.descriptor(), read.as_mut_ptr().cast(), size) };
        let before = std::mem::replace(&mut self.ran, read[1]);
        usize::try_from(result) == Ok(size) && self.ran > before
    }
}
