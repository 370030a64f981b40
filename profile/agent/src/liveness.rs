//! Whether a thread still runs.

use std::sync::{Arc, Weak};

/// Is dropped at the end of a thread, also by a panic.
#[derive(Debug)]
pub struct LivenessGuard {
    _alive: Arc<()>,
}

/// Knows whether a thread still runs that has the guard.
#[derive(Clone, Debug)]
pub struct Liveness(Weak<()>);

impl Liveness {
    /// Creates a pair.
    #[must_use]
    pub fn pair() -> (LivenessGuard, Self) {
        let guard = Arc::new(());
        let liveness = Self(Arc::downgrade(&guard));
        (LivenessGuard { _alive: guard }, liveness)
    }

    /// Returns false once the guard has been dropped.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_not_alive() {
        let (guard, liveness) = Liveness::pair();
        assert!(liveness.is_alive());
        let thread = std::thread::spawn(move || {
            let _guard = guard;
            panic!("as the test wants");
        });
        assert!(thread.join().is_err());
        assert!(!liveness.is_alive());
    }
}
