//! CPython in one process.

use std::cell::Cell;
use std::ffi::OsString;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::{FileCache, Target};
use otelctx_reader::runtime::{
    Gil, KernelStep, RuntimeError, RuntimeProcess, RuntimeStack, RuntimeThread, Source, Task,
    ThreadView,
};
use otelctx_reader::sample::Found;

use crate::code::Codes;
use crate::frames;
use crate::layout::{Layout, ObjectLayout};
use crate::step::Part;
use crate::symbols::{NativeCode, native_code};
use crate::tasks::{self, ActiveThreads};
use crate::threads::{self, Resolved, StateCache, Variables};
use crate::version::Version;

#[derive(Debug)]
pub(crate) struct PythonProcess {
    pub(crate) version: Version,
    pub(crate) layout: Layout,
    pub(crate) variables: Variables,
    pub(crate) states: StateCache,
    /// The name of the mapping of the module that defines it.
    pub(crate) module: OsString,
    pub(crate) files: FileCache,
    /// Found only if native stacks are read: this decodes thousands of instructions.
    pub(crate) code: OnceLock<NativeCode>,
    pub(crate) codes: Mutex<Codes>,
    pub(crate) active_threads: ActiveThreads,
    pub(crate) step: Option<KernelStep>,
    /// Interpreters that other modules of the process contain. Only the first one has a step.
    pub(crate) others: Vec<PythonProcess>,
}

impl PythonProcess {
    /// CPython without a file and a step.
    pub(crate) fn new(version: Version, layout: Layout, variables: Variables) -> Self {
        Self {
            version,
            layout,
            variables,
            states: StateCache::default(),
            module: OsString::new(),
            files: FileCache::default(),
            code: OnceLock::new(),
            codes: Mutex::default(),
            active_threads: ActiveThreads::default(),
            step: None,
            others: Vec::new(),
        }
    }

    /// `None` if there is no GIL.
    fn gil(&self, is_held: Option<bool>) -> Option<Gil> {
        let code = self.code.get().map(|code| code.gil.clone());
        Some(Gil::new(is_held?, code.unwrap_or_default()))
    }

    fn resolve(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<Resolved>, RuntimeError> {
        let (layout, variables, states) = (&self.layout, &self.variables, &self.states);
        let is_on_stack = |address| is_on_stack(target, thread, address);
        threads::resolve(target, layout, variables, states, thread, &is_on_stack)
    }

    fn thread_of_one(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let Some(resolved) = self.resolve(target, thread)? else {
            return Ok(None);
        };
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = RuntimeThread::new(Found::NotPublished, Source::Runtime);
        let (layout, interpreter) = (&self.layout, self.interpreter());
        let state = resolved.thread_state;
        known.stack = frames::stack(target, layout, &mut codes, state, interpreter)?;
        self.add_code(&mut known.stack);
        // In 3.11 and 3.12, its innermost call may have just begun.
        known.is_settled = !(known.stack.is_truncated && known.stack.calls.is_empty());
        known.gil = self.gil(resolved.holding.gil);
        known.facts = facts(&resolved);
        Ok(Some(known))
    }

    /// Adds the code of the interpreter beside its loop.
    fn add_code(&self, stack: &mut RuntimeStack) {
        if let Some(code) = self.code.get() {
            stack.callers = Arc::clone(&code.callers);
            stack.instructions = Arc::clone(&code.instructions);
        }
    }

    fn interpreter(&self) -> Vec<Range<u64>> {
        let code = self.code.get();
        code.map_or_else(Vec::new, |code| code.interpreter.clone())
    }
}

impl RuntimeProcess for PythonProcess {
    fn facts(&self) -> Attributes {
        let mut facts = vec![("version".into(), Value::String(self.version.to_string()))];
        if self.layout.object == ObjectLayout::FreeThreaded {
            facts.push(("free_threaded".into(), Value::Bool(true)));
        }
        if !self.others.is_empty() {
            let versions = self.others.iter().map(|other| other.version.to_string());
            let versions = versions.map(Value::String).collect();
            facts.push(("other_versions".into(), Value::Array(versions)));
        }
        facts
    }

    fn find_code(&self, target: &dyn Target) {
        self.code.get_or_init(|| {
            let code = native_code(target, &self.files, &self.module, self.version);
            code.unwrap_or_default()
        });
        self.others.iter().for_each(|other| other.find_code(target));
    }

    /// If several interpreters know the thread, prefers the one whose GIL it holds.
    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let mut known = self.thread_of_one(target, thread)?;
        let is_held = |known: &RuntimeThread| known.gil.as_ref().is_some_and(|gil| gil.is_held);
        for other in &self.others {
            if known.as_ref().is_some_and(is_held) {
                break;
            }
            let mut found = match other.thread_of_one(target, thread) {
                Ok(Some(found)) => found,
                Err(error) if known.is_none() => return Err(error),
                _ => continue,
            };
            if known.is_none() || is_held(&found) {
                let version = Value::String(other.version.to_string());
                found.facts.push(("version".into(), version));
                known = Some(found);
            }
        }
        Ok(known)
    }

