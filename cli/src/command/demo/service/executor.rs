//! A minimal executor in which any worker can run any task, so that tasks move between threads.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ready tasks, and timers.
#[derive(Default)]
pub(super) struct Executor {
    ready: Mutex<VecDeque<Arc<Task>>>,
    more: Condvar,
    /// Wakers by their time.
    waiting: Mutex<BTreeMap<Instant, Vec<Waker>>>,
    earlier: Condvar,
}

struct Task {
    work: Mutex<Option<Work>>,
    executor: Arc<Executor>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        lock(&self.executor.ready).push_back(self.clone());
        self.executor.more.notify_one();
    }
}

impl Executor {
    pub(super) fn spawn(self: &Arc<Self>, work: impl Future<Output = ()> + Send + 'static) {
        let work: Work = Box::pin(work);
        let task = Arc::new(Task {
            work: Mutex::new(Some(work)),
            executor: self.clone(),
        });
        task.wake();
    }

    /// Polls ready tasks, forever.
    pub(super) fn work(&self) {
        loop {
            let task = self.next();
            let mut work = lock(&task.work);
            let waker = Waker::from(task.clone());
            let mut context = Context::from_waker(&waker);
            if let Some(future) = work.as_mut()
                && future.as_mut().poll(&mut context).is_ready()
            {
                *work = None;
            }
        }
    }

    fn next(&self) -> Arc<Task> {
        let mut ready = lock(&self.ready);
        loop {
            if let Some(task) = ready.pop_front() {
                return task;
            }
            let waited = self.more.wait(ready);
            ready = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes tasks whose timers have expired, forever.
    pub(super) fn keep_time(&self) -> ! {
        let mut waiting = lock(&self.waiting);
        loop {
            let now = Instant::now();
            waiting = match waiting.first_key_value().map(|(time, _)| *time) {
                Some(time) if time <= now => {
                    let woken = waiting.remove(&time).unwrap_or_default();
                    drop(waiting);
                    woken.into_iter().for_each(Waker::wake);
                    lock(&self.waiting)
                }
                Some(time) => {
                    let wait = self.earlier.wait_timeout(waiting, time - now);
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    let waited = self.earlier.wait(waiting);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }

    /// Lets other tasks run for this long.
    pub(super) fn sleep(self: &Arc<Self>, duration: Duration) -> Sleep {
        Sleep {
            executor: self.clone(),
            until: Instant::now() + duration,
            asleep: false,
        }
    }
}

/// Waits without blocking a thread.
pub(super) struct Sleep {
    executor: Arc<Executor>,
    until: Instant,
    asleep: bool,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.until {
            return Poll::Ready(());
        }
        if !self.asleep {
            self.asleep = true;
            let mut waiting = lock(&self.executor.waiting);
            let wakers = waiting.entry(self.until).or_default();
            wakers.push(context.waker().clone());
            self.executor.earlier.notify_one();
        }
        Poll::Pending
    }
}

/// The data is consistent after each statement, so a poisoned lock is harmless.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
