//! Values that are kept once.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

/// An interned value, compared by its address.
#[derive(Clone, Debug)]
pub(super) struct Shared<T>(Rc<T>);

impl<T> Shared<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Rc::new(value))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Rc::as_ptr(&self.0).hash(state);
    }
}

/// Keeps each value once, for as long as it is in use.
#[derive(Debug)]
pub(super) struct Interner<T>(HashSet<Rc<T>>);

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<T: Eq + Hash> Interner<T> {
    pub(super) fn get(&mut self, value: T) -> Shared<T> {
        if let Some(known) = self.0.get(&value) {
            return Shared(known.clone());
        }
        let new = Rc::new(value);
        self.0.insert(new.clone());
        Shared(new)
    }

    /// Drops the values that are not in use.
    pub(super) fn prune(&mut self) {
        self.0.retain(|value| Rc::strong_count(value) > 1);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|it| &**it)
    }
}
