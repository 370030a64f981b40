//! Why threads wait, as text.

use std::io::{self, Write};

use super::super::model::{Report, ThreadReport};
use crate::output::table::{Align, Table};
use crate::output::terminal::{Terminal, escape};

/// Writes a table of the threads that wait, if their reasons are known.
pub(super) fn table(report: &Report, terminal: &Terminal, out: &mut dyn Write) -> io::Result<()> {
    if report.threads.iter().all(|thread| thread.wait.is_none()) {
        return Ok(());
    }
    out.write_all(b"\n")?;
    let table = Table::new([
        ("TID", Align::Right),
        ("NAME", Align::Left),
        ("WAIT", Align::Left),
    ]);
    let rows = report.threads.iter().filter_map(|thread| {
        let name = thread.name.as_ref().map(|name| name.to_string_lossy());
        let name = name.map(|name| escape(&name)).unwrap_or_default();
        let wait = thread.wait.as_ref()?;
        Some([thread.tid.to_string(), name, escape(&wait.text)])
    });
    table.write(rows, terminal, out)
}

/// The line about a thread in its block, if its reason is known.
pub(super) fn line(thread: &ThreadReport) -> String {
    let wait = thread.wait.as_ref();
    let line = wait.map(|wait| format!("    waits: {}\n", escape(&wait.text)));
    line.unwrap_or_default()
}
