//! `otelctx agent`: records the machine without end, and sends what it records to a collector.
//!
//! Three threads, none of which waits for another: this one samples, the next one resolves functions and encodes messages,
//! the last one sends them.

mod batches;
mod listen;
mod monitor;
mod names;
mod notices;
mod pods;
mod settings;
mod store;
mod supervisor;
mod systemd;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use otelctx_agent::{Backoff, DropReason, Queue, Sender};
use otelctx_export::Exporter;
use otelctx_sampler::Targets;

use crate::command::record::session::{Plan, Session};
use crate::error::Error;
use crate::output::terminal;
use crate::output::text::{count, grouped};
use crate::{Setup, Status, hidden, interrupt};

use batches::Batches;
use monitor::Monitor;
use notices::Notices;
pub(crate) use settings::Arguments;
use settings::Settings;
use store::AgentStore;
use supervisor::Supervisor;
use systemd::Notifier;

/// Time for sending what is in the queue after a signal. Files keep the rest, if there is a directory.
const GRACE: Duration = Duration::from_secs(3);

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
    interrupt::wake_on_signals().map_err(Error::Interrupt)?;
    interrupt::catch().map_err(Error::Interrupt)?;
    interrupt::catch_reloads().map_err(Error::Interrupt)?;
    hidden::say_if_any();
    let session = session(&settings, setup)?;
    let message = format!(
        "recording all processes with {}, {} Hz, and sending to {endpoint} every {} s",
        session.method,
        settings.frequency,
        settings.interval.as_secs_f64()
    );
    terminal::complain(&message, None);
    let notices = Mutex::new(Notices::new());
    let on_event = move |event: otelctx_agent::Event| {
        notices::say(&notices, &event.to_string(), event.hint().as_deref());
    };
    let sender = Sender::start(queue.clone(), exporter, Backoff::default(), on_event);
    let sender = sender.map_err(Error::Thread)?;
    let is_ending = Arc::new(AtomicBool::new(false));
    let (frequency, address) = (settings.frequency, settings.listen);
    let settings = Arc::new(Mutex::new(Arc::new(settings)));
    let batches = Batches::start(
        Arc::clone(&settings),
        session.files(),
        queue.clone(),
        endpoint.message_size,
        Arc::clone(&is_ending),
    );
    let batches = batches.map_err(Error::Thread)?;
    let progress = Arc::clone(&batches.progress);
    let monitor = Monitor::new(session.method, queue.clone(), progress, frequency);
    let monitor = Arc::new(monitor);
    if let Some(address) = address {
        let listening = listen::start(address, Arc::clone(&monitor));
        let bound = listening.map_err(|why| Error::Listen {
            address: address.0,
            why,
        })?;
        terminal::complain(&format!("metrics and health on http://{bound}"), None);
    }
    let mut supervisor = Supervisor {
        arguments,
        settings,
        sender,
        monitor: Arc::clone(&monitor),
        notifier: Notifier::from_environment(),
    };
    supervisor.notifier.ready();
    let mut store = AgentStore::new(supervisor, batches, session.start_time());
    let recorded = session.run(&mut store, |_| {
        // It need not wait until the sampler has stopped.
        is_ending.store(interrupt::is_caught(), Ordering::Relaxed);
        false
    });
    is_ending.store(true, Ordering::Relaxed);
    let mut supervisor = store.finish(recorded);
    supervisor.notifier.stopping();
    supervisor.sender.stop(GRACE);
    say_end(&queue, monitor.progress.dropped.load(Ordering::Relaxed));
    Ok(Status::Done)
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
