//! Locates a process's list of threads.

use crate::libc::{CLibrary, FileFacts, ThreadLayout};
use crate::machine::Machine;
use crate::module::ModuleFile;

/// The location of a process's list of threads, according to its files.
#[derive(Debug, Clone, Default)]
pub struct ThreadLists {
    pub(super) machine: Option<Machine>,
    pub(super) library: Option<CLibrary>,
    pub(super) layout: Option<ThreadLayout>,
    /// Addresses of the heads of glibc's lists.
    pub(super) heads: Vec<u64>,
    /// First address of the C library and the first address after it, where to scan for its data.
    pub(super) library_range: Option<(u64, u64)>,
}

impl ThreadLists {
    /// Returns whether these modules are enough to find the list.
    pub fn is_known(&self) -> bool {
        !self.heads.is_empty() || self.library == Some(CLibrary::Musl)
    }

    /// Combines the facts of the loaded modules, each with its load bias.
    pub(crate) fn of<'m>(
        modules: impl Iterator<Item = (u64, &'m ModuleFile)> + Clone,
        machine: Machine,
    ) -> Self {
        let library = FileFacts::c_library(modules.clone().map(|(_, module)| &module.libc));
        let mut lists = Self {
            machine: Some(machine),
            library,
            ..Self::default()
        };
        let rtld_global = modules
            .clone()
            .find_map(|(bias, module)| Some(bias.wrapping_add(module.libc.rtld_global?)));
        for (bias, module) in modules {
            let is_library = library.is_some() && module.libc.library == library;
            if is_library && lists.library_range.is_none() {
                let start = bias.wrapping_add(module.first_load.address);
                lists.library_range = Some((start, bias.wrapping_add(module.end)));
            }
            let facts = &module.libc.threads;
            if lists.layout.is_some() || facts.layout.is_none() {
                continue;
            }
            lists.layout = facts.layout;
            let in_global = facts.lists_in_rtld_global.iter().flatten();
            let in_global = in_global.filter_map(|at| Some(rtld_global?.wrapping_add(*at)));
            let own = facts.lists.iter().flatten();
            lists.heads = in_global
                .chain(own.map(|at| bias.wrapping_add(*at)))
                .collect();
        }
        lists
    }
}
