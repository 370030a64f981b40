//! OTLP over gRPC. A message consists of the same bytes as in a file, or over HTTP.

use std::error::Error as _;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes};
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use prost::Message;
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tower_service::Service;

use crate::answer::{ANSWER_SIZE, Again, Answer, Failure, retry_info, shown};
use crate::connect::{Connector, NAME, Stream};
use crate::{Error, Protocol, other_protocol};

/// The method of the service in `profiles_service.proto`.
const METHOD: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// tonic's message if an HTTP/2 response has no `grpc-status`.
const NO_GRPC: &str = "grpc-status header missing";

/// The start of tonic's message if an HTTP/2 response has another body than a message: a proxy's page.
const NO_MESSAGE: &str = "protocol error: received message with invalid compression flag";

/// tonic's message if a response is longer than [`ANSWER_SIZE`].
const TOO_LONG: &str = "decoded message length too large";

/// Sends over one connection, which is re-established if it breaks.
pub(crate) struct Grpc {
    connector: Connector,
    client: tonic::client::Grpc<Channel>,
    metadata: MetadataMap,
}

impl Grpc {
    /// Must be called within a runtime, in which the connection will live.
    pub(crate) fn new(connector: Connector) -> Result<Self, Error> {
        let endpoint = connector.endpoint();
        let wrong = |why: &dyn std::fmt::Display| Error::Endpoint {
            url: endpoint.to_string(),
            reason: why.to_string(),
        };
        let transport = tonic::transport::Endpoint::from_shared(endpoint.to_string())
            .and_then(|transport| transport.user_agent(NAME))
            .map_err(|why| wrong(&why))?;
        let channel = transport.connect_with_connector_lazy(Connect(connector.clone()));
        let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_SIZE);
        if endpoint.gzip {
            // A server compresses its responses like the requests.
            client = client
                .send_compressed(CompressionEncoding::Gzip)
                .accept_compressed(CompressionEncoding::Gzip);
        }
        let metadata = MetadataMap::from_headers(endpoint.headers.clone());
        Ok(Self {
            connector,
            client,
            metadata,
        })
    }

    pub(crate) async fn send(&mut self, message: Bytes) -> Result<Answer, Failure> {
        let status = match self.call(message).await {
            Ok(response) => return Ok(response.into()),
            Err(status) => status,
        };
        if let Some(error) = found_in(&status) {
            return Err(Failure::to_connect(error));
        }
        let message = status.message();
        let other = if message.starts_with(NO_GRPC) || message.starts_with(NO_MESSAGE) {
            Some(reason(&status))
        } else if status.source().is_some() {
            other_protocol::detect(&self.connector).await
        } else {
            None
        };
        match other {
            Some(reason) => Err(Failure::unread(Error::WrongProtocol {
                endpoint: self.connector.endpoint().to_string(),
                protocol: Protocol::Grpc,
                reason,
            })),
            None => Err(self.failure(&status)),
        }
    }

    async fn call(&mut self, message: Bytes) -> Result<ExportProfilesServiceResponse, Status> {
        let ready = self.client.ready().await;
        ready.map_err(|why| Status::from_error(why.into()))?;
        let mut request = Request::new(message);
        *request.metadata_mut() = self.metadata.clone();
        let path = PathAndQuery::from_static(METHOD);
        let response = self.client.unary(request, path, Messages).await?;
        Ok(response.into_inner())
    }

    fn failure(&self, status: &Status) -> Failure {
        let endpoint = self.connector.endpoint().to_string();
        let reason = reason(status);
        let is_ours = status.message().contains(TOO_LONG);
        let again = match (status.code(), retry_info(status.details())) {
            (Code::OutOfRange, _) if is_ours => Again::Never,
            // The codes that are retryable according to the OTLP specification.
            (
                Code::Unavailable
                | Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Aborted
                | Code::OutOfRange
                | Code::DataLoss,
                after,
            ) => after.map_or(Again::Later, Again::After),
            (Code::ResourceExhausted, Some(after)) => Again::After(after),
            // The connection has broken.
            _ if status.source().is_some() => Again::Later,
            _ => Again::Never,
        };
        let error = match status.code() {
            Code::Unimplemented => Error::NoProfiles { endpoint, reason },
            _ if again != Again::Never => Error::Unavailable { endpoint, reason },
            _ => Error::Refused { endpoint, reason },
        };
        Failure {
            error,
            again,
            is_unread: false,
        }
    }
}

type Source<'s> = &'s (dyn std::error::Error + 'static);

/// The chain of a status's causes.
fn sources(status: &Status) -> impl Iterator<Item = Source<'_>> {
    std::iter::successors(status.source(), |why| (**why).source())
}

/// The connector's error, if it is the cause.
fn found_in(status: &Status) -> Option<Error> {
    sources(status).find_map(|why| why.downcast_ref::<Error>().cloned())
}

fn reason(status: &Status) -> String {
    let cause = sources(status).last().map(ToString::to_string);
    let said = cause.unwrap_or_else(|| status.message().to_owned());
    let code = format!("{:?}", status.code());
    match shown(&said) {
        said if said.is_empty() => format!("gRPC status {code}"),
        said => format!("gRPC status {code}: {said}"),
    }
}

/// Connects when tonic needs a connection.
struct Connect(Connector);

impl Service<Uri> for Connect {
    type Response = TokioIo<Box<dyn Stream>>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let connector = self.0.clone();
        Box::pin(async move { connector.connect().await })
    }
}

/// Messages that are already encoded, and their responses.
#[derive(Default)]
struct Messages;

impl Codec for Messages {
    type Encode = Bytes;
    type Decode = ExportProfilesServiceResponse;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Messages {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Messages {
    type Item = ExportProfilesServiceResponse;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Self::Item>, Status> {
        let invalid = |why| Status::internal(format!("its response cannot be decoded ({why})"));
        let answer = ExportProfilesServiceResponse::decode(from);
        answer.map(Some).map_err(invalid)
    }
}
