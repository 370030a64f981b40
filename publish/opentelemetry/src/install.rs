//! Installs the publisher into a tracer provider.

use std::sync::Arc;

use opentelemetry_sdk::trace::{
    Config, IdGenerator, SdkTracerProvider, ShouldSample, TracerProviderBuilder,
};
use opentelemetry_sdk::Resource;
use otelctx::Key;

use crate::ids::Remembered;
use crate::observer::{self, Options};
use crate::problem::{self, Problem};
use crate::resource::{self, Listener};
use crate::sampler::{Published, Recording};

/// Publishes the contexts of this program's threads, with these attributes of the provider's spans.
///
/// `attributes` are names such as `http.route`; a process has at most 256. What is published should
/// be low in number and harmless: everyone who may read the process's memory sees it.
///
/// Pass a sampler, an ID generator and the resource to the returned [`Install`], everything else to
/// the builder. Several providers can be installed in one program; the first one's
/// [`baggage`](Install::with_baggage), [`span_name`](Install::with_span_name) and
/// [`local_root_span_id`](Install::with_local_root_span_id) then apply to all;
/// [`check`](crate::check) tells if a later one asks for more.
#[must_use = "nothing is published before build()"]
pub fn install<A: Into<String>>(
    builder: TracerProviderBuilder,
    attributes: impl IntoIterator<Item = A>,
) -> Install {
    Install {
        builder,
        attributes: attributes.into_iter().map(Into::into).collect(),
        baggage: Vec::new(),
        span_name: None,
        local_root: None,
        profile_id: true,
        sampler: None,
        id_generator: None,
        resource: None,
    }
}

/// The publisher to install into a tracer provider. Created by [`install`].
#[derive(Debug)]
#[must_use = "nothing is published before build()"]
pub struct Install {
    builder: TracerProviderBuilder,
    attributes: Vec<String>,
    baggage: Vec<String>,
    span_name: Option<String>,
    local_root: Option<String>,
    profile_id: bool,
    sampler: Option<Box<dyn ShouldSample>>,
    id_generator: Option<Box<dyn IdGenerator>>,
    resource: Option<Resource>,
}

impl Install {
    /// Sets the provider's resource, which also becomes the process context.
    ///
    /// If the builder has one instead, it is published as well, but spans get more expensive: it
    /// comes from a span processor.
    pub fn with_resource(mut self, resource: Resource) -> Self {
        self.resource = Some(resource);
        self
    }

    /// Sets the provider's sampler, instead of the one that `OTEL_TRACES_SAMPLER` names.
    pub fn with_sampler(mut self, sampler: impl Into<Box<dyn ShouldSample>>) -> Self {
        self.sampler = Some(sampler.into());
        self
    }

    /// Sets the provider's ID generator, instead of the SDK's random one.
    pub fn with_id_generator(mut self, generator: impl IdGenerator + 'static) -> Self {
        self.id_generator = Some(Box::new(generator));
        self
    }

    /// Publishes the span's name, too, as an attribute with this name. Names of spans should be low
    /// in number, see OpenTelemetry's specification.
    pub fn with_span_name(mut self, attribute: impl Into<String>) -> Self {
        self.span_name = Some(attribute.into());
        self
    }

    /// Publishes the ID of the local root span, too: the outermost span of the trace in this
    /// process, in hexadecimal, as an attribute with this name.
    pub fn with_local_root_span_id(mut self, attribute: impl Into<String>) -> Self {
        self.local_root = Some(attribute.into());
        self
    }

    /// Publishes these entries of the context's baggage, too, as attributes of the same names. A
    /// span's attribute of that name is not published.
    pub fn with_baggage<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.baggage = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whether local root spans get the attribute `pyroscope.profile.id`, their own span ID,
    /// by which Grafana finds a span's profile. On by default.
    pub fn with_profile_id(mut self, profile_id: bool) -> Self {
        self.profile_id = profile_id;
        self
    }

    /// Builds the provider, publishes its resource, and from now on publishes each context that is
    /// attached to a thread. A context that another thread has attached already is published when
    /// that thread attaches or detaches the next one.
    ///
    /// This never fails. What cannot be published is reported by [`check`](crate::check), and as a
    /// warning. The warning needs a subscriber of `tracing` that was set before, and most programs
    /// set theirs with this provider.
    pub fn build(self) -> SdkTracerProvider {
        let mut builder = self.builder;
        let description = format!("{builder:?}");
        let defaults = Config::default();

        let published = Published {
            attributes: keys(self.attributes),
            profile_id: self.profile_id,
        };
        let is_ours = observer::set(Options {
            baggage: keys(self.baggage),
            span_name: self.span_name.and_then(key),
            local_root: self.local_root.and_then(key),
        });

        if has_resource(&description) {
            builder = builder.with_span_processor(Listener);
        } else {
            resource::publish(self.resource.as_ref().unwrap_or(&defaults.resource));
        }
        if let Some(resource) = self.resource {
            builder = builder.with_resource(resource);
        }
        if !is_ours {
            problem::report(Problem::OtherObserver);
        }
        let has_sampler = self.sampler.is_none() && !has_default_sampler(&description, &defaults);
        let has_generator =
            self.id_generator.is_none() && !has_default_generator(&description, &defaults);
        if !has_sampler && !has_generator {
            let generator = self.id_generator.unwrap_or(defaults.id_generator);
            builder = builder
                .with_id_generator(Remembered(generator))
                .with_sampler(Recording {
                    decide: self.sampler.unwrap_or(defaults.sampler),
                    published: Arc::new(published),
                });
        } else {
            problem::report(Problem::OwnSampler);
            if let Some(sampler) = self.sampler {
                builder = builder.with_sampler(sampler);
            }
            if let Some(generator) = self.id_generator {
                builder = builder.with_id_generator(Remembered(generator));
            }
        }
        problem::installed();
        let provider = builder.build();
        if is_ours {
            observer::publish_current();
        }
        provider
    }
}

fn keys(names: Vec<String>) -> Vec<Key> {
    names.into_iter().filter_map(key).collect()
}

fn key(name: String) -> Option<Key> {
    let report = |error| problem::report(Problem::Key(error));
    Key::from_string(name).map_err(report).ok()
}

/// Returns whether a builder still has the default sampler.
///
/// The SDK has no other way to ask than the builder's description for debugging. If that changes,
/// the builder's own sampler is kept, and reported.
fn has_default_sampler(description: &str, defaults: &Config) -> bool {
    description.contains(&format!("sampler: {:?}, id_generator: ", defaults.sampler))
}

/// Returns whether a builder still has the default ID generator.
fn has_default_generator(description: &str, defaults: &Config) -> bool {
    let generator = &defaults.id_generator;
    description.contains(&format!("id_generator: {generator:?}, span_limits: "))
}

/// Returns whether a builder has a resource, or has a description of another form.
fn has_resource(description: &str) -> bool {
    !description.ends_with(", resource: None }")
}
