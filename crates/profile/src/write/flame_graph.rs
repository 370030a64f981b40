//! A flame graph.

use std::io::{self, Write};

use inferno::flamegraph;

use super::folded;
use crate::{Options, Profile};

pub(super) fn write(
    profile: &Profile,
    options: &Options,
    writer: &mut dyn Write,
) -> io::Result<()> {
    let lines = folded::lines(profile, options);
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(stack, count)| format!("{stack} {count}"))
        .collect();
    let mut chosen = flamegraph::Options::default();
    chosen.title = match &options.by {
        Some(name) => format!("CPU by {name}"),
        None => "CPU".to_owned(),
    };
    let seconds = profile.clock().duration() as f64 / 1e9;
    chosen.subtitle = Some(format!("{} samples in {seconds:.1} s", profile.len()));
    chosen.count_name = "samples".to_owned();
    // The same function has the same colour in each picture.
    chosen.hash = true;
    if lines.is_empty() {
        // inferno takes no samples for an error.
        return writer.write_all(EMPTY.as_bytes());
    }
    flamegraph::from_lines(&mut chosen, lines.iter().map(String::as_str), writer)
}

const EMPTY: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"400\" height=\"40\">\
    <text x=\"10\" y=\"25\" font-family=\"sans-serif\">No samples.</text></svg>\n";