    fn tasks(
        &self,
        target: &dyn Target,
        visit: &mut dyn FnMut(Task) -> ControlFlow<()>,
    ) -> Result<(), RuntimeError> {
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let interpreters = self.variables.interpreters;
        let (version, layout) = (self.version, &self.layout);
        let is_enough = Cell::new(false);
        let visit = &mut |task| {
            let flow = visit(task);
            is_enough.set(flow.is_break());
            flow
        };
        let mut result = tasks::visit(target, version, layout, &mut codes, interpreters, visit);
        for other in &self.others {
            if is_enough.get() {
                break;
            }
            result = result.and(other.tasks(target, visit));
        }
        result
    }

    fn kernel_step(&self) -> Option<&KernelStep> {
        self.step.as_ref()
    }

    /// The address of its thread state.
    fn thread_word(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<u64>, RuntimeError> {
        let resolved = self.resolve(target, thread)?;
        Ok(resolved.map(|resolved| resolved.thread_state))
    }

    /// The first thread has the program's name.
    fn thread_name(
        &self,
        target: &dyn Target,
        tid: i32,
        thread: Option<&RuntimeThread>,
    ) -> Option<String> {
        let thread = thread?;
        if target.pid() == Some(tid) || fact(&thread.facts, "version").is_some() {
            return None;
        }
        let state = fact(&thread.facts, "thread_state")?.strip_prefix("0x")?;
        let state = u64::from_str_radix(state, 16).ok()?;
        let (version, layout, known) = (self.version, &self.layout, &self.active_threads);
        tasks::thread_name(target, version, layout, known, state).ok()?
    }

    fn decode(
        &self,
        target: &dyn Target,
        part: &[u8],
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let Some(part) = Part::read(part)? else {
            return Ok(None);
        };
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let interpreter = self.interpreter();
        let mut known = RuntimeThread::new(Found::NotPublished, Source::Runtime);
        known.stack = frames::sampled(target, &self.layout, &mut codes, &part, interpreter);
        self.add_code(&mut known.stack);
        known.gil = self.gil(part.holds_gil);
        let state = [("thread_state".into(), address(part.thread_state))];
        known.facts = holding_facts(part.holds_gil, None).chain(state).collect();
        Ok(Some(known))
    }
}

/// Returns whether the stack of a thread contains an address. `None` if that is unknown. The C
/// library puts the thread control block at the end of each stack that it creates; the kernel creates
/// that of the first thread.
fn is_on_stack(target: &dyn Target, thread: ThreadView, address: u64) -> Option<bool> {
    let is_first = target.pid() == Some(thread.tid);
    // Mappings have names in a running process, and registers are known in a core file.
    let inside = if is_first {
        let registers = target.thread(thread.tid).ok().and_then(|it| it.registers);
        registers.map(|it| it.stack_pointer)
    } else {
        Some(thread.thread_pointer)
    };
    let mut stack = None;
    let walk = target.mappings(&mut |mapping| {
        let range = mapping.start..mapping.end;
        let is_it = match inside {
            Some(inside) => range.contains(&inside),
            None => mapping.name == b"[stack]",
        };
        if !is_it {
            return ControlFlow::Continue(());
        }
        stack = Some(range);
        ControlFlow::Break(())
    });
    walk.ok()?;
    let mut stack = stack?;
    if !is_first {
        stack.end = thread.thread_pointer;
    }
    Some(stack.contains(&address))
}

fn fact<'f>(facts: &'f Attributes, name: &str) -> Option<&'f str> {
    let (_, value) = facts.iter().find(|(fact, _)| fact == name)?;
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}

fn address(address: u64) -> Value {
    Value::String(format!("{address:#x}"))
}

fn holding_facts(
    holds_gil: Option<bool>,
    is_attached: Option<bool>,
) -> impl Iterator<Item = (String, Value)> {
    let facts = [("holds_gil", holds_gil), ("attached", is_attached)].into_iter();
    facts.filter_map(|(name, value)| Some((name.into(), Value::Bool(value?))))
}

fn facts(resolved: &Resolved) -> Attributes {
    let holding = resolved.holding;
    let mut facts: Attributes = holding_facts(holding.gil, holding.is_attached).collect();
    let source = Value::String(resolved.source.name().into());
    facts.push(("thread_state".into(), address(resolved.thread_state)));
    facts.push(("source".into(), source));
    if !resolved.candidates.is_empty() {
        let candidates = resolved.candidates.iter().map(|state| address(*state));
        facts.push(("candidates".into(), Value::Array(candidates.collect())));
    }
    facts
}

#[cfg(test)]
mod tests;
