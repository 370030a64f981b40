//! Resource attributes that a process can find out about itself.

use std::env;

use otelctx_format::environment;
use otelctx_format::process_context::Value;

use super::{ProcessContext, SERVICE_NAME};

/// Which resource attributes to find out. Names are those of the OpenTelemetry semantic
/// conventions.
///
/// ```
/// use otelctx::{Detect, ProcessContext};
///
/// let context = ProcessContext::detect_with(Detect { command_args: true, ..Detect::default() });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs)]
pub struct Detect {
    /// `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES`; `service.name` is
    /// `unknown_service:` and the executable's name without them. On by default.
    pub environment: bool,
    /// `process.pid`, `process.executable.name` and `process.executable.path`. On by default.
    pub process: bool,
    /// `process.command_args`: off by default, because secrets are passed there.
    pub command_args: bool,
    /// `telemetry.sdk.language`, `.name` and `.version`. On by default.
    pub sdk: bool,
    /// `service.instance.id`: a random one, made when the context is published, so that a forked
    /// child gets another. On by default.
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
        let executable = env::current_exe().unwrap_or_default();
        let name = executable.file_name().map(|name| name.to_string_lossy());
        if self.environment {
            let unknown = match &name {
                Some(name) => format!("unknown_service:{name}"),
                None => "unknown_service".into(),
            };
            context = context.service_name(unknown);
        }
        if self.sdk {
            context = context
                .attribute("telemetry.sdk.language", "rust")
                .attribute("telemetry.sdk.name", "otelctx")
                .attribute("telemetry.sdk.version", env!("CARGO_PKG_VERSION"));
        }
        if self.process {
            context = context.attribute("process.pid", i64::from(std::process::id()));
            if let Some(name) = &name {
                context = context
                    .attribute("process.executable.name", name.as_ref())
                    .attribute(
                        "process.executable.path",
                        executable.to_string_lossy().as_ref(),
                    );
            }
        }
        if self.command_args {
            let args: Vec<Value> = env::args_os()
                .map(|arg| arg.to_string_lossy().as_ref().into())
                .collect();
            context = context.attribute("process.command_args", args);
        }
        if self.environment {
            context.read_environment();
        }
        context
    }
}

impl ProcessContext {
    fn read_environment(&mut self) {
        // A value that is not UTF-8 is malformed, and the parser says so of U+FFFD's neighbours only
        // when they are: read it as malformed percent-encoding instead.
        let variable = |name| {
            let value = env::var_os(name)?;
            Some(value.into_string().unwrap_or_else(|_| "%".into()))
        };
        let service_name = env::var_os(environment::SERVICE_NAME);
        let service_name = service_name.as_ref().map(|name| name.to_string_lossy());
        let found = environment::resource(
            service_name.as_deref(),
            variable(environment::RESOURCE_ATTRIBUTES).as_deref(),
        );
        let resource = found.unwrap_or_else(|malformed| {
            let resource = malformed.resource.clone();
            self.malformed_variable = Some(malformed);
            resource
        });
        for (key, value) in resource {
            super::set(&mut self.resource, key, value);
        }
        debug_assert!(self.resource.iter().any(|(key, _)| key == SERVICE_NAME));
    }
}
