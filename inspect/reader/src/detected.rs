//! Detects resource attributes of a process that publishes no context.

use std::ffi::OsStr;

use otelctx_format::environment;
use otelctx_format::process_context::{Attributes, Value};

use crate::Error;

/// Maximum number of bytes read of an environment; a string has at most 128 KiB.
const ENVIRONMENT_LIMIT: usize = 1 << 20;

/// Resource attributes that the process did not publish.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Detected {
    /// From `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` and the kernel: `process.pid`,
    /// `process.executable.name`, `process.executable.path`.
    pub resource: Attributes,
    /// The process's `OTEL_RESOURCE_ATTRIBUTES` is malformed, and was ignored.
    pub malformed_variable: bool,
}

impl Detected {
    /// Detects the attributes of `process` that the kernel reveals.
    pub(crate) fn of(process: &otelctx_remote::Process) -> Result<Self, Error> {
        let environment = process.environment(ENVIRONMENT_LIMIT)?;
        let variable = |name: &str| {
            let found = environment.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| lossy(value))
        };
        let resource = environment::resource(
            variable(environment::SERVICE_NAME).as_deref(),
            variable(environment::RESOURCE_ATTRIBUTES).as_deref(),
        );
        let (resource, malformed_variable) = match resource {
            Ok(resource) => (resource, false),
            Err(malformed) => (malformed.resource, true),
        };
        let mut detected = Self {
            resource,
            malformed_variable,
        };
        detected.add("process.pid", Value::Int(process.pid().into()));
        if let Ok(path) = process.executable() {
            let path = lossy(path.as_os_str());
            // Appended by the kernel if the file was deleted or replaced; not part of its name.
            let path = path.strip_suffix(" (deleted)").unwrap_or(&path);
            if let Some(name) = path.rsplit('/').next() {
                detected.add("process.executable.name", name.into());
            }
            detected.add("process.executable.path", path.into());
        }
        Ok(detected)
    }

    /// Adds an attribute unless the environment already sets it.
    fn add(&mut self, key: &str, value: Value) {
        if !self.resource.iter().any(|(known, _)| known == key) {
            self.resource.push((key.into(), value));
        }
    }
}

fn lossy(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}
