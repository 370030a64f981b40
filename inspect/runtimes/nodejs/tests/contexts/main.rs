//! Contexts of real Node.js programs, which publish with addons that others wrote, compared with what the programs
//! say.

mod appended;
mod corrupt;
mod layout;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::{Compiler, CoreDirectory, Node, STOP_TIMEOUT, Target, tier};
use otelctx_reader::format::NODEJS_SYMBOL;
use otelctx_reader::format::process_context::Value;
use otelctx_reader::format::record::DecodedContext;
use otelctx_reader::remote::tls::{Place, TlsVariable};
use otelctx_reader::remote::{CoreFile, FileCache, tls};
use otelctx_reader::runtime::{RuntimeReading, Runtimes};
use otelctx_reader::sample::{Catalog, Found, Sample};
use otelctx_reader::{Options, Process};
use otelctx_sampler::{INTERVAL, KernelObject, Sampler, Targets};

const VERSIONS: [&str; 3] = ["22", "24", "26"];
/// Versions of npm's `@datadog/pprof`, each of which publishes another variant of the structure, and the own package.
const ADDONS: [&str; 4] = ["5.18", "5.19", "5.20", "otelctx"];

fn runtimes() -> Runtimes {
    Runtimes::new(vec![Arc::new(otelctx_node::Node::default())])
}

fn open(pid: i32) -> Process {
    let mut options = Options::default();
    options.runtimes = runtimes();
    options.stop_timeout = STOP_TIMEOUT;
    let mut process = Process::with_options(pid, options).unwrap();
    process.context().unwrap();
    process
}

/// A context as the program writes it: trace, span, flags, attributes.
fn shown(context: &DecodedContext) -> String {
    let mut words = vec![
        context.trace_id.to_string(),
        context.span_id.to_string(),
        context.trace_flags.0.to_string(),
    ];
    let attributes = context.attributes.iter();
    words.extend(attributes.map(|(key, value)| format!("{key}={value}")));
    words.join(" ")
}

/// The reason why a thread has no context.
fn state_of(reading: &RuntimeReading) -> Option<&Value> {
    let facts = &reading.thread.as_ref().ok()?.facts;
    facts.first().map(|(_, state)| state)
}

/// The traces of a process's threads that execute JavaScript, or why there is none.
fn contexts_of(mut process: Process) -> Vec<Result<String, String>> {
    let present = process.runtimes().unwrap();
    let threads = process.threads().unwrap();
    let states = threads.iter().map(|thread| thread.state(&present, None));
    let readings = states.flat_map(|state| state.unwrap().runtimes);
    let trace = |reading: RuntimeReading| match reading.thread {
        Ok(thread) => Ok(thread.context.attached().unwrap().trace_id.to_string()),
        Err(error) => Err(error.to_string()),
    };
    readings.map(trace).collect()
}

