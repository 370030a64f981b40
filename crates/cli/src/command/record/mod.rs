//! `otelctx record`: samples processes, and writes what they did and for which trace.

mod child;
mod progress;

use std::ffi::OsString;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use otelctx_profile::sample::{Catalog, Sample};
use otelctx_profile::{Clock, Format, Options, Profile, Recording};
use otelctx_sampler::{INTERVAL, Method, Sampler, Targets, monotonic};
use otelctx_symbolize::Symbols;

use crate::command::choice::{self, Choice, NONE, ROUTE};
use crate::command::seconds;
use crate::error::Error;
use crate::output::terminal;
use crate::output::words::{count, grouped};
use crate::{Status, interrupt};

use child::Waiting;
use progress::Progress;

/// Sample processes, and write what they did and for which trace
///
/// Ends when the processes have ended, after --duration, or by Ctrl-C, and writes then.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group(clap::ArgGroup::new("targets").required(true).args(["pid", "all", "command"])))]
pub(crate) struct Arguments {
    /// The processes to sample, and those that they start
    #[arg(short, long, value_name = "PID", value_delimiter = ',', value_parser = choice::pid)]
    pid: Vec<i32>,
    /// Sample every process on this machine
    #[arg(short, long)]
    all: bool,
    /// Start this program and sample it from its first instruction on
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
    /// Where to write; the ending chooses the format: .otlp, .pb.gz (pprof), .json.gz (Firefox
    /// Profiler), .svg (flame graph) or .folded. May be given several times
    #[arg(short, long, value_name = "FILE", default_value = "profile.otlp")]
    output: Vec<PathBuf>,
    /// How long to record
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds::seconds)]
    duration: Option<Duration>,
    /// Looks a second at each processor
    #[arg(short = 'F', long, value_name = "HZ", default_value = "99",
        value_parser = clap::value_parser!(u32).range(1..=20_000))]
    frequency: u32,
    /// The attribute at the root of flame graphs and folded stacks; `none` for none. By default
    /// http.route, if any sample has it
    #[arg(long, value_name = "ATTRIBUTE")]
    by: Option<String>,
    /// Keep only processes whose resource has this, such as service.name=shop
    #[arg(long, value_name = "KEY=VALUE", value_parser = choice::pair)]
    filter: Vec<(String, String)>,
    /// Keep only samples of this trace: 32 hexadecimal digits
    #[arg(long, value_name = "ID", value_parser = choice::trace)]
    trace: Option<otelctx_reader::format::TraceId>,
    /// What to put before the names of context attributes in OTLP
    #[arg(long, value_name = "PREFIX", default_value = "")]
    attribute_prefix: String,
    /// Look for separate debug files below this directory as well
    #[arg(long, value_name = "DIRECTORY")]
    debug_dir: Vec<PathBuf>,
    /// Stop threads to look at them, even where eBPF is permitted
    #[arg(long)]
    ptrace: bool,
}

const EXAMPLES: &str = "\
Examples:
  otelctx record -p 4711 -d 10 -o out.svg        a flame graph with the routes at its root
  otelctx record --all -o all.otlp -o all.pb.gz  every process, until Ctrl-C
  otelctx record -- ./app --its-own options      a program, from its first instruction on
  otelctx report profile.otlp                    what was recorded, as tables";

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    // What can't be written is better known before than after an hour.
    for path in &arguments.output {
        Format::from_path(path)?;
        writable(path)?;
    }
    interrupt::catch().map_err(Error::Interrupt)?;
    let mut recorded = record(arguments)?;
    Choice {
        resource: &arguments.filter,
        trace: arguments.trace,
    }
    .keep(&mut recorded);
    let counts = recorded.counts;
    let kept = recorded.samples.len();
    let symbols = arguments
        .debug_dir
        .iter()
        .fold(Symbols::new(), Symbols::debug_directory);
    let profile = Profile::new(recorded, &mut { symbols });
    let mut options = Options::default();
    options.by = root(arguments, &profile);
    options
        .attribute_prefix
        .clone_from(&arguments.attribute_prefix);
    let seconds = profile.clock().duration() as f64 / 1e9;
    let mut text = format!(
        "{} of {} in {seconds:.1} s: {} with a trace context, {} lost\n",
        count(kept, "sample", "samples"),
        count(profile.catalog().processes().len(), "process", "processes"),
        grouped(counts.attached as usize),
        grouped(counts.lost as usize),
    );
    for path in &arguments.output {
        profile.write_file(path, &options)?;
        text.push_str(&format!("  {}\n", opening(path)));
    }
    terminal::print(&text).map_err(Error::Output)?;
    Ok(Status::Done)
}

