//! The protocols that carry OTLP.

use std::fmt;
use std::str::FromStr;

/// The protocol that carries OTLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC, over HTTP/2.
    Grpc,
    /// HTTP requests with Protobuf messages as their bodies.
    Http,
}

impl Protocol {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Grpc => Self::Http,
            Self::Http => Self::Grpc,
        }
    }

    /// Its default port.
    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Grpc => 4317,
            Self::Http => 4318,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Grpc => "grpc",
            Self::Http => "http/protobuf",
        })
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::Http),
            other => Err(format!("{other:?} is neither grpc nor http/protobuf")),
        }
    }
}
