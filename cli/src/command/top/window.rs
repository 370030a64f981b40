//! The samples of the last seconds, counted by thread, context and stack, in slices of time.
//!
//! Memory is bounded whatever targets do: beyond a limit, a slice counts samples without their stacks, then
//! without their contexts, and finally as [`Thread::others`]. If all slices together become too large, the
//! window gets shorter.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::rc::Rc;

use otelctx_profile::GIL_ATTRIBUTE as GIL;
use otelctx_profile::sample::{Counts, GilState, StackId};
use otelctx_reader::format::{SpanId, TraceId};

/// Maximum number of cells of a slice with thread, context and stack.
const MAX_WITH_STACKS: usize = 4096;
/// Maximum number of cells including cells without a stack.
const MAX_WITH_CONTEXTS: usize = 6144;
/// Maximum number of cells including cells with only a thread.
const MAX_CELLS: usize = 8192;

/// Maximum number of cells of all slices, with one more for each slice. It bounds windows of hours; each
/// view visits all cells.
const MAX_TOTAL_CELLS: usize = 8 * MAX_CELLS;

/// Name of everything that is counted together.
pub(super) const OTHERS: &str = "(others)";

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Start time, which with the PID identifies the process.
    pub(super) start_ticks: u64,
    /// The service's name, or the kernel's name of the process.
    pub(super) name: String,
    pub(super) name_kind: NameKind,
}

/// What the name of a process is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum NameKind {
    /// A service's name, as the process publishes it.
    #[default]
    Service,
    /// A service's name, from the environment of a process that publishes nothing.
    Detected,
    /// The kernel's name of a process without a service's name.
    Command,
}

impl NameKind {
    /// Returns a name of this kind as it is shown: in parentheses if it was detected, in brackets if
    /// it is a command's.
    pub(super) fn label(self, name: &str) -> String {
        match self {
            Self::Service => name.to_owned(),
            Self::Detected => format!("({name})"),
            Self::Command => format!("[{name}]"),
        }
    }
}

impl Process {
    /// Returns the name as it is shown.
    pub(super) fn label(&self) -> String {
        self.name_kind.label(&self.name)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) process: Process,
    pub(super) tid: i32,
    pub(super) name: String,
}

impl Thread {
    /// Stands for everything that is counted together.
    fn others() -> Self {
        Self {
            process: Process {
                name: OTHERS.into(),
                ..Process::default()
            },
            tid: 0,
            name: OTHERS.into(),
        }
    }

    pub(super) fn is_others(&self) -> bool {
        self.tid == 0
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Context {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) attributes: Vec<(String, String)>,
}

impl Context {
    pub(super) fn trace_id(&self) -> Option<TraceId> {
        let id = TraceId::from_bytes(self.trace);
        (!id.is_zero()).then_some(id)
    }

    pub(super) fn span_id(&self) -> Option<SpanId> {
        let id = SpanId::from_bytes(self.span);
        (!id.is_zero()).then_some(id)
    }

    /// Returns an attribute's value: the last one if the key is repeated, as in files.
    pub(super) fn attribute(&self, key: &str) -> Option<&str> {
        let found = self.attributes.iter().rfind(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str())
    }
}

/// An interned value, compared by its address.
#[derive(Clone, Debug)]
pub(super) struct Shared<T>(Rc<T>);

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> PartialEq for Shared<T> {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for Shared<T> {}

impl<T> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Rc::as_ptr(&self.0).hash(state);
    }
}

/// Keeps each value once, for as long as it is in use.
#[derive(Debug)]
pub(super) struct Interner<T>(HashSet<Rc<T>>);

impl<T: Eq + Hash> Interner<T> {
    pub(super) fn get(&mut self, value: T) -> Shared<T> {
        if let Some(known) = self.0.get(&value) {
            return Shared(known.clone());
        }
        let new = Rc::new(value);
        self.0.insert(new.clone());
        Shared(new)
    }

    fn prune(&mut self) {
        self.0.retain(|value| Rc::strong_count(value) > 1);
    }
}

/// The context that a thread was working for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Work {
    Attached(Shared<Context>),
    /// Detached, or not published.
    Nothing,
    /// Invalid or unreadable.
    Unreadable,
    /// A context that is not kept, as there are too many.
    Others,
}

impl Work {
    pub(super) fn context(&self) -> Option<&Context> {
        match self {
            Self::Attached(context) => Some(context),
            _ => None,
        }
    }
}

/// A thread's stacks, in one catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stacks {
    pub(super) catalog: u32,
    pub(super) thread: otelctx_profile::sample::ThreadId,
    pub(super) user: StackId,
    pub(super) kernel: StackId,
}

/// Samples that differ in any of this are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) thread: Shared<Thread>,
    /// `None` for threads of no interpreter with such a lock.
    pub(super) gil: Option<GilState>,
    pub(super) work: Work,
    pub(super) stacks: Option<Stacks>,
}

