//! Who owns the process's context: one publication at a time, changed under one lock.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::foreign;
use super::lock::Locked;
use super::mapping::Mapping;
use super::system_error;
use crate::arch::hex;
use crate::process_context::{ProcessContext, PublishError};
use crate::thread;

const INSTANCE_ID: &str = "service.instance.id";

/// What is published.
struct Publication {
    context: ProcessContext,
    instance_id: Option<String>,
    mapping: Mapping,
    payload: Vec<u8>,
    /// A reader may have read the header before the last update and the payload after it.
    _previous_payload: Vec<u8>,
}

/// The publication. Valid only while [`super::lock::Shared::current`] is not 0: a forked child
/// inherits the pointer, perhaps in the middle of a change, and must not follow it.
static PUBLICATION: AtomicPtr<Publication> = AtomicPtr::new(ptr::null_mut());
/// How many publications there have been, parents' included, so that each has a number of its own.
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The timestamp of the last update.
static LAST_TIMESTAMP: AtomicU64 = AtomicU64::new(0);

/// Holds the lock over the publication and what goes with it.
pub(crate) struct Owner(Locked);

/// Waits for the lock. Not for signal handlers.
#[inline(never)]
pub(crate) fn lock() -> Owner {
    Owner(Locked::acquire())
}

impl Owner {
    fn publication(&mut self) -> Option<&mut Publication> {
        if self.0.shared.current.load(Ordering::Relaxed) == 0 {
            return None;
        }
        // SAFETY: made by this process, whole, and the lock is held.
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
            _previous_payload: Vec::new(),
        });
        if let Err(error) = publication.show(payload) {
            // The first failure is the one to report.
            let _ = publication.mapping.withdraw();
            return Err(error);
        }
        let id = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
        // In a forked child, this leaks what it inherited.
        PUBLICATION.store(Box::into_raw(publication), Ordering::Relaxed);
        self.0.shared.current.store(id, Ordering::Release);
        Ok(id)
    }
}

impl Publication {
    /// Shows another context in place of this one.
    fn replace(&mut self, mut context: ProcessContext) -> Result<(), PublishError> {
        let instance_id = identify(&mut context, self.instance_id.as_deref())?;
        let payload = context.encode_checked()?;
        self.context = context;
        self.instance_id = instance_id;
        self.show(payload)
    }

    /// Makes a payload visible, and keys usable that it lists.
    fn show(&mut self, payload: Vec<u8>) -> Result<(), PublishError> {
        let keys = thread::registered_names().count();
        self.mapping.store(&payload, next_timestamp());
        self._previous_payload = std::mem::replace(&mut self.payload, payload);
        self.mapping.name()?;
        thread::mark_published(keys);
        Ok(())
    }
}

/// Publishes; returns the number of the publication.
pub(crate) fn publish(context: ProcessContext) -> Result<u64, PublishError> {
    let mut owner = lock();
    loop {
        if owner.publication().is_some() {
            return Err(PublishError::AlreadyPublished);
        }
        let count = COUNT.load(Ordering::Relaxed);
        drop(owner);
        // Reading one's own mappings may take long, and registering a key takes the lock.
        let found = foreign::find();
        owner = lock();
        match found {
            None if owner.publication().is_none() => return owner.publish(context),
            Some(mapping) if count == COUNT.load(Ordering::Relaxed) => {
                return Err(PublishError::Foreign { mapping });
            }
            // This copy of the crate has published meanwhile: that may be what was found.
            _ => {}
        }
    }
}

/// Replaces publication `id`; in a forked child, publishes. Returns the number of the publication.
pub(crate) fn update(id: u64, context: ProcessContext) -> Result<u64, PublishError> {
    let mut owner = lock();
    let current = owner.0.shared.current.load(Ordering::Relaxed);
    let Some(publication) = owner.publication() else {
        drop(owner);
        return publish(context);
    };
    if current != id {
        return Err(PublishError::NotPublished);
    }
    publication.replace(context)?;
    Ok(id)
}

/// Changes what is published. The lock is free while `change` runs, which may register keys.
pub(crate) fn modify(
    change: &mut dyn FnMut(ProcessContext) -> ProcessContext,
) -> Result<(), PublishError> {
    let mut before = None;
    loop {
        let mut owner = lock();
        let publication = owner.publication().ok_or(PublishError::NotPublished)?;
        let timestamp = LAST_TIMESTAMP.load(Ordering::Relaxed);
        match before.take() {
            Some((seen, context)) if seen == timestamp => return publication.replace(context),
            _ => {}
        }
        let context = publication.context.clone();
        drop(owner);
        before = Some((timestamp, change(context)));
    }
}

/// Removes publication `id`; does nothing when it is not this process's.
pub(crate) fn unpublish(id: u64) -> Result<(), PublishError> {
    let owner = lock();
    let current = &owner.0.shared.current;
    if current.load(Ordering::Relaxed) != id {
        return Ok(());
    }
    current.store(0, Ordering::Release);
    let publication = PUBLICATION.swap(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: `current` said that this process made it; nobody else has it now.
    let publication = unsafe { Box::from_raw(publication) };
    publication.mapping.withdraw()
}

/// Gives a context that wants it the instance id of before, or else a random one.
fn identify(
    context: &mut ProcessContext,
    before: Option<&str>,
) -> Result<Option<String>, PublishError> {
    if !context.random_instance_id {
        return Ok(None);
    }
    let id = match before {
        Some(id) => id.to_owned(),
        None => random_id()?,
    };
    // The program may have set one of its own.
    let payload = &mut context.payload;
    if payload.resource_attribute(INSTANCE_ID).is_none() {
        payload
            .resource
            .push((INSTANCE_ID.into(), id.as_str().into()));
    }
    Ok(Some(id))
}

/// Nanoseconds of `CLOCK_BOOTTIME`, later than all that were returned before.
fn next_timestamp() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is writable. Should the call fail, the timestamp is still a new one.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut time) };
    let now = time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    let timestamp = now.max(LAST_TIMESTAMP.load(Ordering::Relaxed) + 1);
    LAST_TIMESTAMP.store(timestamp, Ordering::Relaxed);
    timestamp
}

/// A random UUID (RFC 9562, version 4).
fn random_id() -> Result<String, PublishError> {
    let mut bytes = [0_u8; 16];
    // SAFETY: the buffer is 16 bytes, which the kernel returns whole. The system call itself,
    // because glibc before 2.25 has no function for it.
    let read = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    if read != 16 {
        return Err(system_error("getrandom"));
    }
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut id = String::with_capacity(36);
    for half in bytes.chunks_exact(8) {
        for digit in hex(half.try_into().expect("8 bytes")) {
            if [8, 13, 18, 23].contains(&id.len()) {
                id.push('-');
            }
            id.push(char::from(digit));
        }
    }
    Ok(id)
}
