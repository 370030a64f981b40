//! Go in one process.

use otelctx_reader::format::Schema;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::threads::ThreadPointer;
use otelctx_reader::remote::{Memory, Target};
use otelctx_reader::runtime::{RuntimeError, RuntimeProcess, RuntimeThread, Source, ThreadView};
use otelctx_reader::sample::Found;

use crate::file::{GoFile, Variable};
use crate::goroutine::{self, Goroutine};
use crate::layout::{self, Layout};
use crate::threads::Threads;
use crate::{ids, labels};

#[derive(Debug)]
pub(crate) struct GoProcess {
    version: String,
    layout: Layout,
    /// Offset of the address of a thread's `g` from the thread pointer, in bytes.
    variable: i64,
    threads: Threads,
}

impl GoProcess {
    /// Go in a process that has loaded this file with this bias.
    ///
    /// # Errors
    /// If its version is unknown, or how its threads find their goroutines.
    pub(crate) fn new(target: &dyn Target, bias: u64, file: &GoFile) -> Result<Self, RuntimeError> {
        let version = &file.version.text;
        let layout = file.layout.ok_or_else(|| {
            let known = layout::versions().map_or_else(String::new, |(first, last)| {
                format!(": only 1.{first} to 1.{last} are")
            });
            RuntimeError::new(format!("{version} is not supported{known}"))
        })?;
        let variable = match file.variable {
            Variable::Offset(offset) => offset,
            Variable::Slot(slot) => target.read_u64(bias.wrapping_add(slot))?.cast_signed(),
            Variable::Unknown => {
                let reason = "it is unknown where threads keep the address of their goroutine";
                return Err(RuntimeError::new(reason));
            }
        };
        Ok(Self {
            version: version.clone(),
            layout,
            variable,
            threads: Threads::new(layout, file.data.loaded(bias)),
        })
    }

    fn found(
        &self,
        memory: &dyn Memory,
        goroutine: Goroutine,
    ) -> Result<RuntimeThread, RuntimeError> {
        let labels = labels::read(memory, self.layout.labels, goroutine.labels)?;
        let mut facts = vec![("goid".into(), Value::Int(goroutine.id.cast_signed()))];
        if labels.skipped > 0 {
            facts.push(("skipped_labels".into(), Value::Int(labels.skipped as i64)));
        }
        let context = match labels.labels.is_empty() {
            true => Found::Detached,
            false => Found::Attached(ids::context(labels.labels)),
        };
        let mut thread = RuntimeThread::new(context, Source::Labels);
        thread.facts = facts;
        Ok(thread)
    }
}

impl RuntimeProcess for GoProcess {
    fn facts(&self) -> Attributes {
        vec![("version".into(), Value::String(self.version.clone()))]
    }

    fn reads_schema(&self, schema: &Schema) -> bool {
        schema.is_go_labels()
    }

    fn thread_pointers(&self, target: &dyn Target) -> Vec<(i32, ThreadPointer)> {
        self.threads.pointers(target)
    }

    fn thread(
        &self,
        target: &dyn Target,
        thread: ThreadView,
    ) -> Result<Option<RuntimeThread>, RuntimeError> {
        let memory: &dyn Memory = target;
        let g = memory.read_u64(thread.thread_pointer.wrapping_add_signed(self.variable))?;
        match goroutine::running(memory, &self.layout, g)? {
            Some(goroutine) => self.found(memory, goroutine).map(Some),
            None => Ok((g != 0).then(|| RuntimeThread::new(Found::Detached, Source::Labels))),
        }
    }
}
