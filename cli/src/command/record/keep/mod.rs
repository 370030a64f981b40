//! `record --keep`: a recording without end, of which the last minute is in memory, and is written on request.
//!
//! A thread resolves functions and writes files, while the recorder samples on. Everything else is done between two
//! drains of the sampler: requests arrive by SIGUSR1, through a socket and by a trigger, and one is served at a time.

mod job;
mod names;
mod report;
mod requests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::TryRecvError;
use std::thread::Scope;
use std::time::Duration;

use otelctx_profile::sample::{Catalog, Sample};
use otelctx_profile::{Expression, KeptSpool, Match, Parts, Trigger};

use super::session::{Now, Recorded, Session, Store};
use crate::command::help;
use crate::command::recorders::Answer;
use crate::command::seconds;
use crate::interrupt;
use crate::output::terminal;
use crate::output::text::own_name;
use job::Jobs;
pub(super) use job::{Done, Work};
pub(super) use names::with_time;
use report::Reason;
pub(super) use report::Report;
use requests::{Requests, Waiting};

/// Options of a recording that is kept.
#[derive(Debug, clap::Args)]
pub(super) struct KeepOptions {
    /// Keep only the samples of the last SECONDS, in memory (at most 32 MiB). They are written on SIGUSR1, when
    /// `otelctx dump --last` asks for them, when --trigger fires, and at the end; names of files get the time:
    /// out.svg becomes out-2026-11-30T02-40-00Z.svg
    #[arg(help_heading = help::SAMPLING, long = "keep", value_name = "SECONDS", value_parser = kept, conflicts_with_all = ["time", "format"])]
    kept: Option<Duration>,
    /// Also write when this holds for a sample: conditions with `and` between them, on attributes as in --filter
    /// (http.route=/cart), on the time since a trace's first sample in its process (seen > 500ms), or on the time for
    /// which a thread waits (wait > 2s, lock wait > 100ms). Fires once for each trace, or wait, and writes once in the
    /// time to keep at most
    #[arg(help_heading = help::SAMPLING, long, value_name = "EXPRESSION", requires = "kept")]
    trigger: Option<Expression>,
    /// Maximum number of times that --keep writes
    #[arg(help_heading = help::OUTPUT, long, value_name = "N", default_value = "10", requires = "kept",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_files: u32,
}

impl KeepOptions {
    pub(super) fn is_given(&self) -> bool {
        self.kept.is_some()
    }
}

/// Parses the time to keep.
fn kept(text: &str) -> Result<Duration, String> {
    let kept = seconds::seconds(text)?;
    let range = Duration::from_secs(1)..=Duration::from_secs(3600);
    if range.contains(&kept) {
        Ok(kept)
    } else {
        Err("expected a time from 1s to 1h".to_owned())
    }
}

/// Stores the samples of a recording that is kept, and has them written.
pub(super) struct Keeper<'scope, W> {
    kept: Duration,
    spool: KeptSpool,
    trigger: Option<Trigger>,
    /// Samples since the last update that the trigger has not checked.
    unchecked: Vec<Sample>,
    /// The first match that was not written yet.
    matched: Option<Match>,
    /// The time before which the trigger does not write again.
    rests_until: u64,
    requests: Option<Requests>,
    jobs: Jobs<'scope, W>,
    /// What is being written, and the client that asked for it.
    current: Option<(Reason, Option<Waiting>)>,
    report: Report,
    has_said_dropped: bool,
}

