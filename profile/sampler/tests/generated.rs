//! Functions of a runtime whose frames the sampler cannot read itself have the names that it announces for perf.
//!
//! Needs the right to use eBPF.

use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::Target;
use otelctx_fixtures::kernel::Feature;
use otelctx_fixtures::python::Interpreter;
use otelctx_sampler::sample::{Catalog, Frame, FrameKind, Sample};
use otelctx_sampler::{INTERVAL, Options, Sampler, Targets};

/// Long enough for everything to happen, even on a slow machine.
const TIMEOUT: Duration = otelctx_fixtures::HANG_TIMEOUT;
const SAMPLES: usize = 1000;

#[test]
fn functions_of_python_have_the_names_that_it_announces() {
    for interpreter in Interpreter::with_version("3.12").into_iter().take(1) {
        let program = interpreter.command("spinning.py");
        let mut command = Command::new(&interpreter.path);
        command.args(["-X", "perf"]).args(program.get_args());
        let target = Target::spawn(command.arg("600000"));
        let mut options = Options::new(Targets::Processes(vec![target.pid()]));
        options.frequency = 999;
        let mut sampler = Sampler::start(&options).unwrap();
        if Feature::Ebpf
            .or_skip(sampler.method().require_ebpf())
            .is_none()
        {
            return;
        }
        let (mut catalog, mut samples) = (Catalog::new(), Vec::<Sample>::new());
        let begin = Instant::now();
        let mut has_tables = false;
        while samples.len() < SAMPLES {
            assert!(begin.elapsed() < TIMEOUT, "{}", samples.len());
            std::thread::sleep(INTERVAL);
            sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
            if !has_tables {
                samples.clear();
                has_tables = sampler.counts().complete_stacks > 0;
            }
        }
        let counts = sampler.stop(&mut catalog, &mut |_| {}).counts;
        drop(target);
        for name in ["only_inner", "only_outer"] {
            let is_it = |frame: &Frame| {
                let Frame::Named(named) = frame else {
                    return false;
                };
                named.function == name
                    && named.kind == FrameKind::CPYTHON
                    && named.file.ends_with("/spinning.py")
            };
            let calls =
                |it: &&Sample| catalog.frames(it.user_stack).filter(|it| is_it(it)).count() == 1;
            let calling = samples.iter().filter(calls).count();
            let all = samples.len();
            assert!(
                100 * calling >= 90 * all,
                "{calling} of {all} call {name}: {counts:?}"
            );
        }
    }
}
