//! Why eBPF was not used.

use std::error::Error;
use std::fmt;
use std::io;

/// Why the kernel does not let us look with eBPF, and what would change that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The options ask for ptrace.
    NotWanted,
    /// The recorder lacks the capabilities.
    NotPermitted,
    /// The kernel has no type information (BTF), from which the program learns its layouts.
    NoTypeInformation,
    /// The kernel is older than 5.10, or was built without what the program needs.
    Kernel {
        /// What the kernel calls its release.
        release: String,
        /// What it said.
        why: String,
    },
}

impl Refusal {
    /// From what loading or attaching came to.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut cause = Some(error);
        while let Some(error) = cause {
            let errno = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if errno == Some(io::ErrorKind::PermissionDenied) {
                return Self::NotPermitted;
            }
            cause = error.source();
        }
        if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
            return Self::NoTypeInformation;
        }
        Self::other(chain(error))
    }

    pub(crate) fn other(why: String) -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
        Self::Kernel {
            release: release.unwrap_or_default().trim().into(),
            why,
        }
    }
}

/// An error and its causes in one line; the verifier's log, of many lines, is left out.
fn chain(error: &(dyn Error + 'static)) -> String {
    let first_line = |error: &dyn Error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    };
    let mut text = first_line(error);
    let mut cause = error.source();
    while let Some(error) = cause {
        let line = first_line(error);
        if !text.contains(&line) {
            text = format!("{text}: {line}");
        }
        cause = error.source();
    }
    text
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotWanted => f.write_str("ptrace was asked for"),
            Self::NotPermitted => {
                let program = std::env::current_exe().unwrap_or_default();
                write!(
                    f,
                    "eBPF is not permitted: run as root, or \
                     `setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep {}`",
                    program.display()
                )
            }
            Self::NoTypeInformation => f.write_str(
                "this kernel has no /sys/kernel/btf/vmlinux: eBPF needs one built with \
                 CONFIG_DEBUG_INFO_BTF",
            ),
            Self::Kernel { release, why } => {
                write!(
                    f,
                    "eBPF needs Linux 5.10 or later, this is {release}: {why}"
                )
            }
        }
    }
}
