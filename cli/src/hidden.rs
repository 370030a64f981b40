//! Processes that `/proc` does not show: it is mounted with the option `hidepid` (proc(5)), as by
//! systemd's `ProtectProc=`.

use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

use crate::output::terminal;

/// What shows the processes.
pub(crate) const HINT: &str =
    "run as root, or as a member of the group in the option gid of that mount";

/// Returns whether a process, or a thread, exists that `/proc` does not show.
pub(crate) fn is_hidden(pid: i32) -> bool {
    let exists = kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH);
    exists && !Path::new(&format!("/proc/{pid}")).exists()
}

/// Says once that processes of other users are not among all processes, if so: process 1 always exists.
pub(crate) fn say_if_any() {
    if is_hidden(1) {
        let message = "/proc hides the processes of other users (it is mounted with hidepid)";
        terminal::complain(message, Some(HINT));
    }
}
