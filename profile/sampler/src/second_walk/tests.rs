//! Early stacks of real programs: no rows are ever made, as if they were not ready.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_sample::{Catalog, Counts, Sample, StackEnd};

use super::*;
use crate::{INTERVAL, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
const SAMPLES: u64 = 60;

/// A program that waits for a line, which is killed when dropped.
struct Program(Child, ChildStdin);

impl Program {
    /// `None`, with a line, if it is not installed.
    fn start(command: &[&str]) -> Option<Self> {
        let [program, arguments @ ..] = command else {
            return None;
        };
        let mut started = Command::new(program);
        started.args(arguments).stdin(Stdio::piped());
        let Ok(mut started) = started.stdout(Stdio::piped()).spawn() else {
            eprintln!("skipped: no {program}");
            return None;
        };
        // It writes a byte when it waits.
        let mut byte = [0];
        started
            .stdout
            .as_mut()
            .unwrap()
            .read_exact(&mut byte)
            .unwrap();
        let input = started.stdin.take().unwrap();
        Some(Self(started, input))
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Samples of a program without rows of any file.
struct Early {
    counts: Counts,
    catalog: Catalog,
    samples: Vec<Sample>,
}

/// `None`, with a line, if the program is not installed, or the method is not permitted.
fn record(command: &[&str], options: impl FnOnce(&mut Options), samples: u64) -> Option<Early> {
    let mut program = Program::start(command)?;
    let mut chosen = Options::new(Targets::Processes(vec![program.pid()]));
    (chosen.frequency, chosen.holds_rows) = (499, true);
    options(&mut chosen);
    let mut sampler = Sampler::start(&chosen).unwrap();
    if !chosen.without_ebpf {
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
    }
    program.1.write_all(b"go\n").unwrap();
    let mut early = Early {
        counts: Counts::default(),
        catalog: Catalog::new(),
        samples: Vec::new(),
    };
    let begin = Instant::now();
    while early.counts.all_stacks() < samples {
        assert!(begin.elapsed() < TIMEOUT, "{command:?}: {:?}", early.counts);
        std::thread::sleep(INTERVAL);
        let kept = &mut early.samples;
        sampler.drain(&mut early.catalog, &mut |sample| kept.push(sample));
        early.counts = sampler.counts();
    }
    Some(early)
}

fn not_ready(counts: &Counts) -> u64 {
    let ends = StackEnd::INCOMPLETE.iter().zip(counts.incomplete_stacks);
    let mut ends = ends.filter(|(end, _)| **end == StackEnd::TablesNotReady);
    ends.next().unwrap().1
}

/// Checks that nearly all stacks of a program reach the start without rows, by both methods.
fn check(command: &[&str]) {
    for without_ebpf in [false, true] {
        let set = |options: &mut Options| options.without_ebpf = without_ebpf;
        let Some(Early { counts, .. }) = record(command, set, SAMPLES) else {
            continue;
        };
        // On a busy machine, some walk takes longer than a drain waits for it.
        assert!(
            not_ready(&counts) * 50 <= counts.all_stacks(),
            "{command:?}: {counts:?}"
        );
        let incomplete = counts.all_stacks() - counts.complete_stacks - counts.truncated_stacks;
        assert!(
            incomplete * 50 <= counts.all_stacks(),
            "{command:?}: {counts:?}"
        );
    }
}

const PERL: &str =
    "$| = 1; print 1; <STDIN>; while (1) { $s = join ',', sort map { $_ * 7 % 31 } 1 .. 99 }";

#[test]
fn early_stacks_of_perl_are_complete() {
    check(&["perl", "-e", PERL]);
}

#[test]
fn without_a_second_walk_no_early_stack_is_complete() {
    for without_ebpf in [false, true] {
        let set = |options: &mut Options| {
            (options.without_ebpf, options.without_second_walk) = (without_ebpf, true);
        };
        if let Some(Early { counts, .. }) = record(&["perl", "-e", PERL], set, SAMPLES) {
            assert_eq!(counts.complete_stacks, 0, "{counts:?}");
            assert_eq!(not_ready(&counts), counts.all_stacks(), "{counts:?}");
        }
    }
}

/// Before Linux 5.17 and 6.1.
#[test]
fn early_stacks_are_complete_on_older_kernels() {
    for (without_loops, without_mappings) in [(true, true), (false, true), (true, false)] {
        let set = |options: &mut Options| {
            options.without_loops = without_loops;
            options.without_mappings = without_mappings;
        };
        if let Some(Early { counts, .. }) = record(&["perl", "-e", PERL], set, SAMPLES) {
            assert_eq!(not_ready(&counts), 0, "{counts:?}");
            assert_eq!(counts.complete_stacks, counts.all_stacks(), "{counts:?}");
        }
    }
}

/// It loads libcrypto, whose tables are large, while it is sampled.
#[test]
fn early_stacks_of_python_and_of_a_library_that_it_loads_are_complete() {
    let script = "print(1, flush=True); input()\n\
        import hashlib\n\
        while True: hashlib.pbkdf2_hmac('sha256', b'key', b'salt', 1000)";
    check(&["python3", "-c", script]);
    let set = |_: &mut Options| {};
    if let Some(early) = record(&["python3", "-c", script], set, SAMPLES) {
        let is_of_library = |sample: &&Sample| early.passes(sample, "libcrypto");
        let of_library = early.samples.iter().filter(is_of_library).count();
        assert!(of_library > 0, "{:?}", early.counts);
    }
}

impl Early {
    /// Returns true if a stack has a frame in a file whose name contains this.
    fn passes(&self, sample: &Sample, name: &str) -> bool {
        let process = self.catalog.thread_facts(sample.thread).process;
        let mappings = &self.catalog.process(process).mappings;
        let is_in = |address: u64| {
            let mapping = mappings
                .iter()
                .find(|it| (it.start..it.end).contains(&address));
            mapping.is_some_and(|it| self.catalog.module_facts(it.module).path.contains(name))
        };
        let mut frames = self.catalog.frames(sample.user_stack);
        frames.any(|frame| frame.address().is_some_and(is_in))
    }
}

/// Most of its code is generated, and has frame pointers.
#[test]
fn early_stacks_of_node_are_complete() {
    if is_emulated() {
        return;
    }
    let script = "const fs = require('fs'); fs.writeSync(1, '1'); fs.readSync(0, Buffer.alloc(1));\n\
        for (;;) JSON.parse(JSON.stringify(Array.from({length: 99}, (_, i) => ({i}))));";
    check(&["node", "-e", script]);
}

/// Each program replaces the one before: none of their code was known when sampling began.
#[test]
fn early_stacks_of_a_chain_of_programs_are_complete() {
    let perl = "while (1) { $s = join ',', sort map { $_ * 7 % 31 } 1 .. 99 }";
    let script = "echo 1; read line; exec env sh -c 'exec \"$@\"' sh perl -e \"$0\"";
    check(&["sh", "-c", script, perl]);
}

/// What a copy is read from.
struct Pages(u64, u64);

impl Memory for Pages {
    fn read(&self, address: u64, buffer: &mut [u8]) -> Result<(), MemoryError> {
        let (start, end) = (self.0, self.1);
        let length = buffer.len();
        let is_inside = |last: u64| start <= address && last <= end;
        if !address.checked_add(length as u64).is_some_and(is_inside) {
            return Err(MemoryError::Unmapped { address, length });
        }
        buffer.fill((address / PAGE as u64) as u8);
        Ok(())
    }
}

#[test]
fn a_stack_is_copied_up_to_its_end_or_the_limit() {
    let page = PAGE as u64;
    let copy = |sp: u64, start: u64, end: u64| {
        let registers = Registers::new(otelctx_reader::remote::Machine::own(), 0, sp)?;
        let copied = CopiedStack::of(registers, &Pages(start * page, end * page));
        Some((copied.stack.0 / page, copied.stack.1.len() / PAGE))
    };
    // What is below the stack pointer is on the page before, which is there, or not.
    assert_eq!(copy(10 * page, 0, 12), Some((9, 3)));
    assert_eq!(copy(10 * page, 10, 12), Some((10, 2)));
    assert_eq!(copy(10 * page + 2048, 0, 12), Some((10, 2)));
    assert_eq!(copy(10 * page + 2048, 0, 100), Some((10, 16)));
    assert_eq!(copy(20 * page, 0, 12), Some((0, 0)));
    assert_eq!(copy(0, 0, 12), Some((0, 12)));
}

#[test]
fn half_of_the_code_may_be_missing() {
    let code: Vec<u8> = (0..64).collect();
    let copied = |before, behind| copied_code(1000, &code, before, behind);
    assert_eq!(copied(true, true), (968, code.clone()));
    assert_eq!(copied(false, true), (1000, code[32..].to_vec()));
    assert_eq!(copied(true, false), (968, code[..32].to_vec()));
    assert_eq!(copied(false, false), (1000, Vec::new()));
}

#[test]
fn a_thread_that_has_panicked_is_replaced() {
    let walk = |walk: &mut SecondWalk| {
        let registers = Registers::new(otelctx_reader::remote::Machine::own(), 0, 0).unwrap();
        let copied = CopiedStack::of_bytes(registers, Default::default());
        walk.left = TIMEOUT;
        let walked = walk.walk(Arc::new(copied), Vec::new(), None);
        walked.map(|it| it.frames.len())
    };
    let mut second = SecondWalk::for_only_walks();
    // It is gone before a request.
    let dead = || (mpsc::sync_channel(1).0, mpsc::channel().1);
    second.walker = Some(dead());
    assert_eq!(walk(&mut second), None);
    assert_eq!(walk(&mut second), Some(1));
    // It goes when it has a request.
    let (requests, of_walker) = mpsc::sync_channel(1);
    second.walker = Some((requests, mpsc::channel().1));
    assert_eq!(walk(&mut second), None);
    drop(of_walker);
    assert_eq!(walk(&mut second), Some(1));
    // It is gone when it is late.
    (second.walker, second.is_behind, second.left) = (Some(dead()), true, TIMEOUT);
    assert!(second.is_ready());
    assert_eq!(walk(&mut second), Some(1));
}

/// Beside a load, samples are cut that wait for it too long.
#[test]
fn the_thread_that_walks_is_preferred_if_that_is_permitted() {
    // Without the right, or with a priority of the user's choice, nothing changes.
    let raised = std::thread::spawn(|| {
        let _ = crate::priority::raise_thread_priority();
        nice_of("self")
    });
    let expected = raised.join().unwrap();
    let (requests, of_walker) = mpsc::sync_channel(1);
    let (to_here, answers) = mpsc::channel();
    let (send_id, ids) = mpsc::channel();
    let walker = std::thread::spawn(move || {
        // SAFETY: the call has no preconditions.
        send_id.send(unsafe { libc::gettid() }).unwrap();
        walker::run(&of_walker, &to_here);
    });
    let registers = Registers::new(otelctx_reader::remote::Machine::own(), 0, 0).unwrap();
    let request = Request {
        number: 1,
        copied: Arc::new(CopiedStack::of_bytes(registers, (0, StackBytes::default()))),
        places: Vec::new(),
        walkers: None,
    };
    requests.send(request).unwrap();
    // By then, it has raised its priority.
    answers.recv().unwrap();
    assert_eq!(nice_of(&ids.recv().unwrap().to_string()), expected);
    drop(requests);
    walker.join().unwrap();
}

/// The nice value of a thread of this process; `self` for the calling one.
fn nice_of(thread: &str) -> String {
    let path = match thread {
        "self" => "/proc/thread-self/stat".to_owned(),
        _ => format!("/proc/self/task/{thread}/stat"),
    };
    let stat = std::fs::read_to_string(path).unwrap();
    // The 19th field (proc_pid_stat(5)); the second one, in parentheses, may have spaces.
    let (_, from_third) = stat.rsplit_once(") ").unwrap();
    from_third.split(' ').nth(16).unwrap().to_owned()
}
