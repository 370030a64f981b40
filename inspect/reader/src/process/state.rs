//! Reads threads and tasks together with their runtimes.

use std::time::Duration;

use otelctx_format::record::DecodedContext;
use otelctx_remote::{Memory, Stopped, Target, Through};
use otelctx_sample::{Found, ReadStep};

use super::thread::Thread;
use super::{Process, all_keys};
use crate::record::{decode, read_record};
use crate::runtime::{
    Present, RuntimeReading, Scope, TaskReading, ThreadState, ThreadView, read_thread,
};
use crate::{Error, StopReason, ThreadSupport, Unreadable};

/// Converts errors of a process that publishes nothing natively, or a schema that a runtime reads.
fn not_published(
    result: Result<Found<DecodedContext>, Error>,
    runtimes: &[Present],
) -> Result<Found<DecodedContext>, Error> {
    match result {
        Err(error) if error.found::<()>() == Found::NotPublished => Ok(Found::NotPublished),
        Err(Error::Unreadable {
            why: Unreadable::UnsupportedSchema(schema),
            ..
        }) if runtimes.iter().any(|it| it.reads_schema(&schema)) => Ok(Found::NotPublished),
        result => result,
    }
}

impl Process {
    /// Reads the tasks of its runtimes whose scope is the process, or of all with
    /// [`Options::tasks`](crate::Options::tasks). Threads of a running process must be stopped or
    /// asleep. Without `support`, records of tasks count as not published.
    #[must_use]
    pub fn tasks(&self, runtimes: &[Present], support: Option<&ThreadSupport>) -> Vec<TaskReading> {
        let Some(target) = self.as_target() else {
            return Vec::new();
        };
        let mut decode = |address| match support {
            Some(ThreadSupport::Readable(variables)) => {
                let mut buffer = self.record_buffer();
                match read_record(&*target, address, &mut buffer) {
                    Ok(size) => {
                        let keys = variables.keys.all();
                        decode(&buffer[..size], keys, || self.newer_keys(&all_keys))
                    }
                    Err(_) => Found::Unreadable(ReadStep::Record),
                }
            }
            _ => Found::NotPublished,
        };
        let read = |present: &Present| {
            let process = present.process.as_ref().ok()?;
            let is_read = self.options().tasks || process.scope() == Scope::Process;
            is_read.then(|| TaskReading::of(present.name, &**process, &*target, &mut decode))
        };
        runtimes.iter().filter_map(read).collect()
    }
}

