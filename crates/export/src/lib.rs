//! Sends profiles to an OpenTelemetry Collector, or to whatever else takes OTLP profiles
//! (`v1development`), by gRPC or by HTTP.
//!
//! What it does for you:
//!
//! - divides a profile into messages that a collector takes, each whole in itself;
//! - keeps one connection for all of them, and for the profiles after;
//! - tries again, a bounded number of times, when the collector is not ready;
//! - tells what the collector said, and what would help.
//!
//! What stays your job: keeping what could not be sent.
//!
//! ```no_run
//! # fn profile() -> otelctx_profile::Profile { unimplemented!() }
//! use otelctx_export::{Endpoint, Exporter, Protocol};
//!
//! let endpoint = Endpoint::new("http://localhost:4317", Protocol::Grpc)?;
//! let mut exporter = Exporter::new(&endpoint)?;
//! let sent = exporter.send(&profile(), &otelctx_profile::Options::default())?;
//! assert_eq!(sent.rejected_profiles, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answer;
mod connect;
mod endpoint;
mod error;
mod exporter;
mod grpc;
mod http1;
mod other_protocol;

pub use endpoint::{Endpoint, Protocol};
pub use error::{Error, Failed};
pub use exporter::{Exporter, Sent};