/// Compares each thread with what the program says about it.
fn compare(mut process: Process, target: &Target, name: &str) {
    let present = process.runtimes().unwrap();
    let [node] = &present[..] else {
        panic!("{name}: {present:?}")
    };
    let facts = node.process.as_ref().unwrap().facts();
    let version = target
        .lines
        .iter()
        .find_map(|it| it.strip_prefix("version "));
    let version = Value::String(version.unwrap().to_owned());
    assert_eq!(facts, [("version".to_owned(), version)], "{name}");
    let mut cases = 0;
    for thread in process.threads().unwrap() {
        let tid = format!("thread {} ", thread.tid());
        let said = target.lines.iter().find_map(|it| it.strip_prefix(&tid));
        // On a busy machine, a thread may not stop in time.
        let mut states = (0..10).map(|_| thread.state(&present, None));
        let state = states.find_map(Result::ok).expect("it stops");
        let reading = state.runtimes.first();
        let Some(said) = said else {
            // Threads of V8 and libuv execute no JavaScript, and the main thread waits outside of any call.
            let is_main = thread.tid() == target.pid();
            let outside = Value::String("no_frame".into());
            let is_outside = is_main && reading.and_then(state_of) == Some(&outside);
            assert!(state.runtimes.is_empty() || is_outside, "{name}: {state:?}");
            continue;
        };
        let read = reading.map(|it| it.thread.as_ref().unwrap());
        let fact = reading.and_then(state_of).cloned();
        let seen = match read.map(|it| &it.context) {
            None => "none".to_owned(),
            Some(Found::Attached(context)) => shown(context),
            // The own package tries at load whether it works.
            Some(Found::Detached) if name.ends_with("otelctx") && said == "none" => said.to_owned(),
            Some(Found::Detached) => {
                assert_eq!(fact, Some(Value::String("detached".into())), "{name}");
                "detached".to_owned()
            }
            Some(Found::Invalid) => {
                assert_eq!(fact, Some(Value::String("invalid".into())), "{name}");
                "invalid".to_owned()
            }
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(seen, said, "{name}");
        cases += 1;
    }
    assert_eq!(cases, 5, "{name}: {:?}", target.lines);
}

/// Each combination of Node.js and addon that is installed.
fn each(mut check: impl FnMut(&str, &dyn Fn(&[&str]) -> Command)) {
    for version in VERSIONS {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        for addon in ADDONS {
            let name = format!("Node.js {version}, addon {addon}");
            let command = |arguments: &[&str]| {
                let mut command = node.publishing(&[], addon)?;
                command.args(arguments);
                Some(command)
            };
            if command(&[]).is_some() {
                check(&name, &|arguments| command(arguments).unwrap());
            }
        }
    }
}

#[test]
fn threads_have_the_contexts_that_addons_publish() {
    each(|name, command| {
        for arguments in [&["hold"][..], &["hold", "sleep"]] {
            let target = Target::spawn(&mut command(arguments));
            compare(open(target.pid()), &target, name);
        }
    });
}

/// No room is kept free for libraries that are loaded later.
const DYNAMIC: (&str, &str) = ("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");

/// `contexts.js` with the own package, whose variable is in dynamic storage: `@datadog/pprof` is linked so that its
/// variable is always in static storage.
fn spawn_dynamic(version: &str, arguments: &[&str]) -> Option<Target> {
    let mut command = Node::with_version(version)?.publishing(&[], "otelctx")?;
    command.env(DYNAMIC.0, DYNAMIC.1);
    let target = Target::spawn(command.args(arguments));
    let process = open(target.pid());
    let memory = process.as_target().unwrap();
    let resolution = tls::resolve_sized(&*memory, &FileCache::default(), NODEJS_SYMBOL, 32);
    let variables = resolution.unwrap().variables;
    let places: Vec<_> = variables.iter().map(TlsVariable::place).collect();
    assert!(matches!(places[..], [Place::Dynamic { .. }]), "{places:?}");
    Some(target)
}

#[test]
fn contexts_are_read_from_dynamic_storage() {
    for version in VERSIONS {
        let Some(target) = spawn_dynamic(version, &["hold"]) else {
            continue;
        };
        let process = open(target.pid());
        compare(process, &target, &format!("Node.js {version}, otelctx"));
    }
}

#[test]
fn core_files_have_the_contexts_of_threads() {
    let Some(node) = Node::find() else { return };
    let Some(mut command) = node.publishing(&[], "5.20") else {
        return;
    };
    let directory = CoreDirectory::new();
    let target = Target::spawn(command.arg("hold"));
    let Some(core) = directory.gcore(&target) else {
        return;
    };
    let core = CoreFile::open(&core, Path::new("/")).unwrap();
    let mut options = Options::default();
    options.runtimes = runtimes();
    let mut process = Process::of_target(core, options);
    process.context().unwrap();
    compare(process, &target, "core file");
}

/// The output of a program: times in nanoseconds of `CLOCK_MONOTONIC`.
struct Log {
    /// The times of its contexts.
    contexts: Vec<(u64, u64)>,
    /// The times at which it collected garbage.
    collections: Vec<(u64, u64)>,
}

impl Log {
    fn of(target: &mut Target) -> Self {
        target.command("log");
        let words =
            |line: &str| -> Vec<u64> { line.split(' ').map(|it| it.parse().unwrap()).collect() };
        let contexts = target.lines.iter().filter_map(|it| it.strip_prefix("in "));
        let contexts = contexts.enumerate().map(|(number, line)| {
            let words = words(line);
            assert_eq!(words[0], number as u64);
            (words[1], words[2])
        });
        let collections = target.lines.iter().filter_map(|it| it.strip_prefix("gc "));
        let collections = collections.map(|line| {
            let words = words(line);
            (words[0], words[1])
        });
        Self {
            contexts: contexts.collect(),
            collections: collections.collect(),
        }
    }

    /// The number of the interval that contains a time.
    fn find(intervals: &[(u64, u64)], time: u64) -> Option<usize> {
        let next = intervals.partition_point(|&(from, _)| from <= time);
        let number = next.checked_sub(1)?;
        (time < intervals[number].1).then_some(number)
    }
}

/// Numbers of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Compared {
    samples: usize,
    in_context: usize,
    /// Samples that were compared while garbage was collected.
    in_collection: usize,
    /// Samples with another context than the program's.
    wrong: usize,
    /// Samples without a context.
    not_in_frame: usize,
    /// Samples whose record was invalid or could not be read, or which published nothing.
    unreadable: usize,
}

