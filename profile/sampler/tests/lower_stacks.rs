//! Stacks of calls that run on stacks of their own, frame by frame against what the program has logged.
//!
//! Needs the right to use eBPF.

use std::process::Command;
use std::time::Instant;

use otelctx_fixtures::kernel::{Feature, give_way_if_emulated};
use otelctx_fixtures::sampled::Sampled;
use otelctx_fixtures::{HANG_TIMEOUT, Target};
use otelctx_sampler::sample::{Catalog, Frame, StackEnd};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Samples that are compared of each program and method.
const SAMPLES: usize = 50;
/// Where the instruction behind the generated code's call ends, in bytes from the start (`lower_stacks.c`).
const BEHIND_NEXT: u64 = if cfg!(target_arch = "x86_64") { 27 } else { 32 };

/// A running program, and its log.
struct Logged {
    target: Target,
    function: std::ops::Range<u64>,
    /// What each call returns to, innermost first.
    returns: Vec<u64>,
}

impl Logged {
    fn start(arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new(Sampled::own().lower_stacks()?);
        give_way_if_emulated(&mut command);
        let target = Target::spawn(command.args(arguments));
        let mut lines = target.lines.iter();
        let numbers = lines.find_map(|it| it.strip_prefix("called "));
        let numbers = numbers.unwrap().split(' ');
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(address) => u64::from_str_radix(address, 16).unwrap(),
            None => text.parse().unwrap(),
        };
        let numbers: Vec<u64> = numbers.map(number).collect();
        let (start, size) = (numbers[0], numbers[1]);
        Some(Self {
            target,
            function: start..start + size,
            returns: numbers[2..].to_vec(),
        })
    }

    /// Checks stacks, and that each ends behind this number of callers of the log, or is complete. `None`, with a line, where the
    /// kernel does not permit it.
    fn check(&self, without_ebpf: bool, callers: Option<usize>) -> Option<()> {
        let mut options = Options::new(Targets::Processes(vec![self.target.pid()]));
        options.frequency = 499;
        options.without_ebpf = without_ebpf;
        let mut sampler = Sampler::start(&options).unwrap();
        if !without_ebpf {
            Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
        }
        Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
        let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
        let (begin, mut compared) = (Instant::now(), 0);
        let expected = match callers {
            Some(_) => StackEnd::NoTables,
            None => StackEnd::Start,
        };
        while compared < SAMPLES {
            assert!(begin.elapsed() < HANG_TIMEOUT, "{compared} samples");
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
            for sample in samples.drain(..) {
                let end = sample.stack_end.unwrap();
                // The mappings or the rows are not there yet.
                if matches!(end, StackEnd::FramePointers | StackEnd::TablesNotReady) {
                    assert_eq!(compared, 0, "{end:?}");
                    continue;
                }
                let frames = catalog.frames(sample.user_stack);
                let stack: Vec<u64> = frames.filter_map(Frame::address).collect();
                assert!(self.function.contains(&stack[0]), "{stack:x?}");
                let log = &self.returns[..callers.unwrap_or(self.returns.len())];
                let found = &stack[1..];
                assert_eq!((end, found.get(..log.len())), (expected, Some(log)));
                // The C library's functions that have called `main`.
                let others = found.len() - log.len();
                assert_eq!(others > 0, callers.is_none(), "{stack:x?}");
                compared += 1;
            }
        }
        Some(())
    }
}

fn check(arguments: &[&str], callers: Option<usize>) {
    let Some(program) = Logged::start(arguments) else {
        return;
    };
    for without_ebpf in [false, true] {
        if program.check(without_ebpf, callers).is_none() {
            return;
        }
    }
}

#[test]
fn stacks_lead_through_lower_stacks_to_the_start() {
    // The last stack is the innermost one's.
    for order in ["0", "10", "01", "3120", "01234", "40312"] {
        check(&[order], None);
    }
}

#[test]
fn a_stack_ends_at_the_fifth_lower_stack() {
    // A function, and two callers of each stack behind it but the last.
    check(&["012345"], Some(9));
    check(&["98012345"], Some(9));
}

/// Frame pointers that hold other data lead to words that look like a frame.
#[test]
fn a_frame_pointer_to_no_return_address_ends_the_stack() {
    for offset in [0, 8, BEHIND_NEXT] {
        check(&["012", &offset.to_string()], Some(1));
    }
}
