//! The report as text.

mod blocks;
mod runtimes;
mod stacks;
mod waits;

use std::io::{self, Write};

use otelctx_reader::format::Schema;
use otelctx_reader::format::record::{DecodedContext, Skipped};
use otelctx_reader::runtime::Present;
use otelctx_reader::{ContextState, Found, ProcessContext, SYMBOL, ThreadVariables, Unreadable};

use super::model::{CoreReport, Report, Support};
use crate::command::partial::sentence;
use crate::output::attributes::{contested, language, pairs, string};
use crate::output::table::{Align, Table};
use crate::output::terminal::{Style, Terminal, escape};
use crate::output::text::{self, count, own_name};

/// Shown if an ID is not set.
const NO_ID: &str = "-";

/// Maximum number of lines about missing parts of a core file.
const MAX_MISSING: usize = 8;

/// Added if threads were not stopped.
const WHILE_THEY_RAN: &str =
    "while the threads ran: each record was read twice, and is shown if both reads agree";

/// Shown for a thread with an invalid record, if a second read was not possible.
const INVALID: &str = "invalid: being rewritten, or detached";

/// Start of lines about all threads.
const THREADS: &str = "  threads   ";

pub(super) fn write(
    report: &Report,
    is_verbose: bool,
    terminal: &Terminal,
    out: &mut dyn Write,
) -> io::Result<()> {
    out.write_all(about_process(report, terminal).as_bytes())?;
    if blocks::are_wanted(report) {
        out.write_all(blocks::threads(report, is_verbose).as_bytes())?;
        return runtimes::write_tasks(report, out);
    }
    let has_runtimes = report.swept.runtimes.iter().any(Present::reads_threads);
    if has_runtimes || matches!(report.support(), Support::Readable(_)) {
        out.write_all(b"\n")?;
        table(report, terminal, out)?;
    }
    waits::table(report, terminal, out)?;
    out.write_all(runtimes::threads(report).as_bytes())?;
    runtimes::write_tasks(report, out)?;
    out.write_all(stacks::lines(report).as_bytes())
}

/// Everything except the table of threads.
fn about_process(report: &Report, terminal: &Terminal) -> String {
    let mut text = head(report, terminal);
    if let Some(tid) = report.asked_thread {
        text += &format!("  asked     thread {tid} of this process\n");
    }
    if let Some(core) = &report.core {
        text += &core_lines(core, report.threads.is_empty(), terminal);
    }
    match &report.context {
        ContextState::Published(context) => {
            text += &terminal.flow("  resource  ", &pairs(&context.payload.resource));
            let own = pairs(&context.payload.attributes);
            if !own.is_empty() {
                text += &terminal.flow("  context   ", &own);
            }
            for problem in &context.problems {
                text += &terminal.sentence("  skipped   ", &escape(&problem.to_string()));
            }
            for address in &context.others {
                let warning =
                    format!("a second process context at {address:#x}: readers must not use it");
                text += &terminal.sentence("  warning   ", &warning);
            }
            if let Some(warning) = contested_names(report, context) {
                text += &terminal.sentence("  warning   ", &warning);
            }
        }
        ContextState::Absent => text += "  publishes no process context\n",
        ContextState::Broken(why) => {
            let broken = format!("process context broken: {}", escape(&why.to_string()));
            text += &terminal.sentence("  ", &broken);
            if let Some(hint) = report.larger_payload() {
                text += &format!("            {hint}\n");
            }
        }
    }
    if let Some(detected) = &report.detected {
        text += &terminal.flow("  detected  ", &pairs(&detected.resource));
    }
    text += &about_threads(report, terminal);
    text += &runtimes::head(report, terminal);
    if report.running && report.swept.is_readable() {
        text += &terminal.sentence("  read      ", WHILE_THEY_RAN);
    } else if let (Support::Readable(_), Some(stopped)) =
        (report.support(), report.stopped_threads())
    {
        text += &terminal.sentence("  read      ", &read(report, stopped));
    }
    let unreadable = report.unreadable_modules();
    for (module, why) in unreadable.iter().take(MAX_MISSING) {
        let (module, why) = (escape(&text::path(module)), escape(why));
        let sentence = format!("{module} could not be inspected: {why}");
        text += &terminal.sentence("  missing   ", &sentence);
    }
    text += &more_missing(unreadable.len());
    if let Some(partial) = &report.swept.partial {
        text += &terminal.sentence("  partial   ", &sentence(partial));
    }
    text
}

