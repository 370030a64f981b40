//! HotSpot in one process.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::{FrameRecord, GeneratedCode, Machine, Memory, MemoryError, Target};
use otelctx_reader::runtime::{
    KeptMemory, LimitedMemory, ReadLimit, RuntimeError, RuntimeProcess, RuntimeThread, ThreadView,
};
use otelctx_reader::sample::{Frame, NamedFrame};

use crate::code_cache::{CodeCache, Kind};
use crate::layout::Layout;
use crate::method::{Method, find_class_number};
use crate::names::{self, ClassNames, MethodNames};
use crate::record::{MethodIdentity, Record};
use crate::scopes::scopes;
use crate::threads::{KnownThreads, agree};
use crate::walk::Codelets;
use crate::walk::HotSpotCode;

/// Memory of an entry beside what it refers to, in bytes, with the table's own.
const ENTRY: usize = 128;

/// Names of stubs in the sources of HotSpot, which has no other ones for them.
const CALL_STUB: &str = "StubRoutines::call_stub";
const BARRIER: &str = "StubRoutines::cont_returnBarrier";

#[derive(Debug)]
pub(crate) struct HotSpotProcess {
    pub(crate) layout: Arc<Layout>,
    /// `None` until the virtual machine has made its heaps of code. Read again until it has started.
    code: Mutex<Option<Arc<HotSpotCode>>>,
    known: Mutex<Known>,
    threads: Mutex<KnownThreads>,
    limit: ReadLimit,
}

/// The address of a method, and what distinguishes it from others.
type MethodKey = (u64, MethodIdentity);
/// The address of a class, and its number.
type ClassKey = (u64, u64);

/// What was named before, by what identifies it.
#[derive(Debug, Default)]
pub(crate) struct Known {
    frames: HashMap<Record, Arc<[Frame]>>,
    methods: HashMap<MethodKey, Arc<MethodNames>>,
    classes: HashMap<ClassKey, Arc<ClassNames>>,
    pub(crate) memory: KeptMemory,
}

impl Known {
    /// Makes room for an entry that refers to memory of this size. Returns false if that is too much.
    fn reserve(&mut self, memory: usize) -> bool {
        self.reserve_with(memory, 0)
    }

    /// The same, where the entry also needs this memory if all other ones are dropped for it.
    fn reserve_with(&mut self, memory: usize, if_alone: usize) -> bool {
        let memory = memory.saturating_add(ENTRY);
        if self.memory.add(memory) {
            return true;
        }
        *self = Self::default();
        self.memory.add(memory.saturating_add(if_alone))
    }

    /// Keeps the names of a method, and those of its class, to which they refer: both or neither.
    fn keep(&mut self, key: MethodKey, names: Arc<MethodNames>, class_key: ClassKey) {
        let class = names.class();
        let of_class = class.memory() + ENTRY;
        // Another thread may have read them, too.
        let known = self.classes.get(&class_key);
        let is_kept = match known.is_some_and(|known| Arc::ptr_eq(known, class)) {
            true => self.reserve_with(names.memory(), of_class),
            false => self.reserve(names.memory().saturating_add(of_class)),
        };
        if is_kept {
            self.classes.insert(class_key, class.clone());
            self.methods.insert(key, names);
        }
    }
}

impl HotSpotProcess {
    pub(crate) fn new(layout: Layout) -> Self {
        Self {
            layout: Arc::new(layout),
            code: Mutex::default(),
            known: Mutex::default(),
            threads: Mutex::default(),
            limit: ReadLimit::default(),
        }
    }

    /// The code as it was read last.
    pub(crate) fn code(&self, target: &dyn Target) -> Option<Arc<HotSpotCode>> {
        let known = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        let code = known.clone();
        drop(known);
        code.or_else(|| self.newest_code(target))
    }

    /// Reads the code, or the parts of it that may have been read while the virtual machine started.
    fn newest_code(&self, target: &dyn Target) -> Option<Arc<HotSpotCode>> {
        let mut code = self.code.lock().unwrap_or_else(PoisonError::into_inner);
        let known = code.as_deref();
        let new = match known.filter(|known| known.is_settled) {
            Some(known) if known.class_number.is_some() => None,
            // It has read few classes, or its build has no numbers.
            Some(known) => find_class_number(target, &self.layout).map(|number| HotSpotCode {
                class_number: Some(number),
                ..known.clone()
            }),
            None if target.machine() == Machine::X86_64 => {
                let new = self.read_code(target).ok().flatten();
                // The interpreter's code is generated piece by piece.
                new.map(|new| HotSpotCode {
                    is_settled: known
                        .is_some_and(|known| new.codelets.are_settled(&known.codelets)),
                    ..new
                })
            }
            None => None,
        };
        if let Some(new) = new {
            *code = Some(Arc::new(new));
        }
        code.clone()
    }

