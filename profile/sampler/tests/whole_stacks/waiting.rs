//! Stacks of threads that wait, in programs that people have, reach the start.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Instant;

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_fixtures::{GoBuild, Node, cargo_built, go_program, tier, wait_until_loaded};
use otelctx_sampler::sample::{Catalog, Event, Frame, Sample, StackEnd};
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets};

use super::{COMPLETE, Program, TIMEOUT, is_installed, reaches_start};

/// Consecutive stacks that are no longer than what is copied of them: the sampler copies more and more at the start, until
/// that is enough.
const IN_FULL: usize = 300;
/// Maximum number of stacks until then.
const MAX_BEFORE: usize = 5000;

/// Stacks of waits, each of which counts once.
#[derive(Default)]
struct Stacks {
    /// Stacks since one was longer than its copy, until [`IN_FULL`].
    in_full: usize,
    before: usize,
    /// The waits that were counted, by their threads and starts.
    seen: BTreeSet<(u32, u64)>,
    by_end: Vec<(StackEnd, u64)>,
    /// Complete ones whose last frame is not where a program or a thread starts.
    elsewhere: Vec<Vec<Frame>>,
    /// Some that are not complete.
    others: Vec<(StackEnd, Vec<String>)>,
}

impl Stacks {
    fn add(&mut self, catalog: &Catalog, sample: &Sample, has_known_start: bool) {
        let Event::OffCpu(off) = sample.event else {
            panic!("{sample:?}");
        };
        // Others were thrown away, or not read.
        let Some(end) = sample.stack_end else { return };
        let thread = catalog.thread_facts(sample.thread).tid as u32;
        if off.since == 0 || !self.seen.insert((thread, off.since)) {
            return;
        }
        if self.in_full < IN_FULL && self.before < MAX_BEFORE {
            self.before += 1;
            let is_cut = end == StackEnd::Unreadable;
            self.in_full = if is_cut { 0 } else { self.in_full + 1 };
            self.seen.clear();
            return;
        }
        match self.by_end.iter_mut().find(|it| it.0 == end) {
            Some((_, count)) => *count += 1,
            None => self.by_end.push((end, 1)),
        }
        if end != StackEnd::Start {
            if self.others.len() < 10 {
                self.others.push((end, described(catalog, sample)));
            }
        } else if has_known_start && reaches_start(catalog, sample) == Some(false) {
            self.elsewhere
                .push(catalog.frames(sample.user_stack).cloned().collect());
        }
    }
}

/// The places of a stack's frames: files and offsets.
fn described(catalog: &Catalog, sample: &Sample) -> Vec<String> {
    let process = catalog.thread_facts(sample.thread).process;
    let place = |frame: &Frame| {
        let Some(address) = frame.address() else {
            return format!("{frame:?}");
        };
        let mut mappings = catalog.process(process).mappings.iter();
        let mapping = mappings.find(|it| (it.start..it.end).contains(&address));
        mapping.map_or_else(
            || format!("{address:#x}"),
            |it| {
                let path = &catalog.module_facts(it.module).path;
                format!("{path}+{:#x}", address - it.start + it.offset)
            },
        )
    };
    catalog.frames(sample.user_stack).map(place).collect()
}

/// A process and its children, and theirs.
fn with_children(pid: i32) -> Vec<i32> {
    // One may have ended.
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let children = children.split_whitespace().map(|it| it.parse().unwrap());
    [pid]
        .into_iter()
        .chain(children.flat_map(with_children))
        .collect()
}

/// Begins to scan a process and its children. `None`, with a line, where the kernel does not permit it.
fn scan(pid: i32) -> Option<Sampler> {
    if is_emulated() {
        return None;
    }
    let mut options = Options::new(Targets::Processes(with_children(pid)));
    options.wall_frequency = Some(250);
    options.on_cpu = false;
    options.kernel_stacks = false;
    let sampler = match Sampler::start(&options) {
        Err(Error::Waits(refusal)) => return Feature::Ebpf.or_skip(Err(refusal)),
        started => started.unwrap(),
    };
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
    Some(sampler)
}

