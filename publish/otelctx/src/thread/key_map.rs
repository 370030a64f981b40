//! The key maps of other copies of this crate in the process. Records of both copies stay attached
//! when one takes over, so the same index must mean the same name in both.

use std::sync::atomic::Ordering;

use otelctx_format::MAX_KEYS;

use super::keys::{first_names, Name, NAMES, PUBLISHED, REGISTERED};

/// Returns the published names, for other copies of this crate.
pub(crate) fn published_key_map() -> &'static [Name] {
    &NAMES[..PUBLISHED.load(Ordering::Acquire)]
}

/// Makes the key map of another copy of this crate the beginning of this copy's, so that its
/// records keep their meaning. The caller holds the lock. Returns false if the two differ at a
/// position that both have published, or there are too many keys.
pub(crate) fn adopt_key_map<'a>(other: impl Iterator<Item = &'a str>) -> bool {
    let published = PUBLISHED.load(Ordering::Relaxed);
    let mut count = REGISTERED.load(Ordering::Relaxed);
    // If the process is forked now, the child registers the others again.
    REGISTERED.store(published, Ordering::Release);
    let mut agree = true;
    for (position, name) in other.enumerate() {
        let known = first_names(count).position(|known| known == name);
        let from = match known {
            Some(known) => known,
            None if count < MAX_KEYS => {
                NAMES[count].write(Box::leak(name.into()));
                count += 1;
                count - 1
            }
            None => MAX_KEYS,
        };
        if from == position {
            continue;
        }
        if position < published || from < position || from == MAX_KEYS {
            agree = false;
            break;
        }
        // SAFETY: the names of this copy are never freed.
        let moved = unsafe { NAMES[from].read() };
        for at in (position..from).rev() {
            // SAFETY: the names of this copy are never freed.
            NAMES[at + 1].write(unsafe { NAMES[at].read() });
        }
        NAMES[position].write(moved);
    }
    REGISTERED.store(count, Ordering::Release);
    agree
}
