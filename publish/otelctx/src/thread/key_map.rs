//! The key maps of other copies of this crate in the process, and of other publishers. Records of
//! both stay attached, so the same index must mean the same name in both.

use std::sync::atomic::Ordering;

use otelctx_format::{KeyMap, MAX_KEYS};

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

/// Gives indexes of this copy's that were not given to the names that other publishers have there. So
/// no key of this copy gets an index that means something else to another publisher, if there is one
/// left. The caller holds the lock, and publishes the names afterwards. Returns false if nothing
/// changes.
pub(crate) fn continue_key_maps(others: &[KeyMap]) -> bool {
    let own: Vec<&'static str> = first_names(REGISTERED.load(Ordering::Relaxed)).collect();
    let given = GIVEN.load(Ordering::Relaxed).min(own.len());
    let mut names: Vec<&str> = own[..given].to_vec();
    for position in given..MAX_KEYS {
        let there = others
            .iter()
            .filter_map(|other| other.names().get(position));
        // A name has one index.
        let new = there.filter(|name| !names.contains(&name.as_str()));
        // Where the others disagree, no name is certain: better one that this copy does not use.
        let Some(name) = new.min_by_key(|name| own.contains(&name.as_str())) else {
            break;
        };
        names.push(name);
    }
    let of_others = names.len();
    for name in &own {
        if !names.contains(name) {
            names.push(name);
        }
    }
    if names == own || names.len() > MAX_KEYS {
        return false;
    }
    let kept = |name: &str| {
        let known = own.iter().copied().find(|known| *known == name);
        known.unwrap_or_else(|| Box::leak(name.into()))
    };
    let names: Vec<&'static str> = names.into_iter().map(kept).collect();
    // If the process is forked now, the child registers the others again.
    REGISTERED.store(given, Ordering::Release);
    PUBLISHED.store(given, Ordering::Release);
    for (entry, name) in NAMES.iter().zip(&names) {
        entry.write(name);
    }
    REGISTERED.store(names.len(), Ordering::Release);
    GIVEN.fetch_max(of_others, Ordering::Release);
    true
}

/// Returns whether a publisher may announce this key map: no name is empty, and each is there once.
pub(crate) fn is_regular(keys: &KeyMap) -> bool {
    let names = keys.names();
    let mut all = names.iter().enumerate();
    all.all(|(position, name)| !name.is_empty() && !names[..position].contains(name))
}
