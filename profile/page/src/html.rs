//! The page around the data: markup, style, scripts, and what readers without scripts see.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::bytes::base64;
use crate::order::{Ordered, WEIGHT_UNIT};
use crate::sections::{MAX_LABEL_BYTES, MAX_SHORT_BYTES, Section, Sections, period_in_time_units};
use crate::text::{clean, clean_all, escape};
use crate::tree::Tree;
use crate::{Kind, Recording};

const TEMPLATE: &str = include_str!("../page/index.html");
const STYLE: &str = include_str!("../page/style.css");

/// The page's modules, each after those it imports from.
const MODULES: [&str; 13] = [
    include_str!("../page/state.js"),
    include_str!("../page/columns.js"),
    include_str!("../page/tree.js"),
    include_str!("../page/selection.js"),
    include_str!("../page/text.js"),
    include_str!("../page/colours.js"),
    include_str!("../page/icicle.js"),
    include_str!("../page/timeline.js"),
    include_str!("../page/tables.js"),
    include_str!("../page/trace.js"),
    include_str!("../page/graph.js"),
    include_str!("../page/address.js"),
    include_str!("../page/app.js"),
];

/// The longest title.
const MAX_TITLE_BYTES: usize = 200;

/// Rows of the table for readers without scripts.
const STATIC_ROWS: usize = 20;

/// Writes the template with everything put in. Only the template's own `@…@` are replaced, whatever
/// a recording contains.
pub(crate) fn write(
    recording: &Recording,
    ordered: &Ordered,
    tree: &Tree,
    sections: &Sections,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let script = script();
    for (index, part) in TEMPLATE.split('@').enumerate() {
        if index % 2 == 0 {
            writer.write_all(part.as_bytes())?;
            continue;
        }
        match part {
            "SCRIPT_HASH" => writer.write_all(&hash(&script))?,
            "STYLE_HASH" => writer.write_all(&hash(STYLE))?,
            "SCRIPT" => writer.write_all(script.as_bytes())?,
            "STYLE" => writer.write_all(STYLE.as_bytes())?,
            "TITLE" => writer.write_all(escape(&title(recording)).as_bytes())?,
            "SUMMARY" => writer.write_all(escape(&summary(recording, ordered)).as_bytes())?,
            "NOTE" => writer.write_all(escape(&note(recording, tree)).as_bytes())?,
            "ROWS" => writer.write_all(rows(recording, tree).as_bytes())?,
            "OVERVIEW" => {
                write_facts(recording, ordered, writer)?;
                write_sections(&sections.overview, writer)?;
            }
            "SAMPLES" => write_sections(&sections.samples, writer)?,
            unknown => unreachable!("the template has no @{unknown}@"),
        }
    }
    writer.flush()
}

/// Joins the modules into one script: pages from `file://` may not import any. It is no module, as
/// such would run after the whole page is parsed.
fn script() -> String {
    let mut script = "'use strict';\n(() => {\n".to_owned();
    for module in MODULES {
        let mut is_import = false;
        for line in module.lines() {
            is_import |= line.starts_with("import ");
            if is_import {
                is_import = !line.ends_with(';');
                continue;
            }
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script.push_str("})();\n");
    script
}

/// A source expression of a Content-Security-Policy.
fn hash(text: &str) -> Vec<u8> {
    let mut source = b"sha256-".to_vec();
    source.extend(base64(&Sha256::digest(text.as_bytes())));
    source
}

fn title(recording: &Recording) -> String {
    let title = clean(&recording.title, MAX_TITLE_BYTES);
    let is_empty = title.trim().is_empty();
    if is_empty {
        "Recording".to_owned()
    } else {
        title.into_owned()
    }
}

fn summary(recording: &Recording, ordered: &Ordered) -> String {
    let counts = [
        (
            recording
                .samples
                .len()
                .saturating_sub(recording.further_parts),
            "sample",
        ),
        (recording.services.len(), "service"),
        (recording.routes.len(), "route"),
        (ordered.traces.len(), "trace"),
        (recording.threads.len(), "thread"),
    ];
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let texts: Vec<String> = counts.map(|(count, what)| counted(*count, what)).collect();
    texts.join(" · ")
}

/// `1 sample`, `2,000 samples`.
fn counted(count: usize, what: &str) -> String {
    format!(
        "{} {what}{}",
        grouped(count as u64),
        if count == 1 { "" } else { "s" }
    )
}

/// A number with commas between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The recording's note, and what the page itself does not show.
fn note(recording: &Recording, tree: &Tree) -> String {
    let mut note = recording.note.as_deref().map_or_else(String::new, |note| {
        clean(note, MAX_SHORT_BYTES).into_owned()
    });
    if tree.cut_samples > 0 {
        let samples = counted(tree.cut_samples as usize, "sample");
        let gap = if note.is_empty() { "" } else { " " };
        let _ = write!(note, "{gap}The stacks of {samples} end in “[more frames]”.");
    }
    note
}

/// Rows of the functions with the most time of their own.
fn rows(recording: &Recording, tree: &Tree) -> String {
    let any_running = recording
        .samples
        .iter()
        .any(|sample| sample.kind == Kind::Running);
    let weights = tree.weights_of_functions(any_running);
    let mut order: Vec<usize> = (0..weights.len())
        .filter(|index| weights[*index].0 > 0)
        .collect();
    order.sort_by_key(|index| (u64::MAX - weights[*index].0, *index));
    let mut rows = String::new();
    for index in order.into_iter().take(STATIC_ROWS) {
        let Some(function) = recording.functions.get(tree.functions[index] as usize) else {
            continue;
        };
        let name = escape(&clean(&function.name, 200));
        let mut place = escape(&clean(&function.file, 200));
        if function.line > 0 {
            let _ = write!(place, ":{}", function.line);
        }
        let milliseconds = |weight: u64| grouped(weight / (1_000_000 / WEIGHT_UNIT));
        let (own, total) = (
            milliseconds(weights[index].0),
            milliseconds(weights[index].1),
        );
        let _ = write!(
            rows,
            "<tr><th scope=\"row\"><bdi>{name}</bdi><small><bdi>{place}</bdi></small></th>\
             <td>{total} ms</td><td>{own} ms</td></tr>"
        );
    }
    rows
}

fn write_facts(recording: &Recording, ordered: &Ordered, writer: &mut dyn Write) -> io::Result<()> {
    let labels = |labels: &[String]| -> Vec<String> {
        let clean = clean_all(labels.iter().map(|label| &label[..]), MAX_LABEL_BYTES);
        clean.into_iter().map(Cow::into_owned).collect()
    };
    let facts = json!({
        "version": 1,
        "title": title(recording),
        "by": clean(&recording.by, MAX_SHORT_BYTES),
        "start": (recording.start.saturating_add(ordered.first)) / 1_000_000,
        "timeUnit": ordered.unit,
        "period": ordered.period,
        "periodInTime": period_in_time_units(recording, ordered),
        "plumbing": labels(&recording.plumbing),
        "services": labels(&recording.services),
        "routes": labels(&recording.routes),
    });
    // A script element ends at `</script`, whatever its type.
    let facts = facts.to_string().replace('<', "\\u003c");
    writeln!(
        writer,
        "<script type=\"application/json\" id=\"facts\">{facts}</script>"
    )?;
    Ok(())
}

fn write_sections(sections: &[Section], writer: &mut dyn Write) -> io::Result<()> {
    for Section { name, bytes } in sections {
        write!(
            writer,
            "<script type=\"application/octet-stream\" data-section=\"{name}\">"
        )?;
        writer.write_all(&bytes.packed()?)?;
        writeln!(writer, "</script>")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
