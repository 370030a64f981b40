//! The process context of a running process, as a reader sees it.

use std::collections::BTreeMap;
use std::iter;
use std::time::Instant;

use otelctx_reader::format::process_context::{HEADER_SIZE, Header, Problem};
use otelctx_reader::format::{KEY_MAP, KeyMap, NODEJS_SYMBOL, SCHEMA_VERSION, Schema};
use otelctx_reader::remote::Memory;
use otelctx_reader::{Broken, Process, ProcessContext};

use super::finding::Finding;
use super::halfway_to;
use crate::output::attributes;
use crate::output::text::{count, grouped};

/// The largest payload that every reader accepts, in bytes (OTEP 4719).
const EVERY_READER_TAKES: u32 = 65_536;

/// Returns findings about a published context. `has_variable`: a module has the variable of threads.
pub(super) fn findings(
    process: &Process,
    context: &ProcessContext,
    has_variable: bool,
    deadline: Instant,
) -> Vec<Finding> {
    let mut findings = published(context, has_variable);
    findings.splice(1..1, mapping(process, context, deadline));
    findings
}

fn mapping(process: &Process, context: &ProcessContext, deadline: Instant) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Ok(process) = process.running() else {
        return findings;
    };
    let mut header = [0; HEADER_SIZE];
    let memory = process.memory();
    let read = memory.is_ok_and(|it| it.read(context.address, &mut header).is_ok());
    if let Ok(header) = Header::decode(&header)
        && read
        && header.payload_size > EVERY_READER_TAKES
    {
        let text = format!(
            "its payload has {} bytes: readers need not accept more than {}",
            grouped(header.payload_size as usize),
            grouped(EVERY_READER_TAKES as usize)
        );
        let finding = Finding::note("oversize", text);
        findings.push(finding.hint("Publish fewer or shorter attributes."));
    }
    let until = Some(halfway_to(deadline));
    if let Ok(Some(true)) = process.is_copied_on_fork(context.address, until) {
        let text = "a forked child inherits the mapping and shows its parent's context as its own";
        let finding = Finding::note("copied-on-fork", text);
        findings.push(finding.hint("After mmap, call  madvise(mapping, size, MADV_DONTFORK)"));
    }
    findings
}

pub(super) fn broken(why: &Broken) -> Finding {
    let text = format!("its process context can't be read: {why}");
    let finding = Finding::problem("broken-process-context", text);
    match why {
        Broken::TooLarge { .. } => finding
            .hint("Publish less: readers need not accept more than 64 KiB, and few accept 1 MiB."),
        Broken::BeingUpdated { .. } => finding.hint(
            "If this persists, the publisher ended in the middle of an update: publish again.",
        ),
        _ => finding.hint("Publish in the order that OTEP 4719 requires; the crate otelctx does."),
    }
}

/// Returns findings about the context's contents, except for thread contexts.
fn published(context: &ProcessContext, has_variable: bool) -> Vec<Finding> {
    let attributes = count(context.payload.resource.len(), "attribute", "attributes");
    let text = format!("its process context is valid, with {attributes} in the resource");
    let mut findings = vec![Finding::ok("process-context", text)];
    if context.payload.resource_attribute("service.name").is_none() {
        let finding = Finding::note("no-service-name", "the resource has no service.name");
        findings.push(finding.hint("Set OTEL_SERVICE_NAME, or  .with_service_name(\"…\")"));
    }
    for problem in &context.problems {
        if let Problem::TooManyKeys(_) = problem {
            let finding = Finding::note("too-many-keys", problem.to_string());
            findings.push(finding.hint("Publish at most 256 names."));
            continue;
        }
        let text = format!("{problem}: readers skip it, and strict ones reject the context");
        findings.push(Finding::note("attribute", text).hint(match problem {
            Problem::EmptyKey => "Give each attribute a name.",
            _ => "Publish each attribute once.",
        }));
    }
    for address in &context.others {
        let text =
            format!("there is a second process context at {address:#x}, which readers do not use");
        let finding = Finding::note("second-process-context", text);
        findings.push(finding.hint("Two publishers are active in this process: keep one of them."));
    }
    if let Some(text) = attributes::contested(context, "") {
        let finding = Finding::problem("contested-keys", text);
        findings.push(finding.hint(
            "Keep one of the publishers: readers may show attributes of one under names of the other.",
        ));
    }
    let schema = context.schema.as_ref();
    if schema.is_none() && !has_variable {
        findings.push(process_context_only(context));
    } else if schema.is_some_and(Schema::is_go_labels) {
        let text = "its schema is go_pprof_labels_v1: its contexts are labels of Go's profiler, which goroutines have";
        findings.push(Finding::note("go-labels-schema", text));
    } else {
        findings.push(self::schema(schema));
        findings.extend(key_map(context));
    }
    findings
}

