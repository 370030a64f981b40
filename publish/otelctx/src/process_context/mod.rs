//! The process context: what a process publishes about itself.

mod check;
mod detect;
mod error;
#[cfg(not(all(target_os = "linux", target_has_atomic = "64")))]
#[path = "unobserved.rs"]
pub(crate) mod platform;
#[cfg(all(target_os = "linux", target_has_atomic = "64"))]
#[path = "linux/mod.rs"]
pub(crate) mod platform;

pub use detect::Detect;
pub use error::PublishError;
use otelctx_format::environment::MalformedVariable;
use otelctx_format::process_context::{Attributes, Payload, Value, MAX_PUBLISHED_SIZE};
use otelctx_format::{Schema, KEY_MAP, SCHEMA_VERSION, THREADLOCAL};

use crate::{arch, thread};

const SERVICE_NAME: &str = "service.name";
const PID: &str = "process.pid";

/// A process context: the attributes of the process's OpenTelemetry resource, and attributes of the
/// process context itself.
///
/// Setting an attribute again replaces it. Attributes that are set precede detected ones.
#[doc(alias = "otel_process_ctx_data")]
#[derive(Clone, Debug)]
#[must_use = "a process context does nothing until it is published"]
pub struct ProcessContext {
    payload: Payload,
    schema: Schema,
    /// Attributes that the schema has in addition: names that start with `threadlocal.`.
    schema_attributes: Attributes,
    random_instance_id: bool,
    /// The detected `process.pid`.
    detected_pid: Option<u32>,
    max_payload_size: usize,
    malformed_variable: bool,
}

impl Default for ProcessContext {
    fn default() -> Self {
        Self::new()
    }
}

impl ProcessContext {
    /// Creates a process context without resource attributes.
    pub fn new() -> Self {
        Self {
            payload: Payload::default(),
            schema: Schema::TlsdescV1Dev,
            schema_attributes: Attributes::new(),
            random_instance_id: false,
            detected_pid: None,
            max_payload_size: MAX_PUBLISHED_SIZE,
            malformed_variable: false,
        }
    }

    /// Creates a process context with the resource attributes that can be detected; see [`Detect`].
    pub fn detect() -> Self {
        Self::detect_with(Detect::default())
    }

    /// Creates a process context with some of the resource attributes that can be detected.
    pub fn detect_with(detect: Detect) -> Self {
        detect.run()
    }

    /// Sets `service.name`.
    pub fn with_service_name(self, name: impl Into<String>) -> Self {
        self.with_attribute(SERVICE_NAME, name.into())
    }

    /// Sets an attribute of the resource.
    pub fn with_attribute(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        set(&mut self.payload.resource, key.into(), value.into());
        self
    }

    /// Sets resource attributes, for example those of an SDK's resource. Values keep their type.
    ///
    /// ```
    /// use otelctx::{ProcessContext, Value};
    ///
    /// # let sdk = || [("service.name", Value::from("shop")), ("http.ports", vec![80_i64, 443].into())];
    /// let context = ProcessContext::detect().with_attributes(sdk());
    /// ```
    pub fn with_attributes<K: Into<String>, V: Into<Value>>(
        self,
        attributes: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let set = |context: Self, (key, value)| context.with_attribute(key, value);
        attributes.into_iter().fold(self, set)
    }

    /// Removes an attribute of the resource.
    pub fn without_attribute(mut self, key: &str) -> Self {
        self.payload.resource.retain(|(known, _)| known != key);
        self
    }

    /// Sets an attribute of the process context itself, which is not part of the resource. Names
    /// that start with `threadlocal.` are reserved for this crate.
    pub fn with_context_attribute(
        mut self,
        key: impl Into<String>,
        value: impl Into<Value>,
    ) -> Self {
        set(&mut self.payload.attributes, key.into(), value.into());
        self
    }

    /// Sets the announced schema of thread contexts. The default is [`Schema::TlsdescV1Dev`], which
    /// current readers support.
    pub fn with_schema(mut self, schema: Schema) -> Self {
        self.schema = schema;
        self
    }