    fn read_code(&self, target: &dyn Target) -> Result<Option<HotSpotCode>, MemoryError> {
        let (memory, layout): (&dyn Memory, _) = (target, &self.layout);
        let call_stub_return = memory.read_u64(layout.call_stub_return)?;
        let Some(cache) = CodeCache::read(memory, layout)?.filter(|_| call_stub_return != 0) else {
            return Ok(None);
        };
        Ok(Some(HotSpotCode {
            layout: layout.clone(),
            cache: Arc::new(cache),
            call_stub_return,
            codelets: Codelets::read(memory, &layout.interpreter)?,
            class_number: find_class_number(memory, layout),
            is_settled: false,
        }))
    }

    /// The names of a method, if those are of the method with this identity.
    fn method(
        &self,
        memory: &dyn Memory,
        code: &HotSpotCode,
        address: u64,
        expected: Option<MethodIdentity>,
    ) -> Option<Arc<MethodNames>> {
        let method = Method::read(memory, &self.layout, address)?;
        let (layout, class_number) = (&self.layout, code.class_number);
        let before = method.identity(layout, class_number);
        if expected.is_some_and(|expected| expected != before) {
            return None;
        }
        let key = (address, before);
        if code.class_number.is_some()
            && let Some(names) = self.known().methods.get(&key)
        {
            return Some(names.clone());
        }
        let class_key = (method.class.address, before.class);
        let known_class = self.known().classes.get(&class_key).cloned();
        let class = match known_class.filter(|_| class_number.is_some()) {
            Some(class) => class,
            None => Arc::new(ClassNames::read(memory, layout, &method).ok()?),
        };
        let names = MethodNames::read(memory, layout, &method, class).ok()?;
        // Its memory may have become another method's meanwhile.
        if method.identity_now(memory, layout, class_number).ok()? != before {
            return None;
        }
        let names = Arc::new(names);
        // Without numbers of classes, they are not found again.
        if class_number.is_some() {
            self.known().keep(key, names.clone(), class_key);
        }
        Some(names)
    }

    pub(crate) fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The frames of a record. `None` if what it identifies is not there any more, or cannot be read.
    fn named(
        &self,
        memory: &dyn Memory,
        code: &HotSpotCode,
        record: Record,
    ) -> Option<Vec<NamedFrame>> {
        match record {
            Record::Interpreted {
                method,
                identity,
                position,
            } => {
                let names = self.method(memory, code, method, Some(identity))?;
                Some(vec![names.frame(position)])
            }
            Record::Compiled {
                blob,
                compile_id,
                pc,
            } => self.compiled(memory, code, (blob, compile_id), pc),
            Record::Stub { is_entry: true, .. } => Some(vec![names::stub(CALL_STUB)]),
            Record::Stub { blob, .. } => {
                let blob = code.cache.read_blob(memory, &self.layout, blob).ok()?;
                let name = match blob.kind {
                    Kind::Stub(name) => name,
                    Kind::Barrier => BARRIER.to_owned(),
                    _ => return None,
                };
                Some(vec![names::stub(&name)])
            }
        }
    }

    fn compiled(
        &self,
        memory: &dyn Memory,
        code: &HotSpotCode,
        (address, compile_id): (u64, u32),
        pc: u64,
    ) -> Option<Vec<NamedFrame>> {
        let layout = &self.layout;
        let blob = code.cache.read_blob(memory, layout, address).ok()?;
        let id = layout.nmethod.compile_id;
        if !blob.kind.is_method() || blob.object.int(id) as u32 != compile_id {
            return None;
        }
        let found = match blob.kind {
            Kind::Native => vec![crate::scopes::Scope {
                method: blob.object.int(layout.nmethod.method),
                position: None,
            }],
            _ => scopes(memory, layout, &blob, pc)?,
        };
        let mut named = Vec::with_capacity(found.len());
        for scope in found {
            let names = self.method(memory, code, scope.method, None)?;
            named.push(names.frame(scope.position));
        }
        // The code is still there, and so are the methods that it keeps.
        let now = code
            .cache
            .blob_address(memory, layout, pc.wrapping_sub(1))
            .ok()?;
        let again = code.cache.read_blob(memory, layout, address).ok()?;
        let is_same = now == address && again.object.int(id) as u32 == compile_id;
        is_same.then_some(named)
    }
}

impl RuntimeProcess for HotSpotProcess {
    fn facts(&self) -> Attributes {
        vec![("version".into(), Value::String(self.layout.version.clone()))]
    }

    fn reads_threads(&self) -> bool {
        false
    }

    /// Frames are found by [`Self::generated`], without the thread's own data.
    fn thread(&self, _: &dyn Target, _: ThreadView) -> Result<Option<RuntimeThread>, RuntimeError> {
        Ok(None)
    }

    /// It belongs to the platform's thread: that of a virtual thread's carrier.
    fn thread_name(
        &self,
        target: &dyn Target,
        tid: i32,
        _: Option<&RuntimeThread>,
    ) -> Option<String> {
        let of = self.layout.threads.as_ref()?;
        let limited = LimitedMemory::new(target, &self.limit);
        let id = target.inner_tid(tid)?;
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let name = threads.name(&limited, &self.layout, of, id)?;
        drop(threads);
        // While the collector moves objects, another text may be in its place, and references do not say so.
        let of_kernel = target.thread(tid).ok()?.name?;
        agree(&name, of_kernel.as_bytes()).then_some(name)
    }

