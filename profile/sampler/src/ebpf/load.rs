//! Loads the programs into the kernel.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::hash::BuildHasher;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use aya::maps::{HashMap, MapData, PerCpuArray, ProgramArray};
use aya::programs::{PerfEvent, ProgramInfo, RawTracePoint};
use aya::{Ebpf, EbpfLoader};

use super::abi::{RECORD_LIMIT, StepConfiguration, StepKey, counter};
use super::copies::{self, Copies};
use super::namespace;
use super::object::{array, find, map};
use super::perf::Clocks;
use super::rings::{Events, Sizes};
use super::shared::page_size;
use super::side_band::SideBand;
use super::targets::TargetTable;
use super::thread_words::ThreadWords;
use super::unwind::Unwinding;
use crate::refusal::Refusal;
use crate::{KernelObject, Options, Targets, signals};
use otelctx_reader::format::record;

/// The compiled programs without any runtime's step; built by `cargo xtask bpf`.
#[cfg(target_arch = "x86_64")]
static OBJECT: KernelObject = crate::kernel_object!("../../bpf/sampler.x86_64.o");
#[cfg(target_arch = "aarch64")]
static OBJECT: KernelObject = crate::kernel_object!("../../bpf/sampler.aarch64.o");

/// Maximum number of configured steps, each for one process: 1.3 MB.
const MAX_CONFIGURATIONS: u32 = 4096;
/// Maximum number of threads whose words are passed on to steps: 0.7 MB.
const MAX_THREAD_WORDS: u32 = 8192;

/// The program that samples with stacks by frame pointers.
const SAMPLE: &str = "sample";
/// The program that samples with stacks by unwind tables, in a loop.
const SAMPLE_BY_TABLES: &str = "sample_by_tables";
/// The first kernel that takes programs with loops.
const LOOPS: (u32, u32) = if cfg!(target_arch = "aarch64") {
    (6, 0)
} else {
    (5, 17)
};
/// The program that samples with stacks by unwind tables, with programs that call each other.
const SAMPLE_BY_TAIL_CALLS: &str = "sample_by_tail_calls";
/// Frames that `sample_by_tail_calls` keeps: `CALL_FRAMES` times `MAX_CALLS` (`unwind.h`).
const MAX_FRAMES_BY_TAIL_CALLS: usize = 144;
/// Frames that `sample` keeps (`MAX_FRAMES` in `stack.h`).
const MAX_FRAMES_BY_POINTERS: usize = 127;
/// The programs that it calls, in the order of `enum tail_call` (`sampler.bpf.c`).
const TAIL_CALLS: [&str; 2] = ["next_frames", "end_sample"];

/// The loaded programs and their maps.
pub(super) struct Loaded {
    pub(super) targets: TargetTable,
    pub(super) events: Events,
    pub(super) copies: Copies,
    counters: PerCpuArray<MapData, u64>,
    pub(super) clocks: Clocks,
    /// The configurations of runtimes' steps for processes.
    pub(super) configurations: HashMap<MapData, StepKey, StepConfiguration>,
    /// The number of each runtime's step, by its name.
    pub(super) steps: BTreeMap<String, u32>,
    pub(super) words: ThreadWords,
    pub(super) unwinding: Unwinding,
    pub(super) sample: SampleProgram,
    /// The programs of steps that no process has needed yet, by number.
    unloaded_steps: BTreeMap<u32, String>,
    /// The kernel may take steps with loops.
    may_have_loops: bool,
    /// Open, as all maps are: steps that are loaded later name them by their descriptors' numbers.
    _cpus: MapData,
    /// Open: an array without a descriptor drops its programs.
    step_programs: ProgramArray<MapData>,
    /// The programs, which are loaded and attached as long as this exists.
    programs: Ebpf,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelCounts {
    /// Samples that were lost because the ring was full.
    pub(super) lost_samples: u64,
    /// Lost events of processes that started or ended.
    pub(super) lost_processes: u64,
    /// Samples of threads outside of the recorder's PID namespace.
    pub(super) outside_namespace: u64,
    /// Processes that are not sampled, because there are too many.
    pub(super) dropped_processes: u64,
}

impl Loaded {
    /// Loads the programs, with a ring of samples for each CPU if the kernel permits it.
    pub(super) fn load(options: &Options) -> Result<Self, Refusal> {
        let mut loaded = signals::blocked(|| Self::load_any(options))?;
        if options.before_exec && !options.runtimes.is_empty() {
            let steps: Vec<u32> = loaded.unloaded_steps.keys().copied().collect();
            steps.into_iter().try_for_each(|it| loaded.load_step(it))?;
        }
        Ok(loaded)
    }

