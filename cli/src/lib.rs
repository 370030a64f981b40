//! The `otelctx` command as a library: reads OpenTelemetry contexts from running processes.
//!
//! A program that calls [`run`] is the same command, with the runtimes in its [`Setup`].

mod command;
mod error;
mod hidden;
mod interrupt;
mod open_files;
mod output;
mod suspend;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use command::{agent, check, demo, dump, ps, record, report, symbolize, top, view};
use otelctx_reader::runtime::Runtimes;
pub use otelctx_sampler::KernelObject;
use output::terminal;

/// Show what each thread of a process is working on: its trace, span and attributes
#[derive(Debug, Parser)]
#[command(name = "otelctx", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  otelctx demo                       record a small service; needs nothing else
  otelctx ps                         list the processes that publish a context
  otelctx dump 4711                  show the contexts of process 4711 and its threads
  otelctx record -p 4711 -o out.svg  write a flame graph by service and route
  otelctx view out.otlp              open a recording as a page in a browser
  otelctx top                        show what threads are working on, live
  otelctx check ./app                check that readers will find this program's contexts

Exit status: 0 success, 1 a problem was found, 2 the command could not run.";

// Their descriptions are with their arguments: one here would replace the long ones.
#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Ps(ps::Arguments),
    Dump(dump::Arguments),
    Check(check::Arguments),
    Record(record::Arguments),
    Report(report::Arguments),
    View(view::Arguments),
    Symbolize(symbolize::Arguments),
    Top(top::Arguments),
    Agent(Box<agent::Arguments>),
    #[command(hide = true)]
    DemoService(demo::service::Arguments),
}

/// The outcome of a command that could run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Done,
    FoundProblem,
    /// It could not run after all, and has printed the reason.
    CouldNotRun,
    /// It ran another command, which ended with this exit status.
    Ended(u8),
}

impl Status {
    /// The states with a fixed exit status: all but [`Self::Ended`].
    const ALL: [Self; 3] = [Self::Done, Self::FoundProblem, Self::CouldNotRun];

    fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::FoundProblem => 1,
            Self::CouldNotRun => 2,
            Self::Ended(code) => code,
        }
    }

    fn of_code(code: i32) -> Option<Self> {
        let status = |status: &Self| i32::from(status.code()) == code;
        Self::ALL.into_iter().find(status)
    }
}

/// The language runtimes that the command supports, and the code that reads them in the kernel.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The language runtimes to support.
    pub runtimes: Runtimes,
    /// The sampler's eBPF programs with the steps of these runtimes, if there are any.
    pub kernel_object: Option<KernelObject>,
}

/// Returns the command's arguments, to generate shell completions and man pages from.
#[must_use]
pub fn arguments() -> clap::Command {
    Arguments::command()
}

/// Runs the command with the arguments of this process, and returns its exit status: 0 if it
/// succeeded, 1 if it found a problem, 2 if it could not run.
#[must_use]
pub fn run(setup: &Setup) -> ExitCode {
    interrupt::reset_sigchld();
    if let Err(why) = suspend::catch() {
        return ExitCode::from(end(Err(error::Error::Interrupt(why))));
    }
    let done = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Ps(arguments) => ps::run(&arguments, setup),
        Command::Dump(arguments) => dump::run(&arguments, &arguments.go_labels.of(setup)),
        Command::Check(arguments) => check::run(&arguments, &arguments.go_labels.of(setup)),
        Command::Record(arguments) => {
            let setup = arguments.go_labels.of(setup);
            record::run(arguments, &setup)
        }
        Command::Report(arguments) => report::run(&arguments),
        Command::View(arguments) => view::run(&arguments),
        Command::Symbolize(arguments) => symbolize::run(&arguments),
        Command::Top(arguments) => {
            let setup = arguments.go_labels.of(setup);
            top::run(arguments, &setup)
        }
        Command::Agent(arguments) => agent::run(*arguments, setup),
        Command::DemoService(arguments) => demo::service::run(&arguments),
    };
    ExitCode::from(end(done))
}

/// Prints why a command could not run, if so, and returns its exit status.
fn end(done: Result<Status, error::Error>) -> u8 {
    let status = done.unwrap_or_else(|error| {
        terminal::complain(&error.to_string(), error.hint().as_deref());
        Status::CouldNotRun
    });
    status.code()
}
