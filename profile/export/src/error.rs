//! Errors of sending profiles.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::protocol::Protocol;

/// The reason why profiles could not be sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL is not an endpoint.
    #[error("{url:?} is not a valid OTLP endpoint: {reason}")]
    Endpoint {
        /// The URL, without user, password and query.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An environment variable has an invalid value.
    #[error("{variable}: {reason}")]
    Variable {
        /// Its name.
        variable: String,
        /// What is wrong with its value.
        reason: String,
    },
    /// There are no CA certificates.
    #[error("{}: no CA certificates: {reason}", path.as_deref().unwrap_or("this machine".as_ref()).display())]
    Certificates {
        /// The file, if one was given.
        path: Option<PathBuf>,
        /// What is wrong with it.
        reason: String,
    },
    /// This client's certificate or its private key cannot be used.
    #[error("{}: {reason}", path.display())]
    ClientCertificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The URL is `https://`, but this program was built without TLS.
    #[error("{endpoint}: this program was built without TLS")]
    WithoutTls {
        /// The URL.
        endpoint: String,
    },
    /// The system cannot start another task.
    #[error("cannot prepare the connection: {0}")]
    Prepare(String),
    /// No connection could be established.
    #[error("cannot connect to {endpoint}: {reason}")]
    Unreachable {
        /// The URL.
        endpoint: String,
        /// The system's error.
        reason: String,
        /// Its kind.
        kind: io::ErrorKind,
    },
    /// There is no connection through the HTTP proxy.
    #[error("cannot connect to {endpoint} through the proxy {reason}")]
    Proxy {
        /// The URL.
        endpoint: String,
        /// The proxy's URL, without user and password, and the system's error or the proxy's answer.
        reason: String,
    },
    /// A connection was established, but TLS failed.
    #[error("{endpoint}: TLS failed: {reason}")]
    Tls {
        /// The URL.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// The server uses another protocol.
    #[error("{endpoint} does not accept OTLP over {protocol}: {reason}")]
    WrongProtocol {
        /// The URL.
        endpoint: String,
        /// The protocol that was tried.
        protocol: Protocol,
        /// The response.
        reason: String,
    },
    /// The server does not support profiles.
    #[error("{endpoint} does not accept profiles: {reason}")]
    NoProfiles {
        /// The URL.
        endpoint: String,
        /// Its response.
        reason: String,
    },
    /// The server supports profiles, but refused this one.
    #[error("{endpoint} refused the profile: {reason}")]
    Refused {
        /// The URL.
        endpoint: String,
        /// Its response.
        reason: String,
    },
    /// The server may accept the profile later.
    #[error("{endpoint} is unavailable: {reason}")]
    Unavailable {
        /// The URL.
        endpoint: String,
        /// Its response.
        reason: String,
    },
    /// The server did not respond in time.
    #[error("{endpoint} did not respond within {} s", .waited.as_secs_f64())]
    TimedOut {
        /// The URL.
        endpoint: String,
        /// The timeout of an attempt.
        waited: Duration,
    },
    /// The attempt was ended by [`Cancel`](crate::Cancel).
    #[error("{endpoint} did not respond before the end")]
    Cancelled {
        /// The URL.
        endpoint: String,
    },
}

impl Error {
    /// Returns a hint, if the message does not contain it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some(format!(
                "start a collector there, or use another endpoint (the usual ports are {} for \
                 gRPC and {} for HTTP)",
                Protocol::Grpc.port(),
                Protocol::Http.port()
            )),
            Self::Proxy { .. } => Some(
                "NO_PROXY names hosts that need no proxy; HTTPS_PROXY and HTTP_PROXY name the proxy"
                    .into(),
            ),
            Self::Tls { .. } => Some(
                "use http:// if it has no TLS; OTEL_EXPORTER_OTLP_CERTIFICATE names a file of CA \
                 certificates to trust"
                    .into(),
            ),
            Self::WithoutTls { .. } => {
                Some("build otelctx with its feature `tls`, which is on by default".into())
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
