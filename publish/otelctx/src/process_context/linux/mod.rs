//! Publishing on Linux (OTEP 4719).

mod copies;
mod copies_lock;
mod foreign;
mod fork;
mod instance_id;
mod lock;
mod mapping;
mod owner;

pub(crate) use fork::republish_after_fork;
pub(crate) use owner::{
    find_other, is_published, lock, lock_beside_others, modify, publish, unpublish, update,
};

use super::PublishError;

/// Returns the error of the system call that has just failed.
fn system_error(call: &'static str) -> PublishError {
    PublishError::System {
        call,
        errno: errno(),
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
