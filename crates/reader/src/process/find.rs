//! Where a process has its context, and what became of it since the last look.

use std::sync::Arc;

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

    fn find(&mut self) -> Result<ContextState, Error> {
        self.found = None;
        self.broken.clear();
        let places = self.places()?;
        if places.is_empty() {
            return Ok(ContextState::Absent);
        }
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

    /// Every mapping whose name promises a context, in the order of their addresses.
    fn places(&self) -> Result<Vec<Place>, Error> {
        let mut places = Vec::new();
        self.walk(&mut |mapping| {
            let named = process_context::is_candidate(mapping.name, mapping.permissions.execute);
            if named && places.len() < MOST_PLACES {
                places.push(Place::new(mapping));
            }
        })?;
        Ok(places)
    }
}
