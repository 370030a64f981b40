//! Categories of frames and markers.

use std::collections::HashMap;

use otelctx_sample::{FrameKind, OffCpuState};

use super::Index;
use crate::Place;

/// Categories with their colours: those of the languages resemble those of the page.
#[derive(Debug)]
pub(super) struct Categories {
    pub(super) names: Vec<(&'static str, &'static str)>,
    /// Frames that wait for an interpreter's lock, once there are any.
    waiting: Option<Index>,
    /// Threads without a CPU, and others that do not run, once there are any.
    off_cpu: [Option<Index>; 2],
    /// Frames that a runtime has named.
    runtimes: HashMap<FrameKind, Index>,
}

impl Categories {
    pub(super) const USER: Index = 1;
    const KERNEL: Index = 2;
    pub(super) const SPAN: Index = 3;
    /// Maximum number of runtimes with a category of their own.
    const MAX_RUNTIMES: usize = 64;

    pub(super) fn new() -> Self {
        let names = [
            ("Other", "grey"),
            ("User", "green"),
            ("Kernel", "purple"),
            ("Span", "lightblue"),
        ];
        Self {
            names: names.to_vec(),
            waiting: None,
            off_cpu: [None; 2],
            runtimes: HashMap::new(),
        }
    }

    fn add(&mut self, name: &'static str, colour: &'static str) -> Index {
        self.names.push((name, colour));
        self.names.len() as Index - 1
    }

    pub(super) fn waiting(&mut self) -> Index {
        match self.waiting {
            Some(known) => known,
            None => {
                let new = self.add("Waiting for the GIL", "red");
                *self.waiting.insert(new)
            }
        }
    }

    pub(super) fn off_cpu(&mut self, state: OffCpuState) -> Index {
        let (kind, name, colour) = match state {
            OffCpuState::Queued => (0, "Queued", "orange"),
            _ => (1, "Waiting", "brown"),
        };
        match self.off_cpu[kind] {
            Some(known) => known,
            None => {
                let new = self.add(name, colour);
                *self.off_cpu[kind].insert(new)
            }
        }
    }

    pub(super) fn of(&mut self, place: Place) -> Index {
        let kind = match place {
            Place::Kernel => return Self::KERNEL,
            Place::Mapped(_) | Place::Unknown | Place::Runtime(FrameKind::ABORT_MARKER) => {
                return Self::USER;
            }
            Place::Runtime(kind) => kind,
        };
        if let Some(known) = self.runtimes.get(&kind) {
            return *known;
        }
        if self.runtimes.len() >= Self::MAX_RUNTIMES {
            return Self::USER;
        }
        let colour = match kind {
            FrameKind::CPYTHON => "blue",
            FrameKind::V8JS => "yellow",
            FrameKind::JVM => "orange",
            _ => "magenta",
        };
        let new = self.add(kind.name(), colour);
        self.runtimes.insert(kind, new);
        new
    }
}