impl Cell {
    /// Returns the value of an attribute: of the context, or the state of the interpreter's lock.
    pub(super) fn value(&self, attribute: &str) -> Option<&str> {
        match attribute {
            GIL => self.gil.map(GilState::name),
            _ => self.work.context()?.attribute(attribute),
        }
    }
}

#[derive(Debug, Default)]
struct Slice {
    /// Start and end, in nanoseconds.
    start: u64,
    end: u64,
    cells: HashMap<Cell, u64>,
    samples: u64,
    /// Counters of all samples, including the ones that a filter dropped.
    counts: Counts,
}

impl Slice {
    fn from(start: u64) -> Self {
        Self {
            start,
            end: start,
            ..Self::default()
        }
    }
}

/// The samples of the last seconds.
#[derive(Debug)]
pub(super) struct Window {
    /// Its length, in nanoseconds; 0 for the last slice alone.
    length: u64,
    slices: VecDeque<Slice>,
    /// Their size, as counted for [`MAX_TOTAL_CELLS`].
    size: usize,
    current: Slice,
    pub(super) threads: Interner<Thread>,
    pub(super) contexts: Interner<Context>,
    others: Shared<Thread>,
    /// The time of the first sample of each trace of `contexts`, in nanoseconds.
    first_seen: HashMap<[u8; 16], u64>,
}

impl Window {
    /// Creates a window that begins at `now` (nanoseconds).
    pub(super) fn new(length: u64, now: u64) -> Self {
        Self {
            length,
            slices: VecDeque::new(),
            size: 0,
            current: Slice::from(now),
            threads: Interner(HashSet::new()),
            contexts: Interner(HashSet::new()),
            others: Shared(Rc::new(Thread::others())),
            first_seen: HashMap::new(),
        }
    }

    /// Notes when a trace was sampled.
    pub(super) fn note_trace(&mut self, trace: [u8; 16], time: u64) {
        let first = self.first_seen.entry(trace).or_insert(time);
        *first = time.min(*first);
    }

    /// Returns the time of a trace's first sample, also from before the window if the trace has had
    /// samples in it ever since; 0 if unknown.
    pub(super) fn first_seen(&self, trace: [u8; 16]) -> u64 {
        self.first_seen.get(&trace).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, cell: Cell) {
        let cells = &mut self.current.cells;
        self.current.samples += 1;
        let others = Cell {
            thread: self.others.clone(),
            gil: None,
            work: Work::Others,
            stacks: None,
        };
        let without_stacks = Cell {
            stacks: None,
            ..cell.clone()
        };
        let without_work = Cell {
            work: Work::Others,
            ..without_stacks.clone()
        };
        let full = cells.len();
        let choices = [
            (cell, MAX_WITH_STACKS),
            (without_stacks, MAX_WITH_CONTEXTS),
            (without_work, MAX_CELLS),
            (others, usize::MAX),
        ];
        for (cell, most) in choices {
            if full < most || cells.contains_key(&cell) {
                *cells.entry(cell).or_default() += 1;
                return;
            }
        }
    }

    /// Ends the slice with its counters, and drops slices that are too old.
    pub(super) fn close(&mut self, now: u64, counts: Counts) {
        let mut slice = std::mem::replace(&mut self.current, Slice::from(now));
        (slice.end, slice.counts) = (now.max(slice.start), counts);
        let size = |slice: &Slice| 1 + slice.cells.len();
        self.size += size(&slice);
        self.slices.push_back(slice);
        while let Some(second) = self.slices.get(1) {
            let rest_covers_it = now.saturating_sub(second.start) >= self.length;
            if !rest_covers_it && self.size <= MAX_TOTAL_CELLS {
                break;
            }
            self.size -= self.slices.pop_front().as_ref().map_or(0, size);
        }
        self.threads.prune();
        self.contexts.prune();
        let left: HashSet<[u8; 16]> = self.contexts.0.iter().map(|it| it.trace).collect();
        self.first_seen.retain(|trace, _| left.contains(trace));
    }

    pub(super) fn restart(&mut self, now: u64) {
        self.slices.clear();
        self.size = 0;
        self.current = Slice::from(now);
        self.first_seen.clear();
    }

    /// Iterates over all cells; a cell occurs once in each slice.
    pub(super) fn cells(&self) -> impl Iterator<Item = (&Cell, u64)> {
        let cells = self.slices.iter().flat_map(|slice| &slice.cells);
        cells.map(|(cell, count)| (cell, *count))
    }

    /// Returns all cells.
    pub(super) fn all(&self) -> Vec<(&Cell, u64)> {
        self.cells().collect()
    }

    /// Returns its actual length, in nanoseconds.
    pub(super) fn wall(&self) -> u64 {
        let wall = |slice: &Slice| slice.end - slice.start;
        self.slices.iter().map(wall).sum()
    }

