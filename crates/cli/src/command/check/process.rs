//! A running process: what it publishes, and whether a reader can follow it to each thread.

use std::collections::BTreeMap;
use std::path::Path;

use otelctx_reader::format::{KEY_MAP, KeyMapError, SCHEMA_VERSION, Schema};
use otelctx_reader::remote::Access;
use otelctx_reader::remote::module::Module;
use otelctx_reader::remote::tls::TlsVariable;
use otelctx_reader::{
    Broken, ContextState, Error as ReaderError, Options, Process, ProcessContext, SYMBOL,
    ThreadSupport, ThreadVariables, Unreadable,
};

use super::finding::{Answer, Finding};
use super::variable::{self, Owner};
use crate::command::patience::patiently;
use crate::error::{Error, is_gone};
use crate::output::words::count;

/// Says whether readers can read what process `pid` publishes, by reading all of it.
pub(super) fn check(pid: i32) -> Result<Answer, Error> {
    let mut options = Options::default();
    // The variable is of interest also where the process context does not lead to it.
    options.any_schema = true;
    let mut process = Process::with_options(pid, options)?;
    let mut findings = match process.context()? {
        ContextState::Published(context) => published(&context),
        ContextState::Absent => vec![
            Finding::problem("no-process-context", "it publishes no process context")
                .mend(
                    "At start-up a Rust program calls  otelctx::ProcessContext::detect().publish()",
                )
                .mend("If it does: did that return an error? A sandbox may deny memfd_create."),
        ],
        ContextState::Broken(why) => vec![broken(&why)],
    };
    match process.thread_support()? {
        ThreadSupport::Readable(variables) => {
            findings.extend(found(pid, &variables));
            findings.push(threads(&mut process, !Finding::are_readable(&findings))?);
        }
        ThreadSupport::Unreadable(Unreadable::NotFound { unreadable }) => {
            findings.push(variable::absent(format!(
                "no module of the process exports {SYMBOL}"
            )));
            findings.extend(modules(&unreadable));
        }
        ThreadSupport::Unreadable(why) => {
            findings.push(Finding::problem("threads", why.to_string()));
        }
    }
    Ok(Answer::new(pid.to_string(), findings))
}

fn broken(why: &Broken) -> Finding {
    let finding = Finding::problem(
        "broken-process-context",
        format!("its process context can't be read: {why}"),
    );
    match why {
        Broken::TooLarge { .. } => finding
            .mend("Publish less: readers need not accept more than 64 KiB, and seldom take 1 MiB."),
        Broken::BeingUpdated { .. } => finding
            .mend("If this stays, the publisher ended in the middle of an update: publish again."),
        _ => finding.mend("Publish in the order that OTEP 4719 demands; the crate otelctx does."),
    }
}

/// What the process context says, apart from where the threads have theirs.
fn published(context: &ProcessContext) -> Vec<Finding> {
    let service = context.payload.resource_attribute("service.name");
    let mut findings = vec![Finding::ok(
        "process-context",
        format!(
            "its process context is valid, with {} of the resource",
            count(context.payload.resource.len(), "attribute", "attributes")
        ),
    )];
    if service.is_none() {
        findings.push(
            Finding::note("no-service-name", "the resource has no service.name")
                .mend("Set OTEL_SERVICE_NAME, or  .service_name(\"…\")"),
        );
    }
    for problem in &context.problems {
        findings.push(
            Finding::note("attribute", format!("readers leave it out: {problem}"))
                .mend("Publish each attribute once, under a name."),
        );
    }
    for address in &context.others {
        findings.push(
            Finding::note(
                "second-process-context",
                format!("a second process context lies at {address:#x}, which readers don't use"),
            )
            .mend("Two publishers are at work in this process: keep one of them."),
        );
    }
    findings.push(schema(context.schema.as_ref()));
    findings.extend(key_map(context));
    findings
}

fn schema(schema: Option<&Schema>) -> Finding {
    match schema {
        Some(schema) if schema.is_thread_local_record() => {
            Finding::ok("schema", format!("its schema is {schema}"))
        }
        Some(schema) => Finding::problem(
            "unsupported-schema",
            format!("its schema is {schema}, which this reader does not support"),
        )
        .mend(format!(
            "Thread-local records are announced by  {SCHEMA_VERSION}={}",
            Schema::TlsdescV1Dev
        )),
        None => Finding::problem(
            "no-schema",
            format!("it announces no thread contexts: {SCHEMA_VERSION} is missing"),
        )
        .mend(format!(
            "Publish  {SCHEMA_VERSION}={}  in the process context; the crate otelctx does.",
            Schema::TlsdescV1Dev
        )),
    }
}

