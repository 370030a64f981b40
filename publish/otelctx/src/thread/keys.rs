//! Names of attributes and their indexes in records.
//!
//! The registry only grows. Records use an index only once a process context that lists it has been
//! published completely (OTEP 4947, "Process-level reference data").

use std::fmt;
use std::ptr;
use std::slice;
use std::str;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use otelctx_format::MAX_KEYS;

use crate::process_context::{platform, PublishError};

/// The name of an attribute in records, for example `http.route`.
///
/// Make it a `static`; it registers itself on first use. A process can have 256 names, which stay
/// published as long as it runs, so do not generate names from data.
///
/// Until the process context is published with this name, records skip its attributes (and [count
/// as truncated](crate::Context::is_truncated)), because readers could not interpret them. So
/// publish first.
///
/// Two keys with the same name are the same key.
pub struct Key {
    name: &'static str,
    /// [`NEW`]; the index + 1 if it may be used; [`REGISTERED_KEY`] until then, because unpublished
    /// indexes may change; or [`REFUSED`].
    state: AtomicU32,
}

const NEW: u32 = 0;
const LAST_USABLE: u32 = MAX_KEYS as u32;
const REGISTERED_KEY: u32 = LAST_USABLE + 1;
const REFUSED: u32 = u32::MAX;

impl Key {
    /// Creates a key with this name. It is not registered yet.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            state: AtomicU32::new(NEW),
        }
    }

    /// Creates and registers a key whose name is only known at run time.
    ///
    /// The name is stored once, however many keys use it, and kept as long as the process
    /// runs. It takes one of the 256 indexes, so do not create keys from the content of requests.
    ///
    /// ```
    /// # fn configured() -> Vec<String> { vec!["tenant.id".into()] }
    /// for name in configured() {
    ///     let key = otelctx::Key::from_string(name)?;
    ///     // ...
    /// }
    /// # Ok::<(), otelctx::KeyError>(())
    /// ```
    ///
    /// # Errors
    /// [`KeyError`] if the name cannot be registered; nothing is kept then.
    pub fn from_string(name: String) -> Result<Self, KeyError> {
        let name = register(
            &name,
            |name| Box::leak(name.into()),
            // SAFETY: it was leaked above, and unpublished names are only used under the lock.
            |name| drop(unsafe { Box::from_raw(ptr::from_ref(name).cast_mut()) }),
        )?;
        Ok(Self {
            name,
            state: AtomicU32::new(REGISTERED_KEY),
        })
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Registers the key now rather than on first use in a record. If a process context is
    /// published, this updates it, which takes a few microseconds.
    ///
    /// # Errors
    /// [`KeyError`]. Using the key then only marks records as truncated.
    pub fn register(&self) -> Result<(), KeyError> {
        let registered = register(self.name, |_| self.name, |_| ());
        let state = if registered.is_ok() {
            REGISTERED_KEY
        } else {
            REFUSED
        };
        // Another thread may have set a later state; it then starts from here again.
        self.state.store(state, Ordering::Release);
        registered.map(|_| ())
    }

    /// Returns the index of the key in records, for runtimes that [write records
    /// themselves](crate::raw::thread_record). It does not change as long as the process runs.
    ///
    /// `None` until a process context was published with the name, and if the name could not be
    /// [registered](Self::register).
    #[inline]
    #[must_use]
    pub fn index(&self) -> Option<u8> {
        let state = self.state.load(Ordering::Acquire);
        if state.wrapping_sub(1) < LAST_USABLE {
            return Some((state - 1) as u8);
        }
        self.find_index()
    }

    #[cold]
    #[inline(never)]
    fn find_index(&self) -> Option<u8> {
        if self.state.load(Ordering::Acquire) == NEW {
            // An explicit register() returns the error; here, the record is marked as truncated.
            self.register().ok()?;
        }
        let is_own = |name: &str| name == self.name;
        let position = match usable_names().position(is_own) {
            Some(position) => position,
            None if self.state.load(Ordering::Acquire) == REFUSED => return None,
            None => give_index(is_own)?,
        };
        self.state.store(position as u32 + 1, Ordering::Release);
        Some(position as u8)
    }
}

/// Number of keys for each of which the mappings are searched for other publishers, which takes 0.1
/// ms for 600 mappings. Each later search gives as many indexes as there are: 200 keys take 13 searches.
const SEARCHED_KEYS: usize = 8;