    fn generated(&self, target: &dyn Target) -> Option<Arc<dyn GeneratedCode>> {
        Some(self.newest_code(target)?)
    }

    fn frames(&self, target: &dyn Target, _: u64, record: &FrameRecord) -> Arc<[Frame]> {
        let unnamed = || [Frame::from(names::unnamed())].into();
        let (Some(record), Some(code)) = (Record::decode(record), self.code(target)) else {
            return unnamed();
        };
        // Without numbers of classes, interpreted methods are not identified for long.
        let is_kept = code.class_number.is_some() || !matches!(record, Record::Interpreted { .. });
        if let Some(frames) = self.known().frames.get(&record).filter(|_| is_kept) {
            return frames.clone();
        }
        let limited = LimitedMemory::new(target, &self.limit);
        let Some(named) = self.named(&limited, &code, record) else {
            return unnamed();
        };
        let memory = named.iter().map(memory_of).sum();
        let frames: Arc<[Frame]> = named.into_iter().map(Frame::from).collect();
        if is_kept {
            let mut known = self.known();
            if known.reserve(memory) {
                known.frames.insert(record, frames.clone());
            }
        }
        frames
    }
}

/// The memory of a frame, in bytes.
fn memory_of(frame: &NamedFrame) -> usize {
    let texts = [&frame.function, &frame.qualified_name, &frame.file].map(String::len);
    size_of::<(NamedFrame, Frame)>() + texts.iter().sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{BLOB_CODE, CALL_STUB_RETURN, METADATA, STACK, machine, process, registers};

    #[test]
    fn methods_have_no_names_while_too_much_was_read() {
        let mut machine = machine();
        machine.put_u64(STACK, &[1, 2, 3, CALL_STUB_RETURN]);
        let process = process(&machine);
        let code = process.generated(&machine.0).unwrap();
        let found = code.step(&machine.0, &registers(BLOB_CODE + 0x40, 0), false);
        let record = found.unwrap().record.unwrap();
        let frames = || process.frames(&machine.0, 0, &record);
        process.limit.use_up();
        assert_eq!(*frames(), [Frame::from(names::unnamed())]);
        // That is not kept.
        let process = HotSpotProcess {
            limit: ReadLimit::default(),
            ..process
        };
        assert_eq!(process.frames(&machine.0, 0, &record).len(), 2);
    }

    #[test]
    fn the_names_of_a_method_are_kept_with_those_of_its_class() {
        let mut machine = machine();
        // The second method has the first one's class.
        let [first, second] = [METADATA, METADATA + 0x1000];
        machine.put_u64(second + 0x108, &[first + 0x200]);
        machine.put_u64(first + 0x328, &[5 << 16]);
        let process = process(&machine);
        let code = HotSpotCode {
            class_number: Some(0x28),
            ..(*process.code(&machine.0).unwrap()).clone()
        };
        let kept = |address: u64, classes: usize, methods: usize| {
            let names = process.method(&machine.0, &code, address, None).unwrap();
            let known = process.known();
            assert_eq!(
                (known.classes.len(), known.methods.len()),
                (classes, methods)
            );
            let class = known.classes.values().next().unwrap();
            assert!(Arc::ptr_eq(class, names.class()));
            (ENTRY + names.memory(), ENTRY + class.memory())
        };
        let size = || process.known().memory.size();
        let (of_first, of_class) = kept(first, 1, 1);
        assert_eq!(size(), of_first + of_class);
        let (of_second, _) = kept(second, 1, 2);
        assert_eq!(size(), of_first + of_second + of_class);
        // There is no room for one more: all others are dropped, its class included, which it needs.
        process.known().methods.remove(&(
            first,
            MethodIdentity {
                class: 5,
                number: 3,
            },
        ));
        let room = (8 << 20) - size() - ENTRY;
        assert!(process.known().reserve(room));
        assert_eq!(size(), 8 << 20);
        assert_eq!(kept(first, 1, 1), (of_first, of_class));
        assert_eq!(size(), of_first + of_class);
    }

    #[test]
    fn names_that_are_kept_have_a_limit_in_bytes() {
        let mut known = Known::default();
        let half = 4 << 20;
        assert!(known.reserve(half - ENTRY) && known.reserve(half - ENTRY));
        let record = Record::Stub {
            blob: 1,
            is_entry: false,
        };
        known.frames.insert(record, [].into());
        assert!(known.reserve(0));
        assert_eq!(known.frames.len(), 0);
        known.frames.insert(record, [].into());
        assert!(known.reserve(half) && !known.frames.is_empty());
        assert!(!known.reserve(2 * half) && !known.reserve(usize::MAX));
        assert!(known.frames.is_empty());
    }
}
