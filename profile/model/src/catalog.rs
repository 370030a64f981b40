//! Data that samples share, stored once.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use foldhash::fast::RandomState;
use indexmap::{Equivalent, IndexSet};
use otelctx_format::record::DecodedContext;

use crate::frame::Frame;
use crate::id::{ContextId, FrameId, ModuleId, ProcessId, ReasonId, StackId, ThreadId};
use crate::process::{Module, ProcessFacts};
use crate::sample::Reason;

/// A thread of a sampled process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThreadFacts {
    /// The process it belongs to.
    pub process: ProcessId,
    /// Its ID in the recorder's PID namespace.
    pub tid: i32,
    /// Its most recent name.
    pub name: String,
}

/// Data that samples share, stored once.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    processes: Vec<ProcessFacts>,
    threads: Vec<ThreadFacts>,
    thread_ids: HashMap<(ProcessId, i32), ThreadId, RandomState>,
    contexts: IndexSet<Hashed<DecodedContext>, RandomState>,
    frames: IndexSet<Frame, RandomState>,
    stacks: IndexSet<Box<[FrameId]>, RandomState>,
    /// Scratch buffer for the frames of the stack that is being interned.
    frame_ids: Vec<FrameId>,
    modules: IndexSet<Module, RandomState>,
    reasons: IndexSet<Reason, RandomState>,
    /// Estimated memory of everything except processes, whose entries may change, in bytes.
    bytes: usize,
}

/// Estimated memory of an entry in a table and its index, in bytes, without its contents.
const ENTRY: usize = 48;

impl Catalog {
    /// Creates an empty catalog.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes everything. The tables keep their memory for later entries.
    pub fn clear(&mut self) {
        self.processes.clear();
        self.threads.clear();
        self.thread_ids.clear();
        self.contexts.clear();
        self.frames.clear();
        self.stacks.clear();
        self.modules.clear();
        self.reasons.clear();
        self.bytes = 0;
    }

    /// Estimates the memory of the catalog, in bytes, within a factor of two. A long recording
    /// starts a new catalog when this has grown too large ([`Rotation`](crate::Rotation)).
    #[must_use]
    pub fn memory(&self) -> usize {
        let processes = self.processes.iter().map(ProcessFacts::memory);
        self.bytes + processes.sum::<usize>()
    }

    /// Adds a process, always as a new entry: the caller tracks which processes it has added.
    pub fn add_process(&mut self, facts: ProcessFacts) -> ProcessId {
        self.processes.push(facts);
        ProcessId::from_index(self.processes.len() - 1)
    }

