//! Finds the process context of a process, and polls it for changes.

use std::ops::ControlFlow;
use std::sync::Arc;

use otelctx_format::process_context::MAPPING_PREFIXES;
use otelctx_remote::Target;
use otelctx_remote::mappings::{NameFilter, NamedMapping};
use otelctx_remote::process::Sizes;

use super::{Process, Subject};
use crate::process_context::{self, MAX_PLACES, Place, Polled};
use crate::{Broken, ContextState, Error, ProcessContext};

/// The result of polling a context at its known address.
#[derive(Debug)]
pub enum Poll {
    /// Nothing has changed.
    Same,
    /// The process has updated its context in place.
    Updated(Arc<ProcessContext>),
    /// The context can no longer be read.
    Broken(Broken),
    /// No address is known, or the context has disappeared: the mappings must be scanned.
    Unknown,
}

impl Process {
    /// Reads the current process context: one system call if it has not changed since.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn context(&mut self) -> Result<ContextState, Error> {
        if self.found.is_some() {
            // Retry contexts that could not be read last time.
            self.broken.clear();
        }
        match (self.poll_context(), &self.found) {
            (Poll::Same, Some(found)) => Ok(ContextState::Published(found.context.clone())),
            (Poll::Updated(context), _) => Ok(ContextState::Published(context)),
            (Poll::Broken(why), _) => Ok(ContextState::Broken(why)),
            (Poll::Same | Poll::Unknown, _) => self.scan_context(),
        }
    }

    /// Scans the mappings for a context, ignoring known addresses.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub fn scan_context(&mut self) -> Result<ContextState, Error> {
        match self.find()? {
            // The process may have changed between the scan and the read: use the second result.
            ContextState::Broken(Broken::HeaderUnreadable(_) | Broken::PayloadUnreadable(_)) => {
                self.find()
            }
            state => Ok(state),
        }
    }

    /// Scans the mappings again if the process has mapped memory since the last scan, and returns the context if another
    /// publisher's has come or gone meanwhile.
    ///
    /// # Errors
    /// If the process cannot be inspected.
    pub(crate) fn other_context(
        &mut self,
        known: &ContextState,
    ) -> Result<Option<ContextState>, Error> {
        let ContextState::Published(known) = known else {
            return Ok(None);
        };
        if self.sizes() == self.scanned {
            return Ok(None);
        }
        let found = self.scan_context()?;
        let is_other = match &found {
            ContextState::Published(found) => found.others != known.others,
            _ => false,
        };
        Ok(is_other.then_some(found))
    }

    /// How much memory it has mapped; `None` for a core file.
    fn sizes(&self) -> Option<Sizes> {
        let (_, sizes) = self.running().ok()?.sizes().ok()?;
        Some(sizes)
    }

    /// Tries the mappings of publishers that use a memfd, and all others with a matching name: a
    /// second publisher may use them.
    fn find(&mut self) -> Result<ContextState, Error> {
        self.found = None;
        self.scanned = self.sizes();
        self.broken.clear();
        // A publisher may keep the address of its context only after it was published.
        self.owners.take_if(|owners| !owners.are_known());
        let process = match &self.subject {
            Subject::Running { process, .. } => process,
            Subject::Saved(target) => {
                let (places, unreadable) = saved_places(&**target)?;
                return match self.try_places(&places)? {
                    ContextState::Absent if unreadable > 0 => {
                        let mappings = unreadable;
                        Ok(ContextState::Broken(Broken::NotInCore { mappings }))
                    }
                    state => Ok(state),
                };
            }
        };
        let filter = NameFilter {
            names: &MAPPING_PREFIXES,
            limit: MAX_PLACES,
            options: self.scan_options(),
        };
        let mut search = self.complete(process.search(filter)?)?;
        let mut places = places(std::mem::take(&mut search.writable_files));
        let state = self.try_places(&places)?;
        let others = self.complete(self.running()?.search_others(search)?);
        let others = match (others, &state) {
            // A process with millions of mappings is read, although it may have a second context.
            (Err(Error::Deadline { .. }), ContextState::Published(_)) => return Ok(state),
            (others, _) => others?,
        };
        if others.is_empty() {
            return Ok(state);
        }
        places.extend(self::places(others));
        self.try_places(&places)
    }

    fn try_places(&mut self, places: &[Place]) -> Result<ContextState, Error> {
        if places.is_empty() {
            return Ok(ContextState::Absent);
        }
        let max_payload = self.options.max_payload;
        self.memory()?;
        let memory = self.open_memory().expect("memory was just opened");
        // Read before the contexts are tried, so that a later change is detected by the next poll.
        let header = |place: &Place| {
            let header = process_context::read_header(memory, place.address);
            (place.address, header)
        };
        let headers = places.iter().map(header).collect();
        match process_context::read_first(places, memory, max_payload, &self.past) {
            Ok(Some(found)) => {
                self.past = found.past.clone();
                let found = self.found.insert(found);
                Ok(ContextState::Published(found.context.clone()))
            }
            Ok(None) => Ok(ContextState::Absent),
            Err(broken) => {
                self.broken = headers;
                Ok(ContextState::Broken(broken))
            }
        }
    }

    /// Polls only the known addresses, with one system call for each; normally there is one.
    pub fn poll_context(&mut self) -> Poll {
        let Some(memory) = self.subject.memory() else {
            return Poll::Unknown;
        };
        if !self.broken.is_empty() {
            let is_same = |(address, header): &(u64, _)| {
                process_context::read_header(memory, *address) == *header
            };
            if self.broken.iter().all(is_same) {
                return Poll::Same;
            }
            self.broken.clear();
        }
        let Some(found) = &self.found else {
            return Poll::Unknown;
        };
        match found.poll(memory, self.options.max_payload) {
            Polled::Unchanged => Poll::Same,
            Polled::Changed(new) => {
                // Another context of the process has changed, without consequences.
                let is_same = new.context == found.context;
                self.past = new.past.clone();
                let context = self.found.insert(new).context.clone();
                if is_same {
                    Poll::Same
                } else {
                    Poll::Updated(context)
                }
            }
            Polled::Broken(header, why) => {
                self.broken = vec![(found.context.address, Some(header))];
                Poll::Broken(why)
            }
            Polled::Gone => {
                self.found = None;
                Poll::Unknown
            }
        }
    }
}

fn places(mappings: Vec<NamedMapping>) -> Vec<Place> {
    mappings.iter().map(Place::new).collect()
}

/// All mappings of a process that is not running that may contain a context, and the number of
/// unreadable ones. If none has the right name: unnamed memory that starts with the signature.
fn saved_places(target: &dyn Target) -> Result<(Vec<Place>, usize), Error> {
    let (mut places, mut unnamed) = (Vec::new(), Vec::new());
    target.mappings(&mut |mapping| {
        let is_writable = mapping.permissions.read && mapping.permissions.write;
        if process_context::is_named(mapping.name) && places.len() < MAX_PLACES {
            places.push(Place::saved(mapping.name, mapping.start));
        } else if mapping.name.is_empty() && mapping.inode == 0 && is_writable {
            unnamed.push(mapping.start);
        }
        ControlFlow::Continue(())
    })?;
    let mut unreadable = 0;
    if places.is_empty() {
        for start in unnamed {
            match process_context::is_signed(target, start) {
                Some(true) if places.len() < MAX_PLACES => places.push(Place::saved(b"", start)),
                Some(_) => {}
                None => unreadable += 1,
            }
        }
    }
    Ok((places, unreadable))
}