/// Says how many threads were read, and how many of them were stopped.
fn read(report: &Report, (stopped, running): (usize, usize)) -> String {
    let threads = count(report.threads.len(), "thread", "threads");
    let stopped = match (stopped, running) {
        (0, _) => "none stopped".to_owned(),
        (1, 1) => "1 stopped (it was running)".to_owned(),
        _ if stopped == running => format!("{stopped} stopped (they were running)"),
        _ => format!("{stopped} stopped ({running} of them running)"),
    };
    let skipped = match report.swept.kernel_workers {
        0 => String::new(),
        skipped => {
            let workers = count(skipped, "kernel worker", "kernel workers");
            format!("; {workers} of io_uring skipped")
        }
    };
    format!("{threads}, {stopped}{skipped}")
}

/// Says how the threads' contexts are read, or why there are none.
fn about_threads(report: &Report, terminal: &Terminal) -> String {
    let threads = count(report.threads.len(), "thread", "threads");
    let why = match report.support() {
        Support::Readable(variables) => {
            let text = terminal.sentence(THREADS, &source(variables, report.forced));
            return text + &unannounced(report, variables, terminal);
        }
        Support::ByRuntime(schema, runtime) => {
            let schema = escape(schema.as_str());
            let sentence = format!("{threads}, contexts of {runtime}, schema {schema}");
            return terminal.sentence(THREADS, &sentence);
        }
        Support::Unpublished => {
            let sentence = format!("{threads}, without published contexts");
            return terminal.sentence(THREADS, &sentence);
        }
        Support::Unknown(error) => return terminal.sentence(THREADS, &escape(&error.to_string())),
        // Reported above.
        Support::Unreadable(Unreadable::BrokenProcessContext(_)) => " without it".into(),
        Support::Unreadable(why) => format!(": {}", escape(&why.to_string())),
    };
    let mut text = terminal.sentence(THREADS, &format!("{threads}, unreadable{why}"));
    if let (Some(pid), None) = (report.pid, &report.core) {
        let own = own_name();
        text += &format!("            `{own} check {pid}` says how to fix it\n");
    }
    text
}

/// Says that contexts may lack attributes: several modules publish contexts of threads, and there is
/// one process context, whose publisher alone can announce names.
fn unannounced(report: &Report, variables: &ThreadVariables, terminal: &Terminal) -> String {
    let number = variables.resolution.variables.len();
    match &report.context {
        ContextState::Published(context) if number > 1 && context.others.is_empty() => {
            let note = format!(
                "{number} modules have a variable for contexts, but there is one process context: \
                 contexts of other publishers may lack attributes"
            );
            terminal.sentence("  note      ", &note)
        }
        _ => String::new(),
    }
}

/// Says which names of attributes are not known, unless the publisher of each record is.
fn contested_names(report: &Report, context: &ProcessContext) -> Option<String> {
    if let Support::Readable(variables) = report.support()
        && variables.knows_publishers()
    {
        return None;
    }
    contested(context, ", which are shown by their indexes")
}

/// Formats the service's name (or the program's), process ID and language.
fn head(report: &Report, terminal: &Terminal) -> String {
    let resource = match &report.context {
        ContextState::Published(context) => Some(&context.payload.resource),
        _ => report.detected.as_ref().map(|detected| &detected.resource),
    };
    let service = resource.and_then(|resource| string(resource, "service.name"));
    let comm = report.comm.to_string_lossy();
    let name = escape(service.unwrap_or(&comm));
    let language = resource.and_then(language).map(escape).unwrap_or_default();
    let pid = (report.pid).map_or("pid unknown".into(), |pid| format!("pid {pid}"));
    let head = format!("{}  {pid}  {language}", terminal.paint(Style::Bold, &name));
    format!("{}\n", head.trim_end())
}

/// Says which core file it is, how the process ended, and what is missing.
fn core_lines(core: &CoreReport, no_threads: bool, terminal: &Terminal) -> String {
    let file = escape(&core.file.to_string_lossy());
    let end = match (&core.signal, core.crashed_thread) {
        (Some(signal), Some(tid)) => format!("ended by {signal} in thread {tid}"),
        // The lines of threads show it.
        _ if no_threads => "it is unknown how the process ended".to_owned(),
        _ => "written while the process was running".to_owned(),
    };
    let mut text = terminal.sentence("  core      ", &format!("{file}, {end}"));
    for missing in core.missing.iter().take(MAX_MISSING) {
        text += &terminal.sentence("  missing   ", &escape(missing));
    }
    text + &more_missing(core.missing.len())
}

