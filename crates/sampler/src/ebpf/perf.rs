//! The clock of one processor: a perf event that runs the program.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

// <linux/perf_event.h>.
const PERF_TYPE_SOFTWARE: u32 = 1;
const PERF_COUNT_SW_CPU_CLOCK: u64 = 0;
const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
const PERF_EVENT_IOC_DISABLE: libc::c_ulong = 0x2401;
const PERF_EVENT_IOC_SET_BPF: libc::c_ulong = 0x4004_2408;
/// `struct perf_event_attr`, bits of its flags: begin disabled, and don't tick while idle.
const DISABLED: u64 = 1;
const EXCLUDE_IDLE: u64 = 1 << 6;

/// `struct perf_event_attr` as of its first version (PERF_ATTR_SIZE_VER0).
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

/// The clock of one processor. It stops when this is dropped.
#[derive(Debug)]
pub(super) struct Clock {
    event: OwnedFd,
}

impl Clock {
    /// A clock that ticks every `period` nanoseconds of processor `cpu`, unless that is idle, and
    /// runs `program` then. It stands still until it is started.
    pub(super) fn open(cpu: u32, period: u64, program: BorrowedFd<'_>) -> io::Result<Self> {
        let attributes = Attributes {
            kind: PERF_TYPE_SOFTWARE,
            size: size_of::<Attributes>() as u32,
            config: PERF_COUNT_SW_CPU_CLOCK,
            sample_period: period,
            flags: DISABLED | EXCLUDE_IDLE,
            ..Attributes::default()
        };
        let (any_process, no_group) = (-1, -1);
        // SAFETY: the structure has the size that it states and lives through the call.
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
        // SAFETY: the kernel has just given it to us.
        let event = unsafe { OwnedFd::from_raw_fd(event as libc::c_int) };
        let clock = Self { event };
        clock.control(PERF_EVENT_IOC_SET_BPF, program.as_raw_fd())?;
        Ok(clock)
    }

    pub(super) fn start(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_ENABLE, 0)
    }

    pub(super) fn stop(&self) -> io::Result<()> {
        self.control(PERF_EVENT_IOC_DISABLE, 0)
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
