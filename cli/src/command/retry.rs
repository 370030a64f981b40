//! Retries inspecting a process that seemed to have ended.

use otelctx_reader::{Error, remote};

/// Number of attempts that may find no process although there is one.
const MAX_ATTEMPTS: usize = 3;

/// Calls `read` for process `pid`, and again if it reports that the process has ended although it
/// exists. Returns `None` if it has ended.
pub(super) fn unless_ended<T>(
    pid: i32,
    mut read: impl FnMut() -> Result<T, Error>,
) -> Result<Option<T>, Error> {
    for _ in 0..MAX_ATTEMPTS {
        match read() {
            Err(error) if error.is_gone() => {}
            answer => return answer.map(Some),
        }
        if has_ended(pid) {
            return Ok(None);
        }
    }
    Err(Error::NotStopped { tid: pid })
}

/// Returns whether there is no program with this ID: a process that is exiting has no executable,
/// and neither does a kernel thread.
fn has_ended(pid: i32) -> bool {
    let executable = remote::Process::open(pid).and_then(|process| process.executable());
    executable.is_err()
}
