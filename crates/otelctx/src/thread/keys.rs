//! Names of attributes and the positions that stand for them in records.
//!
//! The registry only grows. A position is used in a record only once a process context that
//! lists it has been published completely (OTEP 4947, "Process-level reference data").

use std::fmt;
use std::ptr;
use std::slice;
use std::str;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use otelctx_format::MAX_KEYS;

use crate::process_context::{platform, PublishError};

/// The name of an attribute in records, for example `http.route`.
///
/// Make it a `static`; it registers itself on first use. A process has room for 256 names and
/// they are published for as long as it runs, so use names of which there are few.
///
/// Until the process context is published with the name, records leave its attributes out (and
/// [count as truncated](crate::Record::is_truncated)), because no reader could tell what they mean:
/// publish first.
///
/// Two keys with the same name are one.
pub struct Key {
    name: &'static str,
    /// [`NEW`]; the position + 1 when it may be used; [`REGISTERED_KEY`] until then, because
    /// positions that are not published may change; [`REFUSED`].
    state: AtomicU32,
}

const NEW: u32 = 0;
const LAST_USABLE: u32 = MAX_KEYS as u32;
const REGISTERED_KEY: u32 = LAST_USABLE + 1;
const REFUSED: u32 = u32::MAX;

impl Key {
    /// A key with this name, not registered yet.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            state: AtomicU32::new(NEW),
        }
    }

    /// A key whose name is known at run time only, registered.
    ///
    /// The name is kept for as long as the process runs, once however many keys are made of it. It
    /// takes one of the 256 places, so don't make keys of what a request contains.
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
    /// [`KeyError`], when the name cannot be registered; nothing is kept then.
    pub fn from_string(name: String) -> Result<Self, KeyError> {
        let name = register(
            &name,
            |name| Box::leak(name.into()),
            // SAFETY: it was leaked above, and names that are not published are used under
            // the lock only.
            |name| drop(unsafe { Box::from_raw(ptr::from_ref(name).cast_mut()) }),
        )?;
        Ok(Self {
            name,
            state: AtomicU32::new(REGISTERED_KEY),
        })
    }

    /// The name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Registers the key, so that its first use in a record need not: when a process context is
    /// published, it is updated, which takes a few microseconds.
    ///
    /// # Errors
    /// [`KeyError`]; using the key does nothing then, except to mark records as truncated.
    pub fn register(&self) -> Result<(), KeyError> {
        let registered = register(self.name, |_| self.name, |_| ());
        let state = match registered {
            Ok(_) => REGISTERED_KEY,
            Err(_) => REFUSED,
        };
        // Another thread may have gone further meanwhile; it starts from here again then.
        self.state.store(state, Ordering::Release);
        registered.map(|_| ())
    }

    /// The byte that stands for the key in a record, for runtimes that [write the bytes
    /// themselves](crate::ThreadRecord::as_raw). It does not change for as long as the process runs.
    ///
    /// `None` while no process context was published with the name, and when the name could not be
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
            // An explicit register() tells why; here the record is marked as truncated.
            let _ = self.register();
        }
        let position = published_names().position(|name| name == self.name)?;
        self.state.store(position as u32 + 1, Ordering::Release);
        Some(position as u8)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.name).finish()
    }
}

/// Why a [`Key`] cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The name is empty, which readers reject.
    Empty,
    /// 256 other names are registered.
    Full {
        /// The name there is no room for.
        name: String,
    },
    /// The process context could not be updated with the name.
    Update {
        /// The name.
        name: String,
        /// What failed.
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
/// the process read it so, whatever their version.
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
/// How many names there are. Stored after the name, so that a process forked in between counts
/// only whole ones.
pub(super) static REGISTERED: AtomicUsize = AtomicUsize::new(0);
/// How many of them a process context has been published with.
pub(super) static PUBLISHED: AtomicUsize = AtomicUsize::new(0);

/// The registered names, in the order of their positions. For who holds the lock: the last one may
/// be taken back.
pub(crate) fn registered_names() -> impl Iterator<Item = &'static str> {
    first_names(REGISTERED.load(Ordering::Acquire))
}

/// The names that a process context has been published with, in the order of their positions.
pub(super) fn published_names() -> impl Iterator<Item = &'static str> {
    first_names(PUBLISHED.load(Ordering::Acquire))
}

pub(super) fn first_names(count: usize) -> impl Iterator<Item = &'static str> {
    // SAFETY: both came from one `&'static str`, before REGISTERED counted it.
    NAMES[..count].iter().map(|name| unsafe { name.read() })
}

impl Name {
    /// # Safety
    /// The name was written before, and lives as long as the result.
    pub(super) unsafe fn read<'a>(&self) -> &'a str {
        let address = self.address.load(Ordering::Relaxed);
        let length = self.length.load(Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { str::from_utf8_unchecked(slice::from_raw_parts(address, length)) }
    }

    pub(super) fn write(&self, name: &'static str) {
        let address = name.as_ptr().cast_mut();
        self.address.store(address, Ordering::Relaxed);
        self.length.store(name.len(), Ordering::Relaxed);
    }
}

/// Notes that the first `count` names are published. Positions stay what they are for as long as
/// the process lives, whatever happens to its context.
pub(crate) fn mark_published(count: usize) {
    PUBLISHED.fetch_max(count, Ordering::Release);
}

/// Registers a name, new or known. Returns what `intern` makes of it when it is new, or else has
/// made of it; `discard` takes that back.
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
        // Nobody has seen the position: the next key may have it.
        REGISTERED.store(index, Ordering::Release);
        discard(interned);
        return Err(KeyError::Update {
            name: name.into(),
            error,
        });
    }
    Ok(interned)
}
