//! Leaves out attributes: of contexts and of resources, for every format and for a collector.

use otelctx_profile::Recording;
use otelctx_profile::sample::format::record::DecodedContext;
use serde::Serialize;

use crate::command::help;
use crate::command::ids;
use crate::output::text::count;

/// The attributes to keep; by default all.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = help::SAMPLES)]
pub(super) struct AttributeFilter {
    /// Keep only attributes with this name, among all that programs publish in contexts and resources;
    /// can be repeated
    #[arg(long = "keep-attribute", value_name = "NAME", value_parser = ids::attribute)]
    pub(super) keep: Vec<String>,
    /// Leave out the attribute with this name, of contexts and resources; can be repeated
    #[arg(long = "drop-attribute", value_name = "NAME", value_parser = ids::attribute)]
    pub(super) drop: Vec<String>,
}

/// The number of attributes that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct DroppedAttributes {
    /// Of the contexts of samples.
    pub(super) samples: usize,
    /// Of the resources of processes.
    pub(super) resources: usize,
}

impl AttributeFilter {
    /// Returns whether an attribute that a program publishes is kept.
    pub(super) fn keeps(&self, name: &str) -> bool {
        let has = |names: &[String]| names.iter().any(|it| it == name);
        !has(&self.drop) && (self.keep.is_empty() || has(&self.keep))
    }

    /// Removes the others from a part of a recording, and counts them.
    pub(super) fn apply(&self, part: &mut Recording) -> DroppedAttributes {
        let mut dropped = DroppedAttributes::default();
        if self.keep.is_empty() && self.drop.is_empty() {
            return dropped;
        }
        let keep = |context: &mut DecodedContext| {
            let all = context.attributes.len();
            context.attributes.retain(|(name, _)| self.keeps(name));
            all - context.attributes.len()
        };
        part.change_contexts(keep, |lost| dropped.samples += lost);
        let processes: Vec<_> = part.catalog.processes().map(|(id, _)| id).collect();
        for id in processes {
            let resource = &mut part.catalog.process_mut(id).resource;
            let all = resource.len();
            resource.retain(|(name, _)| self.keeps(name));
            dropped.resources += all - resource.len();
        }
        dropped
    }
}

impl DroppedAttributes {
    pub(super) fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.resources += other.resources;
    }

    /// Formats a line for the end of a recording, if any was left out.
    pub(super) fn line(self) -> Option<String> {
        let of = |number, whose| match number {
            0 => None,
            _ => Some(count(number, "attribute", "attributes") + whose),
        };
        let parts = [
            of(self.samples, " of samples"),
            of(self.resources, " of resources"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let line = || {
            format!(
                "dropped by --keep-attribute or --drop-attribute: {}",
                parts.join(", ")
            )
        };
        (!parts.is_empty()).then(line)
    }
}
