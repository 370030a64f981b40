//! Up to 3.11, which thread executes with the thread state that has the GIL. A thread can execute with any: that of another
//! interpreter, or one that another thread has created, whose ID it has.

use std::sync::PoisonError;

use otelctx_reader::remote::MemoryError;

use super::{Failure, Holding, Resolved, Search, Source, State, resolved};
use crate::layout::Gil;

/// More than a thread state takes in 3.10 and 3.11, in bytes.
const MAX_STATE: u64 = 1024;

impl Search<'_> {
    /// The state that has the GIL, unless it is the one that its thread stores: then that thread executes with it.
    pub(super) fn unstored(&self, interpreters: &[u64]) -> Result<Option<State>, Failure> {
        let (Gil::Current, Some(current)) = (self.layout.gil, self.variables.current) else {
            return Ok(None);
        };
        let current = self.memory.read_u64(current)?;
        if current == 0 {
            return Ok(None);
        }
        let Ok(state) = self.state(current) else {
            return Ok(None);
        };
        if self.variables.own.is_none() {
            return Ok(self.is_additional(&state, interpreters)?.then_some(state));
        }
        // The thread may have ended.
        let pointer = self.thread_pointer(&state);
        let is_stored = self.stored(pointer).is_ok_and(|it| it == Some(current));
        let is_unstored = !is_stored && self.is_listed(&state, interpreters)?;
        Ok(is_unstored.then_some(state))
    }

    /// Returns whether an interpreter still has this state: a thread that ends deletes its own one,
    /// and holds the GIL until it has (`_PyThreadState_DeleteCurrent`). The list is not read again
    /// for each thread.
    fn is_listed(&self, state: &State, interpreters: &[u64]) -> Result<bool, Failure> {
        let newest = self.newest_of_each(interpreters)?;
        let mut cache = self.cache.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((address, is_listed)) = cache.holder
            && address == state.address
            && cache.list(&newest).is_some()
        {
            return Ok(is_listed);
        }
        // One that was read before may have the state still.
        let list = self.read_again(&mut cache, interpreters, newest)?;
        let mut states = list.by_thread.values().flatten();
        let is_listed = states.any(|listed| listed.address == state.address);
        cache.holder = Some((state.address, is_listed));
        Ok(is_listed)
    }

    /// Where it is unknown what threads store: whether this is another state than the oldest interpreter's newest one of
    /// its thread.
    fn is_additional(&self, state: &State, interpreters: &[u64]) -> Result<bool, Failure> {
        if interpreters.len() <= 1 {
            return Ok(false);
        }
        if !self.is_own(state) {
            return Ok(true);
        }
        let states = self.list(interpreters)?;
        let age = |it: &&State| interpreters.iter().position(|i| *i == it.interpreter);
        // The first one of several.
        let oldest = states.iter().rev().max_by_key(age);
        Ok(oldest.is_some_and(|oldest| oldest.address != state.address))
    }

    /// The thread's state while the GIL's holder is `holder`, which no thread stores. `states` are those of the thread, and
    /// the first one is its own. They are not wrong where `holder` is the thread's, but then they lack the innermost
    /// functions.
    pub(super) fn beside(
        &self,
        holder: &State,
        mut states: Vec<State>,
        stored: Option<u64>,
    ) -> Result<Option<Resolved>, MemoryError> {
        let executes = self.executes(holder)?;
        let holding = Holding {
            gil: executes,
            is_attached: None,
        };
        if executes == Some(true) {
            if !states.contains(holder) {
                states.push(*holder);
            }
            return Ok(Some(resolved(*holder, Source::Current, holding, states)));
        }
        let chosen = states.iter().find(|state| *state != holder).copied();
        Ok(chosen.map(|state| {
            let source = if stored == Some(state.address) {
                Source::ThreadSpecific
            } else {
                Source::List
            };
            resolved(state, source, holding, states)
        }))
    }

    /// Returns whether the thread executes with this state: 3.10 and 3.11 have the innermost call
    /// of the interpreter on the stack of the thread that executes. `None` if that is unknown.
    fn executes(&self, state: &State) -> Result<Option<bool>, MemoryError> {
        let Some(call) = self.layout.thread.call else {
            return Ok(None);
        };
        let call = self.memory.read_u64(state.address.wrapping_add(call))?;
        // The thread state itself has that which is none.
        if call.wrapping_sub(state.address) < MAX_STATE {
            return Ok(None);
        }
        Ok((self.is_on_stack)(call))
    }
}
