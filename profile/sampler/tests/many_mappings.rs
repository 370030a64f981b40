//! Stacks of a process with more executable mappings than the eBPF program keeps of one.
//!
//! Needs the right to use eBPF.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::{Feature, give_way_if_emulated, has_mapping_tree, is_emulated};
use otelctx_fixtures::sampled::Sampled;
use otelctx_sampler::sample::{Catalog, Frame, Sample, StackEnd};
use otelctx_sampler::{INTERVAL, IncompleteStacks, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// How many samples of each thread to take.
const SAMPLES: usize = 20;
/// No function of the program has more bytes (`many_mappings.c`).
const FUNCTION: u64 = 256;
/// Size of a mapping, in bytes.
const PAGE: u64 = 4096;

/// Stacks by thread: from the first mapping, from the last, and in the last.
struct Sampling {
    stacks: [Vec<Vec<u64>>; 3],
    /// Incomplete stacks of the program, by their reason.
    ends: BTreeMap<StackEnd, u64>,
    spin: u64,
    work: u64,
    last: u64,
}

fn ends(places: &[IncompleteStacks], name: &str) -> BTreeMap<StackEnd, u64> {
    let own = places.iter().filter(|place| place.module == name);
    own.map(|place| (place.end, place.samples)).collect()
}

/// `None`, with a line, where it cannot run.
fn sample(kind: &str) -> Option<Sampling> {
    let program = Sampled::own().many_mappings()?;
    let name = program.file_name().unwrap().to_str().unwrap().to_owned();
    let mut command = Command::new(&program);
    give_way_if_emulated(command.arg(kind));
    let target = Target::spawn(&mut command);
    let numbers = |line: usize| {
        let mut numbers = target.lines[line].split(' ').map(|it| it.parse().unwrap());
        [(); 3].map(|()| -> u64 { numbers.next().unwrap() })
    };
    let (threads, [spin, work, last]) = (numbers(0), numbers(1));
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = if is_emulated() { 99 } else { 499 };
    let mut sampler = Sampler::start(&options).unwrap();
    Feature::Ebpf.or_skip(sampler.method().require_ebpf())?;
    Feature::Tables.or_skip(sampler.without_tables().map_or(Ok(()), Err))?;
    let mut catalog = Catalog::new();
    let mut stacks = [(); 3].map(|()| Vec::new());
    let begin = Instant::now();
    let (mut before, mut samples) = (None, Vec::<Sample>::new());
    while stacks.iter().any(|it| it.len() < SAMPLES) {
        assert!(begin.elapsed() < TIMEOUT, "{stacks:x?}");
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        if before.is_none() {
            // Earlier ones may be without tables.
            samples.clear();
            let has_tables = sampler.counts().complete_stacks > 0;
            before = has_tables.then(|| ends(&sampler.incomplete_stacks(), &name));
        }
        for sample in samples.drain(..) {
            let thread = u64::from(catalog.thread_facts(sample.thread).tid.unsigned_abs());
            let number = threads.iter().position(|it| *it == thread).unwrap();
            let frames = catalog.frames(sample.user_stack);
            stacks[number].push(frames.filter_map(Frame::lookup_address).collect());
        }
    }
    let mut ends = ends(&sampler.incomplete_stacks(), &name);
    let before = before.unwrap();
    ends.retain(|end, samples| {
        *samples -= before.get(end).unwrap_or(&0);
        *samples > 0
    });
    Some(Sampling {
        stacks,
        ends,
        spin,
        work,
        last,
    })
}

impl Sampling {
    /// Checks that each stack of a thread has these frames, and the ones that start a thread.
    fn check(&self, thread: usize, functions: &[(u64, u64)]) {
        for stack in &self.stacks[thread] {
            // The C library's: start_thread and clone3.
            assert_eq!(stack.len(), functions.len() + 2, "{thread}: {stack:x?}");
            for (address, (start, size)) in stack.iter().zip(functions) {
                let is_inside = (*start..start + size).contains(address);
                assert!(is_inside, "{thread}: {stack:x?} at {start:x}");
            }
        }
    }
}

/// Each second page, of which a third is kept. All files are.
#[test]
fn stacks_through_mappings_without_room_say_so() {
    let Some(sampling) = sample("apart") else {
        return;
    };
    let (spin, work) = ((sampling.spin, FUNCTION), (sampling.work, FUNCTION));
    let last = (sampling.last, PAGE);
    let first = (sampling.last - 2 * 2999 * PAGE, PAGE);
    sampling.check(0, &[spin, first, work]);
    let tree = has_mapping_tree().then_some(());
    let tree = tree.ok_or("the kernel has no tree of mappings");
    if Feature::Mappings.or_skip(tree).is_some() {
        sampling.check(1, &[spin, last, work]);
        sampling.check(2, &[last, work]);
        assert_eq!(sampling.ends, BTreeMap::new());
        return;
    }
    // The caller is not known to be code.
    let cut = &sampling.stacks[1];
    let is_cut =
        |stack: &Vec<u64>| stack.len() == 1 && (spin.0..spin.0 + spin.1).contains(&stack[0]);
    assert!(cut.iter().all(is_cut), "{cut:x?}");
    let count = cut.len() as u64;
    let expected = BTreeMap::from([(StackEnd::TooManyMappings, count)]);
    assert_eq!(sampling.ends, expected);
    // The code that runs is code.
    sampling.check(2, &[last, work]);
}

#[test]
fn neighbouring_pieces_of_memory_need_no_room() {
    let Some(sampling) = sample("pieces") else {
        return;
    };
    let (spin, work) = ((sampling.spin, FUNCTION), (sampling.work, FUNCTION));
    let last = (sampling.last, PAGE);
    let first = (sampling.last - 2999 * PAGE, PAGE);
    sampling.check(0, &[spin, first, work]);
    sampling.check(1, &[spin, last, work]);
    sampling.check(2, &[last, work]);
    assert_eq!(sampling.ends, BTreeMap::new());
}
