//! Processes from their first instruction to their end, by eBPF and by ptrace.

use std::collections::HashSet;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_reader::remote::Error as RemoteError;
use otelctx_sampler::sample::{Catalog, Sample};
use otelctx_sampler::{Error, INTERVAL, Method, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

/// Of a processor, as many as a tick of the kernel's clock takes.
const FREQUENCY: u32 = 100;

/// Both ways to look, where there are both.
fn both(pid: i32) -> [Options; 2] {
    [false, true].map(|without_ebpf| {
        let mut options = Options::new(Targets::Processes(vec![pid]));
        options.frequency = FREQUENCY;
        options.without_ebpf = without_ebpf;
        options
    })
}

/// A shell that counts on request, and whose end is not reported.
fn counting(to: u32) -> Target {
    let mut command = Command::new("sh");
    let script = format!("echo ready; read line; echo done; {}", count(to));
    Target::spawn(command.args(["-c", &script]))
}

/// What takes a shell some 0.7 µs a turn, and is over at some time.
fn count(to: u32) -> String {
    let to = if is_emulated() { to / 20 } else { to };
    format!("i=0; while [ $i -lt {to} ]; do i=$((i+1)); done")
}

/// State and, in ticks, processor time.
fn state(pid: i32) -> (String, u64) {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = text.rsplit_once(')').unwrap();
    // From the third on.
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |number: usize| fields[number - 3].parse::<u64>().unwrap();
    (fields[0].to_owned(), number(14) + number(15))
}

/// Waits until a process has ended that tells so before, and returns what it has run, in ticks.
fn zombie(pid: i32) -> u64 {
    let begin = Instant::now();
    loop {
        let (state, ticks) = state(pid);
        if state == "Z" {
            return ticks;
        }
        assert!(begin.elapsed() < TIMEOUT, "{state}");
        std::thread::sleep(INTERVAL);
    }
}

/// As the kernel accounts it, whether the process has run before or not.
#[test]
fn all_that_a_process_runs_is_sampled_or_counted_as_lost() {
    for way in 0..2 {
        let mut target = counting(1_000_000);
        let options = &both(target.pid())[way];
        let mut sampler = Sampler::start(options).unwrap();
        let method = sampler.method().clone();
        target.command("go");
        let (mut catalog, begin) = (Catalog::new(), Instant::now());
        // Nobody waits for it.
        while sampler.has_targets() {
            assert!(begin.elapsed() < TIMEOUT, "{method}");
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |_| {});
        }
        let ticks = zombie(target.pid());
        let counts = sampler.stop(&mut catalog, &mut |_| {}).counts;
        let seen = counts.samples() + counts.lost;
        eprintln!("{method}: {seen} of {ticks} ticks, {counts:?}");
        assert!(ticks > 20, "{method}: {ticks}");
        // A clock meets who just runs, more often or less. What was run since the last look, of a
        // busy machine, is missing by ptrace. An emulated machine's clocks sometimes stop.
        let least = match (&method, is_emulated()) {
            (_, true) => 1,
            (Method::Ptrace(_), _) => ticks * 3 / 4,
            _ => ticks / 2,
        };
        assert!(seen >= least, "{method}: {seen} of {ticks}, {counts:?}");
    }
}

#[test]
fn of_a_targets_children_those_are_sampled_that_it_starts_meanwhile() {
    for way in 0..2 {
        let child = format!("({}) &", count(5_000_000));
        let script = format!("{child} echo ready; read line; {child} echo done; read line");
        let mut target = Target::spawn(Command::new("sh").args(["-c", &script]));
        let parent = target.pid();
        let older = target.child_pid();
        let mut sampler = Sampler::start(&both(parent)[way]).unwrap();
        target.command("go");
        let (mut catalog, mut pids) = (Catalog::new(), HashSet::new());
        let begin = Instant::now();
        while pids.is_subset(&HashSet::from([parent])) {
            assert!(begin.elapsed() < TIMEOUT, "{}", sampler.method());
            std::thread::sleep(INTERVAL);
            let mut samples = Vec::new();
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
            let process = |sample: &Sample| catalog.thread_facts(sample.thread).process;
            pids.extend(samples.iter().map(|it| catalog.process(process(it)).pid));
        }
        assert!(!pids.contains(&older), "{}", sampler.method());
    }
}

