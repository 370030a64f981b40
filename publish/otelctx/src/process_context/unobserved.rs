//! Targets on which nothing can be published: all calls succeed and have no effect. This includes
//! Linux without 64-bit atomics, because the timestamp that readers check must be one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{ProcessContext, PublishError};
use crate::thread;

static LOCK: Mutex<()> = Mutex::new(());

/// Holds the lock on the key registry and the pool of shared records.
pub(crate) struct Owner(#[allow(dead_code)] MutexGuard<'static, ()>);

/// Waits for the lock.
pub(crate) fn lock() -> Owner {
    Owner(LOCK.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The lock: there are no others.
pub(crate) fn lock_beside_others() -> Owner {
    lock()
}

impl Owner {
    /// Does nothing but count: no reader exists for the keys.
    #[allow(clippy::unused_self, clippy::unnecessary_wraps)]
    pub(crate) fn publish_keys(&mut self) -> Result<(), PublishError> {
        thread::mark_published(thread::registered_names().count());
        Ok(())
    }
}

/// Checks the context.
pub(crate) fn publish(mut context: ProcessContext) -> Result<u64, PublishError> {
    let mut owner = lock();
    context.encode_checked()?;
    owner.publish_keys()?;
    Ok(1)
}

/// Returns true: nobody can tell the difference.
pub(crate) fn is_published() -> bool {
    true
}

/// Returns `None`: nobody else publishes.
pub(crate) fn find_other() -> Option<String> {
    None
}

/// Checks the context.
pub(crate) fn update(_id: u64, context: ProcessContext) -> Result<u64, PublishError> {
    publish(context)
}

/// Checks the attributes that are set.
pub(crate) fn modify(
    change: &mut dyn FnMut(ProcessContext) -> ProcessContext,
) -> Result<(), PublishError> {
    change(ProcessContext::new()).encode_checked().map(drop)
}

/// Does nothing: children have nothing to publish.
pub(crate) fn republish_after_fork(_id: u64) -> Result<(), PublishError> {
    Ok(())
}

/// Does nothing: there is nothing to remove.
pub(crate) fn unpublish(_id: u64) -> Result<(), PublishError> {
    Ok(())
}