    fn load_any(options: &Options) -> Result<Self, Refusal> {
        Refusal::type_information()?;
        let cpus = online_cpus()?;
        let possible = aya::util::nr_cpus().map_err(unlisted)?;
        let sizes = |with_rings| Sizes::new(options, cpus.len(), with_rings);
        if options.without_rings {
            return Self::load_with(options, &cpus, possible, &sizes(false));
        }
        match Self::load_with(options, &cpus, possible, &sizes(true)) {
            // On aarch64, rings need Linux 5.12 (`remove_exchanges`).
            Err(Refusal::Kernel { .. }) => Self::load_with(options, &cpus, possible, &sizes(false)),
            result => result,
        }
    }

    fn load_with(
        options: &Options,
        cpus: &[u32],
        possible: usize,
        sizes: &Sizes,
    ) -> Result<Self, Refusal> {
        let inode = namespace::inode().map_err(|error| Refusal::other(error.to_string()))?;
        let mut programs = load_object(options, cpus.len(), possible, sizes, inode)?;
        for name in ["task_newtask", "sched_process_exec", "sched_process_exit"] {
            let program: &mut RawTracePoint = find(&mut programs, name)?;
            let attached = program.load().and_then(|()| program.attach(name));
            attached.map_err(Refusal::of)?;
        }
        // From a new thread, the program learns the level of this namespace.
        if inode != 0 {
            let thread = std::thread::Builder::new().spawn(|| {});
            let _ = thread.map_err(Refusal::of)?.join();
        }
        let sample = load_sample(&mut programs, options)?;
        let step_programs = map(&mut programs, "sample_steps")?;
        let (mut steps, mut unloaded_steps) = (BTreeMap::new(), BTreeMap::new());
        for (program, _) in programs.programs() {
            if let Some((number, name)) = step_of(program) {
                steps.insert(name.to_owned(), number);
                unloaded_steps.insert(number, program.to_owned());
            }
        }
        let clocks = Clocks::open(
            cpus,
            options.period(),
            sample_program(&programs, sample.name)?,
        )
        .map_err(Refusal::of)?;
        let cpu_map = array(&mut programs, "cpus")?;
        let unwinding = Unwinding::start(&mut programs, sample.name != SAMPLE, options)?;
        Ok(Self {
            targets: TargetTable::new(&mut programs, &cpu_map)?,
            events: Events::new(&mut programs, &cpu_map, cpus, sizes)?,
            copies: Copies::new(&mut programs)?,
            counters: map(&mut programs, "counters")?,
            configurations: map(&mut programs, "step_configurations")?,
            words: ThreadWords::new(&mut programs)?,
            clocks,
            steps,
            unwinding,
            sample,
            unloaded_steps,
            may_have_loops: !options.without_loops,
            _cpus: cpu_map,
            step_programs,
            programs,
        })
    }

    pub(super) fn side_band(&self) -> io::Result<SideBand> {
        let cpus = online_cpus().map_err(|refusal| io::Error::other(refusal.to_string()))?;
        SideBand::start(&cpus)
    }

    /// Starts the clocks and reports of CPUs that have come online. The clocks of the CPUs in
    /// `ticked` have ticked since the last call.
    pub(super) fn follow_cpus<S: BuildHasher>(
        &mut self,
        ticked: &HashSet<u32, S>,
        side_band: &mut SideBand,
    ) {
        if let (Ok(cpus), Ok(program)) = (
            online_cpus(),
            sample_program(&self.programs, self.sample.name),
        ) {
            let stopped = self.clocks.follow(&cpus, ticked, program);
            side_band.follow(&cpus, &stopped);
        }
    }

    /// Loads a step for the first process that needs it: the kernel takes up to a second to verify
    /// one without loops, and most recordings need none.
    pub(super) fn load_step(&mut self, number: u32) -> Result<(), Refusal> {
        let Some(program) = self.unloaded_steps.remove(&number) else {
            return Ok(());
        };
        signals::blocked(|| {
            let mut name = looped(&program);
            if !self.may_have_loops || load_clock(&mut self.programs, &name).is_err() {
                name = program;
                load_clock(&mut self.programs, &name)?;
            }
            let program = find(&mut self.programs, &name)?;
            add_program(&mut self.step_programs, number, program)
        })
    }

