//! The structures of asyncio's tasks in each version of CPython: offsets in bytes.
//!
//! From 3.14 on, asyncio's module in C describes itself: `_AsyncioDebug`, in a section of its own
//! (`Modules/_asynciomodule.c`). Up to 3.13, the offsets are from that module and the interpreter's headers
//! (`Include/internal/pycore_interp.h`, `pycore_genobject.h` and `pycore_frame.h`,
//! `Include/frameobject.h`), for x86-64. A task counts only if its type has the expected name and size.

use otelctx_reader::remote::{FileCache, Memory, Modules, Target};
use otelctx_reader::runtime::RuntimeError;

use crate::version::Version;

/// The section of `_AsyncioDebug`.
const SECTION: &[u8] = b".AsyncioDebug";
/// Number of its words: seven of the task, two of the interpreter, four of the thread state.
const WORDS: usize = 13;
/// Maximum sizes of structures, in bytes: several times the largest.
const MAX_INTERPRETER: u64 = 16 << 20;
const MAX_SMALL: u64 = 4096;

/// The offsets of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaskLayout {
    pub(super) set: WeakSet,
    /// From 3.14 on, if asyncio's module in C is loaded: the tasks in C are in rings.
    pub(super) rings: Option<Rings>,
    pub(super) task: TaskOffsets,
    pub(super) generator: Generator,
}

/// The `WeakSet` of tasks, a variable of the module `asyncio.tasks`. From 3.14 on, it has only tasks that
/// are not asyncio's own in C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WeakSet {
    /// The dictionary of modules, in `PyInterpreterState`.
    pub(super) modules: u64,
    pub(super) variable: &'static str,
    pub(super) attributes: Attributes,
    pub(super) keys: Keys,
}

/// Rings of tasks: one of each thread and, for threads that have ended, one of the interpreter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    /// The ring in `PyInterpreterState`.
    pub(super) interpreter: u64,
    /// The ring in a thread state.
    pub(super) thread: u64,
    /// The node in a task.
    pub(super) node: u64,
    /// The task that a thread runs, in its thread state.
    pub(super) running: u64,
}

/// The location of the attributes of an object in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attributes {
    /// Up to 3.10, a dictionary, whose address is at an offset from its type (`tp_dictoffset`).
    Dictionary,
    /// In 3.11, the addresses of the values and of the dictionary are before the object.
    Two,
    /// In 3.12, only one of them: the address of the values less one, which makes it odd.
    One,
    /// From 3.13 on, the values are after the object, if there is no dictionary.
    Inline,
}

impl Attributes {
    /// The address of the first value of these `_dictvalues`. In 3.13, they have a header of 8 bytes; the first is the
    /// number of values that fit.
    pub(super) fn first_value(self, values: u64) -> u64 {
        match self {
            Self::Inline => values.wrapping_add(8),
            _ => values,
        }
    }
}

/// The structure of the keys of a dictionary, `PyDictKeysObject`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// Up to 3.10: `dk_size`, and keys with their hashes.
    Sized,
    /// From 3.11 on: `dk_log2_index_bytes`, and strings without hashes.
    Logarithmic,
}

/// Offsets in `TaskObj`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TaskOffsets {
    pub(super) size: u64,
    /// `task_state`, an `int`: 0 is pending.
    pub(super) state: u64,
    /// `task_fut_waiter`, `task_coro`, `task_name` (from 3.8 on) and `task_context`.
    pub(super) waiter: u64,
    pub(super) coroutine: u64,
    pub(super) name: Option<u64>,
    pub(super) context: u64,
    /// From 3.14 on.
    pub(super) awaited_by: Option<AwaitedBy>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AwaitedBy {
    /// `task_awaited_by`: null, a task, or a set of them.
    pub(super) object: u64,
    /// `task_awaited_by_is_set`, a byte.
    pub(super) is_set: u64,
}

/// The locations of the frame of a generator or coroutine (`PyGenObject`), and of its stack of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Generator {
    /// Up to 3.10, the frame is a separate object.
    Object {
        /// `f_stackdepth` and `f_state` in 3.10; before, `f_stacktop` is null while it is executed.
        depth_and_state: Option<(u64, u64)>,
        /// `co_code`, in the code object.
        code: u64,
    },
    /// From 3.11 on, the frame is part of the generator.
    Embedded {
        frame: u64,
        states: States,
        stack: Stack,
    },
}

