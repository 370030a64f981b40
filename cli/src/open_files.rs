//! Raises the number of files that this process may have open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit to what an unprivileged process may have: usually, that is far more than the 1,024
/// that it starts with.
pub(crate) fn allow_many() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Files beyond the limit are reported as not readable.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
