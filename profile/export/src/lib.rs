//! Sends profiles to an OpenTelemetry Collector, or to another receiver of OTLP profiles
//! (`v1development`), over gRPC or HTTP.
//!
//! It splits a profile into messages of an accepted size, each complete in itself; keeps one
//! connection for all messages, and for later profiles; retries, a bounded number of times, if the
//! collector is unavailable; and reports the collector's messages, with hints.
//!
//! It does not store profiles that could not be sent. Programs that do encode messages themselves and send each with
//! [`Exporter::attempt`].
//!
//! [`Downloads`] uses the same connections to download files, such as debug information.
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
mod attempt;
mod connect;
mod download;
mod encoding;
mod endpoint;
mod error;
mod exporter;
mod grpc;
mod http1;
mod other_protocol;
mod protocol;
mod proxy;
mod sent;

pub use attempt::{Cancel, Message, Retry, Unsent};
pub use download::{DownloadError, DownloadLimits, Downloads};
pub use endpoint::Endpoint;
pub use error::Error;
pub use exporter::Exporter;
pub use protocol::Protocol;
pub use sent::{Failed, Sent};