    /// The process with this ID.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> &ProcessFacts {
        &self.processes[id.index()]
    }

    /// The process with this ID, for updates: mappings and the resource may be added later.
    pub fn process_mut(&mut self, id: ProcessId) -> &mut ProcessFacts {
        &mut self.processes[id.index()]
    }

    /// All processes, in the order of their IDs.
    pub fn processes(&self) -> impl ExactSizeIterator<Item = (ProcessId, &ProcessFacts)> {
        let id = |(index, facts)| (ProcessId::from_index(index), facts);
        self.processes.iter().enumerate().map(id)
    }

    /// The ID of thread `tid` of `process`, added if new. Its name becomes `name`: a thread has its
    /// creator's name until it sets its own.
    pub fn thread(&mut self, process: ProcessId, tid: i32, name: &str) -> ThreadId {
        match self.thread_ids.entry((process, tid)) {
            Entry::Occupied(known) => {
                let facts = &mut self.threads[known.get().index()];
                if facts.name != name {
                    name.clone_into(&mut facts.name);
                }
                *known.get()
            }
            Entry::Vacant(new) => {
                self.threads.push(ThreadFacts {
                    process,
                    tid,
                    name: name.to_owned(),
                });
                self.bytes += 2 * ENTRY + name.len();
                *new.insert(ThreadId::from_index(self.threads.len() - 1))
            }
        }
    }

    /// The ID of thread `tid` of `process`, with the name that it has, if it was added.
    #[must_use]
    pub fn known_thread(&self, process: ProcessId, tid: i32) -> Option<ThreadId> {
        self.thread_ids.get(&(process, tid)).copied()
    }

    /// The thread with this ID.
    #[must_use]
    pub fn thread_facts(&self, id: ThreadId) -> &ThreadFacts {
        &self.threads[id.index()]
    }

    /// All threads, in the order of their IDs.
    pub fn threads(&self) -> impl ExactSizeIterator<Item = (ThreadId, &ThreadFacts)> {
        let id = |(index, facts)| (ThreadId::from_index(index), facts);
        self.threads.iter().enumerate().map(id)
    }

    /// The ID of a context, added if new. Contexts are equal if their IDs, flags and attributes are.
    pub fn context(&mut self, context: &DecodedContext) -> ContextId {
        let index = match self.contexts.get_index_of(&Hashed(context)) {
            Some(index) => index,
            None => {
                let text = context.attributes.iter();
                let text = text.map(|(name, value)| ENTRY + name.len() + value.len());
                self.bytes += 2 * ENTRY + text.sum::<usize>();
                self.contexts.insert_full(Hashed(context.clone())).0
            }
        };
        ContextId::from_index(index)
    }

    /// The context with this ID.
    #[must_use]
    pub fn context_facts(&self, id: ContextId) -> &DecodedContext {
        &self.contexts[id.index()].0
    }

    /// All contexts, in the order of their IDs.
    pub fn contexts(&self) -> impl ExactSizeIterator<Item = (ContextId, &DecodedContext)> {
        let contexts = self.contexts.iter().enumerate();
        contexts.map(|(index, hashed)| (ContextId::from_index(index), &hashed.0))
    }

    /// Changes every context, and returns their IDs from now on, by the index of the former ones:
    /// contexts that have become equal have one ID.
    pub fn map_contexts(&mut self, mut change: impl FnMut(&mut DecodedContext)) -> Vec<ContextId> {
        let former = std::mem::take(&mut self.contexts);
        let changed = former.into_iter().map(|Hashed(mut context)| {
            change(&mut context);
            self.context(&context)
        });
        changed.collect()
    }

    /// The ID of a frame, added if new.
    fn frame(&mut self, frame: &Frame) -> FrameId {
        let index = match self.frames.get_index_of(frame) {
            Some(index) => index,
            None => {
                self.bytes += ENTRY + frame.memory();
                self.frames.insert_full(frame.clone()).0
            }
        };
        FrameId::from_index(index)
    }

    /// The frame with this ID.
    #[must_use]
    pub fn frame_facts(&self, id: FrameId) -> &Frame {
        &self.frames[id.index()]
    }

    /// All frames, in the order of their IDs.
    pub fn all_frames(&self) -> impl ExactSizeIterator<Item = &Frame> {
        self.frames.iter()
    }

    /// The number of distinct frames.
    #[must_use]
    pub fn frame_count(&self) -> usize {
        self.frames.len()
    }

    /// The ID of a stack, innermost frame first, added if new.
    pub fn stack(&mut self, frames: &[Frame]) -> StackId {
        let mut ids = std::mem::take(&mut self.frame_ids);
        ids.clear();
        ids.extend(frames.iter().map(|frame| self.frame(frame)));
        let index = match self.stacks.get_index_of(&ids[..]) {
            Some(index) => index,
            None => {
                self.bytes += ENTRY + size_of_val(&ids[..]);
                self.stacks.insert_full(ids[..].into()).0
            }
        };
        self.frame_ids = ids;
        StackId::from_index(index)
    }

    /// The ID of a stack of native frames, added if new: the address of an instruction, then return
    /// addresses.
    pub fn native_stack(&mut self, addresses: &[u64]) -> StackId {
        let native = |(depth, address): (usize, &u64)| Frame::native(depth, *address);
        let frames: Vec<Frame> = addresses.iter().enumerate().map(native).collect();
        self.stack(&frames)
    }

    /// The IDs of a stack's frames, innermost first.
    #[must_use]
    pub fn frame_ids(&self, id: StackId) -> &[FrameId] {
        &self.stacks[id.index()]
    }

    /// The frames of a stack, innermost first.
    pub fn frames(
        &self,
        id: StackId,
    ) -> impl DoubleEndedIterator<Item = &Frame> + ExactSizeIterator {
        let ids = self.frame_ids(id).iter();
        ids.map(|frame| self.frame_facts(*frame))
    }

    /// All stacks, in the order of their IDs.
    pub fn stacks(&self) -> impl ExactSizeIterator<Item = &[FrameId]> {
        self.stacks.iter().map(|stack| &stack[..])
    }

    /// The number of distinct stacks.
    #[must_use]
    pub fn stack_count(&self) -> usize {
        self.stacks.len()
    }

    /// The ID of a module, added if new.
    pub fn module(&mut self, module: Module) -> ModuleId {
        let size = ENTRY + module.path.len() + module.build_id.len();
        let (index, is_new) = self.modules.insert_full(module);
        self.bytes += if is_new { size } else { 0 };
        ModuleId::from_index(index)
    }

    /// The module with this ID.
    #[must_use]
    pub fn module_facts(&self, id: ModuleId) -> &Module {
        &self.modules[id.index()]
    }

    /// The ID of a reason why threads wait, added if new.
    pub fn reason(&mut self, reason: &Reason) -> ReasonId {
        let index = match self.reasons.get_index_of(reason) {
            Some(index) => index,
            None => {
                self.bytes += 2 * ENTRY + reason.call.len() + reason.text.len();
                self.reasons.insert_full(reason.clone()).0
            }
        };
        ReasonId::from_index(index)
    }

    /// The reason with this ID.
    #[must_use]
    pub fn reason_facts(&self, id: ReasonId) -> &Reason {
        &self.reasons[id.index()]
    }

    /// All reasons, in the order of their IDs.
    pub fn reasons(&self) -> impl ExactSizeIterator<Item = &Reason> {
        self.reasons.iter()
    }

    /// All modules, in the order of their IDs.
    pub fn modules(&self) -> impl ExactSizeIterator<Item = (ModuleId, &Module)> {
        let id = |(index, module)| (ModuleId::from_index(index), module);
        self.modules.iter().enumerate().map(id)
    }
}

