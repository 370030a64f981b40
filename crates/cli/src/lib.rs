//! The `otelctx` command as a library: reads OpenTelemetry contexts out of running processes.
//!
//! A program of its own that calls [`run`] is the same command.

mod command;
mod error;
mod interrupt;
mod output;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use command::{check, demo, dump, ps, record, report, top};
use output::terminal;

/// See what each thread of a process works on: its trace, span and attributes
#[derive(Debug, Parser)]
#[command(name = "otelctx", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  otelctx demo         a small service, recorded from outside: nothing else needed
  otelctx ps           which processes here publish a context
  otelctx dump 4711    what process 4711 and each of its threads publish
  otelctx record -p 4711 -o out.svg  a flame graph of it, with the routes at its root
  otelctx top          what threads work on right now, and what that takes
  otelctx check ./app  would a reader find the contexts of this program?

Exit status: 0 done, 1 found a problem, 2 could not run.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a small service that publishes its contexts, and record it from outside
    Demo(demo::Arguments),
    /// List the processes that publish a context
    Ps(ps::Arguments),
    /// Show the context of a process and of each of its threads
    Dump(dump::Arguments),
    /// Find out whether readers can find a program's contexts, and what to do if not
    Check(check::Arguments),
    /// Sample processes, and write what they did and for which trace
    Record(record::Arguments),
    /// Show what was recorded: CPU by route, by trace, by function
    Report(report::Arguments),
    /// Show live what threads work on, and what of the processors that takes
    Top(top::Arguments),
    /// The service that `demo` records
    #[command(hide = true)]
    DemoService(demo::service::Arguments),
}

/// What a command that could run has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Done,
    FoundProblem,
    /// It could not run after all, and has said why.
    CouldNotRun,
    /// It has run another command, which has ended with this exit status.
    Ended(u8),
}

impl Status {
    /// Those of this command's own.
    const ALL: [Self; 3] = [Self::Done, Self::FoundProblem, Self::CouldNotRun];

    /// The exit status.
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

/// Runs the command with the arguments of this process, and returns its exit status: 0 done, 1 found
/// a problem, 2 could not run.
#[must_use]
pub fn run() -> ExitCode {
    interrupt::reset_sigchld();
    let done = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Ps(arguments) => ps::run(&arguments),
        Command::Dump(arguments) => dump::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Record(arguments) => record::run(&arguments),
        Command::Report(arguments) => report::run(&arguments),
        Command::Top(arguments) => top::run(&arguments),
        Command::DemoService(arguments) => demo::service::run(&arguments),
    };
    ExitCode::from(end(done))
}

/// Complains if a command could not run, and returns its exit status.
fn end(done: Result<Status, error::Error>) -> u8 {
    let status = done.unwrap_or_else(|error| {
        terminal::complain(&error.to_string(), error.hint().as_deref());
        Status::CouldNotRun
    });
    status.code()
}
