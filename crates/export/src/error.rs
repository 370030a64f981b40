//! Why profiles could not be sent.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Protocol, Sent};

/// Why profiles could not be sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// That is no endpoint.
    #[error("{url:?} is not a valid OTLP endpoint: {reason}")]
    Endpoint {
        /// What was given, without a user's name and password, and without query.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A variable of the environment holds something else than it should.
    #[error("{variable}: {reason}")]
    Variable {
        /// Its name.
        variable: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// There are no certificates to believe a server by.
    #[error("{}: no CA certificates: {reason}", path.as_deref().unwrap_or("this machine".as_ref()).display())]
    Certificates {
        /// The file, if one was named.
        path: Option<PathBuf>,
        /// What is wrong with it.
        reason: String,
    },
    /// `https://`, and this program was built without.
    #[error("{endpoint}: this program was built without TLS")]
    WithoutTls {
        /// The URL.
        endpoint: String,
    },
    /// The system has no room for another task.
    #[error("cannot prepare the connection: {0}")]
    Prepare(String),
    /// There is no connection to be had.
    #[error("cannot connect to {endpoint}: {reason}")]
    Unreachable {
        /// The URL.
        endpoint: String,
        /// What the system said.
        reason: String,
        /// Its kind.
        kind: io::ErrorKind,
    },
    /// There is a connection, and no secure one.
    #[error("{endpoint}: TLS failed: {reason}")]
    Tls {
        /// The URL.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// What answers there speaks something else.
    #[error("{endpoint} does not accept OTLP over {protocol}: {reason}")]
    WrongProtocol {
        /// The URL.
        endpoint: String,
        /// What was tried.
        protocol: Protocol,
        /// What came instead.
        reason: String,
    },
    /// It knows nothing of profiles.
    #[error("{endpoint} does not accept profiles: {reason}")]
    NoProfiles {
        /// The URL.
        endpoint: String,
        /// Its answer.
        reason: String,
    },
    /// It takes profiles, and not this one.
    #[error("{endpoint} refused the profile: {reason}")]
    Refused {
        /// The URL.
        endpoint: String,
        /// Its answer.
        reason: String,
    },
    /// It may take it later.
    #[error("{endpoint} is unavailable: {reason}")]
    Unavailable {
        /// The URL.
        endpoint: String,
        /// Its answer.
        reason: String,
    },
    /// It did not answer in time.
    #[error("{endpoint} did not respond within {} s", .waited.as_secs_f64())]
    TimedOut {
        /// The URL.
        endpoint: String,
        /// How long an attempt may take.
        waited: Duration,
    },
}

impl Error {
    /// What would help, if that is not part of the message.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some(format!(
                "start a collector there, or use another endpoint (the usual ports are {} for \
                 gRPC and {} for HTTP)",
                Protocol::Grpc.port(),
                Protocol::Http.port()
            )),
            Self::Tls { .. } => Some(
                "use http:// if it has no TLS; OTEL_EXPORTER_OTLP_CERTIFICATE names a file of CA \
                 certificates to trust"
                    .into(),
            ),
            Self::WithoutTls { .. } => {
                Some("build otelctx with TLS: cargo build --release --features tls".into())
            }
            Self::WrongProtocol { protocol, .. } => Some(format!(
                "use {} (--otlp-protocol, OTEL_EXPORTER_OTLP_PROTOCOL), or the port for \
                 {protocol}, usually {}",
                protocol.other(),
                protocol.port()
            )),
            Self::NoProfiles { .. } => Some(
                "a Collector needs a pipeline `profiles` with its OTLP receiver, and \
                 --feature-gates=service.profilesSupport"
                    .into(),
            ),
            Self::TimedOut { .. } => {
                Some("raise the limit with OTEL_EXPORTER_OTLP_TIMEOUT (milliseconds)".into())
            }
            _ => None,
        }
    }
}

/// A profile that could not be sent, or not all of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Failed {
    /// Why.
    pub why: Error,
    /// How many times the message was tried to send that failed.
    pub attempts: u32,
    /// The messages before it, which the collector has.
    pub sent: Sent,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.why.fmt(out)?;
        if self.attempts > 1 {
            write!(out, ", tried {} times", self.attempts)?;
        }
        match self.sent.messages {
            0 => Ok(()),
            1 => out.write_str("; it accepted one part of the profile before"),
            parts => write!(out, "; it accepted {parts} parts of the profile before"),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}
