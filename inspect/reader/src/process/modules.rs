//! Finds what the modules of a process define: the variable of its threads, and language runtimes.

use std::sync::Arc;

use otelctx_format::SYMBOL;
use otelctx_remote as remote;
use remote::{CodeLayout, MemoryError, Modules, Target, tls};

use super::Process;
use crate::Error;
use crate::runtime::Present;
use crate::variables::is_registered;

/// The action that the deadline left no time for.
const RESOLVE: &str = "resolve the variable of its threads";

impl Process {
    /// Resolves the variable; again if the modules have changed, or may give another result.
    pub(super) fn resolve(&mut self) -> Result<Arc<tls::Resolution>, Error> {
        // If the program has changed, this clears the caches.
        self.memory()?;
        if let Some(resolution) = &self.variables
            && is_settled(resolution)
            && self.modules_unchanged()?
        {
            return Ok(resolution.clone());
        }
        if self.is_late() {
            return Err(self.late(RESOLVE));
        }
        let Some(target) = self.as_target() else {
            let pid = self.id();
            return Err(remote::Error::NoSuchProcess { pid }.into());
        };
        let resolution = Arc::new(self.resolve_in(&*target)?);
        drop(target);
        self.variables = Some(resolution.clone());
        Ok(resolution)
    }

    fn resolve_in(&self, target: &dyn Target) -> Result<tls::Resolution, Error> {
        match tls::resolve(target, &self.files, SYMBOL) {
            Err(remote::Error::Deadline { .. }) => Err(self.late(RESOLVE)),
            resolution => Ok(resolution?),
        }
    }

