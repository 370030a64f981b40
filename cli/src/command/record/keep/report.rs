//! What was written while a recording was kept, and why.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use otelctx_profile::{Expression, Match};
use serde::Serialize;

use super::super::output::Written;
use super::{Done, times};
use crate::output::clock;
use crate::output::terminal;
use crate::output::text::{count, grouped};

/// Maximum number of failures that are listed; all are counted.
const MAX_FAILURES: usize = 16;

/// The reason why what is kept is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::command::record) enum Reason {
    /// SIGUSR1.
    Signal,
    /// `otelctx dump --last`.
    Request,
    Trigger(Match),
    /// The recording has ended.
    End,
}

impl Reason {
    /// Names in JSON, and in words.
    fn names(&self) -> (&'static str, &'static str) {
        match self {
            Self::Signal => ("signal", "on SIGUSR1"),
            Self::Request => ("request", "for dump --last"),
            Self::Trigger(_) => ("trigger", "by --trigger"),
            Self::End => ("end", "at the end"),
        }
    }
}

/// What was written, when and why (docs/json.md).
#[derive(Debug, Serialize)]
pub(in crate::command::record) struct Write {
    reason: &'static str,
    /// The end of what was written.
    time: String,
    pub(super) duration_ns: u64,
    pub(super) samples: usize,
    files: Vec<Written>,
    pub(super) failed: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trigger: Option<MatchJson>,
}

/// The sample that fired (docs/json.md).
#[derive(Debug, Serialize)]
struct MatchJson {
    pid: i32,
    comm: String,
    tid: i32,
    trace_id: Option<String>,
    seen_ns: Option<u64>,
    wait_ns: Option<u64>,
    reason: Option<String>,
}

impl MatchJson {
    fn new(found: &Match) -> Self {
        Self {
            pid: found.pid,
            comm: found.comm.clone(),
            tid: found.tid,
            trace_id: found.trace.map(|it| it.to_string()),
            seen_ns: found.seen,
            wait_ns: found.wait,
            reason: found.reason.clone(),
        }
    }

    fn line(&self) -> String {
        let mut line = format!("process {} ({}), thread {}", self.pid, self.comm, self.tid);
        if let Some(trace) = &self.trace_id {
            line += &format!(", trace {trace}");
        }
        let milliseconds = |nanoseconds: u64| grouped((nanoseconds / 1_000_000) as usize);
        if let Some(seen) = self.seen_ns {
            line += &format!(", seen for {} ms", milliseconds(seen));
        }
        if let Some(wait) = self.wait_ns {
            line += &format!(", waiting for {} ms", milliseconds(wait));
        }
        match &self.reason {
            Some(reason) => line + &format!(": {reason}"),
            None => line,
        }
    }
}

impl Write {
    /// Returns the files, for a command with another working directory.
    pub(super) fn absolute_paths(&self) -> Vec<PathBuf> {
        let path = |it: &Written| {
            let path = Path::new(&it.path);
            std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
        };
        self.files.iter().map(path).collect()
    }
}

/// What was written in the course of a recording (docs/json.md).
#[derive(Debug, Serialize)]
pub(in crate::command::record) struct Report {
    keep_ns: u64,
    trigger: Option<String>,
    max_files: usize,
    /// Number of times that something was written, by reason.
    written: BTreeMap<&'static str, u64>,
    /// Number of times that nothing could be written.
    failed: u64,
    /// Number of times that nothing was written because of `--max-files`.
    refused: u64,
    /// Number of traces or waits for which the trigger has fired; some are in one file.
    pub(super) matches: u64,
    /// Number of sixths of the time to keep that were dropped because samples exceeded 32 MiB.
    pub(super) dropped_early: u64,
    writes: Vec<Write>,
    #[serde(skip)]
    has_said_max: bool,
}

impl Report {
    pub(super) fn new(kept: Duration, trigger: Option<&Expression>, max_files: usize) -> Self {
        Self {
            keep_ns: kept.as_nanos() as u64,
            trigger: trigger.map(ToString::to_string),
            max_files,
            written: BTreeMap::new(),
            failed: 0,
            refused: 0,
            matches: 0,
            dropped_early: 0,
            writes: Vec::new(),
            has_said_max: false,
        }
    }

    fn all_written(&self) -> u64 {
        self.written.values().sum()
    }

    /// Returns false once files were written as often as permitted.
    pub(in crate::command::record) fn may_write(&self) -> bool {
        self.all_written() < self.max_files as u64
    }

    /// Counts that nothing was written because of the maximum, and says so: of a trigger, which may fire on and on, once.
    pub(in crate::command::record) fn refuse(&mut self, reason: &Reason) -> String {
        self.refused += 1;
        let why = format!(
            "files were written {}, as often as --max-files permits",
            times(self.max_files)
        );
        let is_trigger = matches!(reason, Reason::Trigger(_));
        if !(is_trigger && std::mem::replace(&mut self.has_said_max, true)) {
            let message = format!("not written {}: {why}", reason.names().1);
            terminal::complain(&message, None);
        }
        why
    }