    /// Sets an attribute that belongs to the [schema](Self::with_schema), for publishers of schemas
    /// that this crate does not know. The name starts with `threadlocal.`. It is published where
    /// thread contexts are supported.
    ///
    /// Publishing fails with [`PublishError::ReservedKey`] if the name does not start so, or is
    /// that of an attribute which this crate sets: the schema's name, and the key map.
    pub fn with_schema_attribute(
        mut self,
        key: impl Into<String>,
        value: impl Into<Value>,
    ) -> Self {
        set(&mut self.schema_attributes, key.into(), value.into());
        self
    }

    /// Sets the maximum size of the encoded context, in bytes. The default is 65,536; readers may
    /// reject larger contexts.
    pub fn with_max_payload_size(mut self, bytes: usize) -> Self {
        self.max_payload_size = bytes;
        self
    }

    /// Returns why `OTEL_RESOURCE_ATTRIBUTES` was ignored, if it was.
    #[must_use]
    pub fn malformed_variable(&self) -> Option<&MalformedVariable> {
        static MALFORMED: MalformedVariable = MalformedVariable {
            resource: Attributes::new(),
        };
        self.malformed_variable.then_some(&MALFORMED)
    }

    /// Publishes the context, so that other processes can find it, until the guard is dropped.
    ///
    /// A process has one context. If another copy or version of this crate has published
    /// one, that copy withdraws it and its guard has no effect any more; records keep their
    /// meaning. A forked child has no context and may publish its own.
    ///
    /// On targets other than Linux this does nothing and succeeds.
    ///
    /// # Errors
    /// If a context is published already, by this copy of the crate or by another publisher; if
    /// readers would reject this context; if the kernel denies a system call that makes it visible.
    /// Nothing is published then.
    #[doc(alias("otel_process_ctx_publish", "PR_SET_VMA_ANON_NAME"))]
    pub fn publish(self) -> Result<Published, PublishError> {
        platform::publish(self).map(|id| Published { id })
    }

    /// Changes the context that this copy of the crate has published in this process, without
    /// needing the guard: for a library that adds to the application's context.
    ///
    /// ```
    /// use otelctx::{ProcessContext, PublishError};
    ///
    /// # fn main() -> Result<(), PublishError> {
    /// # let _application = ProcessContext::new().with_service_name("shop").publish()?;
    /// // In a library: publish its own context only if the application has none.
    /// let own = match ProcessContext::detect().with_attribute("job.name", "nightly").publish() {
    ///     Err(PublishError::AlreadyPublished) => {
    ///         ProcessContext::modify(|context| context.with_attribute("job.name", "nightly"))?;
    ///         None
    ///     }
    ///     published => Some(published?),
    /// };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The change persists until it is changed again, until [`Published::replace`] replaces
    /// the whole context, or until the context is withdrawn. No lock is held while `change` runs.
    /// If another thread changes the context at the same time, `change` runs again, so that no
    /// change is lost.
    ///
    /// # Errors
    /// [`PublishError::NotPublished`] if nothing is published, as in a forked child that has not
    /// published; otherwise those of [`publish`](Self::publish), and the context is unchanged.
    pub fn modify(mut change: impl FnMut(Self) -> Self) -> Result<(), PublishError> {
        platform::modify(&mut change)
    }

    /// Searches for a second process context, which another publisher has published after this copy
    /// of the crate. Returns the line of `/proc/PID/maps` with its mapping. Readers use one of the two,
    /// and may name attributes of threads by the wrong one's key map.
    ///
    /// This reads the process's maps.
    #[must_use]
    pub fn find_other() -> Option<String> {
        platform::find_other()
    }

    /// Encodes the payload: this context, its schema and its key map.
    fn encode(&mut self) -> Vec<u8> {
        let own = self.payload.attributes.len();
        if arch::OBSERVED {
            let mut keys = Vec::new();
            for name in thread::registered_names() {
                keys.push(Value::from(name));
            }
            let attributes = &mut self.payload.attributes;
            attributes.push((SCHEMA_VERSION.into(), self.schema.as_str().into()));
            attributes.push((KEY_MAP.into(), Value::Array(keys)));
            attributes.extend(self.schema_attributes.iter().cloned());
        }
        let bytes = self.payload.encode();
        self.payload.attributes.truncate(own);
        bytes
    }

