//! Processes that change while they are sampled: they begin to publish, load and close libraries,
//! execute other programs, start others.
//!
//! Needs the right to use eBPF.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::sampled::Sampled;
use otelctx_sampler::sample::{Catalog, Found, Frame, Sample};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;

struct Recording {
    sampler: Sampler,
    catalog: Catalog,
}

impl Recording {
    /// `None`, with a line, where eBPF is not permitted.
    fn start(target: &Target) -> Option<Self> {
        Self::of(Targets::Processes(vec![target.pid()]))
    }

    fn of(targets: Targets) -> Option<Self> {
        let mut options = Options::new(targets);
        // An emulated CPU is not fast enough for all processes at 999 Hz, its own included.
        if options.targets != Targets::All {
            options.frequency = 999;
        }
        let sampler = Sampler::start(&options).unwrap();
        Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        let catalog = Catalog::new();
        Some(Self { sampler, catalog })
    }

    fn drain(&mut self) -> Vec<Sample> {
        std::thread::sleep(INTERVAL);
        let mut samples = Vec::new();
        self.sampler
            .drain(&mut self.catalog, &mut |sample| samples.push(sample));
        for sample in &samples {
            let thread = self.catalog.thread_facts(sample.thread);
            assert_ne!(thread.tid, 0, "a processor that is idle");
        }
        samples
    }

    /// Waits for a sample of which this is true.
    fn wait_for(&mut self, what: &str, mut is_it: impl FnMut(&Sample, &Catalog) -> bool) -> Sample {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            for sample in self.drain() {
                if is_it(&sample, &self.catalog) {
                    return sample;
                }
            }
        }
        panic!("{what}: {:?}", self.sampler.counts());
    }

    fn wait_for_the_end(&mut self) {
        let start = Instant::now();
        while self.sampler.has_targets() {
            self.drain();
            assert!(start.elapsed() < TIMEOUT);
        }
    }

    /// Waits until each thread of the target that says so has been sampled with its context.
    fn wait_for_contexts(&mut self, target: &Target) {
        // Before, they may have had others.
        let since = monotonic();
        for thread in &target.threads {
            let Some(attached) = &thread.attached else {
                continue;
            };
            self.wait_for(&thread.name, |sample, catalog| {
                let Found::Attached(context) = sample.found else {
                    return false;
                };
                if sample.time < since {
                    return false;
                }
                let facts = catalog.thread_facts(sample.thread);
                if facts.tid != thread.tid {
                    return false;
                }
                let context = catalog.context_facts(context);
                assert_eq!(facts.name, thread.name);
                assert_eq!(context.trace_id.to_string(), attached.trace_id);
                assert_eq!(context.span_id.to_string(), attached.span_id);
                let attribute = ("worker".to_owned(), thread.name.clone());
                assert_eq!(context.attributes, [attribute]);
                let process = catalog.process(facts.process);
                let service = ("service.name".to_owned(), "fixture".into());
                assert_eq!(process.resource, [service]);
                assert!(process.published);
                let innermost = catalog.frames(sample.user_stack).next();
                let address = innermost.and_then(Frame::address).unwrap();
                assert!(process.mapping_at(address, sample.time).is_some());
                true
            });
        }
    }
}

/// Nanoseconds of `CLOCK_MONOTONIC`, as samples have them.
fn monotonic() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the structure lives through the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A shell that does what `script` says once it may continue.
fn shell(script: &str, program: &PathBuf) -> Target {
    let script = format!("echo ready; read line; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(program);
    Target::spawn(&mut command)
}

#[test]
fn a_library_that_is_loaded_later_and_publishes() {
    let programs = Sampled::own();
    let library = programs.publishing_library();
    let (Some(library), Some(program)) = (library, programs.silent_workers()) else {
        return;
    };
    let late = format!("late={}", library.display());
    let mut target = Target::spawn(Command::new(program).args(["busy", &late]));
    let Some(mut recording) = Recording::start(&target) else {
        return;
    };
    recording.wait_for("no context", |sample, _| {
        sample.found == Found::NotPublished
    });
    target.command("attach");
    recording.wait_for_contexts(&target);
}

#[test]
fn another_program() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    let mut target = shell("exec \"$0\" busy", &program);
    let Some(mut recording) = Recording::start(&target) else {
        return;
    };
    // One line for the shell, one for the program.
    target.command("go\nattach");
    recording.wait_for_contexts(&target);
}