/// Gives the published name its index, which does not change any more. `None` if it is not
/// published.
fn give_index(is_own: impl Fn(&str) -> bool + Copy) -> Option<usize> {
    // Without a process context, threads do not wait for each other. Otherwise only the lock tells:
    // the counts change while names get another order, and another thread may have just given the
    // index.
    if !IS_ANY_PUBLISHED.load(Ordering::Acquire) {
        return None;
    }
    let owner = platform::lock();
    published_names().position(is_own)?;
    drop(owner);
    // This is the last moment for another order.
    let _owner = platform::lock_beside_others();
    let position = published_names().position(is_own)?;
    let enough = match position + 1 {
        count @ ..=SEARCHED_KEYS => count,
        count => (2 * GIVEN.load(Ordering::Relaxed)).clamp(count, MAX_KEYS),
    };
    GIVEN.fetch_max(enough, Ordering::Release);
    Some(position)
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

/// The reason why a [`Key`] cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The name is empty, which readers reject.
    Empty,
    /// 256 other names are registered.
    Full {
        /// The name that was not registered.
        name: String,
    },
    /// The process context could not be updated with the name.
    Update {
        /// The name.
        name: String,
        /// The failure.
        error: PublishError,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a key needs a name: readers reject an empty one"),
            Self::Full { name } => write!(
                f,
                "no room for the key {name:?}: {MAX_KEYS} keys are registered, and an index is \
                 one byte; use fewer names, and put varying data into values"
            ),
            Self::Update { name, error } => {
                write!(f, "the key {name:?} could not be published: {error}")
            }
        }
    }
}

impl std::error::Error for KeyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Update { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// A name in the registry: address and length of a `&'static str`. Other copies of this crate in
/// the process read this layout, whatever their version.
#[repr(C)]
pub(crate) struct Name {
    address: AtomicPtr<u8>,
    length: AtomicUsize,
}

pub(super) static NAMES: [Name; MAX_KEYS] = [const {
    Name {
        address: AtomicPtr::new(ptr::null_mut()),
        length: AtomicUsize::new(0),
    }
}; MAX_KEYS];
/// Number of registered names. Updated after the name is stored, so that a process forked in
/// between only counts complete names.
pub(super) static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// Number of names that were published with a process context.
pub(super) static PUBLISHED: AtomicUsize = AtomicUsize::new(0);
/// Set once a process context was published.
static IS_ANY_PUBLISHED: AtomicBool = AtomicBool::new(false);
/// Number of indexes, with a name or without one yet, whose names are final once they have one: records
/// may have them, of this copy, of another copy of this crate, or of another publisher.
pub(super) static GIVEN: AtomicUsize = AtomicUsize::new(0);

/// Returns the registered names, in the order of their indexes. The caller holds the lock: the last
/// name may be removed again.
pub(crate) fn registered_names() -> impl Iterator<Item = &'static str> {
    first_names(REGISTERED.load(Ordering::Acquire))
}

/// Returns the names that were published with a process context, in the order of their indexes.
/// The caller holds the lock: indexes that were not given may change.
fn published_names() -> impl Iterator<Item = &'static str> {
    first_names(PUBLISHED.load(Ordering::Acquire))
}

/// Returns the published names that records can have, in the order of their indexes.
pub(super) fn usable_names() -> impl Iterator<Item = &'static str> {
    let published = PUBLISHED.load(Ordering::Acquire);
    first_names(published.min(GIVEN.load(Ordering::Acquire)))
}

pub(super) fn first_names(count: usize) -> impl Iterator<Item = &'static str> {
    // SAFETY: both came from one `&'static str`, before REGISTERED counted it.
    NAMES[..count].iter().map(|name| unsafe { name.read() })
}

impl Name {
    /// # Safety
    /// The name was written, and lives as long as the result.
    pub(crate) unsafe fn read<'a>(&self) -> &'a str {
        let address = self.address.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        // SAFETY: the caller ensures that the name was written and lives.
        unsafe { str::from_utf8_unchecked(slice::from_raw_parts(address, length)) }
    }

    pub(super) fn write(&self, name: &'static str) {
        let address = name.as_ptr().cast_mut();
        self.address.store(address, Ordering::Relaxed);
        self.length.store(name.len(), Ordering::Relaxed);
    }
}

/// Notes that the first `count` names are published. Once they are given, their indexes do not
/// change as long as the process lives, whatever happens to its context.
pub(crate) fn mark_published(count: usize) {
    IS_ANY_PUBLISHED.store(true, Ordering::Release);
    PUBLISHED.fetch_max(count, Ordering::Release);
}

/// Registers a name unless it is registered already. If it is new, `intern` creates the stored
/// name; `discard` undoes that. Returns the result of `intern`, now or earlier.
fn register(
    name: &str,
    intern: impl FnOnce(&str) -> &'static str,
    discard: impl FnOnce(&'static str),
) -> Result<&'static str, KeyError> {
    if name.is_empty() {
        return Err(KeyError::Empty);
    }
    let mut owner = platform::lock();
    if let Some(known) = registered_names().find(|known| *known == name) {
        return Ok(known);
    }
    let index = REGISTERED.load(Ordering::Relaxed);
    let Some(entry) = NAMES.get(index) else {
        return Err(KeyError::Full { name: name.into() });
    };
    let interned = intern(name);
    entry.write(interned);
    REGISTERED.store(index + 1, Ordering::Release);
    if let Err(error) = owner.publish_keys() {
        // No code has used the index, so the next key may have it.
        REGISTERED.store(index, Ordering::Release);
        discard(interned);
        return Err(KeyError::Update {
            name: name.into(),
            error,
        });
    }
    Ok(interned)
}
