//! Finds a thread's thread state, and the holder of the GIL.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use otelctx_reader::remote::libc::PthreadKeys;
use otelctx_reader::remote::{Memory, MemoryError};
use otelctx_reader::runtime::{RuntimeError, ThreadView};

mod executing;

use crate::ahead::Ahead;
use crate::layout::{Gil, Layout};
use crate::structure::Structure;

/// Maximum numbers of interpreters and of thread states of a process that are read.
pub(crate) const MAX_INTERPRETERS: usize = 1024;
pub(crate) const MAX_THREADS: usize = 16 * 1024;
/// Maximum number of thread states of one thread: one per interpreter that it has entered.
const MAX_STATES: usize = 64;
/// `_Py_THREAD_ATTACHED`.
const ATTACHED: u32 = 1;
/// Attempts to read the list, which other threads may change at the same time. One in twenty fails while
/// ten threads stay and others start and end all the time.
const MAX_TRIES: usize = 10;
/// Attempts to read a list that is too long: the change of another thread may have led back to its
/// beginning.
const MAX_LONG_TRIES: usize = 3;
/// The time until a list that is too long is read again, for any thread of the process.
const BACK_OFF: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variables {
    /// Address of the pointer to the first interpreter.
    pub(crate) interpreters: u64,
    /// Up to 3.11, address of the pointer to the thread state that holds the GIL.
    pub(crate) current: Option<u64>,
    /// From 3.12 on, the offset from the thread pointer, in bytes, of the pointer to the thread state
    /// that the thread uses now. It is null while the thread has released the GIL.
    pub(crate) thread_current: Option<i64>,
    /// The distance from a thread's thread pointer to its ID, the result of `pthread_self`, in bytes.
    pub(crate) thread_id: i64,
    pub(crate) own: Option<OwnState>,
}

/// The location in which each thread stores its thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnState {
    /// A key of the C library.
    Key {
        /// Address of the key, an `int`.
        address: u64,
        keys: PthreadKeys,
    },
    /// From 3.15 on, a thread-local variable at this offset from the thread pointer.
    ThreadLocal(i64),
}

/// The thread state of a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) thread_state: u64,
    pub(crate) source: Source,
    pub(crate) holding: Holding,
    /// Other thread states of the same thread: those of subinterpreters.
    pub(crate) candidates: Vec<u64>,
}

/// A thread's right to execute Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holding {
    /// True if it holds the GIL. `None` if there is none.
    pub(crate) gil: Option<bool>,
    /// In free-threaded builds, true if it is attached to its interpreter: it is not while it waits, or
    /// executes C code that does not need the interpreter.
    pub(crate) is_attached: Option<bool>,
}

impl Holding {
    /// Returns whether the thread state is the one that the thread uses now.
    fn is_current(self) -> bool {
        self.gil.or(self.is_attached).unwrap_or(false)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The interpreter: the state holds the GIL or is attached.
    Current,
    /// The thread's own data (`PyGILState_GetThisThreadState`).
    ThreadSpecific,
    /// The list of all thread states.
    List,
}

impl Source {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Current => "current",
            Self::ThreadSpecific => "tss",
            Self::List => "list",
        }
    }
}

/// The list of a process's thread states as it was read last, so that it is not read again for each
/// thread.
#[derive(Debug, Default)]
pub(crate) struct StateCache(Mutex<CachedStates>);

#[derive(Debug, Default)]
struct CachedStates {
    list: Option<Arc<StateList>>,
    /// The address of a state that has the GIL, and true if `list` contained it.
    holder: Option<(u64, bool)>,
    /// The time at which the list was found to be too long, and the error.
    too_long: Option<(Instant, RuntimeError)>,
}

impl CachedStates {
    /// The cached list, if no interpreter has a newer state.
    fn list(&self, newest: &[Option<State>]) -> Option<&Arc<StateList>> {
        self.list.as_ref().filter(|list| list.newest == newest)
    }
}

/// The reason why the thread state of a thread was not found.
#[derive(Debug)]
enum Failure {
    /// Other threads change the list: retry at once.
    Changing(RuntimeError),
    /// There are too many: reading them again would take as long.
    Limit(RuntimeError),
    /// There seem to be too many in the list of all thread states: retry at once. While states are removed
    /// and added, the list may seem to lead back to its start.
    TooLong(RuntimeError),
}

impl Failure {
    fn into_error(self) -> RuntimeError {
        match self {
            Self::Changing(error) | Self::Limit(error) | Self::TooLong(error) => error,
        }
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::Changing(error.into())
    }
}

#[derive(Debug)]
struct StateList {
    /// The newest state of each interpreter: new ones are inserted before it.
    newest: Vec<Option<State>>,
    /// States by [`State::thread`], the newest first, at most [`MAX_STATES`] each.
    by_thread: HashMap<u64, Vec<State>>,
}

