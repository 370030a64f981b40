//! The machine that the measurements are taken on.

use std::process::Command;

/// CPU, kernel and compiler, in one line.
pub(crate) fn description() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(": ")?.1.to_owned())
        })
        .unwrap_or_else(|| "unknown CPU".into());
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cpu}, {cores} cores, Linux {}, {}", kernel.trim(), rustc())
}

/// The compiler's version.
pub(crate) fn rustc() -> String {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output();
    match output {
        Ok(output) => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        Err(_) => "unknown rustc".into(),
    }
}

/// Pins the calling thread and its children to one CPU until it is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Pinned(libc::cpu_set_t);

impl Pinned {
    /// Pins to CPU number `cpu`.
    ///
    /// Does nothing where a container does not allow that CPU: the measurements are a little noisier.
    pub(crate) fn to(cpu: usize) -> Self {
        // SAFETY: the sets are plain data of this function; an empty one is valid.
        unsafe {
            let mut before: libc::cpu_set_t = std::mem::zeroed();
            libc::sched_getaffinity(0, size_of_val(&before), &raw mut before);
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
            Self(before)
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the set is plain data of this value.
        unsafe { libc::sched_setaffinity(0, size_of_val(&self.0), &raw const self.0) };
    }
}
