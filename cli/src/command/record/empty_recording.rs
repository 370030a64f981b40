//! Explains a recording without samples, without traces, or without the requested attribute.

use std::collections::{BTreeSet, HashSet};

use otelctx_profile::sample::{ContextId, Counts, Found};
use otelctx_profile::{GIL_ATTRIBUTE, Profile, Recording};

use super::Arguments;
use super::gil::GilSamples;
use super::held::{self, Held};
use crate::command::descendants;
use crate::command::filter::NONE;
use crate::command::selection::GivenOption;
use crate::command::wall::is_on_cpu;
use crate::output::attributes::{self, string};
use crate::output::text::{argument, count, grouped, own_name};

/// Maximum number of services, values or attributes to list.
const MAX_LISTED: usize = 5;
/// Maximum number of services, and of values, that are kept.
const MAX_NAMES: usize = 1024;

/// A sentence that says what is missing from a recording, and one that says what to do.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::command) struct Explanation {
    pub(in crate::command) message: String,
    pub(in crate::command) hint: String,
}

/// Facts about a recording before it was filtered.
#[derive(Default)]
pub(super) struct Before {
    /// Samples of threads that ran.
    samples: usize,
    /// Samples of waits, those with a context, and those of which it is known that none was attached.
    waits: usize,
    attached_waits: usize,
    detached_waits: usize,
    counts: Counts,
    /// All samples that the other filters keep, with `--gil`.
    gil: GilSamples,
    services: BTreeSet<String>,
    /// Sampled values of the first attribute of `--filter`.
    values: BTreeSet<String>,
}

impl Before {
    pub(super) fn add(&mut self, part: &Recording, arguments: &Arguments) {
        for (_, facts) in part.catalog.processes() {
            let service = string(&facts.resource, "service.name");
            if self.services.len() < MAX_NAMES {
                self.services.extend(service.map(str::to_owned));
            }
            let asked = arguments.filter.conditions.first();
            let is_asked = |key: &String| asked.is_some_and(|it| it.name == *key);
            let found = facts.resource.iter().find(|(key, _)| is_asked(key));
            let value = found.map(|(_, value)| attributes::text(value));
            if self.values.len() < MAX_NAMES {
                self.values.extend(value);
            }
        }
        let asked = arguments.filter.conditions.first();
        for (_, context) in part.catalog.contexts() {
            let mut attributes = context.attributes.iter();
            let found = attributes.find(|(key, _)| asked.is_some_and(|it| it.name == *key));
            if self.values.len() < MAX_NAMES {
                self.values.extend(found.map(|(_, value)| value.clone()));
            }
        }
        for sample in &part.samples {
            if is_on_cpu(sample) {
                self.samples += 1;
                continue;
            }
            self.waits += 1;
            match sample.found {
                Found::Attached(_) => self.attached_waits += 1,
                Found::Detached => self.detached_waits += 1,
                _ => {}
            }
        }
        self.counts += part.counts;
    }

    /// Adds the samples of a part that `--gil` chooses from.
    pub(super) fn add_gil(&mut self, samples: GilSamples) {
        self.gil += samples;
    }

    /// Explains why no samples, or none with a trace, are left.
    pub(super) fn explanation(
        &self,
        kept: usize,
        arguments: &Arguments,
        targets: &[i32],
    ) -> Option<Explanation> {
        let is_empty = self.samples + self.waits == 0;
        if is_empty && self.counts.not_traceable > self.counts.lost {
            return Some(Explanation {
                message: "no samples: the processes that were running cannot be traced".to_owned(),
                hint: "run as root, or record a process of your own with -p PID".to_owned(),
            });
        }
        if is_empty && self.counts.lost > 0 {
            let lost = self.counts.lost as usize;
            return Some(Explanation {
                message: match lost {
                    1 => "no samples: the only one was lost".to_owned(),
                    _ => format!("no samples: all {} were lost", grouped(lost)),
                },
                hint: "the machine is overloaded; try -F 19".to_owned(),
            });
        }
        if is_empty {
            return Some(self.slept(arguments, targets));
        }
        if kept == 0 && self.gil.all() > 0 {
            return Some(self.without_gil());
        }
        if kept == 0 {
            return Some(self.chosen(arguments));
        }
        let has_contexts = self.counts.attached > 0 || self.counts.detached > 0;
        let silent = !has_contexts && self.attached_waits + self.detached_waits == 0;
        (silent && !arguments.all).then(|| {
            let moment = match &arguments.command[..] {
                [] => "",
                _ => ", while the command runs",
            };
            let own = own_name();
            Explanation {
                message:
                    "no sample has a trace: no sampled process publishes readable thread contexts"
                        .to_owned(),
                hint: format!("`{own} check PID` explains what is missing{moment}"),
            }
        })
    }

