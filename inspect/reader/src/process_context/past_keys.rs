//! The key maps of contexts that a reader has seen in a program.

use otelctx_format::KeyMap;

/// Maximum number of key maps of former publishers that are kept. If there are more, every name is
/// contested: programs have one publisher, or two.
const MAX_FORMER: usize = 16;

/// The key maps that records in a process may refer to, in addition to those of its present contexts: a
/// publisher withdraws its context, or another one replaces it, while its records stay attached.
#[derive(Clone, Debug, Default)]
pub(crate) struct PastKeys {
    /// By the address of the context, at the last read.
    present: Vec<(u64, Option<KeyMap>)>,
    /// Of contexts that are gone. `None`: it could not be read.
    former: Vec<Option<KeyMap>>,
}

impl PastKeys {
    /// Returns what is known after a read has found these key maps, by address.
    pub(super) fn with<'m>(
        &self,
        present: impl Iterator<Item = (u64, Option<&'m KeyMap>)>,
    ) -> Self {
        let present: Vec<(u64, Option<KeyMap>)> =
            present.map(|(at, keys)| (at, keys.cloned())).collect();
        let mut former = self.former.clone();
        for (address, keys) in &self.present {
            let now = present.iter().find(|(at, _)| at == address);
            let is_gone = match (now, keys) {
                (Some((_, Some(now))), Some(keys)) if now.names().starts_with(keys.names()) => {
                    false
                }
                // Beside another publisher, this one gives its unused indexes to that one's names.
                (Some((_, Some(_))), Some(_)) => present.len() == 1,
                (Some(_), None) => false,
                _ => true,
            };
            if is_gone && !former.contains(keys) {
                former.push(keys.clone());
            }
        }
        if former.len() > MAX_FORMER {
            former = vec![None];
        }
        Self { present, former }
    }

    /// Returns whether the names of the context at `address` are the same as earlier, and maybe more.
    pub(super) fn continues(&self, earlier: &Self, address: u64) -> bool {
        let names = |keys: &'_ Self| {
            let found = keys.present.iter().find(|(at, _)| *at == address);
            found.and_then(|(_, keys)| keys.clone())
        };
        match (names(self), names(earlier)) {
            (Some(now), Some(earlier)) => now.names().starts_with(earlier.names()),
            _ => true,
        }
    }

    /// Returns the names among these that no former publisher contests.
    pub(super) fn contest(&self, keys: KeyMap) -> KeyMap {
        let former = self.former.iter();
        former.fold(keys, |keys, former| keys.contested_by(former.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An address, and a key map.
    type Context<'c> = (u64, &'c [&'c str]);

    fn map(names: &[&str]) -> KeyMap {
        KeyMap::new(names.iter().copied()).unwrap()
    }

    /// The names of `last`, after reads that found these key maps.
    fn names(reads: &[&[Context<'_>]], last: &[&str]) -> Vec<String> {
        let mut past = PastKeys::default();
        for read in reads {
            let maps: Vec<_> = read.iter().map(|(at, names)| (*at, map(names))).collect();
            past = past.with(maps.iter().map(|(at, keys)| (*at, Some(keys))));
        }
        past.contest(map(last)).names().to_vec()
    }

    #[test]
    fn a_context_that_has_gone_contests_its_indexes() {
        let (own, other): (Context<'_>, Context<'_>) = ((1, &["a", "b"]), (2, &["a", "x"]));
        let contested = ["a", "#1"];
        assert_eq!(names(&[&[own, other], &[own]], own.1), contested);
        assert_eq!(names(&[&[own, other], &[own], &[own]], own.1), contested);
        // None is there in between, or the other one is where it was.
        assert_eq!(names(&[&[own], &[], &[other]], other.1), contested);
        assert_eq!(names(&[&[own], &[(1, other.1)]], other.1), contested);
        assert_eq!(names(&[&[own], &[other]], other.1), contested);
    }

    #[test]
    fn a_publisher_that_continues_a_key_map_contests_nothing() {
        let names = |reads: &[&[Context<'_>]]| names(reads, &["root", "a"]);
        let continued: Context<'_> = (1, &["root", "a"]);
        let certain = ["root", "a"];
        // Of its own, in place or elsewhere, or of another one that it has met.
        assert_eq!(names(&[&[(1, &["root"])], &[continued]]), certain);
        assert_eq!(names(&[&[(3, &["root"])], &[continued]]), certain);
        let other: Context<'_> = (2, &["root"]);
        assert_eq!(
            names(&[&[(1, &["a"]), other], &[continued, other]]),
            certain
        );
        assert_eq!(names(&[&[(1, &["a"])], &[continued, other]]), certain);
    }

    #[test]
    fn contexts_without_end_are_bounded() {
        let mut past = PastKeys::default();
        for number in 0..100_u64 {
            let keys = map(&[&number.to_string()]);
            past = past.with([(number, Some(&keys))].into_iter());
            assert!(past.former.len() <= MAX_FORMER);
        }
        let contested = past.contest(map(&["a"]));
        assert_eq!(contested.contested().len(), 256);
    }
}