    pub(super) fn max_frames(&self) -> usize {
        match self.sample.name {
            SAMPLE_BY_TABLES => otelctx_unwind::MAX_FRAMES,
            SAMPLE_BY_TAIL_CALLS => MAX_FRAMES_BY_TAIL_CALLS,
            _ => MAX_FRAMES_BY_POINTERS,
        }
    }

    pub(super) fn info(&self) -> Option<ProgramInfo> {
        self.programs.program(self.sample.name)?.info().ok()
    }

    pub(super) fn counts(&self) -> KernelCounts {
        let sum = |index: u32| {
            let values = self.counters.get(&index, 0);
            values.map_or(0, |values| values.iter().sum())
        };
        KernelCounts {
            lost_samples: sum(counter::SAMPLES) + self.events.discarded,
            lost_processes: sum(counter::PROCESSES),
            outside_namespace: sum(counter::OUTSIDE),
            dropped_processes: sum(counter::TARGETS) + self.targets.refused,
        }
    }
}

/// Loads the object with the options as its constants and the sizes of its maps. `online` is the number of CPUs, `possible` that
/// of CPUs that may come online, `namespace` the inode of the recorder's PID namespace.
fn load_object(
    options: &Options,
    online: usize,
    possible: usize,
    sizes: &Sizes,
    namespace: u64,
) -> Result<Ebpf, Refusal> {
    // The kernel allocates the memory immediately, even for maps that the program does not use.
    let rule_caches = if options.user_stacks {
        possible as u32
    } else {
        1
    };
    let mut object = Cow::Borrowed(options.kernel_object.unwrap_or(OBJECT).0);
    if cfg!(target_arch = "aarch64") && !sizes.has_rings() {
        remove_exchanges(object.to_mut());
    }
    let (configurations, words) = if options.runtimes.is_empty() {
        (1, 1)
    } else {
        (MAX_CONFIGURATIONS, MAX_THREAD_WORDS)
    };
    let flag = |on: bool| u32::from(on);
    let whole_machine = flag(options.targets == Targets::All);
    let with_children = flag(options.children);
    let user_stacks = flag(options.user_stacks);
    let kernel_stacks = flag(options.kernel_stacks);
    let searches_mappings = flag(!options.without_mappings);
    let max_record = options.max_record.clamp(record::HEADER_SIZE, RECORD_LIMIT) as u32;
    let rings = flag(sizes.has_rings());
    let copies_stacks = flag(copies::copies_stacks(options));
    EbpfLoader::new()
        .override_global("whole_machine", &whole_machine, true)
        .override_global("with_children", &with_children, true)
        .override_global("user_stacks", &user_stacks, true)
        .override_global("kernel_stacks", &kernel_stacks, true)
        .override_global("max_record", &max_record, true)
        .override_global("rings", &rings, true)
        .override_global("copies_stacks", &copies_stacks, true)
        .override_global("namespace_inode", &namespace, true)
        .override_global("searches_mappings", &searches_mappings, true)
        .override_global("page_shift", &page_size().trailing_zeros(), true)
        .map_max_entries("events", sizes.ring_buffer)
        .map_max_entries("copies", copies::size(options, online))
        .map_max_entries("cpus", possible as u32)
        .map_max_entries("segments", sizes.segments)
        .map_max_entries("rule_caches", rule_caches)
        .map_max_entries("step_configurations", configurations)
        .map_max_entries("thread_words", words)
        .load(&object)
        .map_err(Refusal::of)
}

/// Replaces the instruction that passes a sample on to a ring on aarch64 (`publish` in `ring.h`) by
/// an addition: kernels before 5.12 refuse it even where it is never reached
/// (`resolve_pseudo_ldimm64`, kernel/bpf/verifier.c).
fn remove_exchanges(object: &mut [u8]) {
    const EXCHANGE: [u8; 8] = 0xe1_0000_12db_u64.to_le_bytes();
    const ADDITION: [u8; 8] = 0x12db_u64.to_le_bytes();
    // Programs begin at multiples of an instruction's size.
    for instruction in object.as_chunks_mut().0 {
        if *instruction == EXCHANGE {
            *instruction = ADDITION;
        }
    }
}

pub(super) struct SampleProgram {
    name: &'static str,
    /// The programs that it calls. Open: an array without a descriptor drops them.
    _tail_calls: Option<ProgramArray<MapData>>,
    /// The reason why stacks have fewer frames, if they do.
    pub(super) without_loops: Option<Refusal>,
    /// The reason why stacks are walked by frame pointers alone, if they are.
    pub(super) without_tables: Option<Refusal>,
}

/// Loads the program that samples: the first one that the kernel takes.
fn load_sample(programs: &mut Ebpf, options: &Options) -> Result<SampleProgram, Refusal> {
    let mut program = SampleProgram {
        name: SAMPLE,
        _tail_calls: None,
        without_loops: None,
        without_tables: None,
    };
    if options.user_stacks {
        let loaded = if options.without_loops {
            Err(Refusal::Disabled)
        } else {
            load_clock(programs, SAMPLE_BY_TABLES)
        };
        match loaded {
            Ok(()) => {
                program.name = SAMPLE_BY_TABLES;
                return Ok(program);
            }
            Err(refusal) => program.without_loops = Some(refusal.needing(LOOPS)),
        }
        match load_tail_calls(programs) {
            Ok(array) => {
                program.name = SAMPLE_BY_TAIL_CALLS;
                program._tail_calls = Some(array);
                return Ok(program);
            }
            Err(refusal) => program.without_tables = Some(refusal),
        }
    }
    load_clock(programs, SAMPLE)?;
    Ok(program)
}

fn load_tail_calls(programs: &mut Ebpf) -> Result<ProgramArray<MapData>, Refusal> {
    load_clock(programs, SAMPLE_BY_TAIL_CALLS)?;
    for name in TAIL_CALLS {
        load_clock(programs, name)?;
    }
    let mut array: ProgramArray<MapData> = map(programs, "tail_calls")?;
    for (name, index) in TAIL_CALLS.into_iter().zip(0..) {
        add_program(&mut array, index, find(programs, name)?)?;
    }
    Ok(array)
}

fn add_program(
    array: &mut ProgramArray<MapData>,
    index: u32,
    program: &PerfEvent,
) -> Result<(), Refusal> {
    let program = program.fd().map_err(Refusal::of)?;
    array.set(index, program, 0).map_err(Refusal::of)
}

fn load_clock(programs: &mut Ebpf, name: &str) -> Result<(), Refusal> {
    let program: &mut PerfEvent = find(programs, name)?;
    program.load().map_err(Refusal::of)
}

fn sample_program<'p>(programs: &'p Ebpf, name: &str) -> Result<BorrowedFd<'p>, Refusal> {
    let program = programs.program(name);
    match program.map(aya::programs::Program::fd) {
        Some(Ok(program)) => Ok(program.as_fd()),
        Some(Err(error)) => Err(Refusal::of(error)),
        None => Err(Refusal::other(format!("the object has no program {name}"))),
    }
}