impl Thread<'_> {
    /// Reads the native context of the thread, which may be `stopped`, and its runtimes' data;
    /// again if a runtime was not [settled](crate::runtime::RuntimeThread::is_settled).
    ///
    /// # Errors
    /// If it must be stopped, but cannot be.
    pub fn state(
        &self,
        runtimes: &[Present],
        stopped: Option<&Stopped>,
    ) -> Result<ThreadState, Error> {
        const ATTEMPTS: usize = 3;
        const PAUSE: Duration = Duration::from_millis(1);
        let mut state = self.state_now(runtimes, stopped)?;
        let target = self.process().as_target();
        let may_settle = stopped.is_none() && target.is_some_and(|it| it.is_running());
        for _ in 0..ATTEMPTS {
            if !may_settle || state.runtimes.iter().all(RuntimeReading::is_settled) {
                break;
            }
            std::thread::sleep(PAUSE);
            // It may have exited since.
            let Ok(next) = self.state_now(runtimes, stopped) else {
                break;
            };
            state = next;
        }
        Ok(state)
    }

    /// Asks runtimes for the thread pointers that only they know, if the process runs.
    fn note_own_pointers(&self, target: &dyn Target, runtimes: &[Present]) {
        if !target.is_running() {
            return;
        }
        let processes = runtimes.iter().filter_map(|it| it.process.as_ref().ok());
        let find = || {
            processes
                .flat_map(|it| it.thread_pointers(target))
                .collect()
        };
        self.process().sleeping.note_own(find);
    }

    fn state_now(
        &self,
        runtimes: &[Present],
        stopped: Option<&Stopped>,
    ) -> Result<ThreadState, Error> {
        let target = self.process().as_target();
        let variables = self.variables();
        let is_readable = variables.is_ok() || runtimes.iter().any(Present::reads_threads);
        let (Some(target), true) = (&target, is_readable) else {
            // There is nothing to read.
            return Ok(ThreadState {
                native: not_published(variables.map(|_| Found::Detached), runtimes),
                runtimes: Vec::new(),
                stop: None,
            });
        };
        let mut record = self.process().record_buffer();
        let mut read = |memory: &dyn Memory, pointer: u64| {
            let native = match &variables {
                Ok(variables) => variables.read(memory, self.tid(), pointer, &mut record),
                Err(_) => Ok(None),
            };
            let view = ThreadView::new(self.tid(), pointer);
            let target = Through::new(&**target, memory);
            (native, read_thread(&target, runtimes, view))
        };
        if stopped.is_none() {
            self.note_own_pointers(&**target, runtimes);
        }
        let mut stop = None;
        let read = match stopped {
            Some(stopped) => {
                stop = Some(StopReason::Runtime);
                Ok(read(&**target, stopped.thread_pointer()))
            }
            None => self.with_pointer(&mut stop, read),
        };
        let (native, mut readings) = match read {
            // A core file may lack a thread's registers.
            Err(error @ Error::NoThreadPointer { .. }) => (Err(error), Vec::new()),
            read => read?,
        };
        for reading in &mut readings {
            self.process().decode_record(reading);
        }
        let native = variables.and_then(|variables| Ok(self.decode(variables, native?, &record)));
        Ok(ThreadState {
            native: not_published(native, runtimes),
            runtimes: readings,
            stop,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;
    use std::process::{Child, Command};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use otelctx_format::process_context::Attributes;
    use otelctx_remote::TargetImage;
    use otelctx_sample::NamedFrame;

    use super::*;
    use crate::Options;
    use crate::runtime::{
        MAX_TASK_BYTES, MAX_TASKS, RuntimeError, RuntimeProcess, RuntimeThread, Source, Task,
    };

    /// A runtime whose list of tasks does not end.
    #[derive(Debug)]
    struct Endless {
        bytes_of_a_name: usize,
    }

    impl RuntimeProcess for Endless {
        fn facts(&self) -> Attributes {
            Vec::new()
        }

        fn scope(&self) -> Scope {
            Scope::Process
        }

        fn thread(
            &self,
            _: &dyn Target,
            _: ThreadView,
        ) -> Result<Option<RuntimeThread>, RuntimeError> {
            Ok(None)
        }

        fn tasks(
            &self,
            _: &dyn Target,
            visit: &mut dyn FnMut(Task) -> ControlFlow<()>,
        ) -> Result<(), RuntimeError> {
            let function = "f".repeat(self.bytes_of_a_name);
            let frame = NamedFrame {
                function,
                ..NamedFrame::default()
            };
            let task = || Task {
                frames: [frame.clone()].into(),
                ..Task::new(1)
            };
            while visit(task()).is_continue() {}
            Ok(())
        }
    }

    /// How many tasks are kept of this runtime.
    fn kept(bytes_of_a_name: usize, options: Options) -> usize {
        let process = Process::of_target(TargetImage::new(), options);
        let present = Present {
            name: "endless",
            process: Ok(std::sync::Arc::new(Endless { bytes_of_a_name })),
        };
        let readings = process.tasks(&[present], None);
        let [reading] = &readings[..] else {
            panic!("{readings:?}")
        };
        assert!(reading.is_truncated);
        reading.tasks.as_ref().unwrap().len()
    }

    #[test]
    fn an_endless_list_of_tasks_is_bounded_in_number_and_memory() {
        assert_eq!(kept(1, Options::default()), MAX_TASKS);
        let large = 1 << 20;
        assert_eq!(kept(large, Options::default()), MAX_TASK_BYTES / large - 1);
    }

    /// A runtime that is in the middle of a change until it has been read this often.
    #[derive(Debug)]
    struct Changing {
        reads: AtomicUsize,
        settles_at: usize,
        fails: bool,
    }

    impl RuntimeProcess for Changing {
        fn facts(&self) -> Attributes {
            Vec::new()
        }

        fn thread(
            &self,
            _: &dyn Target,
            _: ThreadView,
        ) -> Result<Option<RuntimeThread>, RuntimeError> {
            let reads = 1 + self.reads.fetch_add(1, Ordering::Relaxed);
            if self.fails && reads < self.settles_at {
                return Err(RuntimeError::new("it changes").in_a_change());
            }
            let mut thread = RuntimeThread::new(Found::Detached, Source::Runtime);
            thread.is_settled = reads >= self.settles_at;
            Ok(Some(thread))
        }
    }

    /// A program that sleeps, and is killed when dropped.
    struct Sleeping(Child);

    impl Sleeping {
        fn start() -> Self {
            let sleeping = Self(Command::new("sleep").arg("600").spawn().unwrap());
            let stat = format!("/proc/{}/stat", sleeping.0.id());
            let is_asleep = || {
                let stat = std::fs::read_to_string(&stat).unwrap();
                stat.contains("(sleep) S ")
            };
            while !is_asleep() {
                std::thread::sleep(Duration::from_millis(1));
            }
            sleeping
        }

        /// How often the runtime is read, and whether it has settled.
        fn read(&self, settles_at: usize, fails: bool) -> (usize, bool) {
            let pid = i32::try_from(self.0.id()).unwrap();
            let mut process = Process::with_options(pid, Options::default()).unwrap();
            let runtime = Arc::new(Changing {
                reads: AtomicUsize::new(0),
                settles_at,
                fails,
            });
            let present = Present {
                name: "changing",
                process: Ok(runtime.clone()),
            };
            // It has no context whose reading opens its memory.
            drop(process.target().unwrap());
            let threads = process.threads().unwrap();
            let state = threads[0].state(&[present], None).unwrap();
            let is_settled = state.runtimes[0].is_settled();
            (runtime.reads.load(Ordering::Relaxed), is_settled)
        }
    }

    impl Drop for Sleeping {
        fn drop(&mut self) {
            // Both fail only if it has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_runtime_that_is_in_the_middle_of_a_change_is_read_three_more_times() {
        let sleeping = Sleeping::start();
        for fails in [false, true] {
            for reads in 1..=4 {
                assert_eq!(sleeping.read(reads, fails), (reads, true));
            }
            assert_eq!(sleeping.read(5, fails), (4, false));
        }
    }
}
