//! The thread-local variables of a process: from a thread pointer to a record.

use std::sync::Arc;

use otelctx_format::record::{self, DecodedContext};
use otelctx_format::{KeyMap, Schema};
use otelctx_remote::tls::{Resolution, TlsVariable};
use otelctx_remote::{Memory, MemoryError};
use otelctx_sample::Found;

use crate::record::{Newer, decode, read_record};
use crate::{ContextState, Error, ProcessContext, RecordKeys, Unreadable};

/// How the threads of a process are read, or why they have no readable contexts.
#[derive(Clone, Debug)]
pub enum ThreadSupport {
    /// They have contexts in these variables.
    Readable(ThreadVariables),
    /// They have no readable contexts.
    Unreadable(Unreadable),
}

/// The variables of a process, and the names that its records refer to.
#[derive(Clone, Debug)]
pub struct ThreadVariables {
    /// The schema that the process announces: that of thread-local records, unless
    /// [`Options::any_schema`](crate::Options::any_schema) is set.
    pub schema: Option<Schema>,
    /// The names that records refer to.
    pub keys: RecordKeys,
    /// The variables with this name that the process uses, most likely first.
    pub resolution: Arc<Resolution>,
}

/// A record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    /// The position in [`Resolution::variables`] of the variable that points to it.
    pub variable: usize,
    /// Its size in bytes; 0 if it is invalid.
    pub size: usize,
}

/// The announcements of a process context about the contexts of threads.
pub(crate) struct Announced {
    schema: Option<Schema>,
    keys: KeyMap,
}

impl Announced {
    /// Reads the announcements of `context`. Never an error with `any_schema`.
    pub(crate) fn of(context: &ContextState, any_schema: bool) -> Result<Self, Unreadable> {
        let context = match context {
            ContextState::Published(context) => Some(context),
            _ if any_schema => None,
            ContextState::Absent => return Err(Unreadable::NoProcessContext),
            ContextState::Broken(why) => return Err(Unreadable::BrokenProcessContext(why.clone())),
        };
        let schema = context.and_then(|context| context.schema.clone());
        match &schema {
            Some(schema) if schema.is_thread_local_record() => {}
            _ if any_schema => {}
            None => return Err(Unreadable::NoSchema),
            Some(schema) => return Err(Unreadable::UnsupportedSchema(schema.clone())),
        }
        let keys = match context.map_or(Ok(None), |context| context.keys.clone()) {
            Ok(keys) => keys.unwrap_or_default(),
            Err(_) if any_schema => KeyMap::default(),
            Err(error) => return Err(Unreadable::KeyMap(error)),
        };
        Ok(Self { schema, keys })
    }

    pub(crate) fn at(self, resolution: Arc<Resolution>) -> ThreadSupport {
        if resolution.variables.is_empty() {
            return ThreadSupport::Unreadable(Unreadable::NotFound {
                unreadable: resolution.unreadable.clone(),
            });
        }
        ThreadSupport::Readable(ThreadVariables {
            schema: self.schema,
            keys: RecordKeys::new(self.keys),
            resolution,
        })
    }
}

impl ThreadVariables {
    /// Reads the record of thread `tid`, which must be stopped, into `buffer`: `None` if none is
    /// attached. Of several variables, uses the first that points to a valid record, or else the
    /// first that is not null.
    ///
    /// # Errors
    /// If the variable or the record cannot be read.
    pub fn read(
        &self,
        memory: &dyn Memory,
        tid: i32,
        thread_pointer: u64,
        buffer: &mut [u8],
    ) -> Result<Option<ReadRecord>, Error> {
        let mut fallback = Ok(None);
        for (position, variable) in self.resolution.variables.iter().enumerate() {
            let read = |size| ReadRecord {
                variable: position,
                size,
            };
            let other = match read_variable(variable, memory, tid, thread_pointer, buffer) {
                Ok(None) => continue,
                Ok(Some(size)) if buffer[record::offset::VALID] == record::VALID => {
                    return Ok(Some(read(size)));
                }
                Ok(Some(_)) => Ok(Some(read(0))),
                Err(error) => Err(error),
            };
            if matches!(fallback, Ok(None)) {
                fallback = other;
            }
        }
        fallback
    }

    /// Returns whether the publisher of each record is known by the variable that points to it, in a
    /// process with several publishers.
    #[must_use]
    pub fn knows_publishers(&self) -> bool {
        let mut positions = 0..self.resolution.variables.len();
        positions.all(|position| self.keys.context_of_variable(position).is_some())
    }

    /// Returns true if the modules of the variables are unchanged according to the dynamic linker
    /// (glibc). False if the process has executed another program.
    #[must_use]
    pub fn are_current(&self, memory: &dyn Memory) -> bool {
        let mut variables = self.resolution.variables.iter();
        variables.all(|variable| is_registered(variable, memory) == Ok(true))
    }

    /// Decodes a record that [`Self::read`] has read into `buffer`. `newer_keys` is called if a key is
    /// unknown or not certain, with the way to the key map in a new process context.
    pub(crate) fn decode(
        &self,
        read: Option<ReadRecord>,
        buffer: &[u8],
        newer_keys: impl FnOnce(&dyn Fn(&ProcessContext) -> Option<KeyMap>) -> Newer,
    ) -> Found<DecodedContext> {
        let Some(ReadRecord { variable, size }) = read else {
            return Found::Detached;
        };
        let of_variable = |context: &ProcessContext| {
            let keys = self.keys.updated(context)?;
            Some(keys.of_variable(variable).clone())
        };
        let keys = self.keys.of_variable(variable);
        decode(&buffer[..size], keys, || newer_keys(&of_variable))
    }
}

fn read_variable(
    variable: &TlsVariable,
    memory: &dyn Memory,
    tid: i32,
    thread_pointer: u64,
    buffer: &mut [u8],
) -> Result<Option<usize>, Error> {
    let Some(address) = variable.address(memory, thread_pointer)? else {
        return Ok(None);
    };
    let pointer = memory.read_u64(address).map_err(|source| Error::Variable {
        tid,
        module: variable.module.to_string_lossy().into_owned(),
        source,
    })?;
    if pointer == 0 {
        return Ok(None);
    }
    let no_record = |reason: String| Error::Pointer {
        tid,
        pointer,
        reason,
    };
    if pointer % 2 != 0 {
        return Err(no_record("a record's address is even".into()));
    }
    match read_record(memory, pointer, buffer) {
        Ok(size) => Ok(Some(size)),
        // It is unknown whether it is a record.
        Err(source @ MemoryError::NotInCore { .. }) => Err(Error::Record {
            tid,
            pointer,
            source,
        }),
        Err(error) => Err(no_record(error.to_string())),
    }
}

/// Returns true if the dynamic linker's entry for the module of a variable is unchanged: a module
/// that was unloaded and loaded again at the same address has different storage.
pub(crate) fn is_registered(
    variable: &TlsVariable,
    memory: &dyn Memory,
) -> Result<bool, MemoryError> {
    let Some(registration) = variable.registration() else {
        return Ok(true);
    };
    let [generation, map] = registration.words.map(u64::to_le_bytes);
    let mut words = [0; 16];
    memory.read(registration.address, &mut words)?;
    Ok(words[..8] == generation && words[8..] == map)
}
