//! Owns the process's context: one publication at a time, changed under one lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::copies;
use super::copies_lock::CopiesLock;
use super::foreign;
use super::instance_id::identify;
use super::lock::Locked;
use super::mapping::Mapping;
use crate::process_context::{ProcessContext, PublishError};
use crate::thread;

/// A published context.
pub(super) struct Publication {
    pub(super) context: ProcessContext,
    /// The random instance ID, if the context asked for one.
    pub(super) instance_id: Option<String>,
    pub(super) mapping: Mapping,
    payload: Vec<u8>,
    /// Kept because a reader may have read the header before the last update and reads the payload
    /// after it.
    pub(super) previous_payload: Vec<u8>,
}

/// The publication. Valid only while [`super::lock::Shared::current`] is not 0: a forked child
/// inherits the pointer, possibly during a change, and must not dereference it.
static PUBLICATION: AtomicPtr<Publication> = AtomicPtr::new(ptr::null_mut());
/// Number of publications so far, including those of parent processes, so that their numbers are
/// unique.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The timestamp of the last update.
static LAST_TIMESTAMP: AtomicU64 = AtomicU64::new(0);

/// Holds the lock on the publication and its related state.
pub(crate) struct Owner(Locked);

/// Waits for the lock. Must not be called in signal handlers.
#[inline(never)]
pub(crate) fn lock() -> Owner {
    Owner(Locked::acquire())
}

/// [`lock`], after keys whose indexes were not given have got other ones, if other publishers have
/// published contexts beside this copy's: such as to contradict no key map.
pub(crate) fn lock_beside_others() -> Owner {
    let own = lock().publication().map(|it| it.mapping.address());
    // Without the lock, as in `publish`.
    let found = own.map_or(Vec::new(), foreign::find_all_but);
    let mut owner = lock();
    let is_same = owner.publication().map(|it| it.mapping.address()) == own;
    // If publishing them fails, the keys stay unused.
    if is_same && !found.is_empty() && copies::continue_keys(&owner, &found) {
        let _ = owner.publish_keys();
    }
    owner
}

/// Maximum number of contexts of other copies that are withdrawn before publishing. Normally there
/// is one, or a few if several copies publish at the same time.
const MAX_WITHDRAWALS: u32 = 8;
/// [`Owner::current`] after another copy of this crate has taken over.
const WITHDRAWN: u64 = u64::MAX;

impl Owner {
    pub(super) fn of(locked: Locked) -> Self {
        Self(locked)
    }

    /// Returns the current publication of this process; 0 for none.
    pub(super) fn current(&self) -> u64 {
        self.0.shared.current.load(Ordering::Relaxed)
    }

    pub(super) fn publication(&mut self) -> Option<&mut Publication> {
        if self.current() == 0 {
            return None;
        }
        // SAFETY: this process completed it, and the lock is held.
        unsafe { PUBLICATION.load(Ordering::Relaxed).as_mut() }
    }

    /// Withdraws the context, if one is published.
    fn withdraw(&mut self, current: u64) -> Result<(), PublishError> {
        if self.publication().is_none() {
            return Ok(());
        }
        self.0.shared.current.store(current, Ordering::Release);
        let publication = PUBLICATION.swap(ptr::null_mut(), Ordering::Relaxed);
        // SAFETY: `publication` returned it, so this process created it; no other code uses it now.
        let publication = unsafe { Box::from_raw(publication) };
        publication.mapping.withdraw()
    }

    /// Withdraws the context, if one is published, in favour of another copy of this crate.
    pub(super) fn make_way(&mut self) -> Result<(), PublishError> {
        self.withdraw(WITHDRAWN)
    }

    /// Returns the publication that a forked child has inherited.
    ///
    /// # Safety
    /// The forking thread held the lock, so that no change was in progress.
    #[allow(clippy::unused_self)]
    pub(super) unsafe fn inherited(&self) -> Option<&'static mut Publication> {
        // SAFETY: the caller ensures that no change is in progress, and the lock is held.
        unsafe { PUBLICATION.load(Ordering::Relaxed).as_mut() }
    }

    /// Publishes the registered keys, if a context is published.
    pub(crate) fn publish_keys(&mut self) -> Result<(), PublishError> {
        let Some(publication) = self.publication() else {
            return Ok(());
        };
        let payload = publication.context.encode();
        publication.context.check_size(payload.len())?;
        publication.show(payload)
    }

    #[inline(never)]
    fn publish(&self, mut context: ProcessContext) -> Result<u64, PublishError> {
        if let Some(problem) = &self.0.problem {
            return Err(problem.clone());
        }
        let instance_id = identify(&mut context, None)?;
        let payload = context.encode_checked()?;
        let mut publication = Box::new(Publication {
            context,
            instance_id,
            mapping: Mapping::new()?,
            payload: Vec::new(),
            previous_payload: Vec::new(),
        });
        let id = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        self.show_first(id, &mut publication, payload)?;
        // In a forked child, this leaks the inherited publication.
        PUBLICATION.store(Box::into_raw(publication), Ordering::Relaxed);
        Ok(id)
    }

    /// Makes the first payload of this process visible, as publication `id`.
    pub(super) fn show_first(
        &self,
        id: u64,
        publication: &mut Publication,
        payload: Vec<u8>,
    ) -> Result<(), PublishError> {
        publication.show(payload).inspect_err(|_| {
            // Report the first failure.
            let _ = publication.mapping.withdraw();
        })?;
        self.0.shared.current.store(id, Ordering::Release);
        Ok(())
    }
}

