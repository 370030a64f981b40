//! The clocks: a perf event on each CPU, which runs the program.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// <linux/perf_event.h>.
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
/// Flags of `struct perf_event_attr`: start disabled, and do not tick while idle.
const DISABLED: u64 = 1;
const EXCLUDE_IDLE: u64 = 1 << 7;

/// The first version of `struct perf_event_attr` (PERF_ATTR_SIZE_VER0).
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
}

/// `PERF_FORMAT_TOTAL_TIME_ENABLED`: the count is followed by the time for which the event was
/// enabled.
const TIME_ENABLED: u64 = 1;

/// The clocks of all CPUs. They stop when this is dropped.
#[derive(Debug)]
pub(super) struct Clocks {
    clocks: Vec<Clock>,
    /// In nanoseconds.
    period: u64,
}

impl Clocks {
    /// Opens clocks for these CPUs, which tick every `period` nanoseconds unless the CPU is idle,
    /// and run `program`. They do not tick until they are started.
    pub(super) fn open(cpus: &[u32], period: u64, program: BorrowedFd<'_>) -> io::Result<Self> {
        let clock = |cpu: &u32| Clock::open(*cpu, period, program);
        let clocks = cpus.iter().map(clock).collect::<io::Result<_>>()?;
        Ok(Self { clocks, period })
    }

    pub(super) fn start(&self) -> io::Result<()> {
        self.clocks.iter().try_for_each(Clock::start)
    }

    pub(super) fn stop(&self) {
        for clock in &self.clocks {
            // A clock that cannot be stopped stops when it is closed.
            let _ = clock.stop();
        }
    }

    /// Starts a clock on each of the CPUs that has no running clock: when a CPU goes offline, the
    /// kernel stops its event, and does not start it again. Events that have ticked since the last
    /// call are not checked, because that interrupts their CPU. Failed starts are retried by the
    /// next call.
    pub(super) fn follow<S: BuildHasher>(
        &mut self,
        cpus: &[u32],
        ticked: &HashSet<u32, S>,
        program: BorrowedFd<'_>,
    ) {
        self.clocks.retain_mut(|clock| {
            cpus.contains(&clock.cpu) && (ticked.contains(&clock.cpu) || clock.runs())
        });
        for cpu in cpus {
            if self.clocks.iter().all(|clock| clock.cpu != *cpu)
                && let Ok(clock) = Clock::open(*cpu, self.period, program)
                && clock.start().is_ok()
            {
                self.clocks.push(clock);
            }
        }
    }
}

/// The clock of one CPU. It stops when this is dropped.
#[derive(Debug)]
struct Clock {
    event: OwnedFd,
    cpu: u32,
    /// Total running time at the last check, in nanoseconds.
    ran: u64,
}

impl Clock {
    fn open(cpu: u32, period: u64, program: BorrowedFd<'_>) -> io::Result<Self> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: period,
            read_format: TIME_ENABLED,
            flags: DISABLED | EXCLUDE_IDLE,
            ..Attributes::default()
        };
        let (any_process, no_group) = (-1, -1);
        // SAFETY: the structure has the announced size and is valid during the call.
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
        // SAFETY: the kernel has just returned it.
        let event = unsafe { OwnedFd::from_raw_fd(event as libc::c_int) };
        let clock = Self { event, cpu, ran: 0 };
        clock.control(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
        Ok(clock)
    }

    fn start(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_ENABLE, 0)
    }

    fn stop(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_DISABLE, 0)
    }

    /// Whether it has run since the last call.
    fn runs(&mut self) -> bool {
        let mut read = [0_u64; 2];
        let size = size_of_val(&read);
        // SAFETY: the buffer has that many bytes.
        let result = unsafe { libc::read(self.event.as_raw_fd(), read.as_mut_ptr().cast(), size) };
        let before = std::mem::replace(&mut self.ran, read[1]);
        usize::try_from(result) == Ok(size) && self.ran > before
    }

    fn control(&self, request: libc::c_ulong, argument: libc::c_int) -> io::Result<()> {
        // SAFETY: these requests take a number.
        let result = unsafe { libc::ioctl(self.event.as_raw_fd(), request as _, argument) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}
