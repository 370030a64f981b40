//! asyncio's tasks, with the object that each awaits, and its context, which no thread has while the task
//! is suspended.
//!
//! Only tasks in C are supported, as `asyncio.Task` is, and subclasses of them. Threads change tasks
//! while they hold the GIL, so all threads must be stopped or asleep.

mod context;
mod coroutine;
mod layout;
mod limited;
mod objects;
mod thread_names;

use std::collections::HashSet;
use std::ops::ControlFlow;

use otelctx_reader::format::process_context::Value;
use otelctx_reader::remote::{Memory, Target};
use otelctx_reader::runtime::{MAX_TASKS, RuntimeError, Task};
use otelctx_reader::sample::Found as FoundContext;

use self::coroutine::{Chain, Reader};
use self::layout::{AwaitedBy, Rings, TaskLayout};
use self::limited::Limited;
use self::objects::{Kind, Objects, TYPE};
pub(crate) use self::thread_names::{ActiveThreads, thread_name};
use crate::code::Codes;
use crate::layout::{Layout, ObjectLayout};
use crate::structure::Structure;
use crate::threads::{MAX_INTERPRETERS, MAX_THREADS};
use crate::version::Version;

/// Maximum number of reads of memory for all tasks of a process, which is stopped meanwhile: twice the
/// number for 16,384 tasks with twenty frames each.
const MAX_READS: u64 = 4 << 20;
/// Maximum number of tasks that are shown to wait for the same one.
const MAX_WAITING: usize = 64;
/// `md_dict` of a module.
const MODULE_DICTIONARY: u64 = 16;

/// Takes one task after another, until it breaks.
pub(crate) type Visit<'v> = &'v mut dyn FnMut(Task) -> ControlFlow<()>;
type Visited = Result<ControlFlow<()>, RuntimeError>;

/// Calls `visit` with each task until it breaks. `interpreters` is the address of the pointer to the first
/// interpreter.
///
/// # Errors
/// If tasks cannot be read; all others have been visited.
pub(crate) fn visit(
    target: &dyn Target,
    version: Version,
    layout: &Layout,
    codes: &mut Codes,
    interpreters: u64,
    visit: Visit<'_>,
) -> Result<(), RuntimeError> {
    if layout.object != ObjectLayout::Counted {
        let reason = "where free-threaded builds keep their tasks is not known";
        return Err(RuntimeError::new(reason));
    }
    let runtime = layout.runtime;
    let runtime = runtime.map(|offsets| interpreters.wrapping_sub(offsets.interpreters));
    let Some(found) = layout::find(target, version, runtime)? else {
        return Ok(());
    };
    let memory = Limited::new(target, MAX_READS, target.deadline());
    visit_all(&memory, layout, found, codes, interpreters, visit)
}

/// [`visit`] with a known layout.
fn visit_all(
    memory: &Limited<'_>,
    layout: &Layout,
    found: TaskLayout,
    codes: &mut Codes,
    interpreters: u64,
    visit: Visit<'_>,
) -> Result<(), RuntimeError> {
    let mut tasks = Tasks {
        limited: memory,
        objects: Objects::new(memory, layout, found.task.size),
        layout,
        found,
        codes,
        missing: Missing::default(),
        visited: HashSet::new(),
        running: HashSet::new(),
    };
    let first = memory.read_u64(interpreters)?;
    let interpreters = chain(memory, first, layout.interpreter.next, MAX_INTERPRETERS);
    for interpreter in memory.or_limit(interpreters)? {
        for place in found.rings.map(Some).into_iter().chain([None]) {
            let visited = match place {
                Some(rings) => tasks.in_rings(interpreter, rings, visit),
                None => tasks.in_set(interpreter, visit),
            };
            match visited {
                Ok(ControlFlow::Break(())) => return Ok(()),
                Ok(ControlFlow::Continue(())) => {}
                Err(error) => tasks.missing.add(1, error),
            }
            memory.check()?;
        }
    }
    tasks.missing.result()
}

/// The addresses in a list of structures.
fn chain(
    memory: &dyn Memory,
    first: u64,
    next: u64,
    limit: usize,
) -> Result<Vec<u64>, RuntimeError> {
    let mut all = Vec::new();
    let mut at = first;
    while at != 0 {
        if all.len() == limit {
            let reason = format!("a list of its interpreters or threads has more than {limit}");
            return Err(RuntimeError::new(reason));
        }
        all.push(at);
        at = memory.read_u64(at.wrapping_add(next))?;
    }
    Ok(all)
}

/// Tasks that were not visited.
#[derive(Debug, Default)]
struct Missing {
    count: u64,
    /// The reason for the first one.
    why: Option<RuntimeError>,
}

