//! A process that executes one program after the other, each for some milliseconds: each sample has the name of the program
//! that ran.
//!
//! Needs the right to use eBPF.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::kernel::{Feature, is_emulated};
use otelctx_fixtures::{Compiler, Target, copy_program};
use otelctx_sampler::sample::{Catalog, Frame, Sample};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets, WaitMethod};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// Number of programs, and of executions.
const PROGRAMS: u64 = 4;
const EXECUTIONS: u64 = 400;
/// Distance of the addresses of two programs' code.
const DISTANCE: u64 = 0x1000_0000;

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The programs, in a directory; each one's address tells it. `None`, with a line, if there is no compiler.
fn programs(folder: &Path) -> Option<Vec<PathBuf>> {
    let compile = |number: u64| {
        let address = format!("-Wl,-Ttext-segment={:#x}", (number + 1) * DISTANCE);
        let flags = ["-static", "-no-pie", &address];
        let built = Compiler::gcc().program(&["storm.c"], &flags)?;
        let path = folder.join(format!("storm-{number}"));
        copy_program(&built, &path);
        Some(path)
    };
    (0..PROGRAMS).map(compile).collect()
}

/// Samples of each program, and samples with another one's name.
#[derive(Debug, Default)]
struct Named {
    right: BTreeMap<String, u64>,
    wrong: Vec<(String, String, String)>,
}

impl Named {
    /// Compares the address of the innermost frame in a program with the names of the process and of the file.
    fn add(&mut self, catalog: &Catalog, sample: &Sample) {
        let process = catalog.process(catalog.thread_facts(sample.thread).process);
        let mut addresses = catalog
            .frames(sample.user_stack)
            .filter_map(Frame::lookup_address);
        let is_of_program = |address: &u64| (1..=PROGRAMS).contains(&(address / DISTANCE));
        let Some(address) = addresses.find(is_of_program) else {
            return;
        };
        let ran = format!("storm-{}", address / DISTANCE - 1);
        let mut mappings = process.mappings.iter();
        // The newest one that was there: an address of one program is in no other.
        let mapping = mappings.rfind(|it| (it.start..it.end).contains(&address));
        let file = mapping.map(|it| catalog.module_facts(it.module).path.clone());
        let file = file.unwrap_or_default();
        let name = file.rsplit('/').next().unwrap_or_default();
        let executable = process.executable.rsplit('/').next();
        let is_known = process.executable.is_empty() || executable == Some(&ran);
        if name == ran && process.comm == ran && is_known {
            *self.right.entry(ran).or_default() += 1;
        } else {
            self.wrong
                .push((ran, name.to_owned(), process.comm.clone()));
        }
    }
}

/// Samples the storm, and its waits by a method.
fn each_has_the_name_of_its_program(waits: Option<WaitMethod>) {
    if is_emulated() {
        return eprintln!("skipped: an emulated machine takes too long for each program");
    }
    let name = format!("otelctx-storm-{}-{waits:?}", std::process::id());
    let folder = Folder(std::env::temp_dir().join(name));
    std::fs::create_dir_all(&folder.0).unwrap();
    let Some(programs) = programs(&folder.0) else {
        return;
    };
    let mut command = Command::new(&programs[0]);
    command.arg(format!("-{EXECUTIONS}")).args(&programs);
    let mut target = Target::spawn(&mut command);
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = 999;
    options.wall_frequency = waits.map(|_| 1000);
    options.wait_method = waits;
    let mut sampler = Sampler::start(&options).unwrap();
    if Feature::Ebpf
        .or_skip(sampler.method().require_ebpf())
        .is_none()
    {
        return;
    }
    target.close();
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let begin = Instant::now();
    while sampler.has_targets() {
        assert!(begin.elapsed() < TIMEOUT, "{:?}", sampler.counts());
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let counts = sampler
        .stop(&mut catalog, &mut |sample| samples.push(sample))
        .counts;
    let mut named = Named::default();
    for sample in &samples {
        named.add(&catalog, sample);
    }
    let (right, wrong) = (named.right.values().sum::<u64>(), named.wrong.len());
    assert!(
        wrong == 0,
        "{wrong} wrong, {right} right, such as {:?}: {counts:?}",
        named.wrong[0]
    );
    // Each ran a hundred times.
    assert_eq!(named.right.len() as u64, PROGRAMS, "{named:?}");
    assert!(right > EXECUTIONS / 2, "{named:?}");
}

#[test]
fn each_sample_has_the_name_of_the_program_that_ran() {
    each_has_the_name_of_its_program(None);
}

/// Waits of a program are not taken for those of the next one, nor their stacks.
#[test]
fn each_wait_has_the_name_of_the_program_that_waited() {
    each_has_the_name_of_its_program(Some(WaitMethod::ByProcess));
    each_has_the_name_of_its_program(Some(WaitMethod::TwoWalks));
}