/// Values of `gi_frame_state`, a byte. With all others, the generator has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct States {
    pub(super) created: i8,
    pub(super) suspended: i8,
    /// The range of states of a generator that awaits an object. `None` up to 3.12, whose instructions
    /// show it.
    pub(super) awaits: Option<(i8, i8)>,
    pub(super) executing: i8,
}

/// The stack of values of an `_PyInterpreterFrame`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// Up to 3.13: `stacktop`, the number of values in `localsplus`. The code object has the number of
    /// variables among them at the offset `locals`.
    Count { locals: u64 },
    /// From 3.14 on: `stackpointer`, its end.
    End {
        /// Number of values above the awaited object: in 3.15, the value that is sent to it.
        above: u64,
    },
}

impl Stack {
    /// `stacktop` or `stackpointer`, in the frame.
    pub(super) const TOP: u64 = 64;

    /// `localsplus`, in the frame.
    pub(super) fn values(self) -> u64 {
        match self {
            Self::Count { .. } => 72,
            Self::End { .. } => 80,
        }
    }
}

/// Finds the layout for a version, whose `_PyRuntime` is at `runtime`. `None` if it has no asyncio.
///
/// # Errors
/// If it is unknown, or its description is inconsistent.
pub(super) fn find(
    target: &dyn Target,
    version: Version,
    runtime: Option<u64>,
) -> Result<Option<TaskLayout>, RuntimeError> {
    match (version.series(), runtime) {
        ((2, _), _) => Ok(None),
        (series @ (3, 14 | 15), Some(runtime)) => described(target, series, runtime).map(Some),
        (series @ (major, minor), _) => known(series).map(Some).ok_or_else(|| {
            RuntimeError::new(format!(
                "where {major}.{minor} keeps its tasks is not known, only for 3.7 to 3.15"
            ))
        }),
    }
}

/// The versions that do not describe themselves.
fn known(series: (u8, u8)) -> Option<TaskLayout> {
    let (modules, ..) = modules(series).filter(|_| series > (3, 6))?;
    let (size, state, waiter) = match series {
        (3, 7) => (136, 72, 104),
        (3, 8) => (144, 72, 104),
        (3, 9) => (184, 80, 144),
        (3, 10) => (192, 88, 152),
        (3, 11 | 12) => (176, 88, 128),
        _ => (144, 96, 112),
    };
    let coroutine = waiter + 8;
    let name = (series > (3, 7)).then_some(coroutine + 8);
    let task = TaskOffsets {
        size,
        state,
        waiter,
        coroutine,
        name,
        context: name.unwrap_or(coroutine) + 8,
        awaited_by: None,
    };
    Some(layout(series, modules, None, task))
}

/// The offset of the dictionary of modules in `PyInterpreterState`, and the forms of objects and dictionaries.
pub(super) fn modules(series: (u8, u8)) -> Option<(u64, Attributes, Keys)> {
    let modules = match series {
        (3, 6) => 16,
        (3, 7) => 40,
        (3, 8) => 56,
        (3, 9 | 10) => 856,
        (3, 11) => 888,
        (3, 12) => 944,
        (3, 13) => 7656,
        _ => return None,
    };
    let (attributes, keys) = forms(series);
    Some((modules, attributes, keys))
}

fn forms(series: (u8, u8)) -> (Attributes, Keys) {
    match series {
        (3, 6..=10) => (Attributes::Dictionary, Keys::Sized),
        (3, 11) => (Attributes::Two, Keys::Logarithmic),
        (3, 12) => (Attributes::One, Keys::Logarithmic),
        _ => (Attributes::Inline, Keys::Logarithmic),
    }
}

fn generator(series: (u8, u8)) -> Generator {
    let embedded = |frame, created, awaits, stack| Generator::Embedded {
        frame,
        states: States {
            created,
            suspended: created + 1,
            awaits,
            executing: if series >= (3, 15) { 4 } else { 0 },
        },
        stack,
    };
    match series {
        (3, 0..=9) => Generator::Object {
            depth_and_state: None,
            code: if series < (3, 8) { 40 } else { 48 },
        },
        (3, 10) => Generator::Object {
            depth_and_state: Some((80, 108)),
            code: 48,
        },
        (3, 11) => embedded(80, -2, None, Stack::Count { locals: 76 }),
        (3, 12) => embedded(72, -2, None, Stack::Count { locals: 72 }),
        (3, 13) => embedded(72, -3, Some((-1, -1)), Stack::Count { locals: 72 }),
        (3, 14) => embedded(72, -3, Some((-1, -1)), Stack::End { above: 0 }),
        // FRAME_SUSPENDED_YIELD_FROM_LOCKED, while another thread reads the awaited object.
        _ => embedded(72, 0, Some((2, 3)), Stack::End { above: 1 }),
    }
}

