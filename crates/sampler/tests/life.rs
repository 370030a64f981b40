//! Processes from their first instruction to their end, by eBPF and by ptrace.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_reader::remote::Error as RemoteError;
use otelctx_sampler::sample::Catalog;
use otelctx_sampler::{Error, INTERVAL, Options, Sampler, Targets};

/// Whatever is to happen has happened by then, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// A shell that counts once it is told to, and of which nobody learns that it has ended.
fn counting(to: u32) -> Target {
    let count = format!("i=0; while [ $i -lt {to} ]; do i=$((i+1)); done");
    let mut command = Command::new("sh");
    Target::spawn(command.args(["-c", &format!("echo ready; read line; echo done; {count}")]))
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
            assert!(begin.elapsed() < PATIENCE, "{method}");
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |_| {});
        }
        let (state, ticks) = state(target.pid());
        assert_eq!(state, "Z", "{method}");
        let counts = sampler.stop(&mut catalog, &mut |_| {});
        let seen = counts.samples() + counts.lost;
        eprintln!("{method}: {seen} of {ticks} ticks, {counts:?}");
        assert!(ticks > 20, "{method}: {ticks}");
        assert!(
            seen * 10 > ticks * 9,
            "{method}: {seen} of {ticks}, {counts:?}"
        );
    }
}

#[test]
fn a_process_that_has_ended_is_refused() {
    let mut target = counting(1);
    target.command("go");
    let begin = Instant::now();
    while state(target.pid()).0 != "Z" {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(INTERVAL);
    }
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
