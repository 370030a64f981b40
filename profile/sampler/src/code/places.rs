//! The code that a copied stack may lie in.

use std::collections::BTreeMap;
use std::sync::Arc;

use otelctx_reader::remote;
use otelctx_sample::{Module, ModuleFiles};

use super::{CodeMappings, Mapped, Modules, is_generated};
use crate::second_walk::{Content, CopiedStack, Place};
use crate::walkers::LiveWalkers;

/// Maximum number of mappings that are searched for the code in a copied stack: each word of it is looked up.
const MAX_SEARCHED: usize = 4096;

impl CodeMappings {
    /// Returns the code that a stack copied at `time` may lie in, in address order. `None` if that is not certain. Reads the
    /// mappings first if the thread ran in none. Code of `walkers` is not among it.
    pub(crate) fn places(
        &mut self,
        copied: &CopiedStack,
        time: u64,
        process: Option<&remote::Process>,
        walkers: Option<&LiveWalkers>,
        modules: &mut Modules,
    ) -> Option<Vec<Place>> {
        let address = copied.registers.instruction_pointer();
        let is_walked = |address| walkers.is_some_and(|it| it.walkers.cover(address));
        if let Some(process) = process.filter(|_| !self.contain(address) && !is_walked(address)) {
            self.read_if_due(process, modules);
        }
        if !self.contain(address) && !is_walked(address) || self.mappings.len() > MAX_SEARCHED {
            return None;
        }
        let mut found: BTreeMap<u64, &Mapped> = BTreeMap::new();
        copied.words(&mut |word| {
            // A frame that has called another one returns behind the call.
            for address in [word, word.wrapping_sub(1)] {
                let last = found.range(..=address).next_back();
                let is_known = last.is_some_and(|(_, mapped)| address < mapped.end);
                if !is_known && self.contain(address) && !is_walked(address) {
                    let contains = |it: &&Mapped| (it.start..it.end).contains(&address);
                    let mut mappings = self.mappings.iter().filter(|it| it.since <= time);
                    let mapped = mappings.rfind(contains);
                    found.extend(mapped.map(|it| (it.start, it)));
                }
            }
        });
        let mut before = 0;
        let is_apart = |it: &&Mapped| std::mem::replace(&mut before, it.end) <= it.start;
        if !found.values().all(is_apart) {
            return None;
        }
        let place = |it: &Mapped| Place {
            range: (it.start, it.end),
            offset: it.offset,
            content: content(&it.module, &modules.files),
        };
        Some(found.into_values().map(place).collect())
    }
}

/// What is mapped of a module, for a second walk.
fn content(module: &Arc<Module>, files: &ModuleFiles) -> Content {
    if module.path == "[vdso]" {
        Content::Vdso
    } else if is_generated(module) {
        Content::Generated
    } else {
        let file = files.get(module);
        file.map_or(Content::Unknown, |file| Content::File(module.clone(), file))
    }
}