/// Returns whether the thread's stack contains an address. `None` if that is unknown.
pub(crate) type IsOnStack<'s> = &'s dyn Fn(u64) -> Option<bool>;

/// Finds the thread state of a thread. `None` if it has none. `is_on_stack` is called if the thread may
/// execute with a state that it does not store.
///
/// # Errors
/// If the thread states cannot be read.
pub(crate) fn resolve(
    memory: &dyn Memory,
    layout: &Layout,
    variables: &Variables,
    cache: &StateCache,
    thread: ThreadView,
    is_on_stack: IsOnStack<'_>,
) -> Result<Option<Resolved>, RuntimeError> {
    let search = Search {
        memory,
        layout,
        variables,
        cache,
        thread,
        is_on_stack,
    };
    let mut tries = 0;
    loop {
        tries += 1;
        match search.resolve() {
            // Other threads may have changed the list.
            Err(Failure::Changing(_)) if tries < MAX_TRIES => memory.forget(),
            Err(Failure::TooLong(_)) if tries < MAX_LONG_TRIES => memory.forget(),
            Err(Failure::TooLong(error)) => {
                let mut cache = cache.0.lock().unwrap_or_else(PoisonError::into_inner);
                cache.too_long = Some((Instant::now(), error.clone()));
                return Err(error);
            }
            resolved => return resolved.map_err(Failure::into_error),
        }
    }
}

/// The addresses of all thread states of a process, in any order.
pub(crate) fn addresses(
    memory: &dyn Memory,
    layout: &Layout,
    variables: &Variables,
) -> Result<Vec<u64>, RuntimeError> {
    let search = Search {
        memory,
        layout,
        variables,
        cache: &StateCache::default(),
        thread: ThreadView::new(0, 0),
        is_on_stack: &|_| None,
    };
    let list = search.interpreters().and_then(|interpreters| {
        let newest = search.newest_of_each(&interpreters)?;
        search.read_list(&interpreters, newest)
    });
    let list = list.map_err(Failure::into_error)?;
    let states = list.by_thread.values().flatten();
    Ok(states.map(|state| state.address).collect())
}

