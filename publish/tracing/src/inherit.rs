//! Tasks of tokio that are spawned without a span.

use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use otelctx::{raw, SharedContext};
use tokio::runtime::Builder;
use tokio::task::Id;

use crate::stack::{self, TASK};

/// Number of maps, each with a lock of its own.
const SHARDS: usize = 16;

/// The contexts of the tasks that were spawned while one was attached.
#[derive(Default)]
struct Tasks {
    shards: [Mutex<HashMap<Id, SharedContext>>; SHARDS],
    hasher: RandomState,
    /// Number of contexts, so that tasks without one cost nothing while there is none.
    count: AtomicUsize,
}

impl Tasks {
    fn shard(&self, task: Id) -> std::sync::MutexGuard<'_, HashMap<Id, SharedContext>> {
        let shard = self.hasher.hash_one(task) as usize % SHARDS;
        let shard = self.shards[shard].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, task: Id, context: SharedContext) {
        self.shard(task).insert(task, context);
        self.count.fetch_add(1, Ordering::Release);
    }

    fn find(&self, task: Id) -> Option<SharedContext> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.shard(task).get(&task).cloned()
    }

    fn remove(&self, task: Id) {
        if self.count.load(Ordering::Acquire) > 0 && self.shard(task).remove(&task).is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
    }
}

/// A task that is being polled, and what others, such as the observer, had attached before.
type Polled = (Id, Option<SharedContext>);

thread_local! {
    /// Polled tasks with a context. There are several where a task blocks on another runtime.
    static POLLED: RefCell<Vec<Polled>> = const { RefCell::new(Vec::new()) };
}

fn begin_poll(task: Id, context: SharedContext) {
    // What the layer publishes, its stack publishes again, with what was recorded late meanwhile.
    let before = raw::current().filter(|before| !stack::is_latest(before));
    let begun = POLLED.try_with(|polled| polled.borrow_mut().push((task, before)));
    if begun.is_ok() {
        stack::push(TASK, context);
    }
}

fn end_poll(task: Id) {
    let ended = POLLED.try_with(|polled| {
        let mut polled = polled.borrow_mut();
        let is_latest = polled.last().is_some_and(|(latest, _)| *latest == task);
        is_latest.then(|| polled.pop()).flatten()
    });
    if let Ok(Some((_, before))) = ended {
        stack::pop(TASK);
        if before.is_some() {
            drop(raw::swap_current(before));
        }
    }
}

/// Has tasks that this runtime spawns publish what the thread that spawns them is working on, until
/// they enter a span themselves.
///
/// Without this, `tokio::spawn(work())` without `.in_current_span()` publishes nothing. Traces do
/// not change: spans that such a task starts still have no parent.
///
/// A task that lives longer than the request in which it is spawned, such as the driver of
/// a connection, keeps publishing that request: spawn it where nothing is attached. A context that
/// a task attaches and detaches itself, without a span, leaves nothing attached for the rest of the
/// poll.
///
/// This replaces hooks that the builder has.
///
/// Each poll of a task searches a map behind a lock for its context, unless no task has one. What
/// is attached with a guard of `otelctx` is not inherited.
///
/// Needs the feature `tokio` and `RUSTFLAGS="--cfg tokio_unstable"`, because tokio's hooks do.
///
/// ```
/// let mut builder = tokio::runtime::Builder::new_multi_thread();
/// let runtime = otelctx_tracing::inherit(&mut builder).build()?;
/// # drop(runtime);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn inherit(builder: &mut Builder) -> &mut Builder {
    static TASKS: OnceLock<Tasks> = OnceLock::new();
    let tasks = TASKS.get_or_init(Tasks::default);
    builder
        .on_task_spawn(|task| {
            if let Some(context) = raw::current() {
                tasks.add(task.id(), context);
            }
        })
        .on_before_task_poll(|task| {
            if let Some(context) = tasks.find(task.id()) {
                begin_poll(task.id(), context);
            }
        })
        .on_after_task_poll(|task| end_poll(task.id()))
        .on_task_terminate(|task| tasks.remove(task.id()))
}
