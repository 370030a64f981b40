//! `otelctx top`: what threads are working on and how much CPU they use, live.

mod batch;
mod columns;
mod feed;
mod live;
mod names;
mod newest;
mod opened;
mod rows;
mod screen;
mod shared;
mod state;
mod time;
mod view;
mod window;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use otelctx_profile::report::is_level;
use otelctx_sampler::{Method, Targets};

use crate::command::child::{self, Waiting};
use crate::command::descendants;
use crate::command::filter::{self, Filter, NONE, Select};
use crate::command::go_labels::GoLabels;
use crate::command::help;
use crate::command::limits::limits;
use crate::command::wall::Wall;
use crate::command::{ids, needed, seconds};
use crate::error::Error;
use crate::output::terminal;
use crate::{Setup, Status, hidden, interrupt};

use columns::Share;
use feed::Feed;
use rows::{By, Samples, hide_idle};
use time::{Kinds, Time};
use window::{Cell, Window};

/// Show what each thread is working on and how much CPU it uses, live
///
/// Samples as `record` does; where eBPF is permitted, no thread is stopped. Press `?` for the keys. If
/// standard output is not a terminal, prints a table every interval.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Process IDs to watch, with their child processes, including those started later [default: all
    /// processes]
    #[arg(help_heading = help::PROCESSES, short, long, value_name = "PID", value_delimiter = ',', value_parser = ids::pid)]
    pid: Vec<i32>,
    #[command(flatten)]
    pub(crate) go_labels: GoLabels,
    /// Process IDs without the option
    #[arg(value_name = "PID", hide = true, conflicts_with_all = ["all", "command"])]
    bare: Vec<String>,
    #[command(flatten)]
    select: Select,
    /// Watch every process on this machine (the default)
    #[arg(help_heading = help::PROCESSES, short, long, conflicts_with_all = ["pid", "name", "container", "cgroup"])]
    all: bool,
    /// Run this command and watch it from its first instruction. Its stdin is empty and its output
    /// hidden; it is terminated when the view ends
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "name", "container", "cgroup", "all"])]
    command: Vec<OsString>,
    /// Initial grouping
    #[arg(help_heading = help::VIEW, short, long, value_name = "WHAT", default_value = "thread")]
    group: Group,
    /// Attribute to show for each row, `none` for none [default: http.route, otherwise the first
    /// attribute of any sample]; or what to group by, several with commas between: attributes,
    /// service, process, thread, trace, and of the innermost function function, file and line
    #[arg(help_heading = help::VIEW, long, value_name = "ATTRIBUTE,…", value_delimiter = ',', value_parser = ids::attribute)]
    by: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// Sampling frequency per CPU, in Hz
    #[arg(help_heading = help::SAMPLING, short = 'F', long, value_name = "HZ", default_value = "99",
        value_parser = clap::value_parser!(u32).range(1..=20_000))]
    frequency: u32,
    #[command(flatten)]
    wall: Wall,
    /// With --wall, show waits of threads without a context, too; rows of threads always have them
    #[arg(help_heading = help::VIEW, long, requires = "Wall")]
    idle: bool,
    /// Time between updates, in seconds
    #[arg(help_heading = help::VIEW, short, long, value_name = "SECONDS", default_value = "1", value_parser = seconds::seconds)]
    interval: Duration,
    /// Length of the window that shares are computed over, in seconds [default: 5; with --batch: the
    /// interval]
    #[arg(help_heading = help::VIEW, short, long, value_name = "SECONDS", value_parser = seconds::seconds)]
    window: Option<Duration>,
    /// Stop after this number of seconds
    #[arg(help_heading = help::VIEW, short, long, value_name = "SECONDS", value_parser = seconds::seconds)]
    duration: Option<Duration>,
    /// Print tables even on a terminal
    #[arg(help_heading = help::OUTPUT, long)]
    batch: bool,
    /// Stop after this number of tables
    #[arg(help_heading = help::OUTPUT, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iterations: Option<u64>,
    /// Print one JSON object per line instead of tables (fields: docs/json.md)
    #[arg(help_heading = help::OUTPUT, long)]
    json: bool,
    /// Sample by stopping threads, even if eBPF is permitted
    #[arg(help_heading = help::SAMPLING, long)]
    ptrace: bool,
}

const EXAMPLES: &str = "\
Examples:
  otelctx top                             the whole machine
  otelctx top -p 4711 --group attribute   which routes of a service take the time
  otelctx top --filter service.name=shop --by tenant
  otelctx top --by http.route,function    the functions of each route
  otelctx top --wall -p 4711              also what threads wait for, and since when
  otelctx top -- ./app --option value     a command, from its first instruction
  otelctx top --json --iterations 1       one table, for a script";

