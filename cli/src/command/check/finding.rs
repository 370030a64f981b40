//! The findings of a check, and how they are shown.

use serde::{Serialize, Serializer};

use super::fix::Line;
use super::subject::Subject;
use crate::output::terminal::{Style, Terminal, escape};

/// The effect of a finding on readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Ok,
    /// Readers succeed, but it is worth knowing.
    Note,
    /// Readers fail.
    Problem,
}

/// One finding. Its `id` is stable.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Finding {
    pub(super) id: &'static str,
    pub(super) level: Level,
    pub(super) text: String,
    /// The module of a process, or the member of a static library, that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// The access model, for a finding about access.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<&'static str>,
    /// The compiler's access model, if the code shows that the linker relaxed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    relaxed_from: Option<&'static str>,
    /// Kind of storage, for a finding about storage in a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<&'static str>,
    /// Sentences that say what to do about it.
    #[serde(
        rename = "hint",
        serialize_with = "join",
        skip_serializing_if = "Vec::is_empty"
    )]
    hints: Vec<String>,
    /// Lines to copy that do it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fix: Vec<Line>,
}

fn join<S: Serializer>(sentences: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&sentences.join(" "))
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
            module: None,
            access: None,
            relaxed_from: None,
            storage: None,
            hints: Vec::new(),
            fix: Vec::new(),
        }
    }

    pub(super) fn hint(mut self, line: impl Into<String>) -> Self {
        self.hints.push(line.into());
        self
    }

    pub(super) fn fix(mut self, lines: impl IntoIterator<Item = Line>) -> Self {
        self.fix.extend(lines);
        self
    }

    pub(super) fn access(mut self, access: &'static str, relaxed: Option<&'static str>) -> Self {
        self.access = Some(access);
        self.relaxed_from = relaxed;
        self
    }

    pub(super) fn storage(mut self, storage: &'static str) -> Self {
        self.storage = Some(storage);
        self
    }

    pub(super) fn module(mut self, module: &str) -> Self {
        self.module = Some(module.to_owned());
        self
    }

    /// Returns whether a reader would succeed despite these findings.
    pub(super) fn are_readable(findings: &[Self]) -> bool {
        findings.iter().all(|it| it.level != Level::Problem)
    }

    /// Formats the finding and its hints. They are never cut, and lines to copy are never wrapped.
    fn render(&self, terminal: &Terminal) -> String {
        let (mark, painted) = match self.level {
            Level::Ok => ("✓", terminal.paint(Style::Green, "✓")),
            Level::Note => ("!", terminal.paint(Style::Bold, "!")),
            Level::Problem => ("✗", terminal.paint(Style::Red, "✗")),
        };
        let lines = terminal.paragraph(&format!("{mark} "), &escape(&self.text));
        let mut text = lines.replacen(mark, &painted, 1);
        for line in &self.hints {
            text += &terminal.paragraph("    ", &escape(line));
        }
        text + &self.render_lines(terminal)
    }

    /// Formats the lines to copy. Tools with the same line share it; a long line goes below its tool.
    fn render_lines(&self, terminal: &Terminal) -> String {
        let groups: Vec<(String, &str)> = self
            .fix
            .chunk_by(|one, other| one.line == other.line)
            .map(|lines| {
                let tools: Vec<&str> = lines.iter().map(|line| line.tool).collect();
                (format!("    {}:", tools.join(", ")), lines[0].line.as_str())
            })
            .collect();
        let short = |(tools, line): &&(String, &str)| {
            !line.contains('\n') && terminal.fits(&format!("{tools}  {line}"))
        };
        let widest = groups.iter().filter(short).map(|(tools, _)| tools.len());
        let widest = widest.max().unwrap_or(0);
        let mut text = String::new();
        for (tools, line) in &groups {
            let one = format!("{tools:widest$}  {}", escape(line));
            if !line.contains('\n') && terminal.fits(&one) {
                text += &one;
            } else {
                text += tools;
                for line in line.lines() {
                    text += &format!("\n      {}", escape(line));
                }
            }
            text.push('\n');
        }
        text
    }
}

/// The whole answer (docs/json.md).
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    target: String,
    subject: Subject,
    pub(super) readable: bool,
    findings: Vec<Finding>,
}

impl Answer {
    pub(super) fn new(target: impl Into<String>, subject: Subject, findings: Vec<Finding>) -> Self {
        Self {
            target: target.into(),
            subject,
            readable: Finding::are_readable(&findings),
            findings,
        }
    }

    /// Formats the subject, and a line for each finding.
    pub(super) fn render(&self, terminal: &Terminal) -> String {
        let name = terminal.paint(Style::Bold, &escape(&self.target));
        let subject = terminal.paragraph("  ", &escape(&self.subject.to_string()));
        let findings = self.findings.iter().map(|finding| finding.render(terminal));
        format!("{name}\n{subject}{}", findings.collect::<String>())
    }
}