/// Until then, the process has its parent's program, as the command's own child.
#[test]
fn what_runs_before_the_program_to_sample_is_left_out() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    for (without_ebpf, before_exec) in [(false, false), (false, true), (true, false), (true, true)]
    {
        // With ptrace, a process that begins to run is sampled from the next survey on.
        let count = if without_ebpf { 1_500_000 } else { 300_000 };
        let loops = format!("i=0; while [ $i -lt {count} ]; do i=$((i+1)); done");
        let mut target = shell(&format!("{loops}; exec \"$0\" busy"), &program);
        let mut options = Options::new(Targets::Processes(vec![target.pid()]));
        options.frequency = 999;
        options.without_ebpf = without_ebpf;
        options.before_exec = before_exec;
        let sampler = Sampler::start(&options).unwrap();
        if !without_ebpf
            && Feature::Ebpf
                .or_skip(sampler.method().require_ebpf())
                .is_none()
        {
            continue;
        }
        let catalog = Catalog::new();
        let mut recording = Recording { sampler, catalog };
        target.command("go\nattach");
        let is_shell =
            |sample: &Sample, catalog: &Catalog| catalog.thread_facts(sample.thread).name == "sh";
        let mut shell_samples = 0;
        recording.wait_for("the program", |sample, catalog| {
            shell_samples += u32::from(is_shell(sample, catalog));
            !is_shell(sample, catalog)
        });
        let has_shell = shell_samples > 0;
        assert_eq!(
            has_shell, !before_exec,
            "ptrace: {without_ebpf}, {shell_samples}"
        );
    }
}

#[test]
fn a_child() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    let mut target = shell("exec 3<&0; \"$0\" busy <&3 & wait", &program);
    let Some(mut recording) = Recording::start(&target) else {
        return;
    };
    target.command("go\nattach");
    recording.wait_for_contexts(&target);
}

#[test]
fn a_process_that_comes_where_all_are_sampled() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    let Some(mut recording) = Recording::of(Targets::All) else {
        return;
    };
    // While nothing runs.
    for _ in 0..20 {
        recording.drain();
    }
    let target = Target::spawn(Command::new(&program).arg("busy"));
    recording.wait_for_contexts(&target);
    let mut target = shell("exec \"$0\" busy", &program);
    target.command("go\nattach");
    recording.wait_for_contexts(&target);
}

/// `unshare`'s, busybox's too: another PID namespace, and `/proc` as that sees it.
const NAMESPACE: [&str; 3] = ["-p", "-f", "--mount-proc"];

/// The recorder gets IDs of its own namespace.
#[test]
fn a_child_in_a_namespace() {
    in_a_namespace("a_child", |_| {});
}

/// Threads have an ID in each namespace that theirs is within.
#[test]
fn a_process_in_a_nested_namespace() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    if !is_permitted(Command::new("unshare").args(NAMESPACE).arg("true")) {
        return;
    }
    let mut unshare = Command::new("unshare");
    // The program ends when its input does.
    let target = Target::spawn(unshare.args(NAMESPACE).arg(program).arg("busy"));
    let pid = target.child_pid();
    let Some(mut recording) = Recording::of(Targets::Processes(vec![pid])) else {
        return;
    };
    let start = Instant::now();
    let mut tids = Vec::new();
    while tids.len() < 100 {
        assert!(
            start.elapsed() < TIMEOUT,
            "{:?}",
            recording.sampler.counts()
        );
        for sample in recording.drain() {
            if matches!(sample.found, Found::Attached(_)) {
                tids.push(recording.catalog.thread_facts(sample.thread).tid);
            }
        }
    }
    // They are those of the recorder's namespace.
    for tid in tids {
        let status = std::fs::metadata(format!("/proc/{pid}/task/{tid}"));
        assert!(status.is_ok(), "{tid} is no thread of {pid}");
    }
}

#[test]
fn a_process_in_a_nested_namespace_of_a_namespace() {
    in_a_namespace("a_process_in_a_nested_namespace", |_| {});
}