/// A context, or a reference to one, compared and hashed without [`DecodedContext::skipped`].
#[derive(Clone, Debug)]
struct Hashed<C>(C);

/// The part of a context that is compared and hashed.
fn key(context: &DecodedContext) -> impl PartialEq + Hash {
    let (trace_id, span_id) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
    (
        trace_id,
        span_id,
        context.trace_flags.0,
        &context.attributes,
    )
}

impl<C: Borrow<DecodedContext>> PartialEq for Hashed<C> {
    fn eq(&self, other: &Self) -> bool {
        key(self.0.borrow()) == key(other.0.borrow())
    }
}

impl Eq for Hashed<DecodedContext> {}

impl<C: Borrow<DecodedContext>> Hash for Hashed<C> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        key(self.0.borrow()).hash(state);
    }
}

impl Equivalent<Hashed<DecodedContext>> for Hashed<&DecodedContext> {
    fn equivalent(&self, other: &Hashed<DecodedContext>) -> bool {
        key(self.0) == key(&other.0)
    }
}

#[cfg(test)]
mod tests {
    use otelctx_format::{SpanId, TraceFlags, TraceId};

    use crate::{FrameKind, NamedFrame};

    use super::*;

    fn context(span: u8, route: &str) -> DecodedContext {
        let mut context = DecodedContext::default();
        context.trace_id = TraceId::from_bytes([1; 16]);
        context.span_id = SpanId::from_bytes([span; 8]);
        context.trace_flags = TraceFlags(1);
        context.attributes = vec![("http.route".into(), route.into())];
        context
    }

