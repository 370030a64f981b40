//! Explains why the kernel refuses access to another process, and names what would allow it.

use std::fs;

/// The number of CAP_SYS_PTRACE (capabilities(7), include/uapi/linux/capability.h).
const CAP_SYS_PTRACE: u32 = 19;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Own {
    root: bool,
    capability: bool,
    /// A filter on system calls (seccomp(2)), as container engines set one.
    filter: bool,
}

impl Own {
    fn of(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().split_whitespace().next()
        };
        let capabilities = field("CapEff:").and_then(|bits| u64::from_str_radix(bits, 16).ok());
        Own {
            // The real user. The effective one differs only in set-user-id programs.
            root: field("Uid:") == Some("0"),
            capability: capabilities.is_some_and(|bits| bits & (1 << CAP_SYS_PTRACE) != 0),
            filter: field("Seccomp:") == Some("2"),
        }
    }
}

/// Names what would allow tracing another process (ptrace(2), "Ptrace access mode checking").
pub(crate) fn hint() -> String {
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let own = Own::of(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    advice(yama.trim(), own)
}

fn advice(yama: &str, own: Own) -> String {
    if yama == "3" {
        return "kernel.yama.ptrace_scope is 3, so not even root can, until the next boot".into();
    }
    if own.capability {
        let by = if own.filter {
            "a seccomp filter"
        } else {
            "a security module, or the process belongs to another user namespace"
        };
        return format!(
            "otelctx has the capability CAP_SYS_PTRACE, so it is refused by {by}: run it outside \
             the sandbox"
        );
    }
    let how = if own.root {
        "which root does not have here: run otelctx outside the sandbox, or grant it, as \
             `docker run --cap-add SYS_PTRACE` does"
    } else {
        "run as root"
    };
    let same_user = "or the same user as the process if that is dumpable";
    match yama {
        "1" => format!(
            "it needs the capability CAP_SYS_PTRACE ({how}), {same_user}; \
             kernel.yama.ptrace_scope is 1, so without the capability only the \
             reader's own children can be read (`sysctl kernel.yama.ptrace_scope=0` changes that)"
        ),
        "2" => format!(
            "kernel.yama.ptrace_scope is 2, so it needs the capability CAP_SYS_PTRACE ({how})"
        ),
        _ => format!("it needs the capability CAP_SYS_PTRACE ({how}), {same_user}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Own, advice};

    const NOBODY: Own = Own {
        root: false,
        capability: false,
        filter: false,
    };

    #[test]
    fn the_hint_names_capability_and_setting() {
        for (scope, setting) in [
            ("1", "ptrace_scope is 1"),
            ("2", "ptrace_scope is 2"),
            ("3", "ptrace_scope is 3"),
        ] {
            assert!(advice(scope, NOBODY).contains(setting));
        }
        for scope in ["", "0", "1", "2"] {
            let advice = advice(scope, NOBODY);
            assert!(advice.contains("CAP_SYS_PTRACE (run as root)"), "{advice}");
        }
        assert!(!advice("", NOBODY).contains("yama"));
    }

    #[test]
    fn root_is_not_advised_to_become_root() {
        let status = "Name:\tx\nUid:\t0\t0\t0\t0\nCapEff:\t00000000a80425fb\nSeccomp:\t2\n";
        let contained = Own::of(status);
        let expected = Own {
            root: true,
            capability: false,
            filter: true,
        };
        assert_eq!(contained, expected);
        let whole = Own {
            capability: true,
            ..contained
        };
        assert_eq!(Own::of(&status.replace("a80425fb", "a80c25fb")), whole);
        for scope in ["", "1", "2"] {
            for own in [contained, whole] {
                let advice = advice(scope, own);
                assert!(!advice.contains("run as root"), "{advice}");
                assert!(advice.contains("CAP_SYS_PTRACE"), "{advice}");
            }
        }
        assert!(advice("", contained).contains("--cap-add SYS_PTRACE"));
        assert!(advice("", whole).contains("seccomp filter"));
    }
}
