//! A small configurable collector: it sends responses that a real one cannot be made to send.

#![allow(dead_code)]

use std::convert::Infallible;
use std::io::Read as _;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::profiles::v1development::ProfilesData;
use otelctx_export::Protocol;
use prost::Message as _;
use tokio::net::TcpListener;

/// An answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// Everything is taken.
    Taken,
    /// It is taken, with this number of rejected profiles and this message.
    Partly(i64, &'static str),
    /// HTTP status, headers and body.
    Http(u16, Vec<(&'static str, &'static str)>, Vec<u8>),
    /// gRPC status, its message and its details.
    Grpc(u8, &'static str, Vec<u8>),
    /// Bytes in a gRPC message with this flag for compression.
    Message(u8, Vec<u8>),
    /// The connection is closed behind the answer, which is that everything is taken.
    Last,
    /// The server never responds.
    Never,
}

/// A request, as the server saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// The number of its connection.
    pub(crate) connection: usize,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) data: ProfilesData,
}

/// A server that ends with the test's process.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Server {
    /// Answers the requests one after the other; the last answer is for all that come behind.
    pub(crate) fn start(protocol: Protocol, replies: Vec<Reply>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let state = Arc::clone(&seen);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_io()
                .build()
                .unwrap();
            runtime.block_on(serve(listener, protocol, replies, state));
        });
        Self { address, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

async fn serve(
    listener: std::net::TcpListener,
    protocol: Protocol,
    replies: Vec<Reply>,
    seen: Arc<Mutex<Vec<Seen>>>,
) {
    let listener = TcpListener::from_std(listener).unwrap();
    for connection in 0.. {
        let (stream, _) = listener.accept().await.unwrap();
        let (replies, seen) = (replies.clone(), Arc::clone(&seen));
        let service = service_fn(move |request| {
            answer(request, connection, replies.clone(), Arc::clone(&seen))
        });
        let stream = TokioIo::new(stream);
        tokio::spawn(async move {
            let _ = match protocol {
                Protocol::Http => {
                    let server = http1::Builder::new();
                    server.serve_connection(stream, service).await
                }
                Protocol::Grpc => {
                    let server = http2::Builder::new(TokioExecutor::new());
                    server.serve_connection(stream, service).await
                }
            };
        });
    }
}

async fn answer(
    request: Request<Incoming>,
    connection: usize,
    replies: Vec<Reply>,
    seen: Arc<Mutex<Vec<Seen>>>,
) -> Result<Response<BoxBody<Bytes, Infallible>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let is_grpc = head.headers["content-type"] == "application/grpc";
    let number = {
        let mut seen = seen.lock().unwrap();
        seen.push(Seen {
            connection,
            path: head.uri.path().to_owned(),
            data: ProfilesData::decode(&message(&head.headers, &body)[..]).unwrap(),
            headers: head.headers,
        });
        seen.len() - 1
    };
    let reply = replies.get(number).or(replies.last()).unwrap().clone();
    let partial = |rejected_profiles, error_message: &str| {
        let response = ExportProfilesServiceResponse {
            partial_success: Some(ExportProfilesPartialSuccess {
                rejected_profiles,
                error_message: error_message.into(),
            }),
        };
        response.encode_to_vec()
    };
    Ok(match reply {
        Reply::Taken if is_grpc => grpc(0, Vec::new()),
        Reply::Taken => http(
            200,
            &[("content-type", "application/x-protobuf")],
            Vec::new(),
        ),
        Reply::Partly(rejected, message) if is_grpc => grpc(0, partial(rejected, message)),
        Reply::Partly(rejected, message) => {
            let kind = ("content-type", "application/x-protobuf");
            http(200, &[kind], partial(rejected, message))
        }
        Reply::Http(status, headers, body) => http(status, &headers, body),
        Reply::Grpc(code, message, details) => status(code, message, &details),
        Reply::Message(flag, bytes) => grpc(flag, bytes),
        Reply::Last => http(200, &[("connection", "close")], Vec::new()),
        Reply::Never => std::future::pending().await,
    })
}

/// A request's message without its frame and its compression.
fn message(headers: &HeaderMap, body: &[u8]) -> Vec<u8> {
    let is_grpc = headers["content-type"] == "application/grpc";
    let compressed = match headers.get("content-encoding") {
        Some(encoding) => encoding == "gzip",
        None => is_grpc && body[0] == 1,
    };
    // gRPC's flag for compression and the length before the message.
    let bytes = if is_grpc { &body[5..] } else { body };
    let mut message = Vec::new();
    if compressed {
        GzDecoder::new(bytes).read_to_end(&mut message).unwrap();
    } else {
        message.extend(bytes);
    }
    message
}

fn http(
    status: u16,
    headers: &[(&'static str, &'static str)],
    body: Vec<u8>,
) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Full::from(body).boxed());
    *response.status_mut() = status.try_into().unwrap();
    for (name, value) in headers {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(*name, value);
    }
    response
}

/// A message, and behind it that all is well.
fn grpc(flag: u8, message: Vec<u8>) -> Response<BoxBody<Bytes, Infallible>> {
    let mut frame = vec![flag];
    frame.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    frame.extend(message);
    let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from(0))]);
    let body = Full::from(frame).with_trailers(std::future::ready(Some(Ok(trailers))));
    let mut response = Response::new(body.boxed());
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    if flag == 1 {
        headers.insert("grpc-encoding", HeaderValue::from_static("gzip"));
    }
    response
}

/// A status alone.
fn status(code: u8, message: &str, details: &[u8]) -> Response<BoxBody<Bytes, Infallible>> {
    let mut response = Response::new(Empty::new().boxed());
    let headers = response.headers_mut();
    headers.insert("content-type", HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(u16::from(code)));
    headers.insert("grpc-message", HeaderValue::from_str(message).unwrap());
    if !details.is_empty() {
        let encoded: String = details.chunks(3).map(base64).collect();
        let encoded = HeaderValue::from_str(&encoded).unwrap();
        headers.insert("grpc-status-details-bin", encoded);
    }
    response
}

/// Up to three bytes as base64, without padding (gRPC's wire format leaves it away).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = (0..3).fold(0_usize, |group, index| {
        group << 8 | usize::from(bytes.get(index).copied().unwrap_or(0))
    });
    let digit = |index: usize| char::from(DIGITS[group >> (18 - 6 * index) & 63]);
    (0..=bytes.len()).map(digit).collect()
}
