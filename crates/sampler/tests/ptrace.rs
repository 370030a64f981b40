//! Samples by ptrace are processor time: threads that share a processor get no more of them than they
//! have run.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::{Compiler, Target};
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

const FREQUENCY: u32 = 99;
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / FREQUENCY as u64);
/// One processor for all of them: at any moment, all but one wait.
const THREADS: usize = 4;
const ENOUGH: usize = 60;
const PATIENCE: Duration = Duration::from_secs(60);

/// What a process has run, by its first thread's clock (pid_nr << 3, CPUCLOCK_SCHED; see
/// clock_getcpuclockid(3)).
fn run_time(pid: i32) -> Duration {
    let mut clock = 0;
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both structures live through the calls.
    let results = unsafe {
        [
            libc::clock_getcpuclockid(pid, &raw mut clock),
            libc::clock_gettime(clock, &raw mut time),
        ]
    };
    assert_eq!(results, [0, 0]);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn waiting_for_a_processor_is_not_sampled() {
    let sources = ["spin.c", "variable.c", "publish.c"];
    let flags = ["-rdynamic", "-fno-omit-frame-pointer"];
    let Some(program) = Compiler::gcc().program(&sources, &flags) else {
        return;
    };
    let mut command = Command::new("taskset");
    command.args(["-c", "0"]).arg(program);
    let target = Target::spawn(command.arg(format!("threads={THREADS}")));

    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = FREQUENCY;
    options.without_ebpf = true;
    let before = run_time(target.pid());
    let mut sampler = Sampler::start(&options).unwrap();
    let (mut catalog, mut attached) = (Catalog::new(), 0);
    let start = Instant::now();
    while attached < ENOUGH && start.elapsed() < PATIENCE {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| {
            attached += usize::from(matches!(sample.found, Found::Attached(_)));
        });
    }
    let counts = sampler.stop(&mut catalog, &mut |_| {});
    let samples = u128::from(counts.samples());
    let ran = run_time(target.pid()) - before;

    assert!(attached >= ENOUGH, "{counts:?}");
    // A thread may have had its next one in advance.
    let most = ran.as_nanos() / PERIOD.as_nanos() + THREADS as u128;
    assert!(samples <= most, "{samples} samples of {most} periods");
}
