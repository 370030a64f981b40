//! The service that `demo` records: a shop with four workers. Three of them run async tasks, which
//! move between them; the fourth answers health checks in plain sequential code.

mod executor;
mod shop;

use std::io::{self, Write};
use std::sync::{Arc, Barrier};
use std::thread;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::{Pid, getppid};

use self::executor::Executor;
use crate::Status;
use crate::error::Error;
use crate::interrupt;

/// Name of the service, its process, and the timer thread.
const NAME: &std::ffi::CStr = c"shop";
const ASYNC_WORKERS: usize = 3;
/// Number of all workers: one more answers health checks.
pub(crate) const WORKERS: usize = ASYNC_WORKERS + 1;
/// Maximum number of concurrent requests.
const CLIENTS: usize = 6;

/// Written to standard output once the context is published.
pub(crate) const READY: &str = "ready";

/// The service that `demo` records
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The process that records; the service ends with it
    #[arg(long)]
    parent: i32,
}

/// Runs until the parent ends it, or ends itself.
pub(crate) fn run(arguments: &Arguments) -> Result<Status, Error> {
    // The parent handles Ctrl-C and ends this process.
    interrupt::ignore_ctrl_c().map_err(Error::Interrupt)?;
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(Error::Tie)?;
    if getppid() != Pid::from_raw(arguments.parent) {
        // The parent ended before prctl(2) took effect.
        return Ok(Status::Done);
    }
    let _process = otelctx::ProcessContext::detect()
        .with_service_name("shop")
        .with_attribute("deployment.environment.name", "demo")
        .publish()?;
    prctl::set_name(NAME).map_err(Error::Tie)?;
    let executor = Arc::new(Executor::default());
    // Recording must not start before every thread has its name.
    let started = Arc::new(Barrier::new(1 + WORKERS));
    for _ in 0..CLIENTS {
        executor.spawn(shop::client(executor.clone()));
    }
    for number in 1..=ASYNC_WORKERS {
        let executor = executor.clone();
        start(number, &started, move || executor.work())?;
    }
    start(WORKERS, &started, shop::answer_health_checks)?;
    started.wait();
    println(READY).map_err(Error::Output)?;
    executor.keep_time()
}

fn start(
    number: usize,
    started: &Arc<Barrier>,
    work: impl FnOnce() + Send + 'static,
) -> Result<(), Error> {
    let started = started.clone();
    let worker = thread::Builder::new().name(format!("worker-{number}"));
    let worker = worker.spawn(move || {
        started.wait();
        work();
    });
    worker.map(drop).map_err(Error::Start)
}

fn println(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}
