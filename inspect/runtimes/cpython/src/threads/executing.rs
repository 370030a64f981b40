//! Finds the thread that executes with the thread state that has the GIL, up to 3.11. A thread can execute
//! with any state: that of another interpreter, or one that has the ID of another thread, which created it.

use std::sync::PoisonError;

use otelctx_reader::remote::MemoryError;

use super::{Failure, Holding, Resolved, Search, Source, State, resolved};
use crate::layout::Gil;

/// More than a thread state takes in 3.10 and 3.11, in bytes.
const MAX_STATE: u64 = 1024;

impl Search<'_> {
    /// The state that has the GIL, unless its thread stores it: then that thread executes with it.
    pub(super) fn unstored(&self, interpreters: &[u64]) -> Result<Option<State>, Failure> {
        let (Gil::Current, Some(current)) = (self.layout.gil, self.variables.current) else {
            return Ok(None);
        };
        let current = self.memory.read_u64(current)?;
        let state = (current != 0).then(|| self.state(current).ok()).flatten();
        let Some(state) = state else {
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

    /// Returns whether an interpreter still has this state: a thread that ends deletes its state,
    /// and holds the GIL until then (`_PyThreadState_DeleteCurrent`). The list is not read again
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
        // A list that was read before may still have the state.
        let list = self.read_again(&mut cache, interpreters, newest)?;
        let mut states = list.by_thread.values().flatten();
        let is_listed = states.any(|listed| listed.address == state.address);
        cache.holder = Some((state.address, is_listed));
        Ok(is_listed)
    }

    /// Returns whether this is another state than the newest one of its thread in the oldest interpreter.
    /// For versions whose stored states are unknown.
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

    /// Finds the thread's state while the GIL's holder is `holder`, which no thread stores. `states` are
    /// those of the thread, its own first. If the thread executes with `holder`, they are right, but lack
    /// the innermost functions.
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
            let source = match stored {
                Some(stored) if stored == state.address => Source::ThreadSpecific,
                _ => Source::List,
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
        // A field of the thread state stands for no call.
        if call.wrapping_sub(state.address) < MAX_STATE {
            return Ok(None);
        }
        Ok((self.is_on_stack)(call))
    }
}