/// Returns number and name of a step from its program's name: `step_1_toy_sample` (`STEP` in
/// `steps.h`).
fn step_of(program: &str) -> Option<(u32, &str)> {
    let step = program.strip_prefix("step_")?.strip_suffix("_sample")?;
    let (number, name) = step.split_once('_')?;
    Some((number.parse().ok()?, name))
}

/// Returns the name of the program for the same step with loops.
fn looped(program: &str) -> String {
    let step = program.strip_suffix("_sample").unwrap_or(program);
    format!("{step}_looped")
}

fn online_cpus() -> Result<Vec<u32>, Refusal> {
    aya::util::online_cpus().map_err(unlisted)
}

fn unlisted((list, error): (&str, io::Error)) -> Refusal {
    Refusal::other(format!("{list}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Loaded {
        /// The numbers of the maps that the loaded programs use.
        pub(in crate::ebpf) fn map_ids(&self) -> Vec<u32> {
            let infos = self.programs.programs().filter_map(|it| it.1.info().ok());
            let ids = infos.filter_map(|info| info.map_ids().ok().flatten());
            ids.flatten().collect()
        }
    }

    /// The object for aarch64, on any machine.
    const OBJECT: &[u8] = include_bytes!("../../bpf/sampler.aarch64.o");

    #[test]
    fn programs_for_kernels_before_5_12_have_no_exchange() {
        // Atomic operations on 8 bytes (`BPF_STX | BPF_DW | BPF_ATOMIC`), but additions, which are older.
        let exchanges = |object: &[u8]| {
            let instructions = object.as_chunks::<8>().0.iter();
            instructions
                .filter(|it| it[0] == 0xdb && it[4..] == [0xe1, 0, 0, 0])
                .count()
        };
        assert!(exchanges(OBJECT) > 0);
        let mut object = OBJECT.to_vec();
        super::remove_exchanges(&mut object);
        assert_eq!(exchanges(&object), 0);
        assert_eq!(object.len(), OBJECT.len());
    }
}
