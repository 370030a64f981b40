//! Names are read after a sample: by then, another function may have the same address.
//!
//! Needs the right to use eBPF. `cargo xtask soak recompiled` compares many more samples.

mod common;

use std::time::{Duration, Instant};

use common::start;
use otelctx_fixtures::python::Interpreter;
use otelctx_reader::sample::{Catalog, Frame, Sample};
use otelctx_sampler::INTERVAL;

const VERSIONS: [&str; 5] = ["2.7", "3.8", "3.11", "3.12", "3.13t"];
const TIMEOUT: Duration = Duration::from_secs(120);

/// What the samples came to.
#[derive(Debug, Default)]
struct Tally {
    samples: usize,
    /// Frames of Python.
    frames: usize,
    /// Those of functions that are dropped, with their names.
    known: usize,
}

impl Tally {
    fn add(&mut self, catalog: &Catalog, sample: &Sample) {
        self.samples += 1;
        // Functions that call each other have the same number.
        let mut number = None;
        let mut order = ["outer", "middle", "inner"].into_iter();
        for frame in catalog.frames(sample.user_stack).rev() {
            let Frame::Named(named) = frame else {
                continue;
            };
            self.frames += usize::from(!frame.is_gil_wait());
            let Some((function, own)) = named.function.split_once('_') else {
                continue;
            };
            if function == "make" {
                continue;
            }
            self.known += 1;
            assert_eq!(named.file, "<recompiled>", "{named:?}");
            if !named.qualified_name.is_empty() {
                let within = format!("make_{own}.<locals>.{}", named.function);
                assert_eq!(named.qualified_name, within);
            }
            assert_eq!(own, *number.get_or_insert(own), "{named:?}");
            assert!(order.any(|it| it == function), "{named:?}");
        }
    }
}

#[test]
fn a_sample_never_has_the_name_of_a_function_that_was_compiled_later() {
    let number = std::env::var("OTELCTX_SOAK_SAMPLES");
    let count: usize = number.map_or(4000, |number| number.parse().unwrap());
    for interpreter in VERSIONS.iter().flat_map(|it| Interpreter::with_version(it)) {
        let target = interpreter.start("recompiled.py");
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
                tally.add(&catalog, sample);
            }
        }
        eprintln!("{interpreter}: {tally:?}");
        // Many have been dropped when their names are read.
        assert!(tally.known * 50 > tally.samples, "{interpreter}: {tally:?}");
    }
}
