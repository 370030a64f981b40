//! Checks whether a reader can read each thread.

use otelctx_reader::sweep::{Partial, Sweep, ThreadReading};
use otelctx_reader::{ContextState, Error, Found, Process};

use super::finding::Finding;
use crate::command::partial;
use crate::output::attributes;
use crate::output::text::{count, grouped};

/// The findings, and what reading the threads took.
pub(super) struct Checked {
    pub(super) findings: Vec<Finding>,
    pub(super) stopped: usize,
}

pub(super) fn check(
    process: &mut Process,
    sweep: Sweep<'_>,
    checked: &mut Checked,
) -> Result<(), Error> {
    // Other readers fail before they get this far.
    let troubled = !Finding::are_readable(&checked.findings);
    let mut attached = 0;
    let mut failed = Vec::new();
    let swept = sweep
        .unverified()
        .run(process, &mut |thread: ThreadReading| {
            checked.stopped += usize::from(thread.stop.is_some());
            let is_attached = matches!(thread.context, Ok(Found::Attached(_)));
            attached += usize::from(is_attached);
            let mut runtimes = thread.runtimes.into_iter().filter(|_| !is_attached);
            let unreadable = runtimes.find_map(|it| it.thread.err());
            failed.extend(unreadable.map(|error| error.to_string()));
            match thread.context {
                Err(error) if !thread.is_late => failed.push(error.to_string()),
                _ => {}
            }
        })?;
    let (read, findings) = (swept.read, &mut checked.findings);
    if let Some(error) = failed.first() {
        let threads = count(failed.len(), "thread", "threads");
        let text = format!("{threads} can't be read: {error}");
        findings.push(Finding::problem("threads", text));
    } else if read > 0 || swept.partial.is_none() {
        findings.push(readable(troubled, read, attached, swept.partial.is_some()));
        if attached == 0 && swept.partial.is_none() {
            let context = match process.context() {
                Ok(ContextState::Published(context)) => Some(context),
                _ => None,
            };
            let resource = context.as_deref().map(|it| &it.payload.resource);
            findings.push(none_attached(resource.and_then(attributes::language)));
        }
    }
    findings.extend(swept.partial.as_ref().map(partly_read));
    Ok(())
}

/// Says how many threads were read, and how many of them have a record attached.
fn readable(troubled: bool, read: usize, attached: usize, is_partial: bool) -> Finding {
    let found = if troubled {
        "apart from that, a reader would find"
    } else {
        "a reader finds"
    };
    let threads = match read {
        1 if is_partial => "context of one of its threads".to_owned(),
        1 => "context of its only thread".to_owned(),
        several if is_partial => format!("contexts of {} of its threads", grouped(several)),
        several => format!("contexts of its {} threads", grouped(several)),
    };
    let text = format!("{found} the {threads}; {} attached now", grouped(attached));
    Finding::ok("threads", text)
}

/// Says that no thread has a record attached, of a program in this language.
fn none_attached(language: Option<&str>) -> Finding {
    let attaches = match language {
        Some("rust") => {
            "A Rust program calls  context.attach()  or uses otelctx-opentelemetry or otelctx-tracing"
        }
        Some("c") => "A C program calls  otelctx_context_attach(record)",
        Some("cpp") => "A C++ program calls  context.attach()  or has  otelctx::storage()",
        Some("python") => {
            "A Python program calls  otelctx.attach(context)  or has  OTEL_PYTHON_CONTEXT=otelctx"
        }
        Some("nodejs") => {
            "A Node.js program calls  context.run(…)  or has  --import otelctx/register. OpenTelemetry \
             creates no spans there without an exporter, as with OTEL_TRACES_EXPORTER=none"
        }
        _ => "",
    };
    Finding::note(
        "none-attached",
        "no thread has a record attached: it is between requests, or its publisher attaches none",
    )
    .hint(format!("Check again under load. {attaches}").trim_end())
}

/// The deadline passed before all threads were read. If none was read, it is unknown whether they
/// can be.
pub(super) fn partly_read(partial: &Partial) -> Finding {
    let text = partial::sentence(partial);
    let finding = match partial.read {
        0 => Finding::problem("partial", text),
        _ => Finding::note("partial", text),
    };
    match partial::hint(partial) {
        Some(hint) => finding.hint(format!("{hint}.")),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_threads_have_thousands_separators() {
        let finding = serde_json::to_value(readable(false, 21_034, 1_500, false)).unwrap();
        assert_eq!(
            finding["text"],
            "a reader finds the contexts of its 21,034 threads; 1,500 attached now"
        );
    }
}
