//! Detects resource attributes of this process.

use std::env;

use otelctx_format::environment;
use otelctx_format::process_context::Value;

use super::{ProcessContext, PID, SERVICE_NAME};

/// The resource attributes to detect, with names of OpenTelemetry's semantic conventions.
///
/// ```
/// use otelctx::{Detect, ProcessContext};
///
/// let context = ProcessContext::detect_with(Detect { command_args: true, ..Detect::default() });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs)]
pub struct Detect {
    /// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`. If they set no `service.name`, it is
    /// `unknown_service:` and the executable's name. On by default.
    pub environment: bool,
    /// `process.pid` (updated in a forked child that publishes), `process.executable.name` and
    /// `process.executable.path`. On by default.
    pub process: bool,
    /// `process.command_args`. Off by default, because arguments can contain secrets.
    pub command_args: bool,
    /// `telemetry.sdk.language`, `.name` and `.version`. On by default.
    pub sdk: bool,
    /// `service.instance.id`: random, generated when the context is published, so that each forked
    /// child has its own. On by default.
    pub instance_id: bool,
}

impl Default for Detect {
    fn default() -> Self {
        Self {
            environment: true,
            process: true,
            command_args: false,
            sdk: true,
            instance_id: true,
        }
    }
}

impl Detect {
    pub(super) fn run(self) -> ProcessContext {
        let mut context = ProcessContext::new();
        context.random_instance_id = self.instance_id;
        let resource = &mut context.payload.resource;
        let mut add = |key: &str, value: &str| resource.push((key.into(), value.into()));
        let executable = env::current_exe().unwrap_or_default();
        let path = executable.to_string_lossy();
        let name = executable.file_name().unwrap_or_default().to_string_lossy();
        if self.environment {
            let mut unknown = String::from("unknown_service");
            if !name.is_empty() {
                unknown.push(':');
                unknown.push_str(&name);
            }
            add(SERVICE_NAME, &unknown);
        }
        if self.sdk {
            add("telemetry.sdk.language", "rust");
            add("telemetry.sdk.name", "otelctx");
            add("telemetry.sdk.version", env!("CARGO_PKG_VERSION"));
        }
        if self.process {
            if !name.is_empty() {
                add("process.executable.name", &name);
                add("process.executable.path", &path);
            }
            let pid = std::process::id();
            context.detected_pid = Some(pid);
            resource.push((PID.into(), pid.into()));
        }
        if self.command_args {
            let args = env::args_os().map(|arg| Value::from(arg.to_string_lossy().as_ref()));
            resource.push(("process.command_args".into(), args.collect()));
        }
        if self.environment {
            context.read_environment();
        }
        context
    }
}

impl ProcessContext {
    fn read_environment(&mut self) {
        let service_name = env::var_os(environment::SERVICE_NAME);
        let service_name = service_name.as_ref().map(|name| name.to_string_lossy());
        // A value that is not UTF-8 is as malformed as a `%` that encodes nothing.
        let pairs = env::var_os(environment::RESOURCE_ATTRIBUTES)
            .map(|value| value.into_string().unwrap_or_else(|_| "%".into()));
        let resource = match environment::resource(service_name.as_deref(), pairs.as_deref()) {
            Ok(resource) => resource,
            Err(malformed) => {
                self.malformed_variable = true;
                malformed.resource
            }
        };
        for (key, value) in resource {
            super::set(&mut self.payload.resource, key, value);
        }
    }
}