    #[test]
    fn contexts_that_differ_in_anything_stay_apart() {
        let mut catalog = Catalog::new();
        let first = catalog.context(&context(1, "/a"));
        assert_eq!(catalog.context(&context(1, "/a")), first);
        let mut unsampled = context(1, "/a");
        unsampled.trace_flags = TraceFlags(0);
        let others = [context(2, "/a"), context(1, "/b"), unsampled];
        for (index, other) in others.iter().enumerate() {
            assert_eq!(catalog.context(other).index(), index + 1);
        }
        assert_eq!(catalog.contexts().len(), 4);
        assert_eq!(catalog.context_facts(first).attributes[0].1, "/a");
    }

    #[test]
    fn a_thread_has_its_last_name_and_an_id_in_its_process() {
        let mut catalog = Catalog::new();
        let before = catalog.add_process(ProcessFacts::default());
        let after = catalog.add_process(ProcessFacts::default());
        let first = catalog.thread(before, 7, "main");
        assert_eq!(catalog.thread(before, 7, "renamed"), first);
        assert_ne!(catalog.thread(after, 7, "main"), first);
        assert_eq!(catalog.thread_facts(first).name, "renamed");
    }

    fn named(line: u32) -> Frame {
        Frame::from(NamedFrame {
            kind: FrameKind::CPYTHON,
            function: "checkout".into(),
            line,
            ..NamedFrame::default()
        })
    }

    #[test]
    fn a_stack_is_kept_once() {
        let mut catalog = Catalog::new();
        let one = catalog.native_stack(&[1, 2]);
        assert_eq!(catalog.native_stack(&[1, 2]), one);
        assert_ne!(catalog.native_stack(&[2, 1]), one);
        let frames: Vec<_> = catalog.frames(one).cloned().collect();
        assert_eq!(frames, [Frame::instruction(1), Frame::return_address(2)]);
        assert_eq!(catalog.stack(&frames), one);
        assert_eq!(catalog.stack_count(), 2);
        // Each address occurs as an instruction and as a return address.
        assert_eq!(catalog.frame_count(), 4);
    }

    #[test]
    fn a_catalog_that_was_cleared_is_like_a_new_one() {
        let mut catalog = Catalog::new();
        for _ in 0..2 {
            let process = catalog.add_process(ProcessFacts::default());
            let indices = [
                process.index(),
                catalog.thread(process, 7, "main").index(),
                catalog.context(&context(1, "/a")).index(),
                catalog.stack(&[named(1), Frame::instruction(1)]).index(),
                catalog.module(Module::kernel()).index(),
            ];
            assert_eq!((indices, catalog.frame_count()), ([0; 5], 2));
            catalog.clear();
            assert_eq!(catalog.memory(), 0);
        }
    }

    #[test]
    fn native_and_named_frames_mix() {
        let mut catalog = Catalog::new();
        let stack = [named(3), Frame::instruction(1), named(4), named(3)];
        let id = catalog.stack(&stack);
        // Equal frames share an ID even if they were allocated separately.
        let again = [named(3), Frame::instruction(1), named(4), named(3)];
        assert_eq!(catalog.stack(&again), id);
        assert_eq!(catalog.frames(id).cloned().collect::<Vec<_>>(), stack);
        assert_eq!((catalog.frame_count(), catalog.stack_count()), (3, 1));
        let ids = catalog.frame_ids(id);
        assert_eq!(ids[0], ids[3]);
        let other = catalog.stack(&stack[1..]);
        assert_ne!(other, id);
        assert_eq!(catalog.frame_ids(other), &catalog.frame_ids(id)[1..]);
    }
}