    /// The runtimes among [`Options::runtimes`](crate::Options::runtimes) that the process
    /// contains. Probed again if libraries were loaded or unloaded.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn runtimes(&mut self) -> Result<Arc<[Present]>, Error> {
        if self.options.runtimes.is_empty() {
            return Ok(Arc::default());
        }
        self.memory()?;
        let target = self.as_target().expect("memory was just opened");
        if let Some((known, present)) = &self.runtimes
            && *known == self.layout(&*target)?
        {
            let present = present.clone();
            drop(target);
            return Ok(self.adapted(present));
        }
        let (present, layout) = match self.options.runtimes.probe(&*target, &self.files) {
            Err(remote::Error::Deadline { .. }) => return Err(self.late("probe for runtimes")),
            probed => probed?,
        };
        if self.options.native_stacks {
            let found = present.iter().filter_map(|it| it.process.as_ref().ok());
            found.for_each(|process| process.find_code(&*target));
        }
        drop(target);
        let present: Arc<[Present]> = present.into();
        self.runtimes = Some((layout, Arc::clone(&present)));
        if !present.is_empty() {
            self.find_thread_lists();
        }
        Ok(self.adapted(present))
    }

    /// The runtimes that [`Self::runtimes`] has found last: none if it was not called.
    #[must_use]
    pub fn known_runtimes(&self) -> &[Present] {
        self.runtimes.as_ref().map_or(&[], |(_, present)| present)
    }

    /// Finds the C library's list of threads, which is needed to read sleeping threads without
    /// stops, unless the variable has been resolved, and the list with it.
    fn find_thread_lists(&mut self) {
        let is_resolved = |it: &tls::Resolution| it.unplaced || !it.variables.is_empty();
        if !self.variables.as_deref().is_some_and(is_resolved)
            && let Some(lists) = self.lists_of_c_library()
        {
            self.variables = Some(Arc::new(lists));
            return;
        }
        // A static program has the list itself.
        let _ = self.resolve();
    }

    /// The list of threads alone, if the C library has it.
    fn lists_of_c_library(&self) -> Option<tls::Resolution> {
        let target = self.as_target()?;
        let modules = Modules::read_c_library(&*target, &self.files).ok()?;
        let threads = modules.thread_lists(target.machine());
        threads.is_known().then(|| tls::Resolution {
            threads,
            layout: Some(modules.layout),
            ..tls::Resolution::default()
        })
    }

    /// The runtimes as the process context wants them to be read.
    fn adapted(&mut self, mut present: Arc<[Present]>) -> Arc<[Present]> {
        let Some(found) = &self.found else {
            return present;
        };
        let attributes = &found.context.payload.attributes;
        let adapt = |present: &Present| present.process.as_ref().ok()?.with_context(attributes);
        let new: Vec<_> = present.iter().map(adapt).collect();
        if new.iter().any(Option::is_some) {
            let both = present.iter().zip(new);
            present = both
                .map(|(present, new)| Present {
                    process: new.map_or_else(|| present.process.clone(), Ok),
                    ..present.clone()
                })
                .collect();
            if let Some((_, known)) = &mut self.runtimes {
                *known = present.clone();
            }
        }
        present
    }

    /// The layout for which runtimes were found, if there are any.
    fn runtimes_layout(&self) -> Option<CodeLayout> {
        let found = self.runtimes.as_ref();
        let found = found.filter(|(_, present)| !present.is_empty());
        found.map(|(layout, _)| *layout)
    }

    fn layout(&self, target: &dyn Target) -> Result<CodeLayout, Error> {
        match target.code_layout() {
            Err(remote::Error::Deadline { .. }) => Err(self.late("scan its mappings")),
            layout => Ok(layout?),
        }
    }

    /// Returns true if the loaded libraries are the same as when the variable was last resolved and
    /// runtimes were last found. After reading several threads, check this, and read them again if
    /// it returns false: other data may have replaced the variable of a library that was unloaded.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn modules_unchanged(&self) -> Result<bool, Error> {
        let variables = self.variables.as_ref();
        let known = variables.and_then(|it| it.layout).into_iter();
        let mut known = known.chain(self.runtimes_layout()).peekable();
        // Nothing was resolved, or the program for which it was resolved has ended.
        let (Some(_), Some(target)) = (known.peek(), self.as_target()) else {
            return Ok(true);
        };
        if !target.is_running() {
            return Ok(true);
        }
        let layout = self.layout(&*target)?;
        let is_registered = || variables.is_none_or(|it| self.are_registered(it));
        Ok(known.all(|known| known == layout) && is_registered())
    }

    /// Returns true if the variables of its threads still resolve to the same locations although
    /// [`Self::modules_unchanged`] returned false. Always false for a process with a language
    /// runtime.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn variables_unchanged(&self) -> Result<bool, Error> {
        let (Some(known), Some(target), None) =
            (&self.variables, self.as_target(), self.runtimes_layout())
        else {
            return Ok(false);
        };
        let now = self.resolve_in(&*target)?;
        let is_same = now.variables == known.variables && now.unplaced == known.unplaced;
        Ok(is_same && self.are_registered(known))
    }

    /// Returns true if [`is_registered`] is true for all of these variables.
    fn are_registered(&self, resolution: &tls::Resolution) -> bool {
        let Some(memory) = self.open_memory() else {
            return false;
        };
        let mut variables = resolution.variables.iter();
        variables.all(|variable| match is_registered(variable, memory) {
            Ok(is_registered) => is_registered,
            // Data read from a process remains valid when it ends.
            Err(error) => matches!(error, MemoryError::Gone { .. }),
        })
    }
}

/// Returns true if the same modules always give the same resolution. They do not while a module is
/// being loaded (then something in it is unreadable), nor for dynamic storage: a library that was
/// unloaded and loaded again at the same address has another generation.
fn is_settled(resolution: &tls::Resolution) -> bool {
    let is_static = |variable: &tls::TlsVariable| variable.storage() == tls::Storage::Static;
    resolution.unreadable.is_empty()
        && !resolution.variables.is_empty()
        && resolution.variables.iter().all(is_static)
}

#[cfg(all(test, target_env = "gnu"))]
mod tests;
