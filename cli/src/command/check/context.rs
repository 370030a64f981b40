//! The process context of a running process, as a reader sees it.

use std::collections::BTreeMap;
use std::iter;
use std::time::Instant;

use otelctx_reader::format::process_context::{HEADER_SIZE, Header, Problem};
use otelctx_reader::format::{KEY_MAP, KeyMapError, NODEJS_SYMBOL, SCHEMA_VERSION, Schema};
use otelctx_reader::remote::Memory;
use otelctx_reader::{Broken, ContextState, Process, ProcessContext};

use super::finding::Finding;
use super::halfway_to;
use crate::output::text::{count, grouped};

/// The largest payload that every reader accepts, in bytes (OTEP 4719).
const EVERY_READER_TAKES: u32 = 65_536;

pub(super) fn findings(process: &Process, state: &ContextState, deadline: Instant) -> Vec<Finding> {
    match state {
        ContextState::Published(context) => {
            let mut findings = published(context);
            findings.splice(1..1, mapping(process, context, deadline));
            findings
        }
        ContextState::Absent => Vec::new(),
        ContextState::Broken(why) => vec![broken(why)],
    }
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

fn broken(why: &Broken) -> Finding {
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
fn published(context: &ProcessContext) -> Vec<Finding> {
    let attributes = count(context.payload.resource.len(), "attribute", "attributes");
    let text = format!("its process context is valid, with {attributes} in the resource");
    let mut findings = vec![Finding::ok("process-context", text)];
    if context.payload.resource_attribute("service.name").is_none() {
        let finding = Finding::note("no-service-name", "the resource has no service.name");
        findings.push(finding.hint("Set OTEL_SERVICE_NAME, or  .with_service_name(\"…\")"));
    }
    for problem in &context.problems {
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
    findings.push(schema(context.schema.as_ref()));
    findings.extend(key_map(context));
    findings
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
    match &context.keys {
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
            let hint = match error {
                KeyMapError::TooMany => "An index has one byte: publish at most 256 names.",
                _ => "Publish it as an array of strings.",
            };
            vec![Finding::problem("broken-key-map", error.to_string()).hint(hint)]
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
