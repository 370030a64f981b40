//! A program that switches spans every 10 µs and notes when: every sample has the span that its
//! thread worked on at its time.
//!
//! Needs the right to use eBPF.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use otelctx_fixtures::spans::{SpanLog, Verdict};
use otelctx_fixtures::{Compiler, Target};
use otelctx_sampler::sample::{Catalog, Found};
use otelctx_sampler::{INTERVAL, Method, Options, Sampler, Targets};

const FREQUENCY: u32 = 4999;
const TIME: Duration = Duration::from_millis(500);
/// A busy machine gives the program less time: then it is sampled for longer.
const ENOUGH: usize = 500;
const PATIENCE: Duration = Duration::from_secs(30);

/// How a program comes to its variable.
struct Way {
    name: &'static str,
    compiler: Compiler,
    variable: &'static [&'static str],
    /// In a library, loaded when the program runs.
    library: bool,
    program: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const NO_SURPLUS: &[(&str, &str)] = &[("GLIBC_TUNABLES", "glibc.rtld.optional_static_tls=0")];

fn ways() -> Vec<Way> {
    let glibc = |name, variable, library, program| Way {
        name,
        compiler: Compiler::gcc(),
        variable,
        library,
        program,
        environment: &[],
    };
    let musl = |name, variable, library| Way {
        compiler: Compiler::musl_gcc(),
        ..glibc(name, variable, library, &[])
    };
    vec![
        glibc("PIE, local exec", &[], false, &["-rdynamic"]),
        glibc("static", &[], false, &["-static"]),
        glibc("initial exec", &["-ftls-model=initial-exec"], true, &[]),
        glibc("descriptor, static", &["-mtls-dialect=gnu2"], true, &[]),
        Way {
            environment: NO_SURPLUS,
            ..glibc("descriptor, dynamic", &["-mtls-dialect=gnu2"], true, &[])
        },
        glibc("general dynamic", &["-mtls-dialect=gnu"], true, &[]),
        musl("musl, local exec", &[], false),
        musl("musl, general dynamic", &["-mtls-dialect=gnu"], true),
    ]
}

impl Way {
    /// Builds and starts the program. `None` where its compiler is not installed.
    fn start(&self, log: &std::path::Path) -> Option<Target> {
        let mut flags: Vec<&str> = self.program.to_vec();
        let mut arguments = vec![format!("log={}", log.display()), "seconds=20".into()];
        let mut sources = vec!["spans.c", "publish.c"];
        if self.library {
            let library = self.compiler.library(&["variable.c"], self.variable)?;
            arguments.push(format!("lib={}", library.display()));
        } else {
            flags.extend(["-DLINKED", "-rdynamic"]);
            flags.extend(self.variable);
            sources.push("variable.c");
        }
        let program = self.compiler.program(&sources, &flags)?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .envs(self.environment.iter().copied());
        Some(Target::spawn(&mut command))
    }
}

/// A log's file, removed with this.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Samples a program, and holds each sample against what the program notes.
fn hold(way: &Way, index: usize, without_ebpf: bool) {
    let name = format!("spans-{}-{index}-{without_ebpf}.log", std::process::id());
    let log = Log(std::env::temp_dir().join(name));
    let Some(target) = way.start(&log.0) else {
        return;
    };
    let mut options = Options::new(Targets::Processes(vec![target.pid()]));
    options.frequency = FREQUENCY;
    options.without_ebpf = without_ebpf;
    let mut sampler = match Sampler::start(&options) {
        Ok(sampler) => sampler,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    match sampler.method() {
        Method::Ptrace(why) if !without_ebpf => return eprintln!("skipped: {why}"),
        _ => {}
    }
    let (mut catalog, mut samples) = (Catalog::new(), Vec::new());
    let start = Instant::now();
    while start.elapsed() < TIME || samples.len() < ENOUGH && start.elapsed() < PATIENCE {
        std::thread::sleep(INTERVAL);
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
    }
    let counts = sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    let truth = SpanLog::read(&log.0, &target.lines[0]).unwrap();
    let (mut right, mut edge, mut workers) = (0, 0, 0);
    for sample in &samples {
        // The main thread has no context; it sends the signals.
        let thread = catalog.thread_facts(sample.thread).tid;
        workers += u64::from(thread != target.pid());
        let Found::Attached(context) = sample.found else {
            continue;
        };
        let context = catalog.context_facts(context);
        let [(key, value)] = &context.attributes[..] else {
            panic!("{}: {context:?}", way.name);
        };
        assert_eq!(key, "worker");
        let (trace, span) = (context.trace_id.to_bytes(), context.span_id.to_bytes());
        match truth.judge((thread, sample.time), trace, span, value) {
            Verdict::Right => right += 1,
            Verdict::Edge => edge += 1,
            Verdict::Wrong(why) => panic!("{}: {why}", way.name),
        }
    }
    eprintln!("{}: {right} right, {edge} at an edge, {counts:?}", way.name);
    assert_eq!(counts.samples(), samples.len() as u64, "{}", way.name);
    assert_eq!(counts.unknown_keys, 0, "{}", way.name);
    assert!(right > 100, "{}: {right} right samples", way.name);
    // ptrace stops a thread anywhere, and loses ticks when it is late.
    if !without_ebpf {
        assert_eq!(counts.lost, 0, "{}", way.name);
        let attached = counts.attached;
        assert!(
            attached * 100 >= workers * 99,
            "{}: {counts:?} of {workers}",
            way.name
        );
    }
}

#[test]
fn every_sample_has_the_span_of_its_time() {
    for (index, way) in ways().iter().enumerate() {
        hold(way, index, false);
    }
}

#[test]
fn every_sample_by_ptrace_has_the_span_of_its_time() {
    hold(&ways()[0], 0, true);
}
