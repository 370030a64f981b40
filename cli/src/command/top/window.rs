//! The samples of the last seconds, counted by thread, context and stack, in slices of time.
//!
//! Memory is bounded whatever targets do: beyond a limit, a slice counts samples without their stacks, then
//! without their contexts, and finally as [`Thread::others`]; waits likewise. If all slices together become too large, the
//! window gets shorter.
//!
//! A wait that goes on is passed on once a second, so the times of waits are put into the slices that they were in, and a slice
//! is shown only once it has all of them.

use std::collections::{HashMap, HashSet, VecDeque};

use otelctx_profile::GIL_ATTRIBUTE as GIL;
use otelctx_profile::sample::{Counts, GilState, OffCpu, Reason, StackId};
use otelctx_reader::format::{SpanId, TraceId};

use super::newest::{self, Newest};
use super::shared::{Interner, Shared};
use super::time::{Present, Time, Wait};

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

    /// Returns what identifies it.
    pub(super) fn id(&self) -> newest::Id {
        (self.process.pid, self.process.start_ticks, self.tid)
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
    /// `None` if it is left out.
    pub(super) kernel: Option<StackId>,
}

impl Stacks {
    /// Leaves out the kernel's frames.
    pub(super) fn without_kernel(self) -> Self {
        Self {
            kernel: None,
            ..self
        }
    }
}

/// Samples that differ in any of this are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cell {
    pub(super) thread: Shared<Thread>,
    /// `None` for threads of no interpreter with such a lock.
    pub(super) gil: Option<GilState>,
    pub(super) work: Work,
    pub(super) stacks: Option<Stacks>,
    /// What kept the thread off the CPU; `None` if it ran.
    pub(super) wait: Option<Wait>,
}

impl Cell {
    /// Returns true if the thread waited for no context's sake.
    pub(super) fn is_idle(&self) -> bool {
        self.work == Work::Nothing && self.wait.as_ref().is_some_and(Wait::is_waiting)
    }

    /// Returns the value of an attribute: of the context, or the state of the interpreter's lock.
    pub(super) fn value(&self, attribute: &str) -> Option<&str> {
        match attribute {
            GIL => self.gil.map(GilState::name),
            _ => self.work.context()?.attribute(attribute),
        }
    }
}

/// The times of cells, of a bounded number.
#[derive(Debug, Default)]
struct Cells(HashMap<Cell, Time>);

