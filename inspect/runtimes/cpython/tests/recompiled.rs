//! Names are read after a sample: by then, another function may have the same address.
//!
//! Needs the right to use eBPF. `cargo xtask soak recompiled` compares many more samples.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use common::start;
use otelctx_fixtures::python::Interpreter;
use otelctx_fixtures::{Target, tier};
use otelctx_reader::sample::{Catalog, Frame, NamedFrame, Sample};
use otelctx_sampler::INTERVAL;

const VERSIONS: [&str; 12] = [
    "2.7", "3.6", "3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13", "3.13t", "3.14", "3.15",
];
/// Versions that each test run samples: one for each kind of code object's identity.
const SHORT: [&str; 5] = ["2.7", "3.8", "3.11", "3.12", "3.13t"];
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
/// The name of a function that was dropped before its name was read.
const DROPPED: &str = "[Python]";

/// The start of each round of the program, by its own clock.
struct Truth {
    memory: File,
    started: u64,
}

impl Truth {
    fn of(target: &Target) -> Self {
        let mut lines = target.lines.iter();
        let started = lines.find_map(|line| line.strip_prefix("started "));
        Self {
            memory: File::open(format!("/proc/{}/mem", target.pid())).unwrap(),
            started: started.unwrap().parse().unwrap(),
        }
    }

    /// Returns true if the functions of a round could be executed at this time, in nanoseconds.
    fn is_round(&self, round: u64, time: u64) -> bool {
        let mut bytes = [0; 16];
        let at = self.started + round * 8;
        self.memory.read_exact_at(&mut bytes, at).unwrap();
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        // The next round may not have started yet.
        let end = Some(word(8)).filter(|end| *end > 0).unwrap_or(u64::MAX);
        word(0) > 0 && (word(0)..end).contains(&time)
    }

    /// Returns true if the program can execute this function at this time, with this number of callers.
    fn is_right(&self, frame: &NamedFrame, depth: usize, is_innermost: bool, time: u64) -> bool {
        let of_round = frame.function.split_once('_').and_then(|(name, round)| {
            let place = ["make", "outer", "middle", "inner"].iter();
            let place = place.clone().position(|it| *it == name)?;
            Some((place, round.parse().ok()?))
        });
        let name = &frame.function[..];
        match of_round {
            Some((place, round)) => {
                let within = match place {
                    0 => name.to_owned(),
                    _ => format!("make_{round}.<locals>.{name}"),
                };
                depth == place.max(1)
                    && self.is_round(round, time)
                    && frame.file == "<recompiled>"
                    && (frame.qualified_name.is_empty() || frame.qualified_name == within)
            }
            None if frame.file == "<recompiled>" => name == "<module>" && depth == 1,
            None => {
                let depths = match name {
                    "<module>" => 0..=0,
                    "<listcomp>" => 1..=1,
                    "spin" => 1..=4,
                    _ => return false,
                };
                // Only `<module>` calls functions.
                depths.contains(&depth) && (depth == 0 || is_innermost)
            }
        }
    }
}

/// Numbers of samples.
#[derive(Debug, Default)]
struct Tally {
    samples: usize,
    /// Frames of Python.
    frames: usize,
    /// Samples of functions that are dropped, with their names.
    known: usize,
    /// Samples of functions that were dropped before their names were read.
    dropped: usize,
    /// Samples with a name that the program could not have there at that time.
    wrong: Vec<String>,
}

impl Tally {
    fn add(&mut self, truth: &Truth, catalog: &Catalog, sample: &Sample) {
        self.samples += 1;
        let frames = catalog.frames(sample.user_stack).rev();
        let frames = frames.filter_map(|frame| match frame {
            _ if frame.is_gil_wait() => None,
            // Code that is generated.
            Frame::Named(frame) if frame.function.starts_with('[') => {
                (frame.function == DROPPED).then_some(&**frame)
            }
            Frame::Named(frame) => Some(&**frame),
            Frame::Native { .. } => None,
        });
        let frames: Vec<&NamedFrame> = frames.collect();
        // Of the frames of a stack whose outer frames are missing, the numbers of callers are not known.
        if frames.first().is_none_or(|it| it.function != "<module>") {
            return;
        }
        for (depth, frame) in frames.iter().enumerate() {
            self.frames += 1;
            if frame.function == DROPPED {
                self.dropped += 1;
                continue;
            }
            self.known += usize::from(frame.file == "<recompiled>");
            let is_innermost = depth + 1 == frames.len();
            if !truth.is_right(frame, depth, is_innermost, sample.time) {
                let functions = frames.iter().map(|it| &it.function[..]);
                let functions: Vec<&str> = functions.collect();
                self.wrong
                    .push(format!("{functions:?} at {}: {frame:?}", sample.time));
            }
        }
    }
}

#[test]
fn a_sample_never_has_the_name_of_a_function_that_was_compiled_later() {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let is_short = number.is_err();
    let usual = tier::usual_or_all(1500, 4000);
    let count: usize = number.map_or(usual, |number| number.parse().unwrap());
    let versions = if is_short { &SHORT[..] } else { &VERSIONS };
    for interpreter in versions.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("recompiled.py");
        let truth = Truth::of(&target);
        let Some(mut sampler) = start(target.pid(), 9_999, false) else {
            return;
        };
        let mut catalog = Catalog::new();
        let mut tally = Tally::default();
        let begin = Instant::now();
        while tally.samples < count {
            let elapsed = begin.elapsed();
            assert!(
                elapsed < TIMEOUT + INTERVAL * count as u32 / 100,
                "{tally:?}"
            );
            std::thread::sleep(INTERVAL);
            let mut new = Vec::new();
            sampler.drain(&mut catalog, &mut |sample| new.push(sample));
            for sample in &new {
                tally.add(&truth, &catalog, sample);
            }
        }
        eprintln!("{interpreter}: {tally:?}");
        assert_eq!(tally.wrong, [""; 0], "{interpreter}");
        // Few stacks have no outermost frame: those of the time before the process is known.
        assert!(tally.frames * 2 > tally.samples, "{interpreter}: {tally:?}");
        // Many have been dropped when their names are read.
        assert!(tally.known * 50 > tally.samples, "{interpreter}: {tally:?}");
    }
}
