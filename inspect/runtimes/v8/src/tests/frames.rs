//! Frames of a hand-made process.

use std::ops::Range;
use std::sync::Arc;

use otelctx_reader::remote::{Device, TargetImage};
use otelctx_reader::runtime::RuntimeProcess;

use super::layout;
use crate::builtins::Builtins;
use crate::process::V8Process;

fn process() -> V8Process {
    let builtins = Arc::new(Builtins::default());
    V8Process::new(Arc::new(layout()), builtins, (Device::default(), 0))
}

/// The mappings of a core file may overlap.
#[test]
fn mappings_with_code_that_overlap_are_one_region() {
    let regions = |mappings: &[(u64, u64)]| -> Vec<Range<u64>> {
        let mut target = TargetImage::new();
        for (start, end) in mappings {
            target.maps += &format!("{start:x}-{end:x} r-xp 00000000 00:00 0 \n");
        }
        process().generated(&target).unwrap().ranges()
    };
    let far = 1 << 40;
    assert_eq!(
        regions(&[(0x1000, 0x2000), (0x3000, 0x4000)]),
        [0x1000..0x4000]
    );
    let apart = [0x1000..0x2000, far..far + 0x1000];
    assert_eq!(regions(&[(0x1000, 0x2000), (far, far + 0x1000)]), apart);
    let inside = regions(&[(0x1000, 0x8000), (0x2000, 0x3000), (0x8000, 0x9000)]);
    assert_eq!(inside, [0x1000..0x9000]);
}