/// Says how many of `all` missing parts are not shown.
fn more_missing(all: usize) -> String {
    match all.saturating_sub(MAX_MISSING) {
        0 => String::new(),
        more => format!("  missing   and {more} more: --json lists them\n"),
    }
}

/// Names the variables that the threads' contexts come from.
fn source(variables: &ThreadVariables, forced: bool) -> String {
    let variables_found = variables.resolution.variables.iter().enumerate();
    let places = variables_found.map(|(position, variable)| {
        let module = escape(&text::path(&variable.module));
        let access = text::access(variable.access);
        let hint = if variable.exported {
            ""
        } else {
            " (not exported: found in .symtab, which not every reader searches)"
        };
        let names = match variables.keys.context_of_variable(position) {
            Some(address) => format!(", names by the process context at {address:#x}"),
            None if variables.keys.is_without_context(position) => {
                ", names unknown (its publisher has no process context)".to_owned()
            }
            None => String::new(),
        };
        format!("in {module}, {access}{hint}{names}")
    });
    let places: Vec<String> = places.collect();
    let keys = count(variables.keys.all().names().len(), "key", "keys");
    let mut text = format!("{SYMBOL} {}, {keys}", places.join(", also "));
    let announced = variables.schema.as_ref();
    if forced && !announced.is_some_and(Schema::is_thread_local_record) {
        let schema = announced.map_or("no schema".into(), |schema| escape(schema.as_str()));
        text += &format!(" (read with --force: the process announces {schema})");
    }
    text
}

fn table(report: &Report, terminal: &Terminal, out: &mut dyn Write) -> io::Result<()> {
    let core = report.core.as_ref();
    let second = if core.is_some() { "SIGNAL" } else { "NAME" };
    let table = Table::new([
        ("TID", Align::Right),
        (second, Align::Left),
        ("TRACE", Align::Left),
        ("SPAN", Align::Left),
        ("ATTRIBUTES", Align::Left),
    ]);
    let rows = report.threads.iter().map(|thread| {
        let [trace, span, attributes] = match &thread.context {
            Ok(Found::Attached(context)) => context_cells(context),
            Ok(Found::Invalid) => word(INVALID),
            Ok(_) => word("none attached"),
            Err(error) => word(&format!("unreadable: {}", escape(error))),
        };
        let name = match (&thread.name, core) {
            (Some(name), _) => escape(&name.to_string_lossy()),
            (None, Some(core)) if core.crashed_thread == Some(thread.tid) => {
                core.signal.clone().unwrap_or_default()
            }
            _ => String::new(),
        };
        [thread.tid.to_string(), name, trace, span, attributes]
    });
    table.write(rows, terminal, out)
}

/// Returns a word in place of a context.
fn word(text: &str) -> [String; 3] {
    [text.into(), String::new(), String::new()]
}

fn context_cells(context: &DecodedContext) -> [String; 3] {
    let id = |zero: bool, id: String| if zero { NO_ID.into() } else { id };
    let attributes = context.attributes.iter();
    let mut attributes: Vec<String> = attributes
        .map(|(key, value)| format!("{}={}", escape(key), escape(value)))
        .collect();
    if !context.skipped.is_empty() {
        attributes.push(skipped(&context.skipped));
    }
    [
        id(context.trace_id.is_zero(), context.trace_id.to_string()),
        id(context.span_id.is_zero(), context.span_id.to_string()),
        attributes.join("  "),
    ]
}

/// Marks a context with attributes that are named by their index.
const NAMELESS: &str = "(#: names unknown)";

fn skipped(skipped: &Skipped) -> String {
    let parts = [
        (skipped.unknown_key as usize, "with an unknown key"),
        (skipped.not_utf8 as usize, "not UTF-8"),
        (skipped.incomplete_bytes, "bytes incomplete"),
    ];
    let parts = parts.iter().filter(|(number, _)| *number > 0);
    let parts = parts.map(|(number, what)| format!("{number} {what}"));
    let parts: Vec<String> = parts.collect();
    match (skipped.contested_key, parts.join(", ")) {
        (0, parts) => format!("(skipped: {parts})"),
        (_, parts) if parts.is_empty() => NAMELESS.into(),
        (_, parts) => format!("{NAMELESS}  (skipped: {parts})"),
    }
}
