//! Why a recording holds nothing, no trace, or not the attribute that was asked for.

use std::collections::{BTreeSet, HashSet};

use otelctx_profile::Recording;
use otelctx_profile::sample::{ContextId, Counts, Found};

use super::Arguments;
use crate::command::filter::NONE;
use crate::output::attributes::{self, string};
use crate::output::text::{argument, count, own_name};

/// The most services, values or attributes that are named.
const MOST_NAMED: usize = 5;

/// What is explanation in a recording.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Explanation {
    pub(super) message: String,
    pub(super) hint: String,
}

/// What a recording held before samples were chosen from it.
pub(super) struct Before {
    samples: usize,
    counts: Counts,
    /// The services that were sampled.
    services: BTreeSet<String>,
    /// With the first resource attribute that was asked for.
    values: BTreeSet<String>,
}

impl Before {
    pub(super) fn of(recording: &Recording, arguments: &Arguments) -> Self {
        let mut services = BTreeSet::new();
        let mut values = BTreeSet::new();
        for (_, facts) in recording.catalog.processes() {
            let service = string(&facts.resource, "service.name");
            services.extend(service.map(str::to_owned));
            let asked = arguments.filter.resource.first();
            let found = facts
                .resource
                .iter()
                .find(|(key, _)| asked.is_some_and(|(name, _)| name == key));
            values.extend(found.map(|(_, value)| attributes::text(value)));
        }
        Self {
            samples: recording.samples.len(),
            counts: recording.counts,
            services,
            values,
        }
    }

    /// Why nothing, or no trace, is left of it.
    pub(super) fn explanation(&self, kept: usize, arguments: &Arguments) -> Option<Explanation> {
        if self.samples == 0 && self.counts.lost > 0 {
            let lost = self.counts.lost as usize;
            return Some(Explanation {
                message: format!("no sample: {} lost", count(lost, "one was", "all were")),
                hint: "the machine is too busy to look in time: look less often with -F 19"
                    .to_owned(),
            });
        }
        if self.samples == 0 {
            return Some(self.slept(arguments));
        }
        if kept == 0 {
            return Some(self.chosen(arguments));
        }
        let silent = self.counts.attached == 0 && self.counts.detached == 0;
        (silent && !arguments.all).then(|| Explanation {
            message: "no sample has a trace: nothing that was sampled publishes thread contexts that can be read"
                .to_owned(),
            hint: format!("{} check PID  tells what is missing", own_name()),
        })
    }

    fn slept(&self, arguments: &Arguments) -> Explanation {
        let period = 1000.0 / f64::from(arguments.frequency);
        let dump = match &arguments.pid[..] {
            [pid, ..] => format!(
                "; what sleeping threads work on shows  {} dump {pid}",
                own_name()
            ),
            [] => String::new(),
        };
        Explanation {
            message: format!(
                "no sample: no thread was on a processor when it was looked at, every {period:.1} ms; \
                 they slept, or ran for less"
            ),
            hint: format!(
                "samples are taken on processors only: record longer, or look more often with -F 999{dump}"
            ),
        }
    }

    fn chosen(&self, arguments: &Arguments) -> Explanation {
        let all = count(self.samples, "sample", "samples");
        match (&arguments.filter.resource[..], arguments.filter.trace) {
            ([(key, _), ..], _) if self.values.is_empty() => Explanation {
                message: format!("none of {all} was kept: no process that was sampled has a {key}"),
                hint: format!("services that were sampled: {}", list(&self.services)),
            },
            ([(key, _), ..], None) => Explanation {
                message: format!("none of {all} was kept: no process matches --filter"),
                hint: format!("{key} of those that were sampled: {}", list(&self.values)),
            },
            (filter, _) => Explanation {
                message: match filter {
                    [] => format!(
                        "none of {all} was kept: {} had a context, none of them of that trace",
                        self.counts.attached
                    ),
                    _ => format!(
                        "none of {all} was kept: no sample is of that trace and of a process that \
                         matches --filter"
                    ),
                },
                hint: format!(
                    "record without --trace, and see which there are:  {} report FILE.otlp",
                    own_name()
                ),
            },
        }
    }
}

/// That of the contexts which were recorded none has the attribute that was asked for by `--by`.
pub(super) fn lacking(asked: Option<&str>, recording: &Recording) -> Option<Explanation> {
    let asked = asked.filter(|name| *name != NONE)?;
    let mut contexts = HashSet::new();
    contexts.extend(recording.samples.iter().filter_map(|it| match it.found {
        Found::Attached(context) => Some(context),
        _ => None,
    }));
    let attributes = |id: &ContextId| &recording.catalog.context_facts(*id).attributes;
    let keys = contexts.iter().flat_map(attributes).map(|(key, _)| key);
    let keys: BTreeSet<String> = keys.cloned().collect();
    let lacks = !contexts.is_empty() && !keys.contains(asked);
    lacks.then(|| Explanation {
        message: format!("no sample has the attribute {}", argument(asked)),
        hint: match keys.is_empty() {
            true => "none has any attribute: record without --by".to_owned(),
            false => format!("attributes of those that were taken: {}", list(&keys)),
        },
    })
}

/// The first of some names.
fn list(names: &BTreeSet<String>) -> String {
    let some: Vec<String> = names
        .iter()
        .take(MOST_NAMED)
        .map(|it| argument(it))
        .collect();
    let more = if names.len() > MOST_NAMED {
        ", …"
    } else {
        ""
    };
    format!("{}{more}", some.join(", "))
}
