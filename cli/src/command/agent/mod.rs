//! `otelctx agent`: records the machine without end, and sends what it records to a collector.
//!
//! Three threads, none of which waits for another: this one samples, the next one encodes messages, the last one sends
//! them. The second one waits for a further one, which resolves functions, for a bounded time. With `--parquet`, one more
//! converts messages from time to time, for which nothing waits.

mod batches;
mod cpu_budget;
mod cpu_time;
mod kernel_time;
mod listen;
mod monitor;
mod names;
mod notices;
mod others;
mod parquet;
mod periods;
mod pods;
mod privileges;
mod resolve_budget;
mod settings;
mod store;
mod supervisor;
mod symbols;
mod system_calls;
mod systemd;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use otelctx_agent::{Backoff, DropReason, Queue, Sender};
use otelctx_export::Exporter;
use otelctx_sampler::Targets;

use crate::command::record::session::{Plan, Session};
use crate::error::Error;
use crate::output::terminal;
use crate::output::text::{count, grouped};
use crate::{Setup, Status, hidden, interrupt};

use batches::Batches;
use cpu_budget::CpuBudget;
use kernel_time::KernelTime;
use monitor::Monitor;
use notices::Notices;
use parquet::Tables;
pub(crate) use settings::Arguments;
use settings::{ListenAddress, Settings};
use store::AgentStore;
use supervisor::Supervisor;
use systemd::Notifier;

pub(crate) fn run(arguments: Arguments, setup: &Setup) -> Result<Status, Error> {
    let settings = Settings::read(&arguments)?;
    if arguments.check_config {
        terminal::print(&settings.summary()?).map_err(Error::Output)?;
        return Ok(Status::Done);
    }
    if arguments.health {
        return health(&settings);
    }
    let endpoint = settings.endpoint()?;
    let exporter = Exporter::new(&endpoint)?;
    let queue = settings.queue()?;
    let files = settings.parquet()?;
    prepare(&settings)?;
    let session = session(&settings, setup)?;
    let message = format!(
        "recording all processes with {}, {} Hz, and sending to {endpoint} every {} s",
        session.method,
        settings.frequency,
        settings.interval.as_secs_f64()
    );
    terminal::complain(&message, None);
    let notices = Arc::new(Mutex::new(Notices::new()));
    let of_sender = Arc::clone(&notices);
    let on_event = move |event: otelctx_agent::Event| {
        notices::say(&of_sender, &event.to_string(), event.hint().as_deref());
    };
    let sender = Sender::start(queue.clone(), exporter, Backoff::default(), on_event);
    let sender = sender.map_err(Error::Thread)?;
    let is_ending = Arc::new(AtomicBool::new(false));
    let (frequency, address) = (settings.frequency, settings.listen);
    let settings = Arc::new(Mutex::new(Arc::new(settings)));
    let tables = Tables {
        files,
        notices: Arc::clone(&notices),
        failure: None,
    };
    let batches = Batches::start(
        Arc::clone(&settings),
        session.files(),
        queue.clone(),
        endpoint.message_size,
        tables,
        Arc::clone(&is_ending),
    );
    let batches = batches.map_err(Error::Thread)?;
    let progress = Arc::clone(&batches.progress);
    let threads = [
        ("encoder", batches.encoder.clone()),
        ("resolver", batches.resolver.clone()),
        ("sender", sender.liveness()),
    ];
    let monitor = Monitor::new(session.method, queue.clone(), progress, frequency, threads);
    let monitor = Arc::new(monitor);
    if let Some(address) = address {
        listen(address, &monitor)?;
    }
    let mut supervisor = Supervisor {
        arguments,
        settings,
        sender,
        monitor: Arc::clone(&monitor),
        notifier: Notifier::from_environment(),
        notices,
        on_cpu: 0,
        kernel_time: KernelTime::default(),
        budget: (session.method == "ebpf").then(|| CpuBudget::new(frequency, Instant::now())),
    };
    supervisor.notifier.ready();
    let (start, period) = (session.start_time(), session.period);
    let mut store = AgentStore::new(supervisor, batches, start, period);
    let recorded = session.run(&mut store, |_| {
        // It need not wait until the sampler has stopped.
        is_ending.store(interrupt::is_caught(), Ordering::Relaxed);
        false
    });
    is_ending.store(true, Ordering::Relaxed);
    store.finish(recorded).stop();
    say_end(&queue, monitor.progress.dropped.load(Ordering::Relaxed));
    Ok(Status::Done)
}

/// What is done before the first thread is started.
fn prepare(settings: &Settings) -> Result<(), Error> {
    interrupt::wake_on_signals().map_err(Error::Interrupt)?;
    interrupt::catch().map_err(Error::Interrupt)?;
    interrupt::catch_reloads().map_err(Error::Interrupt)?;
    hidden::say_if_any();
    say_others(&others::find());
    for failure in privileges::give_up(settings.listen.map(|it| it.0.port())) {
        terminal::complain(&failure, None);
    }
    Ok(())
}

/// Serves metrics and health.
fn listen(address: ListenAddress, monitor: &Arc<Monitor>) -> Result<(), Error> {
    let listening = listen::start(address, Arc::clone(monitor));
    let bound = listening.map_err(|why| Error::Listen {
        address: address.0,
        why,
    })?;
    terminal::complain(&format!("metrics and health on http://{bound}"), None);
    Ok(())
}

fn session(settings: &Settings, setup: &Setup) -> Result<Session, Error> {
    Session::start(Plan {
        targets: Targets::All,
        given: Vec::new(),
        older_children: None,
        is_command: false,
        code_files: Vec::new(),
        frequency: settings.frequency,
        ptrace_frequency: settings.frequency,
        wall: settings.wall,
        without_ebpf: settings.ptrace,
        setup: setup.clone(),
        duration: None,
        shows_progress: false,
    })
}

/// Asks a running agent for its health.
fn health(settings: &Settings) -> Result<Status, Error> {
    let address = settings.listen.ok_or(Error::NoListener)?;
    match listen::probe(address) {
        Ok((is_well, body)) => {
            terminal::print(&body).map_err(Error::Output)?;
            Ok(if is_well {
                Status::Done
            } else {
                Status::FoundProblem
            })
        }
        Err(why) => {
            terminal::complain(&format!("no agent answers on {address}: {why}"), None);
            Ok(Status::FoundProblem)
        }
    }
}

/// Says which processes are agents, too.
fn say_others(others: &[i32]) {
    let Some(first) = others.first() else {
        return;
    };
    let more = match others.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let message = format!(
        "another agent records this machine (process {first}{more}): samples are taken and sent once for each"
    );
    terminal::complain(&message, Some("stop all but one"));
}

/// Says what was sent, and what was not.
fn say_end(queue: &Queue, dropped_before: u64) {
    let counts = queue.counts();
    let number = |it: u64| usize::try_from(it).unwrap_or(usize::MAX);
    let samples = |it: u64| count(number(it), "sample", "samples");
    let messages = count(number(counts.sent.messages), "message", "messages");
    let mut line = format!("sent {} in {messages}", samples(counts.sent.samples));
    if counts.queued.messages > 0 {
        let waiting = samples(counts.queued.samples);
        line += &format!("; {waiting} in the queue's directory are sent later");
    }
    let of_queue = DropReason::ALL.map(|it| (it.name(), counts.dropped(it).samples));
    let all = of_queue.into_iter().chain([("overload", dropped_before)]);
    for (reason, dropped) in all.filter(|(_, dropped)| *dropped > 0) {
        line += &format!("; {} dropped ({reason})", grouped(number(dropped)));
    }
    terminal::complain(&line, None);
}
