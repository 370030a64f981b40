//! Decides when a catalog has grown too large and must be replaced.

use crate::catalog::Catalog;

/// Decides when a catalog has grown too large, to bound the memory of long recordings.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    max_memory: usize,
    min_samples: u64,
    samples: u64,
}

impl Rotation {
    /// Replaces a catalog that takes more than `max_memory` bytes ([`Catalog::memory`]), but not
    /// before it was used for `min_samples` samples: if the running processes alone exceed the
    /// limit, their facts would be read over and over.
    #[must_use]
    pub const fn new(max_memory: usize, min_samples: u64) -> Self {
        Self {
            max_memory,
            min_samples,
            samples: 0,
        }
    }

    /// Counts samples that use the current catalog.
    pub fn count(&mut self, samples: u64) {
        self.samples += samples;
    }

    /// Returns true if the current catalog should be replaced now.
    #[must_use]
    pub fn is_due(&self, catalog: &Catalog) -> bool {
        self.samples >= self.min_samples && catalog.memory() > self.max_memory
    }

    /// Empties the catalog. The code that fills it must be notified, for example with
    /// `Sampler::reset_catalog`.
    pub fn rotate(&mut self, catalog: &mut Catalog) {
        catalog.clear();
        self.samples = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_catalog_is_replaced_when_it_is_large_and_has_served_enough_samples() {
        let mut catalog = Catalog::new();
        let mut rotation = Rotation::new(1000, 5);
        rotation.count(5);
        assert!(!rotation.is_due(&catalog));
        for address in 0..100 {
            catalog.native_stack(&[address]);
        }
        assert!(rotation.is_due(&catalog));
        rotation.rotate(&mut catalog);
        assert_eq!((catalog.stack_count(), catalog.memory()), (0, 0));
        for address in 0..100 {
            catalog.native_stack(&[address]);
        }
        rotation.count(4);
        assert!(!rotation.is_due(&catalog), "too few samples");
        rotation.count(1);
        assert!(rotation.is_due(&catalog));
    }
}
