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
    #[error("{url:?} is no endpoint for OTLP: {reason}")]
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
    #[error("{}: no certificates of authorities: {reason}", path.as_deref().unwrap_or("this machine".as_ref()).display())]
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
    #[error("sending can't be prepared: {0}")]
    Prepare(String),
    /// There is no connection to be had.
    #[error("{endpoint} can't be reached: {reason}")]
    Unreachable {
        /// The URL.
        endpoint: String,
        /// What the system said.
        reason: String,
        /// Its kind.
        kind: io::ErrorKind,
    },
    /// There is a connection, and no secure one.
    #[error("{endpoint}: no secure connection: {reason}")]
    Tls {
        /// The URL.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// What answers there speaks something else.
    #[error("{endpoint} does not speak OTLP by {protocol}: {reason}")]
    WrongProtocol {
        /// The URL.
        endpoint: String,
        /// What was tried.
        protocol: Protocol,
        /// What came instead.
        reason: String,
    },
    /// It knows nothing of profiles.
    #[error("{endpoint} takes no profiles: {reason}")]
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
    #[error("{endpoint} can't take the profile now: {reason}")]
    Unavailable {
        /// The URL.
        endpoint: String,
        /// Its answer.
        reason: String,
    },
    /// It did not answer in time.
    #[error("{endpoint} did not answer within {} s", .waited.as_secs_f64())]
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
                "start a collector there, or name another endpoint: by gRPC usually port {}, by HTTP {}",
                Protocol::Grpc.port(),
                Protocol::Http.port()
            )),
            Self::Tls { .. } => Some(
                "http:// if it has no TLS; OTEL_EXPORTER_OTLP_CERTIFICATE names a file of authorities \
                 to believe it by"
                    .into(),
            ),
            Self::WithoutTls { .. } => Some(
                "build it with TLS: cargo build --release --features tls".into(),
            ),
            Self::WrongProtocol { protocol, .. } => Some(format!(
                "choose {} (--otlp-protocol, OTEL_EXPORTER_OTLP_PROTOCOL), or the port for {protocol}, \
                 usually {}",
                protocol.other(),
                protocol.port()
            )),
            Self::NoProfiles { .. } => Some(
                "a Collector needs a pipeline `profiles` with its OTLP receiver, and \
                 --feature-gates=service.profilesSupport"
                    .into(),
            ),
            Self::TimedOut { .. } => {
                Some("OTEL_EXPORTER_OTLP_TIMEOUT allows more, in milliseconds".into())
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
            1 => out.write_str("; it has taken one part of the profile before"),
            parts => write!(out, "; it has taken {parts} parts of the profile before"),
        }
    }
}

impl std::error::Error for Failed {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.why)
    }
}
