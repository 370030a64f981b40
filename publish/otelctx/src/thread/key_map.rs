//! The key maps of other copies of this crate in the process, and of other publishers. Records of
//! both stay attached, so the same index must mean the same name in both.

use std::sync::atomic::Ordering;

use otelctx_format::MAX_KEYS;

use super::keys::{first_names, Name, GIVEN, NAMES, PUBLISHED, REGISTERED};

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
    let mut given = 0;
    for (position, name) in other.enumerate() {
        given = position + 1;
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
    if agree {
        GIVEN.fetch_max(given, Ordering::Release);
    }
    agree
}

/// Makes the key map of another publisher the beginning of this copy's, if no index of this copy's
/// that was given means another name. The caller holds the lock, and publishes the names afterwards.
/// Returns false if nothing changes.
pub(crate) fn continue_key_map<'a>(other: impl Iterator<Item = &'a str>) -> bool {
    let given = GIVEN.load(Ordering::Relaxed);
    let own: Vec<&'static str> = first_names(REGISTERED.load(Ordering::Relaxed)).collect();
    let mut names = own[..given.min(own.len())].to_vec();
    for (position, name) in other.enumerate() {
        match names.get(position) {
            Some(known) if *known == name => {}
            // A name has one index.
            None if !name.is_empty() && !names.contains(&name) => {
                let known = own.iter().copied().find(|known| *known == name);
                names.push(known.unwrap_or_else(|| Box::leak(name.into())));
            }
            _ => return false,
        }
    }
    let others = names.len();
    for name in &own {
        if !names.contains(name) {
            names.push(*name);
        }
    }
    if names == own || names.len() > MAX_KEYS {
        return false;
    }
    // If the process is forked now, the child registers the others again.
    REGISTERED.store(given, Ordering::Release);
    PUBLISHED.store(given, Ordering::Release);
    for (entry, name) in NAMES.iter().zip(&names) {
        entry.write(name);
    }
    REGISTERED.store(names.len(), Ordering::Release);
    GIVEN.store(others, Ordering::Release);
    true
}
