//! What a check found, and how it is told.

use serde::Serialize;

use crate::output::terminal::{Style, Terminal, escape};

/// Whether a reader minds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// Readers cope, but somebody may want to know.
    Note,
    /// Readers fail.
    Problem,
}

/// One thing that was found. `id` names it for programs, and never changes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) level: Level,
    pub(super) text: String,
    /// What to do about it, a line each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) mend: Vec<String>,
}

impl Finding {
    pub(super) fn ok(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Level::Ok, text)
    }

    pub(super) fn note(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Level::Note, text)
    }

    pub(super) fn problem(id: &'static str, text: impl Into<String>) -> Self {
        Self::new(id, Level::Problem, text)
    }

    fn new(id: &'static str, level: Level, text: impl Into<String>) -> Self {
        Self {
            id,
            level,
            text: text.into(),
            mend: Vec::new(),
        }
    }

    /// Adds a line that says what to do.
    pub(super) fn mend(mut self, line: impl Into<String>) -> Self {
        self.mend.push(line.into());
        self
    }

    /// Whether a reader would succeed in spite of all of these.
    pub(super) fn are_readable(findings: &[Self]) -> bool {
        findings.iter().all(|it| it.level != Level::Problem)
    }
}

/// All that was found (docs/json.md).
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    target: String,
    readable: bool,
    findings: Vec<Finding>,
}

impl Answer {
    pub(super) fn new(target: impl Into<String>, findings: Vec<Finding>) -> Self {
        Self {
            target: target.into(),
            readable: Finding::are_readable(&findings),
            findings,
        }
    }

    /// Whether a reader would succeed.
    pub(super) fn readable(&self) -> bool {
        self.readable
    }

    /// A line for each finding, and below it what to do. Never cut: the end of a mend matters as
    /// much as its start.
    pub(super) fn render(&self, terminal: &Terminal) -> String {
        let mut text = String::new();
        for finding in &self.findings {
            let (mark, painted) = match finding.level {
                Level::Ok => ("✓", terminal.paint(Style::Green, "✓")),
                Level::Note => ("•", "•".into()),
                Level::Problem => ("✗", terminal.paint(Style::Red, "✗")),
            };
            let lines = terminal.paragraph(&format!("{mark} "), &escape(&finding.text));
            text += &lines.replacen(mark, &painted, 1);
            for line in &finding.mend {
                text += &terminal.paragraph("    ", &escape(line));
            }
        }
        text
    }
}