fn key_map(context: &ProcessContext) -> Vec<Finding> {
    match &context.keys {
        Ok(Some(keys)) => {
            let names = keys.names();
            let valid = Finding::ok(
                "key-map",
                format!("its key map has {}", count(names.len(), "key", "keys")),
            );
            [valid].into_iter().chain(oddities(names)).collect()
        }
        Ok(None) => vec![
            Finding::note(
                "no-key-map",
                format!("{KEY_MAP} is missing: records have ids, but no attributes"),
            )
            .mend("Publish the names of the attributes there, in the order of their indexes."),
        ],
        Err(error) => {
            vec![
                Finding::problem("broken-key-map", error.to_string()).mend(match error {
                    KeyMapError::TooMany => "An index has one byte: publish at most 256 names.",
                    _ => "Publish it as an array of strings.",
                }),
            ]
        }
    }
}

/// Names that can't mean what their publisher meant.
fn oddities(names: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            findings.push(
                Finding::note("empty-key", format!("key {index} has an empty name"))
                    .mend("Name it, or let no record use it."),
            );
        } else if let Some(earlier) = first.get(name.as_str()) {
            findings.push(
                Finding::note(
                    "repeated-key",
                    format!("keys {earlier} and {index} are both {name}"),
                )
                .mend("Publish each name once, and use its index."),
            );
        } else {
            first.insert(name, index);
        }
    }
    findings
}

/// Every module that has the variable.
fn found(pid: i32, variables: &ThreadVariables) -> Vec<Finding> {
    let resolution = &variables.resolution;
    let definitions = resolution.variables.iter();
    let mut findings: Vec<Finding> = definitions.flat_map(|it| definition(pid, it)).collect();
    if resolution.variables.len() > 1 {
        findings.push(
            Finding::note(
                "several-variables",
                format!(
                    "{} modules use a {SYMBOL} of their own; readers look at each",
                    resolution.variables.len()
                ),
            )
            .mend("Export it from one module, so that the dynamic linker binds all to that."),
        );
    }
    for module in &resolution.bound_elsewhere {
        findings.push(Finding::note(
            "bound-elsewhere",
            format!(
                "{} defines {SYMBOL}, too; the process uses the one above",
                module.to_string_lossy()
            ),
        ));
    }
    findings.extend(modules(&resolution.unreadable));
    findings
}

fn definition(pid: i32, variable: &TlsVariable) -> [Finding; 2] {
    let module = variable.module.to_string_lossy();
    let executable = matches!(variable.access, Access::LocalExec);
    let exported = if variable.exported {
        Finding::ok("exported", format!("{SYMBOL} is exported by {module}"))
    } else {
        let owner = match executable {
            // The file that runs, wherever its name leads to by now.
            true => Module::open(Path::new(&format!("/proc/{pid}/exe")), SYMBOL)
                .map_or(Owner::Program, |module| Owner::of(&module)),
            false => Owner::Library,
        };
        variable::not_exported(&format!(" in {module}"), owner)
    };
    [exported, variable::access(variable.access, executable)]
}

/// Modules that were left out.
fn modules(unreadable: &[(std::ffi::OsString, String)]) -> Vec<Finding> {
    let module = |(module, why): &(std::ffi::OsString, String)| {
        Finding::note(
            "unreadable-module",
            format!(
                "{} could not be looked into: {why}",
                module.to_string_lossy()
            ),
        )
    };
    unreadable.iter().map(module).collect()
}

/// Reads the context of every thread. `troubled`: readers fail before they come that far.
fn threads(process: &mut Process, troubled: bool) -> Result<Finding, ReaderError> {
    let (mut read, mut attached) = (0, 0);
    let mut failed = Vec::new();
    for thread in process.threads()? {
        match patiently(|| thread.context(), |_| false) {
            Ok(outcome) => {
                read += 1;
                attached += usize::from(outcome.attached().is_some());
            }
            Err(error) if is_gone(&error) => {}
            Err(error) => failed.push(error),
        }
    }
    Ok(match failed.first() {
        None => Finding::ok(
            "threads",
            format!(
                "{} the contexts of its {}; {attached} attached now",
                match troubled {
                    true => "but for that, a reader would find",
                    false => "a reader finds",
                },
                count(read, "thread", "threads")
            ),
        ),
        Some(error) => Finding::problem(
            "threads",
            format!(
                "{} can't be read: {error}",
                count(failed.len(), "thread", "threads")
            ),
        ),
    })
}