    /// Checks and encodes a context to publish.
    fn encode_checked(&mut self) -> Result<Vec<u8>, PublishError> {
        for (key, _) in &self.payload.attributes {
            if key.starts_with(THREADLOCAL) {
                return Err(PublishError::ReservedKey { key: key.clone() });
            }
        }
        for (key, _) in &self.schema_attributes {
            if !key.starts_with(THREADLOCAL) || key == SCHEMA_VERSION || key == KEY_MAP {
                return Err(PublishError::ReservedKey { key: key.clone() });
            }
        }
        self.renew_pid();
        check::check(&self.payload.resource, &self.payload.attributes)?;
        let bytes = self.encode();
        self.check_size(bytes.len())?;
        Ok(bytes)
    }

    /// Updates the detected PID if the process was forked since.
    fn renew_pid(&mut self) {
        let Some(detected) = self.detected_pid else {
            return;
        };
        for (key, value) in &mut self.payload.resource {
            if key == PID && matches!(value, Value::Int(pid) if *pid == i64::from(detected)) {
                *value = std::process::id().into();
            }
        }
    }

    fn check_size(&self, size: usize) -> Result<(), PublishError> {
        if size == 0 {
            return Err(PublishError::Empty);
        }
        let limit = self.max_payload_size.min(u32::MAX as usize);
        if size > limit {
            return Err(PublishError::TooLarge { size, limit });
        }
        Ok(())
    }
}

fn set(attributes: &mut Attributes, key: String, value: Value) {
    match attributes.iter_mut().find(|(known, _)| *known == key) {
        Some((_, known)) => *known = value,
        None => attributes.push((key, value)),
    }
}

/// Keeps the process context published until dropped. In a forked child, dropping it does nothing,
/// because the child has no context.
#[must_use = "the process context is withdrawn when the guard is dropped"]
#[derive(Debug)]
pub struct Published {
    id: u64,
}

impl Published {
    /// Replaces the published context, including changes by [`ProcessContext::modify`]. Readers see
    /// the old context, the new one, or that it is being updated. In a forked child, publishes it
    /// as the child's own context.
    ///
    /// # Errors
    /// The errors of [`ProcessContext::publish`]; the old context is kept then.
    #[doc(alias("otel_process_ctx_publish", "otel_process_ctx_update"))]
    pub fn replace(&mut self, context: ProcessContext) -> Result<(), PublishError> {
        self.id = platform::update(self.id, context)?;
        Ok(())
    }

    /// Publishes the context again in every later child of this process, and in their children, so
    /// that readers see each worker of a pre-forking server.
    ///
    /// When `fork` returns, the child's context is already published. It equals the parent's,
    /// including the keys of records, except for its `process.pid` and a random
    /// `service.instance.id` of its own. An instance ID that the program has set is kept. The guard
    /// that a child inherits refers to the child's context: it can be replaced or dropped, and
    /// [`ProcessContext::modify`] works as in the parent. A child in which publishing fails has no
    /// context, as without this call.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), otelctx::PublishError> {
    /// let mut process = otelctx::ProcessContext::detect().with_service_name("shop").publish()?;
    /// process.republish_after_fork()?;
    /// for worker in 0..4_i64 {
    ///     # unsafe fn fork() -> i32 { 0 }
    ///     if unsafe { fork() } == 0 {
    ///         otelctx::ProcessContext::modify(|context| context.with_attribute("worker.id", worker))?;
    ///         // serve ...
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// This registers `pthread_atfork` handlers, which run in each fork of the process. They encode
    /// the context before the fork; in the child they only make system calls and do not allocate,
    /// which is safe in programs with several threads. `posix_spawn`, `vfork` and `clone` run no
    /// such handlers, and neither does [`std::process::Command`] if it uses one of them. Programs
    /// that call `fork` in signal handlers cannot use this.
    ///
    /// # Errors
    /// [`PublishError::NotPublished`] if this guard's context is no longer published, and
    /// [`PublishError::System`] if there is not enough memory for the handlers.
    pub fn republish_after_fork(&mut self) -> Result<(), PublishError> {
        platform::republish_after_fork(self.id)
    }

    /// Withdraws the context, as dropping does, and reports errors.
    ///
    /// # Errors
    /// If the mapping cannot be removed. Readers still recognize it as empty.
    #[doc(alias("otel_process_ctx_drop", "otel_process_ctx_drop_current"))]
    pub fn unpublish(self) -> Result<(), PublishError> {
        let id = self.id;
        std::mem::forget(self);
        platform::unpublish(id)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // Use unpublish() to get the error.
        let _ = platform::unpublish(self.id);
    }
}
