//! The CPU time of a task with all that it starts.

use std::process::{Command, ExitCode};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// Set for the task below the supervisor.
const SUPERVISED: &str = "OTELCTX_XTASK_SUPERVISED";

/// Runs this program once more, and prints the CPU time of its process tree at the end: also of processes whose parents
/// have ended, which become this one's. `None` in the process that is to do the task.
pub(crate) fn supervise(task: &str) -> Option<ExitCode> {
    if std::env::var_os(SUPERVISED).is_some() || nix::sys::prctl::set_child_subreaper(true).is_err()
    {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.args(std::env::args_os().skip(1));
    command.env(SUPERVISED, "1");
    let child = command.spawn().ok()?;
    let child = nix::unistd::Pid::from_raw(child.id().try_into().ok()?);
    let code = loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == child => break code,
            Ok(WaitStatus::Signaled(pid, ..)) if pid == child => break 1,
            Ok(_) | Err(nix::Error::EINTR) => {}
            Err(_) => break 1,
        }
    };
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
    if let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) {
        let total = usage.user_time() + usage.system_time();
        eprintln!("{task}: {} s of CPU time", total.tv_sec());
    }
    Some(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}