/// Set if there is a busy process outside of the recorder's PID namespace.
const OUTSIDE: &str = "OTELCTX_TEST_OUTSIDE";

#[test]
fn samples_outside_of_the_namespace_are_counted() {
    let Some(mut recording) = Recording::of(Targets::All) else {
        return;
    };
    let start = Instant::now();
    let mut counted = false;
    while std::env::var_os(OUTSIDE).is_some() && !counted {
        assert!(
            start.elapsed() < TIMEOUT,
            "{:?}",
            recording.sampler.counts()
        );
        recording.drain();
        counted = recording.sampler.counts().outside_namespace > 0;
    }
}

#[test]
fn samples_outside_of_a_namespace_are_counted() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    let _busy = Target::spawn(Command::new(program).arg("busy"));
    in_a_namespace("samples_outside_of_the_namespace_are_counted", |command| {
        command.env(OUTSIDE, "1");
    });
}

/// Runs another of these tests in a new PID namespace.
fn in_a_namespace(test: &str, prepare: impl FnOnce(&mut Command)) {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(NAMESPACE);
    if !is_permitted(Command::new("unshare").args(NAMESPACE).arg("true")) {
        return;
    }
    command.arg(own).args(["--exact", test, "--nocapture"]);
    prepare(&mut command);
    let output = command.output().unwrap();
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (said(&output.stdout), said(&output.stderr));
    eprint!("{err}");
    assert!(output.status.success(), "{out}{err}");
    assert!(out.contains("test result: ok. 1 passed"), "{out}{err}");
}

/// Whether a command can be run; if not, says so.
fn is_permitted(command: &mut Command) -> bool {
    let why = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr)
            .trim_end()
            .to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: {why}");
    false
}

/// The second library gets the module id, and often the memory, of the first.
#[test]
fn a_library_that_is_closed() {
    let programs = Sampled::own();
    let (Some(first), Some(second)) = (programs.library(1), programs.library(2)) else {
        return;
    };
    let Some(program) = programs.workers_without_variable() else {
        return;
    };
    let mut command = Command::new(program);
    command
        .arg("busy")
        .arg(format!("lib={}", first.display()))
        .arg(format!("then={}", second.display()))
        .env("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0");
    let mut target = Target::spawn(&mut command);
    let Some(mut recording) = Recording::start(&target) else {
        return;
    };
    recording.wait_for_contexts(&target);
    target.command("reload");
    let done = monotonic();
    // The others' contexts are gone with the first library.
    let mut threads = target.threads.iter();
    let only = threads.find(|thread| thread.name == "worker-0").unwrap();
    let start = Instant::now();
    let mut seen = false;
    while start.elapsed() < TIMEOUT && !(seen && start.elapsed() > Duration::from_millis(300)) {
        for sample in recording.drain() {
            if sample.time < done {
                continue;
            }
            if let Found::Attached(context) = sample.found {
                let tid = recording.catalog.thread_facts(sample.thread).tid;
                let context = recording.catalog.context_facts(context);
                let trace_id = &only.attached.as_ref().unwrap().trace_id;
                assert_eq!((tid, &context.trace_id.to_string()), (only.tid, trace_id));
                seen = true;
            }
        }
    }
    assert!(seen, "{:?}", recording.sampler.counts());
}

#[test]
fn another_catalog_gets_everything_again() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    let target = Target::spawn(Command::new(program).arg("busy"));
    let Some(mut recording) = Recording::start(&target) else {
        return;
    };
    for _ in 0..2 {
        recording.wait_for_contexts(&target);
        assert_eq!(recording.catalog.processes().len(), 1);
        recording.sampler.reset_catalog();
        recording.catalog = Catalog::new();
    }
}

#[test]
fn the_end_of_all_targets_is_noticed() {
    let Some(program) = Sampled::own().workers() else {
        return;
    };
    let mut target = Target::spawn(Command::new(program).arg("busy"));
    let Some(mut recording) = Recording::start(&target) else {
        return;
    };
    recording.wait_for_contexts(&target);
    assert!(recording.sampler.has_targets());
    target.child().kill().unwrap();
    target.child().wait().unwrap();
    recording.wait_for_the_end();
}
