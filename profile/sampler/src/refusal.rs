//! The reason why eBPF is not used.

use std::error::Error;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use aya::programs::ProgramError;

const TYPE_INFORMATION: &str = "/sys/kernel/btf/vmlinux";
/// The oldest supported kernel: it has the ring buffer, `CAP_BPF` (5.8), and
/// `bpf_get_ns_current_pid_tgid` as the programs use it.
const MIN_LINUX: (u32, u32) = (5, 10);
/// The first kernel on which maps count as memory of a control group, not as locked memory.
const NO_LOCKED_MEMORY: (u32, u32) = (5, 11);

/// Why the kernel does not permit sampling with eBPF, and how to change that.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The options disable it.
    Disabled,
    /// The recorder lacks the capabilities.
    NotPermitted,
    /// The recorder has the capabilities, but is refused by a seccomp filter, a user namespace or a
    /// security module.
    Forbidden,
    /// The limit on locked memory, which applies before Linux 5.11, is too low.
    LockedMemory,
    /// There is no type information (BTF), which adapts the program to the kernel's layouts.
    NoTypeInformation,
    /// The kernel is too old for the program.
    TooOld {
        /// The kernel's release.
        release: String,
        /// The oldest supported version: major, minor.
        least: (u32, u32),
    },
    /// The kernel rejects the program for another reason.
    Kernel {
        /// The kernel's release.
        release: String,
        /// The kernel's reason.
        why: String,
    },
}

impl Refusal {
    /// Checks that the kernel has type information. Without it, aya would load the program
    /// unadapted, and the program would read from wrong addresses.
    pub(crate) fn type_information() -> Result<(), Self> {
        fs::File::open(TYPE_INFORMATION).map(drop).map_err(Self::of)
    }

    /// Converts an error of loading or attaching.
    pub(crate) fn of(error: impl Error + 'static) -> Self {
        Self::of_dyn(&error)
    }

    fn of_dyn(error: &(dyn Error + 'static)) -> Self {
        let release = release();
        // The verifier's rejections are "permission denied" errors, too.
        let verifier = verifier(error);
        let mut cause = verifier.is_none().then_some(error);
        while let Some(error) = cause {
            let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if kind == Some(io::ErrorKind::PermissionDenied) {
                return if !has_capabilities() {
                    Self::NotPermitted
                } else if is_older(&release, NO_LOCKED_MEMORY) && locked_memory_is_limited() {
                    Self::LockedMemory
                } else {
                    Self::Forbidden
                };
            }
            cause = error.source();
        }
        if is_older(&release, MIN_LINUX) {
            let least = MIN_LINUX;
            return Self::TooOld { release, least };
        }
        if !Path::new(TYPE_INFORMATION).exists() {
            return Self::NoTypeInformation;
        }
        Self::other(verifier.unwrap_or_else(|| one_line(error)))
    }

    pub(crate) fn other(why: String) -> Self {
        let release = release();
        Self::Kernel { release, why }
    }

    /// Replaces the kernel's reason by the version that is needed, if the kernel is older.
    pub(crate) fn needing(self, least: (u32, u32)) -> Self {
        match self {
            Self::Kernel { release, .. } | Self::TooOld { release, .. }
                if is_older(&release, least) =>
            {
                Self::TooOld { release, least }
            }
            other => other,
        }
    }
}

impl Refusal {
    /// Returns true if the running kernel is older than this version.
    pub(crate) fn is_before(least: (u32, u32)) -> bool {
        is_older(&release(), least)
    }
}

fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease");
    release.unwrap_or_default().trim().to_owned()
}

/// Returns true if a release, such as `5.10.0-32-cloud-amd64`, can be parsed and is older.
fn is_older(release: &str, least: (u32, u32)) -> bool {
    let numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut numbers = numbers.map_while(|it| it.parse().ok());
    let version = numbers.next().zip(numbers.next());
    version.is_some_and(|version| version < least)
}

/// Returns true if this process has the capabilities for bpf(2) and perf_event_open(2): `CAP_BPF`
/// and `CAP_PERFMON`, or `CAP_SYS_ADMIN` (<linux/capability.h>).
fn has_capabilities() -> bool {
    let (admin, perfmon, bpf) = (1_u64 << 21, 1_u64 << 38, 1_u64 << 39);
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let effective = effective.unwrap_or(0);
    effective & admin != 0 || effective & (perfmon | bpf) == perfmon | bpf
}

