//! A status line on the terminal while a recording runs.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use otelctx_profile::sample::Counts;

use crate::output::terminal::{columns, cut};
use crate::output::text::grouped;

/// The time between two updates of the line.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);

/// The line; empty if standard error is not a terminal.
pub(super) struct Progress {
    shown: bool,
    start: Instant,
    next: Instant,
    duration: Option<Duration>,
}

impl Progress {
    pub(super) fn new(duration: Option<Duration>) -> Self {
        let now = Instant::now();
        Self {
            shown: io::stderr().is_terminal(),
            start: now,
            next: now,
            duration,
        }
    }

    pub(super) fn show(&mut self, counts: &Counts) {
        let now = Instant::now();
        if !self.shown || now < self.next {
            return;
        }
        self.next = now + UPDATE_INTERVAL;
        let mut line = line(now - self.start, self.duration, counts);
        // Only the last row of a wrapped line would be overwritten. The width may change any time.
        if let Some(width) = columns(io::stderr().as_fd()) {
            line = cut(&line, width);
        }
        // Failures are harmless.
        let _ = write!(io::stderr(), "\r\x1b[K{line}");
    }

    pub(super) fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(since: Duration, duration: Option<Duration>, counts: &Counts) -> String {
    let of = duration.map_or(String::new(), |all| format!(" of {:.0}", all.as_secs_f64()));
    let end = match duration {
        Some(_) => "",
        None => " · Ctrl-C ends",
    };
    format!(
        "recording: {:.0}{of} s · {} samples, {} with a trace context · {} lost{end}",
        since.as_secs_f64(),
        grouped(counts.samples() as usize),
        grouped(counts.attached as usize),
        grouped(counts.lost as usize),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_what_has_come_and_what_to_do() {
        let mut counts = Counts::default();
        counts.attached = 1200;
        counts.detached = 34;
        let since = Duration::from_secs(12);
        assert_eq!(
            line(since, None, &counts),
            "recording: 12 s · 1,234 samples, 1,200 with a trace context · 0 lost · Ctrl-C ends"
        );
        let of = Some(Duration::from_secs(30));
        assert!(line(since, of, &counts).starts_with("recording: 12 of 30 s · "));
    }
}