impl Compared {
    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.in_context += other.in_context;
        self.in_collection += other.in_collection;
        self.wrong += other.wrong;
        self.not_in_frame += other.not_in_frame;
        self.unreadable += other.unreadable;
    }

    /// Prints the numbers on a line, and checks them.
    fn check(&self, name: &str) {
        let Self {
            samples,
            in_context,
            in_collection,
            wrong,
            not_in_frame,
            unreadable,
        } = self;
        println!(
            "{name}: {samples} samples, {in_context} in a context, {in_collection} inside a \
             collection: {wrong} wrong, {not_in_frame} not in frame, {unreadable} unreadable"
        );
        assert_eq!((*wrong, *not_in_frame), (0, 0), "{name}");
        assert!(unreadable * 1000 <= *in_context, "{name}: {unreadable}");
    }

    /// Checks the numbers of a whole soak.
    fn check_number(&self, name: &str) {
        let is_enough = self.samples >= 100_000 && self.in_context >= 50_000;
        assert!(
            is_enough && self.in_collection >= 10_000,
            "{name}: {self:?}"
        );
    }
}

/// Samples a process. `None`, with a line, where the kernel does not permit it.
fn start(pid: i32, frequency: u32, without_ebpf: bool) -> Option<Sampler> {
    let mut options = otelctx_sampler::Options::new(Targets::Processes(vec![pid]));
    options.frequency = frequency;
    options.without_ebpf = without_ebpf;
    options.runtimes = runtimes();
    options.kernel_object = Some(KernelObject(otelctx_fixtures::kernel::PROGRAMS));
    let sampler = Sampler::start(&options).unwrap();
    if !without_ebpf {
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    }
    Some(sampler)
}

/// The times that a program runs and is sampled.
#[derive(Clone, Copy)]
struct Durations {
    /// The time that the program runs, in seconds.
    running: u32,
    sampling: Duration,
}

const SHORT: Durations = Durations {
    running: 2,
    sampling: Duration::from_secs(1),
};
const LONG: Durations = Durations {
    running: 10,
    sampling: Duration::from_secs(9),
};

/// Factors for the durations of programs that are sampled in turn: on a busy machine, one may have ended before its
/// sampling begins, or have run for a fraction of the time.
fn lengths() -> impl Iterator<Item = u32> {
    (0..80).map(|attempt| (1 + attempt / 4).min(5))
}

