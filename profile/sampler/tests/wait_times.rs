//! The times for which threads run, are queued and wait, by thread and route, against what the kernel and the program note.
//!
//! Needs the right to use eBPF. `cargo xtask soak times` does it for a minute.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_fixtures::{Compiler, Target};
use otelctx_sampler::sample::{Catalog, Event, Found, OffCpuState, Sample};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets};

const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// In the order of the program.
const ROUTES: [&str; 5] = ["/sleep", "/lock", "/poll", "/work", "/short"];
/// Standard deviations by which no time is off: some hundreds are compared.
const FAR: f64 = 4.5;
/// The part of the time in the queue that may be counted as asleep: a thread that is woken within 20 us before a scan is held for one
/// that the scan's timer has woken.
const COUNTED_AS_ASLEEP: f64 = 0.03;
/// The number of runs in each of which the same is far off if the product is wrong.
const RUNS: usize = 3;
/// Ticks between two times at which some thread was found off the CPU, at most.
const LONGEST_GAP: f64 = 4.0;
/// The part of the time on a CPU that the kernel counts neither there nor in the queue: switches, interrupts, and what a
/// hypervisor takes.
const UNCOUNTED: f64 = 0.02;
const KINDS: [&str; 3] = ["running", "queued", "asleep"];
const RUNNING: usize = 0;
const QUEUED: usize = 1;
const ASLEEP: usize = 2;

/// Seconds of the program's time to compare.
fn seconds() -> Option<u64> {
    let number = std::env::var("OTELCTX_SOAK_SECONDS").ok()?;
    Some(number.parse().unwrap())
}

/// A log's file, removed with this.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// `struct entry` of the program.
#[derive(Clone, Copy, Debug)]
struct Entry {
    time: u64,
    ran: u64,
    queued: u64,
    waits: u64,
    route: usize,
    is_torn: bool,
}

/// Reads the log: the entries of each thread.
fn read(path: &Path, line: &str) -> BTreeMap<i32, Vec<Entry>> {
    let words: Vec<usize> = line
        .split(' ')
        .skip(1)
        .map(|word| word.parse().unwrap())
        .collect();
    let (threads, room) = (words[0], words[1]);
    let bytes = fs::read(path).unwrap();
    let words = bytes.chunks_exact(8);
    let words: Vec<u64> = words
        .map(|it| u64::from_ne_bytes(it.try_into().unwrap()))
        .collect();
    let part = 2 + 6 * room;
    let entries = |part: &[u64]| {
        let entry = |it: &[u64]| Entry {
            time: it[0],
            ran: it[1],
            queued: it[2],
            waits: it[3],
            route: it[4] as usize,
            is_torn: it[5] != 0,
        };
        let entries = part[2..].chunks_exact(6).take(part[1] as usize).map(entry);
        (part[0] as i32, entries.collect())
    };
    let threads = words.chunks_exact(part).take(threads).map(entries);
    threads.collect()
}

/// A time, as it was and as the samples tell.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    truth: f64,
    sampled: f64,
    /// Waits that it consists of; 0 if their number is not known.
    waits: f64,
    /// Times on a CPU and in the queue at the same place.
    ran: f64,
    queued: f64,
}

impl Cell {
    /// The variance of what samples tell that stand for `tick` nanoseconds each. Ticks are as good as random to what the program
    /// does: a time of `d` ticks' length that is shorter than one is found with the probability `d`, of which the variance is
    /// `d (1 - d)`. Of a longer one, the parts before its first tick and after its last one are random, each with a variance
    /// of 1/12 tick, and 0.104 with the jitter of a quarter. A quarter is above the sum, and above `d (1 - d)`.
    fn variance(&self, tick: f64) -> f64 {
        let (times, at_most) = (self.truth / tick, self.waits / 4.0);
        let ticks = if self.waits > 0.0 {
            times.min(at_most)
        } else {
            times
        };
        let counted_as_asleep = COUNTED_AS_ASLEEP * self.queued / tick;
        // One at each end of what is compared.
        (ticks + counted_as_asleep + 1.0) * tick * tick
    }

    fn error(&self) -> f64 {
        self.sampled - self.truth
    }

    fn add(&mut self, other: Self) {
        self.truth += other.truth;
        self.sampled += other.sampled;
        self.waits += other.waits;
        self.ran += other.ran;
        self.queued += other.queued;
    }
}

/// Thread, route and kind; 0 for a sum over all.
type Of = (i32, usize, usize);
type Cells = BTreeMap<Of, Cell>;

/// Samples, and the times between two scans and two ticks of the other clock, in nanoseconds.
struct Recorded {
    catalog: Catalog,
    samples: Vec<Sample>,
    ticks: [f64; KINDS.len()],
    /// The CPU time that the scans took, in nanoseconds.
    scans: f64,
}

