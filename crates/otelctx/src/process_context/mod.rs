//! The process context: what a process says of itself, published where others find it.

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

/// What a process says of itself: the attributes of its OpenTelemetry resource, and attributes of
/// the process context itself.
///
/// Setting an attribute again replaces it. What is set here wins over what was detected.
#[doc(alias = "otel_process_ctx_data")]
#[derive(Clone, Debug)]
#[must_use = "a process context does nothing until it is published"]
pub struct ProcessContext {
    payload: Payload,
    schema: Schema,
    random_instance_id: bool,
    /// The `process.pid` that was detected.
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
    /// A process context without resource attributes.
    pub fn new() -> Self {
        Self {
            payload: Payload::default(),
            schema: Schema::TlsdescV1Dev,
            random_instance_id: false,
            detected_pid: None,
            max_payload_size: MAX_PUBLISHED_SIZE,
            malformed_variable: false,
        }
    }

    /// A process context with the resource attributes that can be found out; [`Detect`] lists
    /// them.
    pub fn detect() -> Self {
        Self::detect_with(Detect::default())
    }

    /// A process context with some of the resource attributes that can be found out.
    pub fn detect_with(detect: Detect) -> Self {
        detect.run()
    }

    /// Sets `service.name`.
    pub fn service_name(self, name: impl Into<String>) -> Self {
        self.attribute(SERVICE_NAME, name.into())
    }

    /// Sets an attribute of the resource.
    pub fn attribute(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        set(&mut self.payload.resource, key.into(), value.into());
        self
    }

    /// Sets attributes of the resource, for example all that an SDK has. Values keep their type.
    ///
    /// ```
    /// use otelctx::{ProcessContext, Value};
    ///
    /// # let sdk = || [("service.name", Value::from("shop")), ("http.ports", vec![80_i64, 443].into())];
    /// let context = ProcessContext::detect().attributes(sdk());
    /// ```
    pub fn attributes<K: Into<String>, V: Into<Value>>(
        self,
        attributes: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let set = |context: Self, (key, value)| context.attribute(key, value);
        attributes.into_iter().fold(self, set)
    }

    /// Removes an attribute of the resource.
    pub fn without_attribute(mut self, key: &str) -> Self {
        self.payload.resource.retain(|(known, _)| known != key);
        self
    }

    /// Sets an attribute of the process context itself, which is no part of the resource. Names
    /// that start with `threadlocal.` are the crate's.
    pub fn context_attribute(mut self, key: impl Into<String>, value: impl Into<Value>) -> Self {
        set(&mut self.payload.attributes, key.into(), value.into());
        self
    }

    /// Sets the name under which the layout of thread contexts is announced:
    /// [`Schema::TlsdescV1Dev`], which the readers of today accept, unless set.
    pub fn schema(mut self, schema: Schema) -> Self {
        self.schema = schema;
        self
    }

    /// Sets the largest size of the encoded context, in bytes: 65,536 unless set. Readers may
    /// refuse larger ones.
    pub fn max_payload_size(mut self, bytes: usize) -> Self {
        self.max_payload_size = bytes;
        self
    }

    /// Why `OTEL_RESOURCE_ATTRIBUTES` was ignored, when it was.
    #[must_use]
    pub fn malformed_variable(&self) -> Option<&MalformedVariable> {
        static MALFORMED: MalformedVariable = MalformedVariable {
            resource: Attributes::new(),
        };
        self.malformed_variable.then_some(&MALFORMED)
    }

    /// Publishes the context, so that other processes find it, until the guard is dropped.
    ///
    /// A process has one. If another copy or version of this crate has published it, that copy
    /// withdraws it, and its guard has no effect any more; records keep their meaning. After a fork,
    /// the child has none and may publish its own.
    ///
    /// On targets other than Linux this does nothing and succeeds.
    ///
    /// # Errors
    /// When a context is published already, by this copy of the crate or by another publisher; when
    /// readers would reject this one; when the kernel refuses what makes it visible. Nothing is
    /// published then.
    #[doc(alias("otel_process_ctx_publish", "PR_SET_VMA_ANON_NAME"))]
    pub fn publish(self) -> Result<Published, PublishError> {
        platform::publish(self).map(|id| Published { id })
    }

