//! What a check found, and how it is told.

use serde::Serialize;

use super::looked_at::LookedAt;
use super::mend::Line;
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
    /// The file that it is about, in a process; the member, in a static library.
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// Of an access: its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    access: Option<&'static str>,
    /// Of an access: the model that the compiler wrote, where the code shows that a linker has
    /// replaced it.
    #[serde(skip_serializing_if = "Option::is_none")]
    relaxed_from: Option<&'static str>,
    /// Of the storage in a process.
    #[serde(skip_serializing_if = "Option::is_none")]
    storage: Option<&'static str>,
    /// What to do about it, a sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mend: Vec<String>,
    /// The same, to be copied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    apply: Vec<Line>,
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
            mend: Vec::new(),
            apply: Vec::new(),
        }
    }

    /// Adds a sentence that says what to do.
    pub(super) fn mend(mut self, line: impl Into<String>) -> Self {
        self.mend.push(line.into());
        self
    }

    /// Adds lines to copy.
    pub(super) fn apply(mut self, lines: impl IntoIterator<Item = Line>) -> Self {
        self.apply.extend(lines);
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

    /// Whether a reader would succeed in spite of all of these.
    pub(super) fn are_readable(findings: &[Self]) -> bool {
        findings.iter().all(|it| it.level != Level::Problem)
    }

    /// The finding, and below it what to do. Never cut: the end of a mend matters as much as its
    /// start. Lines to copy are not wrapped either.
    fn render(&self, terminal: &Terminal) -> String {
        let (mark, painted) = match self.level {
            Level::Ok => ("✓", terminal.paint(Style::Green, "✓")),
            Level::Note => ("!", terminal.paint(Style::Bold, "!")),
            Level::Problem => ("✗", terminal.paint(Style::Red, "✗")),
        };
        let lines = terminal.paragraph(&format!("{mark} "), &escape(&self.text));
        let mut text = lines.replacen(mark, &painted, 1);
        for line in &self.mend {
            text += &terminal.paragraph("    ", &escape(line));
        }
        text + &self.render_lines(terminal)
    }

    /// Those to copy: tools that take the same one share it, and what is long stands below its tool.
    fn render_lines(&self, terminal: &Terminal) -> String {
        let same = |a: &Line, b: &Line| a.line == b.line;
        let groups: Vec<(String, &str)> = self
            .apply
            .chunk_by(same)
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
                line.lines()
                    .for_each(|line| text += &format!("\n      {}", escape(line)));
            }
            text.push('\n');
        }
        text
    }
}

/// All that was found (docs/json.md).
#[derive(Debug, Serialize)]
pub(super) struct Answer {
    target: String,
    looked_at: LookedAt,
    readable: bool,
    findings: Vec<Finding>,
}

impl Answer {
    pub(super) fn new(
        target: impl Into<String>,
        looked_at: LookedAt,
        findings: Vec<Finding>,
    ) -> Self {
        Self {
            target: target.into(),
            looked_at,
            readable: Finding::are_readable(&findings),
            findings,
        }
    }

    /// Whether a reader would succeed.
    pub(super) fn readable(&self) -> bool {
        self.readable
    }

    /// What was looked at, and a line for each finding.
    pub(super) fn render(&self, terminal: &Terminal) -> String {
        let name = terminal.paint(Style::Bold, &escape(&self.target));
        let looked_at = terminal.paragraph("  ", &escape(&self.looked_at.to_string()));
        let findings = self.findings.iter().map(|finding| finding.render(terminal));
        format!("{name}\n{looked_at}{}", findings.collect::<String>())
    }
}
