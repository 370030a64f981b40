//! Publishes the provider's resource as the process context.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::{Array, Context, Value as Attribute};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanProcessor};
use opentelemetry_sdk::Resource;
use otelctx::{ProcessContext, PublishError, Published, Value};

use crate::problem;

/// Keeps the process context published as long as the process runs.
static PUBLISHED: Mutex<Option<Published>> = Mutex::new(None);

/// Publishes a resource, or adds it to the process context that the program has published.
pub(crate) fn publish(resource: &Resource) {
    if let Err(error) = try_publish(resource) {
        problem::report(problem::Problem::ProcessContext(error));
    }
}

fn try_publish(resource: &Resource) -> Result<(), PublishError> {
    let attributes = || {
        resource
            .iter()
            .map(|(key, value)| (key.as_str(), converted(value)))
    };
    let add = |context: ProcessContext| context.with_attributes(attributes());
    let mut published = PUBLISHED.lock().unwrap_or_else(PoisonError::into_inner);
    match add(ProcessContext::new()).publish() {
        Ok(mut new) => {
            // A child that goes on with the request keeps what its thread publishes.
            let result = new.republish_after_fork();
            *published = Some(new);
            result?;
        }
        Err(PublishError::AlreadyPublished) => ProcessContext::modify(add)?,
        Err(error) => return Err(error),
    }
    Ok(())
}

fn converted(value: &Attribute) -> Value {
    match value {
        Attribute::Bool(value) => (*value).into(),
        Attribute::I64(value) => (*value).into(),
        Attribute::F64(value) => (*value).into(),
        Attribute::Array(Array::Bool(values)) => list(values),
        Attribute::Array(Array::I64(values)) => list(values),
        Attribute::Array(Array::F64(values)) => list(values),
        Attribute::Array(Array::String(values)) => {
            Value::Array(values.iter().map(|value| value.as_str().into()).collect())
        }
        // Strings, and what a later version adds.
        _ => value.as_str().as_ref().into(),
    }
}

fn list<T: Copy + Into<Value>>(values: &[T]) -> Value {
    Value::Array(values.iter().copied().map(Into::into).collect())
}

/// Publishes the resource that the SDK passes to every span processor when the provider is built.
#[derive(Debug)]
pub(crate) struct Listener;

impl SpanProcessor for Listener {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, _span: SpanData) {}

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn set_resource(&mut self, resource: &Resource) {
        publish(resource);
    }
}
