//! The reading of a thread by a runtime.

use otelctx_format::process_context::Attributes;
use otelctx_format::record::DecodedContext;
use otelctx_remote::Target;
use otelctx_sample::Found;

use super::gil::Gil;
use super::stack::RuntimeStack;
use super::{Present, RuntimeError, ThreadView};

/// A thread, as its runtime shows it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RuntimeThread {
    /// The context that the runtime shows. [`Found::NotPublished`] for a runtime without contexts.
    pub context: Found<DecodedContext>,
    /// The source of `context`.
    pub source: Source,
    /// The bytes of a native record (OTEP 4947) that the runtime leads to, if any: the reader
    /// decodes it to `context`, with the names that the process publishes.
    pub record: Option<Vec<u8>>,
    /// False if the runtime was in the middle of a change that hides the context or the frames. The
    /// reader then reads a running process again, up to three times, 1 ms apart.
    pub is_settled: bool,
    /// The runtime's frames.
    pub stack: RuntimeStack,
    /// The thread's relation to the interpreter's global lock. `None` if the interpreter has none.
    pub gil: Option<Gil>,
    /// Other facts about the thread, shown next to the frames.
    pub facts: Attributes,
}

impl RuntimeThread {
    /// Creates a thread with this context and its source, without other facts.
    #[must_use]
    pub fn new(context: Found<DecodedContext>, source: Source) -> Self {
        Self {
            context,
            source,
            record: None,
            is_settled: true,
            stack: RuntimeStack::default(),
            gil: None,
            facts: Vec::new(),
        }
    }
}

/// Sources of a context, most reliable first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The native record (OTEP 4947).
    Native,
    /// Data that the runtime publishes for readers.
    Runtime,
    /// Labels for profilers, which contain IDs only by convention.
    Labels,
}

/// The reading of a thread by one runtime.
#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeReading {
    /// [`Runtime::name`](super::Runtime::name).
    pub name: &'static str,
    /// The result, or the reason why the thread could not be read.
    pub thread: Result<RuntimeThread, RuntimeError>,
}

impl RuntimeReading {
    /// [`RuntimeThread::is_settled`], or [`RuntimeError::in_a_change`].
    pub(crate) fn is_settled(&self) -> bool {
        match &self.thread {
            Ok(thread) => thread.is_settled,
            Err(error) => error.is_settled,
        }
    }
}

/// The name that a runtime has for a thread, which runs, and of which these are the readings. `None` if it has none, or the
/// thread has ended: its ID in the runtime may be another one's then.
#[must_use]
pub fn thread_name(
    present: &[Present],
    target: &dyn Target,
    tid: i32,
    readings: &[RuntimeReading],
) -> Option<String> {
    let name = |present: &Present| {
        let process = present.process.as_ref().ok()?;
        let reading = readings.iter().find(|it| it.name == present.name);
        let thread = reading.and_then(|it| it.thread.as_ref().ok());
        process.thread_name(target, tid, thread)
    };
    let name = present.iter().find_map(name)?;
    target.thread(tid).is_ok().then_some(name)
}

/// Reads a thread, which is stopped or asleep, or belongs to a core file, with the runtimes of its
/// process. Runtimes that do not know the thread, or cannot be read, are omitted.
pub fn read_thread(
    target: &dyn Target,
    runtimes: &[Present],
    thread: ThreadView,
) -> Vec<RuntimeReading> {
    let read = |present: &Present| {
        let process = present.process.as_ref().ok()?;
        let thread = process.thread(target, thread).transpose()?;
        let name = present.name;
        Some(RuntimeReading { name, thread })
    };
    runtimes.iter().filter_map(read).collect()
}