impl Publication {
    /// Replaces the context.
    fn replace(&mut self, mut context: ProcessContext) -> Result<(), PublishError> {
        let instance_id = identify(&mut context, self.instance_id.as_deref())?;
        let payload = context.encode_checked()?;
        self.context = context;
        self.instance_id = instance_id;
        self.show(payload)
    }

    /// Makes a payload visible, and the keys that it lists usable.
    fn show(&mut self, payload: Vec<u8>) -> Result<(), PublishError> {
        let keys = thread::registered_names().count();
        self.mapping.store(&payload, next_timestamp());
        self.previous_payload = std::mem::replace(&mut self.payload, payload);
        self.mapping.name()?;
        thread::mark_published(keys);
        Ok(())
    }
}

/// Publishes a context; returns its publication number.
pub(crate) fn publish(mut context: ProcessContext) -> Result<u64, PublishError> {
    let _copies = CopiesLock::acquire();
    let mut owner = lock();
    let mut withdrawals_left = MAX_WITHDRAWALS;
    loop {
        if owner.publication().is_some() {
            return Err(PublishError::AlreadyPublished);
        }
        let count = COUNT.load(Ordering::Relaxed);
        drop(owner);
        // Without the lock: scanning the mappings may take long, and registering a key needs the
        // lock.
        let found = foreign::find(None);
        owner = lock();
        match found {
            // Another thread has published with this copy of the crate: it may have been found.
            _ if count != COUNT.load(Ordering::Relaxed) => {}
            None => return owner.publish(context),
            Some(found) => {
                // Only withdraw another copy's context if this one can be published.
                context.encode_checked()?;
                if withdrawals_left == 0 || !copies::withdraw_other(&owner, found.address) {
                    let mapping = found.line;
                    return Err(PublishError::Foreign { mapping });
                }
                withdrawals_left -= 1;
            }
        }
    }
}

/// Returns whether this process has a process context, of this copy or any other publisher.
pub(crate) fn is_published() -> bool {
    let is_own = lock().publication().is_some();
    is_own || foreign::find(None).is_some()
}

/// Returns the line of the maps with a context that another publisher has published beside this
/// copy's.
pub(crate) fn find_other() -> Option<String> {
    let own = lock().publication()?.mapping.address();
    Some(foreign::find(Some(own))?.line)
}

/// Replaces publication `id`; in a forked child, publishes. Returns the publication number.
pub(crate) fn update(id: u64, context: ProcessContext) -> Result<u64, PublishError> {
    let mut owner = lock();
    let current = owner.current();
    if current == 0 {
        drop(owner);
        return publish(context);
    }
    let publication = owner.publication().filter(|_| current == id);
    let publication = publication.ok_or(PublishError::NotPublished)?;
    publication.replace(context)?;
    Ok(id)
}

/// Changes the published context. The lock is free while `change` runs, so it may register keys.
pub(crate) fn modify(
    change: &mut dyn FnMut(ProcessContext) -> ProcessContext,
) -> Result<(), PublishError> {
    let mut before = None;
    loop {
        let mut owner = lock();
        let publication = owner.publication().ok_or(PublishError::NotPublished)?;
        let timestamp = LAST_TIMESTAMP.load(Ordering::Relaxed);
        if let Some((_, context)) = before.take_if(|(seen, _)| *seen == timestamp) {
            return publication.replace(context);
        }
        let context = publication.context.clone();
        drop(owner);
        before = Some((timestamp, change(context)));
    }
}

/// Withdraws publication `id`; does nothing if it does not belong to this process.
pub(crate) fn unpublish(id: u64) -> Result<(), PublishError> {
    let mut owner = lock();
    if owner.current() != id {
        return Ok(());
    }
    owner.withdraw(0)
}

/// Nanoseconds of `CLOCK_BOOTTIME`, greater than all previous results.
fn next_timestamp() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable. If the call fails, the timestamp is still unique.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let timestamp = now.max(LAST_TIMESTAMP.load(Ordering::Relaxed) + 1);
    LAST_TIMESTAMP.store(timestamp, Ordering::Relaxed);
    timestamp
}
