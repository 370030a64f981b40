//! Targets that end, or execute another program, at any moment: no hang, nothing left behind.
//!
//! The only test of its program, so that the descriptors that it counts are its own.

use std::ops::ControlFlow;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use otelctx_fixtures::{Compiler, STOP_TIMEOUT, Target, thread_cpu_time};
use otelctx_remote::tls::resolve;
use otelctx_remote::{Error, FileCache, LiveProcess, Memory, Process, Stopped};

const ROUNDS: u32 = 300;

/// Open descriptors and traced or stopped threads may stay for a moment, while a pipe's reader
/// sees the end of a target.
#[track_caller]
fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + STOP_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Everything that a reader does, once.
fn inspect(process: &Process, threads: [i32; 2], cache: &FileCache) -> Result<(), Error> {
    let mut first = 0;
    process.mappings(&mut |mapping| {
        first = mapping.start;
        ControlFlow::Break(())
    })?;
    let memory = process.memory()?;
    resolve(
        &LiveProcess::new(process, &memory),
        cache,
        "otel_thread_ctx_v1",
    )?;
    for tid in threads {
        let stopped = Stopped::stop(process, tid, STOP_TIMEOUT)?;
        // Killed meanwhile: there is no memory any more.
        let _ = memory.read_u64(first);
        let _ = memory.read_u64(stopped.thread_pointer());
    }
    Ok(())
}

#[test]
fn targets_that_vanish_at_random_moments() {
    let Some(program) = Compiler::gcc().program::<&str>(&["signals.c"], &[]) else {
        return;
    };
    let before = descriptors();
    let mut random = 12345_u32;
    let (mut looks, mut cut_short) = (0, 0);
    let cache = FileCache::new();
    for round in 0..ROUNDS {
        let mut target = Target::spawn(&mut Command::new(&program));
        let pid = target.pid();
        let process = Process::open(pid).unwrap();
        let sleeper = target.lines[0].strip_prefix("sleeper ").unwrap();
        let threads = [pid, sleeper.parse().unwrap()];
        let execs = round % 2 == 1;
        let mut slowest = Duration::ZERO;
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Up to two milliseconds: a few looks.
        let end = Instant::now() + Duration::from_micros(u64::from(random >> 21));
        std::thread::scope(|scope| {
            let ender = scope.spawn(|| {
                while Instant::now() < end {
                    std::thread::yield_now();
                }
                if execs {
                    target.command("execute");
                } else {
                    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
                }
            });
            let mut after = 0;
            while after < 3 {
                after += i32::from(ender.is_finished());
                let started = thread_cpu_time();
                match inspect(&process, threads, &cache) {
                    Ok(()) => looks += 1,
                    Err(
                        Error::NoSuchThread { .. }
                        | Error::NoSuchProcess { .. }
                        | Error::Memory { .. },
                    ) => cut_short += 1,
                    Err(error) => panic!("round {round}: {error}"),
                }
                slowest = slowest.max(thread_cpu_time() - started);
            }
        });
        assert!(slowest < Duration::from_secs(5), "{slowest:?}");
        if execs {
            // In the middle of it the process is, for a moment, not to be found.
            wait_until("exec", || process.comm().is_ok_and(|name| name == "sleep"));
            let status = process.status().unwrap();
            assert_eq!(status.tracer, 0, "{status:?}");
            assert_ne!(status.state, 't');
        }
    }
    assert!(looks > 0 && cut_short > 0, "{looks} {cut_short}");
    wait_until("descriptors are left open", || descriptors() == before);
}
