//! What stands in the way when the kernel refuses.

use std::fs;

/// Names the capability or the setting that would allow reading and tracing another process
/// (ptrace(2), "Ptrace access mode checking").
pub(crate) fn mend() -> String {
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    advice(yama.trim())
}

fn advice(yama: &str) -> String {
    let capability = "it needs the capability CAP_SYS_PTRACE (run as root), or the same user as \
                      the process if that is dumpable";
    match yama {
        "1" => format!(
            "{capability}; kernel.yama.ptrace_scope is 1, so without the capability only the \
             reader's own children can be read (`sysctl kernel.yama.ptrace_scope=0` changes that)"
        ),
        "2" => "kernel.yama.ptrace_scope is 2, so it needs the capability CAP_SYS_PTRACE \
                (run as root)"
            .to_string(),
        "3" => "kernel.yama.ptrace_scope is 3, so nobody can until the next boot".to_string(),
        _ => capability.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::advice;

    #[test]
    fn the_mend_names_capability_and_setting() {
        for (scope, setting) in [
            ("1", "ptrace_scope is 1"),
            ("2", "ptrace_scope is 2"),
            ("3", "ptrace_scope is 3"),
        ] {
            assert!(advice(scope).contains(setting));
        }
        for scope in ["", "0", "1", "2"] {
            assert!(advice(scope).contains("CAP_SYS_PTRACE"), "{scope}");
        }
        assert!(!advice("").contains("yama"));
    }
}
