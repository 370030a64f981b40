//! Where a process has its context, and what became of it since the last look.

use std::sync::Arc;

use otelctx_remote::mappings::{Named, Wanted};

use super::Process;
use crate::process_context::{self, MOST_PLACES, Place, Polled};
use crate::{Broken, ContextState, Error, ProcessContext};

/// What a look at a known place came to.
pub(crate) enum Glance {
    /// All is as it was.
    Same,
    /// The process published anew, at the same place.
    Updated(Arc<ProcessContext>),
    /// The context that was there can't be read any more.
    Broken(Broken),
    /// There is no known place, or what was there has gone or changed: look for it.
    Unknown,
}

impl Process {
    /// The process context as it is now. When it was read before and has not changed, this is one
    /// system call.
    ///
    /// # Errors
    /// When the process can't be looked at.
    pub fn context(&mut self) -> Result<ContextState, Error> {
        if self.found.is_some() {
            // What could not be read at its place last time is tried again.
            self.broken.clear();
        }
        match (self.glance(), &self.found) {
            (Glance::Same, Some(found)) => Ok(ContextState::Published(found.context.clone())),
            (Glance::Updated(context), _) => Ok(ContextState::Published(context)),
            (Glance::Broken(why), _) => Ok(ContextState::Broken(why)),
            (Glance::Same | Glance::Unknown, _) => self.look(),
        }
    }

    /// Looks for a context among the mappings, whatever is known.
    pub(crate) fn look(&mut self) -> Result<ContextState, Error> {
        match self.find()? {
            // The process may have unpublished, ended or executed another program between the look
            // at its mappings and the one into its memory: what a second look finds is so.
            ContextState::Broken(Broken::HeaderUnreadable(_) | Broken::PayloadUnreadable(_)) => {
                self.find()
            }
            state => Ok(state),
        }
    }

    /// Looks where publishers that could have a memfd have their context, and only if nothing is
    /// readable there, at all other mappings of such a name.
    fn find(&mut self) -> Result<ContextState, Error> {
        self.found = None;
        self.broken.clear();
        let wanted = Wanted {
            names: &process_context::NAMES,
            most: MOST_PLACES,
            reading: self.reading(),
        };
        let mut search = self.through(self.target.search(wanted)?)?;
        let mut places = std::mem::take(&mut search.writable_files);
        let state = self.try_places(&places)?;
        if matches!(state, ContextState::Published(_)) {
            return Ok(state);
        }
        let others = self.through(self.target.search_others(search)?)?;
        if others.is_empty() {
            return Ok(state);
        }
        places.extend(others);
        self.try_places(&places)
    }

    fn try_places(&mut self, places: &[Named]) -> Result<ContextState, Error> {
        if places.is_empty() {
            return Ok(ContextState::Absent);
        }
        let places: Vec<_> = places.iter().map(Place::new).collect();
        let max_payload = self.options.max_payload;
        let memory = self.memory()?;
        // As they are before they are tried: a later change then shows at the next glance.
        let headers = places
            .iter()
            .map(|place| {
                let address = place.address();
                (address, process_context::read_header(memory, address))
            })
            .collect();
        match process_context::read_first(&places, memory, max_payload) {
            Ok(Some(found)) => Ok(ContextState::Published(
                self.found.insert(found).context.clone(),
            )),
            Ok(None) => Ok(ContextState::Absent),
            Err(broken) => {
                self.broken = headers;
                Ok(ContextState::Broken(broken))
            }
        }
    }

    /// Looks at the places that were found before, and nowhere else: one system call for each, of
    /// which there is one.
    pub(crate) fn glance(&mut self) -> Glance {
        let Some(memory) = &self.memory else {
            return Glance::Unknown;
        };
        if !self.broken.is_empty() {
            let is_same = |(address, header): &(u64, _)| {
                process_context::read_header(memory, *address) == *header
            };
            if self.broken.iter().all(is_same) {
                return Glance::Same;
            }
            self.broken.clear();
        }
        let Some(found) = &self.found else {
            return Glance::Unknown;
        };
        match found.poll(memory, self.options.max_payload) {
            Polled::Unchanged => Glance::Same,
            Polled::Changed(new) => Glance::Updated(self.found.insert(new).context.clone()),
            Polled::Broken(header, why) => {
                self.broken = vec![(found.context.address, Some(header))];
                Glance::Broken(why)
            }
            Polled::Gone => {
                // Unpublished, or the program was replaced and with it the whole address space.
                self.found = None;
                Glance::Unknown
            }
        }
    }
}