/// Scans a process and its children, and checks that nearly all stacks of their waits reach the start. If
/// `has_known_start`, each one that does ends where a program or a thread starts.
fn check(name: &str, pid: i32, has_known_start: bool) {
    check_ends(name, pid, has_known_start, (COMPLETE, &[StackEnd::Start]));
}

/// Does what [`check`] does, where this share of the stacks, percent, has to end for these reasons.
fn check_ends(name: &str, pid: i32, has_known_start: bool, (share, ends): (u64, &[StackEnd])) {
    let Some(mut sampler) = scan(pid) else { return };
    let (mut catalog, mut stacks) = (Catalog::new(), Stacks::default());
    let wanted = tier::usual_or_all(500, 3000);
    let start = Instant::now();
    while stacks.seen.len() < wanted {
        assert!(start.elapsed() < TIMEOUT, "{name}: {}", stacks.seen.len());
        std::thread::sleep(INTERVAL);
        let mut new = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        for sample in &new {
            stacks.add(&catalog, sample, has_known_start);
        }
    }
    let (all, by_end) = (stacks.seen.len() as u64, &stacks.by_end);
    let whole = by_end.iter().filter(|it| ends.contains(&it.0));
    let whole: u64 = whole.map(|it| it.1).sum();
    eprintln!("{name}: {whole} of {all} stacks of waits end as they should: {by_end:?}");
    assert!(
        stacks.elsewhere.is_empty(),
        "{name}: {:x?}",
        stacks.elsewhere
    );
    assert!(
        100 * whole >= share * all,
        "{name}: {by_end:?}: {:#?}",
        stacks.others
    );
}

/// Threads that sleep, and wait for each other, deep in functions and in callbacks of C; `select.select` has 49 KiB on the stack.
const PYTHON: &str = "
import queue, select, socket, threading, time
def nested(depth, call):
    return nested(depth - 1, call) if depth else call()
def sleep():
    time.sleep(0.002)
def callback():
    sorted([2, 1], key=lambda item: time.sleep(0.001) or item)
def poll():
    select.poll().poll(2)
def select_one():
    select.select([], [], [], 0.002)
def lock():
    held.acquire(timeout=0.002)
def receive():
    try:
        empty.get(timeout=0.003)
    except queue.Empty:
        pass
def echo():
    here, there = socket.socketpair()
    def answer():
        while True:
            there.send(there.recv(16))
            time.sleep(0.001)
    threading.Thread(target=answer, daemon=True).start()
    while True:
        here.send(b'text')
        here.recv(16)
held = threading.Lock()
held.acquire()
empty = queue.Queue()
def repeat(call, depth):
    while True:
        nested(depth, call)
for depth, call in enumerate([sleep, callback, poll, select_one, lock, receive]):
    threading.Thread(target=repeat, args=(call, 3 * depth), daemon=True).start()
echo()
";

#[test]
fn waits_of_python_reach_the_start() {
    let path = "/usr/bin/python3";
    if is_installed(path) {
        let program = Program::start(Command::new(path).args(["-c", PYTHON]));
        wait_until_loaded(program.pid());
        check("python3", program.pid(), true);
    }
}

/// Calls from C within each other: their stack is longer than what the program for the kernel copies, and the recorder reads it.
const DEEP: &str = "
import time
def deep(levels):
    sorted([0], key=lambda item: deep(levels - 1) if levels else repeat() or item)
def repeat():
    while True:
        time.sleep(0.05)
deep(40)
";

#[test]
fn a_stack_that_is_longer_than_its_copies_is_read_while_its_thread_waits() {
    let path = "/usr/bin/python3";
    if !is_installed(path) {
        return;
    }
    let program = Program::start(Command::new(path).args(["-c", DEEP]));
    let Some(mut sampler) = scan(program.pid()) else {
        return;
    };
    let (mut catalog, mut lengths) = (Catalog::new(), Vec::new());
    let start = Instant::now();
    while lengths.is_empty() {
        assert!(start.elapsed() < TIMEOUT, "no whole stack");
        std::thread::sleep(INTERVAL);
        let mut new = Vec::new();
        sampler.drain(&mut catalog, &mut |sample| new.push(sample));
        let whole = new
            .iter()
            .filter(|it| it.stack_end == Some(StackEnd::Start));
        let length = |it: &Sample| catalog.frames(it.user_stack).count();
        // Before, it has not called all of them.
        lengths.extend(whole.map(length).filter(|it| *it > 160));
    }
}

