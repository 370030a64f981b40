//! The eBPF program's time per sample, compared on the same machine at the same time with a program that
//! makes only the kernel calls that it cannot do without, with the sampler's program before samples had
//! rings of their own, and with an empty one.

use std::process::Command;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData, RingBuf};
use aya::programs::PerfEvent;
use aya::programs::perf_event::{PerfEventConfig, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::{Ebpf, EbpfLoader};
use otelctx_fixtures::{Compiler, Target};
use otelctx_reader::remote::tls::Place;
use otelctx_reader::{Process, ThreadSupport};
use otelctx_sampler::sample::Catalog;
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

use super::{sampler, spin, spin_without_tables};
use crate::pair::Pair;
use crate::row::Report;

/// The compiled program; `cargo xtask bpf` makes it.
#[cfg(target_arch = "x86_64")]
static REFERENCE: &[u8] = aya::include_bytes_aligned!("../../../bpf/reference.x86_64.o");
#[cfg(target_arch = "aarch64")]
static REFERENCE: &[u8] = aya::include_bytes_aligned!("../../../bpf/reference.aarch64.o");

/// The sampler's program of commit 4267158, as it was committed there: it passes samples through the
/// kernel's ring buffer.
#[cfg(target_arch = "x86_64")]
static RING_BUFFER: &[u8] = aya::include_bytes_aligned!("../../../bpf/ring_buffer.x86_64.o");
#[cfg(target_arch = "aarch64")]
static RING_BUFFER: &[u8] = aya::include_bytes_aligned!("../../../bpf/ring_buffer.aarch64.o");

/// Sampling frequency per CPU, in Hz.
const FREQUENCY: u32 = 1999;
/// Rounds of each measurement, in turn.
const ROUNDS: usize = 6;
const TIME: Duration = Duration::from_millis(600);
/// Frames of the sampled stack.
const DEPTH: usize = 20;

/// One short interval: runs of the program, their time in nanoseconds, and their samples.
pub(in crate::group) struct Interval {
    pub(in crate::group) runs: f64,
    pub(in crate::group) time: f64,
    pub(in crate::group) samples: f64,
}

/// An eBPF program that takes samples.
trait Program {
    /// The number of samples since the last call.
    fn drain(&mut self) -> f64;
    /// Time and runs since the start.
    fn kernel_time(&self) -> Option<(Duration, u64)>;
}

/// The sampler; its samples are only counted.
struct Ours(Sampler, Catalog);

impl Ours {
    fn start(target: &Target, stacks: bool) -> Result<Self, String> {
        let mut options = Options::new(Targets::Processes(vec![target.pid()]));
        options.frequency = FREQUENCY;
        options.user_stacks = stacks;
        options.kernel_stacks = stacks;
        Ok(Self(sampler(&options)?, Catalog::new()))
    }
}

impl Program for Ours {
    fn drain(&mut self) -> f64 {
        let mut samples = 0.0;
        self.0.drain(&mut self.1, &mut |_| samples += 1.0);
        samples
    }

    fn kernel_time(&self) -> Option<(Duration, u64)> {
        self.0.kernel_time()
    }
}

/// One of the other programs, on the clocks of all CPUs.
struct Peer {
    programs: Ebpf,
    name: &'static str,
    events: RingBuf<MapData>,
    /// Kept for the program.
    _targets: Map,
}

/// Why a peer could not be loaded.
type Error = Box<dyn std::error::Error>;

impl Peer {
    /// The kernel calls alone, without which a record of this size cannot be read.
    fn calls(target: &Target, size: u32, stacks: bool) -> Result<Self, Error> {
        let programs = EbpfLoader::new()
            .override_global("offset", &slot_offset(target)?, true)
            .override_global("record_size", &size, true)
            .override_global("stacks", &u32::from(stacks), true)
            .load(REFERENCE)?;
        Self::attach(programs, "reference", target.pid(), [0_u32; 1])
    }

    /// The program before rings. Without stacks.
    fn ring_buffer(target: &Target) -> Result<Self, Error> {
        /// `struct target` and `struct place`, which the program had then.
        const SERIAL: usize = 0;
        const PLACES: usize = 1;
        const OFFSET: usize = 4;
        const STORAGE: usize = 16;
        const STATIC: u32 = 1;
        let offset = slot_offset(target)?;
        let mut words = [0_u32; 60];
        (words[SERIAL], words[PLACES], words[STORAGE]) = (1, 1, STATIC);
        (words[OFFSET], words[OFFSET + 1]) = (offset as u32, (offset >> 32) as u32);
        let programs = EbpfLoader::new()
            .override_global("user_stacks", &0_u32, true)
            .override_global("kernel_stacks", &0_u32, true)
            .map_max_entries("events", 8 << 20)
            .load(RING_BUFFER)?;
        Self::attach(programs, "sample", target.pid(), words)
    }

    fn empty(target: &Target) -> Result<Self, Error> {
        let programs = EbpfLoader::new().load(REFERENCE)?;
        Self::attach(programs, "empty", target.pid(), [0_u32; 1])
    }

    /// Attaches the program; `words` is what it has to know of the target.
    fn attach<const N: usize>(
        mut programs: Ebpf,
        name: &'static str,
        pid: i32,
        words: [u32; N],
    ) -> Result<Self, Error> {
        let missing = "the object lacks something";
        let mut targets = programs.take_map("targets").ok_or(missing)?;
        let mut map: HashMap<&mut MapData, u32, [u32; N]> = (&mut targets).try_into()?;
        map.insert(pid as u32, words, 0)?;
        let events = programs.take_map("events").ok_or(missing)?.try_into()?;
        let program: &mut PerfEvent = programs.program_mut(name).ok_or(missing)?.try_into()?;
        program.load()?;
        for cpu in aya::util::online_cpus().map_err(|(what, error)| format!("{what}: {error}"))? {
            program.attach(
                PerfEventConfig::Software(SoftwareEvent::CpuClock),
                PerfEventScope::AllProcessesOneCpu { cpu },
                SamplePolicy::Period(1_000_000_000 / u64::from(FREQUENCY)),
                false,
            )?;
        }
        Ok(Self {
            programs,
            name,
            events,
            _targets: targets,
        })
    }
}

impl Program for Peer {
    fn drain(&mut self) -> f64 {
        let mut samples = 0.0;
        while self.events.next().is_some() {
            samples += 1.0;
        }
        samples
    }

    fn kernel_time(&self) -> Option<(Duration, u64)> {
        let info = self.programs.program(self.name)?.info().ok()?;
        (info.run_count() > 0).then(|| (info.run_time(), info.run_count()))
    }
}

/// Offset of the slot from the thread pointer.
fn slot_offset(target: &Target) -> Result<u64, String> {
    let support = Process::open(target.pid()).and_then(|mut process| process.thread_support());
    match support.map_err(|error| error.to_string())? {
        ThreadSupport::Readable(variables) => match variables.resolution.variables[..] {
            [ref variable] => match variable.place() {
                Place::Static(offset) => Ok(offset as u64),
                Place::Dynamic { .. } => Err("its variable is not static".into()),
            },
            _ => Err("it has another number of variables".into()),
        },
        ThreadSupport::Unreadable(why) => Err(why.to_string()),
    }
}

/// Measures a program for a while.
fn observe(mut program: impl Program, parts: &mut Vec<Interval>) -> Result<(), String> {
    let mut before = (0.0, 0.0);
    let (start, mut any) = (Instant::now(), false);
    while start.elapsed() < TIME || !any {
        std::thread::sleep(INTERVAL);
        let samples = program.drain();
        let Some((time, runs)) = program.kernel_time() else {
            return Err("the kernel counts no runs".into());
        };
        let now = (time.as_nanos() as f64, runs as f64);
        let part = Interval {
            time: now.0 - before.0,
            runs: now.1 - before.1,
            samples,
        };
        before = now;
        if part.runs > 0.0 {
            any = true;
            parts.push(part);
        }
    }
    Ok(())
}

/// The lower quartile: a busy machine sometimes preempts the program, which lengthens some of the
/// intervals.
fn lower_quartile(mut costs: Vec<f64>) -> Result<f64, String> {
    costs.sort_by(f64::total_cmp);
    let found = costs.get(costs.len() / 4).copied();
    found.ok_or("the target hardly ran".into())
}

/// The time of one sample, without the runs that met other processes, whose share is at most `1 - share`.
pub(in crate::group) fn of_a_sample(
    parts: &[Interval],
    empty: f64,
    share: f64,
) -> Result<f64, String> {
    let of = |part: &Interval| (part.time - (part.runs - part.samples) * empty) / part.samples;
    lower_quartile(
        parts
            .iter()
            .filter(|part| part.samples >= part.runs * share && part.samples > 0.0)
            .map(of)
            .collect(),
    )
}

/// Starts a program with these arguments.
type Start = fn(&[&str]) -> Result<Target, String>;

/// The time of a run, in nanoseconds.
fn of_a_run(parts: &[Interval]) -> Result<f64, String> {
    lower_quartile(parts.iter().map(|part| part.time / part.runs).collect())
}

/// The time of a run that meets no target, in nanoseconds.
pub(in crate::group) fn without_target() -> Result<f64, String> {
    let idle = Target::spawn(
        Command::new(
            Compiler::gcc()
                .program::<&str>(&["sleepers.c"], &[])
                .ok_or("there is no gcc")?,
        )
        .arg("epoll"),
    );
    let _busy = spin(&[])?;
    let mut others = Vec::new();
    for _ in 0..ROUNDS {
        observe(Ours::start(&idle, false)?, &mut others)?;
    }
    others.retain(|part| part.samples == 0.0);
    of_a_run(&others)
}

/// Returns the time of a run that meets no target, in nanoseconds.
pub(super) fn run(report: &mut Report) -> Result<f64, String> {
    let empty = without_target()?;
    let busy = spin(&[])?;
    let mut nothing = Vec::new();
    for _ in 0..ROUNDS {
        observe(loaded(Peer::empty(&busy))?, &mut nothing)?;
    }
    report.alone("empty program", of_a_run(&nothing)? / 1e3, "µs", None);
    report.alone("run that meets no target", empty / 1e3, "µs", None);
    drop(busy);
    let depth = format!("depth={DEPTH}");
    for (work, size, stacks, start, bound) in [
        ("64-byte record", 64, false, spin as Start, Some(0.35)),
        ("640-byte record", 640, false, spin, Some(0.45)),
        (
            "64-byte record and stack of 20 frames by frame pointers",
            64,
            true,
            spin_without_tables,
            Some(0.8),
        ),
        ("the same by tables", 64, true, spin, None),
    ] {
        let target = start(&[&format!("size={size}"), if stacks { &depth } else { "" }])?;
        let (mut ours, mut calls, mut before) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            observe(Ours::start(&target, stacks)?, &mut ours)?;
            if !stacks {
                observe(loaded(Peer::ring_buffer(&target))?, &mut before)?;
            }
            observe(loaded(Peer::calls(&target, size, stacks))?, &mut calls)?;
        }
        let ours = of_a_sample(&ours, empty, 0.5)? / 1e3;
        report.alone(format!("program's time, {work}"), ours, "µs", bound);
        if !stacks {
            let pair = Pair::of(ours, of_a_sample(&before, empty, 0.5)? / 1e3);
            report.pair("  against the program before rings", pair, "µs", 0.6);
        }
        let pair = Pair::of(ours, of_a_sample(&calls, empty, 0.5)? / 1e3);
        report.pair("  against its calls alone", pair, "µs", None);
    }
    Ok(empty)
}

fn loaded(peer: Result<Peer, Error>) -> Result<Peer, String> {
    peer.map_err(|error| format!("peer: {error}"))
}
