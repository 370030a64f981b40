//! Go in one process.

use std::ops::ControlFlow;
use std::sync::Arc;

use otelctx_reader::format::Schema;
use otelctx_reader::format::process_context::{Attributes, Value};
use otelctx_reader::remote::threads::ThreadPointer;
use otelctx_reader::remote::{LoadedModule, Memory, Target};
use otelctx_reader::runtime::{
    KernelStep, RuntimeError, RuntimeProcess, RuntimeThread, Source, Task, ThreadView,
};
use otelctx_reader::sample::Found;

use crate::file::{GoFile, Variable};
use crate::goroutine::{self, Goroutine, Place};
use crate::ids::LabelNames;
use crate::labels::Labels;
use crate::layout::{self, Layout};
use crate::step::Part;
use crate::tasks::Goroutines;
use crate::threads::Threads;
use crate::{ids, labels, step};

#[derive(Debug)]
pub(crate) struct GoProcess {
    version: String,
    layout: Layout,
    /// `None` if it is unknown: the list of threads leads to goroutines.
    place: Option<Place>,
    step: Option<KernelStep>,
    threads: Threads,
    goroutines: Goroutines,
    names: Arc<LabelNames>,
}

impl GoProcess {
    /// Go in a process that has loaded this module, with the facts of its file.
    ///
    /// # Errors
    /// If its version is unknown, or its memory cannot be read.
    pub(crate) fn new(
        target: &dyn Target,
        module: &LoadedModule,
        file: &GoFile,
        names: Arc<LabelNames>,
    ) -> Result<Self, RuntimeError> {
        let bias = module.bias;
        let version = &file.version.text;
        let layout = file.layout.ok_or_else(|| {
            let known = layout::versions().map_or_else(String::new, |(first, last)| {
                format!(": only 1.{first} to 1.{last} are")
            });
            RuntimeError::new(format!("{version} is not supported{known}"))
        })?;
        let place = match file.variable {
            Variable::Offset(offset) => Some(Place::Variable(offset)),
            Variable::Slot(slot) => {
                let offset = target.read_u64(bias.wrapping_add(slot))?;
                Some(Place::Variable(offset.cast_signed()))
            }
            Variable::Register => Some(Place::Register),
            Variable::Unknown => None,
        };
        Ok(Self {
            version: version.clone(),
            layout,
            place,
            step: place.map(|place| step::kernel_step(&layout, place)),
            threads: Threads::new(layout, file.data.loaded(bias)),
            goroutines: Goroutines::new(
                layout,
                file.data.loaded(bias),
                module.clone(),
                names.clone(),
            ),
            names,
        })
    }

    fn found(
        &self,
        memory: &dyn Memory,
        goroutine: Goroutine,
    ) -> Result<RuntimeThread, RuntimeError> {
        let labels = labels::read(memory, self.layout.labels, goroutine.labels)?;
        Ok(with_labels(goroutine.id, labels, &self.names))
    }
}

/// A thread that runs no goroutine.
fn idle() -> RuntimeThread {
    RuntimeThread::new(Found::Detached, Source::Labels)
}

/// A thread that runs the goroutine with this number and these labels.
fn with_labels(id: u64, labels: Labels, names: &LabelNames) -> RuntimeThread {
    let mut facts = vec![("goid".into(), Value::Int(id.cast_signed()))];
    if labels.skipped > 0 {
        facts.push(("skipped_labels".into(), Value::Int(labels.skipped as i64)));
    }
    let context = match labels.labels.is_empty() {
        true => Found::Detached,
        false => Found::Attached(ids::context(labels.labels, names)),
    };
    let mut thread = RuntimeThread::new(context, Source::Labels);
    thread.facts = facts;
    thread
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
        let g = match self.place {
            Some(Place::Variable(offset)) => {
                memory.read_u64(thread.thread_pointer.wrapping_add_signed(offset))?
            }
            // Another goroutine of the thread leads to the same.
            _ => self.threads.goroutine_of(target, thread.tid)?,
        };
        match goroutine::running(memory, &self.layout, g)? {
            Some(goroutine) => self.found(memory, goroutine).map(Some),
            None => Ok((g != 0).then(idle)),
        }
    }

    fn tasks(
        &self,
        target: &dyn Target,
        visit: &mut dyn FnMut(Task) -> ControlFlow<()>,
    ) -> Result<(), RuntimeError> {
        self.goroutines.visit(target, visit)
    }

    fn kernel_step(&self) -> Option<&KernelStep> {
        self.step.as_ref()
    }

    fn decode(&self, _: &dyn Target, part: &[u8]) -> Result<Option<RuntimeThread>, RuntimeError> {
        Ok(match Part::read(part)? {
            Part::Nothing => None,
            Part::Idle => Some(idle()),
            Part::Runs(id, labels) => Some(with_labels(id, labels, &self.names)),
        })
    }
}
