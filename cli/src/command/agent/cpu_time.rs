//! The CPU time of the agent.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

/// Returns the CPU time of this process, without that of its child processes.
pub(super) fn of_process() -> Duration {
    of(UsageWho::RUSAGE_SELF)
}

/// Returns the CPU time of this thread.
pub(super) fn of_thread() -> Duration {
    of(UsageWho::RUSAGE_THREAD)
}

/// Returns the CPU time of this thread and of the child processes that it has started, which decode files.
pub(super) fn of_resolving() -> Duration {
    of_thread() + otelctx_worker::cpu_time()
}

fn of(who: UsageWho) -> Duration {
    let Ok(usage) = getrusage(who) else {
        return Duration::ZERO;
    };
    let microseconds =
        usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
    Duration::from_micros(u64::try_from(microseconds).unwrap_or(0))
}
