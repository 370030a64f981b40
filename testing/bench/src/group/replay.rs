//! Memory of a long recording of a large machine: 64 CPUs at 999 Hz. Needs root.
//!
//! This machine is recorded for some seconds, and its samples are replayed through the code that a
//! recording uses once the kernel has delivered them: catalog, spool, parts, output files. Each of the 64
//! CPUs replays them from another position, and over and over: with programs at other addresses, new
//! traces in each turn, and new processes and threads in place of short-lived ones.

use std::collections::HashMap;
use std::fs;
use std::num::NonZeroU64;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx::{SpanId, TraceId};
use otelctx_profile::sample::{
    Catalog, Counts, Found, Frame, Mapping, ProcessId, Sample, StackId, ThreadId,
};
use otelctx_profile::{
    Aggregate, Clock, Format, Function, Identity, Options, Profile, Spool, SymbolQuery, Symbolizer,
};
use otelctx_sampler::{INTERVAL, Sampler, Targets};

use super::memory::Running;
use crate::child::{Role, peak_memory};
use crate::row::Report;
use crate::scratch::{self, Directory};

const CPUS: usize = 64;
const FREQUENCY: u64 = 999;
/// How long this machine is recorded, to replay it.
const RECORDED: Duration = Duration::from_secs(20);
/// How much time is replayed, in seconds; `OTELCTX_SOAK_SECONDS` changes it. Each takes 8 to 14 MiB of disk.
const SECONDS: u64 = 360;
/// The output formats, each in a run of its own; `OTELCTX_SOAK_FORMAT` chooses one.
const FORMATS: [&str; 5] = ["otlp", "pb.gz", "json.gz", "svg", "folded"];