/// Says what would publish contexts of threads, too, in the language of the process.
fn process_context_only(context: &ProcessContext) -> Finding {
    let advice = match attributes::language(&context.payload.resource) {
        Some("python") => {
            "Python with OpenTelemetry publishes them with  OTEL_PYTHON_CONTEXT=otelctx"
        }
        Some("nodejs") => "Node.js publishes them with  node --import otelctx/register",
        Some("rust") => {
            "Rust publishes them with the crate otelctx-opentelemetry or otelctx-tracing"
        }
        Some("cpp") => "C++ with opentelemetry-cpp publishes them with  otelctx::storage()",
        Some("c") => "A C program publishes them with  otelctx_context_attach(record)",
        Some("go") => {
            "Goroutines have labels, which are read as contexts: see below for those of threads that run now"
        }
        Some("java") => "Java publishes them with an agent that supports OTEP 4947",
        _ => "Its SDK has to publish them, by OTEP 4947",
    };
    let text =
        "process context only: readers see its resource, and its threads publish no contexts";
    Finding::note("process-context-only", text).hint(format!("{advice}."))
}

fn schema(schema: Option<&Schema>) -> Finding {
    match schema {
        Some(schema) if schema.is_thread_local_record() => {
            Finding::ok("schema", format!("its schema is {schema}"))
        }
        Some(schema) if schema.is_nodejs() => Finding::ok(
            "nodejs-schema",
            format!("its schema is {schema}: that of Node.js, with {NODEJS_SYMBOL}"),
        ),
        Some(schema) => Finding::problem(
            "unsupported-schema",
            format!("its schema is {schema}, which this reader does not support"),
        )
        .hint(format!(
            "Announce thread-local records with  {SCHEMA_VERSION}={}",
            Schema::TlsdescV1Dev
        )),
        None => Finding::problem(
            "no-schema",
            format!("it announces no thread contexts: {SCHEMA_VERSION} is missing"),
        )
        .hint(format!(
            "Publish  {SCHEMA_VERSION}={}  in the process context; the crate otelctx does.",
            Schema::TlsdescV1Dev
        )),
    }
}

fn key_map(context: &ProcessContext) -> Vec<Finding> {
    // Its own, whatever other contexts say.
    match &KeyMap::of(&context.payload) {
        Ok(Some(keys)) => {
            let names = keys.names();
            let text = format!("its key map has {}", count(names.len(), "key", "keys"));
            iter::once(Finding::ok("key-map", text))
                .chain(oddities(names))
                .collect()
        }
        Ok(None) => {
            let text = format!("{KEY_MAP} is missing: records have IDs, but no attributes");
            let hint = "Publish the names of the attributes in it, in the order of their indexes.";
            vec![Finding::note("no-key-map", text).hint(hint)]
        }
        Err(error) => {
            let finding = Finding::problem("broken-key-map", error.to_string());
            vec![finding.hint("Publish it as an array of strings.")]
        }
    }
}

fn oddities(names: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut first: BTreeMap<&str, usize> = BTreeMap::new();
    for (index, name) in names.iter().enumerate() {
        if name.is_empty() {
            let finding = Finding::note("empty-key", format!("key {index} has an empty name"));
            findings.push(finding.hint("Give it a name, or do not use it in records."));
        } else if let Some(earlier) = first.get(name.as_str()) {
            let text = format!("keys {earlier} and {index} are both {name}");
            let finding = Finding::note("repeated-key", text);
            findings.push(finding.hint("Publish each name once, and use its index."));
        } else {
            first.insert(name, index);
        }
    }
    findings
}