/// Properties that rows can be grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Group {
    Thread,
    /// The values of the attribute selected with --by
    Attribute,
    Trace,
    Process,
    Service,
    Function,
}

/// The resolved arguments.
struct Plan {
    by: By,
    /// The requested attribute; empty for none.
    attribute: Option<String>,
    interval: Duration,
    deadline: Option<Instant>,
    /// CPU time that one sample stands for, in nanoseconds.
    period: u64,
    /// What is sampled.
    kinds: Kinds,
    /// Waits without a context are shown in all rows.
    with_idle: bool,
    cpus: usize,
    /// True if threads are stopped to sample them.
    is_stopping: bool,
    /// What is not sampled as well as on other kernels.
    limits: Vec<String>,
    child: Option<Child>,
    /// Texts of which a stack's functions must have one; empty for all samples.
    functions: Vec<String>,
    /// Languages of the frames to show; empty for all.
    languages: Vec<String>,
}

impl Plan {
    /// Returns whether all targets have ended. Processes that a command leaves behind do not count.
    fn have_targets_ended(&self, feed: &Feed<'_>) -> bool {
        match &self.child {
            Some(child) => child::has_ended(child),
            None => !feed.sampler.has_targets(),
        }
    }

    fn is_over(&self) -> bool {
        self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    fn share(&self, window: &Window) -> Share {
        Share {
            period: self.period,
            wall: window.wall(),
            kinds: self.kinds,
        }
    }

    /// Leaves out idle waits if they are not to be shown. Returns their time, in nanoseconds.
    fn hide_idle(&self, samples: &mut Vec<(&Cell, Time)>, by: &By) -> u64 {
        if self.with_idle {
            return 0;
        }
        hide_idle(samples, by)
    }
}

pub(crate) fn run(mut arguments: Arguments, setup: &Setup) -> Result<Status, Error> {
    let bare = ids::without_option(&arguments.bare, "top")?;
    arguments.pid.extend(bare);
    arguments.wall = arguments.wall.of_kinds(&arguments.filter.kinds);
    let arguments = &arguments;
    let selected = arguments.select.processes(&arguments.pid)?;
    let pids = selected.pids;
    interrupt::catch().map_err(Error::Interrupt)?;
    interrupt::say_if_ignored();
    let cannot_start = child::cannot_start(&arguments.command);
    let waiting = start(&arguments.command).map_err(&cannot_start)?;
    let targets = match (&waiting, &pids[..]) {
        (Some(waiting), _) => Targets::Processes(vec![waiting.pid]),
        (None, []) => {
            hidden::say_if_any();
            Targets::All
        }
        (None, pids) => Targets::Processes(pids.to_vec()),
    };
    let mut options = sampling(arguments, setup, targets);
    options.older_children = waiting.is_none().then_some(selected.older_children);
    options.before_exec = waiting.is_some();
    let sampler = filter::start(&mut options, &arguments.pid)?;
    let wall = arguments.wall;
    wall.check(&sampler)?;
    let is_stopping = matches!(sampler.method(), Method::Ptrace(_));
    let limits = limits(&sampler);
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let live = io::stdout().is_terminal()
        && !(dumb || arguments.batch || arguments.json || arguments.iterations.is_some());
    let child = waiting.map(Waiting::go).transpose();
    let (by, attribute) = grouping(arguments.group, &arguments.by);
    let kinds = kinds(wall);
    let plan = Plan {
        by,
        attribute,
        interval: arguments.interval.max(shortest_interval(kinds)),
        kinds,
        with_idle: arguments.idle,
        deadline: arguments.duration.map(|duration| Instant::now() + duration),
        period: options.period(),
        cpus: online_cpus(),
        is_stopping,
        limits,
        child: child.map_err(cannot_start)?,
        functions: arguments.filter.functions.clone(),
        languages: arguments.filter.languages.clone(),
    };
    let window = match (arguments.window, live) {
        (Some(window), _) => window,
        (None, true) => WINDOW.max(plan.interval),
        (None, false) => Duration::ZERO,
    };
    let length = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
    let filter = &arguments.filter;
    let mut feed = Feed::new(sampler, filter, length, plan.period, wall.frequency());
    let done = if live {
        live::run(&mut feed, &plan)
    } else {
        for limit in &plan.limits {
            terminal::complain(limit, None);
        }
        batch::run(&mut feed, &plan, arguments.json, arguments.iterations)
    };
    let have_ended = plan.have_targets_ended(&feed) && !interrupt::is_caught();
    // Resumes stopped threads before anything waits for one.
    drop(feed);
    let status = plan.child.map(|child| {
        child::end(&child);
        child::status(child)
    });
    done?;
    Ok(match have_ended {
        true => say_end(&pids, &arguments.command, status),
        false => Status::Done,
    })
}

/// Returns what is sampled.
fn kinds(wall: Wall) -> Kinds {
    Kinds {
        running: wall.samples_cpu(),
        waits: wall.frequency().is_some(),
    }
}

/// Returns the shortest time between updates.
fn shortest_interval(kinds: Kinds) -> Duration {
    match kinds.waits {
        true => MIN_WAIT_INTERVAL,
        false => Duration::ZERO,
    }
}

/// Says why top ends.
fn say_end(pids: &[i32], command: &[OsString], status: Option<u8>) -> Status {
    let Some(status) = status else {
        terminal::complain(&ended(pids), None);
        return Status::Done;
    };
    let program = command[0].to_string_lossy();
    terminal::complain(&format!("{program} has ended with status {status}"), None);
    Status::Ended(status)
}

/// Returns the options of the sampler.
fn sampling(arguments: &Arguments, setup: &Setup, targets: Targets) -> otelctx_sampler::Options {
    let mut options = otelctx_sampler::Options::new(targets);
    options.frequency = arguments.frequency;
    options.wall_frequency = arguments.wall.frequency();
    options.on_cpu = arguments.wall.samples_cpu();
    options.without_ebpf = arguments.ptrace;
    options.runtimes = setup.runtimes.clone();
    options.code_files = needed::code_files(&arguments.command);
    options.kernel_object = setup.kernel_object;
    options
}

/// Returns what rows are grouped by first, and the attribute of their own column.
fn grouping(group: Group, words: &[String]) -> (By, Option<String>) {
    let by = match group {
        Group::Thread => By::Thread,
        Group::Attribute => By::Attribute(String::new()),
        Group::Trace => By::Trace,
        Group::Process => By::Process,
        Group::Service => By::Service,
        Group::Function => By::Function,
    };
    match words {
        [] => (by, None),
        [none] if none == NONE => (by, Some(String::new())),
        [attribute] if !is_level(attribute) => (by, Some(attribute.clone())),
        [level] => (By::of(level), None),
        levels => {
            let attribute = levels.iter().find(|name| !is_level(name));
            let levels = levels.iter().map(|level| By::of(level));
            (By::Levels(levels.collect()), attribute.cloned())
        }
    }
}

/// Starts a program that waits before its first instruction. It gets no terminal: the keys and the
/// screen are the view's.
fn start(command: &[OsString]) -> io::Result<Option<Waiting>> {
    let silent = |mut program: Command| {
        program.stdin(Stdio::null()).stdout(Stdio::null());
        program.stderr(Stdio::null());
        program
    };
    let program = child::program(command).map(silent);
    program.map(Waiting::start).transpose()
}

/// Says why the command ends, so that it is not mistaken for a failure.
fn ended(pids: &[i32]) -> String {
    match pids {
        [pid] => format!("process {pid} has ended"),
        pids => format!("processes {} have ended", descendants::list(pids)),
    }
}

/// Default window on a terminal: long enough for steady shares, short enough to be current.
const WINDOW: Duration = Duration::from_secs(5);
/// Shortest time between updates with waits: each slice of the window has cells for all threads.
const MIN_WAIT_INTERVAL: Duration = Duration::from_millis(200);

fn online_cpus() -> usize {
    let online = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN);
    online.ok().flatten().map_or(1, |number| number as usize)
}

/// Returns the attribute to show: the requested one, else the first key seen, which is the route if
/// there is one.
fn attribute(plan: &Plan, seen: &[String]) -> String {
    let shown = plan.attribute.as_ref().or(seen.first());
    shown.cloned().unwrap_or_default()
}

/// Adds up the times of each value of an attribute, in descending order.
fn times_by_value(samples: &Samples<'_>, attribute: &str) -> Vec<(String, Time)> {
    let mut values: HashMap<&str, Time> = HashMap::new();
    for (cell, time) in samples {
        if let Some(value) = cell.value(attribute) {
            *values.entry(value).or_default() += *time;
        }
    }
    let owned = |(value, time): (&str, Time)| (value.to_owned(), time);
    let mut values: Vec<(String, Time)> = values.into_iter().map(owned).collect();
    values.sort_by(|one, other| (other.1.all(), &one.0).cmp(&(one.1.all(), &other.0)));
    values
}