    fn slept(&self, arguments: &Arguments, targets: &[i32]) -> Explanation {
        if !arguments.wall.samples_cpu() {
            return Explanation {
                message: "no samples: no thread was off the CPU when threads were scanned"
                    .to_owned(),
                hint: "record longer, or with --wall, which samples threads that run, too"
                    .to_owned(),
            };
        }
        if let Some(Held { message, hint }) = held::first_of(targets) {
            let message = format!("no samples: {message}");
            return Explanation { message, hint };
        }
        let period = 1000.0 / f64::from(arguments.frequency);
        let dump = match &arguments.pid[..] {
            [pid, ..] => format!(
                "; sleeping threads are not sampled, `{} dump {pid}` shows their contexts",
                own_name()
            ),
            [] => String::new(),
        };
        let message = format!(
            "no samples: no thread was running on a CPU when a sample was taken, every {period:.1} ms"
        );
        let children = match arguments.select.no_children {
            true => descendants::of(&arguments.pid),
            false => Vec::new(),
        };
        let hint = match children.len() {
            0 => format!("record longer, or sample more often with -F 999{dump}"),
            number => {
                let processes = count(number, "child process", "child processes");
                let (list, is) = (
                    descendants::list(&children),
                    if number == 1 { "is" } else { "are" },
                );
                format!("{processes} ({list}) {is} not recorded: omit --no-children")
            }
        };
        Explanation { message, hint }
    }

    fn without_gil(&self) -> Explanation {
        let all = count(self.gil.all() as usize, "sample", "samples");
        if self.gil.threads() > 0 {
            let why = "no thread held the GIL when it was sampled";
            return Explanation {
                message: format!("none of {all} was kept: {why}"),
                hint: "record longer, or without --gil".to_owned(),
            };
        }
        let why = "no sampled thread is one of an interpreter with a GIL";
        Explanation {
            message: format!("none of {all} was kept: {why}"),
            hint: format!(
                "`{} dump PID` shows whether a process is recognized as Python, and which threads \
                 it has",
                own_name()
            ),
        }
    }

    /// Formats the numbers of all samples.
    fn all(&self) -> String {
        let samples = count(self.samples, "sample", "samples");
        match self.waits {
            0 => samples,
            waits => format!("{samples} and {} of waits", grouped(waits)),
        }
    }

    fn chosen(&self, arguments: &Arguments) -> Explanation {
        let all = self.all();
        let filter = &arguments.filter;
        if !(filter.functions.is_empty() && filter.kinds.is_empty()) || arguments.time.is_some() {
            let named: Vec<String> = arguments
                .conditions()
                .iter()
                .map(GivenOption::text)
                .collect();
            return Explanation {
                message: format!("none of {all} was kept: none matches {}", named.join(" ")),
                hint: format!(
                    "record without; `{} report` selects samples of a recording",
                    own_name()
                ),
            };
        }
        match (&filter.conditions[..], filter.traces.first()) {
            ([], None) => Explanation {
                message: format!("none of {all} was kept: no sampled thread matches --thread"),
                hint: "names are those of /proc/PID/task/TID/comm, or the runtime's".to_owned(),
            },
            ([first, ..], _) if self.values.is_empty() => Explanation {
                message: format!(
                    "none of {all} was kept: no sampled process or context has the attribute {}",
                    first.name
                ),
                hint: format!("sampled services: {}", list(&self.services)),
            },
            ([first, ..], None) => Explanation {
                message: format!("none of {all} was kept: no sample matches --filter"),
                hint: format!("sampled values of {}: {}", first.name, list(&self.values)),
            },
            (conditions, _) => Explanation {
                message: match conditions {
                    [] => format!(
                        "none of {all} was kept: {} had a context, none with that trace",
                        grouped(self.counts.attached as usize + self.attached_waits)
                    ),
                    _ => format!(
                        "none of {all} was kept: no sample has that trace and a process that matches \
                         --filter"
                    ),
                },
                hint: format!(
                    "record without --trace; `{} report FILE.otlp` lists the traces",
                    own_name()
                ),
            },
        }
    }
}

/// The attributes of a recording's contexts.
#[derive(Default)]
pub(super) struct Contexts {
    any: bool,
    attributes: BTreeSet<String>,
}

impl Contexts {
    pub(super) fn add(&mut self, part: &Profile) {
        if part.groups().any(|it| it.gil.is_some()) {
            self.any = true;
            self.attributes.insert(GIL_ATTRIBUTE.to_owned());
        }
        let samples = part.groups().flat_map(|it| it.samples);
        let contexts = samples.filter_map(|it| it.found.attached());
        let contexts: HashSet<ContextId> = contexts.copied().collect();
        self.any |= !contexts.is_empty();
        let attributes = |id: &ContextId| &part.context(*id).attributes;
        for (key, _) in contexts.iter().flat_map(attributes) {
            if !self.attributes.contains(key) {
                self.attributes.insert(key.clone());
            }
        }
    }

    pub(super) fn lacking(&self, asked: Option<&str>) -> Option<Explanation> {
        let attributes = self.any.then_some(&self.attributes)?;
        lacking(asked, attributes)
    }
}

/// Explains that the attribute of `--by` is none of the recorded `attributes`.
pub(in crate::command) fn lacking(
    asked: Option<&str>,
    attributes: &BTreeSet<String>,
) -> Option<Explanation> {
    let asked = asked.filter(|name| *name != NONE && !attributes.contains(*name))?;
    Some(Explanation {
        message: format!("no sample has the attribute {}", argument(asked)),
        hint: if attributes.is_empty() {
            "no sample has any attribute: omit --by".to_owned()
        } else {
            format!("recorded attributes: {}", list(attributes))
        },
    })
}

fn list(names: &BTreeSet<String>) -> String {
    let listed = names.iter().take(MAX_LISTED).map(|it| argument(it));
    let mut listed: Vec<String> = listed.collect();
    if names.len() > MAX_LISTED {
        listed.push("…".to_owned());
    }
    listed.join(", ")
}
