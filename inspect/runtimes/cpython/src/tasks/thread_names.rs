//! The names of threads up to 3.13, which the kernel does not have: those of the module `threading`, as Python's programs set
//! them and py-spy shows them.

use std::sync::{Mutex, PoisonError};

use otelctx_reader::remote::{Memory, Target};
use otelctx_reader::runtime::RuntimeError;

use super::MODULE_DICTIONARY;
use super::layout::{Keys, modules};
use super::objects::{Kind, Objects};
use crate::layout::{Layout, ObjectLayout};
use crate::version::Version;

/// Maximum number of reads of memory for a name: twice the number with 1,000 modules.
const MAX_READS: u64 = 4096;

/// `threading._active` of the interpreter that was searched last: the addresses of the interpreter and of the dictionary.
#[derive(Debug, Default)]
pub(crate) struct ActiveThreads(Mutex<Option<(u64, u64)>>);

/// The name of the thread with this thread state. `None` if the module does not know it, or the kernel has the name.
///
/// # Errors
/// If memory cannot be read, or is inconsistent.
pub(crate) fn thread_name(
    target: &dyn Target,
    version: Version,
    layout: &Layout,
    known: &ActiveThreads,
    thread_state: u64,
) -> Result<Option<String>, RuntimeError> {
    let Some((modules, attributes, keys)) = modules(version.series()) else {
        return Ok(None);
    };
    if layout.object != ObjectLayout::Counted {
        return Ok(None);
    }
    let memory = super::limited::Limited::new(target, MAX_READS, target.deadline());
    let mut objects = Objects::new(&memory, layout, u64::MAX);
    let at = |offset: u64| memory.read_u64(thread_state.wrapping_add(offset));
    let (id, interpreter) = (at(layout.thread.id)?, at(layout.thread.interpreter)?);
    let mut known = known.0.lock().unwrap_or_else(PoisonError::into_inner);
    let active = match *known {
        Some((of, active)) if of == interpreter => active,
        _ => {
            let modules = memory.read_u64(interpreter.wrapping_add(modules))?;
            let Some(active) = find_active(&mut objects, modules, keys)? else {
                return Ok(None);
            };
            *known = Some((interpreter, active));
            active
        }
    };
    drop(known);
    let Some(thread) = objects.by_number(active, keys, id)? else {
        return Ok(None);
    };
    let Some(name) = objects.attribute(thread, attributes, keys, "_name")? else {
        return Ok(None);
    };
    let name = objects.string(name)?;
    // The thread state may have been freed meanwhile, and belong to another thread.
    Ok((at(layout.thread.id)? == id).then_some(name))
}

/// Finds the dictionary of the threads, by their IDs. The module keeps it as long as it is loaded.
fn find_active(
    objects: &mut Objects<'_>,
    modules: u64,
    keys: Keys,
) -> Result<Option<u64>, RuntimeError> {
    let Some(module) = objects.get(modules, keys, "threading")? else {
        return Ok(None);
    };
    objects.expect(module, &Kind::Module)?;
    let globals = module.wrapping_add(MODULE_DICTIONARY);
    let globals = objects.memory.read_u64(globals)?;
    objects.get(globals, keys, "_active")
}