pub(crate) fn run(report: &mut Report) {
    report.group("replay");
    let seconds = std::env::var("OTELCTX_SOAK_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    let chosen = std::env::var("OTELCTX_SOAK_FORMAT").ok();
    let is_chosen = |format: &&str| chosen.as_ref().is_none_or(|it| it == format);
    for format in FORMATS.into_iter().filter(is_chosen) {
        if let Err(why) = measure(report, seconds.unwrap_or(SECONDS), format) {
            report.failed(format, &why);
        }
    }
}

fn measure(report: &mut Report, seconds: u64, format: &str) -> Result<(), String> {
    let otelctx = scratch::otelctx()?;
    let directory = Directory::new("replay");
    let path = directory.path().join(format!("profile.{format}"));
    let path = path.display().to_string();
    let role = Role::start(&["replay", &seconds.to_string(), &path, &otelctx])?;
    let samples = role.number("samples ")?;
    let of = format!("{format}, {samples} samples");
    let mebibytes = |name: &str| role.number(name).map(|kib| kib / 1024.0);
    report.alone(&of, mebibytes("recording-kib ")?, "MiB", 300.0);
    report.alone("  at the end", mebibytes("writing-kib ")?, "MiB", 300.0);
    report.alone("  spool", mebibytes("spool-kib ")?, "MiB", None);
    report.alone("  files", role.number("files ")?, "files", None);
    report.alone("  largest file", mebibytes("largest-kib ")?, "MiB", None);
    report.alone("  recording", role.number("recording-s ")?, "s", None);
    report.alone("  writing", role.number("writing-s ")?, "s", None);
    if format == "otlp" {
        let peak = crate::child::command(&["peak", &otelctx, "report", &path]);
        let start = Instant::now();
        let peak = scratch::output(&mut { peak })?;
        let peak: f64 = peak.trim().parse().map_err(|_| peak.clone())?;
        report.alone("  report", peak / 1024.0, "MiB", 512.0);
        report.alone("  report", start.elapsed().as_secs_f64(), "s", None);
    }
    Ok(())
}

/// Programs of several kinds: services that publish, a compiler, an interpreter, and a shell that starts
/// short-lived processes.
fn load(otelctx: &str) -> Result<Vec<Running>, String> {
    let source = scratch::root().join("testing/bench/c/big.c");
    let compile = format!(
        "while :; do gcc -O2 -DUNIT=u0 -c -o /dev/null {}; done",
        source.display()
    );
    let parent = format!("--parent={}", std::process::id());
    let python =
        "import json\nwhile True: json.loads(json.dumps([{'a': [n]} for n in range(999)]))";
    let mut commands: Vec<Command> = Vec::new();
    for arguments in [
        &[otelctx, "demo-service", &parent][..],
        &[otelctx, "demo-service", &parent],
        &["sh", "-c", &compile],
        &["python3", "-c", python],
        &[
            "sh",
            "-c",
            "while :; do true | sort | uniq > /dev/null; done",
        ],
    ] {
        let mut command = Command::new(arguments[0]);
        command.args(&arguments[1..]);
        commands.push(command);
    }
    commands.iter_mut().map(Running::start).collect()
}

/// The role `replay`: replays this many seconds, and writes them to `path`. Of several files, only the
/// largest is kept.
pub(crate) fn replay(seconds: u64, path: &str, otelctx: &str) {
    let (base, samples) = match recorded(otelctx) {
        Ok(recorded) => recorded,
        Err(why) => return eprintln!("{why}"),
    };
    let path = Path::new(path);
    forget_peak();
    let start = Instant::now();
    let mut spool = Spool::beside(path).expect("the directory takes a file");
    let mut catalog = Catalog::new();
    let mut machine = Machine::new(&base, &samples);
    let period = 1_000_000_000 / FREQUENCY;
    for tick in 0..seconds * FREQUENCY {
        for cpu in 0..CPUS {
            spool.push(&machine.sample(cpu, 1 + tick * period, &mut catalog));
        }
        if tick % 20 == 0 && spool.write(&mut catalog).expect("the disk has room") {
            machine.reset_catalog();
        }
    }
    println!("recording-s {}", start.elapsed().as_secs_f64());
    println!("recording-kib {}", peak_memory());
    println!("spool-kib {}", spool_size());
    println!("samples {}", spool.len());
    drop(machine);
    drop((base, samples));
    forget_peak();
    let start = Instant::now();
    let clock = Clock {
        start: 0,
        end: seconds * 1_000_000_000,
        start_unix: 1_700_000_000_000_000_000,
    };
    let period = NonZeroU64::new(period).expect("not zero");
    let parts = spool.finish(catalog, clock, period, Counts::default());
    let format = Format::from_path(path).expect("it is one of FORMATS");
    let options = Options::default();
    let mut aggregate = Aggregate::new(&options, &[format], clock, parts.samples());
    let (mut files, mut largest) = (0, 0);
    for part in parts {
        let profile = Profile::new(part.expect("the spool is intact"), &mut FakeSymbolizer);
        aggregate.add(&profile);
        if !format.is_aggregate() {
            let part = Format::part_path(path, 2);
            profile
                .write_file(&part, &options)
                .expect("the disk has room");
            files += 1;
            let size = fs::metadata(&part).map_or(0, |file| file.len());
            if size > largest {
                largest = size;
                fs::rename(&part, path).expect("both are in one directory");
            }
        }
    }
    if format.is_aggregate() {
        aggregate.write_file(path).expect("the disk has room");
        (files, largest) = (1, fs::metadata(path).map_or(0, |file| file.len()));
    }
    println!("writing-s {}", start.elapsed().as_secs_f64());
    println!("writing-kib {}", peak_memory());
    println!("files {files}");
    println!("largest-kib {}", largest / 1024);
    println!("ready");
}

/// What this machine did for some seconds under [`load`], ordered by time.
fn recorded(otelctx: &str) -> Result<(Catalog, Vec<Sample>), String> {
    let _load = load(otelctx)?;
    let mut options = otelctx_sampler::Options::new(Targets::All);
    options.frequency = FREQUENCY as u32;
    let mut sampler = Sampler::start(&options).map_err(|error| error.to_string())?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let start = Instant::now();
    while start.elapsed() < RECORDED {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    samples.sort_by_key(|sample| sample.time);
    match samples.len() {
        0 => Err("there are no samples".to_owned()),
        _ => Ok((catalog, samples)),
    }
}

/// Resets the peak memory of this process (proc_pid_clear_refs(5)).
fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("the process may change its own");
}

/// How much disk space the spool takes, in KiB: the largest file without a name.
fn spool_size() -> u64 {
    let files = fs::read_dir("/proc/self/fd").into_iter().flatten();
    let sizes = files.flatten().filter_map(|file| {
        let found = fs::metadata(file.path()).ok()?;
        (found.is_file() && found.nlink() == 0).then_some(found.blocks() / 2)
    });
    sizes.max().unwrap_or(0)
}

/// A machine with many CPUs, each of which repeats what was recorded.
struct Machine<'b> {
    base: &'b Catalog,
    samples: &'b [Sample],
    /// The position of each CPU in `samples`, and how often it has come to the end of them.
    cpus: Vec<(usize, u64)>,
    /// Processes of the base that exist from its start to its end.
    is_lasting: Vec<bool>,
    /// By CPU, process of the base, and turn.
    pids: HashMap<(usize, ProcessId, u64), i32>,
    next_pid: i32,
    /// What the catalog has: by PID, by process and thread of the base, and by PID and stack of the base.
    processes: HashMap<i32, ProcessId>,
    threads: HashMap<(i32, ThreadId), ThreadId>,
    /// The frames of the stack that is added.
    frames: Vec<Frame>,
}