impl Cells {
    fn add(&mut self, cell: Cell, time: Time, others: &Shared<Thread>) {
        let cells = &mut self.0;
        let without_reason = cell.wait.as_ref().map(|wait| Wait {
            reason: None,
            ..wait.clone()
        });
        let others = Cell {
            thread: others.clone(),
            gil: None,
            work: Work::Others,
            stacks: None,
            wait: without_reason.clone(),
        };
        let without_stacks = Cell {
            stacks: None,
            wait: without_reason,
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
                *cells.entry(cell).or_default() += time;
                return;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Slice {
    /// Start and end, in nanoseconds.
    start: u64,
    end: u64,
    cells: Cells,
    /// The same of threads off the CPU: however many wait, what runs has its cells.
    waits: Cells,
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

    /// Its size, as counted for [`MAX_TOTAL_CELLS`].
    fn size(&self) -> usize {
        1 + self.cells.0.len() + self.waits.0.len()
    }
}

/// The samples of the last seconds.
#[derive(Debug)]
pub(super) struct Window {
    /// Its length, in nanoseconds; 0 for the last slice alone.
    length: u64,
    /// The time after its end that a slice is shown, in nanoseconds: until then, waits are passed on that were in it.
    pub(super) settling: u64,
    slices: VecDeque<Slice>,
    /// Number of slices that are shown: the first ones.
    shown: usize,
    /// The size of all slices.
    size: usize,
    current: Slice,
    pub(super) threads: Interner<Thread>,
    pub(super) contexts: Interner<Context>,
    pub(super) reasons: Interner<Reason>,
    pub(super) newest: Newest,
    /// The time until which samples were taken over, in nanoseconds.
    pub(super) now: u64,
    others: Shared<Thread>,
    /// The time of the first sample of each trace of `contexts`, in nanoseconds.
    first_seen: HashMap<[u8; 16], u64>,
}

impl Window {
    /// Creates a window that begins at `now` (nanoseconds).
    pub(super) fn new(length: u64, now: u64) -> Self {
        Self {
            length,
            settling: 0,
            slices: VecDeque::new(),
            shown: 0,
            size: 0,
            current: Slice::from(now),
            threads: Interner::default(),
            contexts: Interner::default(),
            reasons: Interner::default(),
            newest: Newest::default(),
            now,
            others: Shared::new(Thread::others()),
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

    /// Adds a sample of a thread on a CPU, which stands for `period` nanoseconds.
    pub(super) fn add(&mut self, cell: Cell, period: u64) {
        self.current.samples += 1;
        let cells = &mut self.current.cells;
        cells.add(cell, Time::sample(period), &self.others);
    }

    /// Adds time off the CPU, which ended at `end`, to the slices that it was in.
    pub(super) fn add_wait(&mut self, cell: &Cell, end: u64, off: OffCpu) {
        let begin = end.saturating_sub(off.nanoseconds);
        let has_context = cell.work.context().is_some();
        let others = &self.others;
        let add = |slice: &mut Slice, slice_end: u64| {
            let time = end.min(slice_end).saturating_sub(begin.max(slice.start));
            if time > 0 {
                let time = Time::off(off.state, has_context, time);
                slice.waits.add(cell.clone(), time, others);
            }
        };
        add(&mut self.current, u64::MAX);
        for slice in self.slices.iter_mut().rev() {
            if slice.end <= begin {
                break;
            }
            let before = slice.size();
            add(slice, slice.end);
            self.size += slice.size() - before;
        }
    }

    /// Returns the wait of a thread, if it waits at present.
    pub(super) fn waiting(&self, thread: &Thread) -> Option<Present> {
        let oldest = self.now.saturating_sub(self.settling);
        self.newest.waiting(thread.id(), oldest, self.now)
    }

    /// Ends the slice with its counters. It is shown at once, unless waits are still to come.
    pub(super) fn close(&mut self, now: u64, counts: Counts) {
        let mut slice = std::mem::replace(&mut self.current, Slice::from(now));
        (slice.end, slice.counts) = (now.max(slice.start), counts);
        self.size += slice.size();
        self.slices.push_back(slice);
        if self.settling == 0 {
            self.show_next();
        }
        self.newest.prune(now.saturating_sub(self.settling));
        self.threads.prune();
        self.contexts.prune();
        self.reasons.prune();
        let left: HashSet<[u8; 16]> = self.contexts.iter().map(|it| it.trace).collect();
        self.first_seen.retain(|trace, _| left.contains(trace));
    }

    /// Shows one more slice if it has ended so long before `now` that it has all of its waits. Returns whether there was one.
    pub(super) fn reveal(&mut self, now: u64) -> bool {
        let next = self.slices.get(self.shown);
        let is_due = next.is_some_and(|it| it.end.saturating_add(self.settling) <= now);
        if is_due {
            self.show_next();
        }
        is_due
    }

    /// Shows one more slice, and drops slices that are too old.
    fn show_next(&mut self) {
        self.shown += 1;
        let end = self.slices.get(self.shown - 1).map_or(0, |last| last.end);
        while self.shown > 1
            && let Some(second) = self.slices.get(1)
        {
            let rest_covers_it = end.saturating_sub(second.start) >= self.length;
            if !rest_covers_it && self.size <= MAX_TOTAL_CELLS {
                break;
            }
            self.size -= self.slices.pop_front().as_ref().map_or(0, Slice::size);
            self.shown -= 1;
        }
    }

    pub(super) fn restart(&mut self, now: u64) {
        self.slices.clear();
        (self.shown, self.size, self.now) = (0, 0, now);
        self.newest.clear();
        self.current = Slice::from(now);
        self.first_seen.clear();
    }

    /// Iterates over the slices that are shown.
    fn shown(&self) -> impl Iterator<Item = &Slice> {
        self.slices.iter().take(self.shown)
    }

    /// Iterates over all cells; a cell occurs once in each slice.
    pub(super) fn cells(&self) -> impl Iterator<Item = (&Cell, Time)> {
        let cells = self.shown().flat_map(|slice| [&slice.cells, &slice.waits]);
        let cells = cells.flat_map(|cells| &cells.0);
        cells.map(|(cell, time)| (cell, *time))
    }

    /// Returns all cells.
    pub(super) fn all(&self) -> Vec<(&Cell, Time)> {
        self.cells().collect()
    }

    /// Returns its actual length, in nanoseconds.
    pub(super) fn wall(&self) -> u64 {
        let wall = |slice: &Slice| slice.end - slice.start;
        self.shown().map(wall).sum()
    }

    pub(super) fn samples(&self) -> u64 {
        self.shown().map(|slice| slice.samples).sum()
    }

    pub(super) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        self.shown().for_each(|slice| counts += slice.counts);
        counts
    }
}

#[cfg(test)]
pub(super) mod tests {
    use otelctx_profile::sample::OffCpuState;

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
            wait: None,
        };
        for _ in 0..samples {
            window.add(cell.clone(), 1);
        }
    }

    /// Adds nanoseconds of a wait that ended at `end`.
    pub(in super::super) fn add_wait(
        window: &mut Window,
        thread: Thread,
        context: Option<Context>,
        wait: (OffCpuState, &str),
        [end, nanoseconds]: [u64; 2],
    ) {
        let reason = (!wait.1.is_empty()).then(|| {
            window.reasons.get(Reason {
                call: "poll".to_owned(),
                text: wait.1.to_owned(),
            })
        });
        let cell = Cell {
            thread: window.threads.get(thread),
            gil: None,
            work: context.map_or(Work::Nothing, |context| {
                Work::Attached(window.contexts.get(context))
            }),
            stacks: None,
            wait: Some(Wait {
                state: wait.0,
                reason,
            }),
        };
        let off = OffCpu {
            state: wait.0,
            nanoseconds,
            since: 0,
            reason: None,
        };
        window.add_wait(&cell, end, off);
    }

    fn sum(window: &Window) -> u64 {
        window.cells().map(|(_, time)| time.samples).sum()
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

    /// The sampler passes on one second of a wait at a time, whatever the slices are.
    #[test]
    fn a_wait_is_counted_in_the_slices_that_it_was_in() {
        let mut window = Window::new(0, 1000);
        window.settling = 100;
        let asleep = (OffCpuState::Asleep, "");
        let add = |window: &mut Window, times| {
            add_wait(window, thread(1, 2), Some(context(1, "/a")), asleep, times);
        };
        let shown = |window: &Window| {
            let mut time = Time::default();
            window.cells().for_each(|(_, it)| time += it);
            assert_eq!(time.waiting, time.waiting_with_context);
            (window.wall(), time.waiting)
        };
        // A part of it was before the window.
        add(&mut window, [1010, 90]);
        window.close(1040, Counts::default());
        assert!(!window.reveal(1139), "more of its waits may come");
        assert_eq!(shown(&window), (0, 0));
        window.close(1080, Counts::default());
        add(&mut window, [1110, 100]);
        assert!(window.reveal(1140));
        assert_eq!(shown(&window), (40, 40), "as long as the slice");
        assert!(!window.reveal(1140), "one at a time");
        window.close(1120, Counts::default());
        add(&mut window, [1115, 5]);
        assert!(window.reveal(1180));
        assert_eq!(shown(&window), (40, 40));
        assert!(window.reveal(1220));
        assert_eq!(shown(&window), (40, 35));
        // What comes too late is not counted elsewhere.
        add(&mut window, [1080, 30]);
        assert_eq!(shown(&window), (40, 35));
        assert!(!window.reveal(u64::MAX), "the current slice goes on");
        // Of a longer window, all slices take it.
        let mut window = Window::new(80, 1000);
        window.settling = 100;
        for end in [1040, 1080, 1120] {
            window.close(end, Counts::default());
            window.reveal(end + 100);
        }
        add(&mut window, [1115, 115]);
        assert_eq!(shown(&window), (80, 75));
        window.restart(2000);
        assert_eq!(shown(&window), (0, 0));
        assert!(!window.reveal(u64::MAX));
    }

    /// However many threads wait.
    #[test]
    fn waits_take_no_cells_from_threads_that_run() {
        let mut window = Window::new(0, 0);
        let asleep = (OffCpuState::Asleep, "poll");
        for tid in 1..=10_000 {
            let context = (tid % 2 == 0).then(|| context(1, "/a"));
            add_wait(&mut window, thread(1, tid), context, asleep, [1000, 1000]);
        }
        add(&mut window, thread(7, 8), Some(context(2, "/b")), 3);
        assert_eq!(window.current.waits.0.len(), MAX_CELLS + 1);
        window.close(1000, Counts::default());
        assert_eq!(window.size, 1 + 1 + MAX_CELLS + 1);
        let running = window.cells().filter(|(_, time)| time.samples > 0);
        let running: Vec<_> = running.collect();
        let [(cell, time)] = running[..] else {
            panic!("{running:?}");
        };
        assert_eq!((cell.thread.tid, time.samples), (8, 3));
        let waiting: u64 = window.cells().map(|(_, time)| time.waiting).sum();
        assert_eq!(waiting, 10_000 * 1000);
        // Of threads that are counted together, it is not known whether they were idle.
        let others = window.cells().filter(|(cell, _)| cell.thread.is_others());
        let others: Vec<_> = others.collect();
        assert_eq!(others.len(), 1);
        assert!(!others[0].0.is_idle());
        assert_eq!(others[0].1.waiting, (10_000 - MAX_CELLS as u64) * 1000);
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
        assert_eq!(own.map(|(_, time)| time.samples).sum::<u64>(), 2 * MANY);
        let others = window.cells().filter(|(cell, _)| cell.thread.is_others());
        assert!(others.map(|(_, time)| time.samples).sum::<u64>() > MANY / 2);
        for slice in 0..2 {
            window.close(100 + slice * 20, Counts::default());
        }
        assert_eq!(window.cells().count(), 0);
        assert!(window.threads.iter().next().is_none() && window.contexts.iter().next().is_none());
    }
}
