//! Detects another protocol at an endpoint whose connection broke: this is the most common mistake,
//! and its symptoms depend on which side writes first.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time;

use crate::answer::shown;
use crate::connect::Connector;
use crate::protocol::Protocol;

/// The first bytes of an HTTP/2 client (RFC 9113, section 3.4): the preface and an empty SETTINGS
/// frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Size of a frame header: length, type, flags and stream (section 4.1).
const FRAME_HEAD: usize = 9;
/// The type of a SETTINGS frame, the first frame of each side (section 6.5).
const SETTINGS: u8 = 4;
/// Maximum time until a greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(1);

/// Describes the other protocol of an endpoint; `None` if it cannot be determined.
pub(crate) async fn detect(connector: &Connector) -> Option<String> {
    let protocol = connector.endpoint().protocol();
    let greeting = time::timeout(GREETING_TIMEOUT, greeting(connector, protocol));
    let greeting = greeting.await.ok()??;
    let is_http2 = greeting[3] == SETTINGS && greeting[5..] == [0; 4];
    let start = shown(&String::from_utf8_lossy(&greeting));
    match protocol {
        Protocol::Grpc if is_http2 => None,
        Protocol::Grpc => Some(format!("it responds with {start:?}, not with HTTP/2")),
        Protocol::Http if is_http2 => Some("it responds with HTTP/2".to_owned()),
        // An HTTP/1 server waits for a request.
        Protocol::Http => Some(format!("it speaks first: {start:?}")),
    }
}

async fn greeting(connector: &Connector, protocol: Protocol) -> Option<[u8; FRAME_HEAD]> {
    let mut stream = connector.connect().await.ok()?.into_inner();
    if protocol == Protocol::Grpc {
        stream.write_all(PREFACE).await.ok()?;
        stream.flush().await.ok()?;
    }
    let mut start = [0; FRAME_HEAD];
    stream.read_exact(&mut start).await.ok()?;
    Some(start)
}
