//! `otelctx agent`: records the machine for ever, and sends what it records to a collector.
//!
//! Three threads, none of which waits for another: this one samples, the next one resolves functions and encodes messages,
//! the last one sends them.

mod batches;
mod notices;
mod settings;
mod store;

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
use notices::Notices;
pub(crate) use settings::Arguments;
use settings::Settings;
use store::AgentStore;

/// Time for sending what is in the queue after a signal. A file keeps the rest, if there is a directory.
const GRACE: Duration = Duration::from_secs(3);

pub(crate) fn run(arguments: &Arguments, setup: &Setup) -> Result<Status, Error> {
    let settings = Settings::read(arguments)?;
    if arguments.check_config {
        terminal::print(&settings.summary()?).map_err(Error::Output)?;
        return Ok(Status::Done);
    }
    let endpoint = settings.endpoint()?;
    let message_size = endpoint.message_size;
    let exporter = Exporter::new(&endpoint)?;
    let queue = settings.queue()?;
    interrupt::catch().map_err(Error::Interrupt)?;
    hidden::say_if_any();
    let session = Session::start(Plan {
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
    })?;
    let method = session.method;
    let notices = Arc::new(Mutex::new(Notices::new()));
    let events = Arc::clone(&notices);
    let sender = Sender::start(queue.clone(), exporter, Backoff::default(), move |event| {
        notices::say(&events, &event.to_string(), event.hint().as_deref());
    })
    .map_err(Error::Thread)?;
    let every = settings.interval.as_secs_f64();
    let message = format!(
        "recording all processes with {method}, {} Hz, and sending to {endpoint} every {every} s",
        settings.frequency
    );
    terminal::complain(&message, None);
    let hurry = Arc::new(AtomicBool::new(false));
    let interval = settings.interval;
    let settings = Arc::new(Mutex::new(Arc::new(settings)));
    let batches = Batches::start(
        settings,
        session.files(),
        queue.clone(),
        message_size,
        Arc::clone(&hurry),
    )
    .map_err(Error::Thread)?;
    let mut store = AgentStore::new(batches, interval, session.start_time());
    let recorded = session.run(&mut store, |_| false);
    hurry.store(true, Ordering::Relaxed);
    let totals = store.finish(recorded);
    sender.stop(GRACE);
    say_end(&queue, totals.dropped_samples);
    Ok(Status::Done)
}

/// Says what was sent, and what was not.
fn say_end(queue: &Queue, dropped_before: u64) {
    let counts = queue.counts();
    let samples = |number: u64| {
        count(
            usize::try_from(number).unwrap_or(usize::MAX),
            "sample",
            "samples",
        )
    };
    let mut line = format!(
        "sent {} in {}",
        samples(counts.sent.samples),
        count(counts.sent.messages as usize, "message", "messages")
    );
    if counts.queued.messages > 0 {
        line += &format!(
            "; {} wait in the queue's directory",
            samples(counts.queued.samples)
        );
    }
    for reason in DropReason::ALL {
        let dropped = counts.dropped(reason).samples;
        if dropped > 0 {
            line += &format!(
                "; {} dropped ({})",
                grouped(dropped as usize),
                reason.name()
            );
        }
    }
    if dropped_before > 0 {
        line += &format!("; {} dropped (overload)", grouped(dropped_before as usize));
    }
    terminal::complain(&line, None);
}