#[test]
fn children_that_were_started_since_the_targets_were_chosen_are_sampled() {
    for way in 0..2 {
        let child = format!("({}) & echo child $!;", count(5_000_000));
        // One of them is a grandchild.
        let script = format!("{child} {child} sh -c '{child} echo ready; read line'");
        let target = Target::spawn(Command::new("bash").args(["-c", &script]));
        let parent = target.pid();
        let children = target
            .lines
            .iter()
            .map(|line| line.strip_prefix("child ").unwrap().parse().unwrap());
        let children: Vec<i32> = children.collect();
        let [older, new, grandchild] = children[..] else {
            panic!("{children:?}");
        };
        let mut options = both(parent)[way].clone();
        options.older_children = Some(vec![older]);
        let mut sampler = Sampler::start(&options).unwrap();
        let (mut catalog, mut pids) = (Catalog::new(), HashSet::new());
        let begin = Instant::now();
        while !(pids.contains(&new) && pids.contains(&grandchild)) {
            assert!(begin.elapsed() < TIMEOUT, "{}: {pids:?}", sampler.method());
            std::thread::sleep(INTERVAL);
            let mut samples = Vec::new();
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
            let process = |sample: &Sample| catalog.thread_facts(sample.thread).process;
            pids.extend(samples.iter().map(|it| catalog.process(process(it)).pid));
        }
        assert!(!pids.contains(&older), "{}", sampler.method());
        // The shell ends with its standard input, and leaves them.
        for child in children {
            // SAFETY: it has no preconditions. They have not ended, so nobody else has their IDs.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
    }
}

#[test]
fn a_process_that_has_ended_is_refused() {
    let mut target = counting(1);
    target.command("go");
    zombie(target.pid());
    for options in both(target.pid()) {
        match Sampler::start(&options) {
            Err(Error::Reader(otelctx_reader::Error::Remote(why)) | Error::Remote(why)) => {
                assert!(matches!(why, RemoteError::NoSuchProcess { .. }), "{why}");
            }
            Err(why) => panic!("{why}"),
            Ok(_) => panic!("{options:?}"),
        }
    }
}

/// Each process that is read takes descriptors, with either method.
#[test]
fn sampling_raises_the_limit_on_descriptors() {
    let target = counting(1);
    for options in both(target.pid()) {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the structure is valid during the calls.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
            limit.rlim_cur = limit.rlim_max - 1;
            assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
        }
        let sampler = Sampler::start(&options).unwrap();
        // SAFETY: as above.
        let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
        assert_eq!(result, 0);
        assert_eq!(limit.rlim_cur, limit.rlim_max, "{}", sampler.method());
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// The kernel stops verifying a program when its thread gets a signal.
#[test]
fn programs_are_loaded_while_signals_arrive() {
    let target = counting(1);
    let [options, _] = both(target.pid());
    let sampler = Sampler::start(&options).unwrap();
    if Feature::Ebpf
        .or_skip(sampler.method().require_ebpf())
        .is_none()
    {
        return;
    }
    // SAFETY: the handler does nothing.
    unsafe { libc::signal(libc::SIGUSR1, ignore as *const () as libc::sighandler_t) };
    // SAFETY: it has no preconditions.
    let thread = unsafe { libc::pthread_self() };
    let is_loaded = AtomicBool::new(false);
    let method = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_loaded.load(Ordering::Relaxed) {
                // SAFETY: the thread waits for this one.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let sampler = Sampler::start(&options);
        is_loaded.store(true, Ordering::Relaxed);
        sampler.unwrap().method().to_string()
    });
    assert_eq!(method, "eBPF");
}