const PERL: &str = "
use Socket;
socketpair(my $here, my $there, AF_UNIX, SOCK_STREAM, PF_UNSPEC);
if (!fork) {
    close $here;
    while (sysread($there, my $text, 16)) { select undef, undef, undef, 0.001; syswrite $there, $text }
    exit;
}
close $there;
sub nested { my ($depth, $call) = @_; return $depth ? nested($depth - 1, $call) : $call->() }
for (;;) {
    nested 7, sub { select undef, undef, undef, 0.001 };
    my @sorted = sort { nested 3, sub { select undef, undef, undef, 0.001 }; $a <=> $b } 2, 1;
    syswrite $here, 'text';
    nested 4, sub { sysread $here, my $text, 16 };
    (my $changed = 'text') =~ s/x/select undef, undef, undef, 0.001; 'y'/e;
}
";

#[test]
fn waits_of_perl_reach_the_start() {
    let path = "/usr/bin/perl";
    if is_installed(path) {
        let program = Program::start(Command::new(path).args(["-e", PERL]));
        wait_until_loaded(program.pid());
        check("perl", program.pid(), true);
    }
}

/// Its main thread waits for timers and files, and others for work. Stacks of worker threads are longer than what the program for
/// the kernel copies.
const NODE: &str = "
const { readFile } = require('fs');
function nested(depth, call) { return depth ? nested(depth - 1, call) : call(); }
setInterval(() => nested(5, () => 1), 2);
(function read() { readFile('/proc/self/stat', () => setTimeout(read, 1)); })();
";

#[test]
fn waits_of_node_reach_the_start() {
    let Some(node) = Node::find() else { return };
    // It would make the standard error of the tests non-blocking.
    let mut command = node.program();
    let program = Program::start(command.args(["-e", NODE]).stderr(Stdio::null()));
    wait_until_loaded(program.pid());
    check("node", program.pid(), true);
}

/// A service on tokio that sends itself requests.
#[test]
fn waits_of_a_service_on_tokio_reach_the_start() {
    let Some(program) = cargo_built(&["--bin", "shop"], "shop") else {
        return;
    };
    let program = Program::start(Command::new(program).args(["--load", "127.0.0.1:0"]));
    wait_until_loaded(program.pid());
    check("tokio", program.pid(), true);
}

/// Go's threads and goroutines start in its own code.
#[test]
fn waits_of_go_reach_the_start() {
    if let Some(program) = go_program("waiting.go", &[]) {
        let program = Program::start(&mut Command::new(program));
        wait_until_loaded(program.pid());
        check("go", program.pid(), false);
    }
}

/// The scheduler's stack begins where a goroutine's stack was to grow, if that is put aside instead. What stops all goroutines
/// waits on the scheduler's stack, too, but goes on with its own goroutine's, which is not copied.
#[test]
fn waits_of_a_scheduler_that_puts_goroutines_aside_reach_the_start() {
    // From Go 1.25 on, the frame pointer is cleared there.
    for version in ["1.23.12", ""] {
        let build = GoBuild {
            version,
            architecture: "",
            cgo: false,
            flags: &[],
        };
        let Some(program) = build.build("preempted.go") else {
            continue;
        };
        // Else, signals interrupt them.
        let mut command = Command::new(program);
        let program = Program::start(command.env("GODEBUG", "asyncpreemptoff=1"));
        wait_until_loaded(program.pid());
        let name = format!("go {version}, put aside");
        let ends = [StackEnd::Start, StackEnd::Unreadable];
        check_ends(&name, program.pid(), false, (100, &ends));
    }
}
