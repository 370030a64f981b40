//! The walkers of the code that runtimes have generated in a process.

use std::ops::Range;
use std::sync::Arc;

use otelctx_remote::{FrameRecord, GeneratedCode, Target};
use otelctx_sample::Frame;

use super::{Present, RuntimeProcess};

/// The runtimes of a process that walk their generated code themselves.
#[derive(Clone, Debug, Default)]
pub struct GeneratedWalkers {
    walkers: Vec<Arc<dyn GeneratedCode>>,
    /// Which runtime each of them is of.
    runtimes: Vec<Arc<dyn RuntimeProcess>>,
    /// The addresses of all their code.
    ranges: Vec<Range<u64>>,
}

impl GeneratedWalkers {
    /// Asks the runtimes of a process for their walkers ([`RuntimeProcess::generated`]).
    #[must_use]
    pub fn of(runtimes: &[Present], target: &dyn Target) -> Self {
        let mut all = Self::default();
        for runtime in runtimes.iter().filter_map(|it| it.process.as_ref().ok()) {
            if let Some(walker) = runtime.generated(target) {
                let ranges = walker.ranges().into_iter();
                all.ranges.extend(ranges.filter(|range| !range.is_empty()));
                all.walkers.push(walker);
                all.runtimes.push(runtime.clone());
            }
        }
        all.ranges.sort_unstable_by_key(|range| range.start);
        all
    }

    /// The walkers. Records of frames are named by their indexes.
    #[must_use]
    pub fn walkers(&self) -> &[Arc<dyn GeneratedCode>] {
        &self.walkers
    }

    /// Returns the addresses of the code that they walk, in ascending order.
    #[must_use]
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// Returns true if one of them walks the code at an address, from which no frame pointer leads to the caller.
    #[must_use]
    pub fn lose_frames_at(&self, address: u64) -> bool {
        let mut walkers = self.walkers.iter();
        walkers.any(|walker| !walker.has_frame_pointers() && walker.covers(address))
    }

    /// Returns true if one of them walks the code at an address.
    #[must_use]
    pub fn cover(&self, address: u64) -> bool {
        self.walkers.iter().any(|walker| walker.covers(address))
    }

    /// Returns the functions of a frame that one of the walkers has found ([`RuntimeProcess::frames`]).
    #[must_use]
    pub fn frames(
        &self,
        target: &dyn Target,
        walker: usize,
        address: u64,
        record: &FrameRecord,
    ) -> Arc<[Frame]> {
        let runtime = self.runtimes.get(walker);
        runtime.map_or_else(Arc::default, |it| it.frames(target, address, record))
    }
}