    pub(super) fn samples(&self) -> u64 {
        self.slices.iter().map(|slice| slice.samples).sum()
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.slices.iter().for_each(|slice| counts += slice.counts);
        counts
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn thread(pid: i32, tid: i32) -> Thread {
        Thread {
            process: Process {
                name_kind: NameKind::Service,
                pid,
                start_ticks: 1,
                name: format!("service-{pid}"),
            },
            tid,
            name: format!("thread-{tid}"),
        }
    }

    pub(in super::super) fn context(number: u64, route: &str) -> Context {
        let mut trace = [0; 16];
        trace[8..].copy_from_slice(&number.to_be_bytes());
        Context {
            trace,
            span: number.to_be_bytes(),
            attributes: vec![("http.route".into(), route.into())],
        }
    }

    /// Adds samples of a thread that has this context.
    pub(in super::super) fn add(
        window: &mut Window,
        thread: Thread,
        context: Option<Context>,
        samples: usize,
    ) {
        let cell = Cell {
            thread: window.threads.get(thread),
            gil: None,
            work: context.map_or(Work::Nothing, |context| {
                Work::Attached(window.contexts.get(context))
            }),
            stacks: None,
        };
        for _ in 0..samples {
            window.add(cell.clone());
        }
    }

    fn sum(window: &Window) -> u64 {
        window.cells().map(|(_, samples)| samples).sum()
    }

    #[test]
    fn the_window_slides_and_its_time_is_that_of_its_slices() {
        let mut window = Window::new(30, 1000);
        for (number, samples) in [1, 2, 4, 8, 16].into_iter().enumerate() {
            add(&mut window, thread(1, 2), None, samples);
            let mut counts = Counts::default();
            (counts.lost, counts.invalid) = (samples as u64, 1);
            window.close(1010 + 10 * number as u64, counts);
        }
        let Counts { lost, invalid, .. } = window.counts();
        assert_eq!((window.samples(), lost, invalid), (28, 28, 3));
        assert_eq!(window.wall(), 30);
        assert_eq!(sum(&window), 28);
        window.restart(2000);
        assert_eq!((window.samples(), window.wall()), (0, 0));
        // A slice counts only once it has ended.
        add(&mut window, thread(1, 2), None, 1);
        assert_eq!(window.samples(), 0);
    }

    #[test]
    fn a_window_without_length_is_the_last_slice() {
        let mut window = Window::new(0, 0);
        for end in [10, 19, 31] {
            add(&mut window, thread(1, 2), None, 1);
            window.close(end, Counts::default());
        }
        assert_eq!((window.samples(), window.wall()), (1, 12));
    }

    #[test]
    fn a_window_that_would_hold_too_much_is_shorter() {
        const MANY: u64 = 8_000;
        let mut window = Window::new(u64::MAX, 0);
        for slice in 1..=12 {
            for number in 0..MANY {
                let context = context(slice * MANY + number + 1, "/");
                add(&mut window, thread(1, number as i32 + 1), Some(context), 1);
            }
            window.close(slice * 10, Counts::default());
            assert!(window.cells().count() <= MAX_TOTAL_CELLS);
        }
        assert_eq!(sum(&window), window.samples());
        assert_eq!(window.samples() / MANY, window.wall() / 10);
        assert!(window.wall() >= 80);
        // Empty slices count as well.
        let mut window = Window::new(u64::MAX, 0);
        for end in 0..2 * MAX_TOTAL_CELLS as u64 {
            window.close(1000 + end, Counts::default());
        }
        assert_eq!(window.slices.len(), MAX_TOTAL_CELLS);
    }

    #[test]
    fn what_targets_make_up_is_bounded_counted_and_forgotten() {
        let mut window = Window::new(20, 0);
        const MANY: u64 = 9_000;
        for slice in 1..=3 {
            for number in 0..MANY {
                let context = context(slice * MANY + number + 1, "/");
                add(&mut window, thread(1, 2), Some(context), 1);
            }
            for tid in 0..MANY {
                add(&mut window, thread(7, 10 + tid as i32), None, 1);
            }
            window.close(slice * 10, Counts::default());
            assert!(window.cells().count() <= window.slices.len() * (MAX_CELLS + 1));
        }
        assert_eq!(window.samples(), 2 * 2 * MANY);
        assert_eq!(sum(&window), window.samples());
        // No sample of the thread with many traces was counted for another thread.
        let own = window.cells().filter(|(cell, _)| cell.thread.tid == 2);
        assert_eq!(own.map(|(_, samples)| samples).sum::<u64>(), 2 * MANY);
        let others = window.cells().filter(|(cell, _)| cell.thread.is_others());
        assert!(others.map(|(_, samples)| samples).sum::<u64>() > MANY / 2);
        for slice in 0..2 {
            window.close(100 + slice * 20, Counts::default());
        }
        assert_eq!(window.cells().count(), 0);
        assert!(window.threads.0.is_empty() && window.contexts.0.is_empty());
    }
}
