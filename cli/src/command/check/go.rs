//! Checks which labels the goroutines of a Go program have.

use otelctx_reader::format::process_context::Value;
use otelctx_reader::sweep::{Sweep, ThreadReading};
use otelctx_reader::{Error, Process};

use super::finding::Finding;
use super::threads::{Checked, partly_read};
use crate::output::text::{count, grouped};

/// The runtime's name.
const NAME: &str = "go";
/// How a trace gets into the labels of a goroutine, in the words of OpenTelemetry's SDK.
const FIX: &str = "pprof.Do(ctx, pprof.Labels(\"trace_id\", sc.TraceID().String(), \
    \"span_id\", sc.SpanID().String()), f)";

/// Returns the version of Go, if its threads can be read.
pub(super) fn version(process: &mut Process) -> Option<String> {
    let present = process.runtimes().ok()?;
    let runtime = present.iter().find(|it| it.name == NAME)?;
    let facts = runtime.process.as_ref().ok()?.facts();
    let version = facts.into_iter().find(|(name, _)| name == "version")?;
    match version.1 {
        Value::String(version) => Some(version),
        _ => None,
    }
}

/// Says that a Go program publishes no process context, without which its labels are read as well.
pub(super) fn absent(version: &str) -> Finding {
    let text = format!(
        "it publishes no process context: the labels of its goroutines ({version}) are read without, but readers do not \
         know its service"
    );
    Finding::note("no-process-context", text)
}

/// Numbers of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// That run a goroutine.
    running: usize,
    /// Whose goroutine has labels.
    labelled: usize,
    /// Whose goroutine has a trace in its labels.
    traced: usize,
}

/// Adds findings about the goroutines that threads run.
pub(super) fn check(
    process: &mut Process,
    sweep: Sweep<'_>,
    checked: &mut Checked,
) -> Result<(), Error> {
    let mut counts = Counts::default();
    let mut failed = Vec::new();
    let swept = sweep.run(process, &mut |thread: ThreadReading| {
        checked.stopped += usize::from(thread.stop.is_some());
        let reading = thread.runtimes.iter().find(|it| it.name == NAME);
        match reading.map(|it| &it.thread) {
            Some(Ok(goroutine)) => {
                let is_running = goroutine.facts.iter().any(|(name, _)| name == "goid");
                let context = goroutine.context.attached();
                counts.running += usize::from(is_running);
                counts.labelled += usize::from(context.is_some());
                let has_trace = context.is_some_and(|context| !context.trace_id.is_zero());
                counts.traced += usize::from(has_trace);
            }
            Some(Err(error)) => failed.push(error.to_string()),
            None => {}
        }
    })?;
    let findings = &mut checked.findings;
    if let Some(error) = failed.first() {
        let threads = count(failed.len(), "thread", "threads");
        let text = format!("{threads} can't be read: {error}");
        findings.push(Finding::problem("threads", text));
    }
    if swept.read > 0 {
        findings.extend(counts.findings(swept.read));
    }
    findings.extend(swept.partial.as_ref().map(partly_read));
    Ok(())
}

impl Counts {
    fn findings(self, threads: usize) -> Vec<Finding> {
        let Self {
            running,
            labelled,
            traced,
        } = self;
        let text = format!(
            "of {}, {} a goroutine now: {} labels, {} a trace in them",
            count(threads, "thread", "threads"),
            plural(running, "runs", "run"),
            plural(labelled, "has", "have"),
            plural(traced, "has", "have"),
        );
        let mut findings = vec![Finding::ok("go-labels", text)];
        if traced == 0 {
            let text = "no goroutine that runs now has a trace in its labels";
            let finding = Finding::note("go-no-trace", text);
            findings.push(finding.hint(format!("For the extent of a function:  {FIX}")));
        }
        findings
    }
}

/// A number and the verb's form for it.
fn plural(number: usize, one: &str, several: &str) -> String {
    let verb = if number == 1 { one } else { several };
    format!("{} {verb}", grouped(number))
}
