//! The functions of frames that were found before.

use std::collections::HashMap;
use std::sync::Arc;

use otelctx_reader::remote::FrameRecord;
use otelctx_reader::runtime::KeptMemory;
use otelctx_reader::sample::Frame;

use crate::code::Code;
use crate::script;

/// Maximum number of frames that are kept by their records.
const MAX_KEPT: usize = 1 << 14;

/// The functions of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) frames: Arc<[Frame]>,
    /// The code that they are in, if that is generated.
    pub(crate) code: Option<Code>,
    /// The script of the frame's function. Other isolates use its number again.
    pub(crate) script: script::Key,
}

impl Kept {
    fn memory(&self) -> usize {
        let memory = |frame: &Frame| match frame {
            Frame::Named(named) => named.memory(),
            Frame::Native { .. } => 0,
        };
        let frames: usize = self.frames.iter().map(memory).sum();
        size_of::<(FrameRecord, Self)>() + size_of_val(&*self.frames) + frames
    }
}

/// The functions of frames by their records, up to a limit.
#[derive(Debug, Default)]
pub(crate) struct KeptFrames {
    kept: HashMap<FrameRecord, Kept>,
    memory: KeptMemory,
}

impl KeptFrames {
    pub(crate) fn get(&self, record: &FrameRecord) -> Option<Kept> {
        self.kept.get(record).cloned()
    }

    pub(crate) fn insert(&mut self, record: FrameRecord, kept: Kept) {
        if let Some(old) = self.kept.remove(&record) {
            self.memory.subtract(old.memory());
        }
        let added = kept.memory();
        if self.kept.len() >= MAX_KEPT || !self.memory.add(added) {
            *self = Self::default();
            if !self.memory.add(added) {
                return;
            }
        }
        self.kept.insert(record, kept);
    }
}

#[cfg(test)]
mod tests {
    use otelctx_reader::sample::NamedFrame;

    use super::*;

    #[test]
    fn what_is_kept_is_limited_in_memory_and_in_number() {
        let with = |length: usize| {
            let frame = NamedFrame {
                file: "x".repeat(length),
                ..NamedFrame::default()
            };
            Kept {
                frames: vec![Frame::from(frame); 64].into(),
                code: None,
                script: script::Key::default(),
            }
        };
        const MAX_MEMORY: usize = 8 << 20;
        let mut kept = KeptFrames::default();
        let mut most = 0;
        let mut insert = |kept: &mut KeptFrames, number, length| {
            kept.insert(FrameRecord([number, 0, 0, 0]), with(length));
            let memory: usize = kept.kept.values().map(Kept::memory).sum();
            assert_eq!(kept.memory.size(), memory);
            assert!(memory <= MAX_MEMORY && kept.kept.len() <= MAX_KEPT);
            most = most.max(memory);
        };
        for number in 0..100 {
            insert(&mut kept, number, 4096);
        }
        // Another one with the same record replaces it.
        for length in [0, 4096, 10] {
            insert(&mut kept, 1, length);
        }
        assert!(most > MAX_MEMORY - (64 * 5000), "{most}");
        let record = FrameRecord([1, 0, 0, 0]);
        assert_eq!(kept.get(&record).unwrap().frames.len(), 64);
        assert!(kept.get(&FrameRecord([0; 4])).is_none());
        let mut kept = KeptFrames::default();
        let small = Kept {
            frames: Arc::default(),
            ..with(0)
        };
        for number in 0..2 * MAX_KEPT as u64 {
            kept.insert(FrameRecord([number, 1, 0, 0]), small.clone());
        }
        assert_eq!(kept.kept.len(), MAX_KEPT);
    }
}