/// The layout that asyncio's module describes, which is a file of its own or part of the interpreter.
fn described(
    target: &dyn Target,
    series: (u8, u8),
    runtime: u64,
) -> Result<TaskLayout, RuntimeError> {
    // `imports_modules` in the interpreter's block of `_Py_DebugOffsets`.
    let modules = target.read_u64(runtime.wrapping_add(8 * 12))?;
    if modules > MAX_INTERPRETER {
        return Err(RuntimeError::new("its debug offsets are inconsistent"));
    }
    let is_candidate = |path: &[u8]| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let names: [&[u8]; 3] = [b"_asyncio.", b"python", b"libpython"];
        names.iter().any(|start| name.starts_with(start))
    };
    let files = Modules::read_named(target, &FileCache::default(), &is_candidate)?;
    let mut has_module = false;
    for module in &files.loaded {
        let section = module.read(target, |elf| elf.section_named(SECTION));
        if let Some(section) = section.ok().flatten() {
            let at = module.bias.wrapping_add(section.address);
            return describes(target, at, series, modules);
        }
        let name = module.name.as_encoded_bytes();
        has_module |= name.windows(10).any(|part| part == b"/_asyncio.");
    }
    if has_module {
        return Err(RuntimeError::new(
            "asyncio's module does not say where its tasks are: its file has no section .AsyncioDebug",
        ));
    }
    // Without the module, there are no tasks in C: no type has this size.
    let task = TaskOffsets {
        size: u64::MAX,
        ..TaskOffsets::default()
    };
    Ok(layout(series, modules, None, task))
}

/// Reads the `_AsyncioDebug` at an address.
pub(super) fn describes(
    memory: &dyn Memory,
    at: u64,
    series: (u8, u8),
    modules: u64,
) -> Result<TaskLayout, RuntimeError> {
    let mut words = [[0; 8]; WORDS];
    memory.read(at, words.as_flattened_mut())?;
    let words = words.map(u64::from_ne_bytes);
    let [
        size,
        name,
        awaited_by,
        is_task,
        is_set,
        coroutine,
        node,
        interpreter_size,
        interpreter,
        thread_size,
        _,
        running,
        thread,
    ] = words;
    let within = |offset: u64, bytes: u64, size: u64, limit: u64| {
        size <= limit && offset.checked_add(bytes).is_some_and(|end| end <= size)
    };
    // `task_fut_waiter` comes before the coroutine, `task_context` between the name and the node, and
    // `task_state` between `task_awaited_by` and `task_is_task`.
    let is_known = name == coroutine.wrapping_add(8)
        && node == name.wrapping_add(16)
        && is_task == awaited_by.wrapping_add(12)
        && is_set == is_task.wrapping_add(1)
        && within(node, 16, size, MAX_SMALL)
        && within(is_task, 1, coroutine, MAX_SMALL)
        && within(awaited_by, 8, size, MAX_SMALL)
        && coroutine >= 24
        && within(interpreter, 16, interpreter_size, MAX_INTERPRETER)
        && within(thread, 16, thread_size, MAX_SMALL)
        && within(running, 8, thread_size, MAX_SMALL);
    if !is_known {
        let reason = "asyncio's module describes its tasks in an unknown way";
        return Err(RuntimeError::new(reason));
    }
    let rings = Rings {
        interpreter,
        thread,
        node,
        running,
    };
    let object = awaited_by;
    let task = TaskOffsets {
        size,
        state: is_task - 4,
        waiter: coroutine - 8,
        coroutine,
        name: Some(name),
        context: name + 8,
        awaited_by: Some(AwaitedBy { object, is_set }),
    };
    Ok(layout(series, modules, Some(rings), task))
}

fn layout(series: (u8, u8), modules: u64, rings: Option<Rings>, task: TaskOffsets) -> TaskLayout {
    let (attributes, keys) = forms(series);
    TaskLayout {
        set: WeakSet {
            modules,
            variable: match series {
                (3, 7..=11) => "_all_tasks",
                _ => "_scheduled_tasks",
            },
            attributes,
            keys,
        },
        rings,
        task,
        generator: generator(series),
    }
}
