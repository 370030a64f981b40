//! Publishes a context in forked children, for servers that fork their workers.
//!
//! After a fork, the child of a program with several threads may only do what is allowed in a
//! signal handler (fork(2)), because another thread may have held any lock. So everything is
//! prepared before the fork: the forking thread takes the lock, so that the child inherits
//! consistent data, and encodes the child's context. The child only makes system calls, and writes
//! its PID and its instance ID over placeholders.

use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use otelctx_format::process_context::Value;

use super::instance_id::{self, INSTANCE_ID, PLACEHOLDER};
use super::mapping::Mapping;
use super::owner::{lock, Owner, Publication};
use crate::call::caught;
use crate::process_context::{ProcessContext, PublishError, PID};

/// Placeholder for the child's PID. PIDs have at most 22 bits (`PID_MAX_LIMIT` in linux/threads.h);
/// this is the largest number whose varint has 4 bytes.
const ANY_PID: u32 = (1 << 28) - 1;
/// The end of an encoded attribute with that value: an `AnyValue`, of 5 bytes, with an `int_value`.
const ANY_PID_ENCODED: &[u8] = b"process.pid\x12\x05\x18\xff\xff\xff\x7f";

/// The publication that is renewed in children; 0 for none.
static RENEWED: AtomicU64 = AtomicU64::new(0);
/// Set once the handlers are registered. They cannot be removed.
static REGISTERED: AtomicBool = AtomicBool::new(false);
/// The data that is prepared for a fork in progress. Accessed under the lock.
static PREPARED: AtomicPtr<Prepared> = AtomicPtr::new(ptr::null_mut());

struct Prepared {
    /// `None` in the child, where the lock is free.
    owner: Option<Owner>,
    next: Option<Next>,
}

/// The context that the child publishes.
struct Next {
    id: u64,
    context: ProcessContext,
    instance_id: Option<String>,
    payload: Vec<u8>,
    /// The end of [`ANY_PID`] in the payload, if the context has the pid.
    pid_end: Option<usize>,
    /// The end of [`PLACEHOLDER`] in the payload, if the context has a random instance ID.
    id_end: Option<usize>,
}

/// Makes every later child renew publication `id`.
pub(crate) fn republish_after_fork(id: u64) -> Result<(), PublishError> {
    if lock().current() != id {
        return Err(PublishError::NotPublished);
    }
    // Without the lock: a fork in progress holds that of the handlers, and waits for ours.
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the handlers take no arguments and do not unwind.
        let error = unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
        if error != 0 {
            REGISTERED.store(false, Ordering::Relaxed);
            return Err(PublishError::System {
                call: "pthread_atfork",
                errno: error,
            });
        }
    }
    RENEWED.store(id, Ordering::Relaxed);
    Ok(())
}

extern "C" fn prepare() {
    caught((), || {
        let mut owner = lock();
        let id = owner.current();
        let next = match owner.publication() {
            Some(publication) if id == RENEWED.load(Ordering::Relaxed) => Next::of(id, publication),
            _ => None,
        };
        replace_prepared(Some(Prepared {
            owner: Some(owner),
            next,
        }));
    });
}

extern "C" fn in_parent() {
    // Releases the lock.
    caught((), || replace_prepared(None));
}

extern "C" fn in_child() {
    caught((), || {
        // SAFETY: made by `prepare`, and this is the only thread.
        let Some(prepared) = (unsafe { PREPARED.load(Ordering::Relaxed).as_mut() }) else {
            return;
        };
        // It was the parent's lock: in this process, it is free.
        mem::forget(prepared.owner.take());
        if let Some(next) = &mut prepared.next {
            // If this fails, the child has no context, as without this feature.
            let _ = next.publish();
        }
    });
}

/// Drops what was prepared before; in a child, what its own fork left over.
fn replace_prepared(prepared: Option<Prepared>) {
    let new = prepared.map_or(ptr::null_mut(), |prepared| {
        Box::into_raw(Box::new(prepared))
    });
    let old = PREPARED.swap(new, Ordering::Relaxed);
    if !old.is_null() {
        // SAFETY: made above, and taken out by the holder of the lock.
        drop(unsafe { Box::from_raw(old) });
    }
}

impl Next {
    fn of(id: u64, publication: &Publication) -> Option<Self> {
        let mut context = publication.context.clone();
        let resource = &mut context.payload.resource;
        // Attributes with placeholders go first, where no other value can be mistaken for one.
        let mut take_to_front = |name: &str, old: Value, new: Value| {
            let at = resource
                .iter()
                .position(|(key, value)| key == name && *value == old);
            if let Some(at) = at {
                resource.remove(at);
                resource.insert(0, (name.into(), new));
            }
            at.is_some()
        };
        let has_pid = take_to_front(PID, std::process::id().into(), ANY_PID.into());
        let old_id = publication.instance_id.as_deref();
        // An ID that the program has set is kept.
        let has_id =
            old_id.is_some_and(|id| take_to_front(INSTANCE_ID, id.into(), PLACEHOLDER.into()));
        let payload = context.encode();
        context.check_size(payload.len()).ok()?;
        let end_of = |bytes: &[u8]| {
            let at = payload.windows(bytes.len()).position(|at| at == bytes);
            at.map(|at| at + bytes.len())
        };
        Some(Self {
            id,
            instance_id: old_id.map(|_| PLACEHOLDER.to_owned()),
            pid_end: has_pid.then(|| end_of(ANY_PID_ENCODED)).flatten(),
            id_end: has_id.then(|| end_of(PLACEHOLDER.as_bytes())).flatten(),
            context,
            payload,
        })
    }

    /// Publishes in the child. Does not allocate or free: what the child no longer needs is kept in
    /// `self`, for the next fork to drop.
    fn publish(&mut self) -> Result<(), PublishError> {
        let owner = lock();
        // SAFETY: the forking thread held the lock.
        let Some(publication) = (unsafe { owner.inherited() }) else {
            return Ok(());
        };
        let pid = std::process::id();
        if let Some(end) = self.pid_end {
            // 4 bytes with 7 bits each; all but the last have the continuation bit.
            let mut rest = pid;
            for byte in &mut self.payload[end - 4..end - 1] {
                *byte = rest as u8 | 0x80;
                rest >>= 7;
            }
            self.payload[end - 1] = rest as u8;
        }
        if let Some(own) = &mut self.instance_id {
            let id = instance_id::random()?;
            if let Some(end) = self.id_end {
                self.payload[end - id.len()..end].copy_from_slice(&id);
            }
            write_over(own, id);
            for (key, value) in &mut self.context.payload.resource {
                if let (INSTANCE_ID, Value::String(text)) = (&**key, value) {
                    if text == PLACEHOLDER {
                        write_over(text, id);
                    }
                }
            }
        }
        for (key, value) in &mut self.context.payload.resource {
            if key == PID && matches!(value, Value::Int(pid) if *pid == i64::from(ANY_PID)) {
                *value = pid.into();
            }
        }
        mem::swap(&mut publication.context, &mut self.context);
        mem::swap(&mut publication.instance_id, &mut self.instance_id);
        let oldest = mem::take(&mut publication.previous_payload);
        let payload = mem::replace(&mut self.payload, oldest);
        publication.mapping = Mapping::new()?;
        owner.show_first(self.id, publication, payload)
    }
}

/// Overwrites a string with ASCII text of the same length.
fn write_over(text: &mut String, ascii: [u8; PLACEHOLDER.len()]) {
    text.clear();
    text.extend(ascii.map(char::from));
}