fn resolved(
    state: State,
    source: Source,
    holding: Holding,
    all: impl IntoIterator<Item = State>,
) -> Resolved {
    let addresses = all.into_iter().map(|it| it.address);
    Resolved {
        thread_state: state.address,
        source,
        holding,
        candidates: addresses.filter(|it| *it != state.address).collect(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    address: u64,
    next: u64,
    interpreter: u64,
    thread: u64,
}

impl State {
    fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, MemoryError> {
        let offsets = &layout.thread;
        let fields = [offsets.next, offsets.interpreter, offsets.id];
        let structure = Structure::read(memory, address, &fields)?;
        Ok(Self {
            address,
            next: structure.pointer(offsets.next),
            interpreter: structure.pointer(offsets.interpreter),
            thread: structure.pointer(offsets.id),
        })
    }
}

/// The search for the thread state of a thread.
struct Search<'s> {
    memory: &'s dyn Memory,
    layout: &'s Layout,
    variables: &'s Variables,
    cache: &'s StateCache,
    thread: ThreadView,
    is_on_stack: IsOnStack<'s>,
}

impl Search<'_> {
    fn resolve(&self) -> Result<Option<Resolved>, Failure> {
        let interpreters = self.interpreters()?;
        let stored = self.stored(self.thread.thread_pointer)?;
        let own = stored.and_then(|address| self.check(address, &interpreters));
        let unstored = self.unstored(&interpreters)?;
        // With several interpreters, a thread may have several thread states.
        if interpreters.len() <= 1 && unstored.is_none() {
            match (own, stored) {
                (Some(state), _) => {
                    let holding = self.holding(&state)?;
                    let source = Source::ThreadSpecific;
                    return Ok(Some(resolved(state, source, holding, [])));
                }
                (None, None) if self.variables.own.is_some() => return Ok(None),
                _ => {}
            }
        }
        let mut found = self.list(&interpreters)?;
        let own = own.or_else(|| {
            let state = self.lent(stored?, &interpreters)?;
            // The other thread may have one at the address of a freed one.
            let pointer = self.thread_pointer(&state);
            let is_its_own = self.stored(pointer).is_ok_and(|it| it == stored);
            (!is_its_own).then_some(state)
        });
        // The main interpreter is the last one. A thread uses its newest state of an interpreter: a child
        // process of 2.7 keeps states of its parent's other threads, whose IDs its own threads can have.
        let age = |state: &State| interpreters.iter().position(|it| *it == state.interpreter);
        found.sort_by_key(|state| std::cmp::Reverse(age(state)));
        if let Some(holder) = unstored {
            let own = own.filter(|own| !found.contains(own));
            found.splice(..0, own);
            return Ok(self.beside(&holder, found, stored)?);
        }
        let used = self.used()?;
        let other = used.filter(|used| *used != 0 && own.is_none_or(|own| own.address != *used));
        let lent = other.and_then(|address| self.lent(address, &interpreters));
        let own_once = own.filter(|own| !found.contains(own));
        let mut usable = Vec::new();
        for state in lent.into_iter().chain(own_once).chain(found) {
            let holding = self.holding(&state)?;
            // The thread stores its state after it takes the GIL, and before it releases it.
            let may_use = used.is_none_or(|used| used == state.address) || own == Some(state);
            // Otherwise, another thread executes with the state.
            if may_use || !holding.is_current() {
                usable.push((state, holding));
            }
        }
        let current = usable.iter().find(|(_, holding)| holding.is_current());
        let chosen = current.or_else(|| match own {
            Some(own) => usable.iter().find(|(state, _)| *state == own),
            None => usable.first(),
        });
        Ok(chosen.map(|(state, holding)| {
            let source = match own {
                Some(own) if own == *state => Source::ThreadSpecific,
                _ if holding.is_current() => Source::Current,
                _ => Source::List,
            };
            resolved(*state, source, *holding, usable.iter().map(|it| it.0))
        }))
    }

    /// The address of the thread state that the thread uses now, 0 for none. `None` if that is unknown.
    fn used(&self) -> Result<Option<u64>, MemoryError> {
        let Some(offset) = self.variables.thread_current else {
            return Ok(None);
        };
        let at = self.thread.thread_pointer.wrapping_add_signed(offset);
        self.memory.read_u64(at).map(Some)
    }

    /// The thread state at this address, if another thread has created it: 3.12 executes a subinterpreter
    /// with it in any thread. The list, which has been read, has it under the other thread.
    fn lent(&self, address: u64, interpreters: &[u64]) -> Option<State> {
        let state = self.state(address).ok()?;
        let is_known = self.variables.thread_current.is_some();
        if !is_known || self.is_own(&state) || !interpreters.contains(&state.interpreter) {
            return None;
        }
        let cache = self.cache.0.lock().unwrap_or_else(PoisonError::into_inner);
        let states = cache.list.as_ref()?.by_thread.get(&state.thread)?;
        states.contains(&state).then_some(state)
    }

    /// The addresses of all interpreters.
    fn interpreters(&self) -> Result<Vec<u64>, Failure> {
        let mut interpreters = Vec::new();
        let mut next = self.memory.read_u64(self.variables.interpreters)?;
        while next != 0 {
            if interpreters.len() == MAX_INTERPRETERS {
                let reason = format!("its list of interpreters has more than {MAX_INTERPRETERS}");
                return Err(Failure::Limit(RuntimeError::new(reason)));
            }
            interpreters.push(next);
            let at = next.wrapping_add(self.layout.interpreter.next);
            next = self.memory.read_u64(at)?;
        }
        Ok(interpreters)
    }

    fn state(&self, address: u64) -> Result<State, MemoryError> {
        State::read(self.memory, self.layout, address)
    }

    /// The state that the thread with this thread pointer has stored, if any.
    fn stored(&self, pointer: u64) -> Result<Option<u64>, MemoryError> {
        match self.variables.own {
            None => Ok(None),
            Some(OwnState::Key { address, keys }) => {
                let key = self.memory.read_u32(address)?;
                keys.get(self.memory, pointer, key)
            }
            Some(OwnState::ThreadLocal(offset)) => {
                let state = self.memory.read_u64(pointer.wrapping_add_signed(offset))?;
                Ok((state != 0).then_some(state))
            }
        }
    }

    /// The thread state at this address, if it is one of the thread.
    fn check(&self, address: u64, interpreters: &[u64]) -> Option<State> {
        let state = self.state(address).ok()?;
        let is_own = self.is_own(&state) && interpreters.contains(&state.interpreter);
        is_own.then_some(state)
    }

    /// The result of `pthread_self` in the thread.
    fn thread_id(&self) -> u64 {
        let pointer = self.thread.thread_pointer;
        pointer.wrapping_add_signed(self.variables.thread_id)
    }

    /// The thread pointer of the thread whose ID a state has.
    fn thread_pointer(&self, state: &State) -> u64 {
        let id = self.variables.thread_id;
        state.thread.wrapping_add_signed(id.wrapping_neg())
    }

    fn is_own(&self, state: &State) -> bool {
        state.thread == self.thread_id()
    }

    /// The thread states of the thread in the lists of these interpreters.
    fn list(&self, interpreters: &[u64]) -> Result<Vec<State>, Failure> {
        let newest = self.newest_of_each(interpreters)?;
        let mut cache = self.cache.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = cache.list(&newest);
        if let Some(states) = last.and_then(|list| self.current(list, interpreters)) {
            return Ok(states);
        }
        let list = self.read_again(&mut cache, interpreters, newest)?;
        drop(cache);
        let changes = || Failure::Changing(RuntimeError::new("its list of threads changes"));
        self.current(&list, interpreters).ok_or_else(changes)
    }

    /// Reads the list, and keeps it.
    fn read_again(
        &self,
        cache: &mut CachedStates,
        interpreters: &[u64],
        newest: Vec<Option<State>>,
    ) -> Result<Arc<StateList>, Failure> {
        if let Some((since, error)) = &cache.too_long
            && since.elapsed() < BACK_OFF
        {
            return Err(Failure::Limit(error.clone()));
        }
        // Not kept if this fails.
        *cache = CachedStates::default();
        let list = Arc::new(self.read_list(interpreters, newest)?);
        cache.list = Some(list.clone());
        Ok(list)
    }

    fn newest_of_each(&self, interpreters: &[u64]) -> Result<Vec<Option<State>>, MemoryError> {
        let newest = |interpreter: &u64| {
            let first = interpreter.wrapping_add(self.layout.interpreter.threads);
            let first = self.memory.read_u64(first)?;
            (first != 0).then(|| self.state(first)).transpose()
        };
        interpreters.iter().map(newest).collect()
    }

    /// The states of the thread in a list that was read earlier, as they are now. `None` if some are
    /// no longer there.
    fn current(&self, list: &StateList, interpreters: &[u64]) -> Option<Vec<State>> {
        let states = list.by_thread.get(&self.thread_id()).into_iter().flatten();
        let checked = states.map(|state| self.check(state.address, interpreters));
        checked.collect()
    }

    fn read_list(
        &self,
        interpreters: &[u64],
        newest: Vec<Option<State>>,
    ) -> Result<StateList, Failure> {
        let memory = Ahead::new(self.memory);
        let mut by_thread: HashMap<u64, Vec<State>> = HashMap::new();
        let mut count = 0;
        for (interpreter, newest) in interpreters.iter().zip(&newest) {
            let mut next = newest.map_or(0, |state| state.address);
            while next != 0 {
                count += 1;
                if count > MAX_THREADS {
                    let reason = format!("its list of threads has more than {MAX_THREADS}");
                    return Err(Failure::TooLong(RuntimeError::new(reason)));
                }
                let state = State::read(&memory, self.layout, next)?;
                if state.interpreter != *interpreter {
                    let reason = format!("there is no thread state at {next:#x}");
                    return Err(Failure::Changing(RuntimeError::new(reason)));
                }
                let states = by_thread.entry(state.thread).or_default();
                if states.len() < MAX_STATES {
                    states.push(state);
                } else if self.is_own(&state) {
                    let reason = format!("the thread has more than {MAX_STATES} thread states");
                    return Err(Failure::Limit(RuntimeError::new(reason)));
                }
                next = state.next;
            }
        }
        Ok(StateList { newest, by_thread })
    }

    fn holding(&self, state: &State) -> Result<Holding, MemoryError> {
        let attached = self.layout.thread.attached;
        let attached = attached.map(|offset| {
            let at = state.address.wrapping_add(offset);
            self.memory.read_u32(at).map(|value| value == ATTACHED)
        });
        Ok(Holding {
            gil: self.holds_gil(state)?,
            is_attached: attached.transpose()?,
        })
    }

    /// `None` if there is no GIL.
    fn holds_gil(&self, state: &State) -> Result<Option<bool>, MemoryError> {
        let Gil::OfInterpreter {
            gil,
            locked,
            last_holder,
            enabled,
        } = self.layout.gil
        else {
            let current = self.variables.current.map(|it| self.memory.read_u64(it));
            return Ok(Some(current.transpose()? == Some(state.address)));
        };
        let gil = self.memory.read_u64(state.interpreter.wrapping_add(gil))?;
        if gil == 0 {
            return Ok(Some(false));
        }
        let fields = [locked, last_holder, enabled.unwrap_or(locked)];
        let structure = Structure::read(self.memory, gil, &fields)?;
        // Free-threaded builds have a GIL if the user wants one, or once a module that needs it is
        // imported.
        if enabled.is_some_and(|enabled| structure.int(enabled) == 0) {
            return Ok(None);
        }
        // -1 until it is initialized.
        let is_locked = structure.int(locked) == 1;
        let is_last_holder = structure.pointer(last_holder) == state.address;
        Ok(Some(is_locked && is_last_holder))
    }
}

#[cfg(test)]
mod tests;