    /// Changes the context that this copy of the crate has published in this process, without the
    /// guard: for a library that adds to what the application publishes.
    ///
    /// ```
    /// use otelctx::{ProcessContext, PublishError};
    ///
    /// # fn main() -> Result<(), PublishError> {
    /// # let _application = ProcessContext::new().service_name("shop").publish()?;
    /// // In a library: a context of its own only where the application has none.
    /// let own = match ProcessContext::detect().attribute("job.name", "nightly").publish() {
    ///     Err(PublishError::AlreadyPublished) => {
    ///         ProcessContext::modify(|context| context.attribute("job.name", "nightly"))?;
    ///         None
    ///     }
    ///     published => Some(published?),
    /// };
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The change stays until it is changed again, until [`Published::update`] replaces the
    /// context as a whole, or until the holder of the guard withdraws it. A lock is not held while
    /// `change` runs. It runs again if the context has changed meanwhile, so that nobody's change
    /// is lost.
    ///
    /// # Errors
    /// [`PublishError::NotPublished`] if nothing is published, as in a forked child that has not
    /// published; otherwise those of [`publish`](Self::publish), and the context stays as it was.
    pub fn modify(mut change: impl FnMut(Self) -> Self) -> Result<(), PublishError> {
        platform::modify(&mut change)
    }

    /// The payload's bytes: this, and how thread contexts are to be read.
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
        }
        let bytes = self.payload.encode();
        self.payload.attributes.truncate(own);
        bytes
    }

    /// Encodes what shall be published for the first time or in place of another context.
    fn encode_checked(&mut self) -> Result<Vec<u8>, PublishError> {
        let reserved = self
            .payload
            .attributes
            .iter()
            .find(|(key, _)| key.starts_with(THREADLOCAL));
        if let Some((key, _)) = reserved {
            return Err(PublishError::ReservedKey { key: key.clone() });
        }
        self.renew_pid();
        check::check(&self.payload.resource, &self.payload.attributes)?;
        let bytes = self.encode();
        self.check_size(bytes.len())?;
        Ok(bytes)
    }

    /// A process forked since the detection has another pid.
    fn renew_pid(&mut self) {
        let Some(detected) = self.detected_pid else {
            return;
        };
        for (key, value) in &mut self.payload.resource {
            match value {
                Value::Int(pid) if key == PID && *pid == detected.into() => {
                    *pid = std::process::id().into();
                }
                _ => {}
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

/// Keeps the process context published. Dropping it unpublishes; in a forked child it does
/// nothing, because the child has no context.
#[must_use = "the process context is withdrawn when the guard is dropped"]
#[derive(Debug)]
pub struct Published {
    id: u64,
}

impl Published {
    /// Replaces the published context, with what [`ProcessContext::modify`] has made of it. Readers see the old one, or the new one, or that it is
    /// being updated. In a forked child, publishes it as the child's own.
    ///
    /// # Errors
    /// Those of [`ProcessContext::publish`]; the old context stays then.
    #[doc(alias("otel_process_ctx_publish", "otel_process_ctx_update"))]
    pub fn update(&mut self, context: ProcessContext) -> Result<(), PublishError> {
        self.id = platform::update(self.id, context)?;
        Ok(())
    }

    /// Has the context published again in every child that this process forks from now on, and in
    /// their children, so that readers see each worker of a pre-forking server.
    ///
    /// When `fork` returns, the child's context is there: as the parent's was, the keys of records
    /// included, with a random `service.instance.id` of its own and its `process.pid`. An instance id
    /// that the program has set stays as it is. The guard that a child inherits is that of its own
    /// context: it may update or drop it, and [`ProcessContext::modify`] works as in the parent.
    /// A child in which publishing fails has no context, as without this call.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), otelctx::PublishError> {
    /// let mut process = otelctx::ProcessContext::detect().service_name("shop").publish()?;
    /// process.republish_after_fork()?;
    /// for worker in 0..4_i64 {
    ///     # unsafe fn fork() -> i32 { 0 }
    ///     if unsafe { fork() } == 0 {
    ///         otelctx::ProcessContext::modify(|context| context.attribute("worker.id", worker))?;
    ///         // serve ...
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Handlers of `pthread_atfork` do it in each fork of the process. They encode the context before
    /// the fork; in the child they only make system calls, and take no memory, so that the fork is
    /// safe in programs with several threads. `posix_spawn`, `vfork` and `clone` run no such handlers,
    /// and neither does [`std::process::Command`] where it uses one of them. Programs that call `fork`
    /// in signal handlers cannot use this.
    ///
    /// # Errors
    /// [`PublishError::NotPublished`] if this guard's context is not published any more, and
    /// [`PublishError::System`] if there is no memory for the handlers.
    pub fn republish_after_fork(&mut self) -> Result<(), PublishError> {
        platform::republish_after_fork(self.id)
    }

    /// Unpublishes, as dropping does, and tells when it failed.
    ///
    /// # Errors
    /// When the mapping cannot be removed. Readers know all the same that it holds nothing.
    #[doc(alias("otel_process_ctx_drop", "otel_process_ctx_drop_current"))]
    pub fn unpublish(self) -> Result<(), PublishError> {
        let id = self.id;
        std::mem::forget(self);
        platform::unpublish(id)
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // unpublish() is for who wants to know.
        let _ = platform::unpublish(self.id);
    }
}
