//! Iterators over threads: what aya has no function for, as it attaches them to all threads alone.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), and the type of attachment (`enum bpf_cmd`, `enum bpf_attach_type` in <linux/bpf.h>).
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_ITER_CREATE: libc::c_long = 33;
const BPF_TRACE_ITER: u32 = 28;

/// `union bpf_attr`, as these commands use it.
#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    iterator: u64,
    iterator_size: u32,
    padding: u32,
}

#[repr(C)]
struct IteratorCreate {
    link: u32,
    flags: u32,
}

/// `union bpf_iter_link_info`, for threads.
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    tid: u32,
    /// A process in the caller's PID namespace; 0 for all threads.
    pid: u32,
    pid_descriptor: u32,
    padding: u32,
}

/// A program that is attached to the threads of one process, or to all.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// Attaches a program to the threads of a process, or to all threads, of the caller's PID namespace. A process takes Linux
    /// 6.1: 5.10 refuses it (E2BIG), and others before 6.1 ignore it.
    pub(super) fn attach(program: BorrowedFd<'_>, pid: Option<i32>) -> io::Result<Self> {
        let info = LinkInfo {
            pid: pid.map_or(0, i32::cast_unsigned),
            ..LinkInfo::default()
        };
        let mut attributes = LinkCreate {
            program: program.as_raw_fd().cast_unsigned(),
            attach_type: BPF_TRACE_ITER,
            ..LinkCreate::default()
        };
        if pid.is_some() {
            attributes.iterator = (&raw const info) as u64;
            attributes.iterator_size = size_of::<LinkInfo>() as u32;
        }
        bpf(BPF_LINK_CREATE, &attributes).map(Self)
    }

    /// Begins an iteration, which goes on as the file is read.
    pub(super) fn iterate(&self) -> io::Result<File> {
        let attributes = IteratorCreate {
            link: self.0.as_fd().as_raw_fd().cast_unsigned(),
            flags: 0,
        };
        bpf(BPF_ITER_CREATE, &attributes).map(File::from)
    }
}

/// Calls bpf(2), for a command that returns a descriptor.
fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads the attributes, which outlive the call, as does what they point to.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            attributes as *const T,
            size_of::<T>(),
        )
    };
    let descriptor = i32::try_from(result).map_err(|_| io::ErrorKind::InvalidData)?;
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