/// Samples until an end comes.
fn record(arguments: &Arguments) -> Result<Recording, Error> {
    let waiting = match &arguments.command[..] {
        [] => None,
        command => Some(Waiting::start(command).map_err(|why| cannot_start(command, why))?),
    };
    let targets = match &waiting {
        Some(waiting) => Targets::Processes(vec![waiting.pid()]),
        None if arguments.all => Targets::All,
        None => Targets::Processes(arguments.pid.clone()),
    };
    let mut options = otelctx_sampler::Options::new(targets);
    options.frequency = arguments.frequency;
    options.without_ebpf = arguments.ptrace;
    let start_unix = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let start = monotonic();
    let mut sampler = Sampler::start(&options)?;
    if let Method::Ptrace(why) = sampler.method() {
        terminal::complain(&format!("threads are stopped to look at them: {why}"), None);
    }
    let child = match waiting {
        Some(waiting) => {
            let started = waiting.go();
            Some(started.map_err(|why| cannot_start(&arguments.command, why))?)
        }
        None => None,
    };
    let mut catalog = Catalog::new();
    let mut samples: Vec<Sample> = Vec::new();
    let deadline = arguments.duration.map(|duration| Instant::now() + duration);
    let mut progress = Progress::new(arguments.duration);
    loop {
        let left = deadline.map(|end| end.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) || interrupt::is_caught() {
            break;
        }
        std::thread::sleep(left.map_or(INTERVAL, |left| left.min(INTERVAL)));
        sampler.drain(&mut catalog, &mut |sample| samples.push(sample));
        progress.show(&sampler.counts());
        let ended = match &child {
            Some(child) => child::has_ended(child),
            None => !sampler.has_targets(),
        };
        if ended {
            break;
        }
    }
    progress.clear();
    let counts = sampler.stop(&mut catalog, &mut |sample| samples.push(sample));
    let period = 1_000_000_000 / u64::from(arguments.frequency);
    Ok(Recording {
        catalog,
        samples,
        clock: Clock {
            start,
            end: monotonic(),
            start_unix: u64::try_from(start_unix.as_nanos()).unwrap_or(u64::MAX),
        },
        period: NonZeroU64::new(period).unwrap_or(NonZeroU64::MIN),
        counts,
    })
}

fn cannot_start(command: &[OsString], why: std::io::Error) -> Error {
    Error::Command {
        program: command[0].clone(),
        why,
    }
}

/// Whether a file can be written at `path`, as far as can be known before.
fn writable(path: &Path) -> Result<(), Error> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let existing = if path.exists() { path } else { directory };
    let permitted = match nix::unistd::access(existing, nix::unistd::AccessFlags::W_OK) {
        Ok(()) if path.is_dir() => Err(nix::Error::EISDIR),
        answer => answer,
    };
    permitted.map_err(|errno| {
        Error::Profile(otelctx_profile::Error::Write {
            path: path.to_owned(),
            source: errno.into(),
        })
    })
}

/// The attribute for flame graphs.
fn root(arguments: &Arguments, profile: &Profile) -> Option<String> {
    match arguments.by.as_deref() {
        Some(NONE) => None,
        Some(name) => Some(name.to_owned()),
        None => {
            let mut contexts = profile.catalog().contexts();
            let has_route =
                contexts.any(|(_, context)| context.attributes.iter().any(|(key, _)| key == ROUTE));
            has_route.then(|| ROUTE.to_owned())
        }
    }
}

/// What was written, and how to open it.
fn opening(path: &Path) -> String {
    let file = path.display();
    let how = match Format::from_path(path) {
        Ok(Format::Otlp) => format!("otelctx report {file}"),
        Ok(Format::Pprof) => format!("go tool pprof -http=: {file}"),
        Ok(Format::Firefox) => "load it at https://profiler.firefox.com".to_owned(),
        Ok(Format::FlameGraph) => "open it in a browser".to_owned(),
        _ => "one stack a line".to_owned(),
    };
    format!("{file}: {how}")
}
