//! Kinds of time in reports: which are shown, and what they are called.

use otelctx_profile::report::{Cost, KindCosts, Report, TimeKind};

use super::cells::{number, time};
use crate::output::table::Align;
use crate::output::text::count;

/// Kinds of time with the headings of their columns.
const COLUMNS: [(TimeKind, &str); 3] = [
    (TimeKind::Running, "CPU"),
    (TimeKind::Queued, "QUEUED"),
    (TimeKind::Waiting, "WAITING"),
];

/// The kinds of time that a report shows.
#[derive(Clone, Debug)]
pub(super) struct Kinds {
    /// Those of the first column; none stands for time on a CPU.
    main: Vec<TimeKind>,
    /// The report has time off a CPU.
    has_waits: bool,
}

impl Kinds {
    /// Creates the kinds of a report of these selected ones.
    pub(super) fn new(selected: &[TimeKind], report: &Report) -> Self {
        let mut main: Vec<TimeKind> = Vec::new();
        for (kind, _) in COLUMNS {
            main.extend(selected.contains(&kind).then_some(kind));
        }
        Self {
            main,
            has_waits: report.kinds.off_cpu().samples > 0,
        }
    }

    /// Returns the heading of the column with the time that a report is about.
    pub(super) fn head(&self) -> &'static str {
        match &self.main[..] {
            [] => "CPU",
            [TimeKind::Queued, TimeKind::Waiting] => "OFF CPU",
            [one] => COLUMNS
                .into_iter()
                .find(|it| it.0 == *one)
                .map_or("TIME", |it| it.1),
            _ => "TIME",
        }
    }

    /// Returns what that time is called in a sentence.
    pub(super) fn noun(&self) -> &'static str {
        match &self.main[..] {
            [] | [TimeKind::Running] => "CPU time",
            [TimeKind::Queued] => "time in the queue for a CPU",
            [TimeKind::Waiting] => "waiting time",
            [TimeKind::Queued, TimeKind::Waiting] => "time off the CPU",
            _ => "time",
        }
    }

    /// Returns the columns of kinds beside the first one.
    pub(super) fn columns() -> [(&'static str, Align); 3] {
        COLUMNS.map(|(_, name)| number(name))
    }

    /// Returns which of them are hidden.
    pub(super) fn hidden(&self) -> [bool; 3] {
        COLUMNS.map(|(kind, _)| match &self.main[..] {
            [] => kind == TimeKind::Running || !self.has_waits,
            [_] => true,
            several => !several.contains(&kind),
        })
    }

    /// Returns their cells.
    pub(super) fn cells(costs: &KindCosts) -> [String; 3] {
        COLUMNS.map(|(kind, _)| match costs.of(kind) {
            Cost { samples: 0, .. } => String::new(),
            cost => time(cost),
        })
    }

    /// Returns true if time off a CPU is beside that on a CPU.
    pub(super) fn has_waits_beside(&self) -> bool {
        self.main.is_empty() && self.has_waits
    }

    /// Formats sentences about time that tables do not sum up.
    pub(super) fn lines(&self, report: &Report) -> String {
        let mut lines = String::new();
        if self.has_waits_beside() {
            let off_cpu = report.kinds.off_cpu();
            lines += &format!(
                "off the CPU: {} queued and {} waiting, of {}; --kind waiting shows where\n",
                time(report.kinds.queued),
                time(report.kinds.waiting),
                count(off_cpu.samples as usize, "sample", "samples"),
            );
        }
        if report.idle.samples > 0 {
            lines += &format!(
                "idle: {} of waiting threads without a context is hidden; --idle shows it\n",
                time(report.idle)
            );
        }
        lines
    }
}