impl<'scope, W: Work + 'scope> Keeper<'scope, W> {
    /// Starts to keep the samples of a session. `work` is done on a thread of the scope; what takes time waits while
    /// `hurry` is true.
    pub(super) fn start<'env>(
        options: &KeepOptions,
        session: &Session,
        scope: &'scope Scope<'scope, 'env>,
        work: W,
        hurry: Arc<AtomicBool>,
    ) -> Self {
        let kept = options.kept.unwrap_or_default();
        let jobs = Jobs::start(scope, work, hurry);
        let trigger = options.trigger.clone();
        let requests = Requests::listen();
        let (own, pid) = (own_name(), std::process::id());
        let seconds = kept.as_secs_f64();
        let asking = match requests {
            Some(_) => format!(" or `{own} dump --last {seconds}s`"),
            None => String::new(),
        };
        let message = format!(
            "keeping the last {seconds} s: `kill -USR1 {pid}`{asking} writes them, {} at most",
            times(options.max_files as usize),
        );
        terminal::complain(&message, None);
        Self {
            kept,
            spool: KeptSpool::new(kept, session.start_time()),
            report: Report::new(kept, trigger.as_ref(), options.max_files as usize),
            trigger: trigger.map(Trigger::new),
            unchecked: Vec::new(),
            matched: None,
            rests_until: 0,
            requests,
            jobs,
            current: None,
            has_said_dropped: false,
        }
    }

    /// Ends the recording. Returns its last part, what was written before, and what did the work.
    pub(super) fn finish(mut self, recorded: &Recorded) -> (Parts, Report, W) {
        self.check(&recorded.catalog);
        if let Some((reason, waiting)) = self.current.take()
            && let Some(done) = self.jobs.wait()
        {
            self.done(reason, waiting, done);
        }
        // Before the last file is written: later requests cannot be served.
        while let Some(waiting) = self.requests.as_ref().and_then(Requests::next) {
            self.refuse(
                waiting,
                "the recording has ended, and writes its last file".to_owned(),
            );
        }
        self.requests = None;
        let parts = self.parts(self.kept, &recorded.catalog, &recorded.now);
        (parts, self.report, self.jobs.end())
    }

    fn parts(&mut self, last: Duration, catalog: &Catalog, now: &Now) -> Parts {
        self.spool
            .last(last, catalog, now.clock, now.period, now.counts)
    }

    /// Checks new samples against the trigger.
    fn check(&mut self, catalog: &Catalog) {
        let Some(trigger) = &mut self.trigger else {
            return;
        };
        for sample in self.unchecked.drain(..) {
            if let Some(found) = trigger.check(&sample, catalog) {
                self.report.matches += 1;
                self.matched.get_or_insert(found);
            }
        }
    }

    /// Starts to write what is asked for, unless something is being written.
    fn serve(&mut self, catalog: &Catalog, now: &Now) {
        if let Some((reason, waiting)) = self.current.take() {
            match self.jobs.done() {
                Err(TryRecvError::Empty) => {
                    self.current = Some((reason, waiting));
                    return;
                }
                Ok(done) => self.done(reason, waiting, done),
                Err(TryRecvError::Disconnected) => {}
            }
        }
        let end = now.clock.end;
        let (reason, waiting) = if interrupt::take_write_request() {
            (Reason::Signal, None)
        } else if let Some(waiting) = self.requests.as_ref().and_then(Requests::next) {
            (Reason::Request, Some(waiting))
        } else if end >= self.rests_until
            && let Some(found) = self.matched.take()
        {
            self.rests_until = end.saturating_add(self.kept.as_nanos() as u64);
            (Reason::Trigger(found), None)
        } else {
            return;
        };
        if !self.report.may_write() {
            let why = self.report.refuse(&reason);
            if let Some(waiting) = waiting {
                self.refuse(waiting, why);
            }
            return;
        }
        let last = waiting.as_ref().map_or(self.kept, |it| it.last);
        let parts = self.parts(last, catalog, now);
        self.jobs.write(parts);
        self.current = Some((reason, waiting));
    }

    fn done(&mut self, reason: Reason, waiting: Option<Waiting>, done: Done) {
        let write = self.report.add(&reason, done);
        if let Some(waiting) = waiting {
            waiting.answer(&Answer {
                recorder: std::process::id() as i32,
                samples: write.samples,
                duration_ns: write.duration_ns,
                files: write.absolute_paths(),
                failed: write.failed.clone(),
            });
        }
    }

    fn refuse(&self, waiting: Waiting, why: String) {
        waiting.answer(&Answer {
            recorder: std::process::id() as i32,
            failed: vec![why],
            ..Answer::default()
        });
    }

    /// Says once that samples had to be dropped early.
    fn say_dropped(&mut self, now: &Now) {
        self.report.dropped_early = self.spool.dropped_early();
        if self.report.dropped_early == 0 || self.has_said_dropped {
            return;
        }
        self.has_said_dropped = true;
        let held = now.clock.end.saturating_sub(self.spool.complete_since()) as f64 / 1e9;
        let kept = self.kept.as_secs_f64();
        let message =
            format!("memory for samples, 32 MiB, holds the last {held:.0} s, not {kept} s");
        terminal::complain(&message, Some("sample less often (-F), or fewer processes"));
    }
}

impl<'scope, W: Work + 'scope> Store for Keeper<'scope, W> {
    fn push(&mut self, sample: &Sample) {
        self.spool.push(sample);
        if self.trigger.is_some() {
            self.unchecked.push(*sample);
        }
    }

    fn update(&mut self, catalog: &mut Catalog, now: &Now) -> io::Result<bool> {
        self.check(catalog);
        self.serve(catalog, now);
        let is_closed = self.spool.write(catalog, now.clock.end, now.counts);
        if is_closed && self.current.is_none() {
            // Names are there when they are needed, also those of processes that are gone by then.
            let newest = self.spool.newest(now.clock, now.period);
            newest
                .into_iter()
                .for_each(|parts| self.jobs.resolve(parts));
        }
        self.say_dropped(now);
        Ok(is_closed)
    }
}

/// Formats a number of times.
fn times(number: usize) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{number} times"),
    }
}