impl Recorded {
    /// The error of a time, as far as there is no reason for it. A thread whose CPU a scan takes counts as running, and the kernel
    /// notes that it was queued.
    fn error(&self, kind: usize, cell: &Cell) -> f64 {
        let counted_as_asleep = COUNTED_AS_ASLEEP * cell.queued;
        let (least, most) = match kind {
            QUEUED => (-self.scans - counted_as_asleep, 0.0),
            ASLEEP => (-UNCOUNTED * cell.ran, counted_as_asleep),
            _ => (0.0, 0.0),
        };
        cell.error() - cell.error().clamp(least, most)
    }

    /// How many standard deviations samples are off.
    fn z(&self, kind: usize, cell: &Cell) -> f64 {
        self.error(kind, cell) / cell.variance(self.ticks[kind]).sqrt()
    }
}

/// Returns the CPU time of the thread of this process that scans, in nanoseconds.
fn time_of_scans() -> f64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let mut paths = tasks.map(|it| it.unwrap().path());
    let is_scanner =
        |path: &PathBuf| fs::read(path.join("comm")).is_ok_and(|it| it == b"otelctx-waits\n");
    let thread = paths.find(is_scanner).unwrap();
    let text = fs::read_to_string(thread.join("schedstat")).unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

fn kind_and_time(sample: &Sample, tick: f64) -> (usize, f64) {
    match sample.event {
        Event::OffCpu(off) if off.state == OffCpuState::Queued => (QUEUED, off.nanoseconds as f64),
        Event::OffCpu(off) => (ASLEEP, off.nanoseconds as f64),
        _ => (RUNNING, tick),
    }
}

/// Samples the program's threads for as long as is asked for. `None`, with a line, where the kernel does not permit it.
fn record(target: &Target, seconds: u64) -> Option<Recorded> {
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 999;
    options.wall_frequency = Some(1000);
    options.user_stacks = false;
    options.kernel_stacks = false;
    let mut sampler = match Sampler::start(&options) {
        Err(Error::Waits(refusal)) => return Feature::Ebpf.or_skip(Err(refusal)),
        started => started.unwrap(),
    };
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let (mut waited, start) = (0, Instant::now());
    // All threads' time off the CPU: most of theirs.
    while waited < 8 * seconds * 1_000_000_000 {
        assert!(
            start.elapsed() < TIMEOUT * (1 + seconds as u32 / 10),
            "{waited} ns"
        );
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample: Sample| {
            if let Event::OffCpu(off) = sample.event {
                waited += off.nanoseconds;
            }
            samples.push(sample);
        });
    }
    let facts = sampler.waits().unwrap();
    let counts = sampler.counts();
    assert_eq!((facts.lost, counts.lost), (0, 0), "{facts:?} {counts:?}");
    let scans = time_of_scans();
    sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    let scan = facts.interval.as_nanos() as f64;
    eprintln!("{facts:?}");
    Some(Recorded {
        scans,
        catalog,
        samples,
        ticks: [options.period() as f64, scan, scan],
    })
}

/// The times in which threads were scanned tick after tick: not while the whole machine was paused, for which all that was asleep
/// then has one long tick.
fn steady(recorded: &Recorded) -> Vec<Range<u64>> {
    let longest = (LONGEST_GAP * recorded.ticks[ASLEEP]) as u64;
    let off = recorded
        .samples
        .iter()
        .filter(|it| it.event != Event::OnCpu);
    let mut times: Vec<u64> = off.map(|it| it.time).collect();
    times.sort_unstable();
    let steady = times.chunk_by(|one, next| next - one <= longest);
    steady.map(|it| it[0]..it[it.len() - 1]).collect()
}

/// What a thread did between two entries that are next to each other, if that is compared.
fn span(entries: &[Entry], time: u64, steady: &[Range<u64>]) -> Option<(Entry, Entry)> {
    let next = entries.partition_point(|it| it.time <= time);
    let pair = entries.get(next.checked_sub(1)?..=next)?;
    let index = steady.partition_point(|it| it.end <= pair[0].time);
    let range = steady.get(index)?;
    let is_compared = |it: &Entry| !it.is_torn && range.contains(&it.time);
    pair.iter().all(is_compared).then_some((pair[0], pair[1]))
}

