//! The ends of stacks that do not reach the start of their thread.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use otelctx_sample::{Catalog, Frame, ProcessId, StackEnd};

/// Maximum number of pairs of a module and a reason; other stacks are counted without a module.
const MAX_PLACES: usize = 256;

/// Stacks that ended in the same module, for the same reason.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IncompleteStacks {
    /// The file name of the module with the last frame, such as `libfoo.so`; the runtime of
    /// generated code, such as `[Java]`; `[anon]` for other memory without a file; empty if the
    /// module is unknown or one of too many.
    pub module: String,
    /// The reason.
    pub end: StackEnd,
    /// Number of samples.
    pub samples: u64,
}

impl IncompleteStacks {
    /// Creates an entry, for example to test code that shows it.
    #[must_use]
    pub fn new(module: &str, end: StackEnd, samples: u64) -> Self {
        Self {
            module: module.to_owned(),
            end,
            samples,
        }
    }
}

/// Counts incomplete stacks by module and reason.
#[derive(Debug, Default)]
pub(crate) struct StackTally {
    counts: HashMap<(String, StackEnd), u64, RandomState>,
}

impl StackTally {
    /// Counts a stack if it is incomplete. `module` returns its [`last_module`].
    pub(crate) fn add(&mut self, end: StackEnd, module: impl FnOnce() -> Option<String>) {
        if end == StackEnd::Start {
            return;
        }
        let mut key = (module().unwrap_or_default(), end);
        if self.counts.len() >= MAX_PLACES && !self.counts.contains_key(&key) {
            key.0 = String::new();
        }
        *self.counts.entry(key).or_default() += 1;
    }

    pub(crate) fn sorted(&self) -> Vec<IncompleteStacks> {
        let counts = self.counts.iter();
        let entry = |(key, samples): (&(String, StackEnd), &u64)| {
            IncompleteStacks::new(&key.0, key.1, *samples)
        };
        let mut all: Vec<_> = counts.map(entry).collect();
        all.sort_by(|a, b| (b.samples, &a.module, a.end).cmp(&(a.samples, &b.module, b.end)));
        all
    }
}

/// Returns the name of the module with the last frame of a stack, at the time of its sample.
/// `generated_by` returns the runtime that has generated the code at an address.
pub(crate) fn last_module(
    stack: &[Frame],
    process: ProcessId,
    time: u64,
    catalog: &Catalog,
    generated_by: impl FnOnce(u64) -> Option<&'static str>,
) -> Option<String> {
    let address = stack.iter().rev().find_map(Frame::lookup_address)?;
    if let Some(runtime) = generated_by(address) {
        return Some(runtime.to_owned());
    }
    let mapping = catalog.process(process).mapping_at(address, time)?;
    Some(module_name(&catalog.module_facts(mapping.module).path))
}

fn module_name(path: &str) -> String {
    if path == "//anon" {
        "[anon]".to_owned()
    } else {
        path.rsplit('/').next().unwrap_or(path).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use otelctx_sample::{Mapping, Module, ProcessFacts};

    use super::*;

    #[test]
    fn incomplete_stacks_are_counted_by_module_and_reason() {
        let mut catalog = Catalog::new();
        let process = catalog.add_process(ProcessFacts::default());
        let module = catalog.module(Module {
            path: "/usr/lib/libfoo.so".into(),
            ..Module::default()
        });
        catalog.process_mut(process).mappings.push(Mapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            module,
            since: 0,
        });
        let mut places = StackTally::default();
        let stack = [Frame::instruction(0x9000), Frame::return_address(0x2000)];
        let mut add = |stack: &[Frame], end| {
            let generated_by = |address| (address == 0x1234).then_some("[Java]");
            places.add(end, || {
                last_module(stack, process, 1, &catalog, generated_by)
            });
        };
        add(&stack, StackEnd::NoTables);
        add(&stack, StackEnd::NoTables);
        add(&stack, StackEnd::Start);
        add(&stack[..1], StackEnd::Unreadable);
        add(&[Frame::instruction(0x1234)], StackEnd::NoTables);
        let expected = [
            ("libfoo.so", StackEnd::NoTables, 2),
            ("", StackEnd::Unreadable, 1),
            ("[Java]", StackEnd::NoTables, 1),
        ];
        let found = places.sorted();
        let found = found.iter().map(|it| (&*it.module, it.end, it.samples));
        assert!(found.eq(expected));
        for number in 0..2 * MAX_PLACES {
            let module = catalog.module(Module {
                path: format!("/lib/{number}.so"),
                ..Module::default()
            });
            catalog.process_mut(process).mappings[0].module = module;
            places.add(StackEnd::NoTables, || {
                last_module(&stack, process, 1, &catalog, |_| None)
            });
        }
        let found = places.sorted();
        assert!(found.len() <= MAX_PLACES + 1);
        let samples: u64 = found.iter().map(|it| it.samples).sum();
        assert_eq!(samples, 4 + 2 * MAX_PLACES as u64);
    }
}
