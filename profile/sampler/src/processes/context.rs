//! Decodes the contexts of observed threads.

use otelctx_sample::format::record::{self, DecodedContext};
use otelctx_sample::{Catalog, Counts, Found, ReadStep};
use otelctx_track::{ThreadStatus, Tracked};

use crate::key_maps::Refresh;
use crate::observation::Record;
use crate::process::SampledProcess;

/// Converts the outcome of reading a thread's context, adding the context to the catalog.
pub(super) fn found(
    tracked: &mut Tracked<SampledProcess>,
    read: Found<Record<'_>>,
    counts: &mut Counts,
    catalog: &mut Catalog,
) -> Found {
    let found = read.and_then(|record| {
        // Without a key map, the record is from before the process executed another program.
        if tracked.data.keys.get(record.serial).is_none() {
            return Found::Unreadable(ReadStep::Resolve);
        }
        let Some(context) = decode(tracked, record) else {
            return Found::Unreadable(ReadStep::Record);
        };
        counts.add_skipped(&context.skipped);
        Found::Attached(catalog.context(&context))
    });
    match (found, tracked.process.threads()) {
        (Found::NotPublished, ThreadStatus::NotPublished) => Found::NotPublished,
        (Found::NotPublished, ThreadStatus::Unreadable(step)) => Found::Unreadable(*step),
        (Found::NotPublished, ThreadStatus::Unknown) if !tracked.process.exists() => {
            Found::Unreadable(ReadStep::Process)
        }
        // Not scanned yet, or the observer does not have the result yet.
        (Found::NotPublished, _) => Found::Unreadable(ReadStep::Resolve),
        (found, _) => found,
    }
}

/// Decodes a record. A key may have been registered since the key map was read.
fn decode(tracked: &mut Tracked<SampledProcess>, record: Record<'_>) -> Option<DecodedContext> {
    let Record {
        serial,
        variable,
        bytes,
    } = record;
    let record = record::decode(bytes).ok()?;
    let keys = &mut tracked.data.keys;
    let known = keys.get(serial)?.of_variable(variable);
    let context = record.resolve(known);
    let is_provisional = record.is_provisional(known);
    if context.skipped.unknown_key == 0 && !is_provisional {
        return Some(context);
    }
    match keys.refresh(serial, &mut tracked.process) {
        Refresh::Changed => Some(record.resolve(keys.get(serial)?.of_variable(variable))),
        Refresh::Unread if is_provisional => {
            let known = keys.get(serial)?.of_variable(variable);
            Some(record.resolve(&known.without_provisional()))
        }
        Refresh::Same | Refresh::Unread => Some(context),
    }
}
