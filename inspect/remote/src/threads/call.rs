//! The system call in which a thread sleeps.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::libc::{self, c_int, c_long};

/// io_pgetevents(2), which libc lacks (<asm/unistd_64.h>, <asm-generic/unistd.h>).
#[cfg(target_arch = "x86_64")]
const IO_PGETEVENTS: c_long = 333;
#[cfg(not(target_arch = "x86_64"))]
const IO_PGETEVENTS: c_long = 292;

/// IORING_ENTER_EXT_ARG (<linux/io_uring.h>): the fifth argument leads to a timeout.
const IORING_ENTER_EXT_ARG: u64 = 1 << 3;

/// A system call, as `/proc/PID/task/TID/syscall` shows it while the thread sleeps in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Its number; −1 if the thread sleeps outside a system call, for example in a page fault.
    pub number: i64,
    /// Its arguments.
    pub arguments: [u64; 6],
    /// The stack pointer.
    pub stack_pointer: u64,
    /// The instruction pointer.
    pub instruction_pointer: u64,
}

impl Call {
    /// Parses the file's text (fs/proc/base.c, `proc_pid_syscall`). `None` for `running`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.split_ascii_whitespace();
        let number = words.next()?.parse().ok()?;
        let mut values = [0; 8];
        let mut count = 0;
        for word in words {
            *values.get_mut(count)? = u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()?;
            count += 1;
        }
        let arguments = match count {
            // Outside a system call, there are no arguments.
            2 => [0; 6],
            8 => *values.first_chunk()?,
            _ => return None,
        };
        Some(Self {
            number,
            arguments,
            stack_pointer: values[count - 2],
            instruction_pointer: values[count - 1],
        })
    }

    /// Returns whether stopping its thread, a thread of process `pid`, would lengthen the sleep:
    /// the call has a finite timeout, and the kernel ends it with EINTR. It restarts others
    /// (nanosleep, poll, futex, select) with the remaining time. `true` if unknown.
    pub fn is_lengthened_by_a_stop(&self, pid: i32) -> bool {
        let [first, _, third, fourth, fifth, _] = self.arguments;
        match self.number {
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => fourth as i32 >= 0,
            libc::SYS_epoll_pwait => fourth as i32 >= 0,
            libc::SYS_epoll_pwait2 | libc::SYS_semtimedop => fourth != 0,
            libc::SYS_rt_sigtimedwait => third != 0,
            libc::SYS_io_getevents | IO_PGETEVENTS => fifth != 0,
            libc::SYS_io_uring_enter => fourth & IORING_ENTER_EXT_ARG != 0,
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_accept
            | libc::SYS_accept4 => has_socket_timeout(pid, first, libc::SO_RCVTIMEO),
            libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_connect => has_socket_timeout(pid, first, libc::SO_SNDTIMEO),
            _ => false,
        }
    }
}

/// Returns whether a descriptor of the process is a socket with this timeout, by a copy of it.
fn has_socket_timeout(pid: i32, descriptor: u64, option: c_int) -> bool {
    match socket_timeout(pid, descriptor as c_long, option) {
        Ok(timeout) => timeout.tv_sec != 0 || timeout.tv_usec != 0,
        Err(errno) => errno != Errno::ENOTSOCK,
    }
}

fn socket_timeout(pid: i32, descriptor: c_long, option: c_int) -> Result<libc::timeval, Errno> {
    let owned = |result: c_long| {
        let descriptor = Errno::result(result)? as c_int;
        // SAFETY: the kernel has just returned it from one of the two calls below: nothing else
        // owns it.
        Ok::<_, Errno>(unsafe { OwnedFd::from_raw_fd(descriptor) })
    };
    // SAFETY: pidfd_open(2) takes only numbers.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    let process = process.as_raw_fd();
    // SAFETY: pidfd_getfd(2) takes only numbers.
    let copy = owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process, descriptor, 0) })?;
    let mut timeout = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut size = size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: `timeout` and `size` live through the call, and `size` is the size of `timeout`.
    let result = unsafe {
        libc::getsockopt(
            copy.as_raw_fd(),
            libc::SOL_SOCKET,
            option,
            (&raw mut timeout).cast(),
            &raw mut size,
        )
    };
    Errno::result(result)?;
    Ok(timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes() {
        assert_eq!(Call::parse(b"running\n"), None);
        assert_eq!(Call::parse(b""), None);
        assert_eq!(Call::parse(b"7 0x1\n"), None);
        assert_eq!(
            Call::parse(b"7 0x1 0x2 0x3 0x4 0x5 0x6 0x7 0x8 0x9\n"),
            None
        );
        let fault = Call::parse(b"-1 0x7ffc 0x55d0\n").unwrap();
        assert_eq!((fault.number, fault.stack_pointer), (-1, 0x7ffc));
        let call = Call::parse(b"232 0x4 0x7f00 0x1 0x1f4 0x0 0x8 0x7ffc 0x55d0\n").unwrap();
        assert_eq!(call.number, 232);
        assert_eq!(call.arguments, [4, 0x7f00, 1, 500, 0, 8]);
        assert_eq!(call.instruction_pointer, 0x55d0);
    }

    #[test]
    fn which_calls_a_stop_lengthens() {
        let own = i32::try_from(std::process::id()).unwrap();
        let call = |number: i64, arguments| {
            let call = Call {
                number,
                arguments,
                stack_pointer: 0,
                instruction_pointer: 0,
            };
            call.is_lengthened_by_a_stop(own)
        };
        let minus_one = u64::from(u32::MAX);
        assert!(call(libc::SYS_epoll_pwait, [4, 1, 1, 500, 0, 8]));
        assert!(!call(libc::SYS_epoll_pwait, [4, 1, 1, minus_one, 0, 8]));
        assert!(call(libc::SYS_rt_sigtimedwait, [1, 0, 1, 8, 0, 0]));
        assert!(!call(libc::SYS_rt_sigtimedwait, [1, 1, 0, 8, 0, 0]));
        assert!(call(libc::SYS_semtimedop, [1, 1, 1, 1, 0, 0]));
        assert!(call(libc::SYS_io_uring_enter, [4, 0, 1, 1 | 8, 1, 24]));
        assert!(!call(libc::SYS_io_uring_enter, [4, 0, 1, 1, 0, 8]));
        assert!(!call(libc::SYS_nanosleep, [1, 1, 0, 0, 0, 0]));
        assert!(!call(libc::SYS_futex, [1, 1, 0, 1, 0, 0]));
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
        let receive = [socket.as_raw_fd() as u64, 0, 0, 0, 0, 0];
        assert!(!call(libc::SYS_recvfrom, receive));
        let timeout = std::time::Duration::from_millis(500);
        socket.set_read_timeout(Some(timeout)).unwrap();
        assert!(call(libc::SYS_recvfrom, receive));
        assert!(!call(libc::SYS_sendto, receive));
        let pipe = std::io::pipe().unwrap();
        let read = [pipe.0.as_raw_fd() as u64, 0, 0, 0, 0, 0];
        assert!(!call(libc::SYS_read, read), "not a socket");
        assert!(call(libc::SYS_read, [u64::MAX, 0, 0, 0, 0, 0]), "not known");
    }
}