impl Missing {
    fn add(&mut self, count: u64, why: RuntimeError) {
        self.count += count;
        self.why.get_or_insert(why);
    }

    fn result(self) -> Result<(), RuntimeError> {
        let Some(why) = self.why else {
            return Ok(());
        };
        Err(match self.count {
            0 | 1 => why,
            count => RuntimeError::new(format!("{why}, and {} more like this", count - 1)),
        })
    }
}

struct Tasks<'t> {
    limited: &'t Limited<'t>,
    objects: Objects<'t>,
    layout: &'t Layout,
    found: TaskLayout,
    codes: &'t mut Codes,
    missing: Missing,
    visited: HashSet<u64>,
    /// Tasks that threads execute.
    running: HashSet<u64>,
}

impl Tasks<'_> {
    fn memory(&self) -> &dyn Memory {
        self.objects.memory
    }

    /// Visits the tasks of an interpreter from 3.14 on.
    fn in_rings(&mut self, interpreter: u64, rings: Rings, visit: Visit<'_>) -> Visited {
        let first = interpreter.wrapping_add(self.layout.interpreter.threads);
        let first = self.memory().read_u64(first)?;
        let threads = chain(self.memory(), first, self.layout.thread.next, MAX_THREADS)?;
        let mut heads = vec![interpreter.wrapping_add(rings.interpreter)];
        for thread in threads {
            heads.push(thread.wrapping_add(rings.thread));
            let running = thread.wrapping_add(rings.running);
            self.running.insert(self.memory().read_u64(running)?);
        }
        for head in heads {
            let mut next = self.memory().read_u64(head)?;
            // Null before the module is used.
            while next != head && next != 0 {
                let task = next.wrapping_sub(rings.node);
                // Without its node, the next task cannot be found.
                if self.objects.kind(task)? != Kind::Task {
                    let reason = format!("there is no task at {task:#x}");
                    return Err(RuntimeError::new(reason));
                }
                if self.visit(task, visit)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                next = self.memory().read_u64(next)?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits the tasks of an interpreter up to 3.13; of a later one, the tasks that are not asyncio's own.
    fn in_set(&mut self, interpreter: u64, visit: Visit<'_>) -> Visited {
        let weak_set = self.found.set;
        let keys = weak_set.keys;
        let modules = interpreter.wrapping_add(weak_set.modules);
        let modules = self.memory().read_u64(modules)?;
        let Some(module) = self.objects.get(modules, keys, "asyncio.tasks")? else {
            return Ok(ControlFlow::Continue(()));
        };
        self.objects.expect(module, &Kind::Module)?;
        let globals = module.wrapping_add(MODULE_DICTIONARY);
        let globals = self.memory().read_u64(globals)?;
        let Some(set) = self.objects.get(globals, keys, weak_set.variable)? else {
            // The module is being imported.
            return Ok(ControlFlow::Continue(()));
        };
        if let Some(current) = self.objects.get(globals, keys, "_current_tasks")? {
            let running = self.objects.items(current, keys)?.into_iter();
            self.running.extend(running.map(|(_, task)| task));
        }
        let (tasks, unknown) = self.objects.weak_set(set, weak_set.attributes, keys)?;
        for task in tasks {
            if self.visit(task, visit)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        if unknown > 0 {
            let reason = "a thread was stopped while it changed the set of tasks";
            self.missing.add(unknown, RuntimeError::new(reason));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Visits a task, if it is one, and is not done.
    ///
    /// # Errors
    /// If there are too many: a list may have no end.
    fn visit(&mut self, address: u64, visit: Visit<'_>) -> Visited {
        if self.visited.len() > MAX_TASKS {
            let reason = format!("there are more than {MAX_TASKS} tasks");
            return Err(RuntimeError::new(reason));
        }
        if !self.visited.insert(address) {
            return Err(RuntimeError::new("a list of its tasks does not end"));
        }
        match self.read(address) {
            Ok(Some(task)) => Ok(visit(task)),
            Ok(None) => Ok(ControlFlow::Continue(())),
            Err(error) => {
                self.limited.check()?;
                self.missing.add(1, error);
                Ok(ControlFlow::Continue(()))
            }
        }
    }

    /// Reads a task. `None` if it is done, or the reference to it is dead.
    fn read(&mut self, address: u64) -> Result<Option<Task>, RuntimeError> {
        let offsets = self.found.task;
        match self.objects.kind(address)? {
            Kind::Task => {}
            Kind::Other(name) if name == "NoneType" => return Ok(None),
            Kind::Other(name) => {
                let reason = format!("tasks of the class {name} are not asyncio's own");
                return Err(RuntimeError::new(reason));
            }
            _ => {
                let reason = format!("there is no task at {address:#x}");
                return Err(RuntimeError::new(reason));
            }
        }
        // `awaited_by` comes before the context.
        let fields = [
            offsets.state,
            offsets.waiter,
            offsets.coroutine,
            offsets.context,
        ];
        let structure = Structure::read(self.memory(), address, &fields)?;
        // The memory of a freed object may still be readable. A new task has no coroutine yet.
        let coroutine = structure.pointer(offsets.coroutine);
        if structure.pointer(0) == 0 || structure.int(offsets.state) != 0 || coroutine == 0 {
            return Ok(None);
        }
        let is_running = self.running.contains(&address);
        let mut reader = Reader {
            objects: &mut self.objects,
            layout: self.layout,
            generator: self.found.generator,
            codes: self.codes,
        };
        let chain = if is_running {
            // The thread has its frames; it may be about to enter or leave the task.
            Chain::default()
        } else {
            reader.chain(coroutine)?
        };
        if chain.has_ended {
            return Ok(None);
        }
        let mut task = Task::new(address);
        if let Some(name) = offsets.name {
            let name = self.memory().read_u64(address.wrapping_add(name))?;
            let name = self.objects.task_name(name)?;
            task.facts.push(("name".into(), Value::String(name)));
        }
        let waiter = structure.pointer(offsets.waiter);
        let state = if is_running || chain.is_executing {
            "running"
        } else if waiter == 0 {
            "ready"
        } else {
            "waiting"
        };
        let fact = Value::String(state.into());
        task.facts.push(("state".into(), fact));
        if state == "waiting" {
            self.add_awaited(&mut task, waiter)?;
        }
        if let Some(AwaitedBy { object, is_set }) = offsets.awaited_by {
            let (object, is_set) = (structure.pointer(object), structure.byte(is_set) != 0);
            self.add_awaiting(&mut task, object, is_set);
        }
        task.frames = chain.frames.into();
        task.is_truncated = chain.is_truncated;
        let context = structure.pointer(offsets.context);
        match context::record(&mut self.objects, context) {
            Ok(Some(record)) => task.record = Some(record),
            Ok(None) => task.context = FoundContext::Detached,
            Err(_) => {
                task.context = FoundContext::Unreadable(otelctx_reader::sample::ReadStep::Record);
            }
        }
        Ok(Some(task))
    }

    /// Adds the object that a task waits for: the address and name of another task, or the class of
    /// another object.
    fn add_awaited(&mut self, task: &mut Task, waiter: u64) -> Result<(), RuntimeError> {
        let object_type = self.memory().read_u64(waiter.wrapping_add(TYPE))?;
        let name = match self.objects.kind_of(object_type)? {
            Kind::Task => {
                let id = i64::try_from(waiter).unwrap_or_default();
                task.facts.push(("awaits_id".into(), Value::Int(id)));
                let Some(name) = self.found.task.name else {
                    return Ok(());
                };
                let name = self.memory().read_u64(waiter.wrapping_add(name))?;
                self.objects.task_name(name)?
            }
            Kind::Other(name) => name,
            _ => return Ok(()),
        };
        task.facts.push(("awaits".into(), Value::String(name)));
        Ok(())
    }

    /// Adds the tasks that wait for a task: their addresses and names, and the number of others.
    fn add_awaiting(&mut self, task: &mut Task, object: u64, is_set: bool) {
        let (mut all, mut omitted) = if object == 0 {
            return;
        } else if is_set {
            self.objects.set(object).unwrap_or((Vec::new(), 1))
        } else {
            (vec![object], 0)
        };
        all.sort_unstable();
        let (mut ids, mut names) = (Vec::new(), Vec::new());
        for waiting in all {
            match self.waiting(waiting) {
                Ok(None) => {}
                Ok(Some(name)) if ids.len() < MAX_WAITING => {
                    ids.push(Value::Int(i64::try_from(waiting).unwrap_or_default()));
                    names.push(Value::String(name));
                }
                _ => omitted += 1,
            }
        }
        if !ids.is_empty() {
            let facts = [("awaited_by_ids", ids), ("awaited_by", names)];
            let facts = facts.map(|(key, values)| (key.into(), Value::Array(values)));
            task.facts.extend(facts);
        }
        if omitted > 0 {
            let omitted = Value::Int(i64::try_from(omitted).unwrap_or(i64::MAX));
            task.facts.push(("awaited_by_omitted".into(), omitted));
        }
    }

    /// The name of a task that waits for another one. `None` if it is a future but not a task.
    fn waiting(&mut self, address: u64) -> Result<Option<String>, RuntimeError> {
        let Kind::Task = self.objects.kind(address)? else {
            return Ok(None);
        };
        let name = self.found.task.name.unwrap_or_default();
        let name = self.memory().read_u64(address.wrapping_add(name))?;
        self.objects.task_name(name).map(Some)
    }
}

#[cfg(test)]
mod tests;