    /// Adds what was written, and says so.
    pub(super) fn add(&mut self, reason: &Reason, done: Done) -> &Write {
        let write = self.note(reason, done);
        let (_, words) = reason.names();
        let mut message = match write.files.len() {
            0 => format!("not written {words}"),
            _ => {
                let files: Vec<&str> = write.files.iter().map(|it| &it.path[..]).collect();
                let samples = count(write.samples, "sample", "samples");
                let seconds = write.duration_ns as f64 / 1e9;
                let files = files.join(", ");
                format!("written {words}: {files}: {samples} of the last {seconds:.1} s")
            }
        };
        if let Some(found) = &write.trigger {
            message += &format!("; {}", found.line());
        }
        terminal::complain_with(&message, write.failed.iter().map(String::as_str));
        write
    }

    /// Adds what was written at the end, which the closing lines say, unless nothing was because of `--max-files`.
    pub(in crate::command::record) fn end(&mut self, done: Done) {
        if self.may_write() {
            self.note(&Reason::End, done);
        } else {
            self.refuse(&Reason::End);
        }
    }

    /// Returns true if a file could not be written before the end.
    pub(in crate::command::record) fn has_failures(&self) -> bool {
        self.failed > 0 || self.writes.iter().any(|it| !it.failed.is_empty())
    }

    fn note(&mut self, reason: &Reason, done: Done) -> &Write {
        let name = reason.names().0;
        if done.written.is_empty() && !done.is_sent {
            self.failed += 1;
            let failures = self.writes.iter().filter(|it| it.files.is_empty()).count();
            if failures >= MAX_FAILURES {
                let oldest = self.writes.iter().position(|it| it.files.is_empty());
                oldest.map(|index| self.writes.remove(index));
            }
        } else {
            *self.written.entry(name).or_default() += 1;
        }
        self.writes.push(Write {
            reason: name,
            time: clock::utc(UNIX_EPOCH + Duration::from_nanos(done.end_unix)),
            duration_ns: done.duration_ns,
            samples: done.samples,
            files: done.written,
            failed: done.failed,
            trigger: match reason {
                Reason::Trigger(found) => Some(MatchJson::new(found)),
                _ => None,
            },
        });
        let last = self.writes.len() - 1;
        &self.writes[last]
    }

    /// Formats a line for the end of the recording.
    pub(in crate::command::record) fn line(&self) -> String {
        let all = [Reason::Signal, Reason::Request, Reason::End].map(|it| it.names());
        let trigger = ("trigger", "by --trigger");
        let mut parts = Vec::new();
        for (name, words) in [all[0], all[1], trigger, all[2]] {
            if let Some(number) = self.written.get(name) {
                parts.push(format!("{} {words}", times(*number as usize)));
            }
        }
        let seconds = self.keep_ns as f64 / 1e9;
        let written = self.all_written() as usize;
        let by = match parts.len() {
            0 => "not written".to_owned(),
            _ => format!("written {} ({})", times(written), parts.join(", ")),
        };
        let mut line = format!("  kept the last {seconds} s: {by}");
        for (number, what) in [
            (self.failed, "could not be written"),
            (self.refused, "not written because of --max-files"),
        ] {
            if number > 0 {
                line += &format!(", {} {what}", times(number as usize));
            }
        }
        if self.matches > 0 {
            line += &format!("; --trigger fired {}", times(self.matches as usize));
        }
        if self.dropped_early > 0 {
            line += "; 32 MiB did not hold all samples of that time";
        }
        line + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(is_written: bool) -> Done {
        Done {
            end_unix: 1_709_210_096_007_000_000,
            duration_ns: 60_000_000_000,
            samples: 3,
            written: Vec::from_iter(is_written.then(|| Written::new(Path::new("a.svg")))),
            is_sent: false,
            failed: Vec::from_iter((!is_written).then(|| "a.svg: cannot be written".to_owned())),
        }
    }

    #[test]
    fn the_last_line_says_how_often_and_why_files_were_written() {
        let expression: Expression = "seen > 1s".parse().unwrap();
        let mut report = Report::new(Duration::from_secs(60), Some(&expression), 3);
        assert_eq!(report.line(), "  kept the last 60 s: not written\n");
        for reason in [Reason::Signal, Reason::Signal, Reason::Request] {
            assert!(report.may_write());
            assert_eq!(
                report.add(&reason, done(true)).time,
                "2024-02-29T12:34:56.007Z"
            );
        }
        assert!(!report.may_write() && !report.has_failures());
        // Not written any more.
        report.end(done(true));
        report.matches = 7;
        assert_eq!(
            report.line(),
            "  kept the last 60 s: written 3 times (2 times on SIGUSR1, once for dump --last), once not written because \
             of --max-files; --trigger fired 7 times\n"
        );
    }

    #[test]
    fn failures_are_counted_and_the_last_ones_listed() {
        let mut report = Report::new(Duration::from_secs(60), None, 3);
        report.add(&Reason::Signal, done(true));
        // Without the message that `add` prints each time.
        for _ in 0..1000 {
            report.note(&Reason::Signal, done(false));
        }
        // They do not count as written.
        assert!(report.may_write() && report.has_failures());
        assert_eq!(
            (report.failed, report.writes.len()),
            (1000, 1 + MAX_FAILURES)
        );
        report.end(done(true));
        let line = "  kept the last 60 s: written 2 times (once on SIGUSR1, once at the end), 1000 times could not be \
                    written\n";
        assert_eq!(report.line(), line);
    }
}