impl<'b> Machine<'b> {
    fn new(base: &'b Catalog, samples: &'b [Sample]) -> Self {
        let mut seen: Vec<Option<(u64, u64)>> = vec![None; base.processes().len()];
        for sample in samples {
            let process = base.thread_facts(sample.thread).process;
            let times = seen[process.index()].get_or_insert((sample.time, sample.time));
            times.1 = sample.time;
        }
        // Lasting processes are sampled for more than half of the time.
        let whole = samples[samples.len() - 1].time - samples[0].time;
        let lasting = |times: &Option<(u64, u64)>| times.is_some_and(|it| it.1 - it.0 > whole / 2);
        let count = samples.len();
        Self {
            base,
            samples,
            cpus: (0..CPUS).map(|cpu| (cpu * count / CPUS, 0)).collect(),
            is_lasting: seen.iter().map(lasting).collect(),
            pids: HashMap::new(),
            next_pid: 1,
            processes: HashMap::new(),
            threads: HashMap::new(),
            frames: Vec::new(),
        }
    }

    fn reset_catalog(&mut self) {
        self.processes.clear();
        self.threads.clear();
    }

    /// The next sample of a CPU.
    fn sample(&mut self, cpu: usize, time: u64, catalog: &mut Catalog) -> Sample {
        let (position, turn) = self.cpus[cpu];
        let recorded = self.samples[position];
        let next = position + 1;
        self.cpus[cpu] = match next == self.samples.len() {
            true => {
                // Processes of the last turn are gone.
                self.pids
                    .retain(|(of, _, in_turn), _| *of != cpu || *in_turn == 0);
                (0, turn + 1)
            }
            false => (next, turn),
        };
        let process = self.base.thread_facts(recorded.thread).process;
        let in_turn = if self.is_lasting[process.index()] {
            0
        } else {
            turn + 1
        };
        let next_pid = &mut self.next_pid;
        let pid = *self.pids.entry((cpu, process, in_turn)).or_insert_with(|| {
            *next_pid += 1;
            *next_pid
        });
        // As address space layout randomization does it.
        let moved = (u64::from(pid.unsigned_abs()) % (1 << 20)) << 12;
        Sample {
            time,
            cpu: cpu as u32,
            thread: self.thread(recorded.thread, process, pid, moved, catalog),
            event: recorded.event,
            found: match recorded.found {
                Found::Attached(context) => {
                    let mut context = self.base.context_facts(context).clone();
                    let turn = (turn << 8 | cpu as u64) << 32;
                    let trace = u128::from_be_bytes(context.trace_id.to_bytes()) ^ u128::from(turn);
                    let span = u64::from_be_bytes(context.span_id.to_bytes()) ^ turn;
                    context.trace_id = TraceId::from_bytes(trace.to_be_bytes());
                    context.span_id = SpanId::from_bytes(span.to_be_bytes());
                    Found::Attached(catalog.context(&context))
                }
                other => other,
            },
            gil: recorded.gil,
            user_stack: self.stack(recorded.user_stack, moved, catalog),
            stack_end: recorded.stack_end,
            kernel_stack: self.stack(recorded.kernel_stack, 0, catalog),
        }
    }

    fn thread(
        &mut self,
        recorded: ThreadId,
        process: ProcessId,
        pid: i32,
        moved: u64,
        catalog: &mut Catalog,
    ) -> ThreadId {
        if let Some(known) = self.threads.get(&(pid, recorded)) {
            return *known;
        }
        let base = self.base;
        let owner = *self.processes.entry(pid).or_insert_with(|| {
            let mut facts = base.process(process).clone();
            facts.pid = pid;
            facts.start_ticks = u64::from(pid.unsigned_abs());
            for mapping in &mut facts.mappings {
                *mapping = Mapping {
                    start: mapping.start + moved,
                    end: mapping.end + moved,
                    offset: mapping.offset,
                    module: catalog.module(base.module_facts(mapping.module).clone()),
                    since: 0,
                };
            }
            catalog.add_process(facts)
        });
        let facts = base.thread_facts(recorded);
        let tid = facts.tid - base.process(process).pid + pid;
        let thread = catalog.thread(owner, tid, &facts.name);
        self.threads.insert((pid, recorded), thread);
        thread
    }

    fn stack(&mut self, recorded: StackId, moved: u64, catalog: &mut Catalog) -> StackId {
        self.frames.clear();
        self.frames.extend(self.base.frames(recorded).cloned());
        for frame in &mut self.frames {
            if let Frame::Native { address, .. } = frame {
                *address = address.wrapping_add(moved);
            }
        }
        catalog.stack(&self.frames)
    }
}

/// Knows a function at each address, with names as long as those of real programs.
struct FakeSymbolizer;

impl Symbolizer for FakeSymbolizer {
    fn functions(&mut self, query: SymbolQuery<'_>, addresses: &[u64]) -> Vec<Vec<Function>> {
        let function = |address: &u64| Function {
            name: format!("module::part::function_{:x}<Parameter>", address >> 8),
            file: PathBuf::from(&query.module.path).display().to_string() + "/src/module/part.rs",
            line: *address as u32 & 0xfff,
            ..Function::default()
        };
        addresses.iter().map(|at| vec![function(at)]).collect()
    }

    fn identity(&mut self, query: SymbolQuery<'_>) -> Identity {
        Identity {
            build_id: query.module.build_id.clone(),
            htlhash: Some([7; 16]),
        }
    }
}