fn locked_memory_is_limited() -> bool {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: this function owns the structure, which outlives the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    result == 0 && limit.rlim_cur != libc::RLIM_INFINITY
}

/// Returns why the kernel's verifier rejected a program, if it did.
fn verifier(error: &(dyn Error + 'static)) -> Option<String> {
    let Some(ProgramError::LoadError { verifier_log, .. }) = error.downcast_ref() else {
        return None;
    };
    let log = verifier_log.to_string();
    last_line(&log).map(|reason| format!("its verifier reports: {reason}"))
}

/// Returns the last line of the verifier's log before its statistics.
fn last_line(log: &str) -> Option<&str> {
    let statistics = ["processed ", "verification time ", "stack depth "];
    let mut lines = log.lines().rev().map(str::trim);
    lines.find(|line| !line.is_empty() && !statistics.iter().any(|it| line.starts_with(it)))
}

/// Formats an error and its causes in one line, without the lines of the verifier's log.
fn one_line(error: &(dyn Error + 'static)) -> String {
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
            Self::Disabled => f.write_str("ptrace was requested"),
            Self::NotPermitted => {
                let program = std::env::current_exe().unwrap_or_default();
                write!(
                    f,
                    "eBPF is not permitted: run as root, or \
                     `setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep {}`",
                    program.display()
                )
            }
            Self::Forbidden => f.write_str(
                "eBPF is denied despite the capabilities, by a seccomp filter, a user namespace \
                 or a security module: run outside the container, or start it with \
                 `docker run --privileged --pid=host`",
            ),
            Self::LockedMemory => f.write_str(
                "before Linux 5.11, eBPF needs locked memory, which is limited here: `ulimit -l \
                 unlimited`",
            ),
            Self::NoTypeInformation if !Path::new("/sys/kernel").exists() => f.write_str(
                "eBPF needs /sys/kernel/btf/vmlinux, and /sys is not mounted: \
                 `mount -t sysfs sysfs /sys`",
            ),
            Self::NoTypeInformation => f.write_str(
                "there is no /sys/kernel/btf/vmlinux: eBPF needs a kernel built with \
                 CONFIG_DEBUG_INFO_BTF, and its own /sys",
            ),
            Self::TooOld {
                release,
                least: (major, minor),
            } => write!(
                f,
                "the eBPF program needs Linux {major}.{minor} or later, this is {release}"
            ),
            Self::Kernel { release, why } => {
                write!(f, "Linux {release} does not accept the eBPF program: {why}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        for (release, expected) in [
            ("4.19.0-27-amd64", true),
            ("5.9.16", true),
            ("5.10.0-32-cloud-amd64", false),
            ("5.100", false),
            ("6.1.0", false),
            ("10.0-rc1", false),
            ("", false),
            ("next", false),
        ] {
            assert_eq!(is_older(release, (5, 10)), expected, "{release}");
        }
    }

    #[test]
    fn an_old_kernel_is_named_and_not_what_it_said() {
        let refused = Refusal::Kernel {
            release: "5.10.0-32-cloud-amd64".into(),
            why: "Invalid argument".into(),
        };
        let too_old = refused.clone().needing((5, 18));
        assert_eq!(
            too_old.to_string(),
            "the eBPF program needs Linux 5.18 or later, this is 5.10.0-32-cloud-amd64"
        );
        assert_eq!(refused.clone().needing((5, 10)), refused);
        assert_eq!(Refusal::NotPermitted.needing((9, 0)), Refusal::NotPermitted);
    }

    #[test]
    fn the_verifiers_reason_is_reported() {
        let log = "592: (85) call bpf_get_stack#67\n\
                   R2 min value is outside of the allowed memory range\n\
                   verification time 9744202 usec\n\
                   stack depth 144\n\
                   processed 18031 insns (limit 1000000) peak_states 479 mark_read 83\n\n";
        let reason = "R2 min value is outside of the allowed memory range";
        assert_eq!(last_line(log), Some(reason));
        assert_eq!(last_line(""), None);
    }

    #[test]
    fn an_error_is_one_line() {
        let error = io::Error::other("first\nand a log\nof many lines");
        assert_eq!(one_line(&error), "first");
    }
}