/// Compares what each thread did in the time of the samples, by its route, and in all.
fn compare(recorded: &Recorded, log: &BTreeMap<i32, Vec<Entry>>) -> (Cells, Cells) {
    let steady = steady(recorded);
    let (mut cells, mut of_threads) = (Cells::new(), Cells::new());
    for (tid, entries) in log {
        for entry in entries {
            let Some((from, to)) = span(entries, entry.time, &steady) else {
                continue;
            };
            let (ran, queued) = ((to.ran - from.ran) as f64, (to.queued - from.queued) as f64);
            let asleep = (to.time - from.time) as f64 - ran - queued;
            let waits = (to.waits - from.waits) as f64;
            let truths = [(ran, 0.0), (queued, 0.0), (asleep, waits)];
            for (kind, (truth, waits)) in truths.into_iter().enumerate() {
                let cell = Cell {
                    truth,
                    sampled: 0.0,
                    waits,
                    ran,
                    queued,
                };
                let of_route = cells.entry((*tid, from.route, kind)).or_default();
                of_route.add(cell);
                of_threads.entry((*tid, 0, kind)).or_default().add(cell);
            }
        }
    }
    for sample in &recorded.samples {
        let tid = recorded.catalog.thread_facts(sample.thread).tid;
        let entries = log.get(&tid);
        if entries.is_none_or(|it| span(it, sample.time, &steady).is_none()) {
            continue;
        }
        let (kind, time) = kind_and_time(sample, recorded.ticks[RUNNING]);
        of_threads.get_mut(&(tid, 0, kind)).unwrap().sampled += time;
        if let Found::Attached(context) = sample.found {
            let (_, name) = &recorded.catalog.context_facts(context).attributes[0];
            let route = ROUTES.iter().position(|it| it == name).unwrap();
            let cell = cells.get_mut(&(tid, route, kind));
            cell.expect("the thread was in the route").sampled += time;
        }
    }
    (cells, of_threads)
}

/// Sums of cells that have something in common.
fn sums(cells: &Cells, key: impl Fn(&Of) -> Of) -> Cells {
    let mut sums = Cells::new();
    for (of, cell) in cells {
        sums.entry(key(of)).or_default().add(*cell);
    }
    sums
}

/// Records the program, and returns what is far off, by route and kind (0 for a sum over all routes). `None`, with a line, where the
/// kernel does not permit it.
fn far_off(program: &Path) -> Option<BTreeMap<(usize, usize), f64>> {
    let log = Log(std::env::temp_dir().join(format!("times-{}.log", std::process::id())));
    let target = Target::spawn(Command::new(program).arg(format!("log={}", log.0.display())));
    let recorded = record(&target, seconds().unwrap_or(4))?;
    let (cells, of_threads) = compare(&recorded, &read(&log.0, &target.lines[0]));
    let all = sums(&of_threads, |(_, _, kind)| (0, 0, *kind));
    let of_routes = sums(&cells, |(_, route, kind)| (0, *route, *kind));
    for ((_, _, kind), cell) in &all {
        let percent = 100.0 * cell.error() / cell.truth;
        eprintln!("{}: {percent:.3} % of {cell:?}", KINDS[*kind]);
    }
    for ((_, route, kind), cell) in &of_routes {
        let z = recorded.z(*kind, cell);
        eprintln!("{} {}: z {z:.2} of {cell:?}", ROUTES[*route], KINDS[*kind]);
    }
    let checked = [&all, &of_routes, &of_threads, &cells];
    let zs = checked
        .into_iter()
        .flatten()
        .map(|(of, cell)| (*of, recorded.z(of.2, cell)));
    let zs: Vec<(Of, f64)> = zs.collect();
    let beyond = |bound: f64| zs.iter().filter(|(_, z)| z.abs() > bound).count();
    eprintln!(
        "of {} times, {} are beyond 3 and {} beyond 4 standard deviations",
        zs.len(),
        beyond(3.0),
        beyond(4.0)
    );
    if seconds().is_some() {
        assert!(100 * beyond(3.0) <= zs.len(), "{zs:.2?}");
        for ((_, _, kind), cell) in &all {
            let error = recorded.error(*kind, cell).abs();
            let bound = 3.0 * cell.variance(recorded.ticks[*kind]).sqrt();
            let bound = bound.max(0.005 * cell.truth);
            assert!(error <= bound, "{}: {cell:?}", KINDS[*kind]);
        }
    }
    let far = zs.into_iter().filter(|(_, z)| z.abs() > FAR);
    Some(
        far.map(|((_, route, kind), z)| ((route, kind), z))
            .collect(),
    )
}

#[test]
fn times_by_thread_route_and_kind_are_those_of_the_kernel_and_the_program() {
    if is_emulated() {
        return eprintln!("skipped: an emulated machine has no time left beside the program");
    }
    let sources = ["times.c", "variable.c", "publish.c"];
    let flags = ["-O2", "-rdynamic", "-pthread"];
    let Some(program) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    // What is wrong is wrong each time; what the machine's other work has moved is not.
    let Some(mut far) = far_off(&program) else {
        return;
    };
    for _ in 1..RUNS {
        if far.is_empty() {
            return;
        }
        eprintln!("once more: {far:.2?}");
        let again = far_off(&program).unwrap();
        far.retain(|of, _| again.contains_key(of));
    }
    assert_eq!(far, BTreeMap::new());
}