/// The context with this number of a program that goes from one to the next (`switch` in `contexts.js`).
fn context_of_number(number: usize, flags: u8) -> String {
    let byte = 0xa0 + number % 16;
    let trace = format!("{}{number:08x}", format!("{byte:02x}").repeat(12));
    format!("{trace} b0b0b0b0{number:08x} {flags} http.route=/{number}")
}

/// Samples a program that goes from context to context, and compares those of them that were taken in a context, by
/// the program's log, with it. `None`, with a line, where the kernel does not permit it.
fn sample(command: &mut Command, sampling: Duration, without_ebpf: bool) -> Option<Compared> {
    // The version without flags.
    let is_old = command
        .get_args()
        .any(|it| it.to_string_lossy().contains("5.18"));
    let flags = u8::from(!is_old);
    let mut target = Target::spawn(command);
    let frequency = if without_ebpf { 99 } else { 4999 };
    let mut sampler = start(target.pid(), frequency, without_ebpf)?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let begin = Instant::now();
    while begin.elapsed() < sampling {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let mut compared = Compared {
        samples: samples.len(),
        ..Compared::default()
    };
    let incomplete = sampler.incomplete_steps();
    drop(sampler);
    if !incomplete.is_empty() {
        println!("{incomplete:?}");
    }
    let log = Log::of(&mut target);
    for sample in &samples {
        if catalog.thread_facts(sample.thread).tid != target.pid() {
            // V8's own threads execute no JavaScript.
            assert_eq!(sample.found, Found::NotPublished);
            continue;
        }
        let Some(number) = Log::find(&log.contexts, sample.time) else {
            continue;
        };
        compared.in_context += 1;
        let collects = Log::find(&log.collections, sample.time).is_some();
        compared.in_collection += usize::from(collects);
        match sample.found {
            Found::Attached(context) => {
                let published = shown(catalog.context_facts(context));
                compared.wrong += usize::from(published != context_of_number(number, flags));
            }
            Found::Detached => compared.not_in_frame += 1,
            // `NotPublished`, too, if the step was incomplete.
            _ => compared.unreadable += 1,
        }
    }
    Some(compared)
}

/// Samples new programs until there are that many samples in a context.
fn sample_at_least(
    name: &str,
    command: &dyn Fn(&[&str]) -> Command,
    without_ebpf: bool,
    wanted: usize,
) -> Compared {
    sample_programs(
        name,
        &|running| command(&["switch", running]),
        without_ebpf,
        SHORT,
        &|compared| compared.in_context >= wanted,
    )
}

/// The same for programs that run for that many seconds, until the samples are enough.
fn sample_programs(
    name: &str,
    command: &dyn Fn(&str) -> Command,
    without_ebpf: bool,
    durations: Durations,
    is_enough: &dyn Fn(&Compared) -> bool,
) -> Compared {
    let mut compared = Compared::default();
    for times in lengths() {
        let running = (times * durations.running).to_string();
        let sampling = times * durations.sampling;
        let Some(more) = sample(&mut command(&running), sampling, without_ebpf) else {
            return compared;
        };
        compared.add(more);
        if is_enough(&compared) {
            break;
        }
    }
    compared.check(name);
    assert!(is_enough(&compared), "{name}: {compared:?}");
    compared
}

#[test]
fn samples_have_the_contexts_that_the_program_was_in() {
    each(|name, command| {
        let wanted = match name {
            "Node.js 24, addon 5.20" | "Node.js 24, addon otelctx" => {
                tier::usual_or_all(1000, 10_000)
            }
            _ => 500,
        };
        sample_at_least(name, command, false, wanted);
    });
}

#[test]
fn samples_without_ebpf_have_the_contexts_that_the_program_was_in() {
    let Some(node) = Node::find() else { return };
    if node.publishing(&[], "5.20").is_some() {
        let command = |arguments: &[&str]| {
            let mut command = node.publishing(&[], "5.20").unwrap();
            command.args(arguments);
            command
        };
        sample_at_least("ptrace", &command, true, 100);
    }
}

#[test]
fn samples_have_the_state_of_each_thread() {
    each(|name, command| {
        let target = Target::spawn(&mut command(&["hold"]));
        sample_each_thread(&target, name);
    });
}

#[test]
fn samples_are_taken_from_dynamic_storage() {
    for version in VERSIONS {
        let Some(target) = spawn_dynamic(version, &["hold"]) else {
            continue;
        };
        sample_each_thread(&target, &format!("Node.js {version}, dynamic, otelctx"));
        drop(target);
        let node = Node::with_version(version).unwrap();
        let command = |arguments: &[&str]| {
            let mut command = node.publishing(&[], "otelctx").unwrap();
            command.env(DYNAMIC.0, DYNAMIC.1).args(arguments);
            command
        };
        let name = format!("Node.js {version}, dynamic storage");
        sample_at_least(&name, &command, false, 500);
    }
}

/// Samples until each thread of which the program says something was seen, and compares all samples with that.
fn sample_each_thread(target: &Target, name: &str) {
    let Some(mut sampler) = start(target.pid(), 499, false) else {
        return;
    };
    let said = |tid: i32| {
        let tid = format!("thread {tid} ");
        target.lines.iter().find_map(|it| it.strip_prefix(&tid))
    };
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let mut seen = BTreeSet::new();
    for _ in 0..600 {
        std::thread::sleep(INTERVAL);
        samples.clear();
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        for sample in &samples {
            let tid = catalog.thread_facts(sample.thread).tid;
            let Some(said) = said(tid) else { continue };
            let read = match sample.found {
                Found::Attached(context) => shown(catalog.context_facts(context)),
                // The own package tries at load whether it works.
                Found::Detached if name.ends_with("otelctx") && said == "none" => "none".to_owned(),
                Found::Detached => "detached".to_owned(),
                Found::Invalid => "invalid".to_owned(),
                Found::NotPublished => "none".to_owned(),
                other => panic!("{name}: {other:?} of {said}"),
            };
            assert_eq!(read, said, "{name}");
            seen.insert(tid);
        }
        if seen.len() == 5 {
            return;
        }
    }
    panic!("{name}: {seen:?} of {:?}", target.lines);
}

/// `node_heap.c`, which publishes what an addon does.
fn heap(flags: &[&str]) -> Option<Target> {
    let common = ["-O1", "-pthread", "-rdynamic", "-DSCHEMA=\"nodejs_v1_dev\""];
    let flags = [&common, flags].concat();
    let program = Compiler::gcc().program(&["node_heap.c", "publish.c"], &flags)?;
    Some(Target::spawn(&mut Command::new(program)))
}

/// The outcomes of this number of samples of the thread that spins, and how many samples lack the part of Node.js.
fn outcomes(target: &Target, without_ebpf: bool, wanted: usize) -> Option<(Vec<String>, u64)> {
    let frequency = if wanted > 100 { 4999 } else { 199 };
    let mut sampler = start(target.pid(), frequency, without_ebpf)?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    for _ in 0..600 {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        samples.retain(|sample| catalog.thread_facts(sample.thread).tid != target.pid());
        if samples.len() >= wanted {
            break;
        }
    }
    let outcome = |sample: &Sample| match sample.found {
        Found::Attached(context) => catalog.context_facts(context).trace_id.to_string(),
        other => format!("{other:?}"),
    };
    let outcomes = samples.iter().map(outcome).collect();
    Some((outcomes, sampler.counts().incomplete_steps))
}

#[test]
fn a_table_may_end_with_its_page() {
    let Some(target) = heap(&[]) else { return };
    const TRACE: &str = "a1020300000000000000000000000000";
    let process = open(target.pid());
    let read = contexts_of(process);
    assert_eq!(read, [Ok(TRACE.to_owned())]);
    for without_ebpf in [false, true] {
        let Some((outcomes, incomplete)) = outcomes(&target, without_ebpf, 20) else {
            continue;
        };
        assert!(outcomes.len() >= 20, "{outcomes:?}");
        assert!(outcomes.iter().all(|it| it == TRACE), "{outcomes:?}");
        assert_eq!(incomplete, 0);
    }
}

/// `node_gate.c`, whose thread publishes one of two contexts or nothing, in turn.
const GATE_TRACES: [&str; 2] = [
    "a0020300000000000000000000000000",
    "a1020300000000000000000000000000",
];

fn gate() -> Option<Target> {
    let flags = ["-O1", "-pthread", "-rdynamic", "-DSCHEMA=\"nodejs_v1_dev\""];
    let program = Compiler::gcc().program(&["node_gate.c", "publish.c"], &flags)?;
    Some(Target::spawn(&mut Command::new(program)))
}

/// Reads the thread whose gate changes 500 times, and on until `expected` were seen: traces, and "" for none.
fn read_gate(process: &mut Process, expected: &BTreeSet<&str>) {
    let present = process.runtimes().unwrap();
    let pid = process.as_target().unwrap().pid();
    let threads = process.threads().unwrap();
    let thread = threads.iter().find(|it| Some(it.tid()) != pid).unwrap();
    let mut seen = BTreeSet::new();
    for turn in 0.. {
        if turn >= 500 && seen.len() == expected.len() {
            break;
        }
        assert!(turn < 100_000, "{seen:?}");
        // On a busy machine, it may not stop in time.
        let Ok(state) = thread.state(&present, None) else {
            continue;
        };
        let trace = match &state.runtimes[..] {
            [] => String::new(),
            [reading] => {
                let read = reading.thread.as_ref();
                let read = read.unwrap_or_else(|error| panic!("{turn}: {error}"));
                let context = read.context.attached();
                let context = context.unwrap_or_else(|| panic!("{turn}: {read:?}"));
                context.trace_id.to_string()
            }
            more => panic!("{more:?}"),
        };
        assert!(expected.contains(&*trace), "{turn}: {trace:?}");
        seen.insert(trace);
    }
}

/// The structure is read again each time: with one context's gate and the other one's key, nothing is found.
#[test]
fn a_gate_that_closes_and_opens_is_read_each_time() {
    let Some(mut target) = gate() else { return };
    let mut process = open(target.pid());
    let [first, second] = GATE_TRACES;
    read_gate(&mut process, &BTreeSet::from([first, second, ""]));
    target.command("close");
    read_gate(&mut process, &BTreeSet::from([""]));
    target.command("open");
    read_gate(&mut process, &BTreeSet::from([first, second, ""]));
}

#[test]
fn samples_of_a_gate_that_closes_and_opens_are_one_context_or_none() {
    for (without_ebpf, wanted) in [(false, 1000), (true, 40)] {
        let Some(mut target) = gate() else { return };
        for command in ["open", "close", "open"] {
            target.command(command);
            let Some((outcomes, incomplete)) = outcomes(&target, without_ebpf, wanted) else {
                break;
            };
            let mut counts = BTreeMap::<&str, usize>::new();
            for outcome in &outcomes {
                *counts.entry(outcome).or_default() += 1;
            }
            println!("{command}, without eBPF: {without_ebpf}: {counts:?}");
            let [first, second] = GATE_TRACES;
            let expected = match command {
                "open" => vec!["NotPublished", first, second],
                _ => vec!["NotPublished"],
            };
            assert_eq!(counts.into_keys().collect::<Vec<_>>(), expected);
            assert!(outcomes.len() >= wanted && incomplete == 0, "{incomplete}");
        }
    }
}

/// The output of a handler: the trace and the route of its request, and the start and end of its computation.
type Handled = (String, String, u64, u64);

/// Services of express and of fastify with OpenTelemetry's instrumentation, which know nothing of the package that publishes
/// their requests.
#[test]
fn samples_of_a_handler_have_the_trace_and_the_route_of_its_request() {
    for version in VERSIONS {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        // On a busy machine, it takes longer until there are enough samples of each.
        let mut compared = BTreeMap::new();
        let is_enough = [5, 20, 60].into_iter().any(|seconds| {
            let Some(samples) = samples_of_handlers(&node, version, seconds) else {
                return true;
            };
            compared = samples;
            compared.len() == 5 && compared.values().all(|samples| *samples >= 100)
        });
        assert!(is_enough, "{version}: {compared:?}");
    }
}

/// Compares samples for this time, and returns their number for each route. `None` if they cannot be taken.
fn samples_of_handlers(
    node: &Node,
    version: &str,
    seconds: u64,
) -> Option<BTreeMap<String, usize>> {
    let mut command = node.instrumented()?;
    let mut target = Target::spawn(command.arg(seconds.to_string()));
    let mut sampler = start(target.pid(), 997, false)?;
    let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(seconds - 2) {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    drop(sampler);
    target.command("log");
    let lines = target.lines.iter().filter_map(|it| it.strip_prefix("in "));
    let words = |line: &str| -> Handled {
        let words: Vec<&str> = line.split(' ').collect();
        let time = |at: usize| words[at].parse().unwrap();
        (words[0].to_owned(), words[1].to_owned(), time(2), time(3))
    };
    let handled: Vec<Handled> = lines.map(words).collect();
    let mut compared = BTreeMap::<String, usize>::new();
    for sample in &samples {
        if catalog.thread_facts(sample.thread).tid != target.pid() {
            continue;
        }
        let next = handled.partition_point(|&(_, _, from, _)| from <= sample.time);
        let Some((trace, route, _, to)) = next.checked_sub(1).map(|it| &handled[it]) else {
            continue;
        };
        if sample.time >= *to {
            continue;
        }
        let Found::Attached(context) = sample.found else {
            panic!("{version}: {:?} in {trace}", sample.found)
        };
        let context = catalog.context_facts(context);
        assert_eq!(context.trace_id.to_string(), *trace, "{version}");
        let shown = shown(context);
        let published = format!(" http.route={route}");
        assert!(shown.ends_with(&published), "{version}: {shown}");
        *compared.entry(route.clone()).or_default() += 1;
    }
    println!("{version}: {compared:?} of {} samples", samples.len());
    Some(compared)
}

/// Takes `OTELCTX_SOAK_SAMPLES` samples in a context in each row, by default 500. All objects move in each of the
/// collections that the program requests. With a young key, the collections move the key and the map that lead to the
/// addon's context.
#[test]
fn samples_have_their_contexts_while_all_objects_move() {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let (wanted, durations, is_soak) = match number {
        Ok(number) => (number.parse().unwrap(), LONG, true),
        Err(_) => (500, SHORT, false),
    };
    const MOVING: &[&str] = &["--expose-gc", "--compact-on-every-full-gc"];
    for version in VERSIONS {
        let Some(node) = Node::with_version(version) else {
            continue;
        };
        let mut all = Compared::default();
        for (addon, key) in [("5.20", "old"), ("otelctx", "old"), ("5.20", "young")] {
            for flags in [MOVING, &[]] {
                if node.publishing(flags, addon).is_none() {
                    continue;
                }
                let command = |running: &str| {
                    let mut command = node.publishing(flags, addon).unwrap();
                    command.args(["switch", running, key]);
                    command
                };
                let name = format!("Node.js {version}, addon {addon}, {key} key {flags:?}");
                // Objects move in the collections that the program asks for.
                let moving = if flags.is_empty() { 0 } else { wanted / 4 };
                let compared = sample_programs(&name, &command, false, durations, &|compared| {
                    compared.in_context >= wanted && compared.in_collection >= moving
                });
                if is_soak && key == "young" && flags == MOVING {
                    compared.check_number(&name);
                }
                all.add(compared);
            }
        }
        let name = format!("Node.js {version}, all");
        all.check(&name);
        if is_soak {
            all.check_number(&name);
        }
    }
}
