//! Sends the recording to a collector.

use otelctx_export::{Endpoint, Exporter, Protocol, Sent};
use otelctx_profile::{Options, Profile};

use crate::command::help;
use crate::error::Error;
use crate::output::terminal::{self, escape};
use crate::output::text::{count, grouped};

/// Destination of the profile.
#[derive(Debug, clap::Args)]
pub(super) struct To {
    /// Send the profile to this collector, such as http://localhost:4317 [default:
    /// OTEL_EXPORTER_OTLP_ENDPOINT]. Only the files given with --output are written
    #[arg(help_heading = help::OUTPUT, long, value_name = "URL", num_args = 0..=1, default_missing_value = "")]
    otlp: Option<String>,
    /// Protocol: grpc or http/protobuf [default: by port (4317, 4318), else
    /// OTEL_EXPORTER_OTLP_PROTOCOL, else http/protobuf]
    #[arg(help_heading = help::OUTPUT, long, value_name = "PROTOCOL", requires = "otlp")]
    otlp_protocol: Option<Protocol>,
}

pub(super) struct Collector {
    endpoint: Endpoint,
    exporter: Exporter,
}

impl Collector {
    /// Creates the requested collector. Warns if it cannot be reached: a warning now is better than
    /// after an hour, and it may be reachable by then.
    pub(super) fn of(to: &To) -> Result<Option<Self>, Error> {
        let Some(url) = &to.otlp else {
            return Ok(None);
        };
        let url = (!url.is_empty()).then_some(url.as_str());
        let variable = |name: &str| std::env::var(name).ok();
        let endpoint = Endpoint::from_environment(url, to.otlp_protocol, variable)?;
        let exporter = Exporter::new(&endpoint)?;
        if let Err(error) = exporter.reach() {
            let later = "sending will be tried again after the recording";
            terminal::complain(&format!("{error}: {later}"), error.hint().as_deref());
        }
        Ok(Some(Self { endpoint, exporter }))
    }

    pub(super) fn send(&mut self, profile: &Profile, options: &Options) -> Result<Delivery, Error> {
        let sent = self.exporter.send(profile, options).map_err(Box::new)?;
        complain_of(&sent);
        Ok(Delivery {
            url: self.endpoint.to_string(),
            protocol: self.endpoint.protocol().to_string(),
            messages: sent.messages,
            bytes: sent.bytes,
        })
    }
}

/// The messages that the collector accepted.
#[derive(Debug, serde::Serialize)]
pub(super) struct Delivery {
    url: String,
    protocol: String,
    messages: usize,
    bytes: usize,
}

impl Delivery {
    pub(super) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }

    pub(super) fn line(&self) -> String {
        let url = escape(&self.url);
        if self.messages == 0 {
            return format!("  {url}: nothing was sent, because there are no samples\n");
        }
        format!(
            "  {url}: sent over {}, {} bytes in {}\n",
            self.protocol,
            grouped(self.bytes),
            count(self.messages, "message", "messages"),
        )
    }
}

/// Reports what the collector replied besides accepting the profile.
fn complain_of(sent: &Sent) {
    if sent.rejected_profiles > 0 {
        let rejected = usize::try_from(sent.rejected_profiles).unwrap_or(usize::MAX);
        let rejected = count(rejected, "profile", "profiles");
        terminal::complain(&format!("the collector rejected {rejected}"), None);
    }
    for remark in &sent.remarks {
        terminal::complain(&format!("the collector says: {remark}"), None);
    }
}
